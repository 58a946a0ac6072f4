"""The walk back through recorded moves as one GPU kernel, against the loop it stands for."""

import torch
from torch import Tensor

from dvrl.core import tree
from dvrl.core.gru import GruSlopes
from dvrl.models.replay import _Slopes, _walk_back
from interpreted import cases_checked, needs_triton

INJECTED = ("d_htm1", "d_var", "d_z", "d_e", "d_h", "d_out")
CASES = [
    # steps, environments, particles, size of h, missing gradients
    (3, 2, 30, 64, ()),
    (2, 3, 5, 64, ("d_h", "d_e")),  # the policy does not shape the particles
    (4, 2, 1, 64, ("d_htm1", "d_var", "d_z", "d_e", "d_h")),  # an old segment of the window
    (2, 1, 32, 128, ("d_out",)),  # nothing follows
]


def draw(steps: int, n: int, k: int, size: int) -> dict:
    torch.manual_seed(steps)
    batch = (steps, n, k)
    reset, keep = torch.rand(*batch, 2 * size).chunk(2, -1)  # as in the model: halves of one
    normal = [torch.randn(*batch, size) / 4 for _ in range(3)]
    relu = [(torch.rand(*batch, size) > 0.3).float() for _ in range(2)]
    shapes = [(4 * size, size), (2 * size, size), (size, size), (3 * size, size)]
    given = {name: torch.randn(*batch, size) for name in INJECTED} | {
        "d_out": torch.randn(n, k, size)
    }
    return {
        "weights": tuple(torch.randn(shape) / shape[0] ** 0.5 for shape in shapes),
        "first": torch.rand(steps, n) < 0.3,
        "ancestors": torch.randint(k, batch),
        "slopes": _Slopes(
            GruSlopes(*normal, reset, keep), *relu, torch.rand(*batch, size), normal[0] * 2
        ),
    } | given


def doubled(x):
    if isinstance(x, Tensor):
        return x.double() if x.is_floating_point() else x
    if isinstance(x, _Slopes):
        return tree.tree_map(Tensor.double, x)
    return tuple(map(doubled, x)) if isinstance(x, tuple) else x


@needs_triton
def test_the_kernel_walks_like_the_loop():
    assert cases_checked(__file__) == len(CASES)


def main() -> None:
    from dvrl.models.walk_triton import walk_back

    torch.set_num_threads(1)
    for steps, n, k, size, missing in CASES:
        given = draw(steps, n, k, size) | dict.fromkeys(missing)
        wanted = _walk_back(**{name: doubled(x) for name, x in given.items()})
        got = walk_back(**given)
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=2e-5)
        print("checked", steps, n, k, size, missing)


if __name__ == "__main__":
    main()
