"""Mountain Hike's exact filter, the yardstick of the learned one."""

import pytest
import torch

from dvrl.encoders import exact
from dvrl.envs import mountain_hike
from dvrl.envs.hike_facts import ANCHORS
from dvrl.envs.mountain_hike import MountainHike


@pytest.mark.parametrize("sigma", [1.5, 3.0])
def test_exact_evidence_per_step_is_the_published_floor(sigma):
    n = 1500
    worlds, world = MountainHike(n, sigma, seed=3), exact.mountain_hike_world(sigma)
    belief, o_t, total = exact.initial(world, n), worlds.reset(), torch.zeros(n)
    for _ in range(mountain_hike.STEPS):
        belief, log_p = exact.correct(world, belief, o_t)
        total -= log_p
        action = torch.randn(n, 2)
        belief = exact.predict(world, belief, mountain_hike.cap(action))
        o_t = worlds.step(action).obs
    nats = total / mountain_hike.STEPS
    assert abs(nats.mean() - ANCHORS[sigma].nats) < 4 * nats.std() / n**0.5 + 0.0006


def test_exact_belief_is_calibrated():
    """The truth lies as far from the filter's mean as its covariance says."""
    n, sigma = 3000, 3.0
    worlds, world = MountainHike(n, sigma, seed=4), exact.mountain_hike_world(sigma)
    belief, o_t = exact.initial(world, n), worlds.reset()
    for _ in range(30):
        belief, _ = exact.correct(world, belief, o_t)
        squared = ((worlds.position - belief.mean) ** 2).sum(-1)
        assert abs(squared.mean() / belief.cov.trace() - 1) < 5 / n**0.5
        belief = exact.predict(world, belief, torch.full((n, 2), 0.2))
        o_t = worlds.step(torch.full((n, 2), 0.2)).obs
