"""The recurrent baseline: one GRU over observations and actions (paper Eq. 12, Alg. 2)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dvrl.encoders.base import BeliefEncoder, Update
from dvrl.nets.layers import GaussianHead, gru_cell, mlp


class GruBelief(NamedTuple):
    """The recurrent state; what it knows about the world is its own affair."""

    h: Float[Tensor, "N H"]


class GruInfo(NamedTuple):
    """Nothing to look at."""

    @classmethod
    def metrics(cls, infos: Sequence["GruInfo"]) -> dict[str, Float[Tensor, ""]]:
        return {}


class Reconstruction(nn.Module):
    """p(o_t | h_{t-1}, a_{t-1}), the decoder of Alg. 2."""

    def __init__(self, h_dim: int, embed_dim: int, obs_dim: int, min_var: float) -> None:
        super().__init__()
        self.hidden = mlp(h_dim + embed_dim, [embed_dim, embed_dim])
        self.head = GaussianHead(embed_dim, obs_dim, min_var)

    def loss(
        self,
        h_tm1: Float[Tensor, "N H"],
        a: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N D"],
    ) -> Float[Tensor, " N"]:
        law = self.head(self.hidden(torch.cat([h_tm1, a], -1)))
        return -law.log_prob(o_t)


class GruEncoder(BeliefEncoder[GruBelief]):
    """h_t = GRU(h_{t-1}, [phi^o(o_t), phi^a(a_{t-1})])."""

    h_0: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        h_dim: int,
        embed_dim: int,
        reconstruction: Reconstruction | None = None,
    ) -> None:
        super().__init__()
        self.feature_dim = h_dim
        self.embed_obs = mlp(obs_dim, [embed_dim, embed_dim])
        self.embed_action = mlp(action_dim, [embed_dim])
        self.cell = gru_cell(2 * embed_dim, h_dim)
        self.reconstruction = reconstruction
        self.register_buffer("h_0", torch.zeros(h_dim), persistent=False)

    def initial(self, n: int) -> GruBelief:
        return GruBelief(self.h_0.expand(n, -1))

    def update(
        self,
        belief: GruBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        generator: torch.Generator,
    ) -> Update:
        a, x = self.embed_action(a_tm1), self.embed_obs(o_t)
        h = self.cell(torch.cat([x, a], -1), belief.h)  # Eq. 12
        if self.reconstruction is None:
            loss = h.new_zeros(h.shape[0])
        else:
            loss = self.reconstruction.loss(belief.h, a, o_t)
        return Update(GruBelief(h), h, loss, GruInfo())
