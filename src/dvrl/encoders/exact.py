"""The exact belief of a linear-Gaussian world: the Kalman filter, an oracle to measure against."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import MultivariateNormal

from dvrl.envs import mountain_hike


class LinearGaussian(NamedTuple):
    """s' = A s + B a + N(0, Q),  o = C s + N(0, R),  s_0 ~ N(mean_0, cov_0)."""

    A: Float[Tensor, "S S"]
    B: Float[Tensor, "S U"]
    Q: Float[Tensor, "S S"]
    C: Float[Tensor, "O S"]
    R: Float[Tensor, "O O"]
    mean_0: Float[Tensor, " S"]
    cov_0: Float[Tensor, "S S"]


class KalmanBelief(NamedTuple):
    """N(mean, cov); the covariance does not depend on what was seen, so all rows share it."""

    mean: Float[Tensor, "N S"]
    cov: Float[Tensor, "S S"]


def initial(world: LinearGaussian, n: int) -> KalmanBelief:
    """The belief about the start, before anything is seen."""
    return KalmanBelief(world.mean_0.expand(n, -1), world.cov_0)


def predict(
    world: LinearGaussian, belief: KalmanBelief, action: Float[Tensor, "N U"]
) -> KalmanBelief:
    """The belief after acting, before seeing."""
    mean = belief.mean @ world.A.T + action @ world.B.T
    return KalmanBelief(mean, world.A @ belief.cov @ world.A.T + world.Q)


def correct(
    world: LinearGaussian, belief: KalmanBelief, o_t: Float[Tensor, "N O"]
) -> tuple[KalmanBelief, Float[Tensor, " N"]]:
    """The belief after seeing `o_t`, and log p(o_t | history); the two parts of Eq. 2."""
    expected = belief.mean @ world.C.T
    spread = world.C @ belief.cov @ world.C.T + world.R
    gain = belief.cov @ world.C.T @ torch.linalg.inv(spread)
    mean = belief.mean + (o_t - expected) @ gain.T
    cov = belief.cov - gain @ world.C @ belief.cov  # Eq. 2
    return KalmanBelief(mean, cov), MultivariateNormal(expected, spread).log_prob(o_t)


def mountain_hike_world(sigma: float) -> LinearGaussian:
    """Mountain Hike as its own filter sees it; its actions are the capped ones."""
    eye = torch.eye(2)
    return LinearGaussian(
        A=eye,
        B=eye,
        Q=mountain_hike.MOVE_STD**2 * eye,
        C=eye,
        R=sigma**2 * eye,
        mean_0=torch.tensor(mountain_hike.START),
        cov_0=eye,
    )
