"""The scan of core.scan on a GPU for states too large for one program: one kernel an input.

The weights of h = 256 do not fit a program's memory, so no kernel can keep them from the first
input to the last. What is left is to have few kernels and many programs: each has a tile of the new
state, product and gates in one. Held to core.scan's own loop by tests in Triton's interpreter.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dvrl.core.tiles_triton import product, tiles, total


@triton.jit
def tile(n_rows, H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows and columns of a program, and which elements exist. Rows beyond the last repeat it."""
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    real = (row < n_rows)[:, None] & (column < H)[None, :]
    return tl.minimum(row, n_rows - 1), column, real


@triton.jit
def _forward(
    gates_ptr, h_ptr, w_ptr, b_ptr, out_ptr, tape_ptr, gates_row, h_row, out_row, tape_row, n_rows,
    H: tl.constexpr, FIRST: tl.constexpr, TAPED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h' = n + u (h - n), n = tanh(n_i + r n_h); before the FIRST input h is zero."""
    row, column, real = tile(n_rows, H, ROWS, COLUMNS)
    gates_ptr += row[:, None] * gates_row + column[None, :]
    n_i = tl.load(gates_ptr, mask=real)
    r = tl.load(gates_ptr + H, mask=real)
    u = tl.load(gates_ptr + 2 * H, mask=real)
    b_ptr += column
    r += tl.load(b_ptr, mask=column < H)[None, :]
    u += tl.load(b_ptr + H, mask=column < H)[None, :]
    n_h = tl.zeros([ROWS, COLUMNS], tl.float32)
    n_h += tl.load(b_ptr + 2 * H, mask=column < H)[None, :]
    h_at = h_ptr + row[:, None] * h_row + column[None, :]
    if FIRST:
        h = tl.zeros([ROWS, COLUMNS], tl.float32)
        if TAPED:
            tl.store(h_at, h, mask=real)
    else:
        h = tl.load(h_at, mask=real)
        zero = tl.zeros([WARPS, ROWS, COLUMNS], tl.float32)
        of_r, of_u, of_n = product(
            h_ptr + row * h_row, w_ptr, column, H, H, 1, H, WARPS, PRECISION, zero, zero, zero
        )  # fmt: skip
        r += total(of_r, WARPS, ROWS, COLUMNS)
        u += total(of_u, WARPS, ROWS, COLUMNS)
        n_h += total(of_n, WARPS, ROWS, COLUMNS)
    r = tl.sigmoid(r)
    u = tl.sigmoid(u)
    n = 2 * tl.sigmoid(2 * (n_i + r * n_h)) - 1  # tanh
    tl.store(out_ptr + row[:, None] * out_row + column[None, :], n + u * (h - n), mask=real)
    if TAPED:
        tape_ptr += row[:, None] * tape_row + column[None, :]
        tl.store(tape_ptr, n, mask=real)
        tl.store(tape_ptr + H, r, mask=real)
        tl.store(tape_ptr + 2 * H, u, mask=real)
        tl.store(tape_ptr + 3 * H, n_h, mask=real)


@triton.jit
def _backward(
    later_ptr, w_ptr, flow_ptr, bypass_ptr, h_ptr, tape_ptr, d_gates_ptr, h_row, tape_row, n_rows,
    H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """From the gradients of the later input's gates, if there is one, to those of this input's
    (n, r, u, n_h). Beside them flows what bypassed the gates."""
    row, column, real = tile(n_rows, H, ROWS, COLUMNS)
    tape_at = row[:, None] * tape_row + column[None, :]
    n = tl.load(tape_ptr + tape_at, mask=real)
    r = tl.load(tape_ptr + tape_at + H, mask=real)
    u = tl.load(tape_ptr + tape_at + 2 * H, mask=real)
    n_h = tl.load(tape_ptr + tape_at + 3 * H, mask=real)
    h = tl.load(h_ptr + row[:, None] * h_row + column[None, :], mask=real)
    at = row[:, None] * H + column[None, :]
    d = tl.load(flow_ptr + at, mask=real)
    if later_ptr is not None:
        zero = tl.zeros([WARPS, ROWS, COLUMNS], tl.float32)
        x_ptr = later_ptr + row * tape_row + H
        acc = product(x_ptr, w_ptr, column, 3 * H, H, H, 1, WARPS, PRECISION, zero)
        d += total(acc, WARPS, ROWS, COLUMNS)
    d_n = d * (1 - u) * (1 - n * n)
    d_gates_ptr += tape_at
    tl.store(d_gates_ptr, d_n, mask=real)
    tl.store(d_gates_ptr + H, d_n * n_h * r * (1 - r), mask=real)
    tl.store(d_gates_ptr + 2 * H, d * (h - n) * u * (1 - u), mask=real)
    tl.store(d_gates_ptr + 3 * H, d_n * r, mask=real)
    tl.store(bypass_ptr + at, d * u, mask=real)


def forward(
    gates_i: Tensor, weight: Tensor, bias: Tensor, results: tuple[Tensor, ...], *, tf32: bool
) -> None:
    """core.scan.scan_taped, written to `results`; if there is but one, the last state alone."""
    n, length, hidden = *gates_i.shape[:2], weight.shape[1]
    taped = len(results) > 1
    # Without a tape there are two states in turns.
    last, before, tape = (
        results if taped else (*results, gates_i.new_empty(n, 2, hidden), results[0])
    )
    gates_i, weight, bias = gates_i.contiguous(), weight.contiguous(), bias.contiguous()
    states = [*(before[:, i if taped else i % 2] for i in range(length)), last]
    grid, sizes = tiles(n, hidden, "tf32" if tf32 else "tf32x3")
    for i in range(length):
        _forward[grid](
            gates_i[:, i], states[i], weight, bias, states[i + 1], tape[:, i] if taped else tape,
            gates_i.stride(0), states[i].stride(0), states[i + 1].stride(0), tape.stride(0), n,
            H=hidden, FIRST=i == 0, TAPED=taped, **sizes,
        )  # fmt: skip


def backward(d_last: Tensor, before: Tensor, tape: Tensor, weight: Tensor, *, tf32: bool) -> Tensor:
    """core.scan.scan_back."""
    n, length, hidden = before.shape
    d_gates, bypass = torch.empty_like(tape), before.new_empty(n, hidden)
    flow, weight, later = d_last.contiguous(), weight.contiguous(), None
    grid, sizes = tiles(n, hidden, "tf32" if tf32 else "tf32x3")
    for i in reversed(range(length)):
        _backward[grid](
            later, weight, flow, bypass, before[:, i], tape[:, i], d_gates[:, i],
            before.stride(0), tape.stride(0), n, H=hidden, **sizes,
        )  # fmt: skip
        flow, later = bypass, d_gates[:, i]
    return d_gates
