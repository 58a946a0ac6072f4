"""Mountain Hike as Gymnasium sees it: one environment, its pictures, and the vector form."""

import math
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from dvrl.envs.config import MountainHikeConfig
from dvrl.envs.mountain_hike import STEPS, HikeNoise, MountainHike, cap, reward_map

ID = "dvrl/MountainHike-v0"


def capped(action: np.ndarray) -> np.ndarray:
    return cap(torch.as_tensor(action)).numpy()


# One environment


def test_the_environment_passes_gymnasiums_checks():
    env = gym.make(ID, sigma=3.0, render_mode="rgb_array").unwrapped
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    # Positions and desired steps have no bounds; that is the only remark.
    remarks = [str(warning.message) for warning in caught]
    unbounded = [r for r in remarks if "infinity" in r or "symmetric and normalized" in r]
    assert remarks == unbounded


def test_an_episode_ends_by_truncation_with_the_75th_step():
    env = gym.make(ID, sigma=3.0)
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(STEPS)]
    assert ends == [(False, False)] * 74 + [(False, True)]


def test_info_tells_the_hidden_position_from_the_first_observation_to_the_last():
    env = gym.make(ID, sigma=0.0)
    obs, info = env.reset(seed=1)
    assert np.array_equal(obs, info["position"])
    action = np.array([3.0, 4.0], np.float32)
    for _ in range(STEPS):
        obs, reward, _, truncated, info = env.step(action)
        assert np.array_equal(obs, info["position"])
        assert obs.dtype == np.float32
        expected = reward_map(torch.as_tensor(info["position"])) - 0.05
        assert reward == pytest.approx(expected.item(), abs=1e-5)
    assert truncated
    # 75 steps of length 1/2 along (3, 4) / 5, and a random walk of standard deviation 0.25 a step
    walked = np.array([-8.5 + 22.5, -8.5 + 30.0])
    assert (abs(info["position"] - walked) < 5 * math.sqrt(1 + STEPS / 16)).all()


def felt(env: gym.Env, actions: np.ndarray, seed: int) -> np.ndarray:
    """The noise of two episodes, recovered from observations, actions and positions."""
    noise = []
    for episode_seed in (seed, None):
        obs, info = env.reset(seed=episode_seed)
        noise += [info["position"] + 8.5, (obs - info["position"]) / 3]
        for action in actions:
            before = info["position"]
            obs, _, _, _, info = env.step(action)
            noise.append((info["position"] - before - capped(action)) / 0.25)
            noise.append((obs - info["position"]) / 3)
    return np.array(noise)


def test_the_noise_depends_on_the_seed_alone():
    wild = np.random.default_rng(0).normal(size=(STEPS, 2)).astype(np.float32)
    env, other = gym.make(ID, sigma=3.0), gym.make(ID, sigma=3.0)
    noise = felt(env, wild, seed=7)
    assert np.allclose(noise, felt(other, np.zeros_like(wild), seed=7), atol=5e-5)
    assert not np.allclose(noise, felt(other, wild, seed=8), atol=0.5)
    first, second = np.split(noise, 2)  # the second episode is not the first one again
    assert not np.allclose(first, second, atol=0.5)


def test_without_a_seed_two_environments_differ():
    one, other = gym.make(ID, sigma=3.0), gym.make(ID, sigma=3.0)
    assert not np.array_equal(one.reset()[0], other.reset()[0])


def test_a_step_before_the_first_reset_is_refused():
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        gym.make(ID, sigma=3.0).unwrapped.step(np.zeros(2, np.float32))


@pytest.mark.parametrize("sigma", [-1.0, math.nan, math.inf])
def test_an_impossible_sigma_is_refused_with_a_sentence(sigma):
    sentence = f"sigma is {sigma}; it must be a number not below 0"
    with pytest.raises(ValueError, match=sentence):
        gym.make(ID, sigma=sigma)
    with pytest.raises(ValueError, match=sentence):
        gym.make_vec(ID, num_envs=2, sigma=sigma)
    with pytest.raises(ValueError, match=sentence):
        MountainHikeConfig(sigma=sigma)


def test_the_config_names_the_spaces_of_the_environment():
    env = gym.make(ID, sigma=3.0)
    assert MountainHikeConfig().spaces() == (env.observation_space, env.action_space)


# Pictures


def pixel(picture: np.ndarray, x: float, y: float) -> list[int]:
    """The colour at a place of the map, which shows [-11, 11]^2 with north up."""
    last = len(picture) - 1
    return picture[int((11 - y) / 22 * last), int((x + 11) / 22 * last)].tolist()


