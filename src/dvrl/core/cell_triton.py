"""The scan of core.scan on a GPU for states too large for one program: an input is a product and
one kernel.

The weights of h = 256 do not fit a program's memory, so no kernel can keep them from the first
input to the last. What is left is to have few kernels: everything but the product is one. Held to
core.scan's own loop by tests in Triton's interpreter.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _forward(
    gates_ptr, state_ptr, h_ptr, out_ptr, tape_ptr, gates_row, h_row, out_row, tape_row, count,
    H: tl.constexpr, TAPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """h' = n + u (h - n), n = tanh(n_i + r n_h), for `count` elements of all rows."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    row, column = at // H, at % H
    gates_ptr += row * gates_row + column
    state_ptr += row * (3 * H) + column
    n_i = tl.load(gates_ptr, mask=there)
    r = tl.sigmoid(tl.load(gates_ptr + H, mask=there) + tl.load(state_ptr, mask=there))
    u = tl.sigmoid(tl.load(gates_ptr + 2 * H, mask=there) + tl.load(state_ptr + H, mask=there))
    n_h = tl.load(state_ptr + 2 * H, mask=there)
    n = 2 * tl.sigmoid(2 * (n_i + r * n_h)) - 1  # tanh
    h = tl.load(h_ptr + row * h_row + column, mask=there)
    tl.store(out_ptr + row * out_row + column, n + u * (h - n), mask=there)
    if TAPED:
        tape_ptr += row * tape_row + column
        tl.store(tape_ptr, n, mask=there)
        tl.store(tape_ptr + H, r, mask=there)
        tl.store(tape_ptr + 2 * H, u, mask=there)
        tl.store(tape_ptr + 3 * H, n_h, mask=there)


@triton.jit
def _backward(
    d_ptr, h_ptr, tape_ptr, d_gates_ptr, bypass_ptr, h_row, tape_row, count,
    H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the gates (n, r, u, n_h), and of the old state as far as it bypassed them."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    row, column = at // H, at % H
    tape_ptr += row * tape_row + column
    d_gates_ptr += row * tape_row + column
    n = tl.load(tape_ptr, mask=there)
    r = tl.load(tape_ptr + H, mask=there)
    u = tl.load(tape_ptr + 2 * H, mask=there)
    n_h = tl.load(tape_ptr + 3 * H, mask=there)
    h = tl.load(h_ptr + row * h_row + column, mask=there)
    d = tl.load(d_ptr + at, mask=there)
    d_n = d * (1 - u) * (1 - n * n)
    tl.store(d_gates_ptr, d_n, mask=there)
    tl.store(d_gates_ptr + H, d_n * n_h * r * (1 - r), mask=there)
    tl.store(d_gates_ptr + 2 * H, d * (h - n) * u * (1 - u), mask=there)
    tl.store(d_gates_ptr + 3 * H, d_n * r, mask=there)
    tl.store(bypass_ptr + at, d * u, mask=there)


def forward(gates_i: Tensor, weight: Tensor, bias: Tensor, results: tuple[Tensor, ...]) -> None:
    """core.scan.scan_taped, written to `results`; if there is but one, the last state alone."""
    n, length, hidden = *gates_i.shape[:2], weight.shape[1]
    taped = len(results) > 1
    # Without a tape there are two states in turns.
    last, before, tape = (
        results if taped else (*results, gates_i.new_empty(n, 2, hidden), results[0])
    )
    of_state = gates_i.new_empty(n, 3 * hidden)
    gates_i, transposed, count = gates_i.contiguous(), weight.t(), n * hidden
    states = [*(before[:, i if taped else i % 2] for i in range(length)), last]
    states[0].zero_()
    for i in range(length):
        torch.addmm(bias, states[i], transposed, out=of_state)
        _forward[(triton.cdiv(count, BLOCK),)](
            gates_i[:, i], of_state, states[i], states[i + 1], tape[:, i] if taped else tape,
            gates_i.stride(0), states[i].stride(0), states[i + 1].stride(0), tape.stride(0),
            count, H=hidden, TAPED=taped, BLOCK=BLOCK,
        )  # fmt: skip


def backward(d_last: Tensor, before: Tensor, tape: Tensor, weight: Tensor) -> Tensor:
    """core.scan.scan_back."""
    n, length, hidden = before.shape
    d_gates, bypass = torch.empty_like(tape), before.new_empty(n, hidden)
    d_h, count = d_last.contiguous(), n * hidden
    for i in reversed(range(length)):
        _backward[(triton.cdiv(count, BLOCK),)](
            d_h, before[:, i], tape[:, i], d_gates[:, i], bypass,
            before.stride(0), tape.stride(0), count, H=hidden, BLOCK=BLOCK,
        )  # fmt: skip
        d_h = torch.addmm(bypass, d_gates[:, i, hidden:], weight)
    return d_gates
