"""The kernels of nets.picture_triton that multiply: patches of images by weights, and patches by
gradients. What they read is normalised on the way."""

import triton
import triton.language as tl

PLAIN, STATISTICS, SLOPES, PIXELS = (tl.constexpr(i) for i in range(4))
"""What becomes of a product: nothing; it is to be normalised; it is a gradient behind a
normalised layer and its ReLU; it is log-odds of pixels."""


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
def _places(y, x, j, SIDE: tl.constexpr, C: tl.constexpr, SHUFFLE: tl.constexpr):
    """Where the columns j of a product's rows lie in the image that the rows make up."""
    part, c = j // C, j % C
    wide: tl.constexpr = SIDE * SHUFFLE
    row = y * (SHUFFLE * wide * C) + x * (SHUFFLE * C)
    column = (part // SHUFFLE) * (wide * C) + (part % SHUFFLE) * C + c
    return row[:, None] + column[None, :]


@triton.jit
def convolve(
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

    within = _places(y, x, j, SIDE, C, SHUFFLE)
    at = (image.to(tl.int64) * (SIDE * SIDE * WIDE))[:, None] + within
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
        shown = ((image // COPIES).to(tl.int64) * (SIDE * SIDE * WIDE))[:, None] + within
        target = tl.load(other_ptr + shown, mask=there, other=0.0)
        soft = tl.maximum(acc, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(acc)))
        tl.store(parts_ptr + tile, tl.sum(tl.sum(tl.where(there, target * acc - soft, 0.0), 1), 0))
    if out_ptr is not None:
        tl.store(out_ptr + at, acc, mask=there)


@triton.jit
def of_weights(
    x_ptr, fix_ptr, d_ptr, parts_ptr, images_of_step, images,
    SIDE_IN: tl.constexpr, C_IN: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr,
    PAD: tl.constexpr, SIDE: tl.constexpr, C: tl.constexpr, SHUFFLE: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr, EACH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What ROWS places, a block of BLOCKS, of EACH images give to PARTS x DEPTH rows of the
    weights' gradient: for every part a product of its own, so that what meets all of them is read
    once. Where things lie in an image is found out before the first one."""
    WIDE: tl.constexpr = SHUFFLE * SHUFFLE * C
    DEEP: tl.constexpr = TAPS * TAPS * C_IN
    begin = tl.program_id(0) * PARTS * DEPTH + tl.arange(0, PARTS) * DEPTH
    k = begin[:, None] + tl.arange(0, DEPTH)[None, :]
    tap, c = k // C_IN, k % C_IN
    off = ((tap // TAPS) * SIDE_IN + tap % TAPS) * C_IN + c
    share = tl.program_id(1)
    j = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)

    place = (share % BLOCKS) * ROWS + tl.arange(0, ROWS)
    real = place < SIDE * SIDE
    y, x = place // SIDE, place % SIDE
    at_y, at_x = y * STRIDE - PAD, x * STRIDE - PAD
    there = (begin < DEEP)[:, None] & real[None, :]
    if PAD > 0:
        tap_y, tap_x = (begin // C_IN) // TAPS, (begin // C_IN) % TAPS
        in_y, in_x = at_y[None, :] + tap_y[:, None], at_x[None, :] + tap_x[:, None]
        there = there & (in_y >= 0) & (in_y < SIDE_IN) & (in_x >= 0) & (in_x < SIDE_IN)
    seen_at = ((at_y * SIDE_IN + at_x) * C_IN)[None, :, None] + off[:, None, :]
    d_at = _places(y, x, j, SIDE, C, SHUFFLE)
    meets = real[:, None] & (j >= 0)[None, :]

    acc = tl.zeros([PARTS, DEPTH, COLUMNS], tl.float32)
    for i in range(0, EACH):
        own = (share // BLOCKS) * EACH + i
        image = tl.minimum(own, images - 1)
        x_image = x_ptr + image.to(tl.int64) * (SIDE_IN * SIDE_IN * C_IN)
        seen = tl.load(x_image + seen_at, mask=there[:, :, None], other=0.0)
        if fix_ptr is not None:
            fix_at = fix_ptr + (image // images_of_step) * (4 * C_IN) + c
            mean, scale = tl.load(fix_at), tl.load(fix_at + 2 * C_IN)
            shift = tl.load(fix_at + 3 * C_IN)
            seen = (seen - mean[:, None, :]) * scale[:, None, :] + shift[:, None, :]
            seen = tl.where(there[:, :, None], tl.maximum(seen, 0.0), 0.0)
        d_image = d_ptr + image.to(tl.int64) * (SIDE * SIDE * WIDE)
        d = tl.load(d_image + d_at, mask=meets & (own < images), other=0.0)
        d = tl.broadcast_to(d[None, :, :], [PARTS, ROWS, COLUMNS])
        acc = tl.dot(tl.trans(seen, 0, 2, 1), d, acc, input_precision=PRECISION)
    at = (share * DEEP + k)[:, :, None] * WIDE + j[None, None, :]
    tl.store(parts_ptr + at, acc, mask=(k < DEEP)[:, :, None] & (j >= 0)[None, None, :])
