"""The walk of models.walk as one kernel on a GPU: a program per environment, all its steps.

What flows back in time stays in registers. The weights do not fit, and are read again every step
from the cache that all programs share. Held to models.walk's own loop by tests in Triton's
interpreter.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dvrl.kernels import PLENTY

if TYPE_CHECKING:
    from dvrl.models.walk import Injected, Walk


@triton.jit
def _at(ptr, row, real, SIZE: tl.constexpr, stride):
    """Where rows of particles [BLOCK, SIZE] lie, from `row` on."""
    local = tl.arange(0, real.shape[0])
    return ptr + row * stride + (local[:, None] * stride + tl.arange(0, SIZE)[None, :])


@triton.jit
def _rows(ptr, row, real, SIZE: tl.constexpr, stride):
    """Rows of particles [BLOCK, SIZE]; zeros where there is no particle."""
    return tl.load(_at(ptr, row, real, SIZE, stride), mask=real[:, None], other=0.0)


@triton.jit
def _keep(ptr, row, real, x, SIZE: tl.constexpr, stride, sum_ptr):
    """Rows, and their sum: those without a particle are zero."""
    tl.store(_at(ptr, row, real, SIZE, stride), x, mask=real[:, None])
    tl.store(sum_ptr + tl.arange(0, SIZE), tl.sum(x, 0))


@triton.jit
def _add(x, ptr, row, real, SIZE: tl.constexpr):
    """x, and the gradient of this step's own loss, if it has one. Steps before the newest have
    none: their rows would be negative."""
    if ptr is not None:
        x += _rows(ptr, row, real & (row >= 0), SIZE, SIZE)
    return x


@triton.jit
def _product(
    acc, x_ptr, row, real, w_ptr,
    FROM: tl.constexpr, TO: tl.constexpr, STRIDE: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """acc + x [BLOCK, FROM] times the weights [FROM, TO], both read chunk by chunk: whole, neither
    fits the registers, and of what is already there Triton takes no slices."""
    w_ptr += tl.arange(0, CHUNK)[:, None] * TO + tl.arange(0, TO)[None, :]
    for i in range(0, FROM, CHUNK):
        x = _rows(x_ptr + i, row, real, CHUNK, STRIDE)
        acc = tl.dot(x, tl.load(w_ptr + i * TO), acc, input_precision=PRECISION)
    return acc


@triton.jit
def _walk(
    state_ptr, head_ptr, embed_ptr, gates_ptr, first_ptr, ancestors_ptr, z_e_ptr,
    s_n_ptr, s_u_ptr, s_r_ptr, s_reset_ptr, s_keep_ptr, s_hidden_ptr, s_var_ptr, s_z_ptr,
    d_htm1_ptr, d_var_ptr, d_z_ptr, d_e_ptr, d_h_ptr,
    g_gates_ptr, g_head_ptr, g_e_ptr, sums_ptr,
    n, steps, newest, per_segment, state_stride, head_stride, embed_stride, gates_stride,
    K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, Z: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the last step to the first; BLOCK rows hold the K particles of an environment.

    Results are written, and read back as operands by other threads: hence the barriers."""
    WIDE: tl.constexpr = 4 * H + Q
    local = tl.arange(0, BLOCK)
    real = local < K
    env = tl.program_id(0).to(tl.int64)
    flow = tl.zeros([BLOCK, H], tl.float32)
    t = steps - 1
    while t >= 0:
        row = (t * n + env) * K
        given = ((t - (steps - newest)) * n + env) * K
        own_sums = sums_ptr + (t * n + env) * (WIDE + 2 * Z + E)
        segment = t // per_segment
        w_state = state_ptr + segment * state_stride
        w_gates = gates_ptr + segment * gates_stride
        w_embed = embed_ptr + segment * embed_stride
        w_head = head_ptr + segment * head_stride

        # The GRU. Here and below, reads that wait for nothing go first: they pass meanwhile.
        s_r = _rows(s_r_ptr, row, real, H, H)
        s_reset = _rows(s_reset_ptr, row, real, H, H)
        s_n = _rows(s_n_ptr, row, real, H, H)
        s_u = _rows(s_u_ptr, row, real, H, H)
        s_keep = _rows(s_keep_ptr, row, real, H, H)
        d = _add(flow, d_h_ptr, given, real, H)
        d_n = d * s_n
        _keep(g_gates_ptr, row, real, d_n, H, WIDE, own_sums)
        _keep(g_gates_ptr + H, row, real, d_n * s_r, H, WIDE, own_sums + H)
        _keep(g_gates_ptr + 2 * H, row, real, d * s_u, H, WIDE, own_sums + 2 * H)
        _keep(g_gates_ptr + 3 * H, row, real, d_n * s_reset, H, WIDE, own_sums + 3 * H)
        d_htm1 = _add(d * s_keep, d_htm1_ptr, given, real, H)
        tl.debug_barrier()
        d_htm1 = _product(
            d_htm1, g_gates_ptr + H, row, real, w_state, 3 * H, H, WIDE, CHUNK, PRECISION
        )

        # phi^z.
        e = _rows(z_e_ptr, row, real, E, E)
        g_e = _add(tl.zeros([BLOCK, E], tl.float32), d_e_ptr, given, real, E)
        g_e = _product(g_e, g_gates_ptr, row, real, w_gates, 3 * H, E, WIDE, CHUNK, PRECISION)
        g_e = tl.where(e > 0, g_e, 0.0)
        _keep(g_e_ptr, row, real, g_e, E, E, own_sums + WIDE + 2 * Z)
        tl.debug_barrier()

        # z = mean + sqrt(var) eps.
        s_z = _rows(s_z_ptr, row, real, Z, Z)
        g_z = _add(tl.zeros([BLOCK, Z], tl.float32), d_z_ptr, given, real, Z)
        g_z = _product(g_z, g_e_ptr, row, real, w_embed, E, Z, E, CHUNK, PRECISION)
        g_raw = g_z * s_z
        if d_var_ptr is not None:
            g_var = _rows(d_var_ptr, given, real & (given >= 0), Z, Z)
            g_raw += g_var * _rows(s_var_ptr, row, real, Z, Z)
        _keep(g_head_ptr, row, real, g_z, Z, 2 * Z, own_sums + WIDE)
        _keep(g_head_ptr + Z, row, real, g_raw, Z, 2 * Z, own_sums + WIDE + Z)
        tl.debug_barrier()

        # The proposal's hidden layer.
        hidden = _rows(s_hidden_ptr, row, real, Q, Q)
        g_hidden = tl.zeros([BLOCK, Q], tl.float32)
        g_hidden = _product(
            g_hidden, g_head_ptr, row, real, w_head, 2 * Z, Q, 2 * Z, CHUNK, PRECISION
        )
        g_hidden = tl.where(hidden > 0, g_hidden, 0.0)
        _keep(g_gates_ptr + 4 * H, row, real, g_hidden, Q, WIDE, own_sums + 4 * H)
        tl.debug_barrier()
        d_htm1 = _product(
            d_htm1, g_gates_ptr + 4 * H, row, real, w_state + 3 * H * H, Q, H, WIDE, CHUNK,
            PRECISION,
        )  # fmt: skip

        # Offspring added up at their ancestors. Rows without a particle are zero: any will do.
        ancestor = tl.load(ancestors_ptr + row + local, mask=real, other=0).to(tl.int32)
        chosen = (ancestor[None, :] == local[:, None]).to(tl.float32)
        flow = tl.dot(chosen, d_htm1, input_precision=PRECISION)
        first = tl.load(first_ptr + t * n + env)
        flow = tl.where(first != 0, 0.0, flow)
        t -= 1


