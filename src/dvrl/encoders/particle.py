"""DVRL's encoder: a belief of K weighted particles (paper Sec. 3.3, Alg. 1)."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dvrl import chance
from dvrl.core import smc, tree
from dvrl.core.laws import log_prob_of_sample
from dvrl.core.scan import scan
from dvrl.encoders.base import BeliefEncoder, Update
from dvrl.encoders.particle_info import ParticleInfo
from dvrl.encoders.recorder import Recorder
from dvrl.models.replay import Moved
from dvrl.models.vrnn import VRNN, GenerativeModel
from dvrl.nets.layers import new_gate_first


class ParticleBelief(NamedTuple):
    """K particles per environment. z_t is not carried: it acts on the future through h_t."""

    h: Float[Tensor, "N K H"]
    log_w: Float[Tensor, "N K"]


class Ahead(NamedTuple):
    """What can be said of particles that have moved before they are compared with what is seen."""

    log_prior: Float[Tensor, "*G N K"]
    log_proposal: Float[Tensor, "*G N K"]
    read: Float[Tensor, "*G N K D"]
    """What the summary reads."""


class Evidence(NamedTuple):
    """What an observation says of particles that have moved; in one step, or in several."""

    feature: Float[Tensor, "*G N F"]
    loss: Float[Tensor, "*G N"]
    log_w: Float[Tensor, "*G N K"]
    vanished: Bool[Tensor, "*G N"]
    log_prior: Float[Tensor, "*G N K"]
    log_decoder: Float[Tensor, "*G N K"]
    log_proposal: Float[Tensor, "*G N K"]

    def info(
        self,
        ancestors: Int[Tensor, "N K"],
        o_mean: Float[Tensor, "N K ..."],
        floor: Float[Tensor, "N F"],
    ) -> ParticleInfo:
        terms = self.log_prior, self.log_decoder, self.log_proposal
        seen = ParticleInfo(self.log_w, ancestors, *terms, self.vanished, o_mean, floor)
        return tree.detach(seen)


class Reader(nn.Module, ABC):
    """Particles into a feature: first what can be done before their weights are known."""

    @abstractmethod
    def ahead(
        self, h: Float[Tensor, "*G N K H"], e: Float[Tensor, "*G N K E"]
    ) -> Float[Tensor, "*G N K D"]:
        """Of their states and embedded latents."""

    @abstractmethod
    def forward(
        self, ahead: Float[Tensor, "*G N K D"], log_w: Float[Tensor, "*G N K"]
    ) -> Float[Tensor, "*G N F"]:
        """The feature."""


class Summary(Reader):
    """The second GRU: reads the particles one after the other, its last state is the feature."""

    def __init__(self, h_dim: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(2 * h_dim + 1, h_dim)

    def ahead(
        self, h: Float[Tensor, "*G N K H"], e: Float[Tensor, "*G N K H"]
    ) -> Float[Tensor, "*G N K G3"]:
        """The gates of all particles' inputs at once: only those of the state must wait."""
        cell, size = self.cell, h.shape[-1]
        of_h = new_gate_first(cell.weight_ih[:, :size])
        of_e = new_gate_first(cell.weight_ih[:, size : 2 * size])
        return F.linear(h, of_h, new_gate_first(cell.bias_ih)) + F.linear(e, of_e)

    def forward(
        self, ahead: Float[Tensor, "*G N K G3"], log_w: Float[Tensor, "*G N K"]
    ) -> Float[Tensor, "*G N H"]:
        """Weights are read as shares."""
        cell = self.cell
        of_weight = new_gate_first(cell.weight_ih[:, -1])
        gates = torch.addcmul(ahead, log_w.softmax(-1)[..., None], of_weight).flatten(0, -3)
        return scan(gates, cell.weight_hh, cell.bias_hh).view(*log_w.shape[:-1], -1)


