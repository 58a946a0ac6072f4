"""The generative model of the world, a variational recurrent network (paper Sec. 3.2, Eq. 14).

p(z_t | h_{t-1}, a_{t-1}) p(o_t | h_{t-1}, z_t, a_{t-1}), h_t = psi(h_{t-1}, z_t, a_{t-1}, o_t)

Four laws on embedded inputs: `a` and `x` are the embedded action and observation, one per
environment (`N D`); `h` and the embedded latent `e` are one per particle (`N K D`).
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dvrl.core.laws import Bernoulli, Gaussian
from dvrl.nets.layers import (
    ContextGRUCell,
    ContextLinear,
    GaussianHead,
    embed_action,
    mlp,
)
from dvrl.nets.norm import BatchNorm
from dvrl.nets.sight import ImageDecoder, Sight


class GenerativeModel(nn.Module, ABC):
    """A world as its own particles see it: laws that return distributions."""

    embed_obs: nn.Module  # phi^o
    embed_action: nn.Module  # phi^a
    embed_latent: nn.Module  # phi^z

    @abstractmethod
    def proposal(
        self, h_tm1: Float[Tensor, "N K H"], a: Float[Tensor, "N A"], x: Float[Tensor, "N X"]
    ) -> Gaussian:
        """q(z_t | h_{t-1}, a_{t-1}, o_t)."""

    @abstractmethod
    def prior(self, h_tm1: Float[Tensor, "N K H"], a: Float[Tensor, "N A"]) -> Gaussian:
        """p(z_t | h_{t-1}, a_{t-1})."""

    @abstractmethod
    def decoder(
        self, h_tm1: Float[Tensor, "N K H"], e: Float[Tensor, "N K E"], a: Float[Tensor, "N A"]
    ) -> Gaussian | Bernoulli:
        """p(o_t | h_{t-1}, z_t, a_{t-1})."""

    @abstractmethod
    def transition(
        self,
        h_tm1: Float[Tensor, "N K H"],
        e: Float[Tensor, "N K E"],
        a: Float[Tensor, "N A"],
        x: Float[Tensor, "N X"],
    ) -> Float[Tensor, "N K H"]:
        """h_t = psi(h_{t-1}, z_t, a_{t-1}, o_t)."""

    def memory(self) -> list[nn.Parameter]:
        """The transition's parameters, where they may learn at a rate of their own."""
        return []


class VRNN(GenerativeModel):
    """Prior, decoder and transition of the model, and the proposal that inverts it."""

    def __init__(
        self,
        sight: Sight,
        action_dim: int,
        h_dim: int,
        z_dim: int,
        a_dim: int,
        min_var: float,
        norm: bool = False,
    ) -> None:
        super().__init__()
        context = sight.x_dim + a_dim
        self.embed_obs = sight.embed()  # phi^o
        self.embed_action = embed_action(action_dim, a_dim, norm)  # phi^a
        self.embed_latent = mlp(z_dim, [h_dim])  # phi^z
        self.min_var = min_var
        self._proposal = ContextLinear(h_dim, context, h_dim)
        self.proposal_norm = BatchNorm(h_dim, rows=2) if norm else None
        self._proposal_head = GaussianHead(h_dim, z_dim, min_var)
        self._prior = ContextLinear(h_dim, a_dim, h_dim)
        self._prior_head = GaussianHead(h_dim, z_dim, min_var)
        self._decoder = sight.decoder(2 * h_dim, a_dim)
        self._transition = ContextGRUCell(h_dim, context, h_dim)

    def proposal(
        self, h_tm1: Float[Tensor, "N K H"], a: Float[Tensor, "N A"], x: Float[Tensor, "N X"]
    ) -> Gaussian:
        hidden = self._proposal(h_tm1, torch.cat([x, a], -1))
        if self.proposal_norm is not None:
            hidden = self.proposal_norm(hidden)
        return self._proposal_head(hidden.relu())

    def prior(self, h_tm1: Float[Tensor, "*G N K H"], a: Float[Tensor, "*G N A"]) -> Gaussian:
        return self._prior_head(self._prior(h_tm1, a).relu())

    def decoder(
        self,
        h_tm1: Float[Tensor, "*G N K H"],
        e: Float[Tensor, "*G N K H"],
        a: Float[Tensor, "*G N A"],
    ) -> Gaussian | Bernoulli:
        return self._decoder(torch.cat([e, h_tm1], -1), a)

    def memory(self) -> list[nn.Parameter]:
        return list(self._transition.parameters())

    def image_decoder(self) -> ImageDecoder | None:
        """The decoder, if it draws images."""
        return self._decoder if isinstance(self._decoder, ImageDecoder) else None

    def transition(
        self,
        h_tm1: Float[Tensor, "N K H"],
        e: Float[Tensor, "N K H"],
        a: Float[Tensor, "N A"],
        x: Float[Tensor, "N X"],
    ) -> Float[Tensor, "N K H"]:
        return self._transition(e, torch.cat([x, a], -1), h_tm1)
