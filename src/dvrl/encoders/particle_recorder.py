"""DVRL's encoder, acting first and deriving later: `ParticleEncoder` with its moves recorded."""

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from dvrl import chance
from dvrl.core import gru, smc, tree
from dvrl.encoders.base import Inputs, Recorder, Replayed, Update
from dvrl.encoders.particle import ParticleBelief, ParticleEncoder, ParticleInfo
from dvrl.encoders.weigh import Given, Weighed, WeighTape, WeighWeights, weigh
from dvrl.encoders.weigh import replay as replay_weights
from dvrl.fuse import fusable
from dvrl.models.replay import Moved, MoveTape, MoveWeights, move
from dvrl.models.replay import replay as replay_moves
from dvrl.models.vrnn import VRNN
from dvrl.nets.layers import named, new_gate_first


class SegmentWeights(NamedTuple):
    """The parameters of a segment, packed; those that later gradients pass through as copies."""

    embed_action: dict[str, Tensor]
    embed_obs: dict[str, Tensor]
    contexts: Float[Tensor, "C D"]
    """What [x, a] says to all layers: moves, prior, decoder."""
    contexts_bias: Float[Tensor, " C"]
    move: MoveWeights
    weigh: WeighWeights
    summary: tuple[Tensor, Tensor]
    """Of `weigh`, for the kernel: the particles' weights apart, with which no row is aligned."""


class Record(NamedTuple):
    """One step."""

    ancestors: Int[Tensor, "*T N K"]
    moved: Moved
    moves: MoveTape
    weighed: Weighed
    weighing: WeighTape


