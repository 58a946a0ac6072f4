"""Flickering vector environments: what is blank, by whose chance, and that it can be put back."""

from math import sqrt

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dvrl.chance import WHOLE, Share
from dvrl.envs.config import GymConfig
from dvrl.envs.flicker import AHEAD, STREAM, FlickerVector
from dvrl.envs.gym_worlds import GymWorlds

N = 4
MEAN_LENGTH = 5


class Dice(gym.Env):
    """Two rolls of its own dice, never zero; each step may be the last of its episode."""

    observation_space = gym.spaces.Box(1, 2, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._rolled(), {}

    def step(self, action):
        reward = float(self.np_random.random())
        ends = bool(self.np_random.random() < 1 / MEAN_LENGTH)
        return self._rolled(), reward, ends, False, {}

    def _rolled(self) -> np.ndarray:
        return 1 + self.np_random.random(2, np.float32)


class Bytes(Dice):
    """The same as an image."""

    observation_space = gym.spaces.Box(0, 255, (1, 3, 3), np.uint8)

    def _rolled(self) -> np.ndarray:
        return self.np_random.integers(1, 256, (1, 3, 3), np.uint8)


class SendDice(SyncVectorEnv):
    """Dice that are sent actions, and give their answer when it is asked for."""

    def send(self, actions: np.ndarray) -> None:
        self.sent = actions

    def recv(self):
        return self.step(self.sent)


def dice(n: int = N, kind: type[gym.Env] = Dice, vector: type = SyncVectorEnv) -> SyncVectorEnv:
    return vector([kind] * n, autoreset_mode=AutoresetMode.SAME_STEP)


def flickering(
    p: float = 0.5, seed: int = 0, n: int = N, share: Share = WHOLE, kind: type[gym.Env] = Dice
) -> FlickerVector:
    return FlickerVector(dice(n, kind), p, seed, share)


NOTHING = np.zeros(N, np.int64)


def course(envs, length: int, seed: int | None = 0) -> list[tuple]:
    """What `reset` and `length` steps answer; the first has only observation and info."""
    answers = [envs.reset(seed=seed)]
    return answers + [envs.step(np.zeros(envs.num_envs, np.int64)) for _ in range(length)]


def observations(answers: list[tuple]) -> np.ndarray:
    return np.stack([answer[0] for answer in answers])


def finals(answers: list[tuple]) -> list[tuple[int, int, np.ndarray]]:
    """Time, row and last observation of every episode that ended."""
    return [
        (t, row, answer[-1]["final_obs"][row])
        for t, answer in enumerate(answers)
        if t and answer[2].any()
        for row in np.flatnonzero(answer[2])
    ]


def same_finals(one: list[tuple], other: list[tuple]) -> bool:
    pairs = zip(finals(one), finals(other), strict=True)
    return all(a[:2] == b[:2] and np.array_equal(a[2], b[2]) for a, b in pairs)


def blank(obs: np.ndarray) -> np.ndarray:
    """Which observations show nothing; none shows a part."""
    zero = obs.reshape(*obs.shape[:2], -1) == 0
    assert np.array_equal(zero.all(-1), zero.any(-1))
    return zero.all(-1)


def shown(envs: FlickerVector, length: int = 60) -> np.ndarray:
    return ~blank(observations(course(envs, length)))


# What is shown


@pytest.mark.parametrize("kind", [Dice, Bytes])
@pytest.mark.parametrize("p", [0.2, 0.5])
def test_observations_are_blank_as_often_as_asked_in_every_environment(p, kind):
    length = 1000
    is_blank = ~shown(flickering(p, kind=kind), length)
    spread = sqrt(p * (1 - p) / length)
    assert (abs(is_blank.mean(0) - p) < 5 * spread).all()
    # no environment tells of another, no step of the next
    pairs = np.concatenate([is_blank[1:], is_blank[:-1]], 1)
    assert abs(np.corrcoef(pairs.T) - np.eye(2 * N)).max() < 5 / sqrt(length)


def test_it_tells_what_it_blanked_even_where_nothing_was_to_be_seen():
    class Night(Dice):
        def _rolled(self) -> np.ndarray:
            return np.zeros(2, np.float32)

    days, nights = flickering(), flickering(kind=Night)
    for envs in (days, nights):
        envs.reset(seed=0)
    told = []
    for _ in range(20):
        obs, *_ = days.step(NOTHING)
        nights.step(NOTHING)
        assert np.array_equal(days.blank, ~obs.any(1))
        assert np.array_equal(nights.blank, days.blank)
        told.append(days.blank)
    assert 0.3 < np.mean(told) < 0.7


def test_the_observations_of_a_reset_flicker_too():
    envs, rounds = flickering(), 150
    first = np.stack([envs.reset(seed=seed)[0] for seed in range(rounds)])
    assert abs(blank(first).mean() - 0.5) < 5 * 0.5 / sqrt(rounds * N)


def test_probability_0_shows_all_and_probability_1_nothing():
    bare = course(dice(), 40)
    everything, nothing = course(flickering(0.0), 40), course(flickering(1.0), 40)
    assert np.array_equal(observations(everything), observations(bare))
    assert not observations(nothing).any()
    assert same_finals(everything, bare)
    assert len(finals(nothing)) > 0
    assert not any(last.any() for _, _, last in finals(nothing))


# The environments within


@pytest.mark.parametrize("kind", [Dice, Bytes])
def test_what_is_shown_is_what_the_environments_show_and_all_else_is_theirs(kind):
    bare, flicker = course(dice(kind=kind), 200), course(flickering(kind=kind), 200)
    true, seen = observations(bare), observations(flicker)
    assert seen.dtype == true.dtype
    assert np.array_equal(seen[~blank(seen)], true[~blank(seen)])
    for ours, theirs in zip(flicker[1:], bare[1:], strict=True):
        assert all(map(np.array_equal, ours[1:4], theirs[1:4]))
        assert ours[-1].keys() == theirs[-1].keys()


def test_environments_that_are_sent_actions_flicker_as_those_that_are_stepped():
    stepped = flickering()
    sent = FlickerVector(dice(vector=SendDice), 0.5, seed=0)
    assert np.array_equal(stepped.reset(seed=0)[0], sent.reset(seed=0)[0])
    for _ in range(30):
        sent.send(NOTHING)
        assert np.array_equal(stepped.step(NOTHING)[0], sent.recv()[0])
    assert not hasattr(stepped, "send")  # nothing is offered that is not there


def test_what_was_handed_out_and_what_the_environments_keep_are_left_alone():
    envs = FlickerVector(dice(), 1.0, seed=0)
    envs.env.copy = False  # it hands out its own memory
    handed = [envs.reset(seed=0)[0]]
    handed += [envs.step(NOTHING)[0] for _ in range(5)]
    assert envs.env._observations.all()
    assert not any(obs.any() for obs in handed)


@pytest.mark.parametrize("vector", [SyncVectorEnv, SendDice])
@pytest.mark.parametrize("kind", [Dice, Bytes])
def test_worlds_show_what_flickering_environments_show(kind, vector):
    scale = 255 if kind is Bytes else 1
    answers = course(flickering(kind=kind), 100)
    worlds = GymWorlds(FlickerVector(dice(kind=kind, vector=vector), 0.5, seed=0), seed=0)
    assert np.array_equal(worlds.reset(), answers[0][0] / np.float32(scale))
    last = {(t, row): last for t, row, last in finals(answers)}
    for t, (obs, *_) in enumerate(answers[1:], 1):
        step = worlds.step(torch.from_numpy(NOTHING))
        assert np.array_equal(step.obs, obs / np.float32(scale))
        assert np.array_equal(worlds.envs.blank, ~obs.reshape(N, -1).any(1))
        shown = np.stack([last.get((t, row), obs[row]) for row in range(N)])
        assert np.array_equal(worlds.seen(step.final_obs), shown / np.float32(scale))


# Final observations


def test_final_observations_have_draws_of_their_own():
    bare, answers = course(dice(), 1500), course(flickering(), 1500)
    true = {(t, row): last for t, row, last in finals(bare)}
    last_blank, next_blank = [], []
    for t, row, last in finals(answers):
        last_blank.append(not last.any())
        next_blank.append(not answers[t][0][row].any())
        assert not last.any() or np.array_equal(last, true[t, row])
    assert len(last_blank) == len(true) > 1000
    spread = 1 / sqrt(len(true))
    assert abs(np.mean(last_blank) - 0.5) < 5 * 0.5 * spread
    assert abs(np.corrcoef(last_blank, next_blank)[0, 1]) < 5 * spread


def test_where_no_episode_ended_there_is_still_no_final_observation():
    for answer in course(flickering(), 60)[1:]:
        if "final_obs" in answer[-1]:
            missing = [last is None for last in answer[-1]["final_obs"]]
            assert missing == (~answer[2]).tolist()


# Chance


def test_one_seed_gives_one_course_whatever_the_environments_do():
    def seen(seed: int, worlds: int) -> np.ndarray:
        return ~blank(observations(course(flickering(seed=seed), 60, seed=worlds)))

    assert np.array_equal(seen(0, worlds=1), seen(0, worlds=2))
    assert not np.array_equal(seen(0, worlds=1), seen(1, worlds=1))


def test_the_flicker_is_not_the_chance_that_the_same_seed_gives_elsewhere():
    length, chance = 1000, torch.Generator().manual_seed(0)
    rolls = [torch.rand(2, N, generator=chance)[0].numpy() for _ in range(length + 1)]
    is_shown = shown(flickering(seed=0), length)
    told = np.corrcoef(np.concatenate([rolls, is_shown], 1).T)[:N, N:]
    assert abs(told).max() < 5 / sqrt(length)


def test_a_reset_does_not_begin_the_flicker_anew():
    envs = flickering()
    first, second = shown(envs), shown(envs)
    assert not np.array_equal(first, second)


def test_the_draws_are_two_for_every_environment_and_answer_one_answer_after_the_other():
    envs, by_hand = flickering(0.3, seed=5), torch.Generator().manual_seed(5 ^ STREAM)
    seen = np.zeros((0, *dice().observation_space.shape))
    for t in range(3 * AHEAD + 1):
        blank = envs.look(seen)
        drawn = torch.rand(2, N, generator=by_hand).numpy() < 0.3
        assert np.array_equal(blank, drawn)
        assert envs.clear is seen
        assert envs.blank is blank.obs
        if t % 7 == 0:  # who asks for the stream does not meet what was drawn ahead
            assert torch.equal(envs.generator.get_state(), by_hand.get_state())


@pytest.mark.parametrize("length", [0, 20, AHEAD - 1, AHEAD])
def test_a_stream_put_back_goes_on_as_it_would_have(length):
    envs = flickering()
    course(envs, length)
    state = envs.generator.get_state()
    expected = shown(envs)
    again = flickering(seed=77)
    course(again, 3)  # it has drawn ahead, too
    again.generator.set_state(state)
    assert np.array_equal(shown(again), expected)
    assert not np.array_equal(shown(again), expected)


def test_restored_worlds_flicker_on_though_their_episodes_begin_anew():
    def worlds() -> GymWorlds:
        return GymConfig("CartPole-v1", flicker=0.5).make(N, 0, torch.device("cpu"))

    def seen(worlds: GymWorlds) -> torch.Tensor:
        first = [worlds.reset()]
        first += [worlds.step(torch.zeros(N).long()).obs for _ in range(40)]
        return torch.stack(first).any(-1)

    one = worlds()
    seen(one)
    again = worlds()
    again.restore({name: value.clone() for name, value in one.state().items()})
    assert torch.equal(seen(one), seen(again))


@pytest.mark.parametrize("count", [2, 4])
def test_every_environment_meets_the_same_flicker_however_many_processes_there_are(count):
    part = N // count
    parts = [shown(flickering(n=part, share=Share(index, count))) for index in range(count)]
    assert np.array_equal(np.concatenate(parts, 1), shown(flickering()))


@pytest.mark.parametrize("p", [-0.01, 1.01, float("nan")])
def test_a_probability_outside_0_and_1_is_refused(p):
    with pytest.raises(ValueError, match=r"^p_blank is .*; it must lie between 0 and 1$"):
        flickering(p)
