"""The engine for a learner."""

from dvrl.envs.worlds import DeviceWorlds, HostWorlds
from dvrl.learners.a2c import A2C
from dvrl.learners.captured import Cuda
from dvrl.learners.engine import Eager, Engine, EngineName
from dvrl.learners.graph import Graph
from dvrl.learners.pieces import Pieces
from dvrl.rollout.segment import Carry


def build_engine(name: EngineName, learner: A2C, carry: Carry) -> Engine:
    """`auto` captures wherever it can: on a GPU, in a single process."""
    worlds = learner.worlds
    can_capture = carry.o_t.is_cuda and learner.group.size == 1
    if can_capture and name != "eager":
        cuda = Cuda(carry.o_t.device)
        if isinstance(worlds, DeviceWorlds):
            return Graph(learner, worlds, carry, cuda)
        if isinstance(worlds, HostWorlds):
            return Pieces(learner, worlds, carry, cuda)
    if name == "graph":
        raise ValueError(
            "the graph engine needs a GPU, a single process, and worlds that implement "
            "DeviceWorlds or HostWorlds (dvrl/envs/worlds.py); use --engine auto"
        )
    return Eager(learner, carry)