class ParticleRecorder(Recorder[ParticleBelief]):
    """`ParticleEncoder` with moves and weights recorded (models.replay, encoders.weigh)."""

    def __init__(self, encoder: ParticleEncoder, model: VRNN, summary: nn.GRUCell) -> None:
        self.encoder = encoder
        self.model = model
        self.summary = summary

    def copied(self) -> list[nn.Parameter]:
        model = self.model
        modules = (model.embed_action, model.embed_obs, *model.movers)
        return [p for m in modules for p in m.parameters()]

    def weights(self, copies: Sequence[Tensor]) -> SegmentWeights:
        remaining = iter(copies)
        action, obs = (named(m, remaining) for m in (self.model.embed_action, self.model.embed_obs))
        return SegmentWeights(action, obs, *self._packed(*remaining))

    @fusable
    def _packed(self, *movers: Tensor) -> tuple:
        """All of `SegmentWeights` but the embeddings."""
        model, cell = self.model, self.summary
        move_weights = model.move_weights(*movers)
        summary, bias = new_gate_first(cell.weight_ih), new_gate_first(cell.bias_ih)
        weighing = WeighWeights(*model.weighing(), summary, bias, cell.weight_hh, cell.bias_hh)
        fixed = summary.detach()
        apart = fixed[:, :-1].contiguous(), fixed[:, -1].contiguous()
        return *model.contexts(move_weights), move_weights, weighing, apart

    def step(
        self,
        weights: SegmentWeights,
        belief: ParticleBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        generator: torch.Generator,
    ) -> tuple[Update, Record]:
        u = chance.uniform(generator, *belief.log_w.shape)
        eps = chance.normal(generator, *u.shape, weights.move.embed.shape[1])
        contexts = self._look(weights, a_tm1, o_t)
        kernels = self._kernel()
        if kernels is None:
            record = self._step(weights, belief, contexts, o_t, u, eps)
        else:
            record = self._step_by_kernel(kernels, weights, belief, contexts, o_t, u, eps)
        weighed, tape = record.weighed, record.weighing
        info = ParticleInfo(tape.log_w, record.ancestors, *weighed[2:], tape.vanished, tape.o_mean)
        carried = ParticleBelief(record.moved.h, tape.log_w)
        return Update(carried, weighed.feature, weighed.loss, info), record

    @fusable
    def _look(self, weights: SegmentWeights, a_tm1: Tensor, o_t: Tensor) -> Tensor:
        """What the observations and actions of one step say."""
        return self._contexts(weights, self.model.embed_action(a_tm1), self.model.embed_obs(o_t))

    def _contexts(self, weights: SegmentWeights, a: Tensor, x: Tensor) -> Tensor:
        return F.linear(torch.cat([x, a], -1), weights.contexts, weights.contexts_bias)

    def _split(self, contexts: Tensor) -> tuple[Tensor, ...]:
        """For moves, prior and decoder."""
        h, q, _, _, p, d, _ = self.model.sizes
        return contexts.split([3 * h + q, p, d], -1)

    def _given(self, eps: Tensor, o_t: Tensor) -> Given:
        return Given(eps, o_t, self.model.min_var, self.encoder.joint)

    @fusable
    def _step(
        self,
        weights: SegmentWeights,
        belief: ParticleBelief,
        contexts: Float[Tensor, "N C"],
        o_t: Float[Tensor, "N *obs"],
        u: Float[Tensor, "N K"],
        eps: Float[Tensor, "N K Z"],
    ) -> Record:
        context, c_prior, c_dec = self._split(contexts)
        prev, ancestors = self.encoder.select(belief, u)  # Eq. 15
        moved, moves = move(weights.move, self.model.min_var, context, prev.h, eps)
        weighed, tape = weigh(weights.weigh, moved, c_prior, c_dec, self._given(eps, o_t))
        return Record(ancestors, moved, moves, weighed, tape)

    def _kernel(self) -> ModuleType | None:
        """The step as one Triton kernel, where there is Triton and it knows sizes and scheme."""
        model, encoder = self.model, self.encoder
        p = encoder.h_0
        if not p.is_cuda or p.dtype != torch.float32 or encoder.resample is not smc.systematic:
            return None
        try:
            from dvrl.encoders import step_triton
        except ImportError:
            return None
        fits = step_triton.supports(*model.sizes, k=encoder.n_particles)
        return step_triton if fits else None

    def _step_by_kernel(
        self,
        kernels: ModuleType,
        weights: SegmentWeights,
        belief: ParticleBelief,
        contexts: Float[Tensor, "N C"],
        o_t: Float[Tensor, "N *obs"],
        u: Float[Tensor, "N K"],
        eps: Float[Tensor, "N K Z"],
    ) -> Record:
        w = weights.weigh
        summary = *weights.summary, w.summary_bias
        s = kernels.step(
            kernels.StepWeights(*weights.move[2:], *w[:8], *summary), self.model.min_var, *belief,
            u, *self._split(contexts), eps, o_t,
            precision="tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3",
        )  # fmt: skip
        feature, before, scan = gru.scan_taped(s.gates, w.state, w.state_bias)
        moved = Moved(s.h_tm1, s.var, s.z, s.e, s.h)
        moves = MoveTape(eps, s.hidden, s.raw, gru.GruTape(s.ru, s.n, s.n_h))
        weighed = Weighed(feature, s.loss, s.log_p_z, s.log_p_o, s.log_q_z)
        tape = WeighTape(
            s.p_hidden, s.p_mean, s.p_raw, s.d_hidden, s.d_last, s.o_mean, s.o_raw, s.log_w,
            s.vanished, before, scan,
        )  # fmt: skip
        return Record(s.ancestors, moved, moves, weighed, tape)

    def replay(
        self,
        weights: SegmentWeights,
        belief: ParticleBelief,
        inputs: Inputs,
        records: Sequence[Record],
    ) -> Replayed:
        context, c_prior, c_dec = self._split(self._sense(weights, inputs))
        ancestors, recorded, moves, weighed, tape = _stacked(records)
        moved, h_out = replay_moves(
            weights.move, belief.h, context, inputs.first, ancestors, recorded, moves
        )
        given = self._given(moves.eps, inputs.o_t)
        feature, loss = replay_weights(weights.weigh, moved, c_prior, c_dec, given, weighed, tape)
        return Replayed(ParticleBelief(h_out, tape.log_w[-1]), feature, loss)

    @fusable
    def _sense(self, weights: SegmentWeights, inputs: Inputs) -> Float[Tensor, "T N C"]:
        """What the observations and actions of all steps say."""
        model = self.model
        a = functional_call(model.embed_action, weights.embed_action, (inputs.a_tm1,))
        x = functional_call(model.embed_obs, weights.embed_obs, (inputs.o_t,))
        return self._contexts(weights, a, x)


@fusable
def _stacked(records: Sequence[Record]) -> Record:
    return tree.stack(records)
