"""Belief into choice: a history encoder with a policy and a value on its feature (Sec. 2.4)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dvrl.encoders.base import BeliefEncoder, Info, Update
from dvrl.fuse import fusable
from dvrl.nets.heads import PolicyHead
from dvrl.nets.layers import linear
from dvrl.nets.norm import BatchNorm, unwatched


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


class Choice(NamedTuple):
    """One step of an agent whose decisions are judged later."""

    belief: tuple
    action: Tensor
    a_t: Float[Tensor, "N A"]
    info: Info


class ActorCritic(nn.Module):
    """pi and V on the encoder's feature, one linear layer each."""

    def __init__(self, encoder: BeliefEncoder, policy: PolicyHead, norm: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.policy = policy
        self.norm = BatchNorm(encoder.feature_dim) if norm else nn.Identity()
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
        up = self.encoder.update(belief, a_tm1, o_t, generator)
        return self.decide(up, None if greedy else self.policy.noise(len(o_t), generator))

    def decide(self, up: Update, noise: Tensor | None) -> Decision:
        """The action that `noise` draws on an updated belief; the likeliest one without."""
        action, a_t = self.choose(up.feature, noise)
        with unwatched():  # the choice has seen it
            judged = self.judge(up.feature, action)
        return Decision(up.belief, action, a_t, *judged, up.loss, up.info)

    @fusable
    def choose(
        self, feature: Float[Tensor, "N F"], noise: Tensor | None
    ) -> tuple[Tensor, Float[Tensor, "N A"]]:
        """An action, and its code."""
        law = self.policy.law(self.norm(feature))
        action = self.policy.mode(law) if noise is None else self.policy.sample(law, noise)
        return action, self.policy.encode(action)

    @fusable
    def worth(self, feature: Float[Tensor, "*B F"]) -> Float[Tensor, "*B"]:
        """V."""
        return self.value(self.norm(feature))[..., 0]

    @fusable
    def judge(
        self, feature: Float[Tensor, "*B F"], action: Tensor
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Log-probability of actions that were taken, entropy, and value."""
        seen = self.norm(feature)
        law = self.policy.law(seen)
        return law.log_prob(action), law.entropy(), self.value(seen)[..., 0]
