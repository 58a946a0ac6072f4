"""The recurrent baseline: one GRU over observations and actions (paper Eq. 12, Alg. 2)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from dvrl.core import gru, tree
from dvrl.encoders.base import BeliefEncoder, Update
from dvrl.encoders.recorder import Recorder, Replayed, Room, Sensed
from dvrl.fuse import fusable
from dvrl.nets.layers import GaussianHead, gru_cell, mlp, new_gate_first


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

    def recorder(self) -> Recorder:
        return GruRecorder(self)


class Record(NamedTuple):
    """One step, or T of them."""

    h_tm1: Float[Tensor, "*T N H"]
    h: Float[Tensor, "*T N H"]
    slopes: gru.GruSlopes


class GruRecorder(Recorder[GruBelief, gru.GruWeights, tuple]):
    """`GruEncoder` with its recurrence recorded (core.gru)."""

    def __init__(self, encoder: GruEncoder) -> None:
        self.encoder = encoder
        super().__init__(encoder, encoder.embed_action, encoder.embed_obs, encoder.cell)
        self._records: Room[Record] = Room()

    def _pack(self) -> tuple[gru.GruWeights, tuple]:
        cell = self.encoder.cell
        gates, bias = new_gate_first(cell.weight_ih), new_gate_first(cell.bias_ih)
        return gru.GruWeights(gates, bias, cell.weight_hh, cell.bias_hh), ()

    def _step(
        self,
        belief: GruBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        generator: torch.Generator,
        t: int | None,
    ) -> Update:
        record, loss = self._move(self.weights, belief, a_tm1, o_t)
        if t is not None:
            tree.copy(self._records.at(t, self._length, lambda: record), record)
        return Update(GruBelief(record.h), record.h, loss, GruInfo())

    @fusable
    def _move(
        self,
        weights: gru.GruWeights,
        belief: GruBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
    ) -> tuple[Record, Float[Tensor, " N"]]:
        encoder = self.encoder
        a, x = encoder.embed_action(a_tm1), encoder.embed_obs(o_t)
        gates_i = F.linear(torch.cat([x, a], -1), weights.input, weights.input_bias)
        gates_h = F.linear(belief.h, weights.state, weights.state_bias)
        h, tape = gru.step(gates_i, gates_h, belief.h)  # Eq. 12
        loss = encoder.loss(belief.h, a, o_t)
        return Record(belief.h, h, gru.slopes(tape, belief.h)), loss

    def replay(self, first: Bool[Tensor, "L N"]) -> Replayed:
        inputs, records = self._inputs(first), self._records.until(self.step_count)
        newest = tree.tree_map(lambda x: x[-self.n_steps :], records)
        walk = gru.GruWalk(self._all_weights, inputs.first, records.h_tm1, records.slopes)
        a, sensed = self._sense(self.leaves[0], inputs)
        h_tm1, h = gru.replay(self.weights, sensed, walk, newest.h_tm1, newest.h)
        rows = (x.flatten(0, 1) for x in (h_tm1, a, inputs.o_t[-self.n_steps :]))
        return Replayed(h, self.encoder.loss(*rows).unflatten(0, h.shape[:2]))

    @fusable
    def _sense(
        self, leaf: Float[Tensor, "S P"], inputs: Sensed
    ) -> tuple[Float[Tensor, "L N D"], Float[Tensor, "T N C"]]:
        """Embedded actions of the newest steps, and [x, a] of all."""
        a, x = self._embeddings(leaf, inputs)
        return a[-self.n_steps :], torch.cat([x, a], -1)
