"""One step of all particles as one kernel on a GPU: encoders.particle's `_step`, between what is
projected once per environment and the scan over particles.

Results are written and read back as operands, chunk by chunk: no layer fits the registers whole.
Held to `_step` by tests in Triton's interpreter.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from dvrl.kernels import PLENTY

LOG_2PI = tl.constexpr(math.log(2 * math.pi))
LARGEST_BELOW_ONE = tl.constexpr(1 - 2**-24)
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _at(ptr, row, SIZE: tl.constexpr, stride):
    """Where rows [BLOCK, SIZE] lie."""
    return ptr + row[:, None] * stride + tl.arange(0, SIZE)[None, :]


@triton.jit
def _bias(ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The same for all rows."""
    return tl.zeros([BLOCK, SIZE], tl.float32) + tl.load(ptr + tl.arange(0, SIZE))[None, :]


@triton.jit
def _keep(ptr, row, real, x, PARTS: tl.constexpr = 1):
    """Rows as one of several parts of wider ones."""
    tl.store(_at(ptr, row, x.shape[1], PARTS * x.shape[1]), x, mask=real[:, None])


@triton.jit
def _product(
    x_ptr, row, w_ptr, W_STRIDE: tl.constexpr, FROM: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr, a, b=None, c=None,
):  # fmt: skip
    """a + x W^T, x [BLOCK, FROM] and W [TO, FROM]; b and c, if there, with W's next rows."""
    TO: tl.constexpr = a.shape[1]
    STEP: tl.constexpr = min(CHUNK, FROM)
    x_ptr = _at(x_ptr, row, STEP, FROM)
    w_ptr += tl.arange(0, TO)[None, :] * W_STRIDE + tl.arange(0, STEP)[:, None]  # transposed
    for i in range(0, FROM, STEP):
        x = tl.load(x_ptr + i)
        a = tl.dot(x, tl.load(w_ptr + i), a, input_precision=PRECISION)
        if b is not None:
            b = tl.dot(x, tl.load(w_ptr + i + TO * W_STRIDE), b, input_precision=PRECISION)
        if c is not None:
            c = tl.dot(x, tl.load(w_ptr + i + 2 * TO * W_STRIDE), c, input_precision=PRECISION)
    if c is not None:
        return a, b, c
    elif b is not None:
        return a, b
    else:
        return a


