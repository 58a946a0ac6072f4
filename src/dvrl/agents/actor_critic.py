"""Belief into choice: a history encoder with a policy and a value on its feature (Sec. 2.4)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dvrl.encoders.base import BeliefEncoder, Info, Update
from dvrl.nets.heads import PolicyHead
from dvrl.nets.layers import linear


class Decision(NamedTuple):
    """One step of the agent; rows are environments."""

    belief: tuple
    action: Tensor
    """As the world takes it: `N A` continuous or `N` indices; drawn without gradient."""
    a_t: Float[Tensor, "N A"]
    """As the encoder will see it in the next step."""
    log_prob: Float[Tensor, " N"]
    entropy: Float[Tensor, " N"]
    value: Float[Tensor, " N"]
    model_loss: Float[Tensor, " N"]
    info: Info


class ActorCritic(nn.Module):
    """pi and V on the encoder's feature, one linear layer each."""

    def __init__(self, encoder: BeliefEncoder, policy: PolicyHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.policy = policy
        self.value = linear(encoder.feature_dim, 1)

    def forward(
        self,
        belief: tuple,
        a_tm1: Float[Tensor, "N A"],
        o_t: Float[Tensor, "N *obs"],
        generator: torch.Generator,
        greedy: bool = False,
    ) -> Decision:
        """Update the belief, then draw an action, or take the likeliest one."""
        return self.decide(self.encoder.update(belief, a_tm1, o_t, generator), generator, greedy)

    def decide(self, up: Update, generator: torch.Generator, greedy: bool = False) -> Decision:
        """An action on an updated belief."""
        law = self.policy.law(up.feature)
        action = self.policy.mode(law) if greedy else self.policy.sample(law, generator)
        return Decision(
            belief=up.belief,
            action=action,
            a_t=self.policy.encode(action),
            log_prob=law.log_prob(action),
            entropy=law.entropy(),
            value=self.value(up.feature)[..., 0],
            model_loss=up.loss,
            info=up.info,
        )

    def judge(
        self, feature: Float[Tensor, "T N F"], action: Tensor
    ) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"], Float[Tensor, "T N"]]:
        """Log-probability of actions taken before, entropy, and value."""
        law = self.policy.law(feature)
        return law.log_prob(action), law.entropy(), self.value(feature)[..., 0]
