"""Tiny worlds that must be learned, and cannot be without memory."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from dvrl.agents.actor_critic import ActorCritic
from dvrl.encoders.config import GruConfig, ParticleConfig
from dvrl.envs.gym_worlds import GymWorlds
from dvrl.learners.a2c import A2C
from dvrl.learners.config import A2CConfig
from dvrl.nets.spaces import Spec
from dvrl.rollout.segment import start


class Recall(gym.Env):
    """A sign is shown once; three steps later it must be repeated. By chance: reward 0."""

    observation_space = gym.spaces.Box(-2, 2, (2,), np.float32)

    def __init__(self, discrete: bool) -> None:
        self.discrete = discrete
        box = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2) if discrete else box

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sign, self.t = float(self.np_random.choice([-1.0, 1.0])), 0
        return np.array([self.sign, 0.0], np.float32), {}

    def step(self, action):
        self.t += 1
        last = self.t == 4
        said = (1.0 if action == 1 else -1.0) if self.discrete else float(np.sign(action[0]))
        reward = said * self.sign if last else 0.0
        return np.array([0.0, self.t == 3], np.float32), reward, last, False, {}


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
@pytest.mark.parametrize(
    "encoder",
    [GruConfig(h_dim=24, embed_dim=12), ParticleConfig(3, 24, 4, 12)],
    ids=["rnn", "dvrl"],
)
def test_a_sign_is_remembered_over_three_steps(encoder, discrete):
    torch.manual_seed(0)
    envs = gym.vector.SyncVectorEnv(
        [lambda: Recall(discrete)] * 16, autoreset_mode=AutoresetMode.SAME_STEP
    )
    worlds = GymWorlds(envs, seed=0)
    spec = Spec.from_spaces(envs.single_observation_space, envs.single_action_space)
    built = encoder.build(spec)
    agent = ActorCritic(built, spec.policy(built.feature_dim, 1.0, None))
    config = A2CConfig(n_envs=16, n_steps=4, n_grad=8, lr=3e-3, entropy_weight=0.0, elbo_weight=0.1)
    learner = A2C(config, agent, worlds, torch.Generator().manual_seed(1))
    carry, earned = start(agent, worlds), []
    for _ in range(220):
        carry, segments, _ = learner.window(carry)
        earned += [s.score.sum() / s.over.sum() for s in segments]
    assert sum(earned[:20]) / 20 < 0.5
    assert sum(earned[-40:]) / 40 > 0.8


def test_an_agent_whose_belief_is_reset_every_step_cannot_recall():
    """The control: the same learner without memory stays at chance."""
    torch.manual_seed(0)
    envs = gym.vector.SyncVectorEnv(
        [lambda: Recall(True)] * 16, autoreset_mode=AutoresetMode.SAME_STEP
    )
    worlds = GymWorlds(envs, seed=0)
    spec = Spec.from_spaces(envs.single_observation_space, envs.single_action_space)
    built = GruConfig(h_dim=24, embed_dim=12).build(spec)
    agent = ActorCritic(built, spec.policy(built.feature_dim, 1.0, None))
    config = A2CConfig(n_envs=16, n_steps=1, n_grad=1, lr=3e-3, entropy_weight=0.0)
    learner = A2C(config, agent, worlds, torch.Generator().manual_seed(1))
    carry, earned = start(agent, worlds), []
    for _ in range(1000):
        carry, segments, _ = learner.window(carry)
        carry = carry._replace(first=torch.ones_like(carry.first))
        earned += [s.score.sum() / 16 for s in segments if s.over.any()]
    assert abs(sum(earned[-100:]) / 100) < 0.3
