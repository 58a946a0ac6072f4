"""What captured engines share: graphs on a stream of their own, memory that stays where it is, and
results that come to the host while it does something else."""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dvrl import fuse
from dvrl.core import tree
from dvrl.learners.a2c import A2C
from dvrl.learners.engine import Engine, Results, unpack
from dvrl.learners.gate import Gates, find
from dvrl.rollout.segment import Carry

WARM_UPS = 3
"""Windows run before a capture: libraries make their plans and buffers in the first ones."""


@runtime_checkable
class Recording(Protocol):
    """Operations captured, to be run again on the same memory."""

    def replay(self) -> None: ...


@runtime_checkable
class Moment(Protocol):
    """One that the device comes to."""

    def synchronize(self) -> None: ...


class Cuda:
    """All that captured engines ask of CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)

    def running(self) -> AbstractContextManager:
        """Within this context operations run in the engine's own stream."""
        return torch.cuda.stream(self.stream)

    def compiling(self) -> AbstractContextManager:
        return fuse.fusing()

    @contextmanager
    def capture(
        self, generators: Sequence[torch.Generator], pool: Any = None
    ) -> Iterator[Recording]:
        """Within this context operations are not run but recorded.

        Graphs that share a `pool` of memory must be replayed in the order of their capture.
        """
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=pool, stream=self.stream):
            yield graph

    def new_pool(self) -> Any:
        """Memory for several graphs."""
        return torch.cuda.graph_pool_handle()

    def replay(self, graph: Recording) -> None:
        """Run it, when its turn in the stream comes."""
        graph.replay()

    def copy(self, to: Tensor, given: Tensor) -> None:
        """Copy, from or to the host as well, when its turn comes."""
        to.copy_(given, non_blocking=True)

    def gates(self) -> Gates | None:
        """Gates in the stream, where the driver has them."""
        return find(self.stream.cuda_stream)

    def landing(self, like: Tensor) -> Tensor:
        """Memory on the host to which `like` can be copied in the background."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def mark(self) -> Moment:
        """This moment in the stream, to be waited for."""
        event = torch.cuda.Event()
        event.record(self.stream)
        return event

    def settle(self) -> None:
        """Wait for everything, in every stream."""
        torch.cuda.synchronize(self.stream.device)


class Captured(Engine):
    """Windows that are replayed.

    What a graph reads and writes stays where it is: the carry is copied back into the same memory
    at the end of every window.
    """

    name = "graph"

    def __init__(
        self, learner: A2C, carry: Carry, generators: Sequence[torch.Generator], cuda: Cuda
    ) -> None:
        self.learner = learner
        self.carry = tree.tree_map(Tensor.clone, carry)
        self.generators = generators
        self.cuda = cuda
        self._names: list[str] = []
        self._slots: deque[Tensor] = deque()
        self._under_way: deque[tuple[Moment, Tensor]] = deque()

    def result(self) -> Results:
        moment, slot = self._under_way.popleft()
        moment.synchronize()
        results = unpack(slot.numpy().copy(), self._names, self.learner.worlds.n)
        self._slots.append(slot)
        return results

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @property
    def ready(self) -> bool:
        return self.captured or fuse.warm()

    @property
    @abstractmethod
    def captured(self) -> bool:
        """Whether a window was captured before."""

    def _hand_over(self, packed: Tensor) -> None:
        """Send a window's results to the host, behind all that was launched before."""
        slot = self._slots.popleft() if self._slots else self.cuda.landing(packed)
        self.cuda.copy(slot, packed)
        self._under_way.append((self.cuda.mark(), slot))

    @contextmanager
    def _unchanged(self, *others: Tensor) -> Iterator[None]:
        """Whatever windows are run in this context, afterwards everything is as before.

        `others` are what a window overwrites beside the carry, the weights and the optimiser.
        """
        self.cuda.settle()
        optimiser = self.learner.optimiser
        memory = [*tree.named_leaves(self.carry, "carry").values(), *others]
        memory += [optimiser.flat, *optimiser.slots.values(), *self.learner.agent.buffers()]
        with self.cuda.running():
            before = [tensor.clone() for tensor in memory]
            chance = [generator.get_state() for generator in self.generators]
            yield
            for tensor, value in zip(memory, before, strict=True):
                tensor.copy_(value)
            for generator, state in zip(self.generators, chance, strict=True):
                generator.set_state(state)
        self.cuda.settle()
