"""Weighing and summarising particles, recorded now, derived later (see models.replay).

`ParticleEncoder.weigh` is the specification; tests hold the two together. T steps are derived at
once: rows B are the environments of all steps.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from dvrl.core import smc, tree
from dvrl.core.laws import Gaussian, log_prob_of_sample
from dvrl.core.scan import scan_back, scan_taped
from dvrl.fuse import fusable
from dvrl.models.replay import Moved


class WeighWeights(NamedTuple):
    """Prior, decoder and summary, packed; what their contexts say comes apart."""

    prior: Float[Tensor, "P H"]
    prior_head: Float[Tensor, "Z2 P"]
    """Mean and raw variance."""
    prior_head_bias: Float[Tensor, " Z2"]
    dec_e: Float[Tensor, "D E"]
    """phi^z(z), and below h_{t-1} -> the decoder's first layer."""
    dec_h: Float[Tensor, "D H"]
    dec_hidden: Float[Tensor, "D D"]
    dec_hidden_bias: Float[Tensor, " D"]
    dec_head: Float[Tensor, "O2 D"]
    dec_head_bias: Float[Tensor, " O2"]
    summary_h: Float[Tensor, "G H"]
    """h, phi^z(z) and weight of a particle -> the gates (n, r, u) of the second GRU."""
    summary_e: Float[Tensor, "G E"]
    summary_w: Float[Tensor, " G"]
    summary_bias: Float[Tensor, " G"]
    state: Float[Tensor, "G H"]
    """The second GRU's state -> its gates (r, u, n)."""
    state_bias: Float[Tensor, " G"]


class WeighTape(NamedTuple):
    """What only the way back needs; raw variances are those before softplus."""

    p_hidden: Float[Tensor, "*B K P"]
    p_mean: Float[Tensor, "*B K Z"]
    p_raw: Float[Tensor, "*B K Z"]
    d_hidden: Float[Tensor, "*B K D"]
    d_last: Float[Tensor, "*B K D"]
    o_mean: Float[Tensor, "*B K O"]
    o_raw: Float[Tensor, "*B K O"]
    log_w: Float[Tensor, "*B K"]
    vanished: Bool[Tensor, "*B"]
    before: Float[Tensor, "*B K H"]
    """States of the second GRU before it reads each particle."""
    scan: Float[Tensor, "*B K G4"]


class Weighed(NamedTuple):
    """The result of weighing."""

    feature: Float[Tensor, "*B H"]
    loss: Float[Tensor, "*B"]
    log_p_z: Float[Tensor, "*B K"]
    log_p_o: Float[Tensor, "*B K"]
    log_q_z: Float[Tensor, "*B K"]


def weigh(
    w: WeighWeights,
    moved: Moved,
    c_prior: Float[Tensor, "B P"],
    c_dec: Float[Tensor, "B D"],
    eps: Float[Tensor, "B K Z"],
    o_t: Float[Tensor, "B O"],
    min_var: float,
) -> tuple[Weighed, WeighTape]:
    """Weights, evidence and summary of particles that have moved; they started the step equal."""
    h_tm1, var, z, e, h = moved
    p_hidden = torch.relu(F.linear(h_tm1, w.prior) + c_prior[:, None])
    p_mean, p_raw = F.linear(p_hidden, w.prior_head, w.prior_head_bias).chunk(2, -1)
    d_hidden = torch.relu(F.linear(h_tm1, w.dec_h) + F.linear(e, w.dec_e) + c_dec[:, None])
    d_last = torch.relu(F.linear(d_hidden, w.dec_hidden, w.dec_hidden_bias))
    o_mean, o_raw = F.linear(d_last, w.dec_head, w.dec_head_bias).chunk(2, -1)

    log_p_z = Gaussian(p_mean, F.softplus(p_raw) + min_var).log_prob(z)
    log_p_o = Gaussian(o_mean, F.softplus(o_raw) + min_var).log_prob(o_t[:, None])
    log_q_z = log_prob_of_sample(var, eps)
    log_w, vanished = smc.revive(log_p_z + log_p_o - log_q_z)  # Eq. 18
    loss = -smc.log_mean_exp(log_w)  # Eq. 19

    gates = F.linear(h, w.summary_h, w.summary_bias) + F.linear(e, w.summary_e)
    gates = torch.addcmul(gates, log_w.softmax(-1)[..., None], w.summary_w)
    feature, before, scan = scan_taped(gates, w.state, w.state_bias)
    tape = WeighTape(
        p_hidden, p_mean, p_raw, d_hidden, d_last, o_mean, o_raw, log_w, vanished, before, scan
    )
    return Weighed(feature, loss, log_p_z, log_p_o, log_q_z), tape


