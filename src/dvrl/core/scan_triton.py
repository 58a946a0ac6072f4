"""The scan of core.gru as one kernel on a GPU: a program per row, the weights in its registers.

Plain float32, no tensor cores: a row's product is a matrix times a vector, bound by the latency of
one input after the other. Held to core.gru's own loop by tests in Triton's interpreter.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _product(w, x):
    """The matrix w [H, outer, inner] times the vector x [outer, inner]."""
    return tl.sum(tl.sum(w * x[None, :, :], 1), 1)


@triton.jit
def _product_transposed(w, x):
    """The vector x [lanes, inner] times the matrix w [lanes, H, inner]."""
    return tl.sum(tl.sum(w * x[:, None, :], 2), 0)


@triton.jit
def _forward(
    gates_ptr, w_ptr, b_ptr, last_ptr, before_ptr, tape_ptr,
    L: tl.constexpr, H: tl.constexpr, LANES: tl.constexpr, TAPED: tl.constexpr,
):  # fmt: skip
    """LANES threads share an output and hold its weights."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, H)
    INNER: tl.constexpr = 4 * LANES
    OUTER: tl.constexpr = H // INNER
    inner = tl.arange(0, OUTER)[None, :, None] * INNER + tl.arange(0, INNER)[None, None, :]
    w_ptr += column[:, None, None] * H + inner
    w_r = tl.load(w_ptr)
    w_u = tl.load(w_ptr + H * H)
    w_n = tl.load(w_ptr + 2 * H * H)
    b_r = tl.load(b_ptr + column)
    b_u = tl.load(b_ptr + H + column)
    b_n = tl.load(b_ptr + 2 * H + column)

    gates_ptr += row * L * 3 * H + column
    before_ptr += row * L * H + column
    two = tl.arange(0, 2)
    tape_ptr += row * L * 4 * H
    tape_ptr += column[:, None, None] + (two[None, :, None] + 2 * two[None, None, :]) * H
    h = tl.zeros([H], tl.float32)
    gate_n = tl.load(gates_ptr)
    gate_r = tl.load(gates_ptr + H)
    gate_u = tl.load(gates_ptr + 2 * H)
    for t in range(L):
        # The next input is on its way while this one is read.
        gates_ptr += 3 * H
        ahead = t + 1 < L
        next_n = tl.load(gates_ptr, mask=ahead, other=0.0)
        next_r = tl.load(gates_ptr + H, mask=ahead, other=0.0)
        next_u = tl.load(gates_ptr + 2 * H, mask=ahead, other=0.0)
        x = tl.reshape(h, [OUTER, INNER])
        r = tl.sigmoid(gate_r + _product(w_r, x) + b_r)
        u = tl.sigmoid(gate_u + _product(w_u, x) + b_u)
        n_h = _product(w_n, x) + b_n
        n = 2 * tl.sigmoid(2 * (gate_n + r * n_h)) - 1  # tanh
        if TAPED:
            tl.store(before_ptr, h)
            # One store, since each passes through shared memory and two barriers.
            tl.store(tape_ptr, tl.join(tl.join(r, u), tl.join(n, n_h)))
            before_ptr += H
            tape_ptr += 4 * H
        h = n + u * (h - n)
        gate_n, gate_r, gate_u = next_n, next_r, next_u
    tl.store(last_ptr + row * H + column, h)


@triton.jit(do_not_specialize=["one"])
def _backward(
    d_last_ptr, before_ptr, tape_ptr, w_ptr, d_gates_ptr, one,
    L: tl.constexpr, H: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """From the last input to the first; `one` is 1, which the compiler must not know."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, H)
    INNER: tl.constexpr = H // LANES
    inner = tl.arange(0, LANES)[:, None, None] * INNER + tl.arange(0, INNER)[None, None, :]
    # Were the columns known to be contiguous, the compiler would spread them over a thread's
    # registers, and the sums would cross the warps instead of staying within a thread.
    w_ptr += inner * H + column[None, :, None] * one
    w_r = tl.load(w_ptr)
    w_u = tl.load(w_ptr + H * H)
    w_n = tl.load(w_ptr + 2 * H * H)

    step = row * L + L - 1
    before_ptr += step * H + column
    tape_ptr += step * 4 * H + column
    two = tl.arange(0, 2)
    d_gates_ptr += step * 4 * H
    d_gates_ptr += column[:, None, None] + (two[None, :, None] + 2 * two[None, None, :]) * H
    d_h = tl.load(d_last_ptr + row * H + column)
    r = tl.load(tape_ptr)
    u = tl.load(tape_ptr + H)
    n = tl.load(tape_ptr + 2 * H)
    n_h = tl.load(tape_ptr + 3 * H)
    h = tl.load(before_ptr)
    for t in range(L):
        tape_ptr -= 4 * H
        before_ptr -= H
        ahead = t + 1 < L
        next_r = tl.load(tape_ptr, mask=ahead, other=0.0)
        next_u = tl.load(tape_ptr + H, mask=ahead, other=0.0)
        next_n = tl.load(tape_ptr + 2 * H, mask=ahead, other=0.0)
        next_nh = tl.load(tape_ptr + 3 * H, mask=ahead, other=0.0)
        next_h = tl.load(before_ptr, mask=ahead, other=0.0)
        d_n = d_h * (1 - u) * (1 - n * n)
        d_u = d_h * (h - n) * u * (1 - u)
        d_r = d_n * n_h * r * (1 - r)
        d_nh = d_n * r
        tl.store(d_gates_ptr, tl.join(tl.join(d_n, d_r), tl.join(d_u, d_nh)))
        d_gates_ptr -= 4 * H
        d_h = d_h * u
        d_h += _product_transposed(w_r, tl.reshape(d_r, [LANES, INNER]))
        d_h += _product_transposed(w_u, tl.reshape(d_u, [LANES, INNER]))
        d_h += _product_transposed(w_n, tl.reshape(d_nh, [LANES, INNER]))
        r, u, n, n_h, h = next_r, next_u, next_n, next_nh, next_h


def supports(hidden: int) -> bool:
    """Sizes whose weights fit the registers of one program."""
    return hidden in (16, 32, 64, 128)


def _shape(hidden: int) -> dict[str, int]:
    warps = hidden // 16
    return {"H": hidden, "LANES": min(hidden // 4, 32 * warps // hidden), "num_warps": warps}


def forward(
    gates_i: Tensor, weight: Tensor, bias: Tensor, taped: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """core.gru.scan_taped; without `taped` the second and third result mean nothing."""
    n, length, hidden = *gates_i.shape[:2], weight.shape[1]
    last = gates_i.new_empty(n, hidden)
    before = gates_i.new_empty(n, length, hidden) if taped else last
    tape = gates_i.new_empty(n, length, 4 * hidden) if taped else last
    _forward[(n,)](
        gates_i.contiguous(), weight.contiguous(), bias.contiguous(), last, before, tape,
        L=length, TAPED=taped, **_shape(hidden),
    )  # fmt: skip
    return last, before, tape


def backward(d_last: Tensor, before: Tensor, tape: Tensor, weight: Tensor) -> Tensor:
    """core.gru.scan_back."""
    n, length, hidden = before.shape
    d_gates = torch.empty_like(tape)
    _backward[(n,)](
        d_last.contiguous(), before, tape, weight.contiguous(), d_gates, 1,
        L=length, **_shape(hidden),
    )  # fmt: skip
    return d_gates
