"""Mountain Hike's noise: how large it is, where it enters, and what it does not depend on."""

import math

import pytest
import torch

from dvrl.envs.mountain_hike import STEPS, HikeNoise, MountainHike, cap

STILL = torch.zeros(1, 2)


def calm(n: int, **noise: torch.Tensor) -> HikeNoise:
    """No noise but what is given."""
    return HikeNoise(**{name: torch.zeros(n, 2) for name in HikeNoise._fields} | noise)


def weather(n: int, seed: int) -> list[HikeNoise]:
    """The noise of one episode, its reset included."""
    chance = torch.Generator().manual_seed(seed)
    return [HikeNoise(*torch.randn(4, n, 2, generator=chance)) for _ in range(STEPS + 1)]


def assert_standard_normal(eps: torch.Tensor) -> None:
    """Mean and spread of every column within four standard errors of 0 and 1."""
    n = len(eps)
    assert (eps.mean(0).abs() < 4 / math.sqrt(n)).all()
    assert ((eps.std(0) - 1).abs() < 4 / math.sqrt(2 * n)).all()


def test_hikes_start_around_the_lower_left_with_a_standard_deviation_of_one():
    hike = MountainHike(40_000, 3.0, seed=1)
    hike.reset()
    assert_standard_normal(hike.position - torch.tensor([-8.5, -8.5]))


def test_every_step_is_shaken_by_a_quarter():
    hike = MountainHike(40_000, 3.0, seed=2)
    hike.reset()
    before = hike.position
    hike.step(torch.tensor([[0.3, 0.4]]).expand(40_000, 2))
    assert_standard_normal((hike.position - before - torch.tensor([0.3, 0.4])) / 0.25)


@pytest.mark.parametrize("sigma", [1.5, 3.0])
def test_every_observation_is_blurred_by_sigma_the_first_one_too(sigma):
    hike = MountainHike(40_000, sigma, seed=3)
    first = hike.reset()
    assert_standard_normal((first - hike.position) / sigma)
    second = hike.step(STILL.expand(40_000, 2)).obs
    assert_standard_normal((second - hike.position) / sigma)


def test_without_blur_the_hiker_sees_where_it_stands():
    hike = MountainHike(5, 0.0, seed=4)
    assert torch.equal(hike.reset(), hike.position)
    assert torch.equal(hike.step(STILL.expand(5, 2)).obs, hike.position)


def test_start_move_and_sight_are_independent_of_each_other_and_between_worlds():
    n = 20_000
    noise = MountainHike(n, 3.0, seed=5).noise()
    columns = torch.cat(noise, -1)  # n, 8
    neighbours = torch.cat([columns[:-1], columns[1:]], -1)  # each world beside the next one
    correlation = neighbours.T.corrcoef()
    off_diagonal = correlation - torch.eye(16)
    assert (off_diagonal.abs() < 4.5 / math.sqrt(n)).all()


def test_the_noise_does_not_depend_on_the_actions():
    def felt(actions: torch.Tensor) -> list[torch.Tensor]:
        hike = MountainHike(4, 3.0, seed=6)
        seen = [(hike.reset() - hike.position) / 3]
        for action in actions:
            before = hike.position
            step = hike.step(action)
            seen.append((hike.reached - before - cap(action)) / 0.25)
            seen.append((step.final_obs - hike.reached) / 3)
            seen.append((step.obs - hike.position) / 3)
        return seen

    chance = torch.Generator().manual_seed(0)
    wild = torch.randn(STEPS + 5, 4, 2, generator=chance)
    for one, other in zip(felt(wild), felt(torch.zeros_like(wild)), strict=True):
        assert torch.allclose(one, other, atol=2e-5)


def test_fixed_noise_fixes_the_world_whatever_the_generator():
    fixed = weather(3, seed=7)
    chance = torch.Generator().manual_seed(1)
    actions = torch.randn(STEPS, 3, 2, generator=chance)
    hikes = [MountainHike(3, 1.5, seed=8), MountainHike(3, 1.5, seed=9)]
    first = [hike.reset(fixed[0]) for hike in hikes]
    assert torch.equal(*first)
    for action, noise in zip(actions, fixed[1:], strict=True):
        one, other = (hike.step(action, noise) for hike in hikes)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_given_noise_enters_where_its_name_says():
    hike = MountainHike(1, 3.0, 0)
    unit = torch.tensor([[1.0, 0.0]])
    assert torch.allclose(hike.reset(calm(1, start=unit)), torch.tensor([[-7.5, -8.5]]))
    assert torch.allclose(hike.reset(calm(1, look_start=unit)), torch.tensor([[-5.5, -8.5]]))
    assert torch.allclose(hike.step(STILL, calm(1, move=unit)).obs, torch.tensor([[-8.25, -8.5]]))
    assert torch.allclose(hike.step(STILL, calm(1, look=unit)).obs, torch.tensor([[-5.25, -8.5]]))
    unused = calm(1, start=unit, look_start=unit)  # not the end of an episode
    assert torch.allclose(hike.step(STILL, unused).obs, torch.tensor([[-8.25, -8.5]]))
