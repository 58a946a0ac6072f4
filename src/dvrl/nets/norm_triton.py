"""The kernels of nets.picture_triton that normalise: sums of tiles as statistics, the way back, and
images as vectors."""

import triton
import triton.language as tl

LANES = tl.constexpr(256)


@triton.jit
def settle(
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
def add_up(
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
def through_norm(
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
def activate(
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
def deactivate(
    d_ptr, y_ptr, fix_ptr, out_ptr, parts_ptr, images_of_step,
    PLACES: tl.constexpr, C: tl.constexpr, TOGETHER: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The way back through `activate`, and the sums that the normalisation wants for its own."""
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
