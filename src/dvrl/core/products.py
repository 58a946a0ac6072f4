"""Weights' gradients: products of many rows of gradients with many rows of values.

There are a dozen in an update, and none fills a GPU by itself. So they are one operator, opaque to
compilers: there it is one kernel for all of them.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Size, Tensor

from dvrl import kernels
from dvrl.core import rows


def transposed(
    gs: Sequence[Float[Tensor, "R _"]], xs: Sequence[Float[Tensor, "R _"]]
) -> list[Tensor]:
    """g^T x of every pair."""
    return rows.part(_transposed(list(gs), list(xs)), _shapes(gs, xs))


def _shapes(gs: Sequence[Tensor], xs: Sequence[Tensor]) -> list[Size]:
    return [Size([g.shape[1], x.shape[1]]) for g, x in zip(gs, xs, strict=True)]


def _room(gs: list[Tensor], xs: list[Tensor]) -> Tensor:
    """What lies between the products is read by nobody."""
    return gs[0].new_empty(sum(map(rows.place, _shapes(gs, xs))))


@torch.library.custom_op("dvrl::transposed_products", mutates_args=())
def _transposed(gs: list[Tensor], xs: list[Tensor]) -> Tensor:
    """The products, joined (core.rows)."""
    row = _room(gs, xs)
    for g, x, out in zip(gs, xs, rows.part(row, _shapes(gs, xs)), strict=True):
        torch.mm(g.t(), x, out=out)
    return row


@_transposed.register_fake
def _(gs: list[Tensor], xs: list[Tensor]) -> Tensor:
    return _room(gs, xs)


@_transposed.register_kernel("cuda")
def _(gs: list[Tensor], xs: list[Tensor]) -> Tensor:
    found = kernels.find("dvrl.core.products_triton", gs[0])
    if found is None or not found.supports(gs, xs):
        return _transposed._init_fn(gs, xs)
    return found.transposed(gs, xs, precision=kernels.precision())
