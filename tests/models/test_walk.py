"""The walk back through recorded moves as one GPU kernel, against the loop it stands for."""

import pytest
import torch
from torch import Tensor

from dvrl.core.gru import GruSlopes
from dvrl.models.walk import (
    Injected,
    MoveWeights,
    Slopes,
    Walk,
    room_for_walk,
    walk_back,
    way_back,
)
from interpreted import cases_checked, needs_triton

CASES = [
    # segments, steps of each, environments, particles, size of h, missing gradients
    (1, 3, 2, 30, 64, ()),
    (2, 2, 3, 5, 64, ("h", "e")),  # the policy does not shape the particles
    (3, 1, 2, 1, 64, ("h_tm1", "var")),
    (1, 2, 1, 32, 128, ()),
]


def draw(segments: int, per_segment: int, n: int, k: int, size: int) -> tuple[Walk, Injected]:
    torch.manual_seed(k)
    batch = (segments * per_segment, n, k)

    def some(*shape: int, scale: float = 0.5) -> Tensor:
        return scale * torch.randn(*shape)

    def weight(rows: int) -> Tensor:
        return torch.randn(segments, rows, size) / rows**0.5

    weights = MoveWeights(
        context=weight(4 * size), context_bias=some(segments, 4 * size),
        state=weight(4 * size), state_bias=some(segments, 4 * size),
        head=weight(2 * size), head_bias=some(segments, 2 * size),
        embed=weight(size), embed_bias=some(segments, size), gates=weight(3 * size),
    )  # fmt: skip
    gru = GruSlopes(*(some(*batch, size) for _ in range(3)), *torch.rand(2, *batch, size))
    slopes = Slopes(some(*batch, size).relu(), gru, torch.rand(*batch, size), some(*batch, size))
    first, ancestors = torch.rand(batch[:2]) < 0.3, torch.randint(k, batch)
    h_tm1, z, e = some(3, *batch, size).relu()
    room = room_for_walk(h_tm1, z, e, size)
    walk = Walk(weights, first, ancestors, h_tm1, z, e, slopes, room)
    return walk, Injected(*some(5, per_segment, *batch[1:], size))


def doubled(x):
    if isinstance(x, Tensor):
        return x.double() if x.is_floating_point() else x
    return x if x is None else type(x)(*map(doubled, x))


@pytest.mark.parametrize("beginnings", ["some", "everywhere"])
def test_survivors_alone_carry_all_gradients(beginnings, monkeypatch):
    """Rows of particles without offspring are zero: leaving them out changes no product."""
    given_rows, products, sums = {}, {}, {}
    for alone in (True, False):
        walk, given = map(doubled, draw(3, 2, 4, 6, 16))
        walk = walk._replace(ancestors=walk.ancestors % 3)
        if beginnings == "everywhere":  # nobody survives
            walk = walk._replace(first=torch.ones_like(walk.first))
        walk = walk._replace(room=room_for_walk(walk.h_tm1, walk.z, walk.e, 16))
        monkeypatch.setattr("dvrl.models.walk.on_cpu", lambda x, alone=alone: alone)
        parts = way_back(walk, given)
        given_rows[alone] = sum(len(part.e) for part in parts)
        pairs = [(0, 3), (1, 4), (2, 5), (0, 6)]
        products[alone] = [sum(part[g].t() @ part[x] for part in parts) for g, x in pairs]
        sums[alone] = walk.room.sums
    assert given_rows[True] < 0.7 * given_rows[False]
    torch.testing.assert_close(products[True], products[False], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sums[True], sums[False], rtol=1e-12, atol=1e-12)


@needs_triton
def test_the_kernel_walks_like_the_loop():
    assert cases_checked(__file__) == len(CASES)


def main() -> None:
    from dvrl.models import walk_triton

    torch.set_num_threads(1)
    for *sizes, missing in CASES:
        walk, given = draw(*sizes)
        given = given._replace(**dict.fromkeys(missing))
        reference = doubled(walk)
        walk_back(reference, doubled(given))
        walk_triton.walk_back(walk, given)
        for a, b in zip(walk.room, reference.room, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=5e-5)
        print("checked", *sizes, missing)


if __name__ == "__main__":
    main()
