"""Moves whose proposal is normalised over all particles of a step (see models.replay).

Its hidden layer is y = relu(weight * unit + bias), unit = rate * (x - mean), with mean and variance
over the rows of the step. So a gradient of one row reaches all of them: no particle is spared.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dvrl import kernels
from dvrl.core import tree
from dvrl.fuse import fusable
from dvrl.models.replay import Moved, gradients, move_on
from dvrl.models.walk import MoveWeights, Slopes, Walk, Walked, rows
from dvrl.nets.norm import BatchNorm


class NormedWeights(NamedTuple):
    """What moves particles; `*S` is empty, or the segments of a gradient window."""

    move: MoveWeights
    weight: Float[Tensor, "*S Q"]
    bias: Float[Tensor, "*S Q"]


class NormedSlopes(NamedTuple):
    """The derivative of a move."""

    move: Slopes
    unit: Float[Tensor, "*T N K Q"]
    rate: Float[Tensor, "*T 1 1 Q"]


class NormedWalk(NamedTuple):
    """All steps of a gradient window so far, and the weights of its segments."""

    weights: NormedWeights
    first: Bool[Tensor, "T N"]
    ancestors: Int[Tensor, "T N K"]
    h_tm1: Float[Tensor, "T N K H"]
    z: Float[Tensor, "T N K Z"]
    e: Float[Tensor, "T N K E"]
    slopes: NormedSlopes


class Found(NamedTuple):
    """Gradients that the walk found, at one step or several."""

    gates: Float[Tensor, "*T N K G5"]
    """As in models.walk, and so are the next two."""
    head: Float[Tensor, "*T N K Z2"]
    e: Float[Tensor, "*T N K E"]
    scale: Float[Tensor, "*T Q"]
    """Of the normalisation's weight, and below of its bias."""
    shift: Float[Tensor, "*T Q"]


class Back(NamedTuple):
    """Gradients that the walk found at all steps."""

    moves: Walked
    scale: Float[Tensor, "T Q"]
    shift: Float[Tensor, "T Q"]


def move(
    w: NormedWeights,
    norm: BatchNorm,
    min_var: float,
    context: Float[Tensor, "N G"],
    h_tm1: Float[Tensor, "N K H"],
    of_state: Float[Tensor, "N K G4"],
    eps: Float[Tensor, "N K Z"],
) -> tuple[Moved, NormedSlopes]:
    """z_t from the proposal, h_t by the transition; `of_state`: what these are told by h_{t-1};
    `norm` lends its statistics."""
    gates = 3 * h_tm1.shape[-1]
    centred, rate = norm.centre(of_state[..., gates:] + context[:, None, gates:])
    unit = centred * rate
    hidden = torch.relu(unit * w.weight + w.bias)
    moved, slopes = move_on(w.move, min_var, context, h_tm1, eps, of_state, hidden)
    return moved, NormedSlopes(slopes, unit, rate)


