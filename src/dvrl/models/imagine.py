"""Open-loop prediction: what the model expects to see once nothing is shown (paper, appendix)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dvrl.models.vrnn import GenerativeModel


class Imagined(NamedTuple):
    """What is expected to be seen in each of T steps ahead."""

    mean: Float[Tensor, "T N *obs"]
    """By the particles together, each by its weight."""
    own: Float[Tensor, "T N K *obs"]
    """By every particle."""


def expected(
    values: Float[Tensor, "N K *obs"], log_w: Float[Tensor, "N K"]
) -> Float[Tensor, "N *obs"]:
    """The mean over particles by their normalised weights."""
    return torch.einsum("nk...,nk->n...", values, log_w.softmax(-1))


def imagine(
    model: GenerativeModel,
    h: Float[Tensor, "N K H"],
    log_w: Float[Tensor, "N K"],
    a_tm1: Float[Tensor, "N A"],
    eps: Float[Tensor, "T N K Z"],
) -> Imagined:
    """T steps on from particles `h`, the last action repeated in each; `eps` is the noise of z.

    z ~ p(z | h, a), own = E p(o | h, z, a), mean = sum_k w^k own^k, h' = psi(h, z, a, mean)

    All particles are told the same mean, as if it had been seen. They keep their weights, and none
    is resampled.
    """
    a = model.embed_action(a_tm1)
    steps = []
    for eps_t in eps:
        e = model.embed_latent(model.prior(h, a).sample(eps_t))
        own = model.decoder(h, e, a).mean
        mean = expected(own, log_w)
        h = model.transition(h, e, a, model.embed_obs(mean))
        steps.append((mean, own))
    return Imagined(*(torch.stack(parts) for parts in zip(*steps, strict=True)))
