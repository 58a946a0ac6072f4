"""The way back through recorded moves, from the newest step to the first of the gradient window.

Steps before the newest segment have no losses of their own: what flows through them comes from
offspring, and most particles of long ago have none. A CPU walks these steps with the survivors
alone; on a GPU all particles go, since there a shape that depends on chance costs more.
"""

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dvrl import kernels
from dvrl.core import gru, tree


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


class Rows(NamedTuple):
    """Gradients of particles in some steps, and the values they meet in products."""

    gates: Float[Tensor, "R G5"]
    head: Float[Tensor, "R Z2"]
    e: Float[Tensor, "R E"]
    h_tm1: Float[Tensor, "R H"]
    hidden: Float[Tensor, "R Q"]
    z: Float[Tensor, "R Z"]
    e_out: Float[Tensor, "R E"]


NOTHING = Injected(None, None, None, None, None)


def way_back(walk: Walk, given: Injected) -> list[Rows]:
    """By one Triton kernel, where it knows the sizes; else step by step."""
    found = kernels.find("dvrl.models.walk_triton", walk.z)
    sizes = (s.shape[-1] for s in (walk.h_tm1, walk.slopes.hidden, walk.e, walk.z))
    if found is not None and found.supports(*sizes, k=walk.z.shape[2]):
        found.walk_back(walk, given, precision=kernels.precision())
        return [rows(walk, slice(None))]
    steps = len(walk.z)
    old = steps - _length(given) if on_cpu(walk.z) else 0
    flow = walk_back(walk, given, until=old)
    newest = rows(walk, slice(old, None))
    return [newest, _walk_survivors(walk, flow, old)] if old else [newest]


def on_cpu(x: Tensor) -> bool:
    """Whether shapes may depend on chance, which no CUDA graph can capture, and rows are added one
    after the other."""
    return not x.is_cuda


def rows(walk: Walk, steps: slice) -> Rows:
    """All particles of some steps."""
    room = walk.room
    values = room.gates, room.head, room.e, walk.h_tm1, walk.slopes.hidden, walk.z, walk.e
    return Rows._make(x[steps].flatten(0, 2) for x in values)


def room_for_walk(
    h: Float[Tensor, "T N K H"], z: Float[Tensor, "T N K Z"], e: Float[Tensor, "T N K E"], q: int
) -> Walked:
    """Room for the results of a walk through these steps; q: of the proposal's hidden layer."""
    *batch, size = h.shape
    sizes = 4 * size + q, 2 * z.shape[-1], e.shape[-1]
    gates, head, of_e = (h.new_empty(*batch, size) for size in sizes)
    return Walked(gates, head, of_e, h.new_empty(*batch[:2], sum(sizes)))


def walk_back(walk: Walk, given: Injected, until: int = 0) -> Float[Tensor, "R H"]:
    """All particles, from the last step to step `until`; what flows out of that one.

    Results are written to the room they are to stay in.
    """
    steps, n, k, size = walk.h_tm1.shape
    newest = steps - _length(given)
    flow = walk.z.new_zeros(n * k, size)  # from later steps
    for t in reversed(range(until, steps)):
        own = NOTHING if t < newest else _given(given, t - newest)
        results = tuple(x[t].flatten(0, 1) for x in walk.room[:3])
        e = walk.e[t].flatten(0, 1)
        d = _step(_weights(walk, t), _slopes(walk, t), e, flow, own, results)
        d = _to_ancestors(d.view(n, k, size), walk.ancestors[t])
        flow = d.masked_fill_(walk.first[t, :, None, None], 0.0).view(n * k, size)
        for part, total in zip(results, _sums(walk, t), strict=True):
            torch.sum(part.view(n, k, -1), 1, out=total)
    return flow


class Generation(NamedTuple):
    """The particles of one step that have offspring to the last."""

    rows: Int[Tensor, " S"]
    """Which they are, among all particles of the step."""
    children: Int[Tensor, " C"]
    """Which of them go on from the step before, not from an episode's beginning."""
    parents: Int[Tensor, " C"]
    """Those's parents, among the survivors of the step before."""


def _lineage(walk: Walk, steps: int) -> list[Generation]:
    """The survivors of the first `steps`, the latest first."""
    _, n, k = walk.ancestors.shape
    offset = k * torch.arange(n)[:, None]
    ancestors = (walk.ancestors[: steps + 1] + offset).flatten(1)
    goes_on = ~walk.first[: steps + 1].repeat_interleave(k, 1)
    place = torch.empty(n * k, dtype=torch.long)
    rows = _marked(ancestors[steps][goes_on[steps]], n * k)
    line = []
    for t in reversed(range(steps)):
        (children,) = goes_on[t][rows].nonzero(as_tuple=True)
        parents = ancestors[t][rows[children]]
        before = _marked(parents, n * k)
        place[before] = torch.arange(len(before))
        line.append(Generation(rows, children, place[parents]))
        rows = before
    return line


