"""The laws are those of torch.distributions, with their noise as an argument."""

import math

import pytest
import torch
from torch import distributions

from dvrl.core.laws import Bernoulli, Categorical, Gaussian

LOGITS = torch.tensor([0.5, -1.0, 2.0, -torch.inf, 0.0])


def gaussian(generator: torch.Generator) -> tuple[Gaussian, distributions.Distribution]:
    mean = torch.randn(4, 3, 2, generator=generator, dtype=torch.float64)
    var = torch.rand(4, 3, 2, generator=generator, dtype=torch.float64) * 3 + 1e-4
    return Gaussian(mean, var), distributions.Independent(distributions.Normal(mean, var.sqrt()), 1)


# Gaussian


def test_gaussian_log_probability_and_entropy_are_those_of_independent_normals(generator):
    law, reference = gaussian(generator)
    x = torch.randn(4, 3, 2, generator=generator, dtype=torch.float64)
    assert torch.allclose(law.log_prob(x), reference.log_prob(x))
    assert torch.allclose(law.entropy(), reference.entropy())


def test_one_observation_is_judged_by_the_laws_of_all_particles(generator):
    law, reference = gaussian(generator)
    x = torch.randn(4, 1, 2, generator=generator, dtype=torch.float64)
    assert torch.allclose(law.log_prob(x), reference.log_prob(x.expand(4, 3, 2)))


def test_a_gaussian_sample_is_mean_plus_deviation_times_noise():
    law = Gaussian(torch.tensor([1.0, -2.0]), torch.tensor([4.0, 0.25]))
    assert law.sample(torch.tensor([0.0, 0.0])).tolist() == [1, -2]
    assert law.sample(torch.tensor([1.0, -2.0])).tolist() == [3, -3]


def test_gaussian_samples_let_gradients_through_to_mean_and_variance():
    mean = torch.tensor([0.5], requires_grad=True)
    var = torch.tensor([4.0], requires_grad=True)
    Gaussian(mean, var).sample(torch.tensor([3.0])).sum().backward()
    assert mean.grad.item() == pytest.approx(1)
    assert var.grad.item() == pytest.approx(3 / (2 * 2))  # d sqrt(v) / dv = 1 / (2 sqrt(v))


def test_gaussian_entropy_is_the_mean_of_minus_the_log_probability_of_samples(generator):
    n = 40_000
    law = Gaussian(torch.tensor([1.0, -2.0]), torch.tensor([4.0, 0.25]))
    many = Gaussian(law.mean.expand(n, 2), law.var.expand(n, 2))
    surprise = -many.log_prob(many.sample(torch.randn(n, 2, generator=generator)))
    assert abs(surprise.mean() - law.entropy()) < 4 * surprise.std() / math.sqrt(n)


# Categorical


def test_categorical_log_probability_and_entropy_are_those_of_torch(generator):
    logits = torch.randn(6, 5, generator=generator)
    law, reference = Categorical(logits), distributions.Categorical(logits=logits)
    index = torch.randint(5, (6,), generator=generator)
    assert torch.allclose(law.log_prob(index), reference.log_prob(index))
    assert torch.allclose(law.entropy(), reference.entropy())
    assert torch.equal(law.mode(), logits.argmax(-1))


def test_shifting_all_logits_changes_nothing(generator):
    logits = torch.randn(6, 5, generator=generator)
    law, shifted = Categorical(logits), Categorical(logits + 50)
    index = torch.randint(5, (6,), generator=generator)
    assert torch.allclose(law.log_prob(index), shifted.log_prob(index), atol=1e-4)
    assert torch.allclose(law.entropy(), shifted.entropy(), atol=1e-4)


def test_choices_are_drawn_as_often_as_they_are_probable(generator):
    n = 100_000
    law = Categorical(LOGITS.expand(n, 5))
    drawn = law.sample(torch.rand(n, generator=generator))
    p = LOGITS.softmax(-1)
    frequency = torch.bincount(drawn, minlength=5) / n
    assert ((frequency - p).abs() <= 4 * (p * (1 - p) / n).sqrt()).all()


def test_a_uniform_falls_into_the_share_of_its_choice():
    law = Categorical(torch.tensor([0.1, 0.2, 0.7]).log().expand(6, 3))
    u = torch.tensor([0.0, 0.0999, 0.1001, 0.2999, 0.3001, 0.9999])
    assert law.sample(u).tolist() == [0, 0, 1, 1, 2, 2]


def test_the_largest_uniform_does_not_choose_the_impossible(generator):
    logits = torch.randn(1000, 9, generator=generator)
    logits[:, -1] = -200  # its probability is below what a float can hold
    chosen = Categorical(logits).sample(torch.full((1000,), 1 - 2**-24))
    assert (chosen != 8).all()


def test_entropy_is_log_d_for_equal_choices_and_zero_for_a_certain_one():
    law = Categorical(torch.tensor([[1.0] * 4, [200.0, 0.0, 0.0, 0.0]]))
    assert torch.allclose(law.entropy(), torch.tensor([math.log(4), 0.0]), atol=1e-6)


# Bernoulli


def test_a_real_valued_pixel_costs_its_cross_entropy(generator):
    logits = torch.randn(2, 3, 1, 4, 5, generator=generator, dtype=torch.float64)
    x = torch.rand(2, 1, 1, 4, 5, generator=generator, dtype=torch.float64)
    law = Bernoulli(logits)
    p = law.mean
    expected = (x * p.log() + (1 - x) * (1 - p).log()).sum((-3, -2, -1))
    torch.testing.assert_close(law.log_prob(x), expected)
    lit = (x > 0.5).double().expand_as(logits)
    reference = distributions.Bernoulli(logits=logits).log_prob(lit).sum((-3, -2, -1))
    torch.testing.assert_close(law.log_prob(lit), reference)


def test_to_know_nothing_of_a_screen_costs_a_bit_for_every_pixel():
    x = torch.rand(1, 1, 84, 84)
    assert Bernoulli(torch.zeros(1, 1, 84, 84)).log_prob(x).item() == pytest.approx(-4890.85, 1e-5)


def test_no_law_costs_less_than_the_floor_and_the_pixels_own_law_costs_just_that(generator):
    x = torch.rand(3, 1, 6, 6, generator=generator, dtype=torch.float64)
    own = Bernoulli(torch.logit(x))
    torch.testing.assert_close(-own.log_prob(x), own.floor(x)[:, 0])
    for _ in range(20):
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        other = Bernoulli(own.logits + 0.3 * noise)
        assert (-other.log_prob(x) > other.floor(x)[:, 0]).all()


def test_a_screen_of_nothing_but_black_and_white_has_floor_zero():
    x = torch.randint(0, 2, (4, 1, 6, 6)).float()
    x[0] = 0.0  # blank
    assert torch.equal(Bernoulli(torch.zeros(4, 1, 6, 6)).floor(x), torch.zeros(4, 1))


def test_a_density_has_no_floor():
    assert Gaussian(torch.zeros(4, 3), torch.ones(4, 3)).floor(torch.zeros(4, 3)).shape == (4, 0)
