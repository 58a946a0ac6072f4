"""The walk of models.normed as four kernels a step on a GPU: a product each, with all that stands
before and behind it.

Every row waits for the sums over all rows, so one kernel could not do a step. Held to
models.normed's own loop by tests in Triton's interpreter.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import triton
from torch import Tensor

from dvrl.core import tiles_triton, tree
from dvrl.models.normed import Back
from dvrl.models.normed_step_triton import begin, to_e, to_h, to_y, to_z
from dvrl.models.replay import Moved
from dvrl.models.walk import Walked

if TYPE_CHECKING:
    from dvrl.models.normed import NormedWalk

MANY = 32
"""Tiles of rows up to which every program that wants their sums adds them up itself."""
NOTHING = Moved(*5 * (None,))


def supports(h: int, q: int, e: int, z: int, k: int) -> bool:
    """Sizes of h, the proposal's hidden layer, phi^z and z; and particles of an environment."""
    return all(size in (16, 32, 64, 128, 256, 512) for size in (h, q, e, z)) and 1 <= k <= 32


def walk_back(walk: "NormedWalk", given: Moved, *, precision: str = "tf32x3") -> Back:
    """models.normed.walk_back."""
    steps, n, k, h = walk.h_tm1.shape
    weights, w, segments = walk.weights, walk.weights.move, len(walk.weights.weight)
    assert all(x[0].is_contiguous() for x in (w.gates, w.embed, w.state, w.head))
    given, slopes = (tree.tree_map(Tensor.contiguous, x) for x in (given, walk.slopes))
    first, ancestors, of_e = (x.contiguous() for x in (walk.first, walk.ancestors, walk.e))
    own = (steps - len(given.h)) * [NOTHING] + [tree.at(given, i) for i in range(len(given.h))]
    q, e, z = weights.weight.shape[-1], of_e.shape[-1], walk.z.shape[-1]
    launch, tiles = _launcher(n, k, {"H": h, "Q": q, "E": e, "Z": z}, precision)

    widths = 4 * h + q, 2 * z, e
    found, bypass = of_e.new_empty(steps, n, k, sum(widths)), of_e.new_empty(n, k, h)
    d_y, parts = of_e.new_empty(n, k, q), of_e.new_zeros(2, q, triton.next_power_of_2(tiles))
    shift, scale = of_e.new_empty(2, steps, q)
    launch(begin, h, found[-1], bypass, *tree.at(slopes.move.gru, -1), own[-1].h, own[-1].h_tm1)
    for t in reversed(range(steps)):
        s, at, given_t, found_t = t * segments // steps, tree.at(slopes, t), own[t], found[t]
        launch(to_e, e, found_t, w.gates[s], of_e[t], given_t.e)
        launch(
            to_z, z + h, found_t, w.embed[s], at.move.var, at.move.z, given_t.var, given_t.z,
            w.state[s], bypass,
        )  # fmt: skip
        launch(to_y, q, found_t, w.head[s], at.move.hidden, at.unit, d_y, parts)
        sums = parts if tiles <= MANY else parts.sum(-1, keepdim=True)
        before = 8 * (None,)
        if t > 0:
            before = found[t - 1], *tree.at(slopes.move.gru, t - 1), own[t - 1].h, own[t - 1].h_tm1
        launch(
            to_h, h, found_t, w.state[s, 3 * h :], at.unit, at.rate, weights.weight[s], d_y, sums,
            shift[t], scale[t], first[t], ancestors[t], bypass, *before, TILES=sums.shape[-1],
        )  # fmt: skip
    return Back(Walked(*found.split(widths, -1), found.sum(2)), scale, shift)


def _launcher(
    n: int, k: int, sizes: dict[str, int], precision: str
) -> tuple[Callable[..., None], int]:
    """What launches a kernel with results of that many columns; and the tiles of all rows."""
    kp = triton.next_power_of_2(k)
    high = max(kp, tiles_triton.rows(n * kp, sizes["H"]))
    tiles = triton.cdiv(n, high // kp)
    known = sizes | tiles_triton.settings(precision)
    known |= {"K": k, "KP": kp, "TILES": triton.next_power_of_2(tiles), "ROWS": high}

    def launch(kernel: Any, size: int, *tensors: Tensor | None, **special: int) -> None:
        columns = min(tiles_triton.columns(tiles, size), *sizes.values())
        kernel[(size // columns, tiles)](*tensors, n, COLUMNS=columns, **known | special)

    return launch, tiles
