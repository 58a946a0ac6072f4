"""The RNN's walk back as one GPU kernel a step, against the loop it stands for."""

import torch
from torch import Tensor

from dvrl.core import tree
from dvrl.core.gru import GruSlopes, GruWalk, GruWeights, walk_back
from interpreted import cases_checked, needs_triton

CASES = [
    # segments, steps of each, environments, size of h
    (1, 1, 3, 16),
    (1, 3, 16, 32),
    (3, 2, 19, 24),
    (2, 2, 1, 256),
    (2, 1, 601, 232),  # larger tiles
]


def draw(segments: int, per_segment: int, n: int, size: int) -> tuple[GruWalk, Tensor, Tensor]:
    torch.manual_seed(n)
    steps = segments * per_segment

    def some(*shape: int) -> Tensor:
        return 0.5 * torch.randn(*shape)

    weights = GruWeights(
        input=some(segments, 3 * size, 5), input_bias=some(segments, 3 * size),
        state=torch.randn(segments, 3 * size, size) / size**0.5,
        state_bias=some(segments, 3 * size),
    )  # fmt: skip
    slopes = GruSlopes(*(some(steps, n, size) for _ in range(3)), *torch.rand(2, steps, n, size))
    walk = GruWalk(weights, torch.rand(steps, n) < 0.3, some(steps, n, size), slopes)
    return walk, *some(2, per_segment, n, size)


def doubled(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


@needs_triton
def test_the_kernel_walks_like_the_loop():
    assert cases_checked(__file__) == len(CASES)


def main() -> None:
    from dvrl.core import gru_walk_triton

    torch.set_num_threads(1)
    for case in CASES:
        walk, d_htm1, d_h = draw(*case)
        wanted = walk_back(tree.tree_map(doubled, walk), d_htm1.double(), d_h.double())
        got = gru_walk_triton.walk_back(walk, d_htm1, d_h)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=2e-5)
        print("checked", *case)


if __name__ == "__main__":
    main()
