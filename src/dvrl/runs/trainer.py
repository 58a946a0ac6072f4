"""A training in memory: agent, worlds, learner and counters, and their state as a checkpoint."""

from typing import Any, NamedTuple

import numpy as np
import torch

from dvrl.core import tree
from dvrl.learners.a2c import A2C
from dvrl.records.metrics import Episode
from dvrl.rollout.segment import Outcome, start
from dvrl.runs.build import agent_generator, build_agent
from dvrl.runs.checkpoint import Checkpoint
from dvrl.runs.config import RunConfig
from dvrl.runs.errors import NotANumber


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

    def add(self, outcome: Outcome, step: int) -> list[Episode]:
        """The episodes that ended in a segment which began after `step` steps of the run."""
        finished = []
        reward, ended = outcome.reward.cpu().numpy(), outcome.ended.cpu().numpy()
        for r_i, ended_i in zip(reward, ended, strict=True):
            step += len(r_i)
            self.ret += r_i
            self.length += 1
            for row in np.flatnonzero(ended_i):
                finished.append(Episode(step, float(self.ret[row]), int(self.length[row])))
                self.ret[row] = self.length[row] = 0
        return finished


class Trainer:
    """Everything that changes while a run trains. State is complete between windows."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.config = config
        self.agent = build_agent(config).to(device)
        self.worlds = config.world.make(config.learner.n_envs, config.seed, device)
        self.generator = agent_generator(config.seed, device)
        self.learner = A2C(config.learner, self.agent, self.worlds, self.generator)
        self.meter = EpisodeMeter(self.worlds.n)
        self.carry = start(self.agent, self.worlds)
        self.steps = 0

    def window(self) -> Window:
        """Train for one gradient window; NotANumber when the loss is none any more."""
        self.learner.set_lr(self.config.learner.lr_at(self.steps))
        self.carry, outcomes, means = self.learner.window(self.carry)
        names = list(means)
        values = torch.stack([means[name].float() for name in names]).tolist()
        metrics = dict(zip(names, values, strict=True))
        if not np.isfinite(metrics["loss/total"]):
            raise NotANumber(self._diagnosis(outcomes, metrics["loss/total"]))
        episodes = []
        for outcome in outcomes:
            episodes += self.meter.add(outcome, self.steps)
            self.steps += outcome.reward.numel()
        return Window(metrics, episodes)

    def _diagnosis(self, outcomes: list[Outcome], loss: float) -> str:
        """Who is to blame for a loss that is not a number."""
        agent_is_well = all(p.isfinite().all() for p in self.agent.parameters())
        if agent_is_well and not all(outcome.reward.isfinite().all() for outcome in outcomes):
            return f"the world gave a reward that is not a number after step {self.steps:,}"
        if agent_is_well and not self.carry.o_t.isfinite().all():
            return f"the world gave an observation that is not a number after step {self.steps:,}"
        return (
            f"the loss is {loss} after step {self.steps:,}: start anew in another --out with a "
            "smaller --learner.lr"
        )

    def checkpoint(self, numbers: dict[str, Any]) -> Checkpoint:
        """The whole state; `numbers` is what the caller wants to find again."""
        state = tree.named_leaves(self.carry, "carry")
        state |= {f"worlds.{name}": t for name, t in self.worlds.state().items()}
        state |= {
            "generator": self.generator.get_state(),
            "meter.ret": torch.from_numpy(self.meter.ret.copy()),
            "meter.length": torch.from_numpy(self.meter.length.copy()),
        }
        numbers = {"steps": self.steps} | numbers
        slots = self.learner.optimiser.slots
        return Checkpoint(self.agent.state_dict(), slots, state, numbers)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of the same config."""
        self.agent.load_state_dict(checkpoint.weights)
        self.learner.optimiser.load(checkpoint.optimiser)
        state = checkpoint.state
        self.generator.set_state(state["generator"])
        self.worlds.restore(
            {k.removeprefix("worlds."): t for k, t in state.items() if k.startswith("worlds.")}
        )
        if self.worlds.exact_resume:
            self.carry = tree.from_named_leaves(self.carry, state, "carry")
            self.meter.ret = state["meter.ret"].numpy().copy()
            self.meter.length = state["meter.length"].numpy().copy()
        else:
            self.carry = start(self.agent, self.worlds)
        self.steps = checkpoint.numbers["steps"]
