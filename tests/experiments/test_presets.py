"""Which constants a world gets."""

import gymnasium as gym
import numpy as np
import pytest

from dvrl.envs.config import AtariConfig, GymConfig, MountainHikeConfig
from dvrl.experiments.presets import PRESETS, preset


class Slides(gym.Env):
    """A world that would show images."""

    observation_space = gym.spaces.Box(0, 255, (1, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(2)


@pytest.fixture
def slides():
    gym.register("test/Slides-v0", Slides)
    yield GymConfig("test/Slides-v0")
    gym.registry.pop("test/Slides-v0", None)


@pytest.mark.parametrize("agent", ["dvrl", "rnn"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_gymnasium_world_has_the_constants_of_the_papers_world_that_it_resembles(
    name, agent, slides
):
    def of(world):
        config = preset(name, agent, world)
        return config.encoder, config.learner

    assert of(slides) == of(AtariConfig())
    assert of(GymConfig("CartPole-v1")) == of(MountainHikeConfig())
    assert of(slides) != of(GymConfig("CartPole-v1"))


@pytest.mark.parametrize("agent", ["dvrl", "rnn"])
@pytest.mark.parametrize("world", [MountainHikeConfig(), AtariConfig()])
def test_tuned_has_the_papers_networks(agent, world):
    assert preset("tuned", agent, world).encoder == preset("paper", agent, world).encoder
