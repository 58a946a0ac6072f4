"""Do the engines agree? Checks for a machine with a GPU, where no test of ours can look.

Each check gives a number and the bound it must not exceed; 0 means: to the last bit.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from dvrl.experiments.presets import preset
from dvrl.learners.engine import EngineName
from dvrl.runs.config import RunConfig
from dvrl.runs.trainer import Trainer

TOLERANCE = 1e-5
"""Relative difference of losses and gradients between engines: fused operations round elsewhere."""
LOSSES = ("loss/policy", "loss/value", "loss/entropy", "loss/elbo", "loss/total", "grad_norm")


class Finding(NamedTuple):
    """One check."""

    name: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.value <= self.bound


def configs(name: str) -> dict[str, RunConfig]:
    """What is checked: both agents, and cuts in time that are continued by their value."""
    chosen = {agent: preset(name, agent, steps=10**15) for agent in ("dvrl", "rnn")}
    for agent, config in list(chosen.items()):
        learner = replace(config.learner, bootstrap_cuts=True, normalise_advantage=True)
        chosen[f"{agent}, cuts continued"] = replace(config, learner=learner)
    return chosen


def checks(device: torch.device, updates: int, preset_name: str) -> Iterator[Finding]:
    """All of them, one after the other."""
    for name, config in configs(preset_name).items():
        yield from eager_and_graph(name, config, device)
    for name, config in list(configs(preset_name).items())[:2]:
        yield side_by_side(name, config, device)
        yield taken_up(name, config, device)
        yield memory(name, config, device, updates)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp(min=1e-12))


def eager_and_graph(name: str, config: RunConfig, device: torch.device) -> Iterator[Finding]:
    """From the same state with the same noise, window by window: losses, gradients, weights."""
    worst: dict[str, float] = {}
    start = Trainer(config, device, "eager").checkpoint({})
    for _ in range(4):  # the fourth window lies behind the first cut of episodes
        eager, graph = (_window(config, device, engine, start) for engine in ("eager", "graph"))
        for loss in LOSSES:
            scale = max(abs(eager.losses[loss]), 1e-3)
            worst[loss] = max(
                worst.get(loss, 0.0), abs(graph.losses[loss] - eager.losses[loss]) / scale
            )
        for what in ("gradient", "weights"):
            difference = relative(getattr(graph, what), getattr(eager, what))
            worst[what] = max(worst.get(what, 0.0), difference)
        start = eager.state
    for what, value in worst.items():
        yield Finding(f"{name}: {what}, graph against eager", value, TOLERANCE)


class _Window(NamedTuple):
    losses: dict[str, float]
    gradient: Tensor
    weights: Tensor
    state: object


def _window(config: RunConfig, device: torch.device, engine: EngineName, start) -> _Window:
    trainer = Trainer(config, device, engine)
    trainer.restore(start)
    losses = trainer.window().metrics
    optimiser = trainer.learner.optimiser
    return _Window(
        losses, optimiser.gradient.clone(), optimiser.flat.clone(), trainer.checkpoint({})
    )


def _trained(trainers: list[Trainer], windows: int) -> list[Tensor]:
    """Weights after `windows` windows of each, taken in turns."""
    for _ in range(windows):
        for trainer in trainers:
            trainer.launch()
        for trainer in trainers:
            trainer.window()
    return [trainer.learner.optimiser.flat.cpu() for trainer in trainers]


def side_by_side(name: str, config: RunConfig, device: torch.device) -> Finding:
    """Three seeds at once against each alone."""
    seeds = [replace(config, seed=seed) for seed in range(3)]
    together = _trained([Trainer(c, device, "auto") for c in seeds], 6)
    alone = [_trained([Trainer(c, device, "auto")], 6)[0] for c in seeds]
    worst = max(float((a - b).abs().max()) for a, b in zip(together, alone, strict=True))
    return Finding(f"{name}: weights, three runs side by side against alone", worst, 0.0)


def taken_up(name: str, config: RunConfig, device: torch.device) -> Finding:
    """A run continued from its checkpoint against one that was not stopped."""
    whole = Trainer(config, device, "auto")
    _trained([whole], 3)
    part = Trainer(config, device, "auto")
    part.restore(whole.checkpoint({}))
    difference = _trained([whole], 4)[0] - _trained([part], 4)[0]
    return Finding(f"{name}: weights, continued against whole", float(difference.abs().max()), 0.0)


def memory(name: str, config: RunConfig, device: torch.device, updates: int) -> Finding:
    """MiB allocated more after many updates than after the first few."""
    trainer = Trainer(config, device, "auto")
    _trained([trainer], 8)
    before = torch.cuda.memory_allocated(device)
    _trained([trainer], updates // config.learner.segments)
    grown = (torch.cuda.memory_allocated(device) - before) / 2**20
    return Finding(f"{name}: MiB gained over {updates:,} updates", grown, 0.0)
