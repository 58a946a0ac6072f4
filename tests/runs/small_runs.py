"""A run small enough to train inside a test."""

from dvrl.encoders.config import GruConfig, ParticleConfig
from dvrl.envs.config import MountainHikeConfig
from dvrl.learners.config import A2CConfig
from dvrl.runs.config import RunConfig

LEARNER = A2CConfig(n_envs=2, n_steps=5, n_grad=10, bootstrap_cuts=True, reward_scale=0.1)


def tiny(agent: str = "dvrl", steps: int = 400) -> RunConfig:
    encoder = ParticleConfig(3, 8, 4, 6) if agent == "dvrl" else GruConfig(8, 6)
    return RunConfig(MountainHikeConfig(3.0), encoder, learner=LEARNER, steps=steps, log_every=100)
