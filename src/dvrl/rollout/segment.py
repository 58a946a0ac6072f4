"""Agent meets worlds: n_s steps of experience in every environment (inner loop of Alg. 3)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dvrl.agents.actor_critic import ActorCritic, Choice, Decision
from dvrl.core import tree
from dvrl.encoders.base import Info
from dvrl.envs.worlds import Step, Worlds, nothing
from dvrl.fuse import fusable

Chosen = TypeVar("Chosen", Decision, Choice)
Act = Callable[[tuple, Float[Tensor, "N A"], Float[Tensor, "N *obs"]], Decision]
Value = Callable[[tuple, Float[Tensor, "N A"], Float[Tensor, "N *obs"]], Float[Tensor, " N"]]


class Carry(NamedTuple):
    """What one step hands to the next: b_{t-1}, a_{t-1}, o_t, and where an episode begins."""

    belief: tuple
    a_tm1: Float[Tensor, "N A"]
    o_t: Float[Tensor, "N *obs"]
    first: Bool[Tensor, " N"]


class Experience(NamedTuple):
    """What T steps brought."""

    reward: Float[Tensor, "T N"]
    terminated: Bool[Tensor, "T N"]
    truncated: Bool[Tensor, "T N"]
    v_end: Float[Tensor, "T N"]
    """Value of what follows an ended episode: 0, or V(last observation) at a cut."""
    first: Bool[Tensor, "T N"]
    """Where a step was the first of its episode."""
    score: Float[Tensor, "T N"]
    """Rewards as they are reported, and below where that which is reported ended."""
    over: Bool[Tensor, "T N"]
    v_boot: Float[Tensor, " N"]
    """Value of the observation behind the last step."""
    infos: Sequence[Info]


class Segment(NamedTuple):
    """Experience, and what the agent thinks of it: what the losses are made of, `T N`."""

    reward: Float[Tensor, "T N"]
    terminated: Bool[Tensor, "T N"]
    truncated: Bool[Tensor, "T N"]
    v_end: Float[Tensor, "T N"]
    first: Bool[Tensor, "T N"]
    score: Float[Tensor, "T N"]
    over: Bool[Tensor, "T N"]
    v_boot: Float[Tensor, " N"]
    infos: Sequence[Info]
    log_prob: Float[Tensor, "T N"]
    entropy: Float[Tensor, "T N"]
    value: Float[Tensor, "T N"]
    model_loss: Float[Tensor, "T N"]

    @property
    def ended(self) -> Bool[Tensor, "T N"]:
        return self.terminated | self.truncated


class Outcome(NamedTuple):
    """What a segment has to report; all that remains of it after its update."""

    score: Float[Tensor, "T N"]
    over: Bool[Tensor, "T N"]


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
    agent: ActorCritic,
    act: Callable[..., Chosen],
    worlds: Worlds,
    carry: Carry,
    meanwhile: Callable[[], None] = nothing,
) -> tuple[Chosen, Step, Carry]:
    """One step everywhere: begin where episodes begin, decide, act, and what to carry on."""
    now = begin(agent, carry)
    decision = act(now.belief, now.a_tm1, now.o_t)
    step = worlds.step(decision.action, meanwhile=meanwhile)
    ended = step.terminated | step.truncated
    return decision, step, Carry(decision.belief, decision.a_t, step.obs, ended)


def act_through(
    agent: ActorCritic,
    act: Callable[..., Chosen],
    value: Value,
    worlds: Worlds,
    carry: Carry,
    n_steps: int,
    bootstrap_cuts: bool,
    meanwhile: Callable[[list[Bool[Tensor, " N"]]], None] | None = None,
) -> tuple[Experience, list[Chosen], Carry]:
    """`n_steps` of acting. What serves as a target comes from `value`, without gradient (Eq. 8's
    V^-). While the worlds take the last step `meanwhile` is called, with every step's `first`.

    With `bootstrap_cuts` a time limit is a cut: the value of the last observation stands for what
    would have followed. Otherwise it is an end like any other (the paper's choice).
    """
    value = torch.no_grad()(value)
    rows, chosen, firsts = [], [], []
    zero = torch.zeros(worlds.n, device=carry.o_t.device)
    for i in range(n_steps):
        firsts.append(carry.first)
        last_one = meanwhile is not None and i == n_steps - 1
        idle = partial(meanwhile, firsts) if last_one else nothing
        decision, step, carry = advance(agent, act, worlds, carry, idle)
        look = partial(value, decision.belief, decision.a_t)
        v_last = worlds.if_cut(look, step.final_obs) if bootstrap_cuts else None
        v_end = zero
        if v_last is not None:
            v_end = torch.where(step.truncated & ~step.terminated, v_last, zero)
        ends = step.terminated, step.truncated, v_end
        rows.append((step.reward, *ends, firsts[-1], step.score, step.over))
        chosen.append(decision)
    v_boot = value(*begin(agent, carry)[:3])
    columns = _stacked(rows)
    return Experience(*columns, v_boot, [decision.info for decision in chosen]), chosen, carry


def collect(
    agent: ActorCritic,
    act: Act,
    worlds: Worlds,
    carry: Carry,
    n_steps: int,
    bootstrap_cuts: bool,
) -> tuple[Segment, Carry]:
    """A segment; `act` is the agent with the parameters the gradient should reach."""

    def value(*seen) -> Float[Tensor, " N"]:
        return act(*seen).value

    experience, decisions, carry = act_through(
        agent, act, value, worlds, carry, n_steps, bootstrap_cuts
    )
    judged = _stacked([(d.log_prob, d.entropy, d.value, d.model_loss) for d in decisions])
    return Segment(*experience, *judged), carry


@fusable
def _stacked(rows: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """Columns over time."""
    return [torch.stack(column) for column in zip(*rows, strict=True)]
