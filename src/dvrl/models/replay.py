"""The recurrent part of the model - propose z, embed it, move h - recorded now, derived later.

Acting needs values only; gradients are asked for once a segment is complete. Then everything that
does not wait for its predecessor (embeddings, prior, decoder, summary, weights' gradients) is done
for all steps at once, and only h_{t-1} -> z_t -> h_t is walked back step by step, from the newest
step to the first of the gradient window. Derived by hand, this walk is four matrix products a
step, where autograd would make dozens of small operations; and no graph of old segments is kept.
`ParticleEncoder.update` is the specification; tests hold the two together.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dvrl import kernels
from dvrl.core import gru
from dvrl.core.laws import Gaussian


class MoveWeights(NamedTuple):
    """The parameters that move particles, packed so that one product does many. G = 3H + Q; `*S`
    is empty, or the segments of a gradient window, each with the weights it acted by."""

    context: Float[Tensor, "*S G C"]
    """[x, a] -> GRU input gates (n, r, u) and the proposal's hidden layer."""
    context_bias: Float[Tensor, "*S G"]
    state: Float[Tensor, "*S G H"]
    """h -> GRU state gates (r, u, n) and the proposal's hidden layer."""
    state_bias: Float[Tensor, "*S G"]
    head: Float[Tensor, "*S Z2 Q"]
    """The proposal's hidden layer -> mean and raw variance."""
    head_bias: Float[Tensor, "*S Z2"]
    embed: Float[Tensor, "*S E Z"]
    """phi^z."""
    embed_bias: Float[Tensor, "*S E"]
    gates: Float[Tensor, "*S G3 E"]
    """phi^z(z) -> GRU input gates (n, r, u)."""


class Moved(NamedTuple):
    """What weighing and summarising need of a move."""

    h_tm1: Float[Tensor, "*T N K H"]
    var: Float[Tensor, "*T N K Z"]
    """Of the proposal."""
    z: Float[Tensor, "*T N K Z"]
    e: Float[Tensor, "*T N K E"]
    """phi^z(z)."""
    h: Float[Tensor, "*T N K H"]


class Slopes(NamedTuple):
    """The derivative of a move, as far as it is not seen from the values."""

    hidden: Float[Tensor, "*T N K Q"]
    """The proposal's hidden layer itself: its slope is 1 where it is above 0."""
    gru: gru.GruSlopes
    var: Float[Tensor, "*T N K Z"]
    """d var / d raw."""
    z: Float[Tensor, "*T N K Z"]
    """d z / d raw."""


class Walk(NamedTuple):
    """All steps of a gradient window so far, and the weights of its segments."""

    weights: MoveWeights
    first: Bool[Tensor, "T N"]
    """Where an episode began: no gradient flows into the one before."""
    ancestors: Int[Tensor, "T N K"]
    h_tm1: Float[Tensor, "T N K H"]
    z: Float[Tensor, "T N K Z"]
    e: Float[Tensor, "T N K E"]
    slopes: Slopes
    room: "Walked"
    """Where results are written; the next walk overwrites them."""


class Injected(NamedTuple):
    """Gradients of what the newest steps moved, where their own losses have any."""

    h_tm1: Float[Tensor, "L N K H"] | None
    var: Float[Tensor, "L N K Z"] | None
    z: Float[Tensor, "L N K Z"] | None
    e: Float[Tensor, "L N K E"] | None
    h: Float[Tensor, "L N K H"] | None


class Walked(NamedTuple):
    """Gradients that the walk found at every step."""

    gates: Float[Tensor, "T N K G5"]
    """Of the GRU's gates (n, r, u, n_h) and of the proposal's hidden layer, 4H + Q."""
    head: Float[Tensor, "T N K Z2"]
    e: Float[Tensor, "T N K E"]
    """Of phi^z before its ReLU."""
    sums: Float[Tensor, "T N D"]
    """All of these side by side, added up over particles."""


def move(
    w: MoveWeights,
    min_var: float,
    context: Float[Tensor, "N G"],
    h_tm1: Float[Tensor, "N K H"],
    eps: Float[Tensor, "N K Z"],
) -> tuple[Moved, Slopes]:
    """z_t from the proposal, h_t by the transition."""
    gates = 3 * h_tm1.shape[-1]
    of_state = F.linear(h_tm1, w.state, w.state_bias)
    hidden = torch.relu(of_state[..., gates:] + context[:, None, gates:])
    mean, raw = F.linear(hidden, w.head, w.head_bias).chunk(2, -1)
    var = F.softplus(raw) + min_var
    z = Gaussian(mean, var).sample(eps)  # Eq. 16
    e = torch.relu(F.linear(z, w.embed, w.embed_bias))
    of_input = F.linear(e, w.gates) + context[:, None, :gates]
    h, tape = gru.step(of_input, of_state[..., :gates], h_tm1)  # Eq. 17
    d_var = torch.sigmoid(raw)
    d_z = d_var * eps / (2 * var.sqrt())
    return Moved(h_tm1, var, z, e, h), Slopes(hidden, gru.slopes(tape, h_tm1), d_var, d_z)


