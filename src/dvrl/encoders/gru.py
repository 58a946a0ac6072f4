"""The recurrent baseline: one GRU over observations and actions (paper Eq. 12, Alg. 2)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from dvrl.core import gru, tree
from dvrl.encoders.base import BeliefEncoder, Inputs, Recorder, Replayed, Update
from dvrl.fuse import fusable
from dvrl.nets.layers import GaussianHead, gru_cell, mlp, named, new_gate_first


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
        return Update(GruBelief(h), h, self.loss(belief.h, a, o_t), GruInfo())

    def loss(
        self, h_tm1: Float[Tensor, "N H"], a: Float[Tensor, "N A"], o_t: Float[Tensor, "N *obs"]
    ) -> Float[Tensor, " N"]:
        """L^ENC of Alg. 2, or nothing."""
        if self.reconstruction is None:
            return h_tm1.new_zeros(h_tm1.shape[0])
        return self.reconstruction.loss(h_tm1, a, o_t)

    def recorder(self) -> Recorder[GruBelief]:
        return GruRecorder(self)


class SegmentWeights(NamedTuple):
    """Copies that the gradients of later segments pass through."""

    embed_action: dict[str, Tensor]
    embed_obs: dict[str, Tensor]
    gates: Float[Tensor, "G D"]
    gates_bias: Float[Tensor, " G"]
    state: Float[Tensor, "G H"]
    state_bias: Float[Tensor, " G"]


class Record(NamedTuple):
    """One step."""

    h_tm1: Float[Tensor, "*T N H"]
    h: Float[Tensor, "*T N H"]
    tape: gru.GruTape


class GruRecorder(Recorder[GruBelief]):
    """`GruEncoder` with its recurrence recorded (core.gru)."""

    def __init__(self, encoder: GruEncoder) -> None:
        self.encoder = encoder

    def copied(self) -> list[nn.Parameter]:
        encoder = self.encoder
        modules = encoder.embed_action, encoder.embed_obs, encoder.cell
        return [p for m in modules for p in m.parameters()]

    def weights(self, copies: Sequence[Tensor]) -> SegmentWeights:
        encoder, remaining = self.encoder, iter(copies)
        action, obs = (named(m, remaining) for m in (encoder.embed_action, encoder.embed_obs))
        w_ih, w_hh, b_ih, b_hh = remaining
        return SegmentWeights(action, obs, new_gate_first(w_ih), new_gate_first(b_ih), w_hh, b_hh)

    def step(
        self,
        weights: SegmentWeights,
        belief: GruBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        generator: torch.Generator,
    ) -> tuple[Update, Record]:
        return self._step(weights, belief, a_tm1, o_t)

    @fusable
    def _step(
        self,
        weights: SegmentWeights,
        belief: GruBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
    ) -> tuple[Update, Record]:
        encoder = self.encoder
        a, x = encoder.embed_action(a_tm1), encoder.embed_obs(o_t)
        gates_i = F.linear(torch.cat([x, a], -1), weights.gates, weights.gates_bias)
        gates_h = F.linear(belief.h, weights.state, weights.state_bias)
        h, tape = gru.step(gates_i, gates_h, belief.h)  # Eq. 12
        loss = encoder.loss(belief.h, a, o_t)
        return Update(GruBelief(h), h, loss, GruInfo()), Record(belief.h, h, tape)

    def replay(
        self,
        weights: SegmentWeights,
        belief: GruBelief,
        inputs: Inputs,
        records: Sequence[Record],
    ) -> Replayed:
        encoder = self.encoder
        a, gates_i = self._sense(weights, inputs)
        recorded = tree.stack(records)
        h = gru.replay(
            gates_i, belief.h, weights.state, weights.state_bias, inputs.first, *recorded
        )
        h_tm1 = torch.cat([belief.h[None], h[:-1]]).masked_fill(inputs.first[..., None], 0.0)
        steps = inputs.first.shape
        loss = encoder.loss(h_tm1.flatten(0, 1), a.flatten(0, 1), inputs.o_t.flatten(0, 1))
        return Replayed(GruBelief(h[-1]), h, loss.unflatten(0, steps))

    @fusable
    def _sense(
        self, weights: SegmentWeights, inputs: Inputs
    ) -> tuple[Float[Tensor, "T N D"], Float[Tensor, "T N G"]]:
        """Embedded actions, and the gates of all inputs."""
        encoder = self.encoder
        a = functional_call(encoder.embed_action, weights.embed_action, (inputs.a_tm1,))
        x = functional_call(encoder.embed_obs, weights.embed_obs, (inputs.o_t,))
        return a, F.linear(torch.cat([x, a], -1), weights.gates, weights.gates_bias)
