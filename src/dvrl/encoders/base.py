"""What every history encoder is: a belief to start with, and a way to update it (Eq. 12, 13)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Belief = TypeVar("Belief", bound=tuple)


@runtime_checkable
class Info(Protocol):
    """What an update leaves to look at; it carries no gradient and may be dropped."""

    @classmethod
    def metrics(cls, infos: Sequence[Any]) -> dict[str, Float[Tensor, ""]]:
        """Named means over the steps of a segment."""
        ...


class Update(NamedTuple):
    """The result of one observation."""

    belief: tuple
    """Carried to the next step: a NamedTuple of tensors with rows `N`."""
    feature: Float[Tensor, "N F"]
    """What actor and critic see."""
    loss: Float[Tensor, " N"]
    """The encoder's own loss of this step (Eq. 19 for DVRL, L^ENC for the RNN)."""
    info: Info
    """Diagnostics."""


class BeliefEncoder(nn.Module, ABC, Generic[Belief]):
    """History in, belief out."""

    feature_dim: int

    @abstractmethod
    def initial(self, n: int) -> Belief:
        """The belief of `n` environments before their first observation."""

    @abstractmethod
    def update(
        self,
        belief: Belief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        generator: torch.Generator,
    ) -> Update:
        """The belief after acting `a_tm1` and observing `o_t`; chance comes from `generator`."""

    def recorder(self) -> "Recorder[Belief] | None":
        """A faster way to the same gradients, where the encoder has one."""
        return None


class Inputs(NamedTuple):
    """What the encoder was given in T steps."""

    first: Bool[Tensor, "T N"]
    """Where an episode began: the belief before is not the one it went on from."""
    a_tm1: Float[Tensor, "T N A"]
    o_t: Float[Tensor, "T N *obs"]


class Replayed(NamedTuple):
    """A recorded segment as a function of the encoder's parameters and the belief it began with."""

    belief: tuple
    """The last one."""
    feature: Float[Tensor, "T N F"]
    loss: Float[Tensor, "T N"]


class Recorder(ABC, Generic[Belief]):
    """Acts step by step without gradients, then derives the whole segment at once.

    Where gradients of later segments pass through, a segment works on copies of the parameters,
    which stay as they are when the optimiser steps.
    """

    @abstractmethod
    def copied(self) -> list[nn.Parameter]:
        """The parameters to copy for every segment; the others are used as they are."""

    @abstractmethod
    def weights(self, copies: Sequence[Tensor]) -> tuple:
        """Copies of `copied()` in the form that `step` and `replay` want."""

    @abstractmethod
    def step(
        self,
        weights: Any,
        belief: Belief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        generator: torch.Generator,
    ) -> tuple[Update, tuple]:
        """What `BeliefEncoder.update` gives, without gradients; and a record of the step."""

    @abstractmethod
    def replay(
        self,
        weights: Any,
        belief: Belief,
        inputs: Inputs,
        records: Sequence[Any],
    ) -> Replayed:
        """The recorded steps as functions of `weights` and of the `belief` they began with."""
