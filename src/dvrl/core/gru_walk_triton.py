"""The walk of core.gru as one kernel a step on a GPU: product and gates in one, many programs.

Held to core.gru's own loop by tests in Triton's interpreter.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from dvrl.core.cell_triton import tile
from dvrl.core.tiles_triton import product, tiles, total

if TYPE_CHECKING:
    from dvrl.core.gru import GruWalk


@triton.jit(do_not_specialize_on_alignment=["later_first_ptr"])
def _step(
    later_ptr, w_ptr, later_first_ptr, bypass_ptr, d_h_ptr, d_htm1_ptr,
    s_n_ptr, s_u_ptr, s_r_ptr, reset_ptr, keep_ptr, gates_ptr, n_rows,
    H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """From the gradients of the later step's gates, if there is one, to those of this step's
    (n, r, u, n_h). Beside them flows what bypassed the gates, and h_{t-1}'s own gradient."""
    row, column, real = tile(n_rows, H, ROWS, COLUMNS)
    at = row[:, None] * H + column[None, :]
    s_n = tl.load(s_n_ptr + at, mask=real)
    s_u = tl.load(s_u_ptr + at, mask=real)
    s_r = tl.load(s_r_ptr + at, mask=real)
    reset = tl.load(reset_ptr + at, mask=real)
    keep = tl.load(keep_ptr + at, mask=real)
    d = tl.zeros([ROWS, COLUMNS], tl.float32)
    if later_ptr is not None:
        bypass = tl.load(bypass_ptr + at, mask=real)
        first = tl.load(later_first_ptr + row)
        zero = tl.zeros([WARPS, ROWS, COLUMNS], tl.float32)
        x_ptr = later_ptr + row * (4 * H) + H
        acc = product(x_ptr, w_ptr, column, 3 * H, H, H, 1, WARPS, PRECISION, zero)
        d = tl.where((first != 0)[:, None], 0.0, bypass + total(acc, WARPS, ROWS, COLUMNS))
    if d_h_ptr is not None:
        d += tl.load(d_h_ptr + at, mask=real)
    d_n = d * s_n
    bypass = d * keep
    if d_htm1_ptr is not None:
        bypass += tl.load(d_htm1_ptr + at, mask=real)
    tl.store(bypass_ptr + at, bypass, mask=real)
    gates_ptr += row[:, None] * (4 * H) + column[None, :]
    tl.store(gates_ptr, d_n, mask=real)
    tl.store(gates_ptr + H, d_n * s_r, mask=real)
    tl.store(gates_ptr + 2 * H, d * s_u, mask=real)
    tl.store(gates_ptr + 3 * H, d_n * reset, mask=real)


def walk_back(walk: "GruWalk", d_htm1: Tensor, d_h: Tensor, *, precision: str = "tf32x3") -> Tensor:
    """Gradients of all gates [T, N, 4H]; `d_htm1`, `d_h`: of the newest steps."""
    steps, n, hidden = walk.h_tm1.shape
    newest, w = steps - len(d_h), walk.weights.state
    assert w[0].is_contiguous()
    first, d_htm1, d_h = walk.first.contiguous(), d_htm1.contiguous(), d_h.contiguous()
    slopes = [x.contiguous() for x in walk.slopes]
    gates, bypass = d_h.new_empty(steps, n, 4 * hidden), d_h.new_empty(n, hidden)
    grid, sizes = tiles(n, hidden, precision)
    for t in reversed(range(steps)):
        later = t + 1 if t + 1 < steps else None
        own = (d_h[t - newest], d_htm1[t - newest]) if t >= newest else (None, None)
        through = (None, None, None)
        if later is not None:
            through = gates[later], w[later * len(w) // steps], first[later]
        _step[grid](*through, bypass, *own, *(x[t] for x in slopes), gates[t], n, H=hidden, **sizes)
    return gates
