"""Settings of the learner (no torch here: the command line reads this)."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from dvrl import checks


class Rates(NamedTuple):
    """Learning rates of an update."""

    lr: float
    memory: float = 1.0
    """Of the recurrent cell, as a share of `lr`."""


@dataclass(frozen=True)
class A2CConfig:
    """n-step advantage actor-critic with a gradient window of its own (paper Sec. 2.4, 3.1)."""

    n_envs: int = 16
    """n_e, environments stepped in parallel."""
    n_steps: int = 5
    """n_s, steps of experience per update."""
    n_grad: int = 25
    """n_g, steps a gradient may travel back; a multiple of n_s."""
    gamma: float = 0.99
    """Discount."""
    lr: float = 1e-4
    """Learning rate."""
    memory_lr: float = 1.0
    """Learning rate of the recurrent cell that carries the belief on, as a share of `lr`."""
    memory_steps: int | None = None
    """Let that share go in a straight line to one over this many environment steps; None keeps
    it."""
    anneal_steps: int | None = None
    """Let the learning rate fall in a straight line to a tenth over this many environment steps;
    None keeps it (paper)."""
    optimiser: Literal["rmsprop", "adam"] = "rmsprop"
    """RMSProp (alpha 0.99, eps 1e-5) as in the paper, or Adam (0.9, 0.999, eps 1e-5)."""
    clip_norm: float = 0.5
    """Largest global norm of a gradient."""
    entropy_weight: float = 0.01
    """lambda^H."""
    value_weight: float = 0.5
    """lambda^V."""
    elbo_weight: float = 1.0
    """lambda^E, weight of the encoder's own loss."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this for learning; reported returns are not."""
    bootstrap_cuts: bool = False
    """At a time limit, continue with the value of the last observation instead of with zero."""
    normalise_advantage: bool = False
    """Centre and scale the advantages of each update before they weigh the policy's gradient."""
    window: Literal["clones", "stale"] = "clones"
    """How the window survives optimiser steps: each segment on its own copy of the parameters, or
    old activations with new weights as in the authors' code."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "n_envs", "n_steps", "n_grad")
        for steps in ("anneal_steps", "memory_steps"):
            if getattr(self, steps) is not None:
                checks.at_least(self, 1, steps)
        if self.n_grad % self.n_steps:
            raise ValueError(
                f"n_grad is {self.n_grad} and n_steps is {self.n_steps}; "
                "n_grad must be a multiple of n_steps"
            )
        checks.positive(self, "clip_norm", "reward_scale")
        checks.not_negative(
            self, "lr", "memory_lr", "entropy_weight", "value_weight", "elbo_weight"
        )
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma}; it must lie between 0 and 1")

    @property
    def segments(self) -> int:
        """Updates per gradient window."""
        return self.n_grad // self.n_steps

    def rates_at(self, step: int) -> Rates:
        """The learning rates after `step` environment steps."""
        fallen, risen = (_part(step, whole) for whole in (self.anneal_steps, self.memory_steps))
        share = self.memory_lr + (1 - self.memory_lr) * risen
        return Rates(self.lr * (1 - 0.9 * fallen), share)

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the terms of the loss, by the terms' names (Eq. 20)."""
        return {
            "policy": 1.0,
            "value": self.value_weight,
            "entropy": self.entropy_weight,
            "elbo": self.elbo_weight,
        }


def _part(step: int, whole: int | None) -> float:
    """How much of a way is behind; none where there is none."""
    return 0.0 if whole is None else min(step / whole, 1.0)
