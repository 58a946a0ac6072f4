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
from torch.nn import functional as F

from dvrl.core import tree
from dvrl.fuse import fusable

Derived = TypeVar("Derived", bound=tuple)
Acting = TypeVar("Acting", bound=tuple)
Tree = TypeVar("Tree", bound=tuple)
ALIGNED = 32
"""Every piece of a row begins at a multiple of this: kernels read many elements at once."""


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
        sizes = [p.numel() for p in self.parameters]
        positions = torch.arange(1, sum(sizes) + 1, device=others[0].device).double()  # 0: none
        where = dict(zip(map(id, self.parameters), positions.split(sizes), strict=True))
        given = {
            f"encoder.{name}": where[id(p)].view_as(p)
            for name, p in encoder.named_parameters()
            if id(p) in where
        }
        derived, acting = functional_call(_Packed(encoder, pack), given, ())
        once, again = (
            torch.cat([positions[:0], *(_padded(x.flatten()) for x in tree.leaves(weights))])
            for weights in (derived, acting)
        )
        n_embedding = self.n_embedding = sum(p.numel() for p in embeddings)
        parts = [_padded(positions[:n_embedding]), once, again]
        self.sizes = [len(part) for part in parts]
        row = torch.cat(parts).long()
        self._chosen, self._there = (row - 1).clamp(min=0), (row > 0).to(others[0].dtype)
        self._inverse = _inverse(once, positions[n_embedding:])
        shapes = partial(tree.tree_map, lambda x: x.to("meta"))
        self._like: tuple[Derived, Acting] = (shapes(derived), shapes(acting))

    def fill(self, row: Float[Tensor, " Q"], flat: Float[Tensor, " P"]) -> None:
        """Write the row of the parameters `flat`, these in the order of `parameters`."""
        _choose(row, flat, self._chosen, self._there)

    def derived(self, part: Float[Tensor, "*S D"]) -> Derived:
        """The second part of rows as the packed weights it holds."""
        return _unpacked(self._like[0], part)

    def acting(self, part: Float[Tensor, " A"]) -> Acting:
        """Likewise the third."""
        return _unpacked(self._like[1], part)

    def gradient(
        self, embeddings: Float[Tensor, "S E"], derived: Float[Tensor, " D"]
    ) -> list[Float[Tensor, " _"]]:
        """Gradients of a row's first part in every segment, and of the second, as parts of the
        gradient of `parameters`: what a parameter does in each segment adds up."""
        own = embeddings.sum(0)[: self.n_embedding]
        return [own, derived.index_select(0, self._inverse)]


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


def _inverse(once: Float[Tensor, " D"], positions: Float[Tensor, " P"]) -> Int[Tensor, " P"]:
    """Where in `once` each of the `positions` is."""
    (places,) = once.nonzero(as_tuple=True)
    order = once[places].argsort()
    assert torch.equal(once[places][order], positions), "each parameter must be packed once"
    return places[order]


def _padded(x: Float[Tensor, " M"]) -> Float[Tensor, " L"]:
    return F.pad(x, (0, -len(x) % ALIGNED))


def _unpacked(like: Tree, part: Tensor) -> Tree:
    sizes = [-(-x.numel() // ALIGNED) * ALIGNED for x in tree.leaves(like)]
    pieces = iter(part.split(sizes, -1))

    def unpacked(x: Tensor) -> Tensor:
        piece = next(pieces)
        if piece.shape[-1] > x.numel():
            piece = piece[..., : x.numel()]
        return piece.unflatten(-1, x.shape)

    return tree.tree_map(unpacked, like)
