"""Our optimisers on one vector are torch's on many parameters."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dvrl.core import rows
from dvrl.learners.config import A2CConfig
from dvrl.learners.optimiser import Optimiser

SHAPES = [(3, 4), (5,), (), (2, 1, 2)]
CONFIG = A2CConfig(lr=0.01, clip_norm=0.5)
every_kind = pytest.mark.parametrize("kind", ["rmsprop", "adam"])


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=generator).double()) for s in SHAPES]


def gradients(scale: float, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(s, generator=generator).double() for s in SHAPES]


def gradient(scale: float, seed: int) -> torch.Tensor:
    return rows.join(gradients(scale, seed))


def theirs(kind: str, params: list) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(params, CONFIG.lr, eps=1e-5)
    return torch.optim.RMSprop(params, CONFIG.lr, alpha=0.99, eps=1e-5)


@every_kind
def test_steps_are_those_of_torch_with_and_without_clipping(kind):
    mine, other = parameters(), parameters()
    optimiser = Optimiser(replace(CONFIG, optimiser=kind), mine)
    reference = theirs(kind, other)
    clipped = []
    for i, scale in enumerate([1.0, 0.01, 100.0, 0.01, 1.0]):
        for p, g in zip(other, gradients(scale, i), strict=True):
            p.grad = g
        want = nn.utils.clip_grad_norm_(other, CONFIG.clip_norm)
        reference.step()
        norm = optimiser.step(gradient(scale, i))
        torch.testing.assert_close(norm, want)
        clipped.append(bool(norm > CONFIG.clip_norm))
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert set(clipped) == {True, False}


@every_kind
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_leaves_no_mark(kind, bad):
    """The steps after it are those of a run that never met it."""
    one, two = parameters(), parameters()
    met, spared = (Optimiser(replace(CONFIG, optimiser=kind), p) for p in (one, two))
    met.step(gradient(1.0, 0))
    spared.step(gradient(1.0, 0))
    spoiled = gradient(1.0, 1)
    spoiled[5] = bad
    assert not met.step(spoiled).isfinite()
    met.step(gradient(1.0, 2))
    spared.step(gradient(1.0, 2))
    assert all(map(torch.equal, one, two))
    assert all(torch.equal(met.slots[name], spared.slots[name]) for name in met.slots)


@every_kind
def test_what_carries_the_belief_on_has_a_share_of_the_learning_rate(kind):
    """As torch's groups of parameters, while the share rises."""
    memory = [False, True, False, True]
    config = replace(CONFIG, optimiser=kind, memory_lr=0.03, memory_steps=20)
    mine, other = parameters(), parameters()
    optimiser = Optimiser(config, mine, memory=memory)
    reference = theirs(kind, [{"params": [p]} for p in other])
    for i in range(3):
        rates = config.rates_at(10 * i)
        optimiser.set_rates(rates)
        for group, slow in zip(reference.param_groups, memory, strict=True):
            group["lr"] = rates.lr * (rates.memory if slow else 1.0)
        for p, g in zip(other, gradients(0.01, i), strict=True):
            p.grad = g
        reference.step()
        optimiser.step(gradient(0.01, i))
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@every_kind
def test_the_learning_rate_may_change_between_steps(kind):
    params = parameters()
    optimiser = Optimiser(replace(CONFIG, optimiser=kind), params)
    optimiser.lr.fill_(0.0)
    before = [p.detach().clone() for p in params]
    optimiser.step(gradient(1.0, 0))
    assert all(map(torch.equal, params, before))
    optimiser.lr.fill_(0.1)
    optimiser.step(gradient(1.0, 1))
    assert not any(map(torch.equal, params, before))


@every_kind
def test_slots_taken_up_continue_as_if_nothing_had_happened(kind):
    one, two = parameters(), parameters()
    first = Optimiser(replace(CONFIG, optimiser=kind), one)
    first.step(gradient(1.0, 0))
    second = Optimiser(replace(CONFIG, optimiser=kind), two)
    for p, source in zip(two, one, strict=True):
        p.data.copy_(source)
    second.load({name: slot.clone() for name, slot in first.slots.items()})
    first.step(gradient(1.0, 1))
    second.step(gradient(1.0, 1))
    assert all(map(torch.equal, one, two))
