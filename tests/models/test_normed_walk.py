"""The walk back through normalised moves as four GPU kernels a step, against the loop they stand
for."""

import torch
from torch import Tensor

from dvrl.core import tree
from dvrl.core.gru import GruSlopes
from dvrl.models.normed import NormedSlopes, NormedWalk, NormedWeights, walk_back
from dvrl.models.replay import Moved
from dvrl.models.walk import MoveWeights, Slopes
from interpreted import cases_checked, needs_triton

CASES = [
    # segments, steps of each, environments, particles, sizes of h, q, e and z
    (1, 1, 3, 15, (16, 16, 16, 16)),
    (2, 2, 3, 5, (32, 16, 16, 64)),
    (3, 1, 19, 1, (16, 32, 64, 16)),
    (1, 3, 2, 17, (64, 128, 32, 16)),
    (2, 1, 2, 15, (256, 256, 256, 256)),
    (1, 2, 265, 15, (16, 16, 16, 16)),  # larger tiles, and a kernel of its own for their sums
]


def draw(
    segments: int, per_segment: int, n: int, k: int, sizes: tuple[int, int, int, int]
) -> tuple[NormedWalk, Moved]:
    torch.manual_seed(k)
    batch, (h, q, e, z) = (segments * per_segment, n, k), sizes

    def some(*shape: int) -> Tensor:
        return 0.5 * torch.randn(*shape)

    def weight(rows: int, columns: int) -> Tensor:
        return torch.randn(segments, rows, columns) / rows**0.5

    moves = MoveWeights(
        context=weight(3 * h + q, 4), context_bias=some(segments, 3 * h + q),
        state=weight(3 * h + q, h), state_bias=some(segments, 3 * h + q),
        head=weight(2 * z, q), head_bias=some(segments, 2 * z),
        embed=weight(e, z), embed_bias=some(segments, e), gates=weight(3 * h, e),
    )  # fmt: skip
    gru = GruSlopes(*(some(*batch, h) for _ in range(3)), *torch.rand(2, *batch, h))
    slopes = NormedSlopes(
        Slopes(some(*batch, q).relu(), gru, torch.rand(*batch, z), some(*batch, z)),
        torch.randn(*batch, q), torch.rand(batch[0], 1, 1, q),
    )  # fmt: skip
    walk = NormedWalk(
        NormedWeights(moves, 1 + some(segments, q), some(segments, q)),
        torch.rand(batch[:2]) < 0.3, torch.randint(k, batch),
        some(*batch, h), some(*batch, z), some(*batch, e).relu(), slopes,
    )  # fmt: skip
    return walk, Moved(*(some(per_segment, n, k, size) for size in (h, z, z, e, h)))


def doubled(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


@needs_triton
def test_the_kernels_walk_like_the_loop():
    assert cases_checked(__file__) == len(CASES)


def main() -> None:
    from dvrl.models import normed_triton

    torch.set_num_threads(1)
    for case in CASES:
        walk, given = draw(*case)
        wanted = walk_back(*(tree.tree_map(doubled, x) for x in (walk, given)))
        got = normed_triton.walk_back(walk, given)
        for a, b in zip(tree.leaves(got), tree.leaves(wanted), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=5e-5)
        print("checked", *case)


if __name__ == "__main__":
    main()
