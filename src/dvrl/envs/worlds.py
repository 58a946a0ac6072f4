"""What the rollout asks of a world: N copies, stepped as tensors, restarting by themselves."""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor


class Step(NamedTuple):
    """The result of one action in every environment."""

    obs: Float[Tensor, "N *obs"]
    """What is seen next: in a restarted environment the first observation of its new episode."""
    reward: Float[Tensor, " N"]
    """Caused by the action, unscaled and unclipped."""
    terminated: Bool[Tensor, " N"]
    """The episode reached an end of the task: nothing follows."""
    truncated: Bool[Tensor, " N"]
    """The episode was cut by a limit of time: something would have followed."""
    final_obs: Float[Tensor, "N *obs"]
    """The last observation of an ended episode; `obs` elsewhere."""


@runtime_checkable
class Worlds(Protocol):
    """N environments that live on one device."""

    n: int
    exact_resume: bool
    """Whether `restore` continues every episode where `state` was taken; else reset after it."""

    cut: bool
    """Whether the last step cut an episode: the host's own knowledge, no question to a device."""

    def reset(self) -> Float[Tensor, "N *obs"]:
        """Begin anew everywhere."""
        ...

    def step(self, action: Tensor) -> Step:
        """Act everywhere; ended episodes restart in the same step."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All that decides the future, chance included, where the world can tell it."""
        ...

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up `state`, as far as the world can."""
        ...
