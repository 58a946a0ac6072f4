"""The recurrent baseline: one GRU over observations and actions (paper Eq. 12, Alg. 2)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from dvrl import kernels
from dvrl.core import gru, tree
from dvrl.encoders.base import BeliefEncoder, Update
from dvrl.encoders.recorder import Recorder, Replayed
from dvrl.encoders.room import Room
from dvrl.fuse import fusable
from dvrl.nets.layers import embed_action, gru_cell, new_gate_first
from dvrl.nets.sight import Decoder, Sight


class GruBelief(NamedTuple):
    """The recurrent state; what it knows about the world is its own affair."""

    h: Float[Tensor, "N H"]


class GruInfo(NamedTuple):
    """Nothing to look at."""

    @classmethod
    def metrics(cls, infos: Sequence["GruInfo"]) -> dict[str, Float[Tensor, ""]]:
        return {}


class GruEncoder(BeliefEncoder[GruBelief]):
    """h_t = GRU(h_{t-1}, [phi^o(o_t), phi^a(a_{t-1})])."""

    h_0: Tensor

    def __init__(
        self,
        sight: Sight,
        action_dim: int,
        h_dim: int,
        a_dim: int,
        norm: bool = False,
        decoder: Decoder | None = None,
    ) -> None:
        """`decoder`: p(o_t | h_{t-1}, a_{t-1}) of Alg. 2, if there is to be one."""
        super().__init__()
        self.feature_dim = h_dim
        self.embed_obs = sight.embed()
        self.embed_action = embed_action(action_dim, a_dim, norm)
        self.cell = gru_cell(sight.x_dim + a_dim, h_dim)
        self.reconstruction = decoder
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
        self,
        h_tm1: Float[Tensor, "*G N H"],
        a: Float[Tensor, "*G N A"],
        o_t: Float[Tensor, "..."],
    ) -> Float[Tensor, "*G N"]:
        """L^ENC of Alg. 2, or nothing."""
        if self.reconstruction is None:
            return h_tm1.new_zeros(h_tm1.shape[:-1])
        rows = h_tm1.ndim - 1
        law = self.reconstruction(h_tm1.unsqueeze(rows), a)  # one particle
        return -law.log_prob(o_t.unsqueeze(rows)).squeeze(rows)

    def memory(self) -> list[nn.Parameter]:
        return list(self.cell.parameters())

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
        noise: tuple[Tensor, ...],
        t: int | None,
    ) -> Update:
        with kernels.beside(o_t):
            gates_h, a = self._start(self.weights, belief, a_tm1)
        x = self.embedding.ahead(o_t, t)
        kernels.meet(o_t)
        place = self._records.ready(t)
        record, loss = self._move(self.weights, belief, gates_h, a, o_t, x, place)
        if t is not None and place is None:
            tree.copy(self._records.at(t, self._length, lambda: record), record)
        return Update(GruBelief(record.h), record.h, loss, GruInfo())

    @fusable
    def _start(
        self, weights: gru.GruWeights, belief: GruBelief, a_tm1: Float[Tensor, "N A"]
    ) -> tuple[Float[Tensor, "N G"], Float[Tensor, "N D"]]:
        """What the state says to the gates, and phi^a: both are known before anything is seen."""
        gates_h = F.linear(belief.h, weights.state, weights.state_bias)
        return gates_h, self.encoder.embed_action(a_tm1)

    @fusable
    def _move(
        self,
        weights: gru.GruWeights,
        belief: GruBelief,
        gates_h: Float[Tensor, "N G"],
        a: Float[Tensor, "N D"],
        o_t: Float[Tensor, "N *obs"],
        x: Float[Tensor, "N X"] | None,
        place: Record | None,
    ) -> tuple[Record, Float[Tensor, " N"]]:
        """One step, written to `place`."""
        encoder = self.encoder
        seen = encoder.embed_obs(o_t) if x is None else x
        gates_i = F.linear(torch.cat([seen, a], -1), weights.input, weights.input_bias)
        h, tape = gru.step(gates_i, gates_h, belief.h)  # Eq. 12
        loss = encoder.loss(belief.h, a, o_t)
        record = Record(belief.h, h, gru.slopes(tape, belief.h))
        if place is not None:
            tree.copy(place, record)
        return record, loss

    def replay(self, first: Bool[Tensor, "L N"]) -> Replayed:
        inputs, records = self._inputs(first), self._records.until(self.step_count)
        newest = tree.tree_map(lambda x: x[-self.n_steps :], records)
        walk = gru.GruWalk(self._all_weights, inputs.first, records.h_tm1, records.slopes)
        a, x = self.embedding.sense(inputs, self.n_steps)
        sensed = torch.cat([x, a], -1)
        h_tm1, h = gru.replay(self.weights, sensed, walk, newest.h_tm1, newest.h)
        a = a[-self.n_steps :]
        return Replayed(h, self.encoder.loss(h_tm1, a, inputs.o_t[-self.n_steps :]))
