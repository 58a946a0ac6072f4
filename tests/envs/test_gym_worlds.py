"""Gymnasium's environments as worlds of tensors."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dvrl.envs.config import GymConfig
from dvrl.envs.gym_worlds import GymWorlds


class Notebook(gym.Env):
    """Writes down every seed and action it is given; its episodes last three steps."""

    observation_space = gym.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gym.spaces.Box(*np.array([[-1.0, 0.5], [2.0, np.inf]], np.float32))

    def __init__(self) -> None:
        self.seeds: list[int | None] = []
        self.actions: list[list[float]] = []
        self.age = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray):
        self.actions.append(action.tolist())
        self.age += 1
        return np.full(1, self.age, np.float32), 0.5, self.age == 3, False, {}


def notebooks(n: int, seed: int = 0) -> GymWorlds:
    return GymWorlds(SyncVectorEnv([Notebook] * n, autoreset_mode=AutoresetMode.SAME_STEP), seed)


def first_end(worlds: GymWorlds, action: torch.Tensor, limit: int):
    """The steps up to the first in which an episode ends."""
    worlds.reset()
    steps = []
    for _ in range(limit):
        steps.append(worlds.step(action))
        if (steps[-1].terminated | steps[-1].truncated).any():
            return steps
    raise AssertionError(f"no episode ended in {limit} steps")


class Scoreboard(Notebook):
    """Tells things under names that others use, too."""

    def step(self, action: np.ndarray):
        *answer, _ = super().step(action)
        return *answer, {"score": 1000.0 * self.age, "over": "the third inning"}


def test_what_an_environment_tells_beside_its_rewards_is_its_own_affair():
    envs = SyncVectorEnv([Scoreboard] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    steps = first_end(GymWorlds(envs, 0), torch.zeros(2, 2), 5)
    assert [step.score.tolist() for step in steps] == [[0.5, 0.5]] * 3
    assert [step.over.tolist() for step in steps] == [[False] * 2] * 2 + [[True] * 2]


# Ends


def test_a_fallen_pole_is_seen_in_the_final_observation_and_the_upright_one_in_the_next():
    steps = first_end(GymWorlds.make("CartPole-v1", 8, seed=0), torch.zeros(8).long(), 30)
    *before, last = steps
    fallen, standing = last.terminated, ~last.terminated
    assert (last.final_obs[fallen, 2].abs() > 0.2094).all()  # 12 degrees
    assert (last.obs[fallen].abs() <= 0.05).all()
    assert torch.equal(last.final_obs[standing], last.obs[standing])
    assert not last.truncated.any()
    assert all(torch.equal(step.final_obs, step.obs) for step in before)


def test_every_row_is_the_environment_with_seed_plus_row_stepped_alone():
    n, seed, length = 3, 11, 40
    choices = torch.randint(2, (length, n), generator=torch.Generator().manual_seed(0))
    worlds = GymWorlds.make("CartPole-v1", n, seed)
    first = worlds.reset()
    steps = [worlds.step(choice) for choice in choices]
    for row in range(n):
        env = gym.make("CartPole-v1")
        obs, _ = env.reset(seed=seed + row)
        assert np.array_equal(first[row].numpy(), obs)
        for choice, step in zip(choices, steps, strict=True):
            obs, reward, terminated, truncated, _ = env.step(choice[row].item())
            assert np.array_equal(step.final_obs[row].numpy(), obs)
            assert step.reward[row] == reward
            assert (step.terminated[row], step.truncated[row]) == (terminated, truncated)
            if terminated or truncated:
                obs, _ = env.reset()
            assert np.array_equal(step.obs[row].numpy(), obs)


def test_a_pendulum_is_cut_after_200_steps_and_swings_on_in_its_final_observation():
    steps = first_end(GymWorlds.make("Pendulum-v1", 2, seed=0), torch.zeros(2, 1), 201)
    last = steps[-1]
    assert len(steps) == 200
    assert last.truncated.all()
    assert not last.terminated.any()
    assert not torch.allclose(last.final_obs, last.obs, atol=1e-2)
    # cos, sin and speed move by one time step, not by a jump to a new start
    assert (last.final_obs - steps[-2].obs).abs()[:, :2].max() < 0.5
    assert (last.obs[:, 2].abs() <= 1).all()  # starts are slow


# Actions


def test_actions_are_clipped_to_the_bounds_of_the_space():
    worlds = notebooks(2)
    worlds.reset()
    given = torch.tensor([[-7.0, 0.0], [5.0, 100.0]])
    worlds.step(given)
    assert [env.actions for env in worlds.envs.envs] == [[[-1.0, 0.5]], [[2.0, 100.0]]]
    assert given.tolist() == [[-7.0, 0.0], [5.0, 100.0]]  # the agent's own record is untouched


def test_a_torque_beyond_the_bound_is_the_torque_at_the_bound():
    wild, bound = GymWorlds.make("Pendulum-v1", 2, 0), GymWorlds.make("Pendulum-v1", 2, 0)
    assert torch.equal(wild.reset(), bound.reset())
    one = wild.step(torch.tensor([[50.0], [-50.0]]))
    other = bound.step(torch.tensor([[2.0], [-2.0]]))
    assert all(map(torch.equal, one, other))


def test_steps_already_taken_do_not_change_when_the_worlds_go_on():
    worlds = notebooks(2)
    first = worlds.reset()
    steps = [worlds.step(torch.zeros(2, 2)) for _ in range(4)]
    assert first.tolist() == [[0.0], [0.0]]
    assert [step.obs[0].item() for step in steps] == [1, 2, 0, 1]
    assert [step.final_obs[0].item() for step in steps] == [1, 2, 3, 1]
    assert [step.terminated[0].item() for step in steps] == [False, False, True, False]
    assert all(step.reward.tolist() == [0.5, 0.5] for step in steps)


class Hoarder(Notebook):
    """Keeps the actions themselves."""

    action_space = gym.spaces.MultiBinary(2)

    def step(self, action: np.ndarray):
        self.actions.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_an_environment_may_keep_the_actions_it_was_given():
    worlds = GymWorlds(SyncVectorEnv([Hoarder] * 2, autoreset_mode=AutoresetMode.SAME_STEP), 0)
    worlds.reset()
    action = torch.tensor([[0, 1], [1, 0]])
    worlds.step(action)
    action.zero_()  # memory that is used again
    assert [env.actions[0].tolist() for env in worlds.envs.envs] == [[0, 1], [1, 0]]


def test_an_answer_is_one_piece_of_memory_whose_parts_are_the_step():
    one, other = notebooks(2), notebooks(2)
    one.reset(), other.reset()
    for _ in range(4):  # an end among them
        action = torch.zeros(2, 2)
        one.send(action)
        answer = one.receive_on_host()
        assert answer.shape == one.blank().shape
        read, step = one.read(answer), other.step(action)
        assert all(part.data_ptr() >= answer.data_ptr() for part in read)
        assert read.final_obs.data_ptr() == answer[one.usual :].data_ptr()  # may be left out
        if not (step.terminated | step.truncated).any():  # what comes last was not written
            read = read._replace(final_obs=read.obs)
        assert all(map(torch.equal, read, step))


# Seeds


def test_after_restoring_the_seeds_are_ones_that_were_never_used():
    worlds = notebooks(3, seed=100)
    used: list[int] = []
    for _ in range(3):
        worlds.reset()
        used += [env.seeds[-1] for env in worlds.envs.envs]
        again = notebooks(3, seed=100)
        again.restore(worlds.state())
        worlds = again
    assert len(set(used)) == 9
    assert used[:3] == [100, 101, 102]


def test_one_seed_gives_one_course():
    def course(seed: int) -> torch.Tensor:
        worlds = GymWorlds.make("CartPole-v1", 2, seed)
        worlds.reset()
        return torch.stack([worlds.step(torch.ones(2).long()).obs for _ in range(25)])

    assert torch.equal(course(3), course(3))
    assert not torch.equal(course(3), course(30))


# Refusals


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_vector_environments_that_do_not_restart_in_the_same_step_are_refused(mode):
    with pytest.raises(ValueError, match="must be SAME_STEP, since other modes put a transition"):
        GymWorlds(SyncVectorEnv([Notebook], autoreset_mode=mode), 0)


@pytest.mark.parametrize("id", ["NoSuchWorld-v0", "CartPole-v99", "not an id", "no_module:X-v0"])
def test_an_unknown_id_is_refused_with_a_sentence_that_names_it(id):
    for make in (lambda: GymWorlds.make(id, 2, 0), lambda: GymConfig(id).spaces()):
        with pytest.raises(ValueError, match=f"Gymnasium cannot make '{id}': ") as refusal:
            make()
        assert "\n" not in str(refusal.value)


def test_any_vector_environment_that_restarts_in_the_same_step_will_do():
    worlds = GymWorlds(gym.make_vec("dvrl/MountainHike-v0", num_envs=2, sigma=0.0), seed=0)
    worlds.reset()
    up = torch.tensor([[0.0, 0.5]]).expand(2, 2)
    *_, last = (worlds.step(up) for _ in range(75))
    assert last.truncated.all()
    assert (last.final_obs[:, 1] > 10).all()  # 75 half steps north
    assert (last.obs[:, 1] < 0).all()  # back at the foot of the mountain
