"""Batch normalisation is torch's over the rows of one step, and known of single rows afterwards."""

import pytest
import torch
from torch.nn import functional as F

from dvrl.nets.norm import EPS, MOMENTUM, BatchNorm, unwatched
from dvrl.nets.sight import Convolutions

SHAPES = {
    "features": ((16, 5), 1, 0),
    "features of particles": ((16, 7, 5), 2, 0),
    "images": ((16, 5, 4, 3), 1, 2),
    "images of particles": ((6, 7, 5, 4, 3), 2, 2),
}


def made(name: str, generator: torch.Generator) -> tuple[BatchNorm, torch.Tensor, torch.Tensor]:
    """A layer that has left its first weights, an input, and the input as torch wants it: the
    channels behind a single axis of rows."""
    shape, rows, places = SHAPES[name]
    norm = BatchNorm(5, rows, places)
    with torch.no_grad():
        norm.weight.copy_(1 + torch.rand(5, generator=generator))
        norm.bias.copy_(torch.randn(5, generator=generator))
    x = 3 + 2 * torch.randn(shape, generator=generator)
    return norm, x, x.flatten(0, rows - 1)


@pytest.mark.parametrize("name", SHAPES)
def test_in_training_it_is_torchs_and_so_are_the_statistics_it_keeps(name, generator):
    norm, x, flat = made(name, generator)
    mean, var = torch.zeros(5), torch.ones(5)
    expected = F.batch_norm(
        flat, mean, var, norm.weight, norm.bias, training=True, momentum=MOMENTUM, eps=EPS
    )
    torch.testing.assert_close(norm(x), expected.view_as(x))
    torch.testing.assert_close(norm.mean, mean)
    torch.testing.assert_close(norm.var, var)


@pytest.mark.parametrize("name", SHAPES)
def test_several_steps_are_normalised_each_by_itself(name, generator):
    norm, x, _ = made(name, generator)
    steps = torch.stack([x, 5 * x - 1, -x])
    alone = torch.stack([norm(step) for step in steps])
    with unwatched():
        torch.testing.assert_close(norm(steps), alone)


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_torchs(name, generator):
    norm, x, _ = made(name, generator)
    x.requires_grad_()
    flat = x.flatten(0, SHAPES[name][1] - 1)
    weight = torch.randn(x.shape, generator=generator)
    expected = F.batch_norm(flat, None, None, norm.weight, norm.bias, training=True, eps=EPS)
    leaves = [x, norm.weight, norm.bias]
    wanted = torch.autograd.grad((expected.view_as(x) * weight).sum(), leaves)
    for a, b in zip(torch.autograd.grad((norm(x) * weight).sum(), leaves), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_row_alone_is_normalised_by_what_was_seen_in_training(generator):
    """Of a stationary input: the same as beside all others, in the long run."""
    norm = BatchNorm(3)
    scale, shift = torch.tensor([1.0, 5.0, 0.2]), torch.tensor([0.0, -4.0, 9.0])
    for _ in range(2_000):
        norm(scale * torch.randn(16, 3, generator=generator) + shift)
    norm.eval()
    x = torch.randn(200, 3, generator=generator)
    together = norm(scale * x + shift)
    alone = torch.cat([norm(row[None]) for row in scale * x + shift])
    assert torch.equal(together, alone)
    assert (alone - x).abs().mean() < 0.05


def test_in_evaluation_nothing_is_learned_and_nothing_watched(generator):
    norm = BatchNorm(3).eval()
    before = norm.state_dict()
    norm(torch.randn(4, 3, generator=generator))
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())


def test_what_is_derived_again_is_not_seen_twice(generator):
    norm = BatchNorm(3)
    norm(torch.randn(4, 3, generator=generator))
    kept = norm.mean.clone(), norm.var.clone()
    with unwatched():
        norm(torch.randn(4, 3, generator=generator))
    assert torch.equal(norm.mean, kept[0])
    assert torch.equal(norm.var, kept[1])
    norm(torch.randn(4, 3, generator=generator))
    assert not torch.equal(norm.mean, kept[0])


def test_a_single_row_in_training_is_its_own_mean():
    """No variance, no division by zero: the shift is what remains."""
    norm = BatchNorm(2)
    assert torch.equal(norm(torch.tensor([[3.0, -7.0]])), torch.zeros(1, 2))
    assert norm.var.isfinite().all()


@pytest.mark.parametrize("mean", [0.0, 0.01, 3.0, 1e4])
def test_equal_numbers_let_no_gradient_through(mean, generator):
    """Their variance is rounding; its inverse would make the rounding of gradients large."""
    norm = BatchNorm(3, places=2)
    x = torch.full((16, 3, 9, 9), mean)
    x = (x * (1 + 1e-7 * torch.rand(x.shape, generator=generator))).requires_grad_()
    seen = norm(x)
    weight = torch.randn(x.shape, generator=generator)
    of_x, of_bias = torch.autograd.grad((seen * weight).sum(), [x, norm.bias])
    assert not of_x.any()
    assert not seen.any()
    torch.testing.assert_close(of_bias, weight.sum((0, 2, 3)))


def test_blank_screens_alone_teach_convolutions_what_they_do_in_double_precision(generator):
    torch.manual_seed(0)
    eye = Convolutions(1, norm=True)
    with torch.no_grad():
        for p in eye.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    weight = torch.randn(16, eye(torch.zeros(16, 1, 84, 84)).shape[1], generator=generator)
    found = {}
    for dtype in (torch.float32, torch.float64):
        eye.to(dtype)
        loss = (eye(torch.zeros(16, 1, 84, 84, dtype=dtype)) * weight.to(dtype)).sum()
        found[dtype] = torch.autograd.grad(loss, list(eye.parameters()))
    for single, double in zip(*found.values(), strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-3)
    assert max(g.abs().max() for g in found[torch.float64]) > 1
