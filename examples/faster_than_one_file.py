"""How much faster the package trains than `one_file_dvrl.py`: one agent, one CPU core, in turns.

Both have the paper's sizes (K = 30, n_e = 16, n_g = 25). Early in training most particles die, and
on a CPU the package follows only those that have offspring; so the ratio is shown again once the
particles have learned to stay alive.

    python examples/faster_than_one_file.py --later 40
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import one_file_dvrl as one_file
import torch

from dvrl.experiments.presets import preset
from dvrl.runs.guard import numerics
from dvrl.runs.trainer import Trainer


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--later", type=int, default=40, help="windows before measuring again")
    parser.add_argument("--repeats", type=int, default=5, help="windows measured of each")
    args = parser.parse_args()
    with numerics(threads=1):  # as in `dvrl train`
        compare(args.later, args.repeats)


def compare(windows_before: int, repeats: int) -> None:
    torch.manual_seed(0)
    config = preset("tuned", "dvrl")
    config = replace(config, learner=replace(config.learner, n_envs=16))
    package = Trainer(config, torch.device("cpu"))
    c = one_file.Config(n_envs=16, n_grad=25, n_particles=30, h_dim=128, z_dim=128)
    worlds = one_file.MountainHike(c.n_envs, c.sigma, 0)
    updates = one_file.train(c, one_file.Agent(c), worlds, torch.Generator().manual_seed(1))

    def window() -> None:
        for _ in range(c.n_grad // c.n_steps):
            next(updates)

    window()
    ess = package.window().metrics["belief/ess"]
    for later in (0, windows_before):
        for _ in range(later):
            ess = package.window().metrics["belief/ess"]
        times = [(seconds(window), seconds(package.window)) for _ in range(repeats)]
        theirs, ours = (400 / statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"after {package.steps:6,} steps: one file {theirs:4.0f} steps/s, package {ours:4.0f}, "
            f"{ours / theirs:.2f} times (effective sample size {ess:.1f} of 30)",
            flush=True,
        )


if __name__ == "__main__":
    main()
