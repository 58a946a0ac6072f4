"""Layers with the paper's initialisation, and layers that share one context among particles.

Particles of one environment see the same observation and action. A layer on [h, context] is
W_h h + (W_c context + b): the bracket is computed once per environment and added to all K.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dvrl.core.laws import Gaussian
from dvrl.fuse import product
from dvrl.nets.norm import BatchNorm

RELU_GAIN = math.sqrt(2)


class Affine(NamedTuple):
    """A layer's parameters."""

    weight: Float[Tensor, "O D"]
    bias: Float[Tensor, " O"]


class Linear(nn.Linear):
    """A layer that may be fused with its neighbours."""

    def forward(self, input: Float[Tensor, "*B D"]) -> Float[Tensor, "*B O"]:
        return product(input, self.weight, self.bias)


def linear(n_in: int, n_out: int, gain: float = RELU_GAIN) -> nn.Linear:
    """Orthogonal weights, zero bias."""
    layer = Linear(n_in, n_out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(n_in: int, sizes: Sequence[int]) -> nn.Sequential:
    """Fully connected layers, a ReLU behind each."""
    layers: list[nn.Module] = []
    for size in sizes:
        layers += [linear(n_in, size), nn.ReLU()]
        n_in = size
    return nn.Sequential(*layers)


def embed_action(action_dim: int, a_dim: int, norm: bool) -> nn.Sequential:
    """phi^a: one layer, normalised where asked for, and a ReLU."""
    layers = [linear(action_dim, a_dim), nn.ReLU()]
    return nn.Sequential(*(layers if not norm else [layers[0], BatchNorm(a_dim), layers[1]]))


def gru_cell(n_in: int, n_hidden: int) -> nn.GRUCell:
    """Orthogonal weights over all gates at once, zero biases."""
    cell = nn.GRUCell(n_in, n_hidden)
    for weight in (cell.weight_ih, cell.weight_hh):
        nn.init.orthogonal_(weight)
    for bias in (cell.bias_ih, cell.bias_hh):
        nn.init.zeros_(bias)
    return cell


class ContextLinear(nn.Module):
    """A linear layer on [own, context], the context shared by all particles of an environment."""

    def __init__(self, n_own: int, n_context: int, n_out: int) -> None:
        super().__init__()
        self.split = [n_own, n_context]
        layer = linear(n_own + n_context, n_out)
        self.weight, self.bias = layer.weight, layer.bias

    def forward(
        self, own: Float[Tensor, "*G N K D"], context: Float[Tensor, "*G N C"]
    ) -> Float[Tensor, "*G N K O"]:
        w_own, w_context = self.weight.split(self.split, 1)
        return F.linear(own, w_own) + F.linear(context, w_context, self.bias)[..., None, :]


class ContextGRUCell(nn.Module):
    """A GRU cell on input [own, context] with the context shared by all particles."""

    def __init__(self, n_own: int, n_context: int, n_hidden: int) -> None:
        super().__init__()
        self.split = [n_own, n_context]
        self.weight_ih = nn.Parameter(torch.empty(3 * n_hidden, n_own + n_context))
        self.weight_hh = nn.Parameter(torch.empty(3 * n_hidden, n_hidden))
        self.bias_ih = nn.Parameter(torch.zeros(3 * n_hidden))
        self.bias_hh = nn.Parameter(torch.zeros(3 * n_hidden))
        nn.init.orthogonal_(self.weight_ih)
        nn.init.orthogonal_(self.weight_hh)

    def forward(
        self, own: Float[Tensor, "N K D"], context: Float[Tensor, "N C"], h: Float[Tensor, "N K H"]
    ) -> Float[Tensor, "N K H"]:
        w_own, w_context = self.weight_ih.split(self.split, 1)
        gates_i = F.linear(own, w_own) + F.linear(context, w_context, self.bias_ih)[:, None]
        gates_h = F.linear(h, self.weight_hh, self.bias_hh)
        return gru_step(gates_i, gates_h, h)


def gru_step(
    gates_i: Float[Tensor, "*B G"], gates_h: Float[Tensor, "*B G"], h: Float[Tensor, "*B H"]
) -> Float[Tensor, "*B H"]:
    """One GRU step from its projected input and state, G = 3H (the gate layout of torch)."""
    r_i, u_i, n_i = gates_i.chunk(3, -1)
    r_h, u_h, n_h = gates_h.chunk(3, -1)
    reset = torch.sigmoid(r_i + r_h)
    keep = torch.sigmoid(u_i + u_h)
    new = torch.tanh(n_i + reset * n_h)
    return new + keep * (h - new)


def new_gate_first(gates: Float[Tensor, "G *D"]) -> Float[Tensor, "G *D"]:
    """Rows (r, u, n) of a GRU's weight or bias as (n, r, u), the order of core.gru's inputs."""
    r, u, n = gates.chunk(3)
    return torch.cat([n, r, u])


class GaussianHead(nn.Module):
    """Two linear heads: mean, and variance through softplus, never below `min_var`."""

    def __init__(self, n_in: int, n_out: int, min_var: float) -> None:
        super().__init__()
        self.min_var = min_var
        self.mean = linear(n_in, n_out)
        self.var = linear(n_in, n_out)

    def forward(self, x: Float[Tensor, "*B D"]) -> Gaussian:
        return Gaussian(self.mean(x), F.softplus(self.var(x)) + self.min_var)

    def packed(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of both heads as one layer, the mean's first."""
        return (
            torch.cat([self.mean.weight, self.var.weight]),
            torch.cat([self.mean.bias, self.var.bias]),
        )
