"""The gated recurrent unit without parameters: a step, its derivative, and the way back in time.

Gates come projected. Those of the input are ordered (n, r, u) - new, reset, update - and those of
the state (r, u, n): laid side by side as (n, r, u, n_h) the gradients of both are slices of one
tensor, and each is one operand of one matrix product. Sizes: G = 3H, R = 2H, D = 4H.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dvrl import kernels
from dvrl.core import tree
from dvrl.fuse import fusable


class GruTape(NamedTuple):
    """What a step knew: its activations."""

    ru: Float[Tensor, "*B R"]
    """Reset and update gate."""
    n: Float[Tensor, "*B H"]
    n_h: Float[Tensor, "*B H"]
    """What the state offers the new value before the reset gate."""


class GruSlopes(NamedTuple):
    """The step's derivative: everything the way back needs to multiply by."""

    n: Float[Tensor, "*B H"]
    u: Float[Tensor, "*B H"]
    r: Float[Tensor, "*B H"]
    reset: Float[Tensor, "*B H"]
    keep: Float[Tensor, "*B H"]


def step(
    gates_i: Float[Tensor, "*B G"], gates_h: Float[Tensor, "*B G"], h: Float[Tensor, "*B H"]
) -> tuple[Float[Tensor, "*B H"], GruTape]:
    """h' = n + u (h - n) with n = tanh(n_i + r n_h); and what was known on the way."""
    size = h.shape[-1]
    ru = torch.sigmoid(gates_i[..., size:] + gates_h[..., : 2 * size])
    n_h = gates_h[..., 2 * size :]
    n = _tanh(torch.addcmul(gates_i[..., :size], ru[..., :size], n_h))
    return torch.lerp(n, h, ru[..., size:]), GruTape(ru, n, n_h)


def _tanh(x: Float[Tensor, "*B H"]) -> Float[Tensor, "*B H"]:
    """By the sigmoid, since torch's own takes twice as long on a CPU."""
    return 2 * torch.sigmoid(2 * x) - 1


def slopes(tape: GruTape, h: Float[Tensor, "*B H"]) -> GruSlopes:
    """The derivative at a step that began in state `h`."""
    r, u = tape.ru.chunk(2, -1)
    rest_r, rest_u = (1 - tape.ru).chunk(2, -1)
    return GruSlopes(
        n=rest_u * (1 - tape.n.square()),
        u=(h - tape.n) * u * rest_u,
        r=tape.n_h * r * rest_r,
        reset=r,
        keep=u,
    )


def step_backward(
    d_h: Float[Tensor, "*B H"], slope: GruSlopes, gates: Float[Tensor, "*B D"]
) -> Float[Tensor, "*B H"]:
    """Writes the gradients of the gates (n, r, u, n_h); gives that of the old state, as far as it
    bypassed them."""
    size = d_h.shape[-1]
    d_n, d_r, d_u, d_nh = gates[..., : 4 * size].chunk(4, -1)
    torch.mul(d_h, slope.n, out=d_n)
    torch.mul(d_n, slope.r, out=d_r)
    torch.mul(d_h, slope.u, out=d_u)
    torch.mul(d_n, slope.reset, out=d_nh)
    return d_h * slope.keep


class GruWeights(NamedTuple):
    """A GRU's parameters; `*S` is empty, or the segments of a gradient window, each with the
    weights it acted by."""

    input: Float[Tensor, "*S G C"]
    input_bias: Float[Tensor, "*S G"]
    state: Float[Tensor, "*S G H"]
    state_bias: Float[Tensor, "*S G"]


class GruWalk(NamedTuple):
    """All steps of a gradient window so far, and the weights of its segments."""

    weights: GruWeights
    first: Bool[Tensor, "T N"]
    """Where an episode began: no gradient flows into the one before."""
    h_tm1: Float[Tensor, "T N H"]
    slopes: GruSlopes


