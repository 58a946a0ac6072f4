"""CUDA's graphs, acted on the CPU: what is captured is a list of operations on memory.

Replaying runs the same operations on the same tensors and leaves their results where they were
left when they were captured, as a GPU does; only that capturing runs them too.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dvrl.learners.captured import Cuda


class Recorded(TorchDispatchMode):
    """Operations in their order, with what they were given and what they gave."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable, tuple, dict, Any]] = []
        self.replays = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host asks the device"
        given = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, given))
        return given

    def replay(self) -> None:
        self.replays += 1
        with torch._C._AutoDispatchBelowAutograd():  # where the calls were recorded
            for func, args, kwargs, before in self.calls:
                now = func(*args, **kwargs)
                for old, new in zip(tree_leaves(before), tree_leaves(now), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class Moment:
    def synchronize(self) -> None:
        """The CPU is never behind."""


class Acted(Cuda):
    """CUDA without a GPU."""

    def __init__(self) -> None:
        self.graphs: list[Recorded] = []

    def running(self) -> AbstractContextManager:
        return nullcontext()

    def compiling(self) -> AbstractContextManager:
        return nullcontext()

    @contextmanager
    def capture(self, generators: Sequence[torch.Generator], pool=None) -> Iterator[Recorded]:
        with Recorded() as graph:
            yield graph
        self.graphs.append(graph)

    def new_pool(self) -> None:
        pass

    def landing(self, like: Tensor) -> Tensor:
        return torch.empty_like(like)

    def mark(self) -> Moment:
        return Moment()

    def gates(self) -> None:
        """Nothing waits here."""

    def settle(self) -> None:
        pass


class Reached:
    def __init__(self) -> None:
        self.passed = False

    def synchronize(self) -> None:
        assert self.passed, "the host would wait for ever"


class Behind(Acted):
    """A stream with gates: what comes behind one that is shut is done when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[Callable[[], Any] | None] = deque()
        """Operations, and None for a gate."""
        self.shut_so_far = 0

    def replay(self, graph: Recorded) -> None:
        self._do(graph.replay)

    def copy(self, to: Tensor, given: Tensor) -> None:
        self._do(lambda: to.copy_(given))

    def mark(self) -> Reached:
        moment = Reached()
        self._do(lambda: setattr(moment, "passed", True))
        return moment

    def gates(self) -> "Behind":
        return self

    def shut(self) -> None:
        self.shut_so_far += 1
        self.waiting.append(None)

    def open(self) -> None:
        assert self.waiting.popleft() is None
        while self.waiting and self.waiting[0] is not None:
            self.waiting.popleft()()

    def open_all(self) -> None:
        while self.waiting:
            self.open()

    def _do(self, operation: Callable[[], Any]) -> None:
        if self.waiting:
            self.waiting.append(operation)
        else:
            operation()
