"""RMSProp and Adam on all parameters as one vector, clipping included.

torch.optim would do, but it asks the host whether a gradient can be used, keeps the learning rate
there, and visits every parameter by itself; on a GPU each of these costs more than the arithmetic.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dvrl.learners.config import A2CConfig

EPS = 1e-5
RMSPROP_DECAY = 0.99
ADAM_DECAYS = (0.9, 0.999)


class Optimiser:
    """Owns the storage of the parameters from now on: each becomes a view into one vector.

    Steps write to that vector and leave the parameters' version counters alone, so that a graph
    which still holds old activations stays runnable ("stale" windows).
    """

    def __init__(self, config: A2CConfig, parameters: Sequence[Tensor]) -> None:
        self.clip_norm = config.clip_norm
        self.sizes = [p.numel() for p in parameters]
        self.flat = torch.cat([p.detach().flatten() for p in parameters])
        for p, part in zip(parameters, self.flat.split(self.sizes), strict=True):
            p.data = part.view_as(p)
        self.lr = self.flat.new_tensor(config.lr)
        names = ["mean", "square"] if config.optimiser == "adam" else ["square"]
        self.slots = {name: torch.zeros_like(self.flat) for name in names}
        if config.optimiser == "adam":
            self.slots["steps"] = self.flat.new_zeros(())

    def step(self, gradients: Sequence[Tensor]) -> Float[Tensor, ""]:
        """Clip, step; the norm before clipping. A gradient that is no number changes nothing."""
        gradient = torch.cat([g.flatten() for g in gradients])
        norm = torch.linalg.vector_norm(gradient)
        usable = norm.isfinite()
        clip = (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        gradient = torch.where(usable, gradient * clip, 0.0)
        self._adam(gradient, usable) if "mean" in self.slots else self._rmsprop(gradient, usable)
        return norm

    def _rmsprop(self, gradient: Tensor, usable: Bool[Tensor, ""]) -> None:
        square = self.slots["square"]
        square.mul_(_decay(RMSPROP_DECAY, usable, square))
        square.addcmul_(gradient, gradient, value=1 - RMSPROP_DECAY)
        self.flat.sub_(self.lr * gradient / (square.sqrt() + EPS))

    def _adam(self, gradient: Tensor, usable: Bool[Tensor, ""]) -> None:
        mean, square, steps = (self.slots[name] for name in ("mean", "square", "steps"))
        b_mean, b_square = ADAM_DECAYS
        steps.add_(usable)
        mean.mul_(_decay(b_mean, usable, mean)).add_(gradient, alpha=1 - b_mean)
        square.mul_(_decay(b_square, usable, square))
        square.addcmul_(gradient, gradient, value=1 - b_square)
        step = mean / (1 - b_mean**steps) / ((square / (1 - b_square**steps)).sqrt() + EPS)
        self.flat.sub_(torch.where(usable, self.lr * step, 0.0))

    def load(self, slots: dict[str, Tensor]) -> None:
        """Take up slots saved before."""
        assert slots.keys() == self.slots.keys(), f"saved {set(slots)}, needed {set(self.slots)}"
        for name, slot in self.slots.items():
            slot.copy_(slots[name])


def _decay(decay: float, usable: Bool[Tensor, ""], like: Tensor) -> Tensor:
    """`decay`, or 1 where the gradient is of no use."""
    return 1 - (1 - decay) * usable.to(like)