def replay(
    w: GruWeights,
    sensed: Float[Tensor, "T N C"],
    walk: GruWalk,
    h_tm1: Float[Tensor, "L N H"],
    h: Float[Tensor, "L N H"],
) -> tuple[Float[Tensor, "L N H"], Float[Tensor, "L N H"]]:
    """`h_tm1` and `h` of the newest steps as functions of `w` and of all inputs in the window.

    Weights enter every step in the same way: the gradient of `w` stands for that of all segments'.
    """
    return _Replay.apply(walk, h_tm1, h, sensed, *w)  # type: ignore[no-any-return]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, walk: GruWalk, h_tm1: Tensor, h: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.walk, ctx.sensed = walk, inputs[0].detach()
        return h_tm1.detach(), h.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        walk, size = ctx.walk, ctx.walk.h_tm1.shape[-1]
        d_gates = way_back(walk, *grads)
        d_input, d_state = d_gates[..., : 3 * size], d_gates[..., size:]
        segments = walk.weights.input.shape[0]
        d_sensed = d_input.unflatten(0, (segments, -1)).flatten(1, 2) @ walk.weights.input
        rows, d_input, d_state = (x.flatten(0, 1) for x in (d_gates, d_input, d_state))
        bias = rows.sum(0)
        return (
            None,
            None,
            None,
            d_sensed.view_as(ctx.sensed),
            d_input.t() @ ctx.sensed.flatten(0, 1),
            bias[: 3 * size],
            d_state.t() @ walk.h_tm1.flatten(0, 1),
            bias[size:],
        )


def way_back(
    walk: GruWalk, d_htm1: Float[Tensor, "L N H"], d_h: Float[Tensor, "L N H"]
) -> Float[Tensor, "T N D"]:
    """By a Triton kernel a step, where these run; else segment by segment."""
    found = kernels.find("dvrl.core.gru_walk_triton", walk.h_tm1)
    if found is not None:
        return found.walk_back(walk, d_htm1, d_h, precision=kernels.precision())
    return walk_back(walk, d_htm1, d_h)


def walk_back(
    walk: GruWalk, d_htm1: Float[Tensor, "L N H"], d_h: Float[Tensor, "L N H"]
) -> Float[Tensor, "T N D"]:
    """Segment by segment: all are alike, but for the gradients that the newest is given."""
    flow = torch.zeros_like(walk.h_tm1[0])
    n_steps = len(d_h)
    found = []
    for s in reversed(range(len(walk.weights.state))):
        steps = slice(s * n_steps, (s + 1) * n_steps)
        part = GruSlopes(*(x[steps] for x in walk.slopes))
        gates, flow = _walk_segment(
            part, walk.weights.state[s], walk.first[steps], flow, *(() if found else (d_htm1, d_h))
        )
        found.append(gates)
    return torch.cat(found[::-1])


@fusable
def _walk_segment(
    slope: GruSlopes,
    weight: Float[Tensor, "G H"],
    first: Bool[Tensor, "L N"],
    flow: Float[Tensor, "N H"],
    d_htm1: Float[Tensor, "L N H"] | None = None,
    d_h: Float[Tensor, "L N H"] | None = None,
) -> tuple[Float[Tensor, "L N D"], Float[Tensor, "N H"]]:
    """Gradients of all gates, and of the state before the first step."""
    length, _, size = slope.n.shape
    found = []
    for i in reversed(range(length)):
        at = tree.at(slope, i)
        d = flow if d_h is None else flow + d_h[i]
        d_n = d * at.n
        gates = torch.cat([d_n, d_n * at.r, d * at.u, d_n * at.reset], -1)
        flow = torch.addmm(d * at.keep, gates[:, size:], weight)
        flow = flow if d_htm1 is None else flow + d_htm1[i]
        flow = flow.masked_fill(first[i, :, None], 0.0)
        found.append(gates)
    return torch.stack(found[::-1]), flow