def replay(w: MoveWeights, sensed: Float[Tensor, "T N C"], walk: Walk, moved: Moved) -> Moved:
    """The newest moves as functions of `w` and of what was sensed in the whole window.

    Weights enter every step in the same way: the gradient of `w` stands for that of all segments'.
    """
    return Moved(*_Replay.apply(walk, moved, sensed, *w))


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, walk: Walk, moved: Moved, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.walk, ctx.sensed = walk, inputs[0].detach()
        return tuple(x.detach() for x in moved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        walked = _way_back(ctx.walk)(ctx.walk, Injected(*grads))
        return None, None, *_gradients(ctx.walk, ctx.sensed, walked)


def _way_back(walk: Walk) -> Callable[[Walk, Injected], Walked]:
    """One Triton kernel, where it knows the sizes; else a loop over steps."""
    found = kernels.find("dvrl.models.walk_triton", walk.z)
    sizes = (s.shape[-1] for s in (walk.h_tm1, walk.slopes.hidden, walk.e, walk.z))
    if found is None or not found.supports(*sizes, k=walk.z.shape[2]):
        return walk_back
    return partial(found.walk_back, precision=kernels.precision())


def walk_back(walk: Walk, given: Injected) -> Walked:
    """From the last step to the first; results are written where they are to stay."""
    w, slopes = walk.weights, walk.slopes
    steps, n, k, size = walk.h_tm1.shape
    q, z, e = (x.shape[-1] for x in (slopes.hidden, walk.z, walk.e))
    walked, rows = walk.room, n * k
    by_row = (x.view(steps, rows, x.shape[-1]).unbind() for x in walked[:3])
    all_gates, all_heads, all_e = by_row
    sums = walked.sums.split([4 * size + q, 2 * z, e], -1)
    from_newest = steps - next(x.shape[0] for x in given if x is not None)
    flow = walk.z.new_zeros(rows, size)  # from later steps

    def inject(x: Tensor, gradient: Tensor | None, t: int) -> Tensor:
        if gradient is None or t < from_newest:
            return x
        return x.add_(gradient[t - from_newest].reshape(x.shape))

    def at(slope: Tensor, t: int) -> Tensor:
        return slope[t].flatten(0, 1)

    for t in reversed(range(steps)):
        s = t * w.state.shape[0] // steps  # its segment
        gates, head, g_e = all_gates[t], all_heads[t], all_e[t]
        d = inject(flow, given.h, t)
        bypass = gru.step_backward(d, gru.GruSlopes(*(at(x, t) for x in slopes.gru)), gates)
        torch.mm(gates[:, : 3 * size], w.gates[s], out=g_e)
        _through_relu(inject(g_e, given.e, t), at(walk.e, t))
        d_z, d_raw = head.chunk(2, -1)
        inject(torch.mm(g_e, w.embed[s], out=d_z), given.z, t)
        torch.mul(d_z, at(slopes.z, t), out=d_raw)
        if given.var is not None and t >= from_newest:
            d_raw.addcmul_(given.var[t - from_newest].reshape(d_raw.shape), at(slopes.var, t))
        hidden = gates[:, 4 * size :]
        _through_relu(torch.mm(head, w.head[s], out=hidden), at(slopes.hidden, t))
        d = inject(bypass.addmm_(gates[:, size:], w.state[s]), given.h_tm1, t).view(n, k, size)
        d = _to_ancestors(d, walk.ancestors[t]).masked_fill_(walk.first[t, :, None, None], 0.0)
        flow = d.view(rows, size)
        for part, total in zip((gates, head, g_e), sums, strict=True):
            torch.sum(part.view(n, k, -1), 1, out=total[t])
    return walked


def room_for_walk(moved: Moved, slopes: Slopes) -> Walked:
    """Room for the results of a walk through these steps."""
    *batch, size = moved.h.shape
    sizes = 4 * size + slopes.hidden.shape[-1], 2 * moved.z.shape[-1], moved.e.shape[-1]
    gates, head, e = (moved.h.new_empty(*batch, size) for size in sizes)
    return Walked(gates, head, e, moved.h.new_empty(*batch[:2], sum(sizes)))


def _gradients(
    walk: Walk, sensed: Float[Tensor, "T N C"], walked: Walked
) -> tuple[Float[Tensor, "T N C"], *tuple[Tensor, ...]]:
    """Of what was sensed, and of the weights in their order: one product each, over all steps."""
    w, size = walk.weights, walk.h_tm1.shape[-1]
    segments, wide = w.state.shape[0], walked.gates.shape[-1]
    context = torch.cat([walked.sums[..., : 3 * size], walked.sums[..., 4 * size : wide]], -1)
    d_sensed = context.reshape(segments, -1, context.shape[-1]) @ w.context
    biases = walked.sums.sum((0, 1))
    gates, head, e, h_tm1, hidden, z, e_out = (
        x.flatten(0, 2) for x in (*walked[:3], walk.h_tm1, walk.slopes.hidden, walk.z, walk.e)
    )
    head_bias, e_bias = biases[wide:].split([head.shape[-1], e.shape[-1]])
    context = context.flatten(0, 1)
    return (
        d_sensed.view_as(sensed),
        context.t() @ sensed.flatten(0, 1),
        torch.cat([biases[: 3 * size], biases[4 * size : wide]]),
        gates[:, size:].t() @ h_tm1,
        biases[size:wide],
        head.t() @ hidden,
        head_bias,
        e.t() @ z,
        e_bias,
        gates[:, : 3 * size].t() @ e_out,
    )


def _through_relu(gradient: Tensor, output: Tensor) -> Tensor:
    """In place."""
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def _to_ancestors(d: Tensor, ancestors: Tensor) -> Tensor:
    """Gradients of offspring, added up at their ancestors: always in the same order."""
    k = ancestors.shape[-1]
    chosen = ancestors[..., None] == torch.arange(k, device=d.device)  # N, K offspring, K ancestors
    return chosen.to(d).transpose(1, 2) @ d
