"""Returns and the terms of the loss, by hand."""

import pytest
import torch

from dvrl.core import losses

FALSE = torch.zeros(3, 1, dtype=torch.bool)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def test_return_without_an_end_is_the_discounted_sum_and_the_bootstrap():
    got = losses.n_step_returns(column(1, 2, 3), FALSE, column(0, 0, 0), torch.tensor([10.0]), 0.5)
    assert got.flatten().tolist() == [1 + 1 + 0.75 + 1.25, 2 + 1.5 + 2.5, 3 + 5]


def test_no_return_runs_into_the_next_episode():
    ended = column(0, 1, 0).bool()
    boot = torch.tensor([1e6])
    got = losses.n_step_returns(column(1, 2, 3), ended, column(0, 0, 0), boot, 0.5)
    assert got[:2].flatten().tolist() == [1 + 0.5 * 2, 2.0]


def test_at_a_cut_the_return_ends_in_the_value_of_the_last_observation():
    ended = column(0, 1, 0).bool()
    got = losses.n_step_returns(column(1, 2, 3), ended, column(9, 8, 7), torch.zeros(1), 0.5)
    assert got[:2].flatten().tolist() == [1 + 0.5 * (2 + 0.5 * 8), 2 + 0.5 * 8]


def test_splitting_a_segment_in_two_changes_no_return(generator):
    r = torch.randn(8, 5, generator=generator)
    v_end = torch.randn(8, 5, generator=generator)
    ended = torch.rand(8, 5, generator=generator) < 0.3
    boot = torch.randn(5, generator=generator)
    whole = losses.n_step_returns(r, ended, v_end, boot, 0.9)
    late = losses.n_step_returns(r[3:], ended[3:], v_end[3:], boot, 0.9)
    early = losses.n_step_returns(r[:3], ended[:3], v_end[:3], late[0], 0.9)
    torch.testing.assert_close(torch.cat([early, late]), whole)


def test_the_policy_term_gives_the_critic_no_gradient():
    log_prob, value = column(-1.0, -2.0).requires_grad_(), column(0.5, 0.25).requires_grad_()
    adv = losses.advantage(column(1.0, 1.0), value)
    losses.policy_term(log_prob, adv).sum().backward()
    assert value.grad is None
    assert log_prob.grad.flatten().tolist() == [-0.5, -0.75]


def test_the_value_term_pulls_the_value_towards_the_return():
    value = column(0.0).requires_grad_()
    losses.value_term(losses.advantage(column(3.0), value)).sum().backward()
    assert value.grad.item() == -6.0


def test_standardised_advantages_have_mean_zero_and_deviation_one(generator):
    adv = losses.standardise(5 + 3 * torch.randn(20, 16, generator=generator))
    assert abs(adv.mean()) < 1e-5
    assert abs(adv.std(correction=0) - 1) < 1e-4
    assert losses.standardise(torch.full((2, 2), 7.0)).tolist() == [[0, 0], [0, 0]]


def test_the_total_is_the_weighted_sum_of_means():
    terms = {"a": torch.tensor([[1.0, 3.0]]), "b": torch.tensor([[-1.0, -1.0]])}
    assert losses.combine(terms, {"a": 0.5, "b": 2.0}).item() == 0.5 * 2 - 2


def test_a_term_without_a_weight_is_refused():
    with pytest.raises(AssertionError, match="weights"):
        losses.combine({"a": torch.zeros(1, 1)}, {"b": 1.0})
