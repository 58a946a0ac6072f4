"""Parameters as one row, arranged as products want them.

To pack is to choose elements, and sometimes a zero. Which ones is found once, by packing the
parameters' positions. So packing is one operation, and so is the way back to their own order.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from dvrl.core import rows, tree
from dvrl.fuse import fusable

Derived = TypeVar("Derived", bound=tuple)
Acting = TypeVar("Acting", bound=tuple)
Tree = TypeVar("Tree", bound=tuple)


class Packing(Generic[Derived, Acting]):
    """A row is the embeddings' parameters as they are; all others, packed; and what acting wants
    packed in yet another way, without gradients."""

    def __init__(
        self,
        encoder: nn.Module,
        embeddings: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter],
        pack: Callable[[], tuple[Derived, Acting]],
    ) -> None:
        """`pack` reads the parameters `others` from the modules of `encoder`."""
        self.parameters = [*embeddings, *others]
        shapes = [p.shape for p in self.parameters]
        count = sum(shape.numel() for shape in shapes)
        numbers = torch.arange(1, count + 1, device=others[0].device).double()  # 0: none
        positions = numbers.split([shape.numel() for shape in shapes])
        where = dict(zip(map(id, self.parameters), positions, strict=True))
        given = {
            f"encoder.{name}": where[id(p)].view_as(p)
            for name, p in encoder.named_parameters()
            if id(p) in where
        }
        packed = functional_call(_Packed(encoder, pack), given, ())
        own = rows.join(positions[: len(embeddings)])
        # A place that no weight takes ends the second part: there is a zero for sure.
        once, again = (rows.join([*tree.leaves(weights), numbers[:0]]) for weights in packed)
        once = torch.cat([once, once.new_zeros(rows.ALIGNED)])
        self.sizes = [len(part) for part in (own, once, again)]
        row, flat = torch.cat([own, once, again]).long(), rows.join(positions).long()
        places = torch.full((count + 1,), -1, device=row.device)
        places[flat] = torch.arange(len(flat), device=row.device)
        self._chosen, self._there = places[row].clamp(min=0), (row > 0).to(others[0].dtype)
        self._inverse = _inverse(once, flat[self.sizes[0] :])
        meta = partial(tree.tree_map, lambda x: x.to("meta"))
        self._like: tuple[Derived, Acting] = (meta(packed[0]), meta(packed[1]))

    def fill(self, row: Float[Tensor, " Q"], flat: Float[Tensor, " P"]) -> None:
        """Write the row of `flat`, which is the parameters joined (core.rows) in their order."""
        _choose(row, flat, self._chosen, self._there)

    def derived(self, part: Float[Tensor, "*S D"]) -> Derived:
        """The second part of rows as the packed weights it holds."""
        return _unpacked(self._like[0], part)

    def acting(self, part: Float[Tensor, " A"]) -> Acting:
        """Likewise the third."""
        return _unpacked(self._like[1], part)

    def gradient(
        self,
        embeddings: Float[Tensor, "S E"],
        derived: Float[Tensor, " D"],
        others: Sequence[Tensor],
    ) -> Float[Tensor, " P"]:
        """Given gradients of a row's first part in every segment, of the second, and of tensors
        that are not packed: that of `parameters` and of these, joined. What a parameter does in
        each segment adds up."""
        return _joined(embeddings, derived, self._inverse, others)


class _Packed(nn.Module):
    """`pack` as a module, so that its parameters can be replaced."""

    def __init__(self, encoder: nn.Module, pack: Callable[[], tuple]) -> None:
        super().__init__()
        self.encoder = encoder
        self.pack = pack

    def forward(self) -> tuple:
        return self.pack()


@fusable
def _choose(row: Tensor, flat: Tensor, chosen: Tensor, there: Tensor) -> None:
    row.copy_(flat.index_select(0, chosen) * there)


@fusable
def _joined(
    embeddings: Tensor, derived: Tensor, inverse: Tensor, others: Sequence[Tensor]
) -> Float[Tensor, " P"]:
    packed = embeddings.sum(0), derived.index_select(0, inverse)
    return torch.cat([*packed, rows.join(others)] if others else packed)


def _inverse(once: Float[Tensor, " D"], positions: Int[Tensor, " P"]) -> Int[Tensor, " P"]:
    """Where in `once` each of the `positions` is; of none: a place where none is."""
    places, order = once[once > 0].sort()
    assert torch.equal(places.long(), positions[positions > 0]), "each must be packed once"
    inverse = torch.full_like(positions, len(once) - 1)
    inverse[positions > 0] = (once > 0).nonzero()[order, 0]
    return inverse


def _unpacked(like: Tree, part: Tensor) -> Tree:
    pieces = iter(rows.part(part, [x.shape for x in tree.leaves(like)]))
    return tree.tree_map(lambda _: next(pieces), like)
