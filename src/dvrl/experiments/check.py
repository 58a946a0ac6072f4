"""Do the engines agree? Checks for a machine with a GPU, where no test of ours can look.

Each check gives a number and the bound it must not exceed; 0 means: to the last bit.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from dvrl import kernels
from dvrl.core.scan import scan
from dvrl.encoders.config import ParticleConfig
from dvrl.envs.config import AtariConfig, GymConfig
from dvrl.experiments.bench import resident
from dvrl.experiments.presets import preset
from dvrl.runs.config import RunConfig
from dvrl.runs.guard import numerics
from dvrl.runs.trainer import Trainer

ROUNDED = 1e-3
"""The same between tf32 and float32, for the terms of the loss in the first window."""
TOLERANCE = 1e-5
"""Relative difference of losses and gradients between engines: fused operations round elsewhere."""
PRECISE = 1e-9
"""The same in double precision. Seven thousand pixels add up to thousands of nats: in single
precision their rounding moves a particle's weight by a thousandth, and the gradient with it."""
SINGLE = 1e-3
"""The same between our kernels and plain operations, in single precision: sums of other orders."""
LOSSES = ("loss/policy", "loss/value", "loss/entropy", "loss/elbo", "loss/total", "grad_norm")
WINDOWS = 4
"""Compared from the same state; the fourth lies behind the first cut of episodes."""
SCANNED = (128, 256)
"""Sizes of the second GRU: the largest whose weights one program holds, and Atari's."""
SHORT_HIKE = "dvrl/ShortHike-v0"


class Finding(NamedTuple):
    """One check."""

    name: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.value <= self.bound


def configs(name: str) -> dict[str, RunConfig]:
    """What is checked: both agents, cuts in time that are continued by their value, and sizes that
    no kernel of ours knows."""
    chosen = {agent: preset(name, agent, steps=10**15) for agent in ("dvrl", "rnn")}
    for agent, config in list(chosen.items()):
        learner = replace(config.learner, bootstrap_cuts=True, normalise_advantage=True)
        chosen[f"{agent}, cuts continued"] = replace(config, learner=learner)
    odd = ParticleConfig(n_particles=35, h_dim=48, z_dim=40, embed_dim=24)
    chosen["dvrl, odd sizes"] = replace(chosen["dvrl"], encoder=odd)
    return chosen


def host_configs(name: str) -> dict[str, RunConfig]:
    """The same with worlds on the host: cut within every window, or ended, with other actions."""
    if SHORT_HIKE not in gym.registry:
        gym.register(SHORT_HIKE, "dvrl.envs.gym_hike:MountainHikeEnv", max_episode_steps=20)
    chosen = {}
    for agent, id in product(("dvrl", "rnn"), (SHORT_HIKE, "CartPole-v1")):
        config = preset(name, agent, GymConfig(id), steps=10**15)
        learner = replace(config.learner, bootstrap_cuts=True)
        chosen[f"{agent}, {id}"] = replace(config, learner=learner)
    return chosen


def game_configs() -> dict[str, RunConfig]:
    """Two updates of agents that see images, if the emulators are there."""
    if find_spec("ale_py") is None:
        return {}
    chosen = {}
    for agent in ("dvrl", "rnn"):
        config = preset("paper", agent, AtariConfig("Pong", "deterministic"), steps=10**15)
        chosen[f"{agent}, Pong"] = replace(config, learner=replace(config.learner, n_grad=10))
    return chosen


class Check(NamedTuple):
    """Something to find out."""

    name: str
    findings: Callable[[], Iterable[Finding]]


