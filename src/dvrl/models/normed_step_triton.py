"""The kernels of models.normed_triton: a step back is to_e, to_z, to_y and to_h.

What they find lies side by side, a row for each particle: gradients of the gates (n, r, u, n_h), of
the proposal's hidden layer, of (mean, raw variance) and of phi^z. A program has the particles of
one or a few environments, and a tile of columns.
"""

import triton
import triton.language as tl

from dvrl.core.tiles_triton import product, total


@triton.jit
def _tile(n_envs, K: tl.constexpr, KP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of a program, KP for the K particles of an environment, and columns. Rows that are not
    `real` repeat others."""
    local = tl.arange(0, ROWS)
    env = tl.program_id(1) * (ROWS // KP) + local // KP
    real = (local % KP < K) & (env < n_envs)
    env = tl.minimum(env, n_envs - 1)
    row = env.to(tl.int64) * K + tl.minimum(local % KP, K - 1)
    return row, env, real, tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)


@triton.jit
def _given(ptr, at):
    """The gradient of this step's own loss, where it has one."""
    if ptr is None:
        return tl.zeros(at.shape, tl.float32)
    else:
        return tl.load(ptr + at)


@triton.jit
def to_e(
    found_ptr, w_ptr, e_ptr, given_ptr,
    n_envs, K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, Z: tl.constexpr,
    KP: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WARPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the gates to phi^z."""
    E_AT: tl.constexpr = 4 * H + Q + 2 * Z
    WIDTH: tl.constexpr = E_AT + E
    row, _, real, column = _tile(n_envs, K, KP, ROWS, COLUMNS)
    at = row[:, None] * E + column[None, :]
    e = tl.load(e_ptr + at)
    d = _given(given_ptr, at)
    acc = tl.zeros([WARPS, ROWS, COLUMNS], tl.float32)
    x_ptr = found_ptr + row * WIDTH
    acc = product(x_ptr, w_ptr, column, 3 * H, E, E, 1, WARPS, PRECISION, acc)
    d = tl.where(e > 0, d + total(acc, WARPS, ROWS, COLUMNS), 0.0)
    tl.store(found_ptr + row[:, None] * WIDTH + E_AT + column[None, :], d, mask=real[:, None])


@triton.jit
def to_z(
    found_ptr, w_ptr, s_var_ptr, s_z_ptr, given_var_ptr, given_ptr, state_ptr, bypass_ptr,
    n_envs, K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, Z: tl.constexpr,
    KP: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WARPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From phi^z to z = mean + sqrt(var) eps. Programs behind these bring what the gates say to
    h_{t-1} on its way: it waits for nothing, and here there is room."""
    HEAD_AT: tl.constexpr = 4 * H + Q
    E_AT: tl.constexpr = HEAD_AT + 2 * Z
    WIDTH: tl.constexpr = E_AT + E
    row, _, real, column = _tile(n_envs, K, KP, ROWS, COLUMNS)
    acc = tl.zeros([WARPS, ROWS, COLUMNS], tl.float32)
    if tl.program_id(0) * COLUMNS < Z:
        at = row[:, None] * Z + column[None, :]
        s_z = tl.load(s_z_ptr + at)
        d_z = _given(given_ptr, at)
        d_raw = tl.zeros([ROWS, COLUMNS], tl.float32)
        if given_var_ptr is not None:
            d_raw = tl.load(given_var_ptr + at) * tl.load(s_var_ptr + at)
        x_ptr = found_ptr + row * WIDTH + E_AT
        acc = product(x_ptr, w_ptr, column, E, Z, Z, 1, WARPS, PRECISION, acc)
        d_z += total(acc, WARPS, ROWS, COLUMNS)
        d_raw += d_z * s_z
        z_ptr = found_ptr + row[:, None] * WIDTH + HEAD_AT + column[None, :]
        tl.store(z_ptr, d_z, mask=real[:, None])
        tl.store(z_ptr + Z, d_raw, mask=real[:, None])
    else:
        column -= Z
        at = row[:, None] * H + column[None, :]
        bypass = tl.load(bypass_ptr + at)
        x_ptr = found_ptr + row * WIDTH + H
        acc = product(x_ptr, state_ptr, column, 3 * H, H, H, 1, WARPS, PRECISION, acc)
        tl.store(bypass_ptr + at, bypass + total(acc, WARPS, ROWS, COLUMNS), mask=real[:, None])


@triton.jit
def to_y(
    found_ptr, w_ptr, hidden_ptr, unit_ptr, d_y_ptr, parts_ptr,
    n_envs, K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, Z: tl.constexpr,
    KP: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WARPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From z to the proposal's hidden layer, and this tile's parts of the sums over all rows."""
    HEAD_AT: tl.constexpr = 4 * H + Q
    WIDTH: tl.constexpr = HEAD_AT + 2 * Z + E
    row, _, real, column = _tile(n_envs, K, KP, ROWS, COLUMNS)
    at = row[:, None] * Q + column[None, :]
    hidden = tl.load(hidden_ptr + at)
    unit = tl.load(unit_ptr + at)
    acc = tl.zeros([WARPS, ROWS, COLUMNS], tl.float32)
    x_ptr = found_ptr + row * WIDTH + HEAD_AT
    acc = product(x_ptr, w_ptr, column, 2 * Z, Q, Q, 1, WARPS, PRECISION, acc)
    d = tl.where((hidden > 0) & real[:, None], total(acc, WARPS, ROWS, COLUMNS), 0.0)
    tl.store(d_y_ptr + at, d, mask=real[:, None])
    both = tl.arange(0, 2)[None, :] * Q + column[:, None]
    tl.store(parts_ptr + both * TILES + tl.program_id(1), tl.sum(tl.join(d, d * unit), 0))


@triton.jit
def _slopes(s_n_ptr, s_u_ptr, s_r_ptr, reset_ptr, keep_ptr, at):
    """core.gru.GruSlopes, read before they are needed: they come from afar."""
    s_n = tl.load(s_n_ptr + at)
    s_u = tl.load(s_u_ptr + at)
    s_r = tl.load(s_r_ptr + at)
    return s_n, s_u, s_r, tl.load(reset_ptr + at), tl.load(keep_ptr + at)


@triton.jit
def _through_gates(d, slopes, found_ptr, real, H: tl.constexpr):
    """Writes the gates' gradients from that of a step's state; gives what bypasses them."""
    s_n, s_u, s_r, reset, keep = slopes
    d_n = d * s_n
    tl.store(found_ptr, d_n, mask=real)
    tl.store(found_ptr + H, d_n * s_r, mask=real)
    tl.store(found_ptr + 2 * H, d * s_u, mask=real)
    tl.store(found_ptr + 3 * H, d_n * reset, mask=real)
    return d * keep


@triton.jit
def begin(
    found_ptr, bypass_ptr, s_n_ptr, s_u_ptr, s_r_ptr, reset_ptr, keep_ptr, given_h_ptr,
    given_htm1_ptr,
    n_envs, K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, Z: tl.constexpr,
    KP: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WARPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The last step's gates: nothing flows in from a later one."""
    WIDTH: tl.constexpr = 4 * H + Q + 2 * Z + E
    row, _, real, column = _tile(n_envs, K, KP, ROWS, COLUMNS)
    at = row[:, None] * H + column[None, :]
    slopes = _slopes(s_n_ptr, s_u_ptr, s_r_ptr, reset_ptr, keep_ptr, at)
    found_ptr += row[:, None] * WIDTH + column[None, :]
    bypass = _through_gates(tl.load(given_h_ptr + at), slopes, found_ptr, real[:, None], H)
    tl.store(bypass_ptr + at, bypass + tl.load(given_htm1_ptr + at), mask=real[:, None])


@triton.jit(do_not_specialize_on_alignment=["first_ptr"])
def to_h(
    found_ptr, w_ptr, unit_ptr, rate_ptr, weight_ptr, d_y_ptr, parts_ptr, shift_ptr, scale_ptr,
    first_ptr, ancestors_ptr, bypass_ptr,
    earlier_ptr, s_n_ptr, s_u_ptr, s_r_ptr, reset_ptr, keep_ptr, given_h_ptr, given_htm1_ptr,
    n_envs, K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, E: tl.constexpr, Z: tl.constexpr,
    KP: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WARPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the hidden layer through its normalisation to h_{t-1}; from there, added up at the
    ancestors, to the gates of the step before, if there is one."""
    WIDTH: tl.constexpr = 4 * H + Q + 2 * Z + E
    row, env, real, column = _tile(n_envs, K, KP, ROWS, COLUMNS)
    warp = tl.arange(0, WARPS)
    at = row[:, None] * H + column[None, :]
    acc = tl.zeros([WARPS, ROWS, COLUMNS], tl.float32)
    if earlier_ptr is not None:
        bypass = tl.load(bypass_ptr + at)
        slopes = _slopes(s_n_ptr, s_u_ptr, s_r_ptr, reset_ptr, keep_ptr, at)
        given_h = _given(given_h_ptr, at)
        given_htm1 = _given(given_htm1_ptr, at)
        local = tl.arange(0, ROWS)
        parent = local // KP * KP + tl.load(ancestors_ptr + row).to(tl.int32)
        first = tl.load(first_ptr + env)
    own = warp[:, None] * 16 + tl.arange(0, 16)[None, :]
    tile = tl.arange(0, TILES)[None, None, :]
    count = 1.0 * n_envs * K
    for i in range(0, Q, 16 * WARPS):
        q = i + own
        there = q < Q
        part_at = parts_ptr + q[:, :, None] * TILES + tile
        shift = tl.sum(tl.load(part_at, mask=there[:, :, None], other=0.0), 2)
        scale = tl.sum(tl.load(part_at + Q * TILES, mask=there[:, :, None], other=0.0), 2)
        slope = tl.load(weight_ptr + q, mask=there, other=0.0)
        slope *= tl.load(rate_ptr + q, mask=there, other=0.0)
        x_at = row[None, :, None] * Q + q[:, None, :]
        d_y = tl.load(d_y_ptr + x_at, mask=there[:, None, :], other=0.0)
        unit = tl.load(unit_ptr + x_at, mask=there[:, None, :], other=0.0)
        d_x = d_y - (shift / count)[:, None, :] - unit * (scale / count)[:, None, :]
        d_x *= slope[:, None, :]
        if tl.program_id(0) == 0:
            x_at = row[None, :, None] * WIDTH + 4 * H + q[:, None, :]
            tl.store(found_ptr + x_at, d_x, mask=real[None, :, None] & there[:, None, :])
            if tl.program_id(1) == 0:
                tl.store(shift_ptr + q, shift, mask=there)
                tl.store(scale_ptr + q, scale, mask=there)
        if earlier_ptr is not None:
            w_at = w_ptr + q[:, :, None] * H + column[None, None, :]
            w = tl.load(w_at, mask=there[:, :, None], other=0.0)
            acc = tl.dot(d_x, w, acc, input_precision=PRECISION)
    if earlier_ptr is not None:
        chosen = ((parent[None, :] == local[:, None]) & real[None, :]).to(tl.float32)
        chosen = tl.broadcast_to(chosen[None, :, :], [WARPS, ROWS, ROWS])
        acc += tl.where(warp[:, None, None] == 0, bypass[None, :, :], 0.0)
        acc = tl.dot(chosen, acc, input_precision="tf32x3")
        d = tl.where((first != 0)[:, None], 0.0, total(acc, WARPS, ROWS, COLUMNS)) + given_h
        earlier_ptr += row[:, None] * WIDTH + column[None, :]
        bypass = _through_gates(d, slopes, earlier_ptr, real[:, None], H)
        tl.store(bypass_ptr + at, bypass + given_htm1, mask=real[:, None])
