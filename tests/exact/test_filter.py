"""The particle encoder against exact answers, with a linear-Gaussian model for its networks."""

import math

import pytest
import torch
from torch import Tensor, nn

from dvrl.core import smc
from dvrl.core.laws import Gaussian
from dvrl.encoders import exact
from dvrl.encoders.particle import ParticleBelief, ParticleEncoder, Reader
from dvrl.models.vrnn import GenerativeModel

STEPS = 12


class LinearModel(GenerativeModel):
    """The four laws of a known world: h is the state s_t, z the state that was drawn."""

    def __init__(self, world: exact.LinearGaussian, blur: float) -> None:
        super().__init__()
        self.world = world
        self.blur = blur
        """The proposal is the prior with its variance times this: right for any positive value."""
        self.embed_action = nn.Identity()
        self.embed_obs = nn.Identity()
        self.embed_latent = nn.Identity()

    def prior(self, h_tm1: Tensor, a: Tensor) -> Gaussian:
        mean = h_tm1 @ self.world.A.T + (a @ self.world.B.T)[:, None]
        return Gaussian(mean, self.world.Q.diagonal().expand_as(mean))

    def proposal(self, h_tm1: Tensor, a: Tensor, x: Tensor) -> Gaussian:
        prior = self.prior(h_tm1, a)
        return Gaussian(prior.mean, self.blur * prior.var)

    def decoder(self, h_tm1: Tensor, e: Tensor, a: Tensor) -> Gaussian:
        mean = e @ self.world.C.T
        return Gaussian(mean, self.world.R.diagonal().expand_as(mean))

    def transition(self, h_tm1: Tensor, e: Tensor, a: Tensor, x: Tensor) -> Tensor:
        return e


class MeanState(Reader):
    """The weighted mean of the particles' states."""

    def ahead(self, h: Tensor, e: Tensor) -> Tensor:
        return h

    def forward(self, ahead: Tensor, log_w: Tensor) -> Tensor:
        return (log_w.softmax(-1)[..., None] * ahead).sum(1)


@pytest.fixture(scope="module")
def world() -> exact.LinearGaussian:
    return exact.LinearGaussian(
        A=torch.tensor([[0.9, 0.2], [-0.1, 0.95]]),
        B=torch.eye(2),
        Q=torch.diag(torch.tensor([0.3, 0.2])),
        C=torch.tensor([[1.0, 0.3], [0.0, 1.0]]),
        R=torch.diag(torch.tensor([0.8, 0.5])),
        mean_0=torch.zeros(2),
        cov_0=torch.zeros(2, 2),
    )


@pytest.fixture(scope="module")
def episode(world: exact.LinearGaussian) -> tuple[Tensor, Tensor]:
    """Actions and observations of one episode, `T 1 2`."""
    g = torch.Generator().manual_seed(5)
    s, actions, observations = torch.zeros(1, 2), [], []
    for _ in range(STEPS):
        a = torch.randn(1, 2, generator=g)
        s = s @ world.A.T + a @ world.B.T + torch.randn(1, 2, generator=g) @ world.Q.sqrt()
        actions.append(a)
        observations.append(s @ world.C.T + torch.randn(1, 2, generator=g) @ world.R.sqrt())
    return torch.stack(actions), torch.stack(observations)


def kalman(world: exact.LinearGaussian, episode) -> tuple[Tensor, Tensor]:
    """Filtered means `T 2` and log evidence `T`."""
    belief, means, evidence = exact.initial(world, 1), [], []
    for a, o in zip(*episode, strict=True):
        belief = exact.predict(world, belief, a)
        belief, log_p = exact.correct(world, belief, o)
        means.append(belief.mean[0])
        evidence.append(log_p[0])
    return torch.stack(means), torch.stack(evidence)


def filtered(world, episode, n: int, k: int, resample=smc.systematic, blur=1.5, seed=0):
    """`n` independent filters of K particles: features `T N 2` and log evidence `T N`."""
    encoder = ParticleEncoder(LinearModel(world, blur), MeanState(), k, 2, resample)
    g = torch.Generator().manual_seed(seed)
    belief, features, evidence = encoder.initial(n), [], []
    for a, o in zip(*episode, strict=True):
        up = encoder.update(belief, a.expand(n, -1), o.expand(n, -1), g)
        belief = up.belief
        features.append(up.feature)
        evidence.append(-up.loss)
    return torch.stack(features), torch.stack(evidence)


def test_kalman_evidence_is_that_of_the_joint_gaussian_of_all_observations(world, episode):
    """Brute force: the density of the stacked observations, without any filter."""
    actions, observations = episode
    means, state_cov, s = [], torch.zeros(2 * STEPS, 2 * STEPS), torch.zeros(2)
    for t in range(STEPS):
        s = world.A @ s + world.B @ actions[t, 0]
        means.append(world.C @ s)
        for u in range(t + 1):  # cov(s_t, s_u) = sum_j A^(t-j) Q A^(u-j)^T
            total = sum(
                torch.linalg.matrix_power(world.A, t - j)
                @ world.Q
                @ torch.linalg.matrix_power(world.A, u - j).T
                for j in range(u + 1)
            )
            state_cov[2 * t : 2 * t + 2, 2 * u : 2 * u + 2] = total
            state_cov[2 * u : 2 * u + 2, 2 * t : 2 * t + 2] = total.T
    big_c = torch.block_diag(*[world.C] * STEPS)
    cov = big_c @ state_cov @ big_c.T + torch.block_diag(*[world.R] * STEPS)
    joint = torch.distributions.MultivariateNormal(torch.cat(means), cov)
    assert torch.allclose(joint.log_prob(observations.flatten()), kalman(world, episode)[1].sum())