class ParticleEncoder(BeliefEncoder[ParticleBelief]):
    """Resample, propose, move, weigh, and sum the evidence."""

    h_0: Tensor

    def __init__(
        self,
        model: GenerativeModel,
        summary: Reader,
        n_particles: int,
        h_dim: int,
        resample: smc.Resampler | None = smc.systematic,
        joint: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.summary = summary
        self.n_particles = n_particles
        self.feature_dim = h_dim
        self.resample = resample
        self.joint = joint
        self.register_buffer("h_0", torch.zeros(h_dim), persistent=False)

    def initial(self, n: int) -> ParticleBelief:
        h = self.h_0.expand(n, self.n_particles, -1)
        return ParticleBelief(h, h.new_zeros(n, self.n_particles))

    def update(
        self,
        belief: ParticleBelief,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        generator: torch.Generator,
    ) -> Update:
        model = self.model
        a, x = model.embed_action(a_tm1), model.embed_obs(o_t)

        u = chance.uniform(generator, *belief.log_w.shape)
        prev, ancestors = self.select(belief, u)  # Eq. 15
        q = model.proposal(prev.h, a, x)
        eps = chance.normal(generator, *q.mean.shape)
        z = q.sample(eps)  # Eq. 16
        e = model.embed_latent(z)
        h = model.transition(prev.h, e, a, x)  # Eq. 17
        p_o = model.decoder(prev.h, e, a)
        log_p_o = p_o.log_prob(o_t.unsqueeze(1))
        ahead = self.ahead(Moved(prev.h, q.var, z, e, h), eps, a)
        seen = self.weigh(ahead, prev.log_w, log_p_o)
        o_mean = eps[..., :0] if self.training and o_t.ndim > 2 else p_o.mean
        info = seen.info(ancestors, o_mean, p_o.floor(o_t))
        # Resampling uses the weights' values alone; without their history old decoders can go.
        carried = seen.log_w if self.resample is None else seen.log_w.detach()
        return Update(ParticleBelief(h, carried), seen.feature, seen.loss, info)

    def ahead(
        self, moved: Moved, eps: Float[Tensor, "*G N K Z"], a: Float[Tensor, "*G N D"]
    ) -> Ahead:
        """Densities of z, and what the summary reads; in one step or in several."""
        h_tm1, var, z, e, h = moved
        log_p_z = self.model.prior(h_tm1, a).log_prob(z)
        if not self.joint:  # "No joint optim": the policy must not shape model and particles
            h, e = h.detach(), e.detach()
        return Ahead(log_p_z, log_prob_of_sample(var, eps), self.summary.ahead(h, e))

    def weigh(
        self,
        ahead: Ahead,
        log_w_tm1: Float[Tensor, "*G N K"],
        log_p_o: Float[Tensor, "*G N K"],
    ) -> Evidence:
        """Weights, evidence and summary."""
        log_p_z, log_q_z, read = ahead
        log_w, vanished = smc.revive(log_w_tm1 + log_p_z + log_p_o - log_q_z)  # Eq. 18
        loss = -smc.log_mean_exp(log_w)  # Eq. 19
        feature = self.summary(read, log_w if self.joint else log_w.detach())
        return Evidence(feature, loss, log_w, vanished, log_p_z, log_p_o, log_q_z)

    def noise(
        self, n: int, z_dim: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N K Z"]]:
        """Chance for a step, drawn beforehand: for choosing particles, and for their z."""
        shape = n, self.n_particles
        return chance.uniform(generator, *shape), chance.normal(generator, *shape, z_dim)

    def select(
        self, prev: ParticleBelief, u: Float[Tensor, "N K"]
    ) -> tuple[ParticleBelief, Int[Tensor, "N K"]]:
        """Particles and the log weights they start the step with, mean weight one (Eq. 15).

        Resampled particles start equal. Without resampling each keeps its share, so that the
        steps' evidence telescopes to that of the whole trajectory (Eq. 22).
        """
        n, k = prev.log_w.shape
        if self.resample is None:
            share = prev.log_w - smc.log_mean_exp(prev.log_w)[:, None]
            own = torch.arange(k, device=prev.h.device).expand(n, k)
            return ParticleBelief(prev.h, share), own
        # Ancestor indices are discrete; as in AESMC their score term is dropped.
        ancestors = self.resample(prev.log_w, u)
        return ParticleBelief(smc.take(prev.h, ancestors), torch.zeros_like(prev.log_w)), ancestors

    def memory(self) -> list[nn.Parameter]:
        return self.model.memory()

    def recorder(self) -> Recorder | None:
        """Without resampling the weights, too, would have to be walked back through time; and of
        images nobody has worked it out without normalisation."""
        from dvrl.encoders.move_recorder import MoveRecorder
        from dvrl.encoders.particle_recorder import ParticleRecorder
        from dvrl.models import packed

        model, summary = self.model, self.summary
        if not (self.resample and isinstance(model, VRNN) and isinstance(summary, Summary)):
            return None
        if model.proposal_norm is not None:
            return MoveRecorder(self, model)
        return ParticleRecorder(self, model, summary.cell) if packed.plain(model) else None
