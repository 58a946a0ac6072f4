"""The recurrent part of the model - propose z, embed it, move h - recorded now, derived later.

Acting needs values only; gradients are asked for once a segment is complete. Then everything that
does not wait for its predecessor (embeddings, prior, decoder, summary, weights' gradients) is done
for all steps at once, and only h_{t-1} -> z_t -> h_t is walked back step by step, from the newest
step to the first of the gradient window. Derived by hand, this walk is four matrix products a
step, where autograd would make dozens of small operations; and no graph of old segments is kept.
`ParticleEncoder.update` is the specification; tests hold the two together.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from dvrl.core import gru
from dvrl.core.products import transposed
from dvrl.models.walk import Injected, MoveWeights, Rows, Slopes, Walk, way_back


class Moved(NamedTuple):
    """What weighing and summarising need of a move."""

    h_tm1: Float[Tensor, "*T N K H"]
    var: Float[Tensor, "*T N K Z"]
    """Of the proposal."""
    z: Float[Tensor, "*T N K Z"]
    e: Float[Tensor, "*T N K E"]
    """phi^z(z)."""
    h: Float[Tensor, "*T N K H"]


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
    return move_on(w, min_var, context, h_tm1, eps, of_state, hidden)


def move_on(
    w: MoveWeights,
    min_var: float,
    context: Float[Tensor, "N G"],
    h_tm1: Float[Tensor, "N K H"],
    eps: Float[Tensor, "N K Z"],
    of_state: Float[Tensor, "N K G"],
    hidden: Float[Tensor, "N K Q"],
) -> tuple[Moved, Slopes]:
    """The rest of a move, from the proposal's hidden layer on."""
    gates = 3 * h_tm1.shape[-1]
    mean, raw = F.linear(hidden, w.head, w.head_bias).chunk(2, -1)
    var = F.softplus(raw) + min_var
    precision = var.rsqrt()  # torch's square root takes several times as long
    z = torch.addcmul(mean, var * precision, eps)  # Eq. 16
    e = torch.relu(F.linear(z, w.embed, w.embed_bias))
    of_input = F.linear(e, w.gates) + context[:, None, :gates]
    h, tape = gru.step(of_input, of_state[..., :gates], h_tm1)  # Eq. 17
    d_var = torch.sigmoid(raw)
    d_z = 0.5 * d_var * eps * precision
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
        parts = way_back(ctx.walk, Injected(*grads))
        return None, None, *gradients(ctx.walk, ctx.sensed, parts)


def gradients(
    walk: Walk, sensed: Float[Tensor, "T N C"], parts: Sequence[Rows]
) -> tuple[Float[Tensor, "T N C"], *tuple[Tensor, ...]]:
    """Of what was sensed, and of the weights in their order: one product each, over all steps."""
    w, sums, size = walk.weights, walk.room.sums, walk.h_tm1.shape[-1]
    segments, wide = w.state.shape[0], parts[0].gates.shape[-1]
    context = torch.cat([sums[..., : 3 * size], sums[..., 4 * size : wide]], -1)
    d_sensed = context.reshape(segments, -1, context.shape[-1]) @ w.context
    biases = sums.sum((0, 1))
    head_bias, e_bias = biases[wide:].split([parts[0].head.shape[-1], parts[0].e.shape[-1]])
    state, head, embed, gates = transposed(*_pairs(parts[0], size))
    for part in parts[1:]:
        for total, g, x in zip((state, head, embed, gates), *_pairs(part, size), strict=True):
            total.addmm_(g.t(), x)
    return d_sensed.view_as(sensed), *MoveWeights(
        context=context.flatten(0, 1).t() @ sensed.flatten(0, 1),
        context_bias=torch.cat([biases[: 3 * size], biases[4 * size : wide]]),
        state=state,
        state_bias=biases[size:wide],
        head=head,
        head_bias=head_bias,
        embed=embed,
        embed_bias=e_bias,
        gates=gates,
    )


def _pairs(part: Rows, size: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Gradients, and the values they meet in the products of state, head, embed and gates."""
    gates = part.gates
    gradients = gates[:, size:], part.head, part.e, gates[:, : 3 * size]
    return gradients, (part.h_tm1, part.hidden, part.z, part.e_out)
