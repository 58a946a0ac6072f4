"""Convolutions and their way back by kernels that normalise what they read and sum what they give.

Libraries compute small convolutions by many kernels: they turn layouts round, and leave scaling,
statistics and slopes to others. Here a layer is two: a product over patches whose input is
normalised as it is read and whose output leaves its tiles' sums behind; and the sums put together.
Images have their channels last. Held to plain convolutions by tests in Triton's interpreter.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from dvrl import kernels
from dvrl.nets import norm_triton, patches_triton
from dvrl.nets.norm import CONSTANT, EPS, MOMENTUM
from dvrl.nets.patches_triton import PIXELS, PLAIN, SLOPES, STATISTICS
from dvrl.nets.picture import Geometry, Norm

__all__ = ["PIXELS", "PLAIN", "SLOPES", "STATISTICS"]

PROGRAMS = 528
"""Four for each multiprocessor of a large GPU."""

FEW = 16
"""Places in a tile where there are few: too few programs to hide what one waits for."""


class Tiling(NamedTuple):
    """How places of images are divided among programs."""

    together: int
    """Images that share statistics and weights."""
    tiles: int
    """Of so many images."""
    rows: int
    """Places in a tile."""


def tiling(images: int, together: int, places: int) -> Tiling:
    rows = FEW if images * places < 2**13 else 64
    return Tiling(together, triton.cdiv(together * places, rows), rows)


def _depth(g: Geometry) -> int:
    """Elements of a patch that are added at once: of one tap, or of all where it has but one."""
    return 64 if g.c_in in (1, 64) else 32


def convolve(
    g: Geometry,
    x: Tensor,
    fix: Tensor | None,
    w: Tensor,
    bias: Tensor | None,
    then: Any,
    steps: int,
    *,
    out: Tensor | None = None,
    parts: Tensor | None = None,
    other: Tensor | None = None,
    other_fix: Tensor | None = None,
) -> None:
    """Products of patches of `x`, of as many steps as are said."""
    images = len(x)
    together = 1 if then is PIXELS else images // steps
    t = tiling(images, together, g.side**2)
    depth = 32 if g.shuffle**2 * g.c >= 128 else _depth(g)
    patches_triton.convolve[(images // together * t.tiles,)](
        x, fix, w, bias, out, parts, other, other_fix, images // steps, images // len(w),
        g.side_in, g.c_in, g.taps, g.stride, g.pad, g.side, g.c, g.shuffle, *t, depth,
        COPIES=images // len(other) if then is PIXELS else 1, THEN=then,
        PRECISION=kernels.precision(), num_warps=4, num_stages=4 if t.rows == FEW else 3,
    )  # fmt: skip


def pixels(
    g: Geometry, y: Tensor, fix: Tensor, w: Tensor, bias: Tensor, o: Tensor, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the images `o`, each seen by as many of ours; and the log-odds, if
    they are to be kept."""
    parts = y.new_empty(len(y), tiling(len(y), 1, g.side**2).tiles)
    side = g.side * g.shuffle
    logits = y.new_empty(len(y), side, side, g.c) if keep else None
    convolve(g, y, fix, w, bias, PIXELS, len(fix), out=logits, parts=parts, other=o)
    return parts.sum(1), logits


def room(g: Geometry, images: int, steps: int, like: Tensor) -> Tensor:
    """For what the tiles of a layer say of its channels."""
    t = tiling(images, images // steps, g.side**2)
    return like.new_empty(steps * t.tiles, 2, g.shuffle**2 * g.c)


def settle(
    g: Geometry,
    parts: Tensor,
    norm: Norm,
    images: int,
    fix: Tensor,
    watched: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Statistics of every step into `fix`, one for each step."""
    steps = len(fix)
    t = tiling(images, images // steps, g.side**2)
    block = 8
    norm_triton.settle[(steps, triton.cdiv(g.c, block))](
        parts, norm.weight, norm.bias, fix, *(watched or (None, None)),
        steps // len(norm.weight), C=g.c, BLOCK=block, PARTS=g.shuffle**2, TILES=t.tiles,
        ROWS=t.rows, TOTAL=images // steps * g.side**2, EPS=EPS, CONSTANT=CONSTANT,
        MOMENTUM=MOMENTUM,
    )  # fmt: skip


def through_norm(d: Tensor, y: Tensor, fix: Tensor, parts: Tensor) -> Tensor:
    """`d` in place; both sums of each step, which are the gradients of bias and weight."""
    steps, c, block = len(fix), y.shape[-1], 8
    sums = y.new_empty(steps, 2, c)
    tiles = len(parts) // steps
    norm_triton.add_up[(steps, triton.cdiv(c, block))](
        parts, sums, C=c, BLOCK=block, PARTS=parts.shape[-1] // c, TILES=tiles
    )
    each, size = d.numel() // steps, 1024
    norm_triton.through_norm[(triton.cdiv(d.numel(), size),)](
        d, y, fix, sums, float(each // c), d.numel(), each, C=c, BLOCK=size
    )
    return sums


def _few(n: int) -> int:
    """`n`, or a little more: one of few numbers, since a kernel is compiled for each."""
    power = triton.next_power_of_2(n)
    return power // 4 * 3 if n <= power // 4 * 3 else power


def of_weights(g: Geometry, x: Tensor, fix: Tensor | None, d: Tensor, steps: int) -> Tensor:
    """The gradient of a layer's weights, `T C`, of all images together."""
    images, rows, depth, at_once, columns = len(x), 32, 32, 4, 64
    blocks = triton.cdiv(g.side**2, rows)
    deep, wide = g.taps**2 * g.c_in, g.shuffle**2 * g.c
    heights, halves = triton.cdiv(deep, at_once * depth), triton.cdiv(wide, columns)
    chunks = max(1, PROGRAMS // (blocks * heights * halves))
    each = _few(triton.cdiv(images, chunks))
    shares = blocks * triton.cdiv(images, each)
    parts = x.new_empty(shares, deep, wide)
    patches_triton.of_weights[(heights, shares, halves)](
        x, fix, d, parts, images // steps, images,
        g.side_in, g.c_in, g.taps, g.stride, g.pad, g.side, g.c, g.shuffle,
        blocks, rows, depth, min(at_once, deep // depth), min(columns, wide), each,
        PRECISION=kernels.precision(),
    )  # fmt: skip
    return parts.sum(0)


def activate(y: Tensor, fix: Tensor, out: Tensor) -> None:
    """Images as vectors, normalised and bent."""
    places, c, block = y.shape[1] * y.shape[2], y.shape[3], 256
    norm_triton.activate[(triton.cdiv(y.numel(), block),)](
        y, fix, out, y.numel(), y.numel() // len(fix), places, c, block
    )


def deactivate(d: Tensor, y: Tensor, fix: Tensor) -> tuple[Tensor, Tensor]:
    """The way back: gradients of images, and their tiles' sums."""
    steps, images, places, c = len(fix), len(y), y.shape[1] * y.shape[2], y.shape[3]
    t = tiling(images, images // steps, places)
    out, parts = torch.empty_like(y), y.new_empty(steps * t.tiles, 2, c)
    norm_triton.deactivate[(steps * t.tiles,)](
        d, y, fix, out, parts, images // steps, places, c, *t
    )
    return out, parts
