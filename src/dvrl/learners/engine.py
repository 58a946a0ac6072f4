"""How a learner's windows run: eagerly on any device, or captured once as CUDA graphs.

The learner is written once, tensors in and tensors out. An engine holds the carry, begins windows
(`launch`) and hands over what they brought (`result`); between the two the host is free.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dvrl.learners.a2c import A2C
from dvrl.learners.config import Rates
from dvrl.rollout.segment import Carry, Outcome

EngineName = Literal["auto", "eager", "graph"]


class Results(NamedTuple):
    """What a window brought, on the host."""

    score: np.ndarray
    """n_g N."""
    over: np.ndarray
    metrics: dict[str, float]


class Engine(ABC):
    """Runs windows in the order they were launched."""

    name: EngineName
    """What a user calls it."""
    depth: int
    """Windows that may be under way at once."""
    carry: Carry

    @abstractmethod
    def launch(self, rates: Rates) -> None:
        """Begin the next window, with these learning rates."""

    @abstractmethod
    def result(self) -> Results:
        """Wait for the oldest window under way."""

    @property
    @abstractmethod
    def under_way(self) -> int:
        """Windows launched whose results were not yet taken."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether the next window begins at once, and not with a compilation."""


class Eager(Engine):
    """Every operation when its turn comes."""

    name = "eager"
    depth = 1

    def __init__(self, learner: A2C, carry: Carry) -> None:
        self.learner = learner
        self.carry = carry
        self._results: deque[Results] = deque()

    def launch(self, rates: Rates) -> None:
        self.learner.optimiser.set_rates(rates)
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

    @property
    def ready(self) -> bool:
        return True


def pack(outcomes: Sequence[Outcome], means: dict[str, Tensor]) -> Tensor:
    """Scores, ends and metrics as one vector: one transfer."""
    parts = [outcome.score for outcome in outcomes]
    parts += [outcome.over.to(parts[0]) for outcome in outcomes]
    return torch.cat([*(part.flatten() for part in parts), torch.stack(list(means.values()))])


def unpack(vector: np.ndarray, names: list[str], n: int) -> Results:
    steps, metrics = vector[: -len(names)], vector[-len(names) :].tolist()
    score, over = steps.reshape(2, -1, n)
    return Results(score, over.astype(bool), dict(zip(names, metrics, strict=True)))