@triton.jit
def _relu(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _variance(raw, min_var):
    """softplus(raw) + min_var, with log(1 + y) for small y, too."""
    y = tl.exp(-tl.abs(raw))
    one_more = 1 + y
    log1p = tl.where(one_more == 1, y, tl.log(one_more) * (y / (one_more - 1)))
    return tl.where(raw > 0, raw, 0.0) + log1p + min_var


@triton.jit
def _softmax(log_w, there):
    """Of [ENVS, KP] over the particles that are `there`; and the logarithm of the divisor."""
    top = tl.max(tl.where(there, log_w, -INFINITY), 1)
    w = tl.where(there, tl.exp(log_w - top[:, None]), 0.0)
    total = tl.sum(w, 1)
    return w / total[:, None], top + tl.log(total)


@triton.jit
def _systematic(log_w, u, K: tl.constexpr):
    """core.smc.systematic: the ancestors [ENVS, KP]."""
    k = tl.arange(0, log_w.shape[1])[None, :]
    share, _ = _softmax(log_w, k < K)
    cumulative = tl.cumsum(share, 1)
    total = tl.sum(tl.where(k == K - 1, cumulative, 0.0), 1)
    position = tl.minimum((u[:, None] + k) / K, LARGEST_BELOW_ONE) * total[:, None]
    passed = (cumulative[:, None, :] <= position[:, :, None]) & (k < K)[:, None, :]
    return tl.minimum(tl.sum(passed.to(tl.int32), 2), K - 1)


@triton.jit
def _step(
    h_prev_ptr, log_w_prev_ptr, u_ptr, context_ptr, c_prior_ptr, c_dec_ptr, eps_ptr, o_ptr,
    state_ptr, state_bias_ptr, head_ptr, head_bias_ptr, embed_ptr, embed_bias_ptr, gates_ptr,
    prior_ptr, prior_head_ptr, prior_head_bias_ptr, dec_e_ptr, dec_h_ptr, dec_hidden_ptr,
    dec_hidden_bias_ptr, dec_head_ptr, dec_head_bias_ptr,
    summary_h_ptr, summary_e_ptr, summary_weight_ptr, summary_bias_ptr,
    ancestors_ptr, h_tm1_ptr, var_ptr, z_ptr, e_ptr, h_ptr,
    hidden_ptr, s_n_ptr, s_u_ptr, s_r_ptr, reset_ptr, keep_ptr, s_var_ptr, s_z_ptr,
    loss_ptr, log_p_z_ptr, log_p_o_ptr, log_q_z_ptr, log_w_ptr, vanished_ptr, o_mean_ptr,
    p_hidden_ptr, p_mean_ptr, p_var_ptr, d_hidden_ptr, d_last_ptr, o_var_ptr, out_ptr,
    n_envs, min_var, context_stride, c_prior_stride, c_dec_stride,
    K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, Z: tl.constexpr,
    P: tl.constexpr, D: tl.constexpr, OBS: tl.constexpr,
    ENVS: tl.constexpr, KP: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """ENVS environments of KP rows for K particles; rows beyond these repeat others and are not
    written. What was written is read by other threads: hence the barriers."""
    BLOCK: tl.constexpr = ENVS * KP
    local = tl.arange(0, BLOCK)
    first = tl.program_id(0) * ENVS
    env = tl.minimum(first + local // KP, n_envs - 1)
    row = env * K + tl.minimum(local % KP, K - 1)
    real = (local % KP < K) & (first + local // KP < n_envs)
    own = first + tl.arange(0, ENVS)
    own_real = own < n_envs
    own = tl.minimum(own, n_envs - 1)
    k = tl.arange(0, KP)[None, :]
    there = k < K

    # Resample (Eq. 15).
    log_w_prev = tl.load(log_w_prev_ptr + own[:, None] * K + tl.minimum(k, K - 1))
    ancestor = tl.reshape(_systematic(log_w_prev, tl.load(u_ptr + own * K), K), [BLOCK])
    tl.store(ancestors_ptr + row, ancestor.to(tl.int64), mask=real)
    _keep(h_tm1_ptr, row, real, tl.load(_at(h_prev_ptr, env * K + ancestor, H, H)))
    tl.debug_barrier()

    # Hidden layers of proposal and prior.
    x = tl.load(_at(context_ptr + 3 * H, env, Q, context_stride))
    x += _bias(state_bias_ptr + 3 * H, Q, BLOCK)
    x = _product(h_tm1_ptr, row, state_ptr + 3 * H * H, H, H, CHUNK, PRECISION, x)
    _keep(hidden_ptr, row, real, _relu(x))
    x = tl.load(_at(c_prior_ptr, env, P, c_prior_stride))
    x = _product(h_tm1_ptr, row, prior_ptr, H, H, CHUNK, PRECISION, x)
    _keep(p_hidden_ptr, row, real, _relu(x))
    tl.debug_barrier()

    # z from the proposal (Eq. 16), and how probable proposal and prior find it.
    eps = tl.load(_at(eps_ptr, row, Z, Z))
    mean = _bias(head_bias_ptr, Z, BLOCK)
    raw = _bias(head_bias_ptr + Z, Z, BLOCK)
    mean, raw = _product(hidden_ptr, row, head_ptr, Q, Q, CHUNK, PRECISION, mean, raw)
    var = _variance(raw, min_var)
    std = tl.sqrt(var)
    z = mean + std * eps
    s_var = tl.sigmoid(raw)
    _keep(s_var_ptr, row, real, s_var)
    _keep(s_z_ptr, row, real, s_var * eps / (2 * std))
    _keep(var_ptr, row, real, var)
    _keep(z_ptr, row, real, z)
    log_q_z = -0.5 * (tl.sum(eps * eps + tl.log(var), 1) + Z * LOG_2PI)
    mean = _bias(prior_head_bias_ptr, Z, BLOCK)
    raw = _bias(prior_head_bias_ptr + Z, Z, BLOCK)
    mean, raw = _product(p_hidden_ptr, row, prior_head_ptr, P, P, CHUNK, PRECISION, mean, raw)
    _keep(p_mean_ptr, row, real, mean)
    var = _variance(raw, min_var)
    _keep(p_var_ptr, row, real, var)
    log_p_z = -0.5 * (tl.sum((z - mean) * (z - mean) / var + tl.log(var), 1) + Z * LOG_2PI)
    tl.debug_barrier()

    # phi^z.
    e = _bias(embed_bias_ptr, E, BLOCK)
    e = _product(z_ptr, row, embed_ptr, Z, Z, CHUNK, PRECISION, e)
    _keep(e_ptr, row, real, _relu(e))
    tl.debug_barrier()

    # The decoder's first layer.
    x = tl.load(_at(c_dec_ptr, env, D, c_dec_stride))
    x = _product(h_tm1_ptr, row, dec_h_ptr, H, H, CHUNK, PRECISION, x)
    x = _product(e_ptr, row, dec_e_ptr, E, E, CHUNK, PRECISION, x)
    _keep(d_hidden_ptr, row, real, _relu(x))

    # The GRU (Eq. 17).
    n = tl.load(_at(context_ptr, env, H, context_stride))
    r = tl.load(_at(context_ptr + H, env, H, context_stride))
    u = tl.load(_at(context_ptr + 2 * H, env, H, context_stride))
    r += _bias(state_bias_ptr, H, BLOCK)
    u += _bias(state_bias_ptr + H, H, BLOCK)
    n_h = _bias(state_bias_ptr + 2 * H, H, BLOCK)
    r, u, n_h = _product(h_tm1_ptr, row, state_ptr, H, H, CHUNK, PRECISION, r, u, n_h)
    n, r, u = _product(e_ptr, row, gates_ptr, E, E, CHUNK, PRECISION, n, r, u)
    r = tl.sigmoid(r)
    u = tl.sigmoid(u)
    n = 2 * tl.sigmoid(2 * (n + r * n_h)) - 1  # tanh
    ahead = tl.load(_at(h_tm1_ptr, row, H, H)) - n
    _keep(h_ptr, row, real, n + u * ahead)
    _keep(reset_ptr, row, real, r)
    _keep(keep_ptr, row, real, u)
    _keep(s_n_ptr, row, real, (1 - u) * (1 - n * n))
    _keep(s_u_ptr, row, real, ahead * u * (1 - u))
    _keep(s_r_ptr, row, real, n_h * r * (1 - r))
    tl.debug_barrier()

    # How probable the decoder finds the observation.
    x = _bias(dec_hidden_bias_ptr, D, BLOCK)
    x = _relu(_product(d_hidden_ptr, row, dec_hidden_ptr, D, D, CHUNK, PRECISION, x))
    _keep(d_last_ptr, row, real, x)
    terms = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(OBS):
        mean = tl.sum(x * _bias(dec_head_ptr + i * D, D, BLOCK), 1) + tl.load(dec_head_bias_ptr + i)
        raw = tl.sum(x * _bias(dec_head_ptr + (OBS + i) * D, D, BLOCK), 1)
        raw += tl.load(dec_head_bias_ptr + OBS + i)
        var = _variance(raw, min_var)
        tl.store(o_var_ptr + row * OBS + i, var, mask=real)
        miss = tl.load(o_ptr + env * OBS + i) - mean
        terms += miss * miss / var + tl.log(var)
        tl.store(o_mean_ptr + row * OBS + i, mean, mask=real)
    log_p_o = -0.5 * (terms + OBS * LOG_2PI)

    # Weights (Eq. 18) and evidence (Eq. 19).
    log_w = tl.reshape(log_p_z + log_p_o - log_q_z, [ENVS, KP])
    alive = tl.abs(log_w) < INFINITY
    vanished = tl.max((alive & there).to(tl.int32), 1) == 0
    log_w = tl.where(vanished[:, None], 0.0, tl.where(alive, log_w, -INFINITY))
    weight, log_total = _softmax(log_w, there)
    tl.store(vanished_ptr + own, vanished, mask=own_real)
    tl.store(loss_ptr + own, tl.log(tl.full([ENVS], K, tl.float32)) - log_total, mask=own_real)
    tl.store(log_w_ptr + row, tl.reshape(log_w, [BLOCK]), mask=real)
    tl.store(log_p_z_ptr + row, log_p_z, mask=real)
    tl.store(log_p_o_ptr + row, log_p_o, mask=real)
    tl.store(log_q_z_ptr + row, log_q_z, mask=real)

    # The summary's gates.
    weight = tl.reshape(weight, [BLOCK])[:, None]
    n = _bias(summary_bias_ptr, H, BLOCK) + weight * _bias(summary_weight_ptr, H, BLOCK)
    r = _bias(summary_bias_ptr + H, H, BLOCK) + weight * _bias(summary_weight_ptr + H, H, BLOCK)
    u = _bias(summary_bias_ptr + 2 * H, H, BLOCK)
    u += weight * _bias(summary_weight_ptr + 2 * H, H, BLOCK)
    n, r, u = _product(h_ptr, row, summary_h_ptr, H, H, CHUNK, PRECISION, n, r, u)
    n, r, u = _product(e_ptr, row, summary_e_ptr, E, E, CHUNK, PRECISION, n, r, u)
    _keep(out_ptr, row, real, n, 3)
    _keep(out_ptr + H, row, real, r, 3)
    _keep(out_ptr + 2 * H, row, real, u, 3)


def supports(h: int, q: int, e: int, z: int, p: int, d: int, o: int, k: int) -> bool:
    """Sizes of h, the proposal's hidden layer, phi^z, z, the hidden layers of prior and decoder and
    of the observation; and particles."""
    layers = all(size in (64, 128) for size in (h, q, e, z, p, d))
    return layers and 1 <= o <= 8 and 1 <= k <= 32


def step(
    weights: tuple[Tensor, ...], min_var: float,
    h_prev: Tensor, log_w_prev: Tensor, u: Tensor, context: Tensor, c_prior: Tensor,
    c_dec: Tensor, eps: Tensor, o_t: Tensor, results: tuple[Tensor, ...], *,
    precision: str = "tf32x3", envs: int | None = None, num_warps: int | None = None,
    num_stages: int | None = None, chunk: int = 32,
) -> Tensor:  # fmt: skip
    """The summary's gates [N, K, 3H]. `weights`, all contiguous, are those of `MoveWeights` behind
    the context and those of `WeighWeights` before the second GRU's state. `results` are written:
    ancestors, the parts of `Moved` and of `Slopes`, of `Weighed` all but the feature, of
    `WeighTape` what the scan does not write.

    `envs` environments in a program: one where there are few; else as many as fill the 16 rows that
    tensor cores want, and twice as many, since they share the weights' way to the chip.
    `chunk` columns of weights at once, `num_stages` of these chunks under way. Of `context`,
    `c_prior` and `c_dec` only the columns must be contiguous."""
    n, k, h = h_prev.shape
    _, _, head, _, _, _, of_e, prior, _, _, dec_e, *_ = weights
    q, e, z, p = head.shape[1], of_e.shape[1], eps.shape[-1], prior.shape[0]
    d, o = dec_e.shape[0], o_t.shape[-1]
    assert n * k * 3 * h < 2**31, "indices must fit 32 bits"
    padded = triton.next_power_of_2(k)
    many = n >= PLENTY
    twice = many and precision == "tf32"  # else registers do not suffice
    envs = envs or (max(1, 16 // padded) if many else 1) * (2 if twice else 1)
    num_warps, num_stages = num_warps or (16 if twice else 8), num_stages or (2 if twice else 3)

    gates = h_prev.new_empty(n, k, 3 * h)
    contexts = [c if c.stride(1) == 1 else c.contiguous() for c in (context, c_prior, c_dec)]
    _step[(triton.cdiv(n, envs),)](
        h_prev.contiguous(), log_w_prev.contiguous(), u.contiguous(), *contexts, eps.contiguous(),
        o_t.contiguous(), *weights, *results, gates,
        n, min_var, *(c.stride(0) for c in contexts),
        K=k, H=h, Q=q, E=e, Z=z, P=p, D=d, OBS=o, ENVS=envs, KP=padded,
        CHUNK=chunk, PRECISION=precision, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return gates
