"""The recurrent part of the model - propose z, embed it, move h - recorded now, derived later.

Acting through a segment needs values only; its gradient is asked for once all of it is known. Then
everything that does not wait for its predecessor (embeddings, prior, decoder, summary, weights'
gradients) is done for all T steps at once, and only h_{t-1} -> z_t -> h_t is walked step by step.
Derived by hand, this walk is four matrix products a step, where autograd would make dozens of
small operations. `ParticleEncoder.update` is the specification; tests hold the two together.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dvrl.core import gru, tree
from dvrl.core.laws import Gaussian
from dvrl.fuse import fusable


class MoveWeights(NamedTuple):
    """Copies of the parameters that move particles, packed so that one product does many; being
    copies they survive the optimiser's steps while a gradient window is open. G = 3H + Q."""

    context: Float[Tensor, "G C"]
    """[x, a] -> GRU input gates (n, r, u) and the proposal's hidden layer."""
    context_bias: Float[Tensor, " G"]
    state: Float[Tensor, "G H"]
    """h -> GRU state gates (r, u, n) and the proposal's hidden layer."""
    state_bias: Float[Tensor, " G"]
    head: Float[Tensor, "Z2 Q"]
    """The proposal's hidden layer -> mean and raw variance."""
    head_bias: Float[Tensor, " Z2"]
    embed: Float[Tensor, "E Z"]
    """phi^z."""
    embed_bias: Float[Tensor, " E"]
    gates: Float[Tensor, "G3 E"]
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


class MoveTape(NamedTuple):
    """What only the way back needs."""

    eps: Float[Tensor, "*T N K Z"]
    hidden: Float[Tensor, "*T N K Q"]
    raw: Float[Tensor, "*T N K Z"]
    """The proposal's variance before softplus."""
    gru: gru.GruTape


def move(
    w: MoveWeights,
    min_var: float,
    context: Float[Tensor, "N G"],
    h_tm1: Float[Tensor, "N K H"],
    eps: Float[Tensor, "N K Z"],
) -> tuple[Moved, MoveTape]:
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
    return Moved(h_tm1, var, z, e, h), MoveTape(eps, hidden, raw, tape)


def replay(
    w: MoveWeights,
    h_in: Float[Tensor, "N K H"],
    context: Float[Tensor, "T N G"],
    first: Bool[Tensor, "T N"],
    ancestors: Int[Tensor, "T N K"],
    moved: Moved,
    tape: MoveTape,
) -> tuple[Moved, Float[Tensor, "N K H"]]:
    """The recorded moves as functions of `h_in`, `context` and `w`; and the last h on its own.

    Where an episode began (`first`), no gradient flows into the one before.
    """
    *values, h_out = _Replay.apply(
        first, ancestors, moved, tape, h_in, context, w.state, w.state_bias, w.head, w.head_bias,
        w.embed, w.embed_bias, w.gates,
    )  # fmt: skip
    return Moved(*values), h_out


class _Slopes(NamedTuple):
    """Derivatives of every recorded step, computed once and used by every update of the window."""

    gru: gru.GruSlopes
    hidden: Float[Tensor, "T N K Q"]
    e: Float[Tensor, "T N K E"]
    var: Float[Tensor, "T N K Z"]
    """d var / d raw."""
    z: Float[Tensor, "T N K Z"]
    """d z / d raw."""


