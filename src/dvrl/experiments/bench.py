"""How fast training is: steps per second over agents, particles, environments and runs at once.

Everything a user's training does is in the measured loop except files: worlds, beliefs, gradients,
optimiser, results to the host. Warm-up (compilation, capture) is not.
"""

import gc
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch

from dvrl.encoders.config import ParticleConfig
from dvrl.envs.config import AtariConfig, MountainHikeConfig, WorldConfig
from dvrl.experiments.presets import preset
from dvrl.learners.engine import EngineName
from dvrl.runs.config import RunConfig
from dvrl.runs.trainer import Trainer

FOREVER = 10**15
EPISODE = 75
"""Steps after which the pattern of cuts in Mountain Hike repeats."""


@dataclass(frozen=True)
class Cell:
    """One place of the grid."""

    agent: str
    particles: int | None
    """K; None for the RNN."""
    envs: int
    """n_e."""
    runs: int
    """Runs side by side."""
    preset: str = "paper"
    world: WorldConfig = field(default_factory=MountainHikeConfig)

    def config(self, seed: int) -> RunConfig:
        config = preset(self.preset, self.agent, self.world, seed=seed, steps=FOREVER)
        encoder = config.encoder
        if isinstance(encoder, ParticleConfig):
            encoder = replace(encoder, n_particles=self.particles)
        learner = replace(config.learner, n_envs=self.envs, anneal_steps=None)
        return replace(config, encoder=encoder, learner=learner)


@dataclass(frozen=True)
class Speed:
    """What was measured in a cell."""

    engine: str
    steps_per_second: float
    """Environment steps of all runs together; median over repeats."""
    lowest: float
    highest: float
    ms_per_update: float
    """Time from one optimiser step of a run to its next."""
    peak_mib: float
    """Memory: allocated on the GPU, or resident on the CPU."""
    warm_up_seconds: float


def grid(
    agents: list[str],
    particles: list[int],
    envs: list[int],
    runs: list[int],
    preset: str,
    world: WorldConfig | None = None,
) -> Iterator[Cell]:
    """Every combination; the RNN has no particles."""
    for agent in agents:
        counts = particles if agent == "dvrl" else [None]
        for k, n, r in product(counts, envs, runs):
            yield Cell(agent, k, n, r, preset, world or MountainHikeConfig())


def measure(
    cell: Cell, device: torch.device, engine: EngineName, repeats: int, seconds: float
) -> Speed:
    """The speed of a cell: `repeats` stretches of at least `seconds` each."""
    gc.collect()  # the cell before
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    trainers = [Trainer(cell.config(seed), device, engine) for seed in range(cell.runs)]
    learner = trainers[0].config.learner
    warm = -(-EPISODE // learner.n_grad) + 1 if device.type == "cuda" else 1
    for _ in range(warm):  # every pattern of cuts has been met, so every graph is captured
        _round(trainers)
    _drain(trainers, device)
    warm_up = time.perf_counter() - began

    rates = []
    for _ in range(repeats):
        before, start = _steps(trainers), time.perf_counter()
        while time.perf_counter() - start < seconds:
            _round(trainers)
        _drain(trainers, device)
        rates.append((_steps(trainers) - before) / (time.perf_counter() - start))
    median = statistics.median(rates)
    update = learner.n_envs * learner.n_steps * cell.runs
    return Speed(
        engine=trainers[0].engine.name,
        steps_per_second=median,
        lowest=min(rates),
        highest=max(rates),
        ms_per_update=1e3 * update / median,
        peak_mib=_peak(device),
        warm_up_seconds=warm_up,
    )


class Emulation(NamedTuple):
    """What the emulators do when nobody thinks between two steps."""

    envs: int
    steps_per_second: float
    lowest: float
    highest: float


def emulation(world: AtariConfig, envs: int, repeats: int, seconds: float) -> Emulation:
    """Decisions per second of the emulators alone, with actions drawn beforehand: as `measure`."""
    games = world.emulators(envs)
    games.reset(seed=0)
    chance = np.random.default_rng(0)
    actions = chance.integers(0, games.single_action_space.n, (1024, envs))
    rates = []
    for _ in range(repeats + 1):  # the first is for warming up
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            games.step(actions[steps // envs % len(actions)])
            steps += envs
        rates.append(steps / (time.perf_counter() - start))
    del rates[0]
    return Emulation(envs, statistics.median(rates), min(rates), max(rates))


def _round(trainers: list[Trainer]) -> None:
    """One window of every run; the next ones are under way meanwhile."""
    for trainer in trainers:
        trainer.fill()
    for trainer in trainers:
        trainer.window()


def _drain(trainers: list[Trainer], device: torch.device) -> None:
    for trainer in trainers:
        while trainer.engine.under_way:
            trainer.window()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _steps(trainers: list[Trainer]) -> int:
    return sum(trainer.steps for trainer in trainers)


def _peak(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resident()


def resident() -> float:
    """The most MiB that this process ever had on the host."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def bench(
    cells: list[Cell],
    device: torch.device,
    repeats: int,
    seconds: float,
    tell: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Measure every cell with the engine that `auto` chooses, and single runs eagerly beside it;
    of Atari not these but the emulators alone, before all others with as many of them.

    `tell` hears of each row as soon as it is known.
    """
    rows: list[dict[str, Any]] = []
    eager: dict[Cell, float] = {}
    alone_of: dict[int, Emulation] = {}
    for cell in cells:
        game = isinstance(cell.world, AtariConfig)
        if game and cell.envs not in alone_of:
            alone_of[cell.envs] = emulation(cell.world, cell.envs, repeats, seconds)
            rows.append({"agent": "emulator"} | alone_of[cell.envs]._asdict())
            tell(rows[-1])
        alone = replace(cell, runs=1)
        if device.type == "cuda" and not game and alone not in eager:
            eager[alone] = measure(alone, device, "eager", 1, seconds).steps_per_second
        speed = measure(cell, device, "auto", repeats, seconds)
        base = eager.get(alone)
        row = asdict(cell) | asdict(speed)
        row["times_eager"] = speed.steps_per_second / base if base else None
        if cell.envs in alone_of:
            row["of_emulator"] = speed.steps_per_second / alone_of[cell.envs].steps_per_second
        rows.append(row)
        tell(row)
    return {"machine": machine(device), "repeats": repeats, "seconds": seconds, "rows": rows}


def machine(device: torch.device) -> dict[str, Any]:
    """What the numbers were measured on."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "measured": time.strftime("%Y-%m-%d"),
    }
