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

from dvrl.core.laws import Bernoulli, Gaussian
from dvrl.models.walk import MoveWeights
from dvrl.nets.layers import (
    Affine,
    ContextGRUCell,
    ContextLinear,
    GaussianHead,
    embed_action,
    mlp,
    new_gate_first,
)
from dvrl.nets.norm import BatchNorm
from dvrl.nets.sight import Sight, VectorDecoder


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

    def transition(
        self,
        h_tm1: Float[Tensor, "N K H"],
        e: Float[Tensor, "N K H"],
        a: Float[Tensor, "N A"],
        x: Float[Tensor, "N X"],
    ) -> Float[Tensor, "N K H"]:
        return self._transition(e, torch.cat([x, a], -1), h_tm1)

    @property
    def movers(self) -> tuple[nn.Module, ...]:
        """What moves particles, the embeddings of observation and action apart."""
        norm = () if self.proposal_norm is None else (self.proposal_norm,)
        return self.embed_latent, self._proposal, *norm, self._proposal_head, self._transition

    @property
    def laws(self) -> tuple[nn.Module, ...]:
        """All but the embeddings of observation and action."""
        return (
            self.embed_latent, self._proposal, self._proposal_head, self._prior, self._prior_head,
            self._decoder, self._transition,
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
        prior, decoder = self._prior, self._vector_decoder.first
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
        of = self._vector_decoder
        prior, decoder = (m.weight[:, : m.split[0]] for m in (self._prior, of.first))
        prior_head, prior_head_bias = self._prior_head.packed()
        dec_head, dec_head_bias = of.head.packed()
        e_dim = self._transition.split[0]
        return {
            "prior": prior,
            "prior_head": prior_head,
            "prior_head_bias": prior_head_bias,
            "dec_e": decoder[:, :e_dim],
            "dec_h": decoder[:, e_dim:],
            "dec_hidden": of.hidden.weight,
            "dec_hidden_bias": of.hidden.bias,
            "dec_head": dec_head,
            "dec_head_bias": dec_head_bias,
        }

    @property
    def plain(self) -> bool:
        """Whether it decodes vectors and normalises nothing: the short way there is worked out."""
        return isinstance(self._decoder, VectorDecoder) and self.proposal_norm is None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of h, the proposal's hidden layer, phi^z, z, hidden layers of prior and decoder, o."""
        h, z = self._prior.split[0], self._prior_head.mean.out_features
        decoder = self._vector_decoder
        return h, h, h, z, h, decoder.hidden.in_features, decoder.head.mean.out_features

    @property
    def _vector_decoder(self) -> VectorDecoder:
        assert isinstance(self._decoder, VectorDecoder), "it decodes images"
        return self._decoder
