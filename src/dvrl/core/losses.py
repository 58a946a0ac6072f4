"""The terms of the actor-critic loss, each `T N`, and the one place that adds them up."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def n_step_returns(
    reward: Float[Tensor, "T N"],
    ended: Bool[Tensor, "T N"],
    v_end: Float[Tensor, "T N"],
    v_boot: Float[Tensor, " N"],
    gamma: float,
) -> Float[Tensor, "T N"]:
    """R_i = r_i + gamma * (v_end_i where the episode ended at i, else R_{i+1}),  R_T = v_boot.

    reward[i] is caused by action[i]. v_end is 0 at a termination and the value of the last
    observation at a cut, so that no return runs into the next episode.
    """
    returns = []
    ret = v_boot
    for r_i, ended_i, v_end_i in zip(reward.flip(0), ended.flip(0), v_end.flip(0), strict=True):
        ret = r_i + gamma * torch.where(ended_i, v_end_i, ret)
        returns.append(ret)
    return torch.stack(returns[::-1])


def advantage(returns: Float[Tensor, "T N"], value: Float[Tensor, "T N"]) -> Float[Tensor, "T N"]:
    """What the actions earned beyond the critic's expectation."""
    return returns - value  # Eq. 8


def standardise(
    adv: Float[Tensor, "T N"], average: Callable[[Tensor], Tensor] = lambda x: x
) -> Float[Tensor, "T N"]:
    """Advantages of one update with mean 0 and standard deviation 1.

    Takes out what a critic that lags behind gets wrong for all actions alike. Where an update's
    environments are spread over processes, `average` makes a mean over all of them.
    """
    centred = adv - average(adv.mean())
    return centred / (average(centred.square().mean()).sqrt() + 1e-6)


def policy_term(log_prob: Float[Tensor, "T N"], adv: Float[Tensor, "T N"]) -> Float[Tensor, "T N"]:
    """Policy gradient; the advantage is a constant here, the critic is judged by its own term."""
    return -log_prob * adv.detach()  # Eq. 9


def value_term(adv: Float[Tensor, "T N"]) -> Float[Tensor, "T N"]:
    """Squared error of the critic against the n-step target."""
    return adv.square()  # Eq. 10


def entropy_term(entropy: Float[Tensor, "T N"]) -> Float[Tensor, "T N"]:
    """Less entropy, more loss: the term that keeps the policy exploring."""
    return -entropy  # Eq. 11


def combine(
    terms: Mapping[str, Float[Tensor, "T N"]], weights: Mapping[str, float]
) -> Float[Tensor, ""]:
    """The weighted sum of the terms' means over steps and environments."""
    assert terms.keys() == weights.keys(), f"terms {set(terms)}, weights {set(weights)}"
    means = [weights[name] * term.mean() for name, term in terms.items()]
    return torch.stack(means).sum()  # Eq. 20
