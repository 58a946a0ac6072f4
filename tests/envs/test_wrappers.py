"""Environments seen less well: what is shown, and that nothing else changes."""

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from math import sqrt

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import DtypeObservation, FlattenObservation, ReshapeObservation

import dvrl
from dvrl.envs.wrappers import FlickerObservation, MaskObservation, NoisyObservation

Wrap = Callable[[gym.Env], gym.Env]
WRAPPERS: dict[str, Wrap] = {
    "flicker": lambda env: FlickerObservation(env, 0.4),
    "noise": lambda env: NoisyObservation(env, 0.5),
    "mask": lambda env: MaskObservation(env, [2, 0]),
}
CHANCES = {name: WRAPPERS[name] for name in ("flicker", "noise")}

every_wrapper = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
every_chance = pytest.mark.parametrize("wrap", CHANCES.values(), ids=CHANCES)


class Counter(gym.Env):
    """Shows the number of steps so far, plus one, in every place."""

    action_space = Discrete(2)

    def __init__(self, space: Box) -> None:
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 1
        return self._shown(), {}

    def step(self, action):
        self.age += 1
        return self._shown(), 0.0, False, False, {}

    def _shown(self) -> np.ndarray:
        space = self.observation_space
        return np.full(space.shape, self.age % 200, space.dtype)


