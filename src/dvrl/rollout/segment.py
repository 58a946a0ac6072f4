"""Agent meets worlds: n_s steps of experience in every environment (inner loop of Alg. 3)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dvrl.agents.actor_critic import ActorCritic, Decision
from dvrl.core import tree
from dvrl.encoders.base import Info, Update
from dvrl.encoders.recorder import Recorder
from dvrl.envs.worlds import Step, Worlds
from dvrl.fuse import fusable

Act = Callable[[tuple, Float[Tensor, "N A"], Float[Tensor, "N *obs"]], Decision]


class Carry(NamedTuple):
    """What one step hands to the next: b_{t-1}, a_{t-1}, o_t, and where an episode begins."""

    belief: tuple
    a_tm1: Float[Tensor, "N A"]
    o_t: Float[Tensor, "N *obs"]
    first: Bool[Tensor, " N"]


class Segment(NamedTuple):
    """Experience, `T N`."""

    reward: Float[Tensor, "T N"]
    terminated: Bool[Tensor, "T N"]
    truncated: Bool[Tensor, "T N"]
    v_end: Float[Tensor, "T N"]
    """Value of what follows an ended episode: 0, or V(last observation) at a cut."""
    log_prob: Float[Tensor, "T N"]
    entropy: Float[Tensor, "T N"]
    value: Float[Tensor, "T N"]
    model_loss: Float[Tensor, "T N"]
    v_boot: Float[Tensor, " N"]
    """Value of the observation behind the segment."""
    first: Bool[Tensor, "T N"]
    """Where a step was the first of its episode."""
    infos: Sequence[Info]

    @property
    def ended(self) -> Bool[Tensor, "T N"]:
        return self.terminated | self.truncated


class Outcome(NamedTuple):
    """What the worlds answered in a segment; all that remains of it after its update."""

    reward: Float[Tensor, "T N"]
    ended: Bool[Tensor, "T N"]


def start(agent: ActorCritic, worlds: Worlds) -> Carry:
    """The carry before the first step."""
    o_t = worlds.reset()
    n = worlds.n
    return Carry(
        agent.encoder.initial(n),
        agent.policy.noop(n),
        o_t,
        torch.ones(n, dtype=torch.bool, device=o_t.device),
    )


@fusable
def begin(agent: ActorCritic, carry: Carry) -> Carry:
    """Where an episode begins, the initial belief and the no-op action take the old ones' place."""
    n = carry.first.shape[0]
    belief = tree.where(carry.first, agent.encoder.initial(n), carry.belief)
    a_tm1 = torch.where(carry.first[:, None], agent.policy.noop(n), carry.a_tm1)
    return Carry(belief, a_tm1, carry.o_t, carry.first)


def advance(
    agent: ActorCritic, act: Act, worlds: Worlds, carry: Carry
) -> tuple[Decision, Step, Carry]:
    """One step everywhere: begin where episodes begin, decide, act, and what to carry on."""
    now = begin(agent, carry)
    decision = act(now.belief, now.a_tm1, now.o_t)
    step = worlds.step(decision.action)
    ended = step.terminated | step.truncated
    return decision, step, Carry(decision.belief, decision.a_t, step.obs, ended)


def target(
    look: Act, belief: tuple, a_tm1: Float[Tensor, "N A"], o_t: Float[Tensor, "N *obs"]
) -> Float[Tensor, " N"]:
    """Eq. 8's V^-: a target, not a prediction, hence without gradient."""
    with torch.no_grad():
        return look(belief, a_tm1, o_t).value


def collect(
    agent: ActorCritic,
    act: Act,
    worlds: Worlds,
    carry: Carry,
    n_steps: int,
    bootstrap_cuts: bool,
    look: Act | None = None,
) -> tuple[Segment, Carry]:
    """`n_steps` of acting; `act` is the agent with the parameters the gradient should reach.

    With `bootstrap_cuts` a time limit is a cut: the value of the last observation stands for what
    would have followed. Otherwise it is an end like any other (the paper's choice). Values that
    serve as targets come from `look`, by default `act`.
    """
    look = look or act
    rows, infos, firsts = [], [], []
    for _ in range(n_steps):
        firsts.append(carry.first)
        decision, step, carry = advance(agent, act, worlds, carry)
        v_end = torch.zeros_like(step.reward)
        last = partial(target, look, decision.belief, decision.a_t, step.final_obs)
        v_last = worlds.if_cut(last) if bootstrap_cuts else None
        if v_last is not None:
            v_end = torch.where(step.truncated & ~step.terminated, v_last, v_end)
        rows.append(
            (
                *(step.reward, step.terminated, step.truncated, v_end),
                *(decision.log_prob, decision.entropy, decision.value, decision.model_loss),
            )
        )
        infos.append(decision.info)
    v_boot = target(look, *begin(agent, carry)[:3])
    columns = [torch.stack(column) for column in zip(*rows, strict=True)]
    return Segment(*columns, v_boot=v_boot, first=torch.stack(firsts), infos=infos), carry


def record(
    tape: "Tape", worlds: Worlds, carry: Carry, n_steps: int, bootstrap_cuts: bool
) -> tuple[Segment, Carry]:
    """`collect` by an encoder that acts first and derives later: the same gradients, sooner."""
    with torch.no_grad():
        segment, carry = collect(
            tape.agent, tape.act, worlds, carry, n_steps, bootstrap_cuts, look=tape.look
        )
    return tape.replay(segment), carry


class Tape:
    """An agent that remembers the actions of a segment; its recorder remembers the rest."""

    def __init__(self, agent: ActorCritic, recorder: Recorder, generator: torch.Generator) -> None:
        self.agent = agent
        self.recorder = recorder
        self.generator = generator
        self.actions: list[Tensor] = []

    def act(
        self, belief: tuple, a_tm1: Float[Tensor, "N A"], o_t: Float[Tensor, "N *obs"]
    ) -> Decision:
        decision = self._decide(self.recorder.step(belief, a_tm1, o_t, self.generator))
        self.actions.append(decision.action)
        return decision

    def look(
        self, belief: tuple, a_tm1: Float[Tensor, "N A"], o_t: Float[Tensor, "N *obs"]
    ) -> Decision:
        """Act without remembering."""
        return self._decide(self.recorder.look(belief, a_tm1, o_t, self.generator))

    def _decide(self, update: Update) -> Decision:
        noise = self.agent.policy.noise(len(update.feature), self.generator)
        return self.agent.decide(update, noise)

    def replay(self, segment: Segment) -> Segment:
        """The segment as a function of parameters."""
        feature, loss = self.recorder.replay(segment.first)
        log_prob, entropy, value = self.agent.judge(feature, torch.stack(self.actions))
        return segment._replace(log_prob=log_prob, entropy=entropy, value=value, model_loss=loss)