def replay(
    w: NormedWeights, sensed: Float[Tensor, "T N C"], walk: NormedWalk, moved: Moved
) -> Moved:
    """The newest moves as functions of `w` and of what was sensed in the whole window."""
    return Moved(*_Replay.apply(walk, moved, sensed, *tree.leaves(w)))


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, walk: NormedWalk, moved: Moved, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.walk, ctx.sensed = walk, inputs[0].detach()
        return tuple(x.detach() for x in moved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        walk: NormedWalk = ctx.walk
        back = way_back(walk, Moved(*grads))
        plain = Walk(
            walk.weights.move, walk.first, walk.ancestors, walk.h_tm1, walk.z, walk.e,
            walk.slopes.move, back.moves,
        )  # fmt: skip
        of_moves = gradients(plain, ctx.sensed, [rows(plain, slice(None))])
        return None, None, *of_moves, back.scale.sum(0), back.shift.sum(0)


def way_back(walk: NormedWalk, given: Moved) -> Back:
    """By Triton kernels, where they know the sizes; else segment by segment."""
    found = kernels.find("dvrl.models.normed_triton", walk.z)
    sizes = (s.shape[-1] for s in (walk.h_tm1, walk.slopes.unit, walk.e, walk.z))
    if found is not None and found.supports(*sizes, k=walk.z.shape[2]):
        return found.walk_back(walk, given, precision=kernels.precision())
    return walk_back(walk, given)


def walk_back(walk: NormedWalk, given: Moved) -> Back:
    """All segments are alike, but for the gradients that the newest is given."""
    segments = len(walk.weights.weight)
    n_steps = len(walk.z) // segments
    flow = torch.zeros_like(walk.h_tm1[0])
    parts: list[Found] = []
    for s in reversed(range(segments)):
        steps = slice(s * n_steps, (s + 1) * n_steps)
        segment, flow = _walk_segment(
            tree.at(walk.weights, s),
            walk.first[steps],
            walk.ancestors[steps],
            walk.e[steps],
            tree.tree_map(lambda x, steps=steps: x[steps], walk.slopes),
            flow,
            None if parts else given,
        )
        parts.append(segment)
    found = tree.tree_map(lambda *xs: torch.cat(xs), *parts[::-1])
    results = found[:3]
    sums = torch.cat([x.sum(2) for x in results], -1)
    return Back(Walked(*results, sums), found.scale, found.shift)


@fusable
def _walk_segment(
    w: NormedWeights,
    first: Bool[Tensor, "L N"],
    ancestors: Int[Tensor, "L N K"],
    e: Float[Tensor, "L N K E"],
    slopes: NormedSlopes,
    flow: Float[Tensor, "N K H"],
    given: Moved | None,
) -> tuple[Found, Float[Tensor, "N K H"]]:
    """What is found at the steps of a segment, and what flows out of its first."""
    found = []
    for i in reversed(range(len(e))):
        own = None if given is None else tree.at(given, i)
        step, d = _step(w, tree.at(slopes, i), e[i], flow, own)
        flow = _to_ancestors(d, ancestors[i]).masked_fill(first[i, :, None, None], 0.0)
        found.append(step)
    return tree.tree_map(lambda *steps: torch.stack(steps), *found[::-1]), flow


def _step(
    w: NormedWeights,
    slopes: NormedSlopes,
    e: Float[Tensor, "N K E"],
    flow: Float[Tensor, "N K H"],
    given: Moved | None,
) -> tuple[Found, Float[Tensor, "N K H"]]:
    """One step back: what is found there, and the gradient of h_{t-1}."""
    move, slope = w.move, slopes.move
    size = flow.shape[-1]
    d = flow if given is None else flow + given.h
    d_n = d * slope.gru.n
    of_gru = [d_n, d_n * slope.gru.r, d * slope.gru.u, d_n * slope.gru.reset]
    d_e = torch.cat(of_gru[:3], -1) @ move.gates
    d_e = torch.where(e > 0, d_e if given is None else d_e + given.e, 0.0)
    d_z = d_e @ move.embed
    d_z = d_z if given is None else d_z + given.z
    d_raw = d_z * slope.z
    d_raw = d_raw if given is None else d_raw + given.var * slope.var
    head = torch.cat([d_z, d_raw], -1)
    d_y = torch.where(slope.hidden > 0, head @ move.head, 0.0)
    shift, scale = d_y.sum((0, 1)), (d_y * slopes.unit).sum((0, 1))
    count = d_y.shape[0] * d_y.shape[1]
    d_x = (d_y - shift / count - slopes.unit * (scale / count)) * (w.weight * slopes.rate)
    gates = torch.cat([*of_gru, d_x], -1)
    d_htm1 = d * slope.gru.keep + gates[..., size:] @ move.state
    d_htm1 = d_htm1 if given is None else d_htm1 + given.h_tm1
    return Found(gates, head, d_e, scale, shift), d_htm1


def _to_ancestors(d: Float[Tensor, "N K H"], ancestors: Int[Tensor, "N K"]) -> Tensor:
    """Gradients of offspring, added up at their ancestors: always in the same order."""
    k = ancestors.shape[1]
    chosen = ancestors[..., None] == torch.arange(k, device=d.device)  # N, K offspring, K ancestors
    return chosen.to(d.dtype).transpose(1, 2) @ d
