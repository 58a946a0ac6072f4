"""An encoder of your own: the mean of the last observations, trained by the package's learner.

python examples/own_encoder.py --steps 50000
"""

import argparse
from typing import NamedTuple

import torch
from torch import Tensor

import dvrl
from dvrl.agents.actor_critic import ActorCritic
from dvrl.encoders.base import BeliefEncoder, Update
from dvrl.encoders.gru import GruInfo
from dvrl.learners.a2c import A2C
from dvrl.nets.heads import GaussianPolicy
from dvrl.nets.layers import mlp
from dvrl.rollout.segment import start


class Average(NamedTuple):
    """A running mean that follows the agent's own steps."""

    mean: Tensor
    weight: Tensor


class AverageEncoder(BeliefEncoder[Average]):
    """Move the mean by the last action, then let the new observation pull it a little."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_dim = 64
        self.net = mlp(2, [64, 64])
        self.register_buffer("origin", torch.zeros(2), persistent=False)

    def initial(self, n: int) -> Average:
        return Average(self.origin.expand(n, 2), self.origin.new_zeros(n, 1))

    def update(
        self, belief: Average, a_tm1: Tensor, o_t: Tensor, generator: torch.Generator
    ) -> Update:
        weight = belief.weight + 1
        mean = belief.mean + a_tm1 * 0.5 / a_tm1.norm(dim=-1, keepdim=True).clamp(min=0.5)
        mean = mean + (o_t - mean) / weight.clamp(max=10.0)
        return Update(
            Average(mean, weight), self.net(mean / 10), o_t.new_zeros(len(o_t)), GruInfo()
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = dvrl.preset("quick", "rnn").learner
    worlds = dvrl.MountainHikeConfig(sigma=3.0).make(config.n_envs, 0, torch.device("cpu"))
    agent = ActorCritic(AverageEncoder(), GaussianPolicy(64, 2, initial_std=1.0, mean_bound=2.0))
    learner = A2C(config, agent, worlds, torch.Generator().manual_seed(1))
    carry, done, rewards = start(agent, worlds), 0, []
    while done < steps:
        carry, segments, _ = learner.window(carry)
        done += config.n_grad * config.n_envs
        rewards += [segment.score.mean().item() for segment in segments]
    last = rewards[-max(1, len(rewards) // 10) :]
    print(f"mean return over the last tenth: {75 * sum(last) / len(last):.0f}")


if __name__ == "__main__":
    main()
