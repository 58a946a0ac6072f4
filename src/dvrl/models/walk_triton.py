"""The walk of models.replay as one kernel on a GPU: a program per environment, all its steps.

What flows back in time stays in registers. The weights do not fit, and are read again every step
from the cache that all programs share; so a program may also take several environments.
Held to models.replay's own loop by tests in Triton's interpreter.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from dvrl.models.replay import _Slopes


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
def _keep(ptr, row, real, x, SIZE: tl.constexpr, stride):
    tl.store(_at(ptr, row, real, SIZE, stride), x, mask=real[:, None])


@triton.jit
def _add(x, ptr, row, real, SIZE: tl.constexpr):
    """x, and the gradient of this step's own loss, if it has one."""
    if ptr is not None:
        x += _rows(ptr, row, real, SIZE, SIZE)
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
    state_ptr, head_ptr, embed_ptr, gates_ptr, first_ptr, ancestors_ptr,
    s_n_ptr, s_u_ptr, s_r_ptr, s_reset_ptr, s_keep_ptr, s_hidden_ptr, s_e_ptr, s_var_ptr, s_z_ptr,
    d_htm1_ptr, d_var_ptr, d_z_ptr, d_e_ptr, d_h_ptr, d_out_ptr,
    flow_ptr, g_gates_ptr, g_hidden_ptr, g_head_ptr, g_e_ptr,
    n, reset_stride, keep_stride,
    T: tl.constexpr, K: tl.constexpr,
    H: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, Z: tl.constexpr,
    ENVS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the last step to the first; BLOCK rows hold the K particles of each of ENVS.

    Results are written, and read back as operands by other threads: hence the barriers."""
    local = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * (ENVS * K)
    real = (local < ENVS * K) & (local < n * K - start)
    flow = _add(tl.zeros([BLOCK, H], tl.float32), d_out_ptr, start, real, H)
    for i in range(T):
        row = start + (T - 1 - i) * n * K

        # The GRU. Here and below, reads that wait for nothing go first: they pass meanwhile.
        s_r = _rows(s_r_ptr, row, real, H, H)
        s_reset = _rows(s_reset_ptr, row, real, H, reset_stride)
        s_n = _rows(s_n_ptr, row, real, H, H)
        s_u = _rows(s_u_ptr, row, real, H, H)
        s_keep = _rows(s_keep_ptr, row, real, H, keep_stride)
        d = _add(flow, d_h_ptr, row, real, H)
        d_n = d * s_n
        _keep(g_gates_ptr, row, real, d_n, H, 4 * H)
        _keep(g_gates_ptr + H, row, real, d_n * s_r, H, 4 * H)
        _keep(g_gates_ptr + 2 * H, row, real, d * s_u, H, 4 * H)
        _keep(g_gates_ptr + 3 * H, row, real, d_n * s_reset, H, 4 * H)
        d_htm1 = _add(d * s_keep, d_htm1_ptr, row, real, H)
        tl.debug_barrier()
        d_htm1 = _product(
            d_htm1, g_gates_ptr + H, row, real, state_ptr, 3 * H, H, 4 * H, CHUNK, PRECISION
        )

        # phi^z.
        s_e = _rows(s_e_ptr, row, real, E, E)
        g_e = _add(tl.zeros([BLOCK, E], tl.float32), d_e_ptr, row, real, E)
        g_e = _product(g_e, g_gates_ptr, row, real, gates_ptr, 3 * H, E, 4 * H, CHUNK, PRECISION)
        g_e *= s_e
        _keep(g_e_ptr, row, real, g_e, E, E)
        tl.debug_barrier()

        # z = mean + sqrt(var) eps.
        s_z = _rows(s_z_ptr, row, real, Z, Z)
        g_z = _add(tl.zeros([BLOCK, Z], tl.float32), d_z_ptr, row, real, Z)
        g_z = _product(g_z, g_e_ptr, row, real, embed_ptr, E, Z, E, CHUNK, PRECISION)
        g_raw = g_z * s_z
        if d_var_ptr is not None:
            g_var = _rows(d_var_ptr, row, real, Z, Z)
            g_raw += g_var * _rows(s_var_ptr, row, real, Z, Z)
        _keep(g_head_ptr, row, real, g_z, Z, 2 * Z)
        _keep(g_head_ptr + Z, row, real, g_raw, Z, 2 * Z)
        tl.debug_barrier()

        # The proposal's hidden layer.
        s_hidden = _rows(s_hidden_ptr, row, real, Q, Q)
        g_hidden = tl.zeros([BLOCK, Q], tl.float32)
        g_hidden = _product(
            g_hidden, g_head_ptr, row, real, head_ptr, 2 * Z, Q, 2 * Z, CHUNK, PRECISION
        )
        g_hidden *= s_hidden
        _keep(g_hidden_ptr, row, real, g_hidden, Q, Q)
        tl.debug_barrier()
        d_htm1 = _product(
            d_htm1, g_hidden_ptr, row, real, state_ptr + 3 * H * H, Q, H, Q, CHUNK, PRECISION
        )

        # Offspring added up at their ancestors. Rows without a particle are zero: any will do.
        ancestor = tl.load(ancestors_ptr + row + local, mask=real, other=0).to(tl.int32)
        ancestor += local // K * K
        chosen = (ancestor[None, :] == local[:, None]).to(tl.float32)
        flow = tl.dot(chosen, d_htm1, input_precision=PRECISION)
        first = tl.load(first_ptr + row // K + local // K, mask=real, other=0)
        flow = tl.where(first[:, None] != 0, 0.0, flow)
    _keep(flow_ptr, start, real, flow, H, H)


def supports(h: int, q: int, e: int, z: int, k: int) -> bool:
    """Sizes of h, the proposal's hidden layer, phi^z and z; and particles of an environment."""
    return all(size in (64, 128) for size in (h, q, e, z)) and 1 <= k <= 32


