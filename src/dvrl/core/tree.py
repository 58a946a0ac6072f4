"""Maps over records: NamedTuples whose leaves are tensors or further such records."""

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor

Tree = TypeVar("Tree", bound=tuple)


def tree_map(fn: Callable[..., Tensor], *trees: Tree) -> Tree:
    """The same record, with `fn` of the corresponding leaves of all `trees` as its leaves."""
    first = trees[0]
    return type(first)(
        *(
            fn(*leaves) if isinstance(leaves[0], Tensor) else tree_map(fn, *leaves)
            for leaves in zip(*trees, strict=True)
        )
    )


def where(rows: Bool[Tensor, " N"], chosen: Tree, otherwise: Tree) -> Tree:
    """Row n of every leaf from `chosen` where `rows[n]`, else from `otherwise`."""

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return tree_map(pick, chosen, otherwise)


def detach(tree: Tree) -> Tree:
    """The same values without their history."""
    return tree_map(Tensor.detach, tree)


def copy(into: Tree, values: Tree) -> None:
    """Overwrite the leaves of `into`, all of one type at once."""
    pairs = list(zip(leaves(into), leaves(values), strict=True))
    if torch.compiler.is_compiling():  # it writes results where they belong, one by one
        for target, source in pairs:
            target.copy_(source)
        return
    for dtype in {a.dtype for a, _ in pairs}:
        targets, sources = zip(*(pair for pair in pairs if pair[0].dtype == dtype), strict=True)
        torch._foreach_copy_(targets, sources)  # type: ignore[reportPrivateImportUsage]


def at(tree: Tree, i: int) -> Tree:
    """Entry `i` along the leading axis of every leaf."""
    return tree_map(lambda leaf: leaf[i], tree)


def leaves(tree: tuple) -> list[Tensor]:
    """All leaves, in the order of the fields."""
    parts = ([part] if isinstance(part, Tensor) else leaves(part) for part in tree)
    return [leaf for part in parts for leaf in part]


def named_leaves(tree: tuple, prefix: str) -> dict[str, Tensor]:
    """Leaves by dotted field name, the form in which records are saved."""
    named: dict[str, Tensor] = {}
    for field, leaf in zip(tree._fields, tree, strict=True):  # type: ignore[attr-defined]
        name = f"{prefix}.{field}"
        named |= {name: leaf} if isinstance(leaf, Tensor) else named_leaves(leaf, name)
    return named


def from_named_leaves(like: Tree, named: dict[str, Tensor], prefix: str) -> Tree:
    """The inverse of `named_leaves`; `like` gives structure, shapes and device."""

    def read(field: str, leaf):
        name = f"{prefix}.{field}"
        if not isinstance(leaf, Tensor):
            return from_named_leaves(leaf, named, name)
        saved = named[name]
        assert saved.shape == leaf.shape, f"{name}: saved {saved.shape}, expected {leaf.shape}"
        return saved.to(leaf.device, leaf.dtype)

    return type(like)(*(read(f, x) for f, x in zip(like._fields, like, strict=True)))  # type: ignore[attr-defined]
