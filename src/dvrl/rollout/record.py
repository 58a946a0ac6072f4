"""Segments by an encoder that acts first and derives later."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dvrl.agents.actor_critic import ActorCritic, Choice
from dvrl.encoders.recorder import Recorder
from dvrl.envs.worlds import Worlds
from dvrl.nets.norm import unwatched
from dvrl.rollout.segment import Carry, Segment, act_through


def record(
    agent: ActorCritic,
    recorder: Recorder,
    generator: torch.Generator,
    worlds: Worlds,
    carry: Carry,
    n_steps: int,
    bootstrap_cuts: bool,
) -> tuple[Segment, Carry]:
    """`collect` by an encoder that acts first and derives later: the same gradients, sooner.

    What was done is known when the last action is: it is judged while the worlds take that one.
    """
    actions, judged = [], []

    def draw() -> tuple[tuple[Tensor, ...], Tensor]:
        return recorder.noise(worlds.n, generator), agent.policy.noise(worlds.n, generator)

    # All at once where it is known how often: every graph that draws has to be told where its
    # chance goes on. With cuts to look behind nobody knows; it is drawn when it is wanted.
    ahead = iter(draw, None) if bootstrap_cuts else iter([draw() for _ in range(n_steps + 1)])

    def act(*seen) -> Choice:
        noise, of_action = next(ahead)
        update = recorder.step(*seen, noise)
        action = agent.choose(update.feature, of_action)
        actions.append(action[0])
        return Choice(update.belief, *action, update.info)

    def value(*seen) -> Float[Tensor, " N"]:
        noise, _ = next(ahead)  # as much chance as `collect` spends
        return agent.worth(recorder.look(*seen, noise).feature)

    def derive(firsts: list[Bool[Tensor, " N"]]) -> None:
        with torch.enable_grad(), unwatched():  # acting has seen it all
            feature, loss = recorder.replay(torch.stack(firsts))
            judged.extend((*agent.judge(feature, torch.stack(actions)), loss))

    with torch.no_grad():
        experience, _, carry = act_through(
            agent, act, value, worlds, carry, n_steps, bootstrap_cuts, derive
        )
    return Segment(*experience, *judged), carry
