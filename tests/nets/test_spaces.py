"""From a world's spaces to sizes, or to a sentence about why not."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from dvrl.nets.heads import CategoricalPolicy, GaussianPolicy
from dvrl.nets.spaces import Spec

VECTOR = Box(-1, 1, (3,))


@pytest.mark.parametrize(
    ("obs", "action", "expected"),
    [
        (VECTOR, Discrete(4), Spec((3,), 4, discrete=True)),
        (VECTOR, Box(-2, 2, (1,)), Spec((3,), 1, discrete=False)),
        (Box(-np.inf, np.inf, (2,)), Box(-np.inf, np.inf, (5,)), Spec((2,), 5, discrete=False)),
        (Box(0, 255, (8,), np.uint8), Discrete(2), Spec((8,), 2, discrete=True)),
    ],
)
def test_vectors_and_choices_become_sizes(obs, action, expected):
    assert Spec.from_spaces(obs, action) == expected


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("CartPole-v1", Spec((4,), 2, discrete=True)),
        ("Pendulum-v1", Spec((3,), 1, discrete=False)),
        ("dvrl/MountainHike-v0", Spec((2,), 2, discrete=False)),
    ],
)
def test_sizes_of_known_worlds(id, expected):
    env = gym.make(id)
    assert Spec.from_spaces(env.observation_space, env.action_space) == expected


@pytest.mark.parametrize(
    "obs",
    [Box(0, 255, (84, 84, 1), np.uint8), Box(-1, 1, ()), Discrete(5), Dict(x=VECTOR)],
    ids=["picture", "number", "choice", "record"],
)
def test_other_observations_are_refused_with_a_way_out(obs):
    with pytest.raises(ValueError, match="the observation space is ") as refusal:
        Spec.from_spaces(obs, Discrete(2))
    sentence = str(refusal.value)
    assert str(obs) in sentence
    assert "supported are vectors" in sentence
    assert "FlattenObservation" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (MultiDiscrete([2, 3]), "supported are Discrete(n) and Box(shape=(n,))"),
        (MultiBinary(3), "supported are Discrete(n) and Box(shape=(n,))"),
        (Box(-1, 1, (2, 2)), "supported are Discrete(n) and Box(shape=(n,))"),
        (Discrete(3, start=1), "its choices must start at 0"),
        (Box(0, 5, (2,), np.int64), "its numbers must be floats"),
    ],
)
def test_other_actions_are_refused_with_the_reason(action, reason):
    with pytest.raises(ValueError, match="the action space is ") as refusal:
        Spec.from_spaces(VECTOR, action)
    sentence = str(refusal.value)
    assert str(action) in sentence
    assert sentence.endswith(reason)
    assert "\n" not in sentence


def test_the_way_out_for_observations_is_one():
    env = gym.wrappers.FlattenObservation(gym.make("FrozenLake-v1"))
    with pytest.raises(ValueError, match="the observation space is Discrete"):
        Spec.from_spaces(env.unwrapped.observation_space, env.action_space)
    spec = Spec.from_spaces(env.observation_space, env.action_space)
    assert spec == Spec((16,), 4, discrete=True)


def test_the_policy_fits_the_actions():
    choice = Spec((3,), 4, discrete=True).policy(8, 1.0, None)
    assert isinstance(choice, CategoricalPolicy)
    assert choice.action_dim == 4
    step = Spec((3,), 2, discrete=False).policy(8, 0.5, 0.25)
    assert isinstance(step, GaussianPolicy)
    assert step.action_dim == 2
    assert step.mean_bound == 0.25
    assert step.log_std.exp().tolist() == pytest.approx([0.5, 0.5])
