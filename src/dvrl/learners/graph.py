"""Worlds on the GPU: a whole window is one CUDA graph."""

from torch import Tensor

from dvrl.core import tree
from dvrl.envs.worlds import DeviceWorlds
from dvrl.learners.a2c import A2C
from dvrl.learners.captured import WARM_UPS, Captured, Cuda, Recording
from dvrl.learners.config import Rates
from dvrl.learners.engine import pack
from dvrl.rollout.segment import Carry


class Graph(Captured):
    """A whole window - worlds, beliefs, gradients, optimiser - as one replay.

    Which steps cut episodes decides which operations there are, so there is a graph for every such
    pattern; the host knows it beforehand.
    """

    depth = 2

    def __init__(self, learner: A2C, worlds: DeviceWorlds, carry: Carry, cuda: Cuda) -> None:
        super().__init__(learner, carry, (learner.generator, worlds.generator), cuda)
        self.worlds = worlds
        self._graphs: dict[tuple[bool, ...], tuple[Recording, Tensor]] = {}

    @property
    def captured(self) -> bool:
        return bool(self._graphs)

    def launch(self, rates: Rates) -> None:
        config = self.learner.config
        cuts = self.worlds.cuts_ahead(config.n_grad) if config.bootstrap_cuts else ()
        if cuts not in self._graphs:
            self._graphs[cuts] = self._capture()
        graph, packed = self._graphs[cuts]
        with self.cuda.running():
            # In the stream's order: the window before may still read them.
            self.learner.optimiser.set_rates(rates)
            self.cuda.replay(graph)
            self._hand_over(packed)
        self.worlds.skip(config.n_grad)

    def _capture(self) -> tuple[Recording, Tensor]:
        """Warm up, record, and leave everything as it was."""
        with self._unchanged(*self.worlds.tensors().values()), self.cuda.compiling():
            for _ in range(WARM_UPS):
                self._window()
            with self.cuda.capture(self.generators) as graph:
                packed = self._window()
        return graph, packed

    def _window(self) -> Tensor:
        """One window in place; what the host wants to know of it as one vector."""
        held, ages = self.worlds.tensors(), self.worlds.ages
        carry, outcomes, means = self.learner.window(self.carry)
        self._names = list(means)
        tree.copy(self.carry, carry)
        for name, tensor in self.worlds.tensors().items():
            held[name].copy_(tensor)
        self.worlds.hold(held)
        self.worlds.ages = ages
        return pack(outcomes, means)
