"""What the rollout asks of a world: N copies, stepped as tensors, restarting by themselves."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor


class Step(NamedTuple):
    """The result of one action in every environment."""

    obs: Float[Tensor, "N *obs"]
    """What is seen next: in a restarted environment the first observation of its new episode."""
    reward: Float[Tensor, " N"]
    """Caused by the action, as the world wants it learned."""
    terminated: Bool[Tensor, " N"]
    """The episode reached an end of the task: nothing follows."""
    truncated: Bool[Tensor, " N"]
    """The episode was cut by a limit of time: something would have followed."""
    final_obs: Float[Tensor, "N *obs"] | UInt8[Tensor, "N *obs"]
    """The last observation of an ended episode; `obs` elsewhere. For `Worlds.if_cut`: pixels are
    still bytes."""
    score: Float[Tensor, " N"]
    """The reward as it is reported: unclipped."""
    over: Bool[Tensor, " N"]
    """What is reported as one episode ended: a whole game, where a lost life ends an episode."""


Look = Callable[[Float[Tensor, "N *obs"]], Float[Tensor, " N"]]
"""What observations are worth."""


def nothing() -> None:
    """There is nothing to do meanwhile."""


@runtime_checkable
class Worlds(Protocol):
    """N environments that live on one device."""

    n: int
    exact_resume: bool
    """Whether `restore` continues every episode where `state` was taken; else reset after it."""

    by_row: tuple[str, ...]
    """The parts of `state` that have a row for every environment."""
    cut: bool
    """Whether the last step cut an episode: the host's own knowledge, no question to a device."""

    def reset(self) -> Float[Tensor, "N *obs"]:
        """Begin anew everywhere."""
        ...

    def step(self, action: Tensor, *, meanwhile: Callable[[], None] = nothing) -> Step:
        """Act everywhere; ended episodes restart in the same step.

        `meanwhile` is called once, by worlds that step elsewhere while they do: what it does needs
        no answer.
        """
        ...

    def if_cut(self, look: Look, final_obs: Tensor) -> Float[Tensor, " N"] | None:
        """`look` at the last step's `final_obs` if it cut an episode; otherwise nobody looks.

        A tensor may also come without a cut: it says nothing about rows that were not cut.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """All that decides the future, chance included, where the world can tell it."""
        ...

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up `state`, as far as the world can."""
        ...


@runtime_checkable
class DeviceWorlds(Worlds, Protocol):
    """Worlds whose steps are operations on tensors alone, so that they can be captured."""

    generator: torch.Generator
    ages: np.ndarray
    """What the host counts beside the device: steps since each episode began."""

    def tensors(self) -> dict[str, Tensor]:
        """The state on the device, chance apart."""
        ...

    def hold(self, tensors: dict[str, Tensor]) -> None:
        """Keep the state in these tensors from now on."""
        ...

    def cuts_ahead(self, n_steps: int) -> tuple[bool, ...]:
        """Which of the coming steps will cut an episode."""
        ...

    def skip(self, n_steps: int) -> None:
        """Count steps that happened on the device without the host."""
        ...


@runtime_checkable
class HostWorlds(Worlds, Protocol):
    """Worlds that are stepped on the host, whatever device their tensors are for."""

    apart: bool
    """Whether they step in threads of their own that do not know of a GPU. Others might wait for
    all that it is to do: so nothing may wait there for them."""
    usual: int
    """Bytes of an answer without `final_obs`, which comes last."""

    def send(self, action: Tensor) -> None:
        """Begin a step, and do not wait for it."""
        ...

    def receive(self) -> Step:
        """The answer to what was sent."""
        ...

    def receive_on_host(self) -> UInt8[Tensor, " B"]:
        """The same as bytes on the host, ready to be sent on: all of them if the step cut an
        episode; otherwise the first `usual` will do."""
        ...

    def place(self) -> UInt8[Tensor, " B"]:
        """Where every answer for a GPU is written."""
        ...

    def seen(self, obs: Tensor) -> Float[Tensor, "N *obs"]:
        """Observations as they travel, as agents see them."""
        ...

    def read(self, answer: UInt8[Tensor, " B"]) -> Step:
        """The step whose tensors are parts of `answer`, on any device."""
        ...

    def blank(self) -> UInt8[Tensor, " B"]:
        """Memory on the host for an answer."""
        ...
