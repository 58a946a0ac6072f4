"""A tile of a product as part of a larger kernel: few rows, few columns, many programs.

Where steps wait for each other, a product of some rows takes as long as its data are under way, so
its tiles are small and spread over the GPU. The terms of a tile's sums are shared out among the
warps: were they added one after the other, that alone would take as long again.
"""

from typing import Any

import triton
import triton.language as tl

WARPS = 8
STAGES = 3
"""Two loads are under way while one is added."""
MULTIPROCESSORS = 132
"""Of an H200."""


@triton.jit
def product(
    x_ptr, w_ptr, column, FROM: tl.constexpr, TO: tl.constexpr, DOWN: tl.constexpr,
    ALONG: tl.constexpr, WARPS: tl.constexpr, PRECISION: tl.constexpr, a, b=None, c=None,
):  # fmt: skip
    """a [WARPS, ROWS, COLUMNS] + x W, to be added up over the warps; b and c, if there, with the
    weights behind W.

    x_ptr [ROWS] are where rows begin; of W [FROM, TO] the next row is DOWN further, the next column
    ALONG. Columns from TO on do not exist."""
    # At least two loads, since a single one would not pass while others are waited for.
    INNER: tl.constexpr = 32 if FROM > 32 * WARPS and b is None else 16
    CHUNK: tl.constexpr = WARPS * INNER
    COLUMNS: tl.constexpr = column.shape[0]
    WHOLE: tl.constexpr = FROM // CHUNK * CHUNK == FROM and TO // COLUMNS * COLUMNS == TO
    own = tl.arange(0, WARPS)[:, None, None] * INNER
    across = own + tl.arange(0, INNER)[None, None, :]
    down = own + tl.arange(0, INNER)[None, :, None]
    x_ptr = x_ptr[None, :, None] + across
    w_ptr += column[None, None, :] * ALONG + down * DOWN
    for i in range(0, FROM, CHUNK):
        if WHOLE:
            x = tl.load(x_ptr + i)
            mask = None
        else:
            x = tl.load(x_ptr + i, mask=i + across < FROM, other=0.0)
            mask = (i + down < FROM) & (column < TO)[None, None, :]
        a = _add(x, w_ptr + i * DOWN, mask, PRECISION, a)
        if b is not None:
            b = _add(x, w_ptr + i * DOWN + FROM * TO, mask, PRECISION, b)
        if c is not None:
            c = _add(x, w_ptr + i * DOWN + 2 * FROM * TO, mask, PRECISION, c)
    if c is not None:
        return a, b, c
    elif b is not None:
        return a, b
    else:
        return a


@triton.jit
def _add(x, w_ptr, mask, PRECISION: tl.constexpr, a):
    """a + x w, all of w if there is no mask."""
    w = tl.load(w_ptr) if mask is None else tl.load(w_ptr, mask=mask, other=0.0)
    return tl.dot(x, w, a, input_precision=PRECISION)


@triton.jit
def total(x, WARPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum over the warps, always in the same order. Split by halves, the terms come to one
    thread at once; what follows is laid out as rows are read and written."""
    x = tl.trans(x, 1, 2, 0)
    for i in tl.static_range(1, 5):
        if WARPS >> i > 0:
            a, b = tl.split(tl.reshape(x, [ROWS, COLUMNS, WARPS >> i, 2]))
            x = a + b
    return tl.reshape(x, [ROWS, COLUMNS])


def tiles(n_rows: int, size: int, precision: str) -> tuple[tuple[int, int], dict[str, Any]]:
    """How many tiles [n_rows, size] has, and what a kernel is told of them."""
    high = rows(n_rows, size)
    wide = columns(triton.cdiv(n_rows, high), size)
    grid = triton.cdiv(size, wide), triton.cdiv(n_rows, high)
    return grid, {"ROWS": high, "COLUMNS": wide} | settings(precision)


def rows(n_rows: int, size: int) -> int:
    """Of a tile: 16, the fewest that tensor cores take, or twice as many where there are plenty."""
    return 16 if triton.cdiv(n_rows, 16) * triton.cdiv(size, 32) <= 2 * MULTIPROCESSORS else 32


def columns(row_tiles: int, size: int) -> int:
    """Of a tile: the fewest for which all programs run at once."""
    few = (c for c in (8, 16) if row_tiles * triton.cdiv(size, c) <= MULTIPROCESSORS)
    return next(few, 32)


def settings(precision: str) -> dict[str, Any]:
    """Of every kernel with such products."""
    launched = {"num_warps": WARPS, "num_stages": STAGES}
    return {"WARPS": WARPS, "PRECISION": precision} | launched