@pytest.mark.parametrize("scheme", [smc.systematic, smc.stratified, smc.multinomial])
def test_evidence_and_mean_of_linear_gaussian_model_approach_kalman(world, episode, scheme):
    means, evidence = kalman(world, episode)
    errors = []
    for k in (10, 100, 1000):
        features, estimate = filtered(world, episode, 32, k, scheme)
        errors.append((estimate.sum(0) - evidence.sum()).abs().mean() / evidence.sum().abs())
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.01
    assert (features.mean(1) - means).abs().max() < 0.02


@pytest.mark.parametrize("scheme", [smc.systematic, smc.stratified, smc.multinomial, None])
def test_likelihood_estimate_is_unbiased_and_its_logarithm_is_a_lower_bound(world, episode, scheme):
    truth = kalman(world, episode)[1][:5].sum()
    short = tuple(x[:5] for x in episode)
    _, evidence = filtered(world, short, 40_000, 8, scheme, blur=1.2)
    log_ratio = evidence.sum(0) - truth
    ratio = log_ratio.exp()
    standard_error = ratio.std() / math.sqrt(len(ratio))
    assert abs(ratio.mean() - 1) < 4 * standard_error
    assert standard_error < 0.02  # else the line above could not fail
    assert log_ratio.mean() < -4 * log_ratio.std() / math.sqrt(len(log_ratio))


def test_more_particles_tighten_the_bound(world, episode):
    bounds = [filtered(world, episode, 2000, k)[1].sum(0).mean() for k in (1, 4, 16, 64)]
    assert bounds == sorted(bounds)


def test_without_resampling_the_evidence_telescopes_to_the_whole_trajectory(world, episode):
    """Eq. 22: log (1/K) sum_k prod_t w_t^k, from weights computed apart."""
    n, k = 3, 6
    encoder = ParticleEncoder(LinearModel(world, 1.5), MeanState(), k, 2, resample=None)
    g = torch.Generator().manual_seed(1)
    belief, product, evidence = encoder.initial(n), torch.zeros(n, k), torch.zeros(n)
    for a, o in zip(*episode, strict=True):
        up = encoder.update(belief, a.expand(n, -1), o.expand(n, -1), g)
        product += up.info.log_prior + up.info.log_decoder - up.info.log_proposal
        evidence -= up.loss
        belief = up.belief
    assert torch.allclose(evidence, smc.log_mean_exp(product), rtol=1e-5)


def test_shifting_the_carried_log_weights_changes_nothing(world, episode):
    for resample in (smc.systematic, None):
        encoder = ParticleEncoder(LinearModel(world, 1.5), MeanState(), 7, 2, resample)
        g = torch.Generator().manual_seed(2)
        belief = encoder.update(encoder.initial(4), *(x[0].expand(4, -1) for x in episode), g)
        belief = belief.belief
        shifted = ParticleBelief(belief.h, belief.log_w + 5.0)
        inputs = tuple(x[1].expand(4, -1) for x in episode)
        one = encoder.update(belief, *inputs, torch.Generator().manual_seed(3))
        two = encoder.update(shifted, *inputs, torch.Generator().manual_seed(3))
        assert torch.allclose(one.loss, two.loss, atol=1e-5)
        assert torch.allclose(one.feature, two.feature, atol=1e-5)


def test_permuting_the_particles_permutes_nothing_but_their_order(world, episode):
    """Multinomial resampling with the same ancestors' shares: only the law matters."""
    encoder = ParticleEncoder(LinearModel(world, 1.5), MeanState(), 400, 2, smc.multinomial)
    g = torch.Generator().manual_seed(2)
    first = encoder.update(encoder.initial(50), *(x[0].expand(50, -1) for x in episode), g)
    order = torch.randperm(400, generator=g)
    permuted = ParticleBelief(first.belief.h[:, order], first.belief.log_w[:, order])
    inputs = tuple(x[1].expand(50, -1) for x in episode)
    one = encoder.update(first.belief, *inputs, g)
    two = encoder.update(permuted, *inputs, g)
    gap = (one.loss - two.loss).mean()
    spread = (one.loss - two.loss).std() / math.sqrt(50)
    assert abs(gap) < 4 * spread


def test_a_row_whose_weights_all_vanish_is_revived_and_counted(world, episode):
    encoder = ParticleEncoder(LinearModel(world, 1.5), MeanState(), 5, 2)
    a, o = torch.zeros(2, 2), torch.tensor([[0.1, 0.2], [1e30, 0.0]])  # 1e30 squared overflows
    up = encoder.update(encoder.initial(2), a, o, torch.Generator().manual_seed(0))
    assert up.info.vanished.tolist() == [False, True]
    assert up.loss.isfinite().all()
    assert up.loss[1] == 0
    assert up.belief.log_w[1].tolist() == [0.0] * 5
    assert type(up.info).metrics([up.info])["belief/revived"] == 1
    again = encoder.update(up.belief, a, torch.zeros(2, 2), torch.Generator().manual_seed(1))
    assert again.loss.isfinite().all()
