"""DVRL's encoder, acting first and deriving later: `ParticleEncoder` with its moves recorded."""

from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dvrl import kernels
from dvrl.core import gru, smc, tree
from dvrl.encoders.base import Update
from dvrl.encoders.particle import ParticleBelief, ParticleEncoder
from dvrl.encoders.particle_info import ParticleInfo
from dvrl.encoders.recorder import Recorder, Replayed
from dvrl.encoders.room import Room
from dvrl.encoders.weigh import Weighed, WeighTape, WeighWeights, weigh
from dvrl.encoders.weigh import replay as replay_weights
from dvrl.fuse import fusable, product
from dvrl.models import packed
from dvrl.models.replay import Moved, move
from dvrl.models.replay import replay as replay_moves
from dvrl.models.vrnn import VRNN
from dvrl.models.walk import MoveWeights, Slopes, Walk, Walked, room_for_walk
from dvrl.nets.layers import Affine, new_gate_first


class Weights(NamedTuple):
    """All parameters but the embeddings', packed."""

    move: MoveWeights
    weigh: WeighWeights
    prior_context: Affine
    """What a says to the prior, and below to the decoder."""
    dec_context: Affine


class ActingWeights(NamedTuple):
    """Some of them once more."""

    contexts: Float[Tensor, "C D"]
    """What [x, a] says to all layers: moves, prior, decoder."""
    contexts_bias: Float[Tensor, " C"]


class Kept(NamedTuple):
    """Of one step, or of T, what is wanted as long as the gradient window is open."""

    ancestors: Int[Tensor, "*T N K"]
    moved: Moved
    slopes: Slopes
    weighed: Weighed


class Record(NamedTuple):
    """One step."""

    kept: Kept
    tape: WeighTape
    """Wanted until the segment is derived."""


