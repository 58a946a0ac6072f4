"""Policy heads: feature in, law over actions out; and the two faces of an action.

A world is given the action itself; the encoder is given a vector: the raw sample of a continuous
action, the one-hot code of a discrete one. The no-op before the first action is zero, or index 0.
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dvrl import chance
from dvrl.core.laws import Categorical, Gaussian
from dvrl.nets.layers import linear


def shorten(v: Float[Tensor, "*B A"], bound: float) -> Float[Tensor, "*B A"]:
    """`v` with length |v| replaced by bound * tanh(|v| / bound)."""
    length = v.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    return v * (bound * torch.tanh(length / bound) / length)


class PolicyHead(nn.Module, ABC):
    """pi(a | feature), one linear layer."""

    action_dim: int

    @abstractmethod
    def law(self, feature: Float[Tensor, "*B F"]) -> Gaussian | Categorical:
        """The law over actions."""

    @abstractmethod
    def noise(self, n: int, generator: torch.Generator) -> Tensor:
        """Chance for the actions of `n` environments."""

    @abstractmethod
    def sample(self, law: Gaussian | Categorical, noise: Tensor) -> Tensor:
        """The action that `noise` draws from the law, without gradient."""

    @abstractmethod
    def mode(self, law: Gaussian | Categorical) -> Tensor:
        """The law's likeliest action."""

    @abstractmethod
    def encode(self, action: Tensor) -> Float[Tensor, "N A"]:
        """The action as the encoder sees it."""

    @abstractmethod
    def noop(self, n: int) -> Float[Tensor, "N A"]:
        """The encoded action before the first one."""


class GaussianPolicy(PolicyHead):
    """Mean by a linear layer that starts near zero; a standard deviation that knows no state.

    `mean_bound` shortens long means smoothly, direction kept. Where a world caps actions, a mean
    far beyond the cap makes every sample the same action: no exploration, and no way back.
    """

    def __init__(
        self, feature_dim: int, action_dim: int, initial_std: float, mean_bound: float | None
    ) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.mean_bound = mean_bound
        self.mean = linear(feature_dim, action_dim)
        with torch.no_grad():
            self.mean.weight.mul_(0.01)
        self.log_std = nn.Parameter(torch.full((action_dim,), initial_std).log())

    def law(self, feature: Float[Tensor, "*B F"]) -> Gaussian:
        mean = self.mean(feature)
        if self.mean_bound is not None:
            mean = shorten(mean, self.mean_bound)
        return Gaussian(mean, (2 * self.log_std).exp().expand_as(mean))

    def noise(self, n: int, generator: torch.Generator) -> Float[Tensor, "N A"]:
        return chance.normal(generator, n, self.action_dim)

    def sample(self, law: Gaussian, noise: Float[Tensor, "N A"]) -> Float[Tensor, "N A"]:
        return law.sample(noise).detach()  # the score-function gradient goes through log_prob

    def mode(self, law: Gaussian) -> Float[Tensor, "N A"]:
        return law.mean.detach()

    def encode(self, action: Float[Tensor, "N A"]) -> Float[Tensor, "N A"]:
        return action

    def noop(self, n: int) -> Float[Tensor, "N A"]:
        return self.log_std.new_zeros(n, self.action_dim)


class CategoricalPolicy(PolicyHead):
    """Logits by a linear layer."""

    def __init__(self, feature_dim: int, n_actions: int) -> None:
        super().__init__()
        self.action_dim = n_actions
        self.logits = linear(feature_dim, n_actions)

    def law(self, feature: Float[Tensor, "*B F"]) -> Categorical:
        return Categorical(self.logits(feature))

    def noise(self, n: int, generator: torch.Generator) -> Float[Tensor, " N"]:
        return chance.uniform(generator, n)

    def sample(self, law: Categorical, noise: Float[Tensor, " N"]) -> Tensor:
        return law.sample(noise)

    def mode(self, law: Categorical) -> Tensor:
        return law.mode()

    def encode(self, action: Tensor) -> Float[Tensor, "N A"]:
        # torch's one_hot asks the device whether the action is one of so many.
        choices = torch.arange(self.action_dim, device=action.device)
        return (action[..., None] == choices).to(self.logits.weight.dtype)

    def noop(self, n: int) -> Float[Tensor, "N A"]:
        return self.encode(torch.zeros(n, dtype=torch.long, device=self.logits.weight.device))
