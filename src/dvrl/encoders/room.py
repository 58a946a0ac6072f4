"""Memory for what the way back through a gradient window needs."""

from collections.abc import Callable
from typing import Generic, TypeVar

from dvrl.core import tree

Tree = TypeVar("Tree", bound=tuple)


class Room(Generic[Tree]):
    """Memory for records, a row each: taken when the first one is seen, then used again."""

    def __init__(self) -> None:
        self.rows: Tree | None = None

    def at(self, i: int, length: int, like: Callable[[], Tree]) -> Tree:
        """Row `i` of `length`, each as large as `like()`."""
        if self.rows is None:
            self.rows = tree.tree_map(lambda x: x.new_empty((length, *x.shape)), like())
        return tree.at(self.rows, i)

    def ready(self, i: int | None) -> Tree | None:
        """Row `i`, if there is memory for it already; none for no row."""
        return None if i is None or self.rows is None else tree.at(self.rows, i)

    def until(self, i: int) -> Tree:
        """The rows before `i`."""
        assert self.rows is not None
        return tree.tree_map(lambda x: x[:i], self.rows)
