"""Many products at once against one after the other."""

import pytest
import torch

from dvrl.core import products, rows
from interpreted import cases_checked, needs_triton

CASES = {
    # rows; widths of g and x; of how many columns each is a part
    "one": (40, [(64, 64)], 0),
    "many, of all sizes": (300, [(128, 64), (64, 128), (384, 128), (256, 64), (64, 64)], 0),
    "parts of wider rows": (1000, [(64, 128), (128, 128), (64, 64)], 32),
    "more rows than splits divide": (777, [(128, 128), (64, 128)], 0),
}


def draw(n_rows: int, widths: list[tuple[int, int]], more: int) -> tuple[list, list]:
    torch.manual_seed(0)

    def one(width: int) -> torch.Tensor:
        return torch.randn(n_rows, width + more)[:, more:]

    return [one(a) for a, _ in widths], [one(b) for _, b in widths]


@pytest.mark.parametrize("widths", [[(3, 4), (5, 1), (64, 7)], [(2, 2)]])
def test_products_are_those_of_the_pairs(widths):
    gs, xs = draw(11, widths, 1)
    for found, g, x in zip(products.transposed(gs, xs), gs, xs, strict=True):
        torch.testing.assert_close(found, g.t() @ x)


def test_a_compiler_is_told_the_truth_about_sizes():
    gs, xs = draw(11, [(8, 4), (32, 1)], 0)  # without gaps: what is there may be anything
    verdicts = torch.library.opcheck(products._transposed, (gs, xs))
    assert len(verdicts) > 1
    assert set(verdicts.values()) == {"SUCCESS"}


@needs_triton
def test_the_kernel_multiplies_like_torch():
    assert cases_checked(__file__) == len(CASES)


def main() -> None:
    """Run by `cases_checked`."""
    from dvrl.core import products_triton

    for name, (n_rows, widths, more) in CASES.items():
        gs, xs = draw(n_rows, widths, more)
        assert products_triton.supports(gs, xs)
        row = products_triton.transposed(gs, xs, programs=24)
        shapes = [torch.Size(pair) for pair in widths]
        for found, g, x in zip(rows.part(row, shapes), gs, xs, strict=True):
            torch.testing.assert_close(found, g.t() @ x, rtol=1e-4, atol=1e-4)
        print("checked", name)


if __name__ == "__main__":
    main()
