"""The generative model of the world, a variational recurrent network (paper Sec. 3.2, Eq. 14).

p(z_t | h_{t-1}, a_{t-1}) p(o_t | h_{t-1}, z_t, a_{t-1}), h_t = psi(h_{t-1}, z_t, a_{t-1}, o_t)

Four laws on embedded inputs: `a` and `x` are the embedded action and observation, one per
environment (`N D`); `h` and the embedded latent `e` are one per particle (`N K D`).
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dvrl.core.laws import Gaussian
from dvrl.models.walk import MoveWeights
from dvrl.nets.layers import (
    Affine,
    ContextGRUCell,
    ContextLinear,
    GaussianHead,
    linear,
    mlp,
    new_gate_first,
)


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
    ) -> Gaussian:
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


class VRNN(GenerativeModel):
    """Prior, decoder and transition of the model, and the proposal that inverts it."""

    def __init__(
        self, obs_dim: int, action_dim: int, h_dim: int, z_dim: int, embed_dim: int, min_var: float
    ) -> None:
        super().__init__()
        x_dim = a_dim = embed_dim
        self.embed_obs = mlp(obs_dim, [embed_dim, embed_dim])  # phi^o
        self.embed_action = mlp(action_dim, [embed_dim])  # phi^a
        self.embed_latent = mlp(z_dim, [h_dim])  # phi^z
        self.min_var = min_var
        self.sizes = (h_dim, h_dim, h_dim, z_dim, h_dim, embed_dim, obs_dim)
        """Of h, the proposal's hidden layer, phi^z, z, hidden layers of prior and decoder, o."""
        self._proposal = ContextLinear(h_dim, x_dim + a_dim, h_dim)
        self._proposal_head = GaussianHead(h_dim, z_dim, min_var)
        self._prior = ContextLinear(h_dim, a_dim, h_dim)
        self._prior_head = GaussianHead(h_dim, z_dim, min_var)
        self._decoder = ContextLinear(2 * h_dim, a_dim, embed_dim)
        self._decoder_hidden = linear(embed_dim, embed_dim)
        self._decoder_head = GaussianHead(embed_dim, obs_dim, min_var)
        self._transition = ContextGRUCell(h_dim, x_dim + a_dim, h_dim)

    def proposal(
        self, h_tm1: Float[Tensor, "N K H"], a: Float[Tensor, "N A"], x: Float[Tensor, "N X"]
    ) -> Gaussian:
        hidden = self._proposal(h_tm1, torch.cat([x, a], -1)).relu()
        return self._proposal_head(hidden)

    def prior(self, h_tm1: Float[Tensor, "N K H"], a: Float[Tensor, "N A"]) -> Gaussian:
        return self._prior_head(self._prior(h_tm1, a).relu())

    def decoder(
        self, h_tm1: Float[Tensor, "N K H"], e: Float[Tensor, "N K H"], a: Float[Tensor, "N A"]
    ) -> Gaussian:
        hidden = self._decoder(torch.cat([e, h_tm1], -1), a).relu()
        return self._decoder_head(self._decoder_hidden(hidden).relu())

    def transition(
        self,
        h_tm1: Float[Tensor, "N K H"],
        e: Float[Tensor, "N K H"],
        a: Float[Tensor, "N A"],
        x: Float[Tensor, "N X"],
    ) -> Float[Tensor, "N K H"]:
        return self._transition(e, torch.cat([x, a], -1), h_tm1)

    @property
    def laws(self) -> tuple[nn.Module, ...]:
        """All but the embeddings of observation and action."""
        return (
            self.embed_latent, self._proposal, self._proposal_head, self._prior, self._prior_head,
            self._decoder, self._decoder_hidden, self._decoder_head, self._transition,
        )  # fmt: skip

    def move_weights(self) -> MoveWeights:
        """What moves particles - phi^z, proposal and transition - packed for `models.replay`."""
        q, head, cell = self._proposal, self._proposal_head, self._transition
        embed, embed_bias = self.embed_latent.parameters()
        w_own, w_context = cell.weight_ih.split(cell.split, 1)
        q_own, q_context = q.weight.split(q.split, 1)
        head_weight, head_bias = head.packed()
        return MoveWeights(
            context=torch.cat([new_gate_first(w_context), q_context]),
            context_bias=torch.cat([new_gate_first(cell.bias_ih), torch.zeros_like(q.bias)]),
            state=torch.cat([cell.weight_hh, q_own]),
            state_bias=torch.cat([cell.bias_hh, q.bias]),
            head=head_weight,
            head_bias=head_bias,
            embed=embed,
            embed_bias=embed_bias,
            gates=new_gate_first(w_own),
        )

    def weighing_contexts(self) -> tuple[Affine, Affine]:
        """The layers by which a speaks to prior and decoder."""
        prior, decoder = self._prior, self._decoder
        return (
            Affine(prior.weight[:, prior.split[0] :], prior.bias),
            Affine(decoder.weight[:, decoder.split[0] :], decoder.bias),
        )

    def contexts(self, w: MoveWeights) -> tuple[Tensor, Tensor]:
        """What [x, a] says to moves, prior and decoder as one layer; the latter two see only a."""
        weights, biases = zip(*self.weighing_contexts(), strict=True)
        blind = w.context.shape[1] - weights[0].shape[1]
        alone = [F.pad(weight, (blind, 0)) for weight in weights]
        return torch.cat([w.context, *alone]), torch.cat([w.context_bias, *biases])

    def weighing(self) -> dict[str, Tensor]:
        """Prior and decoder apart from their contexts, by the names of `WeighWeights`."""
        prior, decoder = (m.weight[:, : m.split[0]] for m in (self._prior, self._decoder))
        prior_head, prior_head_bias = self._prior_head.packed()
        dec_head, dec_head_bias = self._decoder_head.packed()
        e_dim = self.sizes[2]
        return {
            "prior": prior,
            "prior_head": prior_head,
            "prior_head_bias": prior_head_bias,
            "dec_e": decoder[:, :e_dim],
            "dec_h": decoder[:, e_dim:],
            "dec_hidden": self._decoder_hidden.weight,
            "dec_hidden_bias": self._decoder_hidden.bias,
            "dec_head": dec_head,
            "dec_head_bias": dec_head_bias,
        }
