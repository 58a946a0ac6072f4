"""Mountain Hike: the mountain, the step, the noise, the end."""

import math

import numpy as np
import pytest
import torch

from dvrl.envs.hike_facts import ANCHORS
from dvrl.envs.mountain_hike import STEPS, HikeNoise, MountainHike, cap, reward_map

STILL = torch.zeros(1, 2)


def calm(n: int, **noise: torch.Tensor) -> HikeNoise:
    """No noise but what is given."""
    return HikeNoise(**{name: torch.zeros(n, 2) for name in HikeNoise._fields} | noise)


def weather(n: int, seed: int) -> list[HikeNoise]:
    """The noise of one episode, its reset included."""
    chance = torch.Generator().manual_seed(seed)
    return [HikeNoise(*torch.randn(4, n, 2, generator=chance)) for _ in range(STEPS + 1)]


# The mountain


def ridges_in_the_units_of_the_authors(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The reward map written once more, in the unit box of the authors' code."""
    x, y = x / 10, y / 10
    g = np.zeros_like(x)
    for (mx, my), (sx, sy), factor in [
        ((0.5, 0.5), (0.75, 0.10), 1.0),
        ((0.0, 0.2), (0.10, 0.75), 0.8),
        ((-0.375, -0.5), (0.75, 0.10), 0.55),
    ]:
        density = np.exp(-0.5 * (((x - mx) / sx) ** 2 + ((y - my) / sy) ** 2))
        g = np.maximum(g, factor / 3 * density / (2 * np.pi * sx * sy))
    inside = 4 * (1 - (1 - g) ** 4) - 4.5 + (x + y) / 4
    return np.where(np.maximum(abs(x), abs(y)) <= 1, inside, -6.0)


def grid(half: float, points: int) -> torch.Tensor:
    side = torch.linspace(-half, half, points, dtype=torch.float64)
    return torch.cartesian_prod(side, side)


@pytest.mark.parametrize(
    ("position", "reward"),
    [
        ((-8.5, -8.5), -4.91387),
        ((5.0, 5.0), -0.27934),
        ((0.0, 2.0), -0.59206),
        ((-3.75, -5.0), -1.27606),
    ],
)
def test_reward_at_the_start_and_on_the_three_ridges(position, reward):
    assert reward_map(torch.tensor(position)).item() == pytest.approx(reward, abs=1e-5)


def test_reward_is_the_formula_of_the_authors_code_everywhere():
    points = grid(11, 331)
    expected = ridges_in_the_units_of_the_authors(*points.numpy().T)
    assert np.allclose(reward_map(points).numpy(), expected, atol=1e-12)


def test_the_summit_is_the_best_point_of_the_box():
    points = grid(10, 2001)
    reward = reward_map(points)
    assert reward.max().item() == pytest.approx(-0.23222, abs=1e-5)
    assert points[reward.argmax()].tolist() == pytest.approx([8.11, 5.06], abs=0.011)


def test_the_lower_left_corner_is_the_worst_point_of_the_box():
    points = grid(10, 401)
    reward = reward_map(points)
    assert reward.min().item() == pytest.approx(-5, abs=1e-4)
    assert points[reward.argmin()].tolist() == [-10, -10]


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_edge_belongs_to_the_box_and_beyond_it_everything_is_worth_minus_six(axis, side):
    beyond = math.nextafter(10, 11)
    edge = torch.full((2,), 1.0, dtype=torch.float64)
    edge[axis] = 10 * side
    outside, far = edge.clone(), edge.clone()
    outside[axis], far[axis] = beyond * side, 1e6 * side
    expected = ridges_in_the_units_of_the_authors(*edge.numpy()[:, None])
    assert reward_map(edge).item() == pytest.approx(expected.item(), abs=1e-12)
    assert reward_map(edge) > -5.001
    assert reward_map(torch.stack([outside, far])).tolist() == [-6, -6]


# The action


def test_the_cap_shortens_long_actions_and_keeps_their_direction(generator):
    action = torch.randn(500, 2, generator=generator) * 50
    action = action[action.norm(dim=-1) > 0.5]
    capped = cap(action)
    assert torch.allclose(capped.norm(dim=-1), torch.full((len(action),), 0.5))
    assert torch.allclose(capped / 0.5, action / action.norm(dim=-1, keepdim=True), atol=1e-6)


def test_the_cap_leaves_actions_up_to_its_length_untouched(generator):
    direction = torch.nn.functional.normalize(torch.randn(500, 2, generator=generator), dim=-1)
    action = direction * torch.rand(500, 1, generator=generator) * 0.499
    assert torch.equal(cap(action), action)
    assert torch.equal(cap(torch.zeros(3, 2)), torch.zeros(3, 2))
    assert torch.equal(cap(torch.tensor([0.0, -0.5])), torch.tensor([0.0, -0.5]))


def test_a_step_without_noise_goes_where_the_capped_action_points():
    hike = MountainHike(3, 3.0, 0)
    hike.reset(calm(3))
    step = hike.step(torch.tensor([[3.0, 4.0], [0.1, -0.2], [0.0, 0.0]]), calm(3))
    expected = torch.tensor([[-8.2, -8.1], [-8.4, -8.7], [-8.5, -8.5]])
    assert torch.allclose(hike.position, expected)
    assert torch.allclose(step.obs, expected)


def test_the_reward_is_that_of_the_new_position_less_the_cost_of_the_uncapped_action():
    hike = MountainHike(2, 3.0, 0)
    hike.reset(calm(2))
    action = torch.tensor([[30.0, 40.0], [0.3, 0.4]])
    reached = torch.tensor([[-8.2, -8.1], [-8.2, -8.1]])
    reward = hike.step(action, calm(2)).reward
    assert torch.allclose(reward, reward_map(reached) - torch.tensor([0.5, 0.005]), atol=1e-6)


def test_nothing_stops_the_hiker_outside_the_box():
    hike = MountainHike(1, 0.0, 0)
    hike.reset(calm(1))
    rewards = [hike.step(torch.tensor([[-9.0, 0.0]]), calm(1)).reward.item() for _ in range(10)]
    assert hike.position[0].tolist() == pytest.approx([-13.5, -8.5])
    assert rewards[2] > -5.2  # at -10 exactly: the edge is inside
    assert rewards[3:] == pytest.approx([-6.09] * 7)


# The end


def test_an_episode_is_cut_after_exactly_75_steps_and_never_terminates():
    hike = MountainHike(2, 3.0, seed=10)
    hike.reset()
    ends = []
    for t in range(1, 3 * STEPS + 1):
        step = hike.step(STILL.expand(2, 2))
        assert not step.terminated.any()
        if step.truncated.any():
            assert step.truncated.all()
            ends.append(t)
    assert ends == [75, 150, 225]


def test_reset_in_mid_episode_gives_a_full_new_episode():
    hike = MountainHike(1, 3.0, seed=11)
    hike.reset()
    for _ in range(40):
        hike.step(STILL)
    hike.reset()
    cut = [bool(hike.step(STILL).truncated) for _ in range(STEPS)]
    assert cut == [False] * 74 + [True]


def test_the_last_step_shows_the_old_episodes_end_and_the_new_ones_beginning():
    noise = weather(3, seed=12)
    hike = MountainHike(3, 2.0, 0)
    hike.reset(noise[0])
    steps = [hike.step(STILL.expand(3, 2), eps) for eps in noise[1:]]
    centre = torch.tensor([-8.5, -8.5])
    walked = centre + noise[0].start + 0.25 * sum(eps.move for eps in noise[1:])
    last, eps = steps[-1], noise[-1]
    assert torch.allclose(last.reward, reward_map(walked), atol=1e-4)
    assert torch.allclose(last.final_obs, walked + 2 * eps.look, atol=1e-4)
    assert torch.equal(last.obs, centre + eps.start + 2 * eps.look_start)
    assert torch.equal(hike.position, centre + eps.start)
    assert torch.allclose(hike.reached, walked, atol=1e-4)


def test_before_the_end_the_final_observation_is_the_observation():
    hike = MountainHike(3, 2.0, seed=13)
    hike.reset()
    for _ in range(STEPS - 1):
        step = hike.step(STILL.expand(3, 2))
        assert torch.equal(step.final_obs, step.obs)


# The state


@pytest.mark.parametrize("begun", [0, 10, 74, 75])
def test_a_restored_world_continues_bit_for_bit(begun):
    actions = torch.randn(100, 4, 2, generator=torch.Generator().manual_seed(14))
    hike = MountainHike(4, 3.0, seed=15)
    hike.reset()
    for action in actions[:begun]:
        hike.step(action)
    saved = {name: value.clone() for name, value in hike.state().items()}
    live = hike.state()
    expected = [hike.step(action) for action in actions]

    for state in (saved, live):  # what was handed out does not change with the world
        other = MountainHike(4, 3.0, seed=99)
        other.restore(state)
        for action, step in zip(actions, expected, strict=True):
            assert all(map(torch.equal, other.step(action), step))
        assert torch.equal(other.generator.get_state(), hike.generator.get_state())


# Anchors


def returns(hike: MountainHike, std: float, seed: int) -> torch.Tensor:
    """Undiscounted returns of one episode per world, actions N(0, std^2)."""
    chance = torch.Generator().manual_seed(seed)
    hike.reset()
    steps = (hike.step(std * torch.randn(hike.n, 2, generator=chance)) for _ in range(STEPS))
    return sum(step.reward for step in steps)


@pytest.mark.parametrize(("std", "expected"), [(0.0, -371), (10.0, -384)])
def test_standing_still_and_the_untrained_policy_of_the_authors_return_what_is_known(std, expected):
    returned = returns(MountainHike(8000, 3.0, seed=16), std, seed=17)
    error = returned.std() / math.sqrt(len(returned))
    assert abs(returned.mean() - expected) < 0.5 + 4 * error  # the anchors are rounded


def test_the_nats_of_the_exact_filter_are_the_entropies_of_what_it_expects_to_see():
    for sigma, anchors in ANCHORS.items():
        variance, nats = 1.0, []  # of one coordinate of the position, before it is seen
        for _ in range(STEPS):
            spread = variance + sigma**2
            nats.append(math.log(2 * math.pi * math.e * spread))  # two coordinates, half each
            variance = variance - variance**2 / spread + 0.25**2
        assert sum(nats) / STEPS == pytest.approx(anchors.nats, abs=5e-4)


def test_standing_still_needs_no_eyes_and_memory_helps_those_who_see_badly():
    assert len({anchors.standing_still for anchors in ANCHORS.values()}) == 1
    for sigma, anchors in ANCHORS.items():
        assert anchors.standing_still < min(anchors.no_memory, anchors.optimum)
        assert sigma == 0 or anchors.no_memory < anchors.optimum
