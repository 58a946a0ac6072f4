"""Weighing and summarising particles, recorded now, derived later (see models.replay).

`ParticleEncoder.weigh` is the specification; tests hold the two together. T steps are derived at
once: rows B are the environments of all steps.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from dvrl.core import smc
from dvrl.core.laws import Gaussian, log_prob_of_sample
from dvrl.core.products import transposed
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
    """What only the way back needs."""

    p_hidden: Float[Tensor, "*B K P"]
    p_mean: Float[Tensor, "*B K Z"]
    p_var: Float[Tensor, "*B K Z"]
    d_hidden: Float[Tensor, "*B K D"]
    d_last: Float[Tensor, "*B K D"]
    o_var: Float[Tensor, "*B K O"]
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
    log_w: Float[Tensor, "*B K"]
    vanished: Bool[Tensor, "*B"]
    o_mean: Float[Tensor, "*B K O"]
    """Where each particle would have expected the observation."""


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

    p_var, o_var = F.softplus(p_raw) + min_var, F.softplus(o_raw) + min_var
    log_p_z = Gaussian(p_mean, p_var).log_prob(z)
    log_p_o = Gaussian(o_mean, o_var).log_prob(o_t[:, None])
    log_q_z = log_prob_of_sample(var, eps)
    log_w, vanished = smc.revive(log_p_z + log_p_o - log_q_z)  # Eq. 18
    loss = -smc.log_mean_exp(log_w)  # Eq. 19

    gates = F.linear(h, w.summary_h, w.summary_bias) + F.linear(e, w.summary_e)
    gates = torch.addcmul(gates, log_w.softmax(-1)[..., None], w.summary_w)
    feature, before, scan = scan_taped(gates, w.state, w.state_bias)
    weighed = Weighed(feature, loss, log_p_z, log_p_o, log_q_z, log_w, vanished, o_mean)
    return weighed, WeighTape(p_hidden, p_mean, p_var, d_hidden, d_last, o_var, before, scan)


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
    return _Replay.apply(given, weighed, tape, c_prior, c_dec, *moved, *w)  # type: ignore[no-any-return]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        given: tuple[Tensor, float, bool],
        weighed: Weighed,
        tape: WeighTape,
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.given, ctx.weighed, ctx.tape = given, weighed, tape
        ctx.moved = Moved(*(x.detach() for x in inputs[2:7]))
        ctx.weights = WeighWeights(*(x.detach() for x in inputs[7:]))
        return weighed.feature.detach(), weighed.loss.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        d_feature, d_loss = grads
        o_t, min_var, joint = ctx.given
        recorded = ctx.moved, ctx.weighed, ctx.tape
        g = _back(ctx.weights, o_t, min_var, joint, *recorded, d_feature, d_loss)
        return None, None, None, *g


@fusable
def _back(
    w: WeighWeights,
    o_t: Float[Tensor, "T N O"],
    min_var: float,
    joint: bool,
    moved: Moved,
    weighed: Weighed,
    tape: WeighTape,
    d_feature: Float[Tensor, "T N H"],
    d_loss: Float[Tensor, "T N"],
) -> tuple[Tensor | None, ...]:
    """Gradients of contexts, moves and weights, in the order of `_Replay`'s inputs."""
    steps, k = d_loss.shape, weighed.log_w.shape[-1]

    def rows(x: Tensor) -> Tensor:  # T, N, K, D -> R, D
        return x.flatten(0, -2)

    h_tm1, var, z, e, h = (rows(x) for x in moved)
    p_hidden, p_mean, p_var, d_hidden, d_last, o_var = (rows(x) for x in tape[:6])
    size = h.shape[-1]

    # The summary.
    scanned = (x.flatten(0, 1) for x in (d_feature, tape.before, tape.scan))
    d_gates = rows(scan_back(*scanned, w.state))
    g_in, g_state, gate_sums = d_gates[:, : 3 * size], d_gates[:, size:], d_gates.sum(0)
    weight = weighed.log_w.softmax(-1)
    d_lw = -d_loss[..., None] * weight
    d_h = d_e = None
    if joint:
        d_h, d_e, d_w = g_in @ w.summary_h, g_in @ w.summary_e, g_in @ w.summary_w
        d_w = d_w.view_as(weight)
        d_lw = d_lw + weight * (d_w - (weight * d_w).sum(-1, keepdim=True))
    d_lw = d_lw.masked_fill(weighed.vanished[..., None], 0.0).flatten()[:, None]

    # Prior, decoder and proposal.
    g_phead = _gaussian_back(d_lw, z - p_mean, p_var, min_var)
    d_z = -g_phead[:, : z.shape[-1]]
    g_prior = _through_relu(g_phead @ w.prior_head, p_hidden)
    miss = rows(o_t[:, :, None] - weighed.o_mean)
    g_dhead = _gaussian_back(d_lw, miss, o_var, min_var)
    g_last = _through_relu(g_dhead @ w.dec_head, d_last)
    g_dec = _through_relu(g_last @ w.dec_hidden, d_hidden)
    d_htm1 = torch.addmm(g_prior @ w.prior, g_dec, w.dec_h)
    d_e = g_dec @ w.dec_e if d_e is None else torch.addmm(d_e, g_dec, w.dec_e)
    d_moved = (d_htm1, 0.5 * d_lw / var, d_z, d_e, d_h)

    prior, prior_head, dec_e, dec_h, dec_hidden, summary_h, summary_e, state = transposed(
        (g_prior, g_phead, g_dec, g_dec, g_last, g_in, g_in, g_state),
        (h_tm1, p_hidden, e, h_tm1, d_hidden, h, e, rows(tape.before)),
    )
    weights = WeighWeights(
        prior=prior,
        prior_head=prior_head,
        prior_head_bias=g_phead.sum(0),
        dec_e=dec_e,
        dec_h=dec_h,
        dec_hidden=dec_hidden,
        dec_hidden_bias=g_last.sum(0),
        dec_head=g_dhead.t() @ d_last,
        dec_head_bias=g_dhead.sum(0),
        summary_h=summary_h,
        summary_e=summary_e,
        summary_w=g_in.t() @ weight.flatten(),
        summary_bias=gate_sums[: 3 * size],
        state=state,
        state_bias=gate_sums[size:],
    )
    of_steps = (*(x.unflatten(0, (*steps, k)).sum(2) for x in (g_prior, g_dec)),)
    of_moves = (x if x is None else x.unflatten(0, (*steps, k)) for x in d_moved)
    return *of_steps, *of_moves, *weights


def _gaussian_back(d: Tensor, miss: Tensor, var: Tensor, min_var: float) -> Tensor:
    """Gradient of mean and raw variance, side by side, where a log-density has gradient d."""
    d_mean = d * miss / var
    d_var = -torch.expm1(min_var - var)  # of softplus
    return torch.cat([d_mean, 0.5 * (d_mean * miss - d) / var * d_var], -1)


def _through_relu(gradient: Tensor, output: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(gradient, output, 0)