def replay(
    w: WeighWeights,
    moved: Moved,
    c_prior: Float[Tensor, "T N P"],
    c_dec: Float[Tensor, "T N D"],
    o_t: Float[Tensor, "T N O"],
    min_var: float,
    joint: bool,
    weighed: Weighed,
    tape: WeighTape,
) -> tuple[Float[Tensor, "T N H"], Float[Tensor, "T N"]]:
    """Recorded features and losses as functions of the weights, the moves and the contexts; unless
    `joint`, features do not depend on the moves."""
    given = o_t, min_var, joint
    recorded = weighed.feature, weighed.loss
    return _Replay.apply(given, recorded, tape, c_prior, c_dec, *moved, *w)  # type: ignore[no-any-return]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        given: tuple[Tensor, float, bool],
        recorded: tuple[Tensor, Tensor],
        tape: WeighTape,
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.given, ctx.tape = given, tape
        ctx.moved = Moved(*(x.detach() for x in inputs[2:7]))
        ctx.weights = WeighWeights(*(x.detach() for x in inputs[7:]))
        return tuple(x.detach() for x in recorded)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        d_feature, d_loss = grads
        o_t, min_var, joint = ctx.given
        g = _back(ctx.weights, o_t, min_var, joint, ctx.moved, ctx.tape, d_feature, d_loss)
        return None, None, None, *g


@fusable
def _back(
    w: WeighWeights,
    o_t: Float[Tensor, "T N O"],
    min_var: float,
    joint: bool,
    moved: Moved,
    tape: WeighTape,
    d_feature: Float[Tensor, "T N H"],
    d_loss: Float[Tensor, "T N"],
) -> tuple[Tensor | None, ...]:
    """Gradients of contexts, moves and weights, in the order of `_Replay`'s inputs."""
    steps = d_loss.shape

    def rows(x: Tensor) -> Tensor:  # T, N, ... -> B, ...
        return x.flatten(0, 1)

    moved, tape = tree.tree_map(rows, moved), tree.tree_map(rows, tape)
    o_t, d_loss = rows(o_t), rows(d_loss)
    h_tm1, var, z, e, h = moved
    size = h.shape[-1]

    # The summary.
    d_gates = scan_back(rows(d_feature).contiguous(), tape.before, tape.scan, w.state)
    g_state, g_in = d_gates[..., size:], d_gates[..., : 3 * size]
    weight = tape.log_w.softmax(-1)
    d_lw = -d_loss[:, None] * weight
    d_h = d_e = None
    if joint:
        d_h, d_e, d_w = g_in @ w.summary_h, g_in @ w.summary_e, g_in @ w.summary_w
        d_lw = d_lw + weight * (d_w - (weight * d_w).sum(-1, keepdim=True))
    d_lw = d_lw.masked_fill(tape.vanished[:, None], 0.0)[..., None]

    # Prior, decoder and proposal.
    g_phead = _gaussian_back(d_lw, z - tape.p_mean, tape.p_raw, min_var)
    d_z = -g_phead[..., : z.shape[-1]]
    g_prior = (g_phead @ w.prior_head) * (tape.p_hidden > 0)
    g_dhead = _gaussian_back(d_lw, o_t[:, None] - tape.o_mean, tape.o_raw, min_var)
    g_last = (g_dhead @ w.dec_head) * (tape.d_last > 0)
    g_dec = (g_last @ w.dec_hidden) * (tape.d_hidden > 0)
    d_htm1 = g_prior @ w.prior + g_dec @ w.dec_h
    d_e = g_dec @ w.dec_e if d_e is None else d_e + g_dec @ w.dec_e
    d_moved = (d_htm1, 0.5 * d_lw / var, d_z, d_e, d_h)

    weights = (
        _weight(g_prior, h_tm1),
        *_layer(g_phead, tape.p_hidden),
        _weight(g_dec, e),
        _weight(g_dec, h_tm1),
        *_layer(g_last, tape.d_hidden),
        *_layer(g_dhead, tape.d_last),
        _weight(g_in, h),
        _weight(g_in, e),
        g_in.flatten(0, -2).t() @ weight.flatten(),
        g_in.flatten(0, -2).sum(0),
        *_layer(g_state, tape.before),
    )
    results = (g_prior.sum(1), g_dec.sum(1), *d_moved)
    return *(x if x is None else x.unflatten(0, steps) for x in results), *weights


def _gaussian_back(d: Tensor, miss: Tensor, raw: Tensor, min_var: float) -> Tensor:
    """Gradient of mean and raw variance, side by side, where a log-density has gradient d."""
    var = F.softplus(raw) + min_var
    d_mean = d * miss / var
    return torch.cat([d_mean, 0.5 * (d_mean * miss - d) / var * torch.sigmoid(raw)], -1)


def _weight(g: Tensor, x: Tensor) -> Tensor:
    return g.flatten(0, -2).t() @ x.flatten(0, -2)


def _layer(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return _weight(g, x), g.flatten(0, -2).sum(0)
