"""RMSProp and Adam on all parameters as one vector, clipping included.

torch.optim would do, but it asks the host whether a gradient can be used, keeps the learning rate
there, and visits every parameter by itself; on a GPU each of these costs more than the arithmetic.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dvrl.core import rows
from dvrl.fuse import fusable
from dvrl.learners.config import A2CConfig, Rates
from dvrl.learners.group import ALONE, Group

EPS = 1e-5
RMSPROP_DECAY = 0.99
ADAM_DECAYS = (0.9, 0.999)


class Optimiser:
    """Owns the storage of the parameters from now on: each becomes a view into one vector, the
    parameters joined (core.rows).

    Steps write to that vector and leave the parameters' version counters alone, so that a graph
    which still holds old activations stays runnable ("stale" windows).
    """

    def __init__(
        self,
        config: A2CConfig,
        parameters: Sequence[Tensor],
        group: Group = ALONE,
        memory: Sequence[bool] | None = None,
    ) -> None:
        """`memory`: of each of the parameters, whether it carries the belief on, and so has a share
        of the learning rate."""
        self.group = group
        self.clip_norm = config.clip_norm
        self.shapes = [p.shape for p in parameters]
        self.flat = rows.join([p.detach() for p in parameters])
        for p, part in zip(parameters, rows.part(self.flat, self.shapes), strict=True):
            p.data = part
        self.gradient = torch.zeros_like(self.flat)
        """The last one, clipped."""
        self.lr = self.flat.new_empty(())
        self.shares = self.flat.new_ones(())
        """Of the learning rate, of every element; or of all."""
        self._memory: Bool[Tensor, " P"] | None = None
        if memory and config.rates_at(0).memory != 1:
            each = zip(parameters, memory, strict=True)
            self._memory = rows.join([p.new_full(p.shape, float(m)) for p, m in each]) > 0
            self.shares = torch.ones_like(self.flat)
        self.set_rates(config.rates_at(0))
        self.slots = {"square": torch.zeros_like(self.flat)}
        self.rule = rmsprop
        if config.optimiser == "adam":
            self.slots |= {"mean": torch.zeros_like(self.flat), "steps": self.flat.new_zeros(())}
            self.rule = adam

    def step(self, gradient: Float[Tensor, " P"]) -> Float[Tensor, ""]:
        """Clip, step; the norm before clipping. A gradient that is no number changes nothing."""
        self.gradient, norm = clipped(self.group.mean(gradient), self.clip_norm)
        self.rule(self.flat, self.slots, self.shares, self.lr, self.gradient, norm)
        return norm

    def set_rates(self, rates: Rates) -> None:
        """Of the steps to come."""
        self.lr.fill_(rates.lr)
        if self._memory is not None:
            self.shares.masked_fill_(self._memory, rates.memory)

    def load(self, slots: dict[str, Tensor]) -> None:
        """Take up slots saved before."""
        assert slots.keys() == self.slots.keys(), f"saved {set(slots)}, needed {set(self.slots)}"
        for name, slot in self.slots.items():
            slot.copy_(slots[name])


@fusable
def clipped(
    gradient: Float[Tensor, " P"], clip_norm: float
) -> tuple[Float[Tensor, " P"], Float[Tensor, ""]]:
    """The gradient no longer than `clip_norm`, and its norm before."""
    norm = torch.linalg.vector_norm(gradient)
    return gradient * (clip_norm / (norm + 1e-6)).clamp(max=1.0), norm


@fusable
def rmsprop(
    flat: Float[Tensor, " P"],
    slots: dict[str, Tensor],
    shares: Float[Tensor, "*P"],
    lr: Float[Tensor, ""],
    gradient: Float[Tensor, " P"],
    norm: Float[Tensor, ""],
) -> None:
    """One step in place, if the gradient's norm is a number."""
    usable = norm.isfinite()
    given = torch.where(usable, gradient, 0.0)
    square = slots["square"]
    square.mul_(1 - (1 - RMSPROP_DECAY) * usable.to(square))
    square.addcmul_(given, given, value=1 - RMSPROP_DECAY)
    flat.sub_(given.mul_(lr * shares).div_(square.sqrt().add_(EPS)))


@fusable
def adam(
    flat: Float[Tensor, " P"],
    slots: dict[str, Tensor],
    shares: Float[Tensor, "*P"],
    lr: Float[Tensor, ""],
    gradient: Float[Tensor, " P"],
    norm: Float[Tensor, ""],
) -> None:
    """One step in place, if the gradient's norm is a number."""
    usable = norm.isfinite()
    b_mean, b_square = ADAM_DECAYS
    steps = slots["steps"] + usable
    mean = b_mean * slots["mean"] + (1 - b_mean) * gradient
    square = b_square * slots["square"] + (1 - b_square) * gradient**2
    step = mean / (1 - b_mean**steps) / ((square / (1 - b_square**steps)).sqrt() + EPS)
    flat.sub_(torch.where(usable, lr * shares * step, 0.0))
    for name, value in {"mean": mean, "square": square}.items():
        slots[name].copy_(torch.where(usable, value, slots[name]))
    slots["steps"].copy_(steps)
