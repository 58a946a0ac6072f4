"""The scan of core.scan as one kernel on a GPU, the weights on the chip from the first input to the
last.

A program per row computes in plain float32: a matrix times a vector, bound by the latency of one
input after the other. Where there are many rows and tf32 is allowed, a program per 16 rows uses the
tensor cores. Held to core.scan's own loop by tests in Triton's interpreter.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dvrl.core import cell_triton


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
            tl.store(tape_ptr, tl.join(tl.join(n, r), tl.join(u, n_h)))
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
    n = tl.load(tape_ptr)
    r = tl.load(tape_ptr + H)
    u = tl.load(tape_ptr + 2 * H)
    n_h = tl.load(tape_ptr + 3 * H)
    h = tl.load(before_ptr)
    for t in range(L):
        tape_ptr -= 4 * H
        before_ptr -= H
        ahead = t + 1 < L
        next_n = tl.load(tape_ptr, mask=ahead, other=0.0)
        next_r = tl.load(tape_ptr + H, mask=ahead, other=0.0)
        next_u = tl.load(tape_ptr + 2 * H, mask=ahead, other=0.0)
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


@triton.jit
def _forward_rows(
    gates_ptr, w_ptr, b_ptr, last_ptr, before_ptr, tape_ptr, n_rows,
    L: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr, TAPED: tl.constexpr,
):  # fmt: skip
    """BLOCK rows per program."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, H)[None, :]
    there = row < n_rows
    w_ptr += column * H + tl.arange(0, H)[:, None]  # transposed
    w_r = tl.load(w_ptr)
    w_u = tl.load(w_ptr + H * H)
    w_n = tl.load(w_ptr + 2 * H * H)
    b_r = tl.load(b_ptr + column)
    b_u = tl.load(b_ptr + H + column)
    b_n = tl.load(b_ptr + 2 * H + column)
    gates_ptr += row * (L * 3 * H) + column
    before_ptr += row * (L * H) + column
    tape_ptr += row * (L * 4 * H) + column
    h = tl.zeros([BLOCK, H], tl.float32)
    for _ in range(L):
        gate_n = tl.load(gates_ptr, mask=there, other=0.0)
        gate_r = tl.load(gates_ptr + H, mask=there, other=0.0)
        gate_u = tl.load(gates_ptr + 2 * H, mask=there, other=0.0)
        r = tl.sigmoid(gate_r + b_r + tl.dot(h, w_r, input_precision="tf32"))
        u = tl.sigmoid(gate_u + b_u + tl.dot(h, w_u, input_precision="tf32"))
        n_h = b_n + tl.dot(h, w_n, input_precision="tf32")
        n = 2 * tl.sigmoid(2 * (gate_n + r * n_h)) - 1  # tanh
        if TAPED:
            tl.store(before_ptr, h, mask=there)
            tl.store(tape_ptr, n, mask=there)
            tl.store(tape_ptr + H, r, mask=there)
            tl.store(tape_ptr + 2 * H, u, mask=there)
            tl.store(tape_ptr + 3 * H, n_h, mask=there)
            before_ptr += H
            tape_ptr += 4 * H
        h = n + u * (h - n)
        gates_ptr += 3 * H
    tl.store(last_ptr + row * H + column, h, mask=there)


@triton.jit
def _backward_rows(
    d_last_ptr, before_ptr, tape_ptr, w_ptr, d_gates_ptr, n_rows,
    L: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK rows per program, from the last input to the first."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, H)[None, :]
    there = row < n_rows
    w_ptr += tl.arange(0, H)[:, None] * H + column
    w_r = tl.load(w_ptr)
    w_u = tl.load(w_ptr + H * H)
    w_n = tl.load(w_ptr + 2 * H * H)
    step = row * L + L - 1
    before_ptr += step * H + column
    tape_ptr += step * (4 * H) + column
    d_gates_ptr += step * (4 * H) + column
    d_h = tl.load(d_last_ptr + row * H + column, mask=there, other=0.0)
    for _ in range(L):
        n = tl.load(tape_ptr, mask=there, other=0.0)
        r = tl.load(tape_ptr + H, mask=there, other=0.0)
        u = tl.load(tape_ptr + 2 * H, mask=there, other=0.0)
        n_h = tl.load(tape_ptr + 3 * H, mask=there, other=0.0)
        h = tl.load(before_ptr, mask=there, other=0.0)
        d_n = d_h * (1 - u) * (1 - n * n)
        d_u = d_h * (h - n) * u * (1 - u)
        d_r = d_n * n_h * r * (1 - r)
        d_nh = d_n * r
        tl.store(d_gates_ptr, d_n, mask=there)
        tl.store(d_gates_ptr + H, d_r, mask=there)
        tl.store(d_gates_ptr + 2 * H, d_u, mask=there)
        tl.store(d_gates_ptr + 3 * H, d_nh, mask=there)
        d_h = d_h * u + tl.dot(d_r, w_r, input_precision="tf32")
        d_h += tl.dot(d_u, w_u, input_precision="tf32")
        d_h += tl.dot(d_nh, w_n, input_precision="tf32")
        before_ptr -= H
        tape_ptr -= 4 * H
        d_gates_ptr -= 4 * H


ROWS = 16
"""Rows per program with tensor cores, the fewest they take."""
MANY = 256
"""Rows from which on a program per 16 rows is faster than a program per row."""


def supports(hidden: int) -> bool:
    """Sizes whose weights fit one program; others go input by input (core.cell_triton)."""
    return hidden in (16, 32, 64, 128)


def _row_shape(hidden: int) -> dict[str, int]:
    warps = hidden // 16
    return {"H": hidden, "LANES": min(hidden // 4, 32 * warps // hidden), "num_warps": warps}


def forward(
    gates_i: Tensor, weight: Tensor, bias: Tensor, results: tuple[Tensor, ...], *, tf32: bool
) -> None:
    """core.scan.scan_taped, written to `results`; if there is but one, the last state alone."""
    n, length, hidden = *gates_i.shape[:2], weight.shape[1]
    if not supports(hidden):
        return cell_triton.forward(gates_i, weight, bias, results, tf32=tf32)
    taped = len(results) > 1
    last, before, tape = results if taped else 3 * results
    tensors = gates_i.contiguous(), weight.contiguous(), bias.contiguous(), last, before, tape
    if tf32 and n >= MANY:
        _forward_rows[(triton.cdiv(n, ROWS),)](
            *tensors, n, L=length, H=hidden, BLOCK=ROWS, TAPED=taped, num_warps=8, num_stages=1
        )
    else:
        _forward[(n,)](*tensors, L=length, TAPED=taped, **_row_shape(hidden))


def backward(d_last: Tensor, before: Tensor, tape: Tensor, weight: Tensor, tf32: bool) -> Tensor:
    """core.scan.scan_back."""
    n, length, hidden = before.shape
    if not supports(hidden):
        return cell_triton.backward(d_last, before, tape, weight, tf32=tf32)
    d_gates = torch.empty_like(tape)
    tensors = d_last.contiguous(), before, tape, weight.contiguous(), d_gates
    if tf32 and n >= MANY:
        _backward_rows[(triton.cdiv(n, ROWS),)](
            *tensors, n, L=length, H=hidden, BLOCK=ROWS, num_warps=8, num_stages=1
        )
    else:
        _backward[(n,)](*tensors, 1, L=length, **_row_shape(hidden))
    return d_gates