def test_pictures_are_rgb_and_only_drawn_when_asked_for():
    env = gym.make(ID, sigma=3.0, render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (240, 240, 3)
    assert picture.dtype == np.uint8
    blind = gym.make(ID, sigma=3.0).unwrapped
    blind.reset(seed=0)
    assert blind.render() is None


def test_the_picture_shows_the_hiker_and_the_path_behind_it():
    env = gym.make(ID, sigma=0.0, render_mode="rgb_array")
    _, info = env.reset(seed=2)
    start, before = info["position"], env.render()
    assert pixel(before, *start) == [255, 255, 255]
    for _ in range(20):
        _, _, _, _, info = env.step(np.array([1.0, 1.0], np.float32))
    after = env.render()
    assert pixel(after, *info["position"]) == [255, 255, 255]
    assert pixel(after, *start) == [0, 0, 0]
    assert not np.array_equal(before, after)


def test_a_new_episode_is_drawn_on_a_clean_map():
    env = gym.make(ID, sigma=3.0, render_mode="rgb_array")
    env.reset(seed=3)
    first = env.render()
    for _ in range(10):
        env.step(np.array([1.0, 0.0], np.float32))
        env.render()
    env.reset(seed=3)
    assert np.array_equal(env.render(), first)


def test_the_map_is_brighter_where_the_reward_is_higher():
    env = gym.make(ID, sigma=0.0, render_mode="rgb_array")
    env.reset(seed=4)
    picture = env.render()
    places = [(8.0, 5.0), (5.0, 5.0), (0.0, 2.0), (-3.7, -5.0), (4.0, 0.0), (9.0, -9.0)]
    reward = reward_map(torch.tensor(places)).tolist()
    assert sorted(reward, reverse=True) == reward
    red = [pixel(picture, *place)[0] for place in places]
    assert sorted(red, reverse=True) == red
    assert len(set(red)) == len(red)


def test_a_hiker_outside_the_picture_is_not_drawn_and_breaks_nothing():
    env = gym.make(ID, sigma=0.0, render_mode="rgb_array")
    env.reset(seed=5)
    for _ in range(30):
        _, _, _, _, info = env.step(np.array([-1.0, -1.0], np.float32))
    assert (info["position"] < -11.5).all()
    assert not (env.render() == 255).all(-1).any()


# The vector form


def test_the_vector_form_restarts_in_the_same_step():
    envs = gym.make_vec(ID, num_envs=3, sigma=3.0)
    assert envs.num_envs == 3
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    envs.reset(seed=0)
    for t in range(1, 2 * STEPS + 1):
        obs, _, terminated, truncated, info = envs.step(np.zeros((3, 2), np.float32))
        assert obs in envs.observation_space
        assert not terminated.any()
        assert truncated.tolist() == [t % STEPS == 0] * 3
        assert ("final_obs" in info) == ("final_info" in info) == (t % STEPS == 0)
    assert info["_final_obs"].tolist() == info["_final_info"].tolist() == [True] * 3


def test_in_the_vector_form_the_last_observation_is_of_the_old_episode_the_next_of_the_new():
    envs = gym.make_vec(ID, num_envs=2, sigma=0.0)
    envs.reset(seed=1)
    north = np.array([[0.0, 0.5]] * 2, np.float32)
    *_, (obs, reward, _, _, info) = (envs.step(north) for _ in range(STEPS))
    assert np.array_equal(obs, info["position"])
    assert np.array_equal(info["final_obs"], info["final_info"]["position"])
    assert (info["final_obs"][:, 1] > 10).all()  # 75 half steps north
    assert (obs[:, 1] < 0).all()  # back at the foot of the mountain
    assert reward.tolist() == pytest.approx([-6.005] * 2)


def test_the_vector_form_and_the_tensor_batch_are_the_same_world():
    n, sigma = 3, 2.0
    actions = np.random.default_rng(1).normal(size=(STEPS + 5, n, 2)).astype(np.float32)
    envs, hike = gym.make_vec(ID, num_envs=n, sigma=sigma), MountainHike(n, sigma, seed=0)
    obs, info = envs.reset(seed=9)
    position = info["position"]
    begin = HikeNoise(*[torch.zeros(n, 2)] * 4)._replace(
        start=torch.as_tensor(position + 8.5),
        look_start=torch.as_tensor((obs - position) / sigma),
    )
    assert np.allclose(hike.reset(begin).numpy(), obs, atol=1e-5)

    for action in actions:  # the noise the vector form met, given to the tensor batch
        obs, reward, terminated, truncated, info = envs.step(action)
        reached = info["final_info"]["position"] if truncated.all() else info["position"]
        final_obs = info["final_obs"] if truncated.all() else obs
        met = HikeNoise(
            start=info["position"] + 8.5,
            move=(reached - position - capped(action)) / 0.25,
            look=(final_obs - reached) / sigma,
            look_start=(obs - info["position"]) / sigma,
        )
        step = hike.step(torch.as_tensor(action), HikeNoise(*map(torch.as_tensor, met)))
        assert np.allclose(step.obs.numpy(), obs, atol=1e-3)
        assert np.allclose(step.reward.numpy(), reward, atol=1e-3)
        assert np.allclose(step.final_obs.numpy(), final_obs, atol=1e-3)
        assert np.array_equal(step.terminated.numpy(), terminated)
        assert np.array_equal(step.truncated.numpy(), truncated)
        position = info["position"]


def test_one_seed_gives_one_course_of_the_vector_form():
    def course(seed: int | None, envs: gym.vector.VectorEnv) -> np.ndarray:
        obs = [envs.reset(seed=seed)[0]]
        return np.array(obs + [envs.step(np.ones((2, 2), np.float32))[0] for _ in range(80)])

    envs, other = gym.make_vec(ID, num_envs=2, sigma=3.0), gym.make_vec(ID, num_envs=2, sigma=3.0)
    first = course(4, envs)
    assert np.array_equal(first, course(4, other))
    assert not np.array_equal(first, course(5, other))
    assert not np.array_equal(first, course(None, envs))  # goes on, does not repeat
    assert not np.array_equal(first[:, 0], first[:, 1])
