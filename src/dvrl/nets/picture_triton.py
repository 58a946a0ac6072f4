"""Convolutions and their way back by kernels that normalise what they read and sum what they give.

Libraries compute small convolutions by many kernels: they turn layouts round, and leave scaling,
statistics and slopes to others. Here a layer is two: a product over patches whose input is
normalised as it is read and whose output leaves its tiles' sums behind; and the sums put together.
Images have their channels last. Held to plain convolutions by tests in Triton's interpreter.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dvrl import kernels
from dvrl.nets.norm import CONSTANT, EPS, MOMENTUM
from dvrl.nets.picture import Geometry, Norm

PLAIN, STATISTICS, SLOPES, PIXELS = (tl.constexpr(i) for i in range(4))
"""What becomes of a product: nothing; it is to be normalised; it is a gradient behind a
normalised layer and its ReLU; it is log-odds of pixels."""
LANES = tl.constexpr(256)
PROGRAMS = 528
"""Four for each multiprocessor of a large GPU."""


@triton.jit
def _patches(
    x_ptr, fix_ptr, k0, image, y, x, step, real,
    SIDE_IN: tl.constexpr, C_IN: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr,
    PAD: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """[rows, DEPTH] of what the rows' places see, from element k0 of (tap, tap, channel) on."""
    k = k0 + tl.arange(0, DEPTH)
    base = image.to(tl.int64) * (SIDE_IN * SIDE_IN * C_IN)
    if C_IN % DEPTH == 0:  # all of one tap: what is found out once for a row is cheap
        tap = k0 // C_IN
        c = k - tap * C_IN
        at_y, at_x = y * STRIDE - PAD + tap // TAPS, x * STRIDE - PAD + tap % TAPS
        inside = (at_y >= 0) & (at_y < SIDE_IN) & (at_x >= 0) & (at_x < SIDE_IN)
        there = (real & inside if PAD > 0 else real)[:, None]
        at = (base + (at_y * SIDE_IN + at_x) * C_IN)[:, None] + c[None, :]
    else:
        tl.static_assert(PAD == 0)
        tap, c = k // C_IN, k % C_IN
        place = (tap // TAPS) * SIDE_IN + tap % TAPS
        there = real[:, None]
        at = (base + (y * SIDE_IN + x) * (STRIDE * C_IN))[:, None] + (place * C_IN + c)[None, :]
    seen = tl.load(x_ptr + at, mask=there, other=0.0)
    if fix_ptr is not None:
        fix_ptr += step * (4 * C_IN) + c
        mean, scale = tl.load(fix_ptr), tl.load(fix_ptr + 2 * C_IN)
        shift = tl.load(fix_ptr + 3 * C_IN)
        seen = (seen - mean[None, :]) * scale[None, :] + shift[None, :]
        seen = tl.where(there, tl.maximum(seen, 0.0), 0.0)
    return seen


@triton.jit
def _places(image, y, x, j, SIDE: tl.constexpr, C: tl.constexpr, SHUFFLE: tl.constexpr):
    """Where the columns j of a product's rows lie in the images that the rows make up."""
    part, c = j // C, j % C
    wide: tl.constexpr = SIDE * SHUFFLE
    row = (image.to(tl.int64) * wide + y * SHUFFLE) * (wide * C) + x * (SHUFFLE * C)
    column = (part // SHUFFLE) * (wide * C) + (part % SHUFFLE) * C + c
    return row[:, None] + column[None, :]


@triton.jit
def _convolve(
    x_ptr, fix_ptr, w_ptr, bias_ptr, out_ptr, parts_ptr, other_ptr, other_fix_ptr,
    images_of_step, images_of_weights,
    SIDE_IN: tl.constexpr, C_IN: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr,
    PAD: tl.constexpr, SIDE: tl.constexpr, C: tl.constexpr, SHUFFLE: tl.constexpr,
    TOGETHER: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    COPIES: tl.constexpr, THEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of ROWS places of TOGETHER images that share statistics and weights.

    `other`: with SLOPES the output's layer as it was before it was normalised; with PIXELS what was
    to be seen, an image for COPIES of ours.
    """
    WIDE: tl.constexpr = SHUFFLE * SHUFFLE * C
    tile = tl.program_id(0)
    first = (tile // TILES) * TOGETHER
    local = (tile % TILES) * ROWS + tl.arange(0, ROWS)
    real = local < TOGETHER * SIDE * SIDE
    image, place = first + local // (SIDE * SIDE), local % (SIDE * SIDE)
    y, x = place // SIDE, place % SIDE
    step = first // images_of_step
    w_ptr += (first // images_of_weights) * (TAPS * TAPS * C_IN * WIDE)
    j = tl.arange(0, WIDE)
    c = j % C

    acc = tl.zeros([ROWS, WIDE], tl.float32)
    for k0 in range(0, TAPS * TAPS * C_IN, DEPTH):
        seen = _patches(
            x_ptr, fix_ptr, k0, image, y, x, step, real, SIDE_IN, C_IN, TAPS, STRIDE, PAD, DEPTH
        )
        # Tensor cores want a column's elements side by side.
        w = tl.load(w_ptr + j[:, None] * (TAPS * TAPS * C_IN) + (k0 + tl.arange(0, DEPTH))[None, :])
        acc = tl.dot(seen, tl.trans(w), acc, input_precision=PRECISION)
    if bias_ptr is not None:
        bias_ptr += (first // images_of_weights) * C
        acc += tl.load(bias_ptr + c)[None, :]

    at = _places(image, y, x, j, SIDE, C, SHUFFLE)
    there = real[:, None] & (j >= 0)[None, :]
    if THEN == SLOPES:
        other_fix_ptr += step * (4 * C) + c
        mean, rate = tl.load(other_fix_ptr), tl.load(other_fix_ptr + C)
        scale, shift = tl.load(other_fix_ptr + 2 * C), tl.load(other_fix_ptr + 3 * C)
        apart = tl.load(other_ptr + at, mask=there, other=0.0) - mean[None, :]
        alive = there & (apart * scale[None, :] + shift[None, :] > 0)
        acc = tl.where(alive, acc, 0.0)
        parts_ptr += tile * (2 * WIDE) + j
        tl.store(parts_ptr, tl.sum(acc, 0))
        tl.store(parts_ptr + WIDE, tl.sum(acc * apart * rate[None, :], 0))
    if THEN == STATISTICS:
        count = tl.sum(real.to(tl.float32), 0)
        mean = tl.sum(tl.where(there, acc, 0.0), 0) / count
        apart = tl.where(there, acc - mean[None, :], 0.0)
        parts_ptr += tile * (2 * WIDE) + j
        tl.store(parts_ptr, mean)
        tl.store(parts_ptr + WIDE, tl.sum(apart * apart, 0))
    if THEN == PIXELS:
        shown = _places(image // COPIES, y, x, j, SIDE, C, SHUFFLE)
        target = tl.load(other_ptr + shown, mask=there, other=0.0)
        soft = tl.maximum(acc, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(acc)))
        tl.store(parts_ptr + tile, tl.sum(tl.sum(tl.where(there, target * acc - soft, 0.0), 1), 0))
    if out_ptr is not None:
        tl.store(out_ptr + at, acc, mask=there)


@triton.jit
def _settle(
    parts_ptr, weight_ptr, bias_ptr, fix_ptr, mean_ptr, var_ptr, steps_of_weights,
    C: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr, TOTAL: tl.constexpr, EPS: tl.constexpr, CONSTANT: tl.constexpr,
    MOMENTUM: tl.constexpr,
):  # fmt: skip
    """Tiles' means and squares together: (mean, rate, scale, shift) of a step's channels; and the
    running averages, if they are given. Every lane takes its share, then the lanes are joined."""
    step = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, LANES)
    count = tl.zeros([LANES, BLOCK], tl.float32)
    mean, square = tl.zeros_like(count), tl.zeros_like(count)
    for i in range(0, TILES * PARTS, LANES):
        tile, part = (i + lane) // PARTS, (i + lane) % PARTS
        there = (tile < TILES)[:, None] & (c < C)[None, :]
        at = (step * TILES + tile)[:, None] * (2 * PARTS * C) + (part * C)[:, None] + c[None, :]
        more = tl.minimum(TOTAL - tile * ROWS, ROWS).to(tl.float32)[:, None]
        more = tl.where(there, more, 0.0)
        apart = tl.load(parts_ptr + at, mask=there, other=0.0) - mean
        whole = tl.maximum(count + more, 1.0)
        mean += apart * (more / whole)
        square += tl.load(parts_ptr + at + PARTS * C, mask=there, other=0.0)
        square += apart * apart * (count * more / whole)
        count += more
    total = TOTAL * PARTS
    middle = tl.sum(mean * count, 0) / total
    apart = mean - middle[None, :]
    var = (tl.sum(square, 0) + tl.sum(apart * apart * count, 0)) / total
    rate = tl.where(var > CONSTANT * (1 + middle * middle), 1.0 / tl.sqrt(var + EPS), 0.0)
    own = (step // steps_of_weights) * C + c
    there = c < C
    fix_ptr += step * (4 * C) + c
    tl.store(fix_ptr, middle, mask=there)
    tl.store(fix_ptr + C, rate, mask=there)
    tl.store(fix_ptr + 2 * C, rate * tl.load(weight_ptr + own, mask=there), mask=there)
    tl.store(fix_ptr + 3 * C, tl.load(bias_ptr + own, mask=there), mask=there)
    if mean_ptr is not None:
        old = tl.load(mean_ptr + c, mask=there)
        tl.store(mean_ptr + c, old + MOMENTUM * (middle - old), mask=there)
        unbiased = var * (total / (total - 1.0))
        old = tl.load(var_ptr + c, mask=there)
        tl.store(var_ptr + c, old + MOMENTUM * (unbiased - old), mask=there)


@triton.jit
def _add_up(
    parts_ptr, sums_ptr, C: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """Both sums of a step's tiles, always in the same order."""
    step = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, LANES)
    one = tl.zeros([LANES, BLOCK], tl.float32)
    two = tl.zeros_like(one)
    for i in range(0, TILES * PARTS, LANES):
        tile, part = (i + lane) // PARTS, (i + lane) % PARTS
        there = (tile < TILES)[:, None] & (c < C)[None, :]
        at = (step * TILES + tile)[:, None] * (2 * PARTS * C) + (part * C)[:, None] + c[None, :]
        one += tl.load(parts_ptr + at, mask=there, other=0.0)
        two += tl.load(parts_ptr + at + PARTS * C, mask=there, other=0.0)
    sums_ptr += step * (2 * C) + c
    tl.store(sums_ptr, tl.sum(one, 0), mask=c < C)
    tl.store(sums_ptr + C, tl.sum(two, 0), mask=c < C)


@triton.jit
def _through_norm(
    d_ptr, y_ptr, fix_ptr, sums_ptr, count, elements, each,
    C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """In place: the gradient of a normalised layer's output as that of its input."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < elements
    step, c = at // each, at % C
    fix_ptr += step * (4 * C) + c
    sums_ptr += step * (2 * C) + c
    unit = tl.load(y_ptr + at, mask=there) - tl.load(fix_ptr, mask=there)
    unit *= tl.load(fix_ptr + C, mask=there)
    d = tl.load(d_ptr + at, mask=there) - tl.load(sums_ptr, mask=there) / count
    d -= unit * (tl.load(sums_ptr + C, mask=there) / count)
    tl.store(d_ptr + at, d * tl.load(fix_ptr + 2 * C, mask=there), mask=there)


@triton.jit
def _of_weights(
    x_ptr, fix_ptr, d_ptr, parts_ptr, images_of_step, tiles,
    SIDE_IN: tl.constexpr, C_IN: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr,
    PAD: tl.constexpr, SIDE: tl.constexpr, C: tl.constexpr, SHUFFLE: tl.constexpr,
    TOGETHER: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr, EACH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What EACH tiles of all `tiles` give to PARTS x DEPTH rows of the weights' gradient: for every
    part a product of its own, so that what meets all of them is read once."""
    WIDE: tl.constexpr = SHUFFLE * SHUFFLE * C
    DEEP: tl.constexpr = TAPS * TAPS * C_IN
    begin = tl.program_id(0) * PARTS * DEPTH + tl.arange(0, PARTS) * DEPTH
    k = begin[:, None] + tl.arange(0, DEPTH)[None, :]
    tap, c = k // C_IN, k % C_IN
    off = ((tap // TAPS) * SIDE_IN + tap % TAPS) * C_IN + c
    tap_y, tap_x = (begin // C_IN) // TAPS, (begin // C_IN) % TAPS
    share = tl.program_id(1)
    j = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    acc = tl.zeros([PARTS, DEPTH, COLUMNS], tl.float32)
    for i in range(0, EACH):
        own = share * EACH + i
        tile = tl.minimum(own, tiles - 1)
        first = (tile // TILES) * TOGETHER
        local = (tile % TILES) * ROWS + tl.arange(0, ROWS)
        real = (local < TOGETHER * SIDE * SIDE) & (own < tiles)
        image, place = first + local // (SIDE * SIDE), local % (SIDE * SIDE)
        y, x = place // SIDE, place % SIDE
        at_y, at_x = y * STRIDE - PAD, x * STRIDE - PAD
        there = (begin < DEEP)[:, None] & real[None, :]
        if PAD > 0:
            in_y, in_x = at_y[None, :] + tap_y[:, None], at_x[None, :] + tap_x[:, None]
            there = there & (in_y >= 0) & (in_y < SIDE_IN) & (in_x >= 0) & (in_x < SIDE_IN)
        base = image.to(tl.int64) * (SIDE_IN * SIDE_IN * C_IN) + (at_y * SIDE_IN + at_x) * C_IN
        seen = tl.load(
            x_ptr + base[None, :, None] + off[:, None, :], mask=there[:, :, None], other=0.0
        )
        if fix_ptr is not None:
            fix_at = fix_ptr + (first // images_of_step) * (4 * C_IN) + c
            mean, scale = tl.load(fix_at), tl.load(fix_at + 2 * C_IN)
            shift = tl.load(fix_at + 3 * C_IN)
            seen = (seen - mean[:, None, :]) * scale[:, None, :] + shift[:, None, :]
            seen = tl.where(there[:, :, None], tl.maximum(seen, 0.0), 0.0)
        at = _places(image, y, x, j, SIDE, C, SHUFFLE)
        d = tl.load(d_ptr + at, mask=real[:, None] & (j >= 0)[None, :], other=0.0)
        d = tl.broadcast_to(d[None, :, :], [PARTS, ROWS, COLUMNS])
        acc = tl.dot(tl.trans(seen, 0, 2, 1), d, acc, input_precision=PRECISION)
    at = (share * DEEP + k)[:, :, None] * WIDE + j[None, None, :]
    tl.store(parts_ptr + at, acc, mask=(k < DEEP)[:, :, None] & (j >= 0)[None, None, :])


@triton.jit
def _activate(
    y_ptr, fix_ptr, out_ptr, elements, each, PLACES: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The normalised layer behind its ReLU, as vectors: channels first."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < elements
    c = (at // PLACES) % C
    image, place = at // (PLACES * C), at % PLACES
    fix_ptr += (at // each) * (4 * C) + c
    y = tl.load(y_ptr + (image * PLACES + place) * C + c, mask=there)
    y = (y - tl.load(fix_ptr, mask=there)) * tl.load(fix_ptr + 2 * C, mask=there)
    y += tl.load(fix_ptr + 3 * C, mask=there)
    tl.store(out_ptr + at, tl.maximum(y, 0.0), mask=there)


@triton.jit
def _deactivate(
    d_ptr, y_ptr, fix_ptr, out_ptr, parts_ptr, images_of_step,
    PLACES: tl.constexpr, C: tl.constexpr, TOGETHER: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The way back through `_activate`, and the sums that the normalisation wants for its own."""
    tile = tl.program_id(0)
    first = (tile // TILES) * TOGETHER
    local = (tile % TILES) * ROWS + tl.arange(0, ROWS)
    image, place = (first + local // PLACES).to(tl.int64), local % PLACES
    c = tl.arange(0, C)
    there = (local < TOGETHER * PLACES)[:, None] & (c >= 0)[None, :]
    fix_ptr += (first // images_of_step) * (4 * C) + c
    mean, rate = tl.load(fix_ptr), tl.load(fix_ptr + C)
    scale, shift = tl.load(fix_ptr + 2 * C), tl.load(fix_ptr + 3 * C)
    at = (image * PLACES + place)[:, None] * C + c[None, :]
    apart = tl.load(y_ptr + at, mask=there, other=0.0) - mean[None, :]
    d_at = (image * (C * PLACES) + place)[:, None] + c[None, :] * PLACES
    d = tl.load(d_ptr + d_at, mask=there, other=0.0)
    d = tl.where(there & (apart * scale[None, :] + shift[None, :] > 0), d, 0.0)
    tl.store(out_ptr + at, d, mask=there)
    parts_ptr += tile * (2 * C) + c
    tl.store(parts_ptr, tl.sum(d, 0))
    tl.store(parts_ptr + C, tl.sum(d * apart * rate[None, :], 0))


class Tiling(NamedTuple):
    """How places of images are divided among programs."""

    together: int
    """Images that share statistics and weights."""
    tiles: int
    """Of so many images."""
    rows: int
    """Places in a tile."""


def tiling(images: int, together: int, places: int) -> Tiling:
    rows = 16 if images * places < 2**13 else 64
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
    then: tl.constexpr,
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
    _convolve[(images // together * t.tiles,)](
        x, fix, w, bias, out, parts, other, other_fix, images // steps, images // len(w),
        g.side_in, g.c_in, g.taps, g.stride, g.pad, g.side, g.c, g.shuffle, *t, depth,
        COPIES=images // len(other) if then is PIXELS else 1, THEN=then,
        PRECISION=kernels.precision(), num_warps=4, num_stages=2,
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
    _settle[(steps, triton.cdiv(g.c, block))](
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
    _add_up[(steps, triton.cdiv(c, block))](
        parts, sums, C=c, BLOCK=block, PARTS=parts.shape[-1] // c, TILES=tiles
    )
    each, size = d.numel() // steps, 1024
    _through_norm[(triton.cdiv(d.numel(), size),)](
        d, y, fix, sums, float(each // c), d.numel(), each, C=c, BLOCK=size
    )
    return sums


def of_weights(g: Geometry, x: Tensor, fix: Tensor | None, d: Tensor, steps: int) -> Tensor:
    """The gradient of a layer's weights, `T C`, of all images together."""
    images = len(x)
    together, rows, depth, at_once, columns = images // steps, 32, 32, 4, 64
    tiles = triton.cdiv(together * g.side**2, rows)
    deep, wide = g.taps**2 * g.c_in, g.shuffle**2 * g.c
    blocks = triton.cdiv(deep, at_once * depth)
    halves = triton.cdiv(wide, columns)
    each = triton.next_power_of_2(triton.cdiv(steps * tiles * blocks * halves, PROGRAMS))
    shares = triton.cdiv(steps * tiles, each)
    parts = x.new_empty(shares, deep, wide)
    _of_weights[(blocks, shares, halves)](
        x, fix, d, parts, together, steps * tiles,
        g.side_in, g.c_in, g.taps, g.stride, g.pad, g.side, g.c, g.shuffle,
        together, tiles, rows, depth, min(at_once, deep // depth), min(columns, wide), each,
        PRECISION=kernels.precision(),
    )  # fmt: skip
    return parts.sum(0)


def activate(y: Tensor, fix: Tensor, out: Tensor) -> None:
    """Images as vectors, normalised and bent."""
    places, c, block = y.shape[1] * y.shape[2], y.shape[3], 256
    _activate[(triton.cdiv(y.numel(), block),)](
        y, fix, out, y.numel(), y.numel() // len(fix), places, c, block
    )


def deactivate(d: Tensor, y: Tensor, fix: Tensor) -> tuple[Tensor, Tensor]:
    """The way back: gradients of images, and their tiles' sums."""
    steps, images, places, c = len(fix), len(y), y.shape[1] * y.shape[2], y.shape[3]
    t = tiling(images, images // steps, places)
    out, parts = torch.empty_like(y), y.new_empty(steps * t.tiles, 2, c)
    _deactivate[(steps * t.tiles,)](d, y, fix, out, parts, images // steps, places, c, *t)
    return out, parts
