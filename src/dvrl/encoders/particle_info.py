"""What an update of particles leaves to look at."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dvrl.core import smc


class ParticleInfo(NamedTuple):
    """One update from inside, without gradients."""

    log_w: Float[Tensor, "N K"]
    ancestors: Int[Tensor, "N K"]
    log_prior: Float[Tensor, "N K"]
    log_decoder: Float[Tensor, "N K"]
    log_proposal: Float[Tensor, "N K"]
    vanished: Bool[Tensor, " N"]
    """Rows whose weights all vanished and were made equal."""
    o_mean: Float[Tensor, "N K ..."]
    """Where each particle would have expected the observation: the decoder's mean. Of images
    nothing while training."""
    floor: Float[Tensor, "N F"]
    """The least the model's loss can be, in nats; nothing (F = 0) of laws without such a bound."""

    @classmethod
    def metrics(cls, infos: Sequence["ParticleInfo"]) -> dict[str, Float[Tensor, ""]]:
        log_w = torch.stack([i.log_w for i in infos])  # T, N, K
        ancestors = torch.stack([i.ancestors for i in infos])
        floor = torch.stack([i.floor for i in infos])
        gap = {}
        if floor.numel():
            gap["belief/floor"] = floor.mean()
            gap["belief/gap"] = -smc.log_mean_exp(log_w).mean() - floor.mean()
        return gap | {
            "belief/ess": smc.effective_sample_size(log_w).mean(),
            "belief/distinct_ancestors": smc.distinct(ancestors).float().mean(),
            "belief/weight_entropy": smc.weight_entropy(log_w).mean(),
            "belief/log_prior": _finite_mean([i.log_prior for i in infos]),
            "belief/log_decoder": _finite_mean([i.log_decoder for i in infos]),
            "belief/log_proposal": _finite_mean([i.log_proposal for i in infos]),
            "belief/revived": torch.stack([i.vanished for i in infos]).float().sum(),
        }


def _finite_mean(terms: Sequence[Float[Tensor, "N K"]]) -> Float[Tensor, ""]:
    """The mean of what did not overflow."""
    values = torch.stack(list(terms))
    finite = values.isfinite()
    return values.masked_fill(~finite, 0.0).sum() / finite.sum().clamp(min=1)
