"""Tensors side by side in one row, each beginning where kernels can read many elements at once.

Compiled kernels ask a parameter for its alignment once, when they are compiled, and then trust
every other parameter of that shape to be aligned alike.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.nn import functional as F

ALIGNED = 32
"""Elements of which every tensor's place begins at a multiple."""


def join(tensors: Sequence[Tensor]) -> Float[Tensor, " D"]:
    """One row of all elements, with zeros between them where the next place is further on."""
    gaps = [-x.numel() % ALIGNED for x in tensors]
    parts = zip((x.flatten() for x in tensors), gaps, strict=True)
    return torch.cat([F.pad(x, (0, gap)) if gap else x for x, gap in parts])


def part(row: Float[Tensor, "*S D"], shapes: Sequence[Size]) -> list[Tensor]:
    """The tensors of these shapes with which S rows begin, as views: S in front of each shape."""
    sizes = [place(shape) for shape in shapes]
    pieces = row.split([*sizes, row.shape[-1] - sum(sizes)], -1)
    whole = [
        piece if shape.numel() == size else piece[..., : shape.numel()]
        for piece, shape, size in zip(pieces[:-1], shapes, sizes, strict=True)
    ]
    return [x.view((*row.shape[:-1], *shape)) for x, shape in zip(whole, shapes, strict=True)]


def place(shape: Size) -> int:
    """Elements that a tensor of this shape takes up."""
    return -(-shape.numel() // ALIGNED) * ALIGNED
