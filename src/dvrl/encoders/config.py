"""Settings of the history encoders (no torch here: the command line reads this)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dvrl import checks

if TYPE_CHECKING:
    from dvrl.encoders.base import BeliefEncoder
    from dvrl.nets.spaces import Spec


@dataclass(frozen=True)
class ParticleConfig:
    """DVRL: a learned model and a particle filter in it (paper Sec. 3.2, 3.3)."""

    n_particles: int = 30
    """K, particles per environment."""
    h_dim: int = 128
    """Size of the recurrent state h and of the summary."""
    z_dim: int = 128
    """Size of the stochastic state z."""
    embed_dim: int = 64
    """Size of embedded actions, and of embedded observations unless they are images."""
    batch_norm: bool = False
    """Normalise between layers by the statistics of a step over all environments (the paper's
    choice for Atari)."""
    resample: Literal["systematic", "stratified", "multinomial", "none"] = "systematic"
    """How ancestors are drawn; "none" keeps and multiplies weights (an ablation)."""
    joint: bool = True
    """Let the policy's and the value's gradient reach model and particles."""
    min_var: float = 1e-4
    """Floor under every learned variance of the model."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "n_particles", "h_dim", "z_dim", "embed_dim")
        checks.positive(self, "min_var")

    def build(self, spec: "Spec") -> "BeliefEncoder":
        from dvrl.core import smc
        from dvrl.encoders.particle import ParticleEncoder, Summary
        from dvrl.models.vrnn import VRNN

        model = VRNN(
            spec.sight(self.embed_dim, self.min_var, self.batch_norm),
            spec.action_dim,
            self.h_dim,
            self.z_dim,
            self.embed_dim,
            self.min_var,
            self.batch_norm,
        )
        schemes = {
            "systematic": smc.systematic,
            "stratified": smc.stratified,
            "multinomial": smc.multinomial,
            "none": None,
        }
        return ParticleEncoder(
            model,
            Summary(self.h_dim),
            self.n_particles,
            self.h_dim,
            schemes[self.resample],
            self.joint,
        )


@dataclass(frozen=True)
class GruConfig:
    """The recurrent baseline "RNN" (paper Eq. 12)."""

    h_dim: int = 256
    """Size of the recurrent state."""
    embed_dim: int = 64
    """Size of embedded actions, and of embedded observations unless they are images."""
    batch_norm: bool = False
    """Normalise between layers by the statistics of a step over all environments (the paper's
    choice for Atari)."""
    reconstruct: bool = False
    """Add the reconstruction loss of Alg. 2 (weighed by lambda^E)."""
    min_var: float = 1e-4
    """Floor under the decoder's variance."""

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "h_dim", "embed_dim")
        checks.positive(self, "min_var")

    def build(self, spec: "Spec") -> "BeliefEncoder":
        from dvrl.encoders.gru import GruEncoder

        sight = spec.sight(self.embed_dim, self.min_var, self.batch_norm)
        # Built first, as it always was: the seed's weights are to stay the seed's weights.
        decoder = sight.decoder(self.h_dim, self.embed_dim) if self.reconstruct else None
        return GruEncoder(
            sight, spec.action_dim, self.h_dim, self.embed_dim, self.batch_norm, decoder
        )


EncoderConfig = ParticleConfig | GruConfig
