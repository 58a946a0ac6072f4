"""A training in memory: agent, worlds, learner and counters, and their state as a checkpoint."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dvrl.core import tree
from dvrl.learners.a2c import A2C
from dvrl.learners.build import build_engine
from dvrl.learners.engine import EngineName, Results
from dvrl.learners.group import ALONE, Group
from dvrl.records.metrics import Episode
from dvrl.rollout.segment import start
from dvrl.runs.build import agent_generator, build_agent
from dvrl.runs.checkpoint import Checkpoint
from dvrl.runs.config import RunConfig
from dvrl.runs.errors import NotANumber, UsageError


class Window(NamedTuple):
    """What one gradient window brought."""

    metrics: dict[str, float]
    """Means over its updates."""
    episodes: list[Episode]


class EpisodeMeter:
    """Raw returns and lengths of the episodes under way."""

    def __init__(self, n: int) -> None:
        self.ret = np.zeros(n)
        self.length = np.zeros(n, np.int64)

    def add(self, reward: np.ndarray, ended: np.ndarray, step: int) -> list[Episode]:
        """The episodes that ended in steps `T N` which began after `step` steps of the run."""
        finished: list[Episode] = []
        ends = np.flatnonzero(ended.any(1))
        for part, last in zip(np.split(reward, ends + 1), [*ends, None], strict=True):
            self.ret = np.concatenate([self.ret[None], part]).cumsum(0)[-1]  # step after step
            self.length += len(part)
            step += part.size
            for row in () if last is None else np.flatnonzero(ended[last]):
                finished.append(Episode(step, float(self.ret[row]), int(self.length[row])))
                self.ret[row] = self.length[row] = 0
        return finished


class Trainer:
    """Everything that changes while a run trains. State is complete between windows."""

    def __init__(
        self,
        config: RunConfig,
        device: torch.device,
        engine: EngineName = "auto",
        group: Group = ALONE,
    ) -> None:
        self.config = config
        self.group = group
        self.agent = build_agent(config).to(device)
        n = config.learner.n_envs // group.size
        self.worlds = config.world.make(n, config.seed, device, group.share)
        self.generator = agent_generator(config.seed, device, group.share)
        self.learner = A2C(config.learner, self.agent, self.worlds, self.generator, group)
        self.meter = EpisodeMeter(config.learner.n_envs)
        try:
            self.engine = build_engine(engine, self.learner, start(self.agent, self.worlds))
        except ValueError as error:
            raise UsageError(str(error)) from error
        self.steps = 0
        """Environment steps whose results were taken."""
        self.launched = 0

    @property
    def compiles_next(self) -> bool:
        """Whether the next window begins with a compilation that takes its time."""
        return self.launched < self.config.steps and not self.engine.ready

    def launch(self) -> None:
        """Begin a window, unless as many as the engine can hold are under way or all are begun."""
        if self.engine.under_way < self.engine.depth and self.launched < self.config.steps:
            self.engine.launch(self.config.learner.rates_at(self.launched))
            self.launched += self.config.learner.n_grad * self.config.learner.n_envs

    def fill(self) -> None:
        """Have as many windows under way as the engine can hold: one alone would be waited for
        from its beginning to its end, and nothing would run beside it."""
        for _ in range(self.engine.depth):
            self.launch()

    def window(self) -> Window:
        """The oldest window under way; NotANumber when the loss is none any more."""
        if not self.engine.under_way:
            self.launch()
        results = self.engine.result()
        loss = results.metrics["loss/total"]
        if not np.isfinite(loss):
            raise NotANumber(self._diagnosis(results, loss))
        episodes = self.meter.add(results.score, results.over, self.steps)
        self.steps += results.score.size
        return Window(results.metrics, episodes)

    def _diagnosis(self, results: Results, loss: float) -> str:
        """Who is to blame for a loss that is not a number."""
        agent_is_well = all(p.isfinite().all() for p in self.agent.parameters())
        if agent_is_well and not np.isfinite(results.score).all():
            return f"the world gave a reward that is not a number after step {self.steps:,}"
        if agent_is_well and not self.engine.carry.o_t.isfinite().all():
            return f"the world gave an observation that is not a number after step {self.steps:,}"
        return (
            f"the loss is {loss} after step {self.steps:,}: start anew in another --out with a "
            "smaller --learner.lr"
        )

    def checkpoint(self, numbers: dict[str, Any]) -> Checkpoint:
        """The whole state; `numbers` is what the caller wants to find again.

        A value: what training overwrites is copied.

        Rows of all processes that train together are in it: each must ask for it.
        """
        assert not self.engine.under_way, "a checkpoint between windows only"
        state = tree.named_leaves(tree.tree_map(self.group.rows, self.engine.carry), "carry")
        for name, tensor in self.worlds.state().items():
            by_row = name in self.worlds.by_row
            state[f"worlds.{name}"] = self.group.rows(tensor) if by_row else tensor
        state |= {
            "generator": self.generator.get_state(),
            "meter.ret": torch.from_numpy(self.meter.ret.copy()),
            "meter.length": torch.from_numpy(self.meter.length.copy()),
        }
        numbers = {"steps": self.steps} | numbers
        weights, slots = self.agent.state_dict(), self.learner.optimiser.slots
        return Checkpoint(_copied(weights), _copied(slots), _copied(state), numbers)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of the same config."""
        self.agent.load_state_dict(checkpoint.weights)
        self.learner.optimiser.load(checkpoint.optimiser)
        state = checkpoint.state
        self.generator.set_state(state["generator"])
        worlds = {k.removeprefix("worlds."): t for k, t in state.items() if k.startswith("worlds.")}
        mine = {name: self.group.mine(worlds[name]) for name in self.worlds.by_row}
        self.worlds.restore(worlds | mine)
        if self.worlds.exact_resume:
            leaves = {k: self.group.mine(t) for k, t in state.items() if k.startswith("carry.")}
            carry = tree.from_named_leaves(self.engine.carry, leaves, "carry")
            self.meter.ret = state["meter.ret"].numpy().copy()
            self.meter.length = state["meter.length"].numpy().copy()
        else:
            carry = start(self.agent, self.worlds)
        # Memory of its own, not the checkpoint's or what rows share: windows write there.
        self.engine.carry = tree.tree_map(Tensor.clone, carry)
        self.steps = self.launched = checkpoint.numbers["steps"]


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