@fusable
def _slopes(moved: Moved, tape: MoveTape) -> _Slopes:
    d_var = torch.sigmoid(tape.raw)
    return _Slopes(
        gru.slopes(tape.gru, moved.h_tm1),
        (tape.hidden > 0).to(tape.hidden),
        (moved.e > 0).to(moved.e),
        d_var,
        d_var * tape.eps / (2 * moved.var.sqrt()),
    )


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: Tensor, ancestors: Tensor, moved: Moved, tape: MoveTape, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        _, _, state, _, head, _, embed, _, gates = inputs
        ctx.set_materialize_grads(False)
        ctx.weights = state, head, embed, gates
        ctx.walked = first, ancestors, _slopes(moved, tape)
        ctx.operands = moved.h_tm1, tape.hidden, moved.z, moved.e
        return tuple(x.detach() for x in (*moved, moved.h[-1]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        walk = _kernel(ctx.walked[-1]) or _walk_back
        flow, *gradients = walk(ctx.weights, *ctx.walked, *grads)
        return None, None, None, None, flow, *_weight_gradients(*gradients, *ctx.operands)


def _kernel(slopes: _Slopes) -> Callable[..., tuple[Tensor, ...]] | None:
    """The walk as one Triton kernel, where there is Triton and it knows the sizes."""
    if not slopes.z.is_cuda or slopes.z.dtype != torch.float32:
        return None
    try:
        from dvrl.models import walk_triton
    except ImportError:
        return None
    sizes = (s.shape[-1] for s in (slopes.gru.n, slopes.hidden, slopes.e, slopes.z))
    if not walk_triton.supports(*sizes, k=slopes.z.shape[2]):
        return None
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return partial(walk_triton.walk_back, precision="tf32" if tf32 else "tf32x3")


@fusable
def _walk_back(
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    first: Tensor,
    ancestors: Tensor,
    slopes: _Slopes,
    d_htm1: Tensor | None,
    d_var: Tensor | None,
    d_z: Tensor | None,
    d_e: Tensor | None,
    d_h: Tensor | None,
    d_out: Tensor | None,
) -> tuple[Tensor, ...]:
    """Gradients of h before the first step; and of every step's GRU gates (n, r, u, n_h), of the
    proposal's hidden layer and heads, and of phi^z before its ReLU."""
    w_state, w_head, w_embed, w_gates = weights
    steps, n, k, size = slopes.gru.n.shape
    w_gru, w_hidden = w_state.split([3 * size, w_state.shape[0] - 3 * size])
    rows = []
    flow = slopes.z.new_zeros(n, k, size) if d_out is None else d_out  # from later steps
    for t in reversed(range(steps)):
        slope = tree.at(slopes, t)
        g_gates, bypass = gru.step_backward(_sum(flow, d_h, t), slope.gru)
        g_e = _sum(g_gates[..., : 3 * size] @ w_gates, d_e, t) * slope.e
        d = _sum(g_e @ w_embed, d_z, t)
        d_raw = d * slope.z
        if d_var is not None:
            d_raw = torch.addcmul(d_raw, d_var[t], slope.var)
        g_head = torch.cat([d, d_raw], -1)
        g_hidden = (g_head @ w_head) * slope.hidden
        d = _sum(bypass + g_gates[..., size:] @ w_gru + g_hidden @ w_hidden, d_htm1, t)
        flow = _to_ancestors(d, ancestors[t]).masked_fill(first[t, :, None, None], 0.0)
        rows.append((g_gates, g_hidden, g_head, g_e))
    return flow, *(torch.stack(column[::-1]) for column in zip(*rows, strict=True))


@fusable
def _weight_gradients(
    g_gates: Tensor,
    g_hidden: Tensor,
    g_head: Tensor,
    g_e: Tensor,
    h_tm1: Tensor,
    hidden: Tensor,
    z: Tensor,
    e: Tensor,
) -> tuple[Tensor, ...]:
    """One product for each weight, over all steps; context first, in the order of `MoveWeights`."""
    size = h_tm1.shape[-1]
    g_context = torch.cat([g_gates[..., : 3 * size].sum(2), g_hidden.sum(2)], -1)
    rows = [g.flatten(0, 2) for g in (g_gates, g_hidden, g_head, g_e, h_tm1, hidden, z, e)]
    g_gates, g_hidden, g_head, g_e, h_tm1, hidden, z, e = rows
    g_gru = g_gates[:, size:]
    return (
        g_context,
        torch.cat([g_gru.t() @ h_tm1, g_hidden.t() @ h_tm1]),
        torch.cat([g_gru.sum(0), g_hidden.sum(0)]),
        g_head.t() @ hidden,
        g_head.sum(0),
        g_e.t() @ z,
        g_e.sum(0),
        g_gates[:, : 3 * size].t() @ e,
    )


def _sum(flow: Tensor, injected: Tensor | None, t: int) -> Tensor:
    """The gradient that came through time, and that of this step's own loss, if it has one."""
    return flow if injected is None else flow + injected[t]


def _to_ancestors(d: Tensor, ancestors: Tensor) -> Tensor:
    """Gradients of offspring, added up at their ancestors: always in the same order."""
    k = ancestors.shape[-1]
    chosen = ancestors[..., None] == torch.arange(k, device=d.device)  # N, K offspring, K ancestors
    return chosen.to(d).transpose(1, 2) @ d
