"""How a learner's windows run: eagerly on any device, or captured once as a CUDA graph.

The learner is written once, tensors in and tensors out. An engine holds the carry, begins windows
(`launch`) and hands over what they brought (`result`); between the two the host is free.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dvrl.core import tree
from dvrl.envs.worlds import DeviceWorlds
from dvrl.fuse import fusing
from dvrl.learners.a2c import A2C
from dvrl.rollout.segment import Carry, Outcome

EngineName = Literal["auto", "eager", "graph"]
WARM_UPS = 3
"""Windows run before a capture: libraries make their plans and buffers in the first ones."""


class Results(NamedTuple):
    """What a window brought, on the host."""

    reward: np.ndarray
    """n_g N."""
    ended: np.ndarray
    metrics: dict[str, float]


class Engine(ABC):
    """Runs windows in the order they were launched."""

    depth: int
    """Windows that may be under way at once."""
    carry: Carry

    @abstractmethod
    def launch(self, lr: float) -> None:
        """Begin the next window, with learning rate `lr`."""

    @abstractmethod
    def result(self) -> Results:
        """Wait for the oldest window under way."""

    @property
    @abstractmethod
    def under_way(self) -> int:
        """Windows launched whose results were not yet taken."""


class Eager(Engine):
    """Every operation when its turn comes."""

    depth = 1

    def __init__(self, learner: A2C, carry: Carry) -> None:
        self.learner = learner
        self.carry = carry
        self._results: deque[Results] = deque()

    def launch(self, lr: float) -> None:
        self.learner.set_lr(lr)
        self.carry, outcomes, means = self.learner.window(self.carry)
        group, n = self.learner.group, self.learner.worlds.n
        outcomes = [Outcome(*(group.rows(x, axis=1) for x in outcome)) for outcome in outcomes]
        vector = pack(outcomes, {name: group.mean(value) for name, value in means.items()})
        self._results.append(unpack(vector.cpu().numpy(), list(means), n * group.size))

    def result(self) -> Results:
        return self._results.popleft()

    @property
    def under_way(self) -> int:
        return len(self._results)


class Graph(Engine):
    """A whole window - worlds, beliefs, gradients, optimiser - as one replay on its own stream.

    What a graph reads and writes stays where it is: carry and worlds' state are copied back into
    the same memory at the end of every window. Which steps cut episodes decides which operations
    there are, so there is a graph for every such pattern; the host knows it beforehand.
    """

    depth = 2

    def __init__(self, learner: A2C, worlds: DeviceWorlds, carry: Carry) -> None:
        self.learner = learner
        self.worlds = worlds
        self.carry = tree.tree_map(Tensor.clone, carry)
        self.stream = torch.cuda.Stream(carry.o_t.device)
        self._graphs: dict[tuple[bool, ...], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._names: list[str] = []
        self._slots: deque[Tensor] = deque()
        self._under_way: deque[tuple[torch.cuda.Event, Tensor]] = deque()

    def launch(self, lr: float) -> None:
        config = self.learner.config
        cuts = self.worlds.cuts_ahead(config.n_grad) if config.bootstrap_cuts else ()
        if cuts not in self._graphs:
            self._graphs[cuts] = self._capture()
        graph, packed = self._graphs[cuts]
        with torch.cuda.stream(self.stream):
            self.learner.set_lr(lr)  # in the stream's order: the window before may still read it
            graph.replay()
            slot = self._slots.popleft() if self._slots else torch.empty_like(packed).cpu()
            slot = slot if slot.is_pinned() else slot.pin_memory()
            slot.copy_(packed, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self.worlds.skip(config.n_grad)
        self._under_way.append((event, slot))

    def result(self) -> Results:
        event, slot = self._under_way.popleft()
        event.synchronize()
        results = unpack(slot.numpy().copy(), self._names, self.worlds.n)
        self._slots.append(slot)
        return results

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Warm up, put everything back as it was, and record."""
        self.stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        before = self._state()
        with torch.cuda.stream(self.stream), fusing():
            for _ in range(WARM_UPS):
                self._window()
                self._put_back(before)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        for generator in (self.learner.generator, self.worlds.generator):
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=self.stream), fusing():
            packed = self._window()
        self.worlds.ages = before["ages"].copy()
        return graph, packed

    def _window(self) -> Tensor:
        """One window in place; what the host wants to know of it as one vector."""
        held = self.worlds.tensors()
        carry, outcomes, means = self.learner.window(self.carry)
        self._names = list(means)
        tree.copy(self.carry, carry)
        for name, tensor in self.worlds.tensors().items():
            held[name].copy_(tensor)
        self.worlds.hold(held)
        return pack(outcomes, means)

    def _state(self) -> dict[str, Any]:
        optimiser = self.learner.optimiser
        return {
            "carry": tree.tree_map(Tensor.clone, self.carry),
            "worlds": {name: t.clone() for name, t in self.worlds.tensors().items()},
            "ages": self.worlds.ages.copy(),
            "flat": optimiser.flat.clone(),
            "slots": {name: t.clone() for name, t in optimiser.slots.items()},
            "chance": [g.get_state() for g in (self.learner.generator, self.worlds.generator)],
        }

    def _put_back(self, state: dict[str, Any]) -> None:
        tree.copy(self.carry, state["carry"])
        for name, tensor in self.worlds.tensors().items():
            tensor.copy_(state["worlds"][name])
        self.worlds.ages = state["ages"].copy()
        self.learner.optimiser.flat.copy_(state["flat"])
        self.learner.optimiser.load(state["slots"])
        for g, chance in zip(
            (self.learner.generator, self.worlds.generator), state["chance"], strict=True
        ):
            g.set_state(chance)


def build_engine(name: EngineName, learner: A2C, carry: Carry) -> Engine:
    """`auto` captures where everything lives on a GPU."""
    worlds = learner.worlds
    alone = learner.group.size == 1
    can_capture = carry.o_t.is_cuda and isinstance(worlds, DeviceWorlds) and alone
    if name == "eager" or (name == "auto" and not can_capture):
        return Eager(learner, carry)
    if not can_capture:
        raise ValueError(
            "the graph engine needs a GPU, worlds that live on it (mountain-hike) and a single "
            "process; use --engine auto"
        )
    assert isinstance(worlds, DeviceWorlds)
    return Graph(learner, worlds, carry)


def pack(outcomes: Sequence[Outcome], means: dict[str, Tensor]) -> Tensor:
    """Rewards, ends and metrics as one vector: one transfer."""
    parts = [outcome.reward for outcome in outcomes]
    parts += [outcome.ended.to(parts[0]) for outcome in outcomes]
    return torch.cat([*(part.flatten() for part in parts), torch.stack(list(means.values()))])


def unpack(vector: np.ndarray, names: list[str], n: int) -> Results:
    steps, metrics = vector[: -len(names)], vector[-len(names) :].tolist()
    reward, ended = steps.reshape(2, -1, n)
    return Results(reward, ended.astype(bool), dict(zip(names, metrics, strict=True)))