class ParticleRecorder(Recorder[ParticleBelief, Weights, ActingWeights]):
    """`ParticleEncoder` with moves and weights recorded (models.replay, encoders.weigh)."""

    def __init__(self, encoder: ParticleEncoder, model: VRNN, summary: nn.GRUCell) -> None:
        self.encoder = encoder
        self.model = model
        self.summary = summary
        super().__init__(encoder, model.embed_action, model.embed_obs, *packed.laws(model), summary)
        self._kept: Room[Kept] = Room()
        self._tapes: Room[WeighTape] = Room()
        self._unremembered: Room[Record] = Room()
        self._walked: Walked | None = None

    def _pack(self) -> tuple[Weights, ActingWeights]:
        model, cell = self.model, self.summary
        move_weights = packed.move_weights(model)
        gates, bias = new_gate_first(cell.weight_ih), new_gate_first(cell.bias_ih)
        of_h, of_e, of_weight = gates.split([cell.hidden_size, packed.sizes(model)[2], 1], 1)
        weighing = WeighWeights(
            **packed.weighing(model),
            summary_h=of_h,
            summary_e=of_e,
            summary_w=of_weight[:, 0],
            summary_bias=bias,
            state=cell.weight_hh,
            state_bias=cell.bias_hh,
        )
        acting = ActingWeights(*packed.contexts(model, move_weights))
        return Weights(move_weights, weighing, *packed.weighing_contexts(model)), acting

    def noise(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return self.encoder.noise(n, self.weights.move.embed.shape[1], generator)

    def _step(
        self,
        belief: ParticleBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        noise: tuple[Tensor, ...],
        t: int | None,
    ) -> Update:
        contexts = self._look(self.acting, a_tm1, o_t)
        given = (belief, contexts, o_t, *noise)
        if self._kernels is None:
            record = self._by_torch(self.weights, *given)
            if t is not None:
                tree.copy(self._place(t, lambda: record), record)
        else:
            record = self._place(t, lambda: self._blank(belief))
            self._by_kernel(record, *given)
        kept = record.kept
        feature, loss, log_p_z, log_p_o, log_q_z, log_w, vanished, o_mean = kept.weighed
        terms = log_p_z, log_p_o, log_q_z
        info = ParticleInfo(log_w, kept.ancestors, *terms, vanished, o_mean, o_t[:, :0])
        return Update(ParticleBelief(kept.moved.h, log_w), feature, loss, info)

    def _place(self, t: int | None, like: Callable[[], Record]) -> Record:
        """Where a step is written."""
        if t is None:
            return self._unremembered.at(0, 1, like)
        kept = self._kept.at(t, self._length, lambda: like().kept)
        return Record(kept, self._tapes.at(t % self.n_steps, self.n_steps, lambda: like().tape))

    @fusable
    def _look(self, weights: ActingWeights, a_tm1: Tensor, o_t: Tensor) -> Float[Tensor, "N C"]:
        """What the observations and actions of one step say."""
        sensed = torch.cat([self.embed_obs(o_t), self.embed_action(a_tm1)], -1)
        return product(sensed, weights.contexts, weights.contexts_bias)

    def _split(self, contexts: Float[Tensor, "N C"]) -> tuple[Tensor, ...]:
        """For moves, prior and decoder."""
        h, q, _, _, p, d, _ = packed.sizes(self.model)
        return contexts.split([3 * h + q, p, d], -1)

    @fusable
    def _by_torch(
        self,
        weights: Weights,
        belief: ParticleBelief,
        contexts: Float[Tensor, "N C"],
        o_t: Float[Tensor, "N *obs"],
        u: Float[Tensor, "N K"],
        eps: Float[Tensor, "N K Z"],
    ) -> Record:
        context, c_prior, c_dec = self._split(contexts)
        min_var = self.model.min_var
        prev, ancestors = self.encoder.select(belief, u)  # Eq. 15
        moved, slopes = move(weights.move, min_var, context, prev.h, eps)
        weighed, tape = weigh(weights.weigh, moved, c_prior, c_dec, eps, o_t, min_var)
        return Record(Kept(ancestors, moved, slopes, weighed), tape)

    @cached_property
    def _kernels(self) -> tuple[ModuleType, ModuleType] | None:
        """The step and the scan as Triton kernels, where they know sizes and scheme."""
        sizes, k = packed.sizes(self.model), self.encoder.n_particles
        step = kernels.find("dvrl.encoders.step_triton", self.encoder.h_0)
        scan = kernels.find("dvrl.core.scan_triton", self.encoder.h_0)
        if step is None or scan is None or self.encoder.resample is not smc.systematic:
            return None
        return (step, scan) if step.supports(*sizes, k=k) and scan.supports(sizes[0]) else None

    def _by_kernel(
        self,
        record: Record,
        belief: ParticleBelief,
        contexts: Float[Tensor, "N C"],
        o_t: Float[Tensor, "N *obs"],
        u: Float[Tensor, "N K"],
        eps: Float[Tensor, "N K Z"],
    ) -> None:
        """The same, written into `record`."""
        assert self._kernels is not None
        step, scan = self._kernels
        w, (kept, tape) = self.weights.weigh, record
        gates = step.step(
            (*self.weights.move[2:], *w[:-2]), self.model.min_var,
            *belief, u, *self._split(contexts), eps, o_t,
            results=(kept.ancestors, *kept.moved, *tree.leaves(kept.slopes), *kept.weighed[1:],
                     *tape[:-2]),
            precision=kernels.precision(),
        )  # fmt: skip
        results = kept.weighed.feature, tape.before, tape.scan
        scan.forward(gates, w.state, w.state_bias, results, tf32=kernels.tf32())

    def _blank(self, belief: ParticleBelief) -> Record:
        """A record nobody has written to yet."""
        h, q, e, z, p, d, o = packed.sizes(self.model)
        n, k = belief.log_w.shape

        def new(*sizes: int) -> list[Tensor]:
            return [belief.h.new_empty(n, k, size) for size in sizes]

        def weights(count: int) -> list[Tensor]:
            return [belief.h.new_empty(n, k) for _ in range(count)]

        ancestors = belief.h.new_empty(n, k, dtype=torch.int64)
        vanished = belief.h.new_empty(n, dtype=torch.bool)
        feature, loss = belief.h.new_empty(n, h), belief.h.new_empty(n)
        hidden, d_var, d_z = new(q, z, z)
        kept = Kept(
            ancestors,
            Moved._make(new(h, z, z, e, h)),
            Slopes(hidden, gru.GruSlopes._make(new(h, h, h, h, h)), d_var, d_z),
            Weighed._make([feature, loss, *weights(4), vanished, *new(o)]),
        )
        return Record(kept, WeighTape._make(new(p, z, z, d, d, o, h, 4 * h)))

    def replay(self, first: Bool[Tensor, "L N"]) -> Replayed:
        inputs, kept = self._inputs(first), self._kept.until(self.step_count)
        newest = tree.tree_map(lambda x: x[-self.n_steps :], kept)
        h_tm1, _, z, e, _ = kept.moved
        walk = Walk(
            self._all_weights.move, inputs.first, kept.ancestors,
            h_tm1, z, e, kept.slopes, self._results(),
        )  # fmt: skip
        weights = self.weights
        embedded = self.embedding.sense(inputs, self.n_steps)
        sensed, c_prior, c_dec = self._speak(*embedded, *weights[2:])
        moved = replay_moves(weights.move, sensed, walk, newest.moved)
        feature, loss = replay_weights(
            weights.weigh, moved, c_prior, c_dec, inputs.o_t[-self.n_steps :],
            self.model.min_var, self.encoder.joint, newest.weighed,
            self._tapes.until(self.n_steps),
        )  # fmt: skip
        return Replayed(feature, loss)

    @fusable
    def _speak(
        self,
        a: Float[Tensor, "T N D"],
        x: Float[Tensor, "T N X"],
        prior_context: Affine,
        dec_context: Affine,
    ) -> tuple[Float[Tensor, "T N C"], Float[Tensor, "L N P"], Float[Tensor, "L N D"]]:
        """[x, a] of all steps; and what a says to prior and decoder in the newest."""
        newest = a[-self.n_steps :]
        c_prior, c_dec = F.linear(newest, *prior_context), F.linear(newest, *dec_context)
        return torch.cat([x, a], -1), c_prior, c_dec

    @property
    def ancestors(self) -> Int[Tensor, "T N K"]:
        return self._kept.until(self.step_count).ancestors

    def _results(self) -> Walked:
        """Where walks write; the same place every time."""
        if self._walked is None:
            assert self._kept.rows is not None
            _, moved, slopes, _ = self._kept.rows
            self._walked = room_for_walk(moved.h, moved.z, moved.e, slopes.hidden.shape[-1])
        return tree.tree_map(lambda x: x[: self.step_count], self._walked)
