"""Layers that share a context are ordinary layers, computed once; and how layers begin."""

import math

import pytest
import torch
from torch import Tensor, nn

from dvrl.nets.layers import (
    ContextGRUCell,
    ContextLinear,
    GaussianHead,
    gru_cell,
    gru_step,
    linear,
    mlp,
)

N, K, D, C, H = 3, 5, 4, 6, 7


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def inputs(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def joined(own: Tensor, context: Tensor) -> Tensor:
    """Every particle with its own copy of the context."""
    return torch.cat([own, context[:, None].expand(-1, own.shape[1], -1)], -1)


def assert_same_gradients(one: Tensor, other: Tensor, one_leaves: list, other_leaves: list) -> None:
    direction = torch.randn_like(one)
    mine = torch.autograd.grad((one * direction).sum(), one_leaves)
    theirs = torch.autograd.grad((other * direction).sum(), other_leaves)
    assert all(map(torch.allclose, mine, theirs))


# One context, many particles


@pytest.mark.parametrize("k", [1, K])
def test_a_context_layer_is_a_linear_layer_on_particle_and_context(k):
    layer, plain = ContextLinear(D, C, H).double(), nn.Linear(D + C, H).double()
    nn.init.normal_(layer.bias)
    plain.load_state_dict(layer.state_dict())
    own, context = inputs((N, k, D), (N, C))
    one, other = layer(own, context), plain(joined(own, context))
    assert torch.allclose(one, other)
    leaves = [own, context]
    assert_same_gradients(
        one, other, [*leaves, *layer.parameters()], [*leaves, *plain.parameters()]
    )


@pytest.mark.parametrize("k", [1, K])
def test_a_context_cell_is_a_gru_cell_on_particle_and_context(k):
    cell, plain = ContextGRUCell(D, C, H).double(), nn.GRUCell(D + C, H).double()
    nn.init.normal_(cell.bias_ih)
    nn.init.normal_(cell.bias_hh)
    plain.load_state_dict(cell.state_dict())
    own, context, h = inputs((N, k, D), (N, C), (N, k, H))
    one = cell(own, context, h)
    other = plain(joined(own, context).flatten(0, 1), h.flatten(0, 1)).unflatten(0, (N, k))
    assert torch.allclose(one, other)
    leaves = [own, context, h]
    assert_same_gradients(
        one,
        other,
        [*leaves, *(cell.get_parameter(name) for name, _ in plain.named_parameters())],
        [*leaves, *plain.parameters()],
    )


def test_one_context_is_not_mixed_with_another_environments_particles():
    layer, cell = ContextLinear(D, C, H).double(), ContextGRUCell(D, C, H).double()
    own, context, h = inputs((N, K, D), (N, C), (N, K, H))
    other = context.detach().clone()
    other[1] += 1
    for one, changed in [
        (layer(own, context), layer(own, other)),
        (cell(own, context, h), cell(own, other, h)),
    ]:
        assert torch.equal(one[[0, 2]], changed[[0, 2]])
        assert (one[1] != changed[1]).any(-1).all()


def test_a_closed_update_gate_keeps_the_state_and_an_open_one_replaces_it():
    h = torch.randn(N, H)
    gates = torch.zeros(N, 3 * H)
    closed, opened = gates.clone(), gates.clone()
    closed[:, H : 2 * H], opened[:, H : 2 * H] = 100, -100
    assert torch.allclose(gru_step(closed, gates, h), h)
    opened[:, 2 * H :] = 0.3
    assert torch.allclose(gru_step(opened, gates, h), torch.full((N, H), math.tanh(0.3)))


# How layers begin


@pytest.mark.parametrize(("n_in", "n_out"), [(8, 3), (3, 8), (5, 5)])
def test_linear_layers_begin_orthogonal_with_the_gain_of_relus(n_in, n_out):
    layer = linear(n_in, n_out)
    weight = layer.weight if n_out <= n_in else layer.weight.T
    assert torch.allclose(weight @ weight.T, 2 * torch.eye(len(weight)), atol=1e-5)
    assert not layer.bias.any()


def test_context_layers_begin_as_one_orthogonal_matrix():
    weight = ContextLinear(D, C, 5).weight
    assert torch.allclose(weight @ weight.T, 2 * torch.eye(5), atol=1e-5)


@pytest.mark.parametrize("cell", [gru_cell(D + C, H), ContextGRUCell(D, C, H)], ids=["own", "ctx"])
def test_gru_cells_begin_orthogonal_over_all_gates_with_zero_biases(cell):
    for weight in (cell.weight_ih, cell.weight_hh):
        assert torch.allclose(weight.T @ weight, torch.eye(weight.shape[1]), atol=1e-5)
    assert not cell.bias_ih.any()
    assert not cell.bias_hh.any()


def test_a_perceptron_is_linear_layers_with_a_relu_behind_each():
    net = mlp(3, [8, 4])
    x = torch.randn(10, 3)
    first, second = (layer for layer in net if isinstance(layer, nn.Linear))
    assert torch.allclose(net(x), second(first(x).relu()).relu())
    assert [(layer.in_features, layer.out_features) for layer in (first, second)] == [
        (3, 8),
        (8, 4),
    ]


# Learned laws


def test_a_gaussian_head_gives_a_linear_mean_and_a_softplus_variance():
    head = GaussianHead(D, 2, min_var=0.01)
    x = torch.randn(N, K, D)
    law = head(x)
    assert torch.allclose(law.mean, x @ head.mean.weight.T)
    assert torch.allclose(law.var, (1 + (x @ head.var.weight.T).exp()).log() + 0.01, atol=1e-6)


@pytest.mark.parametrize("min_var", [1e-4, 0.5])
def test_a_learned_variance_never_falls_below_its_floor(min_var):
    head = GaussianHead(1, 1, min_var)
    with torch.no_grad():
        head.var.weight.fill_(1)
    x = torch.tensor([[-1e4], [-100.0], [0.0], [1e4]], requires_grad=True)
    law = head(x)
    assert law.var[:2, 0].tolist() == pytest.approx([min_var] * 2)
    assert law.var[2, 0].item() == pytest.approx(math.log(2) + min_var)
    assert law.var[3, 0].item() == pytest.approx(1e4 + min_var, rel=1e-5)
    law.log_prob(torch.zeros(4, 1)).sum().backward()
    assert x.grad.isfinite().all()
