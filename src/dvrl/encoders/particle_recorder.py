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
from dvrl.fuse import fusable
from dvrl.models.replay import Moved, MoveTape, MoveWeights, move, replay
from dvrl.models.vrnn import VRNN
from dvrl.nets.layers import named, new_gate_first


class SegmentWeights(NamedTuple):
    """Copies that the gradients of later segments pass through."""

    embed_action: dict[str, Tensor]
    embed_obs: dict[str, Tensor]
    move: MoveWeights
    kernel: tuple | None
    """The weights of a step as its kernel wants them."""


class Record(NamedTuple):
    """One step."""

    ancestors: Int[Tensor, "*T N K"]
    moved: Moved
    tape: MoveTape


class ParticleRecorder(Recorder[ParticleBelief]):
    """`ParticleEncoder` with the moves of particles recorded (models.replay)."""

    def __init__(self, encoder: ParticleEncoder, model: VRNN) -> None:
        self.encoder = encoder
        self.model = model

    def copied(self) -> list[nn.Parameter]:
        model = self.model
        return [
            p for m in (model.embed_action, model.embed_obs, *model.movers) for p in m.parameters()
        ]

    def weights(self, copies: Sequence[Tensor]) -> SegmentWeights:
        remaining = iter(copies)
        action, obs = (named(m, remaining) for m in (self.model.embed_action, self.model.embed_obs))
        move_weights = self.model.move_weights(*remaining)
        packed = self._packed(move_weights) if self._kernel() else None
        return SegmentWeights(action, obs, move_weights, packed)

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
        if weights.kernel is None:
            return self._step(weights.move, belief, a_tm1, o_t, u, eps)
        return self._step_by_kernel(weights.kernel, belief, a_tm1, o_t, u, eps)

    @fusable
    def _step(
        self,
        w: MoveWeights,
        belief: ParticleBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        u: Float[Tensor, "N K"],
        eps: Float[Tensor, "N K Z"],
    ) -> tuple[Update, Record]:
        a, x = self.model.embed_action(a_tm1), self.model.embed_obs(o_t)
        prev, ancestors = self.encoder.select(belief, u)  # Eq. 15
        context = F.linear(torch.cat([x, a], -1), w.context, w.context_bias)
        moved, tape = move(w, self.model.min_var, context, prev.h, eps)
        update = self.encoder.weigh(moved, eps, prev.log_w, a, o_t, ancestors)
        return update, Record(ancestors, moved, tape)

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

    @fusable
    def _packed(self, w: MoveWeights) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Contexts of all layers as one; and the weights of `step_triton.StepWeights`."""
        model, cell = self.model, self.encoder.summary.cell
        with torch.no_grad():
            weight, bias = model.contexts(w)
            summary = new_gate_first(cell.weight_ih)
            rest = summary[:, :-1].contiguous(), summary[:, -1].contiguous()
            return weight, bias, (*w[2:], *model.weighing(), *rest, new_gate_first(cell.bias_ih))

    @fusable
    def _contexts(self, weight: Tensor, bias: Tensor, a_tm1: Tensor, o_t: Tensor) -> Tensor:
        x = torch.cat([self.model.embed_obs(o_t), self.model.embed_action(a_tm1)], -1)
        return F.linear(x, weight, bias)

    def _step_by_kernel(
        self,
        packed: tuple[Tensor, Tensor, tuple[Tensor, ...]],
        belief: ParticleBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        u: Float[Tensor, "N K"],
        eps: Float[Tensor, "N K Z"],
    ) -> tuple[Update, Record]:
        kernels, cell = self._kernel(), self.encoder.summary.cell
        weight, bias, rest = packed
        h, q, _, _, p, d, _ = self.model.sizes
        contexts = self._contexts(weight, bias, a_tm1, o_t).split([3 * h + q, p, d], 1)
        s = kernels.step(
            kernels.StepWeights(*rest), self.model.min_var, *belief, u, *contexts, eps, o_t,
            precision="tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3",
        )  # fmt: skip
        feature = gru.scan_last(s.gates, cell.weight_hh, cell.bias_hh)
        info = ParticleInfo(
            s.log_w, s.ancestors, s.log_p_z, s.log_p_o, s.log_q_z, s.vanished, s.o_mean
        )
        moved = Moved(s.h_tm1, s.var, s.z, s.e, s.h)
        tape = MoveTape(eps, s.hidden, s.raw, gru.GruTape(s.ru, s.n, s.n_h))
        update = Update(ParticleBelief(s.h, s.log_w), feature, s.loss, info)
        return update, Record(s.ancestors, moved, tape)

    def replay(
        self,
        weights: SegmentWeights,
        belief: ParticleBelief,
        inputs: Inputs,
        records: Sequence[Record],
    ) -> Replayed:
        a, context = self._sense(weights, inputs)
        ancestors, recorded, tape = tree.stack(records)
        moved, h_out = replay(
            weights.move, belief.h, context, inputs.first, ancestors, recorded, tape
        )
        feature, loss, log_w = self._weigh(moved, tape.eps, a, inputs.o_t, ancestors)
        return Replayed(ParticleBelief(h_out, log_w[-1]), feature, loss)

    @fusable
    def _sense(
        self, weights: SegmentWeights, inputs: Inputs
    ) -> tuple[Float[Tensor, "T N D"], Float[Tensor, "T N G"]]:
        """Embedded actions, and what the observations and actions say to the moves."""
        model, w = self.model, weights.move
        a = functional_call(model.embed_action, weights.embed_action, (inputs.a_tm1,))
        x = functional_call(model.embed_obs, weights.embed_obs, (inputs.o_t,))
        return a, F.linear(torch.cat([x, a], -1), w.context, w.context_bias)

    @fusable
    def _weigh(
        self, moved: Moved, eps: Tensor, a: Tensor, o_t: Tensor, ancestors: Tensor
    ) -> tuple[Float[Tensor, "T N F"], Float[Tensor, "T N"], Float[Tensor, "T N K"]]:
        """`ParticleEncoder.weigh` of T steps at once: feature, loss and weights."""

        def rows(steps: Tensor) -> Tensor:  # T, N, ... -> T*N, ...: time does not matter here
            return steps.flatten(0, 1)

        equal = eps.new_zeros(rows(ancestors).shape)
        up = self.encoder.weigh(
            tree.tree_map(rows, moved), rows(eps), equal, rows(a), rows(o_t), rows(ancestors)
        )
        results = (up.feature, up.loss, up.belief.log_w)
        return tuple(r.unflatten(0, ancestors.shape[:2]) for r in results)