def walk_back(
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    first: Tensor,
    ancestors: Tensor,
    slopes: "_Slopes",
    d_htm1: Tensor | None,
    d_var: Tensor | None,
    d_z: Tensor | None,
    d_e: Tensor | None,
    d_h: Tensor | None,
    d_out: Tensor | None,
    *,
    precision: str = "tf32x3",
    envs: int = 1,
    num_warps: int = 8,
    num_stages: int = 3,
    chunk: int = 32,
) -> tuple[Tensor, ...]:
    """models.replay._walk_back, `envs` environments in a program, `chunk` rows of weights at once
    and `num_stages` of these chunks under way."""
    steps, n, k, h = slopes.gru.n.shape
    sizes = {"H": h, "Q": slopes.hidden.shape[-1], "E": slopes.e.shape[-1], "Z": slopes.z.shape[-1]}
    # The GRU's gates may be halves of one tensor: no reason to copy them.
    reset, keep = _evenly_spaced(slopes.gru.reset), _evenly_spaced(slopes.gru.keep)
    gru = slopes.gru
    inputs = [
        *weights, first, ancestors, gru.n, gru.u, gru.r, reset, keep, slopes.hidden, slopes.e,
        slopes.var, slopes.z, d_htm1, d_var, d_z, d_e, d_h, d_out,
    ]  # fmt: skip
    packed = [x if x is None or x is reset or x is keep else x.contiguous() for x in inputs]
    flow, g_gates, g_hidden, g_head, g_e = (
        slopes.z.new_empty(*batch, k, size)
        for *batch, size in (
            (n, h), (steps, n, 4 * h), (steps, n, sizes["Q"]), (steps, n, 2 * sizes["Z"]),
            (steps, n, sizes["E"]),
        )
    )  # fmt: skip
    _walk[(triton.cdiv(n, envs),)](
        *packed, flow, g_gates, g_hidden, g_head, g_e, n, reset.stride(0), keep.stride(0),
        T=steps, K=k, ENVS=envs, BLOCK=max(16, triton.next_power_of_2(envs * k)),
        CHUNK=min(chunk, *sizes.values()), PRECISION=precision,
        num_warps=num_warps, num_stages=num_stages, **sizes,
    )  # fmt: skip
    return flow, g_gates, g_hidden, g_head, g_e


def _evenly_spaced(x: Tensor) -> Tensor:
    """x as a matrix of rows, each contiguous; a copy only where a view will not do."""
    rows = x.flatten(0, -2)
    return rows if rows.stride(1) == 1 else rows.contiguous()
