"""DVRL's encoder with a normalised proposal, acting first and deriving later.

What moves particles is recorded and walked back by hand (models.normed); how they are weighed and
summarised is a matter of the newest segment alone, and left to autograd: so any decoder will do.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dvrl import kernels
from dvrl.core import tree
from dvrl.core.laws import binary_entropy
from dvrl.encoders.base import Update
from dvrl.encoders.particle import Ahead, Evidence, ParticleBelief, ParticleEncoder
from dvrl.encoders.recorder import Recorder, Replayed
from dvrl.encoders.room import Room
from dvrl.fuse import fusable
from dvrl.models import normed, packed
from dvrl.models.normed import NormedSlopes, NormedWalk, NormedWeights
from dvrl.models.replay import Moved
from dvrl.models.vrnn import VRNN
from dvrl.models.walk import MoveWeights
from dvrl.nets.mirror import Mirror
from dvrl.nets.sight import SMALLEST


class Record(NamedTuple):
    """One step, or T of them."""

    ancestors: Int[Tensor, "*T N K"]
    moved: Moved
    slopes: NormedSlopes
    eps: Float[Tensor, "*T N K Z"]


class Start(NamedTuple):
    """What a step knows before it sees."""

    h: Float[Tensor, "N K H"]
    log_w: Float[Tensor, "N K"]
    """Of particles that were chosen."""
    ancestors: Int[Tensor, "N K"]
    of_state: Float[Tensor, "N K G4"]
    """What h_{t-1} says to the proposal and to the gates."""
    a: Float[Tensor, "N D"]


class MoveRecorder(Recorder[ParticleBelief, NormedWeights, tuple]):
    """`ParticleEncoder` with its moves recorded."""

    def __init__(self, encoder: ParticleEncoder, model: VRNN) -> None:
        assert model.proposal_norm is not None
        self.encoder = encoder
        self.model = model
        self.norm = model.proposal_norm
        super().__init__(encoder, model.embed_action, model.embed_obs, *packed.movers(model))
        self._records: Room[Record] = Room()
        self._mirror: Mirror | None = None
        """The decoder of images by kernels, as it is in the newest segment."""

    def begin(self, flat: Float[Tensor, " P"]) -> None:
        super().begin(flat)
        decoder = self.model.image_decoder()
        self._mirror = Mirror(decoder) if decoder is not None and decoder.by_kernels() else None

    def _pack(self) -> tuple[NormedWeights, tuple]:
        return NormedWeights(packed.move_weights(self.model), self.norm.weight, self.norm.bias), ()

    def noise(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        with kernels.beside(self.encoder.h_0):
            return self.encoder.noise(n, self.weights.move.embed.shape[1], generator)

    def _step(
        self,
        belief: ParticleBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        noise: tuple[Tensor, ...],
        t: int | None,
    ) -> Update:
        u, eps = noise
        with kernels.beside(o_t):
            start = self._start(self.weights.move, belief, a_tm1, u)
        x = self.embedding.ahead(o_t, t)
        kernels.meet(o_t)
        place = self._records.ready(t)
        record = self._move(self.weights, start, o_t, x, eps, place)
        if t is not None and place is None:
            tree.copy(self._records.at(t, self._length, lambda: record), record)
        seen = self._weigh(record.moved, eps, start.log_w, start.a, o_t)
        # No one looks at images of particles while training.
        info = seen.info(record.ancestors, eps[..., :0], _floor(o_t))
        return Update(ParticleBelief(record.moved.h, seen.log_w), seen.feature, seen.loss, info)

    @fusable
    def _start(
        self,
        w: MoveWeights,
        belief: ParticleBelief,
        a_tm1: Float[Tensor, "N A"],
        u: Float[Tensor, "N K"],
    ) -> Start:
        prev, ancestors = self.encoder.select(belief, u)  # Eq. 15
        of_state = F.linear(prev.h, w.state, w.state_bias)
        return Start(*prev, ancestors, of_state, self.embed_action(a_tm1))

    @fusable
    def _move(
        self,
        weights: NormedWeights,
        start: Start,
        o_t: Float[Tensor, "N *obs"],
        x: Float[Tensor, "N X"] | None,
        eps: Float[Tensor, "N K Z"],
        place: Record | None,
    ) -> Record:
        """The step, written to `place`."""
        w = weights.move
        seen = self.embed_obs(o_t) if x is None else x
        context = F.linear(torch.cat([seen, start.a], -1), w.context, w.context_bias)
        given = context, start.h, start.of_state, eps
        moved, slopes = normed.move(weights, self.norm, self.model.min_var, *given)
        record = Record(start.ancestors, moved, slopes, eps)
        if place is not None:
            tree.copy(place, record)
        return record

    def _weigh(
        self,
        moved: Moved,
        eps: Float[Tensor, "*G N K Z"],
        log_w_tm1: Float[Tensor, "*G N K"],
        a: Float[Tensor, "*G N D"],
        o_t: Float[Tensor, "..."],
    ) -> Evidence:
        """`ParticleEncoder.weigh`, the decoder's images by kernels where there are some."""
        if self._mirror is None:
            ahead = self._ahead(moved, eps, a)
            return self._judge(ahead, log_w_tm1, self._decode(moved, a, o_t))
        # Not where there are gradients: autograd would free what is read beside.
        with nullcontext() if torch.is_grad_enabled() else kernels.beside(o_t):
            ahead = self._ahead(moved, eps, a)
        log_p_o = self._mirror.log_prob(self._begin_images(moved, a), o_t)
        kernels.meet(o_t)
        return self._judge(ahead, log_w_tm1, log_p_o)

    @fusable
    def _ahead(self, moved: Moved, eps: Tensor, a: Tensor) -> Ahead:
        return self.encoder.ahead(moved, eps, a)

    @fusable
    def _decode(self, moved: Moved, a: Tensor, o_t: Tensor) -> Float[Tensor, "*G N K"]:
        law = self.model.decoder(moved.h_tm1, moved.e, a)
        return law.log_prob(o_t.unsqueeze(moved.h.ndim - 2))

    @fusable
    def _begin_images(self, moved: Moved, a: Tensor) -> Float[Tensor, "*G N K Y X C"]:
        decoder = self.model.image_decoder()
        assert decoder is not None
        x = decoder.begin(torch.cat([moved.e, moved.h_tm1], -1), a)
        return x.unflatten(-1, SMALLEST).movedim(-3, -1).contiguous()

    @fusable
    def _judge(self, ahead: Ahead, log_w_tm1: Tensor, log_p_o: Tensor) -> Evidence:
        return self.encoder.weigh(ahead, log_w_tm1, log_p_o)

    def replay(self, first: Bool[Tensor, "L N"]) -> Replayed:
        inputs, records = self._inputs(first), self._records.until(self.step_count)
        newest = tree.tree_map(lambda x: x[-self.n_steps :], records)
        h_tm1, _, z, e, _ = records.moved
        walk = NormedWalk(
            self._all_weights, inputs.first, records.ancestors, h_tm1, z, e, records.slopes
        )
        a, x = self.embedding.sense(inputs, self.n_steps)
        moved = normed.replay(self.weights, torch.cat([x, a], -1), walk, newest.moved)
        equal = torch.zeros_like(newest.eps[..., 0])  # resampled particles start so
        newest_inputs = a[-self.n_steps :], inputs.o_t[-self.n_steps :]
        seen = self._weigh(moved, newest.eps, equal, *newest_inputs)
        return Replayed(seen.feature, seen.loss)

    @property
    def ancestors(self) -> Int[Tensor, "T N K"]:
        return self._records.until(self.step_count).ancestors


@fusable
def _floor(o_t: Float[Tensor, "N *obs"]) -> Float[Tensor, "N F"]:
    """What the law of such observations has as its floor (core.laws)."""
    return binary_entropy(o_t).sum((-3, -2, -1))[:, None] if o_t.ndim == 4 else o_t[:, :0]