def supports(h: int, q: int, e: int, z: int, k: int) -> bool:
    """Sizes of h, the proposal's hidden layer, phi^z and z; and particles of an environment."""
    return all(size in (64, 128) for size in (h, q, e, z)) and 1 <= k <= 32


def walk_back(
    walk: "Walk",
    given: "Injected",
    *,
    precision: str = "tf32x3",
    num_warps: int | None = None,
    num_stages: int = 4,
    chunk: int = 32,
) -> None:
    """models.walk.walk_back; `chunk` rows of weights at once, `num_stages` of these under way.

    Eight warps are sooner done with the rows of one environment, if they are many; four leave room
    for another environment beside it."""
    steps, n, k, h = walk.h_tm1.shape
    block = max(16, triton.next_power_of_2(k))
    num_warps = num_warps or (8 if block > 16 and n < PLENTY else 4)
    w, slopes, segments = walk.weights, walk.slopes, walk.weights.state.shape[0]
    sizes = {"H": h, "Q": slopes.hidden.shape[-1], "E": walk.e.shape[-1], "Z": walk.z.shape[-1]}
    weights = w.state, w.head, w.embed, w.gates
    assert all(x[0].is_contiguous() for x in weights)
    inputs = [
        walk.first, walk.ancestors, walk.e, *slopes.gru,
        slopes.hidden, slopes.var, slopes.z, given.h_tm1, given.var, given.z, given.e, given.h,
    ]  # fmt: skip
    _walk[(n,)](
        *weights, *(x if x is None else x.contiguous() for x in inputs), *walk.room,
        n, steps, next(x.shape[0] for x in given if x is not None), steps // segments,
        *(x.stride(0) for x in weights),
        K=k, BLOCK=block,
        CHUNK=min(chunk, *sizes.values()), PRECISION=precision,
        num_warps=num_warps, num_stages=num_stages, **sizes,
    )  # fmt: skip
