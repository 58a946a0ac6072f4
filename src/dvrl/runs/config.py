"""The settings of one run, and their form on disk (no torch here: the command line reads this)."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from dvrl import checks
from dvrl.agents.config import PolicyConfig
from dvrl.encoders.config import EncoderConfig, GruConfig, ParticleConfig
from dvrl.envs.config import AtariConfig, GymConfig, MountainHikeConfig, WorldConfig
from dvrl.learners.config import A2CConfig

KINDS = {
    cls.__name__: cls
    for cls in (
        MountainHikeConfig,
        GymConfig,
        AtariConfig,
        ParticleConfig,
        GruConfig,
        PolicyConfig,
        A2CConfig,
    )
}

LATER = frozenset({"memory_lr", "memory_steps"})
"""Fields that configs of earlier versions lack. Their defaults are what was done then."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's numbers."""

    world: WorldConfig = field(default_factory=MountainHikeConfig)
    """The world to act in."""
    encoder: EncoderConfig = field(default_factory=ParticleConfig)
    """How history becomes a belief."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """How the belief becomes an action."""
    learner: A2CConfig = field(default_factory=A2CConfig)
    """How it learns."""
    seed: int = 0
    """Seed of weights, worlds and chance."""
    steps: int = 1_000_000
    """Environment steps over all environments; a run may be continued to more."""
    log_every: int = 5_000
    """Environment steps per line of metrics."""

    def __post_init__(self) -> None:
        checks.at_least(self, 0, "seed")
        if self.seed >= 2**32:
            raise ValueError(f"seed is {self.seed}; it must be below 2**32")
        checks.at_least(self, 1, "steps", "log_every")
        if self.normalised and self.learner.n_envs < 2:
            raise ValueError(
                "n_envs is 1 and batch norm centres over environments; n_envs must be at least 2, "
                "or encoder.batch_norm and policy.batch_norm off"
            )

    @property
    def normalised(self) -> bool:
        """Whether anything is normalised over environments."""
        return self.encoder.batch_norm or self.policy.batch_norm


def to_data(config: RunConfig) -> dict[str, Any]:
    """JSON-ready, with the class name of every part beside its fields."""
    data: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            value = {"kind": type(value).__name__} | dataclasses.asdict(value)
        data[f.name] = value
    return data


def from_data(data: dict[str, Any], source: str) -> RunConfig:
    """The inverse of `to_data`; `source` is named when something does not fit."""
    try:
        check_fields(data, RunConfig, "the run")
        parts = {}
        for name in ("world", "encoder", "policy", "learner"):
            part = dict(data[name])
            cls = KINDS.get(part.pop("kind", None))
            if cls is None:
                raise ValueError(f"{name} has no known kind")
            check_fields(part, cls, name)
            parts[name] = cls(**part)
        return RunConfig(**data | parts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source} is not the config of a dvrl run ({error})") from error


def check_fields(data: dict[str, Any], cls: type, name: str) -> None:
    """Every field is there, but for those added later, and no other."""
    fields = {f.name for f in dataclasses.fields(cls)}
    wrong = [f"{field} is missing" for field in sorted(fields - set(data) - LATER)]
    wrong += [f"{field} is unknown" for field in sorted(set(data) - fields)]
    if wrong:
        raise ValueError(f"in {name} {', '.join(wrong)}")


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """Where two configs would give different numbers, as `name: old -> new`."""
    a, b = _flat(to_data(old)), _flat(to_data(new))
    return [
        f"{name}: {a.get(name)} -> {b.get(name)}"
        for name in sorted(a.keys() | b.keys())
        if name != "steps" and a.get(name) != b.get(name)
    ]


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": v for inner, v in value.items()}
        else:
            flat[name] = value
    return flat
