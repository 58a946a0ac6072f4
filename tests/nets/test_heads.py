"""Policy heads: laws over actions, bounded means, and the two faces of an action."""

import math

import pytest
import torch

from dvrl.nets.heads import CategoricalPolicy, GaussianPolicy, shorten


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# Shortening


def test_shortening_keeps_the_direction_and_never_exceeds_the_bound():
    v = torch.randn(1000, 3) * torch.logspace(-3, 6, 1000)[:, None]
    short = shorten(v, 0.7)
    assert (short.norm(dim=-1) <= 0.7 * (1 + 1e-6)).all()
    cosine = (short * v).sum(-1) / (short.norm(dim=-1) * v.norm(dim=-1))
    assert torch.allclose(cosine, torch.ones(1000), atol=1e-5)


def test_the_shortened_length_is_bound_times_tanh_of_length_by_bound():
    lengths = torch.tensor([0.01, 0.5, 1.0, 2.0, 30.0])
    v = lengths[:, None] * torch.tensor([0.6, -0.8])
    expected = torch.tensor([2 * math.tanh(length / 2) for length in lengths.tolist()])
    assert torch.allclose(shorten(v, 2.0).norm(dim=-1), expected)


def test_short_vectors_are_left_nearly_as_they_are():
    v = torch.randn(100, 2) * 0.01
    assert torch.allclose(shorten(v, 1.0), v, rtol=1e-3)


def test_longer_vectors_stay_longer():
    lengths = torch.linspace(0, 3, 200)
    short = shorten(lengths[:, None] * torch.tensor([0.0, 1.0]), 1.0).norm(dim=-1)
    assert (short.diff() > 0).all()


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-6, 1.0])
def test_near_zero_the_gradient_of_shortening_is_that_of_the_identity(scale):
    v = (scale * torch.tensor([[0.006, -0.008]])).requires_grad_()
    jacobian = torch.autograd.functional.jacobian(lambda x: shorten(x[None], 1.0)[0], v[0])
    assert torch.allclose(jacobian, torch.eye(2), atol=1e-3)


def test_far_beyond_the_bound_a_gradient_is_left_across_the_direction_and_none_along_it():
    v = torch.tensor([20.0, 0.0], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: shorten(x[None], 1.0)[0], v)
    expected = torch.tensor([[0, 0], [0, 1 / 20]], dtype=torch.float64)
    assert torch.allclose(jacobian, expected, atol=1e-9)


# Continuous actions


def test_a_gaussian_policy_begins_near_zero_with_the_given_deviation():
    policy = GaussianPolicy(16, 2, initial_std=0.3, mean_bound=None)
    law = policy.law(torch.randn(100, 16))
    assert law.mean.abs().max() < 0.2
    assert torch.allclose(law.var, torch.full((100, 2), 0.09))


def test_the_deviation_does_not_depend_on_the_feature_and_learns():
    policy = GaussianPolicy(4, 2, 1.0, None)
    law = policy.law(torch.randn(5, 4))
    assert (law.var == law.var[0]).all()
    law.entropy().sum().backward()
    assert policy.log_std.grad.tolist() == pytest.approx([5, 5])  # dH / d log std = 1 per row


@pytest.mark.parametrize("bound", [None, 0.5])
def test_a_bound_shortens_the_mean_and_only_the_mean(bound):
    policy = GaussianPolicy(4, 2, 1.0, bound)
    with torch.no_grad():
        policy.mean.weight.mul_(1000)
    feature = torch.randn(50, 4)
    law = policy.law(feature)
    free = policy.mean(feature)
    assert torch.allclose(law.mean, free if bound is None else shorten(free, bound))
    assert (law.mean.norm(dim=-1).max() <= 0.5 + 1e-6) == (bound is not None)
    assert torch.allclose(law.var, torch.ones(50, 2))


def test_continuous_actions_are_drawn_from_the_law(generator):
    n = 40_000
    policy = GaussianPolicy(3, 2, 0.5, None)
    with torch.no_grad():
        policy.mean.bias.copy_(torch.tensor([1.0, -2.0]))
    law = policy.law(torch.zeros(n, 3))
    drawn = policy.sample(law, policy.noise(len(law[0]), generator))
    assert not drawn.requires_grad
    error = 0.5 / math.sqrt(n)
    assert ((drawn.mean(0) - torch.tensor([1.0, -2.0])).abs() < 4 * error).all()
    assert ((drawn.std(0) - 0.5).abs() < 4 * error / math.sqrt(2)).all()
    assert torch.equal(policy.mode(law), law.mean)


def test_a_continuous_action_is_its_own_code_and_the_no_op_is_zero():
    policy = GaussianPolicy(3, 2, 1.0, None)
    action = torch.randn(4, 2)
    assert torch.equal(policy.encode(action), action)
    assert torch.equal(policy.noop(4), torch.zeros(4, 2))


# Discrete actions


def test_a_categorical_policys_logits_are_linear_in_the_feature():
    policy = CategoricalPolicy(4, 3)
    feature = torch.randn(5, 4)
    expected = feature @ policy.logits.weight.T + policy.logits.bias
    assert torch.allclose(policy.law(feature).logits, expected)


def test_discrete_actions_are_drawn_from_the_law(generator):
    n = 40_000
    policy = CategoricalPolicy(2, 3)
    with torch.no_grad():
        policy.logits.bias.copy_(torch.tensor([0.2, 0.5, 0.3]).log())
    law = policy.law(torch.zeros(n, 2))
    frequency = (
        torch.bincount(policy.sample(law, policy.noise(len(law[0]), generator)), minlength=3) / n
    )
    p = torch.tensor([0.2, 0.5, 0.3])
    assert ((frequency - p).abs() < 4 * (p * (1 - p) / n).sqrt()).all()
    assert (policy.mode(law) == 1).all()


def test_a_discrete_actions_code_is_one_hot_and_the_no_op_is_the_first_choice():
    policy = CategoricalPolicy(4, 3)
    code = policy.encode(torch.tensor([2, 0, 1]))
    assert code.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert code.dtype == torch.float32
    assert torch.equal(policy.noop(2), torch.tensor([[1.0, 0, 0], [1.0, 0, 0]]))


@pytest.mark.parametrize("policy", [GaussianPolicy(3, 2, 1.0, 0.5), CategoricalPolicy(3, 2)])
def test_one_state_of_chance_gives_one_action(policy):
    law = policy.law(torch.zeros(200, 3))
    one, again, other = (
        policy.sample(law, policy.noise(200, torch.Generator().manual_seed(s))) for s in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
