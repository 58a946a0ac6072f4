"""Convolutions and their mirrors behind normalisations, forth and back by kernels of our own.

The modules of `nets.sight` are the specification; tests hold the two together. Here images have
their channels last, and a layer's output is kept as it is before it is normalised: together with
the statistics of its step, (mean, rate, scale, shift) for every channel, that is all the way back
needs.
"""

from types import ModuleType
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Size, Tensor

from dvrl import kernels


class Geometry(NamedTuple):
    """A product over patches: `taps` x `taps` places of the input, `stride` apart, make one of
    `side` x `side` places; that one stands for `shuffle` x `shuffle` places of the output."""

    side_in: int
    c_in: int
    taps: int
    stride: int
    pad: int
    side: int
    c: int
    """Channels of the output."""
    shuffle: int


def narrowing(side: int, c_in: int, c: int, width: int, stride: int) -> Geometry:
    """A convolution."""
    return Geometry(side, c_in, width, stride, 0, (side - width) // stride + 1, c, 1)


def widening(side: int, c_in: int, c: int, width: int, stride: int) -> Geometry:
    """A transposed one, whose width is a multiple of its stride."""
    taps = width // stride
    return Geometry(side, c_in, taps, 1, taps - 1, side + taps - 1, c, stride)


class Norm(NamedTuple):
    """Weight and bias of a normalisation; `S` sets, each for as many steps."""

    weight: Float[Tensor, "S C"]
    bias: Float[Tensor, "S C"]


def narrow(w: Float[Tensor, "*S C D Y X"]) -> Float[Tensor, "*S C T"]:
    """Weights `out, in` of a convolution as a product over patches takes them."""
    return w.movedim(-3, -1).flatten(-3)


def widen(w: Float[Tensor, "*S D C Y X"], stride: int) -> Float[Tensor, "*S C T"]:
    """Weights `in, out` of a transposed convolution, as convolutions see what goes back through
    them."""
    taps = w.shape[-1] // stride
    split = w.unflatten(-1, (taps, stride)).unflatten(-3, (taps, stride))
    split = split.flip(-4, -2)  # what is added later comes from further back
    # in, out, tap, part, tap, part -> part, part, out, tap, tap, in
    order = [-3, -1, -5, -4, -2, -6]
    front = range(split.ndim - 6)
    return split.permute(*front, *(split.ndim + i for i in order)).flatten(-6, -4).flatten(-3)


def unwiden(g: Float[Tensor, "T C"], shape: Size, stride: int) -> Float[Tensor, "D C Y X"]:
    """The gradient that a product over patches finds, as that of weights of this shape."""
    c_in, c, width, _ = shape
    taps = width // stride
    split = g.view(taps, taps, c_in, stride, stride, c).permute(2, 5, 0, 3, 1, 4)
    return split.flip(2, 4).reshape(shape)


def unnarrow(g: Float[Tensor, "T C"], shape: Size) -> Float[Tensor, "C D Y X"]:
    """Likewise of a convolution's."""
    c, c_in, width, _ = shape
    return g.view(width, width, c_in, c).permute(3, 2, 0, 1)


class Layer(NamedTuple):
    """Of one layer, or of `S` sets of weights: what goes forth, and what goes back."""

    there: Geometry
    back: Geometry
    w: Float[Tensor, "S C T"]
    w_back: Float[Tensor, "S D T"]
    bias: Float[Tensor, "S C"]
    norm: Norm | None


class Seen(NamedTuple):
    """A layer's output before it is normalised, and the statistics of its steps."""

    y: Float[Tensor, "I Y X C"]
    fix: Float[Tensor, "G 4 C"]


Watched = tuple[Tensor, Tensor] | None
"""Running mean and variance, to be moved on."""


def room(g: Geometry, images: int, steps: int, like: Tensor) -> Seen:
    """For a normalised layer's output."""
    side = g.side * g.shuffle
    return Seen(like.new_empty(images, side, side, g.c), like.new_empty(steps, 4, g.c))


def normalised(layer: Layer, x: Seen | Tensor, out: Seen, watched: Watched) -> None:
    """One layer on the one before it, or on images themselves."""
    k, g = kernels_for(out.y), layer.there
    assert layer.norm is not None
    y, fix = x if isinstance(x, Seen) else (x, None)
    steps = len(out.fix)
    parts = k.room(g, len(y), steps, y)
    k.convolve(g, y, fix, layer.w, layer.bias, k.STATISTICS, steps, out=out.y, parts=parts)
    k.settle(g, parts, layer.norm, len(y), out.fix, watched)


class Slope(NamedTuple):
    """The gradient of a normalised layer's output behind its ReLU, and its tiles' sums."""

    d: Float[Tensor, "I Y X C"]
    parts: Float[Tensor, "P 2 C"]


class Found(NamedTuple):
    """Gradients of one layer, of all sets of weights together."""

    w: Float[Tensor, "T C"]
    sums: Float[Tensor, "G 2 C"]
    """Of the normalisation's bias and weight, in every step."""


def derived(layer: Layer, x: Seen | Tensor, out: Seen, slope: Slope) -> Found:
    """A normalised layer's gradients; `slope.d` is that of its product afterwards. That of the
    weights runs beside what follows: keep `slope`, and wait (kernels.meet) before it is used."""
    k, g = kernels_for(out.y), layer.there
    sums = k.through_norm(slope.d, out.y, out.fix, slope.parts)
    y, fix = x if isinstance(x, Seen) else (x, None)
    with kernels.beside(y):
        return Found(k.of_weights(g, y, fix, slope.d, len(out.fix)), sums)


def behind(layer: Layer, d: Float[Tensor, "I Y X C"], x: Seen) -> Slope:
    """What `d`, a layer's gradient, is to the normalised layer it reads."""
    k, g = kernels_for(d), layer.back
    steps = len(x.fix)
    slope = Slope(torch.empty_like(x.y), k.room(g, len(d), steps, d))
    k.convolve(
        g, d, None, layer.w_back, None, k.SLOPES, steps,
        out=slope.d, parts=slope.parts, other=x.y, other_fix=x.fix,
    )  # fmt: skip
    return slope


def kernels_for(x: Tensor) -> ModuleType:
    found = find(x)
    assert found is not None, "asked for before"
    return found


def find(x: Tensor) -> ModuleType | None:
    """The kernels, if tensors like `x` live where Triton compiles for."""
    return kernels.find("dvrl.nets.picture_triton", x)