class Dice(gym.Env):
    """Rolls its own dice at every step, and shows them."""

    observation_space = Box(0, 1, (3,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._rolled(), {}

    def step(self, action):
        rolled = self._rolled()
        return rolled, float(rolled[0]), bool(rolled[1] < 0.02), False, {"rolled": rolled}

    def _rolled(self) -> np.ndarray:
        return self.np_random.random(3, np.float32)


def counter(low: float = 0, high: float = 255, shape=(3,), dtype: type = np.float32) -> Counter:
    return Counter(Box(low, high, shape, dtype))


def seen(env: gym.Env, length: int, seed: int | None = 0) -> np.ndarray:
    """`length` observations, that of `reset` the first; ended episodes begin again."""
    observations = [env.reset(seed=seed)[0]]
    while len(observations) < length:
        obs, _, terminated, truncated, _ = env.step(0)
        observations.append(env.reset()[0] if terminated or truncated else obs)
    return np.stack(observations)


# Meaning


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_whole_observations_are_blank_as_often_as_asked_and_the_others_untouched(p):
    length = 4000
    shown, true = seen(FlickerObservation(counter(), p), length), seen(counter(), length)
    blank = (shown == 0).all(1)
    assert np.array_equal(shown[~blank], true[~blank])
    assert not shown[blank].any()
    assert abs(blank.mean() - p) < 5 * sqrt(p * (1 - p) / length)
    # one after the other is as likely as by chance
    assert abs((blank[1:] & blank[:-1]).mean() - p * p) < 5 * p / sqrt(length)


def test_the_observation_of_a_reset_flickers_too():
    env, length = FlickerObservation(counter(), 0.5), 600
    starts = np.array([env.reset(seed=seed)[0].any() for seed in range(length)])
    assert abs(starts.mean() - 0.5) < 5 * 0.5 / sqrt(length)


def test_probability_0_shows_all_and_probability_1_nothing():
    assert np.array_equal(seen(FlickerObservation(counter(), 0), 50), seen(counter(), 50))
    assert not seen(FlickerObservation(counter(), 1), 50).any()


def test_images_are_blanked_as_bytes():
    env = FlickerObservation(counter(shape=(4, 4, 3), dtype=np.uint8))
    shown = seen(env, 100)
    assert shown.dtype == np.uint8
    assert env.observation_space == Box(0, 255, (4, 4, 3), np.uint8)
    assert 20 < sum(not obs.any() for obs in shown) < 80


@pytest.mark.parametrize(("low", "high", "bounds"), [(1, 9, (0, 9)), (-9, -1, (-9, 0))])
def test_bounds_that_exclude_zero_are_widened_to_a_blank_observation(low, high, bounds):
    space = FlickerObservation(counter(low, high)).observation_space
    assert space == Box(*bounds, (3,), np.float32)
    assert np.zeros(3, np.float32) in space


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_is_gaussian_with_the_standard_deviation_asked_for(dtype):
    env, length = NoisyObservation(counter(dtype=dtype), std=0.5), 4000
    shown = seen(env, length)
    assert shown.dtype == dtype
    noise = (shown - seen(counter(dtype=dtype), length)) / 0.5
    n = noise.size
    assert abs(noise.mean()) < 5 / sqrt(n)
    assert abs(noise.var() - 1) < 5 * sqrt(2 / n)
    assert abs((noise**4).mean() - 3) < 5 * sqrt(96 / n)
    everything = np.concatenate([noise[1:], noise[:-1]], 1)  # over time and coordinates
    assert abs(np.corrcoef(everything.T) - np.eye(6)).max() < 5 / sqrt(length)


def test_noise_leaves_every_bound_and_the_space_says_so():
    space = NoisyObservation(counter(0, 255), 1).observation_space
    assert space == Box(-np.inf, np.inf, (3,), np.float32)
    assert np.array_equal(seen(NoisyObservation(counter(), 0), 50), seen(counter(), 50))


def test_a_mask_keeps_the_numbers_at_its_indices_in_its_order():
    whole = gym.make("CartPole-v1")
    masked = MaskObservation(gym.make("CartPole-v1"), (2, 0))
    assert np.array_equal(seen(masked, 60), seen(whole, 60)[:, [2, 0]])
    space = masked.observation_space
    assert space.shape == (2,)
    assert space.dtype == np.float32
    assert np.array_equal(space.low, whole.observation_space.low[[2, 0]])
    assert np.array_equal(space.high, whole.observation_space.high[[2, 0]])


def test_a_mask_of_whole_numbers_stays_one():
    masked = MaskObservation(counter(dtype=np.int64), np.array([1]))
    assert masked.observation_space == Box(0, 255, (1,), np.int64)
    assert seen(masked, 3).tolist() == [[1], [2], [3]]


# The environment within


@every_wrapper
def test_what_the_environment_does_is_as_it_was_without_the_wrapper(wrap):
    bare, wrapped = Dice(), wrap(Dice())
    bare.reset(seed=5), wrapped.reset(seed=5)
    for _ in range(200):
        *_, info = after = bare.step(0)
        *_, told = within = wrapped.step(0)
        assert within[1:4] == after[1:4]
        assert np.array_equal(told["rolled"], info["rolled"])
        if after[2]:
            bare.reset(), wrapped.reset()
    assert bare.np_random.bit_generator.state == wrapped.unwrapped.np_random.bit_generator.state


@every_wrapper
def test_gymnasium_finds_nothing_wrong(wrap):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(wrap(Dice()), skip_render_check=True)
    # That there is a wrapper, and that noise has no bounds; nothing else.
    remarks = [str(warning.message) for warning in caught]
    assert all("unwrapped version" in r or "infinity" in r for r in remarks), remarks


@every_wrapper
@pytest.mark.parametrize("through_json", [False, True])
def test_a_spec_makes_the_same_environment_again(wrap, through_json):
    env = wrap(gym.make("CartPole-v1"))
    spec = EnvSpec.from_json(env.spec.to_json()) if through_json else env.spec
    again = gym.make(spec)
    assert type(again) is type(env)
    assert again.observation_space == env.observation_space
    assert np.array_equal(seen(again, 100), seen(env, 100))


def test_wrappers_stack_and_a_spec_knows_them_all():
    env = gym.make("CartPole-v1")
    for wrap in WRAPPERS.values():
        env = wrap(env)
    again = gym.make(env.spec)
    assert str(again) == str(env)
    assert np.array_equal(seen(again, 50), seen(env, 50))


# Chance


@every_chance
def test_one_seed_gives_one_course_and_another_seed_another(wrap):
    def course(seed: int) -> np.ndarray:
        return seen(wrap(Dice()), 100, seed)

    assert np.array_equal(course(3), course(3))
    assert not np.array_equal(course(3), course(4))


@every_chance
def test_a_reset_without_a_seed_goes_on_with_the_chance_there_is(wrap):
    env = wrap(counter())
    seen(env, 10, seed=3)
    assert not np.array_equal(seen(env, 50, seed=None), seen(env, 50, seed=3))


@every_chance
def test_unseeded_wrappers_differ(wrap):
    one, other = (seen(wrap(counter()), 100, seed=None) for _ in range(2))
    assert not np.array_equal(one, other)


def test_the_chance_of_a_wrapper_is_neither_the_environments_nor_another_wrappers():
    flicker, noise, dice = FlickerObservation(counter()), NoisyObservation(counter(), 1.0), Dice()
    for env in (flicker, noise, dice):
        env.reset(seed=11)
    streams = flicker.chance, noise.chance, dice.np_random
    # a stream of PCG64 is told by its increment, however much was drawn
    assert len({chance.bit_generator.state["state"]["inc"] for chance in streams}) == 3


@every_chance
def test_chance_put_back_goes_on_as_it_would_have(wrap):
    env = wrap(counter())
    seen(env, 30)
    state = env.chance.bit_generator.state
    expected = [env.step(0)[0] for _ in range(60)]
    again = wrap(counter())
    again.reset()
    again.unwrapped.age = 30
    again.chance.bit_generator.state = state
    assert np.array_equal([again.step(0)[0] for _ in range(60)], expected)


# Refusals


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_a_probability_outside_0_and_1_is_refused(p):
    with pytest.raises(ValueError, match=r"^p_blank is .*; it must lie between 0 and 1$"):
        FlickerObservation(counter(), p)


@pytest.mark.parametrize("std", [-1.0, float("inf"), float("nan")])
def test_a_standard_deviation_that_is_none_is_refused(std):
    with pytest.raises(ValueError, match=r"^std is .*; it must be a number not below 0$"):
        NoisyObservation(counter(), std)


@pytest.mark.parametrize("keep", [[], [3], [-1], [0, 0], [True, False, True]], ids=str)
@pytest.mark.parametrize("shape", ["a list", "an array"])
def test_a_mask_that_names_no_numbers_of_the_observation_is_refused(keep, shape):
    with pytest.raises(ValueError, match=rf"^keep is {re.escape(str(keep))}; it must list one or"):
        MaskObservation(counter(), np.array(keep) if shape == "an array" else keep)


@pytest.mark.parametrize("keep", [1, [[0]], [0.0]], ids=str)
def test_a_mask_is_a_list_of_whole_numbers(keep):
    with pytest.raises(ValueError, match=r"different indices, each at least 0 and below 3$"):
        MaskObservation(counter(), np.array(keep))


@every_wrapper
def test_only_boxes_are_wrapped(wrap):
    env = gym.make("CliffWalking-v1")
    with pytest.raises(ValueError, match=r"^the observation space is Discrete\(48\); it must be"):
        wrap(env)
    flat = DtypeObservation(FlattenObservation(env), np.float32)
    assert seen(wrap(flat), 3).ndim == 2


def test_noise_on_whole_numbers_is_refused_with_the_way_out():
    bytes_ = counter(dtype=np.uint8)
    with pytest.raises(ValueError, match=r"uint8\); noise needs floats: wrap .*DtypeObservation"):
        NoisyObservation(bytes_, 1)
    assert seen(NoisyObservation(DtypeObservation(bytes_, np.float32), 1), 5).dtype == np.float32


def test_a_mask_of_an_image_is_refused_with_the_way_out():
    image = ReshapeObservation(counter(shape=(4,)), (2, 2))
    with pytest.raises(ValueError, match=r"a mask needs a vector.*FlattenObservation first"):
        MaskObservation(image, [0])
    flat = FlattenObservation(image)
    assert seen(MaskObservation(flat, [0]), 5).shape == (5, 1)


# The package


def test_the_package_offers_them_without_loading_torch():
    assert dvrl.FlickerObservation is FlickerObservation
    code = "import sys, dvrl; dvrl.MaskObservation; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
