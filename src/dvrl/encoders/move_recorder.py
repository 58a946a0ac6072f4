"""DVRL's encoder with a normalised proposal, acting first and deriving later.

What moves particles is recorded and walked back by hand (models.normed); how they are weighed and
summarised is a matter of the newest segment alone, and left to autograd: so any decoder will do.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dvrl import chance
from dvrl.core import tree
from dvrl.encoders.base import Update
from dvrl.encoders.particle import ParticleBelief, ParticleEncoder
from dvrl.encoders.recorder import Recorder, Replayed, Room
from dvrl.fuse import fusable
from dvrl.models import normed, packed
from dvrl.models.normed import NormedSlopes, NormedWalk, NormedWeights
from dvrl.models.replay import Moved
from dvrl.models.vrnn import VRNN


class Record(NamedTuple):
    """One step, or T of them."""

    ancestors: Int[Tensor, "*T N K"]
    moved: Moved
    slopes: NormedSlopes
    eps: Float[Tensor, "*T N K Z"]


class MoveRecorder(Recorder[ParticleBelief, NormedWeights, tuple]):
    """`ParticleEncoder` with its moves recorded."""

    def __init__(self, encoder: ParticleEncoder, model: VRNN) -> None:
        assert model.proposal_norm is not None
        self.encoder = encoder
        self.model = model
        self.norm = model.proposal_norm
        super().__init__(encoder, model.embed_action, model.embed_obs, *packed.movers(model))
        self._records: Room[Record] = Room()

    def _pack(self) -> tuple[NormedWeights, tuple]:
        return NormedWeights(packed.move_weights(self.model), self.norm.weight, self.norm.bias), ()

    def _step(
        self,
        belief: ParticleBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        generator: torch.Generator,
        t: int | None,
    ) -> Update:
        u = chance.uniform(generator, *belief.log_w.shape)
        eps = chance.normal(generator, *u.shape, self.weights.move.embed.shape[1])
        record, update = self._act(self.weights, belief, a_tm1, o_t, u, eps)
        if t is not None:
            tree.copy(self._records.at(t, self._length, lambda: record), record)
        return update

    @fusable
    def _act(
        self,
        weights: NormedWeights,
        belief: ParticleBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        u: Float[Tensor, "N K"],
        eps: Float[Tensor, "N K Z"],
    ) -> tuple[Record, Update]:
        encoder, w = self.encoder, weights.move
        a, x = self.embed_action(a_tm1), self.embed_obs(o_t)
        context = F.linear(torch.cat([x, a], -1), w.context, w.context_bias)
        prev, ancestors = encoder.select(belief, u)  # Eq. 15
        moved, slopes = normed.move(weights, self.norm, self.model.min_var, context, prev.h, eps)
        seen = encoder.weigh(moved, eps, prev.log_w, a, o_t)
        # No one looks at images of particles while training.
        info = seen.info(ancestors, eps[..., :0], seen.p_o.floor(o_t))
        update = Update(ParticleBelief(moved.h, seen.log_w), seen.feature, seen.loss, info)
        return Record(ancestors, moved, slopes, eps), update

    def replay(self, first: Bool[Tensor, "L N"]) -> Replayed:
        inputs, records = self._inputs(first), self._records.until(self.step_count)
        newest = tree.tree_map(lambda x: x[-self.n_steps :], records)
        h_tm1, _, z, e, _ = records.moved
        walk = NormedWalk(
            self._all_weights, inputs.first, records.ancestors, h_tm1, z, e, records.slopes
        )
        a, x = self.embedding.sense(inputs, self.n_steps)
        moved = normed.replay(self.weights, torch.cat([x, a], -1), walk, newest.moved)
        return self._weigh(moved, newest.eps, a[-self.n_steps :], inputs.o_t[-self.n_steps :])

    @fusable
    def _weigh(
        self,
        moved: Moved,
        eps: Float[Tensor, "L N K Z"],
        a: Float[Tensor, "L N D"],
        o_t: Float[Tensor, "L N *obs"],
    ) -> Replayed:
        equal = torch.zeros_like(eps[..., 0])  # resampled particles start so
        seen = self.encoder.weigh(moved, eps, equal, a, o_t)
        return Replayed(seen.feature, seen.loss)

    @property
    def ancestors(self) -> Int[Tensor, "T N K"]:
        return self._records.until(self.step_count).ancestors
