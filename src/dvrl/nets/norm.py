"""Batch normalisation over the rows of one step.

A layer that acts sees one step; a layer that is derived sees several at once, each normalised by
itself: axes in front of the rows are left alone. So both compute the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

EPS = 1e-5
CONSTANT = 1e-12
"""Share of the mean's square (and of 1) up to which a variance is rounding: all numbers are one."""
MOMENTUM = 0.01
"""Share of a step in the statistics kept for evaluation: an average over about a hundred steps."""
_watching = True


@contextmanager
def unwatched() -> Iterator[None]:
    """Within this context the statistics for evaluation stay as they are: what is derived was seen
    before."""
    global _watching
    before, _watching = _watching, False
    try:
        yield
    finally:
        _watching = before


def watching() -> bool:
    """Whether statistics for evaluation are being taken."""
    return _watching


class BatchNorm(nn.Module):
    """Channels with mean 0 and variance 1 over all rows (and places), then scaled and shifted.

    In training by the statistics of the step itself; in evaluation by their moving average, so that
    one environment alone is well-defined.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, size: int, rows: int = 1, places: int = 0) -> None:
        """Input is `*steps, rows, size, places`: so many axes of rows and of places."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.places = places
        channel = -1 - places
        self.axes = (*range(channel - rows, channel), *range(channel + 1, 0))

    def forward(self, x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        centred, rate = self.centre(x)
        return centred * (self._along(self.weight) * rate) + self._along(self.bias)

    def centre(self, x: Float[Tensor, "*B"]) -> tuple[Tensor, Tensor]:
        """Rows with mean 0, and the rate that makes their variance 1."""
        if not self.training:
            return x - self._along(self.mean), torch.rsqrt(self._along(self.var) + EPS)
        mean = x.mean(self.axes, keepdim=True)
        centred = x - mean
        var = centred.square().mean(self.axes, keepdim=True)  # var_mean takes ten times as long
        if _watching:
            self._watch(mean.detach(), var.detach(), x.numel() // mean.numel())
        # Equal numbers teach nothing; enlarged, their rounding would drown the gradient.
        real = var > CONSTANT * (1 + mean.square())
        return centred, torch.where(real, torch.rsqrt(var + EPS), 0.0)

    def _along(self, t: Float[Tensor, " D"]) -> Tensor:
        """Beside the channels of the input."""
        return t.view(-1, *[1] * self.places)

    def _watch(self, mean: Tensor, var: Tensor, count: int) -> None:
        """`count` numbers gave a channel's mean and variance; the latter is a little too small."""
        unbiased = count / max(count - 1, 1)
        self.mean.lerp_(mean.flatten(), MOMENTUM)
        self.var.lerp_(unbiased * var.flatten(), MOMENTUM)