def checks(device: torch.device, updates: int, preset_name: str) -> Iterator[Check]:
    """All of them."""
    on_device, on_host, games = configs(preset_name), host_configs(preset_name), game_configs()
    for size in SCANNED:
        yield Check(f"scan, h = {size}", partial(scans, size, device))
    for name, config in on_device.items():
        yield Check(f"engines, {name}", partial(eager_and_graph, config, device))
    for name, config in on_host.items():
        yield Check(f"engines, {name}", partial(from_the_start, config, device))
    for name in ("dvrl", "rnn"):
        config = on_device[name]
        yield Check(f"tf32, {name}", partial(tf32, config, device))
        yield Check(f"side by side, {name}", partial(side_by_side, config, device))
        yield Check(f"continued, {name}", partial(continued, config, device))
        yield Check(f"memory, {name}", partial(memory, config, device, updates))
    for name, config in games.items():
        yield Check(f"kernels, {name}", partial(kernels_and_plain, config, device))
        yield Check(f"engines, {name}", partial(in_double, config, device))
        yield Check(f"memory, {name}", partial(memory, config, device, updates // 10))
    name, config = next(iter(on_host.items()))
    yield Check(f"side by side, {name}", partial(side_by_side, config, device))
    yield Check(f"memory, {name}", partial(memory, config, device, updates // 10))


def scans(size: int, device: torch.device) -> Iterator[Finding]:
    """The second GRU over particles: this device's kernels against plain operations in double."""
    chance = torch.Generator().manual_seed(0)
    shapes = (240, 15, 3 * size), (3 * size, size), (3 * size,), (240, size)
    drawn = [torch.randn(shape, generator=chance, dtype=torch.float64) for shape in shapes]
    drawn[1] /= size**0.5
    found = []
    for given in ([x.float().to(device) for x in drawn], drawn):
        leaves = [x.requires_grad_() for x in given[:3]]
        last = scan(*leaves)
        found.append([last, *torch.autograd.grad((last * given[3]).sum(), leaves)])
    names = "last state", "gradient of inputs", "gradient of weights", "gradient of biases"
    for name, kernel, plain in zip(names, *found, strict=True):
        difference = relative(kernel.detach().cpu().double(), plain.detach())
        yield Finding(f"{name}, kernel against plain", difference, TOLERANCE)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp(min=1e-12))


def eager_and_graph(config: RunConfig, device: torch.device) -> Iterator[Finding]:
    """From the same state with the same noise, window by window: losses, gradients, weights.

    Now and then rounding chooses another ancestor, and what follows differs for good. Such a window
    says nothing about the engines; there must be few.
    """
    windows = []
    start = Trainer(config, device, "eager").checkpoint({})
    for _ in range(WINDOWS):
        trainers = [Trainer(config, device, engine) for engine in ("eager", "graph")]
        for trainer in trainers:
            trainer.restore(start)
        windows.append((_window(trainers[0]), _window(trainers[1])))
        start = trainers[0].checkpoint({})
    yield from _agree(windows)


def from_the_start(config: RunConfig, device: torch.device) -> Iterator[Finding]:
    """The same where worlds cannot be put back: both engines from the beginning."""
    yield from _agree(_from_the_start(config, device))


def _from_the_start(config: RunConfig, device: torch.device) -> list[tuple["_Window", "_Window"]]:
    """Two windows, since runs that have parted stay apart; and the first after both went on from
    what one had saved, where worlds begin anew alike."""
    windows, saved = [], None
    for count in (2, 1):
        eager, graph = (Trainer(config, device, engine) for engine in ("eager", "graph"))
        if saved is not None:
            eager.restore(saved)
            graph.restore(saved)
        windows += [(_window(eager), _window(graph)) for _ in range(count)]
        saved = eager.checkpoint({})
    return windows


def in_double(config: RunConfig, device: torch.device) -> Iterator[Finding]:
    """`from_the_start` in double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        windows = _from_the_start(config, device)
    finally:
        torch.set_default_dtype(before)
    yield from _agree(windows, PRECISE)


def kernels_and_plain(config: RunConfig, device: torch.device) -> Iterator[Finding]:
    """The first update with our kernels against plain operations. The second would say nothing:
    the optimiser begins with steps of one size, whatever a gradient's, and weights that differ by
    1e-6 at first have gradients that differ by 1e-2 then. And one particle alone: of several,
    rounding would choose others to go on."""
    config = replace(config, learner=replace(config.learner, n_grad=config.learner.n_steps))
    if isinstance(config.encoder, ParticleConfig):
        config = replace(config, encoder=replace(config.encoder, n_particles=1))
    ours = _window(Trainer(config, device, "eager"))
    with kernels.left():
        plain = _window(Trainer(config, device, "eager"))
    worst: dict[str, float] = {}
    _compare(plain, ours, worst)
    for what, value in worst.items():
        yield Finding(f"{what}, kernels against plain operations", value, SINGLE)


def tf32(config: RunConfig, device: torch.device) -> Iterator[Finding]:
    """The first window with products rounded to tf32 against float32."""
    found = {}
    for precision in ("float32", "tf32"):
        with numerics(torch.get_num_threads(), precision):
            found[precision] = _window(Trainer(config, device, "auto"))
    worst: dict[str, float] = {}
    _compare(found["float32"], found["tf32"], worst)
    for loss in LOSSES[:-1]:
        yield Finding(f"{loss}, tf32 against float32", worst[loss], ROUNDED)


class _Window(NamedTuple):
    losses: dict[str, float]
    gradient: Tensor
    weights: Tensor
    ancestors: Tensor | None


def _window(trainer: Trainer) -> _Window:
    losses = trainer.window().metrics
    optimiser, recorder = trainer.learner.optimiser, trainer.learner.recorder
    ancestors = None if recorder is None else recorder.ancestors
    return _Window(
        losses,
        optimiser.gradient.clone(),
        optimiser.flat.clone(),
        None if ancestors is None else ancestors.clone(),
    )


def _compare(eager: _Window, graph: _Window, worst: dict[str, float]) -> None:
    """The largest differences so far, into `worst`."""
    found = {
        loss: abs(graph.losses[loss] - eager.losses[loss]) / max(abs(eager.losses[loss]), 1e-3)
        for loss in LOSSES
    }
    found["gradient"] = relative(graph.gradient, eager.gradient)
    found["weights"] = relative(graph.weights, eager.weights)
    for what, value in found.items():
        worst[what] = max(worst.get(what, 0.0), value)


def _agree(
    windows: list[tuple[_Window, _Window]], tolerance: float = TOLERANCE
) -> Iterator[Finding]:
    """Both engines in all windows that chose the same ancestors."""
    same = [pair for pair in windows if _same(pair[0].ancestors, pair[1].ancestors)]
    parted = len(windows) - len(same)
    yield Finding("windows in which rounding chose other ancestors", parted, 1)
    worst: dict[str, float] = {}
    for eager, graph in same:
        _compare(eager, graph, worst)
    for what, value in worst.items():
        yield Finding(f"{what}, graph against eager", value, tolerance)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is None or b is None or torch.equal(a, b)


def _trained(trainers: list[Trainer], windows: int) -> list[Tensor]:
    """Weights after `windows` windows of each, taken in turns."""
    for _ in range(windows):
        for trainer in trainers:
            trainer.launch()
        for trainer in trainers:
            trainer.window()
    return [trainer.learner.optimiser.flat.cpu() for trainer in trainers]


def side_by_side(config: RunConfig, device: torch.device) -> Iterator[Finding]:
    """Three seeds at once against each alone."""
    seeds = [replace(config, seed=seed) for seed in range(3)]
    together = _trained([Trainer(c, device, "auto") for c in seeds], 6)
    alone = [_trained([Trainer(c, device, "auto")], 6)[0] for c in seeds]
    worst = max(float((a - b).abs().max()) for a, b in zip(together, alone, strict=True))
    yield Finding("weights, three runs side by side against alone", worst, 0.0)


def continued(config: RunConfig, device: torch.device) -> Iterator[Finding]:
    """A run continued from its checkpoint against one that was not stopped."""
    whole = Trainer(config, device, "auto")
    _trained([whole], 3)
    part = Trainer(config, device, "auto")
    part.restore(whole.checkpoint({}))
    difference = _trained([whole], 4)[0] - _trained([part], 4)[0]
    yield Finding("weights, continued against whole", float(difference.abs().max()), 0.0)


def memory(config: RunConfig, device: torch.device, updates: int) -> Iterator[Finding]:
    """MiB more after many updates than after the first few: allocated on the GPU, and the most that
    was ever resident on the host."""
    trainer = Trainer(config, device, "auto")
    _trained([trainer], 8)
    before = torch.cuda.memory_allocated(device), resident()
    _trained([trainer], updates // config.learner.segments)
    grown = (torch.cuda.memory_allocated(device) - before[0]) / 2**20
    yield Finding(f"MiB gained over {updates:,} updates", grown, 0.0)
    yield Finding(f"MiB gained on the host over {updates:,} updates", resident() - before[1], 8.0)
