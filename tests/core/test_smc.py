"""Weights, evidence and resampling."""

import math

import pytest
import torch

from dvrl.core import smc

SCHEMES = [smc.systematic, smc.stratified, smc.multinomial]


def test_log_mean_exp_of_equal_weights_is_their_logarithm():
    assert torch.allclose(smc.log_mean_exp(torch.full((3, 7), -4.2)), torch.full((3,), -4.2))


def test_log_mean_exp_survives_weights_far_outside_floating_point_range():
    log_w = torch.tensor([[-2000.0, -2000.0 + math.log(3)]])
    assert torch.allclose(smc.log_mean_exp(log_w), torch.tensor([-2000.0 + math.log(2)]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ancestors_do_not_change_when_all_log_weights_are_shifted(scheme, generator):
    log_w = torch.randn(50, 9, generator=generator)
    u = torch.rand(50, 9, generator=generator)
    shifted = scheme(log_w + 300.0, u)
    # 300 costs three digits of the logarithms: a position on the edge of a share may move by one
    assert (shifted == scheme(log_w, u)).float().mean() > 0.99


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_particle_has_its_weight_times_k_offspring_on_average(scheme, generator):
    weights = torch.tensor([0.05, 0.5, 0.0, 0.15, 0.3])
    n = 40_000
    ancestors = scheme(weights.log().expand(n, 5), torch.rand(n, 5, generator=generator))
    offspring = torch.stack([(ancestors == k).float().sum(-1) for k in range(5)], -1)
    spread = offspring.std(0) / math.sqrt(n)
    assert ((offspring.mean(0) - 5 * weights).abs() <= 4 * spread + 1e-6).all()


@pytest.mark.parametrize("scheme", [smc.systematic, smc.stratified])
def test_equal_weights_give_the_identity(scheme, generator):
    u = 0.01 + 0.98 * torch.rand(1000, 30, generator=generator)
    assert (scheme(torch.zeros(1000, 30), u) == torch.arange(30)).all()


def test_systematic_offspring_differ_from_their_expectation_by_less_than_one(generator):
    log_w = torch.randn(500, 8, generator=generator)
    ancestors = smc.systematic(log_w, torch.rand(500, 8, generator=generator))
    offspring = torch.stack([(ancestors == k).float().sum(-1) for k in range(8)], -1)
    assert ((offspring - 8 * log_w.softmax(-1)).abs() < 1 + 1e-4).all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("u", [0.0, 1 - 2**-24])
def test_extreme_uniforms_still_choose_a_particle_with_weight(scheme, u):
    log_w = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    chosen = scheme(log_w, torch.full((1, 5), u))
    assert set(chosen.flatten().tolist()) <= {1, 3}


def test_take_follows_ancestors_and_lets_gradients_through_to_the_values():
    particles = torch.arange(12.0).reshape(2, 3, 2).requires_grad_()
    ancestors = torch.tensor([[0, 0, 2], [1, 1, 1]])
    taken = smc.take(particles, ancestors)
    assert taken[0].tolist() == [[0, 1], [0, 1], [4, 5]]
    assert taken[1].tolist() == [[8, 9]] * 3
    taken.sum().backward()
    assert particles.grad[..., 0].tolist() == [[2, 0, 1], [0, 3, 0]]


def test_effective_sample_size_is_k_for_equal_weights_and_one_for_a_single_survivor():
    log_w = torch.tensor([[0.0] * 4, [0.0, -torch.inf, -torch.inf, -torch.inf]])
    assert torch.allclose(smc.effective_sample_size(log_w), torch.tensor([4.0, 1.0]))


def test_weight_entropy_is_that_of_the_normalised_weights():
    log_w = torch.tensor([[2.0] * 4, [7.0, -torch.inf, -torch.inf, -torch.inf]])
    assert torch.allclose(smc.weight_entropy(log_w), torch.tensor([math.log(4), 0.0]), atol=1e-6)


def test_distinct_counts_particles_with_offspring():
    ancestors = torch.tensor([[0, 1, 2, 3], [2, 2, 2, 2], [3, 0, 3, 0]])
    assert smc.distinct(ancestors).tolist() == [4, 1, 2]


def test_only_rows_without_any_weight_are_revived():
    log_w = torch.tensor(
        [[0.5, 1.0], [torch.nan, 1.0], [-torch.inf, -torch.inf], [torch.nan, torch.inf]]
    )
    revived, vanished = smc.revive(log_w)
    assert vanished.tolist() == [False, False, True, True]
    assert revived.tolist() == [[0.5, 1.0], [-torch.inf, 1.0], [0.0, 0.0], [0.0, 0.0]]
