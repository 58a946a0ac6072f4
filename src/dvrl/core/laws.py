"""Probability laws as records of tensors: sample by given noise, log-probability, entropy.

torch.distributions would do; these are a third of its cost on small batches, take their noise as
an argument, and can be stacked and mapped like every other record.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

LOG_2PI = math.log(2 * math.pi)


class Gaussian(NamedTuple):
    """Independent normals over the last axis, given by mean and variance."""

    mean: Float[Tensor, "*B D"]
    var: Float[Tensor, "*B D"]

    def sample(self, eps: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """mean + std * eps: with standard normal `eps` a reparameterised draw."""
        return self.mean + self.var.sqrt() * eps

    def log_prob(self, x: Float[Tensor, "*X D"]) -> Float[Tensor, "*B"]:
        terms = (x - self.mean).square() / self.var + self.var.log()
        return -0.5 * (terms.sum(-1) + self.mean.shape[-1] * LOG_2PI)

    def floor(self, x: Float[Tensor, "*T D"]) -> Float[Tensor, "*T 0"]:
        """-log_prob(x) can be as low as one likes: there is no floor."""
        return x[..., :0]

    def entropy(self) -> Float[Tensor, "*B"]:
        return 0.5 * (self.var.log().sum(-1) + self.mean.shape[-1] * (1 + LOG_2PI))


def log_prob_of_sample(
    var: Float[Tensor, "*B D"], eps: Float[Tensor, "*B D"]
) -> Float[Tensor, "*B"]:
    """Log-density of a Gaussian at its own draw `sample(eps)`; the mean cancels."""
    return -0.5 * ((eps.square() + var.log()).sum(-1) + eps.shape[-1] * LOG_2PI)


def binary_entropy(p: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """-p log p - (1 - p) log(1 - p), in nats."""
    return -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))


class Bernoulli(NamedTuple):
    """Pixels that are independently lit or dark, given by log-odds.

    Targets are real numbers in [0, 1]: x log p + (1 - x) log(1 - p), summed over pixels. Such a
    target has a binary entropy of its own, which no p can undercut.
    """

    logits: Float[Tensor, "*B C Y X"]

    @property
    def mean(self) -> Float[Tensor, "*B C Y X"]:
        return torch.sigmoid(self.logits)

    def log_prob(self, x: Float[Tensor, "*T C Y X"]) -> Float[Tensor, "*B"]:
        return (x * self.logits - F.softplus(self.logits)).sum((-3, -2, -1))

    def floor(self, x: Float[Tensor, "*T C Y X"]) -> Float[Tensor, "*T 1"]:
        """The least that -log_prob(x) can be, in nats: what is left when p = x everywhere."""
        return binary_entropy(x).sum((-3, -2, -1))[..., None]


class Categorical(NamedTuple):
    """One of D choices, given by unnormalised log-probabilities."""

    logits: Float[Tensor, "*B D"]

    def sample(self, u: Float[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """The choice in whose share of the cumulative probability `u` falls."""
        cumulative = self.logits.softmax(-1).cumsum(-1)
        below = u[..., None] * cumulative[..., -1:]  # else rounding could choose the impossible
        found = torch.searchsorted(cumulative, below, right=True)[..., 0]
        return found.clamp(max=self.logits.shape[-1] - 1)

    def mode(self) -> Int[Tensor, "*B"]:
        return self.logits.argmax(-1)

    def log_prob(self, index: Int[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        return self.logits.log_softmax(-1).gather(-1, index[..., None])[..., 0]

    def entropy(self) -> Float[Tensor, "*B"]:
        log_p = self.logits.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)
