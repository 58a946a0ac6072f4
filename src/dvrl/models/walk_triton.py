"""The walk of models.replay as one kernel on a GPU: a program per environment, all its steps.

What flows back in time stays in registers. The weights do not fit, and are read again every step
from the cache that all programs share. Held to models.replay's own loop by tests in Triton's
interpreter.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from dvrl.models.replay import Injected, Walk, Walked


@triton.jit
def _at(ptr, row, local, SIZE: tl.constexpr, stride):
    """Where rows of particles [BLOCK, SIZE] lie: `local` ones behind `row`."""
    return ptr + row * stride + (local[:, None] * stride + tl.arange(0, SIZE)[None, :])


@triton.jit
def _rows(ptr, row, local, real, SIZE: tl.constexpr, stride):
    """Rows of particles; zeros where there is no particle."""
    return tl.load(_at(ptr, row, local, SIZE, stride), mask=real[:, None], other=0.0)


@triton.jit
def _keep(ptr, row, local, real, x, stride, sums_ptr, own, there):
    """Rows; and their sums over the particles of each environment: those that are none are zero."""
    SIZE: tl.constexpr = x.shape[1]
    tl.store(_at(ptr, row, local, SIZE, stride), x, mask=real[:, None])
    ENVS: tl.constexpr = own.shape[0]
    total = tl.sum(tl.reshape(x, [ENVS, x.shape[0] // ENVS, SIZE]), 1)
    at = sums_ptr + own[:, None] + tl.arange(0, SIZE)[None, :]
    tl.store(at, total, mask=there[:, None])


@triton.jit
def _add(x, ptr, row, local, real):
    """x, and the gradient of this step's own loss, if it has one. Steps before the newest have
    none: their rows would be negative."""
    if ptr is not None:
        x += _rows(ptr, row, local, real & (row >= 0), x.shape[1], x.shape[1])
    return x


@triton.jit
def _product(
    acc, x_ptr, row, local, real, w_ptr,
    FROM: tl.constexpr, TO: tl.constexpr, STRIDE: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """acc + x [BLOCK, FROM] times the weights [FROM, TO], both read chunk by chunk: whole, neither
    fits the registers, and of what is already there Triton takes no slices."""
    w_ptr += tl.arange(0, CHUNK)[:, None] * TO + tl.arange(0, TO)[None, :]
    for i in range(0, FROM, CHUNK):
        x = _rows(x_ptr + i, row, local, real, CHUNK, STRIDE)
        acc = tl.dot(x, tl.load(w_ptr + i * TO), acc, input_precision=PRECISION)
    return acc


@triton.jit
def _walk(
    state_ptr, head_ptr, embed_ptr, gates_ptr, first_ptr, ancestors_ptr, e_ptr,
    s_n_ptr, s_u_ptr, s_r_ptr, s_reset_ptr, s_keep_ptr, s_hidden_ptr, s_var_ptr, s_z_ptr,
    d_htm1_ptr, d_var_ptr, d_z_ptr, d_e_ptr, d_h_ptr,
    g_gates_ptr, g_head_ptr, g_e_ptr, sums_ptr,
    n, steps, newest, per_segment, state_stride, head_stride, embed_stride, gates_stride,
    K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, Z: tl.constexpr,
    ENVS: tl.constexpr, KP: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the last step to the first; ENVS environments of KP rows for K particles.

    Results are written, and read back as operands by other threads: hence the barriers."""
    WIDE: tl.constexpr = 4 * H + Q
    BLOCK: tl.constexpr = ENVS * KP
    first_env = tl.program_id(0).to(tl.int64) * ENVS
    block = tl.arange(0, BLOCK)
    local = block // KP * K + block % KP
    real = (block % KP < K) & (block // KP < n - first_env)
    own_env = first_env + tl.arange(0, ENVS)
    there = own_env < n
    flow = tl.zeros([BLOCK, H], tl.float32)
    t = steps - 1
    while t >= 0:
        row = (t * n + first_env) * K
        given = ((t - (steps - newest)) * n + first_env) * K
        own = (t * n + own_env) * (WIDE + 2 * Z + E)
        segment = t // per_segment
        w_state = state_ptr + segment * state_stride
        w_gates = gates_ptr + segment * gates_stride
        w_embed = embed_ptr + segment * embed_stride
        w_head = head_ptr + segment * head_stride

        # The GRU. Here and below, reads that wait for nothing go first: they pass meanwhile.
        s_r = _rows(s_r_ptr, row, local, real, H, H)
        s_reset = _rows(s_reset_ptr, row, local, real, H, H)
        s_n = _rows(s_n_ptr, row, local, real, H, H)
        s_u = _rows(s_u_ptr, row, local, real, H, H)
        s_keep = _rows(s_keep_ptr, row, local, real, H, H)
        d = _add(flow, d_h_ptr, given, local, real)
        d_n = d * s_n
        _keep(g_gates_ptr, row, local, real, d_n, WIDE, sums_ptr, own, there)
        _keep(g_gates_ptr + H, row, local, real, d_n * s_r, WIDE, sums_ptr + H, own, there)
        _keep(g_gates_ptr + 2 * H, row, local, real, d * s_u, WIDE, sums_ptr + 2 * H, own, there)
        _keep(
            g_gates_ptr + 3 * H, row, local, real, d_n * s_reset, WIDE, sums_ptr + 3 * H, own, there
        )
        d_htm1 = _add(d * s_keep, d_htm1_ptr, given, local, real)
        tl.debug_barrier()
        d_htm1 = _product(
            d_htm1, g_gates_ptr + H, row, local, real, w_state, 3 * H, H, WIDE, CHUNK, PRECISION
        )

        # phi^z.
        e = _rows(e_ptr, row, local, real, E, E)
        g_e = _add(tl.zeros([BLOCK, E], tl.float32), d_e_ptr, given, local, real)
        g_e = _product(
            g_e, g_gates_ptr, row, local, real, w_gates, 3 * H, E, WIDE, CHUNK, PRECISION
        )
        g_e = tl.where(e > 0, g_e, 0.0)
        _keep(g_e_ptr, row, local, real, g_e, E, sums_ptr + WIDE + 2 * Z, own, there)
        tl.debug_barrier()

        # z = mean + sqrt(var) eps.
        s_z = _rows(s_z_ptr, row, local, real, Z, Z)
        g_z = _add(tl.zeros([BLOCK, Z], tl.float32), d_z_ptr, given, local, real)
        g_z = _product(g_z, g_e_ptr, row, local, real, w_embed, E, Z, E, CHUNK, PRECISION)
        g_raw = g_z * s_z
        if d_var_ptr is not None:
            g_var = _rows(d_var_ptr, given, local, real & (given >= 0), Z, Z)
            g_raw += g_var * _rows(s_var_ptr, row, local, real, Z, Z)
        _keep(g_head_ptr, row, local, real, g_z, 2 * Z, sums_ptr + WIDE, own, there)
        _keep(g_head_ptr + Z, row, local, real, g_raw, 2 * Z, sums_ptr + WIDE + Z, own, there)
        tl.debug_barrier()

        # The proposal's hidden layer.
        hidden = _rows(s_hidden_ptr, row, local, real, Q, Q)
        g_hidden = tl.zeros([BLOCK, Q], tl.float32)
        g_hidden = _product(
            g_hidden, g_head_ptr, row, local, real, w_head, 2 * Z, Q, 2 * Z, CHUNK, PRECISION
        )
        g_hidden = tl.where(hidden > 0, g_hidden, 0.0)
        _keep(g_gates_ptr + 4 * H, row, local, real, g_hidden, WIDE, sums_ptr + 4 * H, own, there)
        tl.debug_barrier()
        d_htm1 = _product(
            d_htm1, g_gates_ptr + 4 * H, row, local, real, w_state + 3 * H * H, Q, H, WIDE, CHUNK,
            PRECISION,
        )  # fmt: skip

        # Offspring added up at their ancestors. Rows without a particle are zero: any will do.
        ancestor = tl.load(ancestors_ptr + row + local, mask=real, other=0).to(tl.int32)
        ancestor += block // KP * KP
        chosen = (ancestor[None, :] == block[:, None]).to(tl.float32)
        flow = tl.dot(chosen, d_htm1, input_precision=PRECISION)
        first = tl.load(first_ptr + t * n + first_env + block // KP, mask=real, other=0)
        flow = tl.where(first[:, None] != 0, 0.0, flow)
        t -= 1


MANY = 256
"""Environments from which on there are enough programs without one for each."""


def supports(h: int, q: int, e: int, z: int, k: int) -> bool:
    """Sizes of h, the proposal's hidden layer, phi^z and z; and particles of an environment."""
    return all(size in (64, 128) for size in (h, q, e, z)) and 1 <= k <= 32


def walk_back(
    walk: "Walk",
    given: "Injected",
    *,
    precision: str = "tf32x3",
    envs: int | None = None,
    num_warps: int = 8,
    num_stages: int = 3,
    chunk: int = 32,
) -> "Walked":
    """models.replay.walk_back, `envs` environments in a program: with many, two share the weights'
    way to the chip. `chunk` rows of weights at once, `num_stages` of these under way."""
    steps, n, k, h = walk.h_tm1.shape
    w, slopes, segments = walk.weights, walk.slopes, walk.weights.state.shape[0]
    sizes = {"H": h, "Q": slopes.hidden.shape[-1], "E": walk.e.shape[-1], "Z": walk.z.shape[-1]}
    weights = w.state, w.head, w.embed, w.gates
    assert all(x[0].is_contiguous() for x in weights)
    inputs = [
        walk.first, walk.ancestors, walk.e, *slopes.gru,
        slopes.hidden, slopes.var, slopes.z, given.h_tm1, given.var, given.z, given.e, given.h,
    ]  # fmt: skip
    padded = max(16, triton.next_power_of_2(k))
    envs = envs or (2 if n >= MANY else 1)
    _walk[(triton.cdiv(n, envs),)](
        *weights, *(x if x is None else x.contiguous() for x in inputs), *walk.room,
        n, steps, next(x.shape[0] for x in given if x is not None), steps // segments,
        *(x.stride(0) for x in weights),
        K=k, ENVS=envs, KP=padded,
        CHUNK=min(chunk, *sizes.values()), PRECISION=precision,
        num_warps=num_warps, num_stages=num_stages, **sizes,
    )  # fmt: skip
    return walk.room
