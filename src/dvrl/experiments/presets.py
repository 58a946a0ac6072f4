"""Whole configs by name: `paper` to the letter, `tuned` to learn well, `quick` for two cores."""

from dataclasses import replace
from typing import Any, Literal, get_args

from dvrl.agents.config import PolicyConfig
from dvrl.encoders.config import EncoderConfig, GruConfig, ParticleConfig
from dvrl.envs.config import AtariConfig, GymConfig, MountainHikeConfig, WorldConfig
from dvrl.learners.config import A2CConfig
from dvrl.runs.config import RunConfig

AgentName = Literal["dvrl", "rnn"]
PresetName = Literal["paper", "tuned", "quick"]
AGENTS: tuple[str, ...] = get_args(AgentName)
PRESETS: tuple[str, ...] = get_args(PresetName)


def preset(name: str, agent: str, world: WorldConfig | None = None, **changes: Any) -> RunConfig:
    """The preset's config for an agent in a world (default: Mountain Hike, sigma 3).

    Both agents get the same policy and, but for the paper's learning rates on Atari, the same
    learner. Worlds of images have the constants of Atari, all others those of Mountain Hike.
    `changes` replace fields: `steps=`, `seed=`. Where the preset lets the learning rate fall, it
    does so over the steps of the run.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    if agent not in AGENTS:
        raise ValueError(f"there is no agent {agent!r}; there are {', '.join(AGENTS)}")
    world = world or MountainHikeConfig()
    builders = {"paper": _paper, "tuned": _tuned, "quick": _quick}
    if shows_images(world):
        builders = {"paper": _paper_images, "tuned": _tuned_images, "quick": _quick_images}
    config = replace(builders[name](agent, world), **changes)
    if config.learner.anneal_steps is not None and "learner" not in changes:
        learner = replace(config.learner, anneal_steps=config.steps)
        config = replace(config, learner=learner)
    return config


def shows_images(world: WorldConfig) -> bool:
    """Whether it is seen as images; a Gymnasium environment is made to find out."""
    if isinstance(world, GymConfig):
        return len(world.spaces()[0].shape or ()) > 1
    return isinstance(world, AtariConfig)


def _encoder(agent: str, particle: ParticleConfig, gru: GruConfig) -> EncoderConfig:
    return particle if agent == "dvrl" else gru


def _paper(agent: str, world: WorldConfig) -> RunConfig:
    """Every constant as published (Sec. 4.1 and appendix)."""
    encoder = _encoder(agent, ParticleConfig(), GruConfig())
    return RunConfig(world, encoder, PolicyConfig(), A2CConfig(), steps=25_000_000)


STEADY = A2CConfig(
    gamma=0.95,
    entropy_weight=0.002,
    reward_scale=0.1,
    bootstrap_cuts=True,
    normalise_advantage=True,
)
"""A learner that keeps up with Mountain Hike: docs/deviations.md gives the reasons."""


def _policy(world: WorldConfig) -> PolicyConfig:
    """The bound is in Mountain Hike's units (its cap is 0.5); other worlds have their own."""
    return PolicyConfig(mean_bound=2.0 if isinstance(world, MountainHikeConfig) else None)


def _tuned(agent: str, world: WorldConfig) -> RunConfig:
    """The paper's networks with the steady learner."""
    encoder = _encoder(agent, ParticleConfig(), GruConfig())
    learner = replace(STEADY, n_envs=64, gamma=0.97, lr=6e-4, anneal_steps=3_000_000)
    return RunConfig(world, encoder, _policy(world), learner, steps=3_000_000)


def _quick(agent: str, world: WorldConfig) -> RunConfig:
    """Small networks and a short window: minutes on two cores."""
    particle = ParticleConfig(n_particles=5, h_dim=64, z_dim=64)
    encoder = _encoder(agent, particle, GruConfig(h_dim=128))
    learner = replace(STEADY, n_envs=32, n_grad=10, lr=5e-4, anneal_steps=500_000)
    return RunConfig(world, encoder, _policy(world), learner, steps=500_000)


SEEN = PolicyConfig(batch_norm=True)
"""The policy of an agent that sees images."""


def _paper_images(agent: str, world: WorldConfig) -> RunConfig:
    """Every constant as published for Atari; the number of decisions is not."""
    sizes = {"h_dim": 256, "embed_dim": 128, "batch_norm": True}
    particle = ParticleConfig(n_particles=15, z_dim=256, **sizes)
    learner = A2CConfig(n_grad=50, lr=2e-4 if agent == "dvrl" else 1e-4, elbo_weight=0.1)
    encoder = _encoder(agent, particle, GruConfig(**sizes))
    return RunConfig(world, encoder, SEEN, learner, steps=25_000_000)


def _tuned_images(agent: str, world: WorldConfig) -> RunConfig:
    """The paper's networks with a learner whose belief keeps what it sees (docs/deviations.md)."""
    paper = _paper_images(agent, world)
    learner = replace(
        paper.learner, n_steps=10, lr=7e-4, memory_lr=0.03, elbo_weight=0.01, anneal_steps=5_000_000
    )
    return replace(paper, learner=learner, steps=5_000_000)


def _quick_images(agent: str, world: WorldConfig) -> RunConfig:
    """Small networks, for a look on two cores: too little to learn a game."""
    sizes = {"h_dim": 64, "embed_dim": 64, "batch_norm": True}
    particle = ParticleConfig(n_particles=5, z_dim=64, **sizes)
    learner = A2CConfig(n_grad=10, lr=5e-4, elbo_weight=0.1)
    encoder = _encoder(agent, particle, GruConfig(**sizes))
    return RunConfig(world, encoder, SEEN, learner, steps=50_000, log_every=1_000)
