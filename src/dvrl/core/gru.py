"""The gated recurrent unit without parameters: a step, its derivative, and a scan over inputs.

Gates come projected. Those of the input are ordered (n, r, u) - new, reset, update - and those of
the state (r, u, n): laid side by side as (n, r, u, n_h) the gradients of both are slices of one
tensor, and each is one operand of one matrix product. Sizes: G = 3H, R = 2H, D = 4H.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dvrl.core import tree


class GruTape(NamedTuple):
    """What a step knew: its activations."""

    ru: Float[Tensor, "*B R"]
    """Reset and update gate."""
    n: Float[Tensor, "*B H"]
    n_h: Float[Tensor, "*B H"]
    """What the state offers the new value before the reset gate."""


class GruSlopes(NamedTuple):
    """The step's derivative: everything the way back needs to multiply by."""

    n: Float[Tensor, "*B H"]
    u: Float[Tensor, "*B H"]
    r: Float[Tensor, "*B H"]
    reset: Float[Tensor, "*B H"]
    keep: Float[Tensor, "*B H"]


def step(
    gates_i: Float[Tensor, "*B G"], gates_h: Float[Tensor, "*B G"], h: Float[Tensor, "*B H"]
) -> tuple[Float[Tensor, "*B H"], GruTape]:
    """h' = n + u (h - n) with n = tanh(n_i + r n_h); and what was known on the way."""
    size = h.shape[-1]
    ru = torch.sigmoid(gates_i[..., size:] + gates_h[..., : 2 * size])
    n_h = gates_h[..., 2 * size :]
    n = torch.tanh(torch.addcmul(gates_i[..., :size], ru[..., :size], n_h))
    return torch.lerp(n, h, ru[..., size:]), GruTape(ru, n, n_h)


def slopes(tape: GruTape, h: Float[Tensor, "*B H"]) -> GruSlopes:
    """The derivative at a step that began in state `h`."""
    r, u = tape.ru.chunk(2, -1)
    rest_r, rest_u = (1 - tape.ru).chunk(2, -1)
    return GruSlopes(
        n=rest_u * (1 - tape.n.square()),
        u=(h - tape.n) * u * rest_u,
        r=tape.n_h * r * rest_r,
        reset=r,
        keep=u,
    )


def step_backward(
    d_h: Float[Tensor, "*B H"], slope: GruSlopes, out: Float[Tensor, "*B D"]
) -> Float[Tensor, "*B H"]:
    """Gradients of the gates (n, r, u, n_h) into `out`; of the old state what bypassed them."""
    d_n, d_r, d_u, d_nh = out.chunk(4, -1)
    torch.mul(d_h, slope.n, out=d_n)
    torch.mul(d_n, slope.r, out=d_r)
    torch.mul(d_h, slope.u, out=d_u)
    torch.mul(d_n, slope.reset, out=d_nh)
    return d_h * slope.keep


def scan(
    gates_i: Float[Tensor, "N L G"], weight: Float[Tensor, "G H"], bias: Float[Tensor, " G"]
) -> Float[Tensor, "N H"]:
    """The state after reading all L inputs from state zero; `weight`, `bias`: (r, u, n)."""
    return _Scan.apply(gates_i, weight, bias)  # type: ignore[no-any-return]


def replay(
    gates_i: Float[Tensor, "T N G"],
    h_in: Float[Tensor, "N H"],
    weight: Float[Tensor, "G H"],
    bias: Float[Tensor, " G"],
    first: Bool[Tensor, "T N"],
    h_tm1: Float[Tensor, "T N H"],
    h: Float[Tensor, "T N H"],
    tape: GruTape,
) -> Float[Tensor, "T N H"]:
    """Recorded steps as a function of the first four; no gradient passes where `first`."""
    return _Replay.apply(first, h_tm1, h, tape, gates_i, h_in, weight, bias)  # type: ignore[no-any-return]


# Autograd would visit every step's every operation. Derived by hand, the way back is one product a
# step, and the weights' gradient one product in all.


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates_i: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        h = gates_i.new_zeros(gates_i.shape[0], weight.shape[1])
        states, tapes = [h], []
        transposed = weight.t()
        for i in range(gates_i.shape[1]):
            h, tape = step(gates_i[:, i], torch.addmm(bias, h, transposed), h)
            states.append(h)
            tapes.append(tape)
        if any(ctx.needs_input_grad):
            before = torch.stack(states[:-1])  # L, N, H
            ctx.slopes = slopes(tree.stack(tapes), before)
            ctx.save_for_backward(before, weight)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before, weight = ctx.saved_tensors
        d_gates, _ = _walk_back(ctx.slopes, weight, d_last=grads[0])
        d_weight, d_bias = _weight_gradients(d_gates, before)
        return d_gates[..., : 3 * before.shape[-1]].transpose(0, 1), d_weight, d_bias


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: Tensor, h_tm1: Tensor, h: Tensor, tape: GruTape, *inputs: Tensor
    ) -> Tensor:
        ctx.slopes = slopes(tape, h_tm1)
        ctx.first, ctx.h_tm1, ctx.weight = first, h_tm1, inputs[2]
        return h.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        d_gates, d_in = _walk_back(ctx.slopes, ctx.weight, d_all=grads[0], first=ctx.first)
        d_weight, d_bias = _weight_gradients(d_gates, ctx.h_tm1)
        return None, None, None, None, d_gates[..., : -d_in.shape[-1]], d_in, d_weight, d_bias


def _walk_back(
    slope: GruSlopes,
    weight: Tensor,
    d_last: Tensor | None = None,
    d_all: Tensor | None = None,
    first: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of all gates `L N 4H` and of the state before the first step."""
    length, n, size = slope.n.shape
    d_gates = slope.n.new_empty(length, n, 4 * size)
    d_h = slope.n.new_zeros(n, size) if d_last is None else d_last
    for i in reversed(range(length)):
        d_h = d_h if d_all is None else d_h + d_all[i]
        bypass = step_backward(d_h, tree.at(slope, i), d_gates[i])
        d_h = torch.addmm(bypass, d_gates[i, :, size:], weight)
        d_h = d_h if first is None else d_h.masked_fill(first[i, :, None], 0.0)
    return d_gates, d_h


def _weight_gradients(d_gates: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    size = before.shape[-1]
    d_state = d_gates[..., size:].flatten(0, 1)
    return d_state.t() @ before.flatten(0, 1), d_state.sum(0)
