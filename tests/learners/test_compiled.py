"""Every GPU kernel of a gradient window can be built for an H200.

What it computes is for other tests. No GPU is needed, and none is asked: Triton's compiler knows
what fits a program's memory, and counts the registers that overflow.
"""

import sys
from dataclasses import replace

import pytest
import torch

from compiled import compiling
from interpreted import cases_checked, needs_triton

SPILLED = 64
"""Bytes a thread may keep outside its registers at the paper's sizes."""
WAYS = "_forward", "_backward"
PRODUCTS = "convolve", "of_weights"
NORMS = "settle", "add_up", "through_norm", "activate", "deactivate"
IMAGES = {
    *(f"nets.patches_triton.{name}" for name in PRODUCTS),
    *(f"nets.norm_triton.{name}" for name in NORMS),
}
NORMED = {f"models.normed_step_triton.{name}" for name in ("begin", "to_e", "to_z", "to_y", "to_h")}
PARTICLES = {f"{name}_triton._{name.rsplit('.')[-1]}" for name in ("encoders.step", "models.walk")}
WALK = {"core.gru_walk_triton._step"}
WANTED = {
    "dvrl-hike": PARTICLES | {"core.scan_triton._forward"},
    "rnn-hike": WALK,
    "dvrl-pong": IMAGES | NORMED,
    "rnn-pong": IMAGES | WALK,
    "operators": {
        *(f"core.{kind}_triton.{way}" for kind in ("scan", "cell") for way in WAYS),
        "core.products_triton._parts",
    },
}


@needs_triton
@pytest.mark.parametrize("case", WANTED)
def test_kernels_can_be_built(case):
    assert cases_checked(__file__, case, interpreted=False) == len(WANTED[case])


def window(agent: str, world: str) -> None:
    """The first window of the paper's agent, two updates long."""
    from dvrl.envs.config import AtariConfig, MountainHikeConfig
    from dvrl.experiments.presets import preset
    from dvrl.runs.trainer import Trainer

    worlds = {"hike": MountainHikeConfig(), "pong": AtariConfig("Pong", "deterministic")}
    config = preset("paper", agent, worlds[world])
    config = replace(config, learner=replace(config.learner, n_grad=10))
    Trainer(config, torch.device("cpu"), "eager").window()


def operators() -> None:
    """What is reached on a GPU alone: scans of both sizes, forth and back, and joint products."""
    from dvrl.core import products_triton, scan_triton

    n, length = 16, 15
    for hidden in (128, 256):
        gates, weight = torch.randn(n, length, 3 * hidden), torch.randn(3 * hidden, hidden)
        last, bias = torch.randn(n, hidden), torch.randn(3 * hidden)
        taped = last, torch.randn(n, length, hidden), torch.randn(n, length, 4 * hidden)
        for results in ((last,), taped):
            scan_triton.forward(gates, weight, bias, results, tf32=True)
        scan_triton.backward(*taped, weight, tf32=True)
    gs, xs = [torch.randn(80, 384)], [torch.randn(80, 128)]
    assert products_triton.supports(gs, xs)
    products_triton.transposed(gs, xs, precision="tf32")


def main(case: str) -> None:
    from dvrl.runs.guard import numerics

    built = compiling()
    with numerics(1, "tf32"):
        operators() if case == "operators" else window(*case.split("-"))
    assert {b.name for b in built} == WANTED[case], sorted({b.name for b in built} ^ WANTED[case])
    for b in built:
        assert b.spilled <= SPILLED, b
    print("\n".join(f"checked {name}" for name in WANTED[case]))


if __name__ == "__main__":
    main(sys.argv[1])