def _walk_survivors(walk: Walk, flow: Float[Tensor, "R H"], steps: int) -> Rows:
    """Through the first `steps`, backwards, with those particles alone that have offspring."""
    _, n, k, size = walk.h_tm1.shape
    line = _lineage(walk, steps)
    sizes = [len(generation.rows) for generation in line]
    chosen = torch.cat([g.rows + t * n * k for g, t in zip(line, range(steps)[::-1], strict=True)])

    def pick(x: Float[Tensor, "T N K D"]) -> Float[Tensor, "R D"]:
        return x.flatten(0, 2).index_select(0, chosen)

    h_tm1, z, e = pick(walk.h_tm1), pick(walk.z), pick(walk.e)
    slopes = tree.tree_map(pick, walk.slopes)
    room = [x[:steps].flatten(0, 2)[: len(chosen)] for x in walk.room[:3]]
    flow = flow[line[0].rows]
    for i, (generation, t) in enumerate(zip(line, range(steps)[::-1], strict=True)):
        here = partial(_part, sizes=sizes, i=i)
        results = tuple(here(x) for x in room)
        d = _step(_weights(walk, t), tree.tree_map(here, slopes), here(e), flow, NOTHING, results)
        survivors = sizes[i + 1] if i + 1 < steps else n * k
        children = d.index_select(0, generation.children)
        flow = d.new_zeros(survivors, size).index_add_(0, generation.parents, children)
    sums = walk.room.sums[:steps].flatten(0, 1)
    for part, total in zip(room, sums.split([x.shape[-1] for x in room], -1), strict=True):
        # To rows that lie apart, index_add_ would take ten times as long.
        total.copy_(part.new_zeros(total.shape).index_add_(0, chosen // k, part))
    gates, head, g_e = room
    return Rows(gates, head, g_e, h_tm1, slopes.hidden, z, e)


def _part(x: Tensor, sizes: list[int], i: int) -> Tensor:
    """The rows of generation `i`."""
    start = sum(sizes[:i])
    return x[start : start + sizes[i]]


def _step(
    w: tuple[Tensor, Tensor, Tensor, Tensor],
    slopes: Slopes,
    e: Float[Tensor, "R E"],
    flow: Float[Tensor, "R H"],
    given: Injected,
    results: tuple[Tensor, ...],
) -> Float[Tensor, "R H"]:
    """One step back for rows of particles: writes `results`, gives the gradient of h_{t-1}."""
    w_state, w_head, w_embed, w_gates = w
    gates, head, g_e = results
    size = flow.shape[-1]
    bypass = gru.step_backward(_inject(flow, given.h), slopes.gru, gates)
    torch.mm(gates[:, : 3 * size], w_gates, out=g_e)
    _through_relu(_inject(g_e, given.e), e)
    d_z, d_raw = head.chunk(2, -1)
    _inject(torch.mm(g_e, w_embed, out=d_z), given.z)
    torch.mul(d_z, slopes.z, out=d_raw)
    if given.var is not None:
        d_raw.addcmul_(given.var, slopes.var)
    hidden = gates[:, 4 * size :]
    _through_relu(torch.mm(head, w_head, out=hidden), slopes.hidden)
    return _inject(bypass.addmm_(gates[:, size:], w_state), given.h_tm1)


def _weights(walk: Walk, t: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Those of the segment that step `t` is in."""
    w = walk.weights
    s = t * len(w.state) // len(walk.z)
    return w.state[s], w.head[s], w.embed[s], w.gates[s]


def _slopes(walk: Walk, t: int) -> Slopes:
    """Those of one step, by rows of particles."""
    return tree.tree_map(lambda x: x[t].flatten(0, 1), walk.slopes)


def _given(given: Injected, t: int) -> Injected:
    """Likewise."""
    return Injected._make(x if x is None else x[t].flatten(0, 1) for x in given)


def _sums(walk: Walk, t: int) -> tuple[Tensor, ...]:
    """Room for the sums over particles of each part of the results."""
    return walk.room.sums[t].split([x.shape[-1] for x in walk.room[:3]], -1)


def _length(given: Injected) -> int:
    return next(len(x) for x in given if x is not None)


def _inject(x: Tensor, gradient: Tensor | None) -> Tensor:
    """In place."""
    return x if gradient is None else x.add_(gradient)


def _through_relu(gradient: Tensor, output: Tensor) -> Tensor:
    """In place."""
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def _to_ancestors(d: Float[Tensor, "N K H"], ancestors: Int[Tensor, "N K"]) -> Tensor:
    """Gradients of offspring, added up at their ancestors: always in the same order."""
    n, k, size = d.shape
    if on_cpu(d):
        chosen = (ancestors + k * torch.arange(n)[:, None]).flatten()
        return d.new_zeros(n * k, size).index_add_(0, chosen, d.flatten(0, 1)).view_as(d)
    chosen = ancestors[..., None] == torch.arange(k, device=d.device)  # N, K offspring, K ancestors
    return chosen.to(d).transpose(1, 2) @ d


def _marked(chosen: Int[Tensor, " M"], n: int) -> Int[Tensor, " S"]:
    """The distinct ones among `chosen`, in order."""
    return torch.zeros(n, dtype=torch.bool).index_fill_(0, chosen, True).nonzero()[:, 0]
