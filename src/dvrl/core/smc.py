"""Sequential Monte Carlo on log weights: evidence, resampling, diagnostics (paper Sec. 2.3, 3.3).

Every function works on any leading axes; particles are the last axis, `K`. A resampling scheme is
a plain function `(log_w, u) -> ancestors`: given its uniforms it is deterministic.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LARGEST_BELOW_ONE = 1 - 2**-24
Resampler = Callable[[Float[Tensor, "*N K"], Float[Tensor, "*N K"]], Int[Tensor, "*N K"]]


def log_mean_exp(log_w: Float[Tensor, "*N K"]) -> Float[Tensor, "*N"]:
    """log (1/K) sum_k w^k, one step's factor of the evidence estimate (Eq. 6)."""
    return log_w.logsumexp(-1) - math.log(log_w.shape[-1])


def revive(log_w: Float[Tensor, "*N K"]) -> tuple[Float[Tensor, "*N K"], Bool[Tensor, "*N"]]:
    """Equal weights where none is left: rows whose weights all vanished (or are not numbers).

    A single particle whose density overflowed only loses its weight. A revived row keeps its
    particles, adds log 1 = 0 to the evidence, and is reported in the second result to be counted.
    Values are safe; the gradient of what overflowed is not, and the learner skips such an update.
    """
    alive = log_w.isfinite()
    vanished = ~alive.any(-1)
    return log_w.masked_fill(~alive, -torch.inf).masked_fill(vanished[..., None], 0.0), vanished


def systematic(log_w: Float[Tensor, "*N K"], u: Float[Tensor, "*N K"]) -> Int[Tensor, "*N K"]:
    """One uniform moves a comb of K teeth; equal weights give the identity."""
    return _lookup(log_w, _strata(u[..., :1], u.shape[-1]))


def stratified(log_w: Float[Tensor, "*N K"], u: Float[Tensor, "*N K"]) -> Int[Tensor, "*N K"]:
    """One uniform inside each of K equal strata."""
    return _lookup(log_w, _strata(u, u.shape[-1]))


def multinomial(log_w: Float[Tensor, "*N K"], u: Float[Tensor, "*N K"]) -> Int[Tensor, "*N K"]:
    """K independent draws, the paper's Discrete(w / sum w)."""
    return _lookup(log_w, u)


def take(
    particles: Float[Tensor, "*N K D"], ancestors: Int[Tensor, "*N K"]
) -> Float[Tensor, "*N K D"]:
    """The particles' values at their ancestors; gradients flow to the values, not the indices."""
    *batch, k, size = particles.shape
    first = k * torch.arange(math.prod(batch), device=ancestors.device).view(*batch, 1)
    # As rows of one table: gather would look up every element by itself.
    rows = particles.reshape(-1, size).index_select(0, (ancestors + first).flatten())
    return rows.view(particles.shape)


def effective_sample_size(log_w: Float[Tensor, "*N K"]) -> Float[Tensor, "*N"]:
    """(sum w)^2 / sum w^2: K for equal weights, 1 when one particle holds all."""
    return (2 * log_w.logsumexp(-1) - (2 * log_w).logsumexp(-1)).exp()


def weight_entropy(log_w: Float[Tensor, "*N K"]) -> Float[Tensor, "*N"]:
    """Entropy of the normalised weights in nats: log K for equal weights, 0 for a single one."""
    log_p = log_w.log_softmax(-1)
    return -(log_p.exp() * log_p).masked_fill(log_p.isneginf(), 0.0).sum(-1)


def distinct(ancestors: Int[Tensor, "*N K"]) -> Int[Tensor, "*N"]:
    """How many different particles have offspring; K minus this were killed."""
    ordered = ancestors.sort(-1).values
    return 1 + (ordered[..., 1:] != ordered[..., :-1]).sum(-1)


def _strata(u: Tensor, k: int) -> Tensor:
    return (u + torch.arange(k, device=u.device)) / k


def _lookup(log_w: Tensor, positions: Tensor) -> Tensor:
    """Index of the particle in whose share of the cumulative weight each position falls."""
    cumulative = log_w.softmax(-1).cumsum(-1)
    # Positions must stay below the total, or rounding would choose a last particle of weight zero.
    below = positions.clamp(max=LARGEST_BELOW_ONE) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, below, right=True).clamp(max=log_w.shape[-1] - 1)
