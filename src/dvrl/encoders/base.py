"""What every history encoder is: a belief to start with, and a way to update it (Eq. 12, 13)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

if TYPE_CHECKING:
    from dvrl.encoders.recorder import Recorder

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

    def memory(self) -> list[nn.Parameter]:
        """The parameters that carry a belief from step to step, which may have a learning rate of
        their own (`A2CConfig.memory_lr`)."""
        return []

    def recorder(self) -> "Recorder | None":
        """A faster way to the same gradients, where the encoder has one."""
        return None
