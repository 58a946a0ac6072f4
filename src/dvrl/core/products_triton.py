"""core.products as two kernels on a GPU: parts of the sums, and their sum.

A program has a tile of one of the products, and some of the rows. Held to plain products by tests
in Triton's interpreter.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64


@triton.jit
def _parts(
    gs, xs, g_strides, x_strides, out_ptr, n_rows, total,
    STARTS: tl.constexpr, COLUMNS: tl.constexpr, PER_SPLIT: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Tiles are counted through all products: those of product i from STARTS[i] on, COLUMNS[i] in
    a row."""
    tile = tl.program_id(0)
    g_ptr, x_ptr = gs[0], xs[0]
    g_stride, x_stride = g_strides[0], x_strides[0]
    start, columns = 0, COLUMNS[0]
    for i in tl.static_range(1, len(STARTS)):
        here = tile >= STARTS[i]
        start, columns = tl.where(here, STARTS[i], start), tl.where(here, COLUMNS[i], columns)
        g_stride = tl.where(here, g_strides[i], g_stride)
        x_stride = tl.where(here, x_strides[i], x_stride)
        if here:
            g_ptr = gs[i]
            x_ptr = xs[i]
    a = (tile - start) // columns * TILE + tl.arange(0, TILE)
    b = (tile - start) % columns * TILE + tl.arange(0, TILE)
    first = tl.program_id(1) * PER_SPLIT
    last = tl.minimum(first + PER_SPLIT, n_rows)
    acc = tl.zeros([TILE, TILE], tl.float32)
    for i in range(0, PER_SPLIT, CHUNK):
        row = (first + i + tl.arange(0, CHUNK))[:, None]
        g = tl.load(g_ptr + row * g_stride + a[None, :], mask=row < last, other=0.0)
        x = tl.load(x_ptr + row * x_stride + b[None, :], mask=row < last, other=0.0)
        acc = tl.dot(tl.trans(g), x, acc, input_precision=PRECISION)
    out_ptr += tl.program_id(1) * total + start * (TILE * TILE)
    tl.store(out_ptr + a[:, None] * (columns * TILE) + b[None, :], acc)


MANY = 6000
"""Rows from which on products are as fast one by one."""
PROGRAMS = 264
"""Twice as many as an H200 has multiprocessors."""


def supports(gs: list[Tensor], xs: list[Tensor]) -> bool:
    """Widths must be whole tiles, columns contiguous."""
    tensors = [*gs, *xs]
    whole = all(t.shape[1] % TILE == 0 and t.stride(1) == 1 for t in tensors)
    return whole and 1 <= len(gs) <= 16 and len(gs[0]) < MANY


def transposed(
    gs: list[Tensor], xs: list[Tensor], *, precision: str = "tf32x3",
    chunk: int = 32, num_warps: int = 2, num_stages: int = 4, programs: int = PROGRAMS,
) -> Tensor:  # fmt: skip
    """All products g^T x, one after the other, each by rows.

    With four warps Triton would multiply by Hopper's asynchronous units, which want both operands
    transposed: that takes longer than it saves."""
    n_rows = len(gs[0])
    assert all(len(t) == n_rows for t in (*gs, *xs))
    starts, columns, count = [], [], 0
    for g, x in zip(gs, xs, strict=True):
        starts.append(count)
        columns.append(x.shape[1] // TILE)
        count += g.shape[1] // TILE * columns[-1]
    splits = max(1, min(programs // count, n_rows // (4 * chunk)))
    per_split = triton.cdiv(triton.cdiv(n_rows, splits), chunk) * chunk
    total = count * TILE * TILE
    out = gs[0].new_empty(splits, total)
    _parts[(count, splits)](
        tuple(gs), tuple(xs), tuple(g.stride(0) for g in gs), tuple(x.stride(0) for x in xs),
        out, n_rows, total,
        STARTS=tuple(starts), COLUMNS=tuple(columns), PER_SPLIT=per_split, TILE=TILE, CHUNK=chunk,
        PRECISION=precision, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return out[0] if splits == 1 else torch.sum(out, 0)
