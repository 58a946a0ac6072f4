"""Open-loop prediction against closed forms, and against a loop over single particles."""

import pytest
import torch
from torch import Tensor, nn

from dvrl.core.laws import Gaussian
from dvrl.encoders import exact
from dvrl.models.imagine import expected, imagine
from dvrl.models.vrnn import VRNN, GenerativeModel
from dvrl.nets.sight import ImageSight, VectorSight

N, K, H, Z, A = 2, 3, 5, 4, 3


def vrnn(kind: str) -> VRNN:
    """A small model with weights of its own, as it is once it has been trained."""
    torch.manual_seed(3)
    images = kind == "images"
    sight = ImageSight(1, norm=True) if images else VectorSight(2, 6, 1e-4)
    return VRNN(sight, A, H, Z, 3, 1e-4, norm=images).eval()


def draw(steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Particles, log weights, the action, and noise."""
    g = torch.Generator().manual_seed(1)
    shapes = (N, K, H), (N, K), (N, A), (steps, N, K, Z)
    h, log_w, a, eps = (torch.randn(shape, generator=g) for shape in shapes)
    return h, 2 * log_w, a, eps


@pytest.fixture(params=["vectors", "images"])
def model(request) -> VRNN:
    return vrnn(request.param)


@torch.no_grad()
def test_prediction_is_a_loop_over_steps_rows_and_particles(model):
    h, log_w, action, eps = draw(steps=3)
    ahead = imagine(model, h, log_w, action, eps)
    for n in range(N):
        states = [h[n : n + 1, k : k + 1] for k in range(K)]
        a = model.embed_action(action[n : n + 1])
        weights = log_w[n].exp() / log_w[n].exp().sum()
        for t in range(3):
            codes, images = [], []
            for k, state in enumerate(states):
                prior = model.prior(state, a)
                z = prior.mean + prior.var.sqrt() * eps[t, n, k]
                codes.append(model.embed_latent(z))
                images.append(model.decoder(state, codes[k], a).mean[0, 0])
                assert torch.allclose(ahead.own[t, n, k], images[k], atol=1e-5)
            mean = sum(w * image for w, image in zip(weights, images, strict=True))
            assert torch.allclose(ahead.mean[t, n], mean, atol=1e-5)
            x = model.embed_obs(mean[None])
            states = [model.transition(states[k], codes[k], a, x) for k in range(K)]


@torch.no_grad()
def test_permuting_particles_with_weights_and_noise_permutes_their_images_alone(model):
    h, log_w, action, eps = draw(steps=3)
    order = torch.tensor([2, 0, 1])
    one = imagine(model, h, log_w, action, eps)
    two = imagine(model, h[:, order], log_w[:, order], action, eps[:, :, order])
    assert torch.allclose(two.mean, one.mean, atol=1e-5)
    assert torch.allclose(two.own, one.own[:, :, order], atol=1e-5)


@torch.no_grad()
def test_with_all_weight_on_one_particle_the_mean_is_its_own(model):
    h, _, action, eps = draw(steps=3)
    log_w = torch.tensor([-torch.inf, 1.5, -torch.inf]).expand(N, K)
    ahead = imagine(model, h, log_w, action, eps)
    assert torch.allclose(ahead.mean, ahead.own[:, :, 1], atol=1e-6)
    alone = imagine(model, h[:, 1:2], log_w[:, 1:2], action, eps[:, :, 1:2])
    assert torch.allclose(ahead.mean, alone.mean, atol=1e-5)


@torch.no_grad()
def test_only_the_ratios_of_weights_matter(model):
    h, log_w, action, eps = draw(steps=2)
    one, two = (imagine(model, h, log_w + shift, action, eps) for shift in (0.0, -700.0))
    assert torch.allclose(one.mean, two.mean, atol=1e-4)


def test_the_expected_value_is_the_weighted_mean():
    values = torch.tensor([[[1.0, 10.0], [3.0, 30.0]]])
    log_w = torch.tensor([[0.25, 0.75]]).log() + 7
    assert torch.allclose(expected(values, log_w), torch.tensor([[2.5, 25.0]]))


# Closed forms


class LinearModel(GenerativeModel):
    """A world without memory for what was seen: h is its state, z the state that was drawn."""

    def __init__(self, world: exact.LinearGaussian) -> None:
        super().__init__()
        self.world = world
        self.embed_obs = self.embed_action = self.embed_latent = nn.Identity()

    def prior(self, h_tm1: Tensor, a: Tensor) -> Gaussian:
        mean = h_tm1 @ self.world.A.T + (a @ self.world.B.T)[:, None]
        return Gaussian(mean, self.world.Q.diagonal().expand_as(mean))

    def proposal(self, h_tm1: Tensor, a: Tensor, x: Tensor) -> Gaussian:
        raise AssertionError("nothing is seen, nothing is proposed")

    def decoder(self, h_tm1: Tensor, e: Tensor, a: Tensor) -> Gaussian:
        mean = e @ self.world.C.T
        return Gaussian(mean, self.world.R.diagonal().expand_as(mean))

    def transition(self, h_tm1: Tensor, e: Tensor, a: Tensor, x: Tensor) -> Tensor:
        return e


class Echo(LinearModel):
    """Its state becomes what the particles are told to have seen."""

    def transition(self, h_tm1: Tensor, e: Tensor, a: Tensor, x: Tensor) -> Tensor:
        return x[:, None].expand_as(h_tm1)


@pytest.fixture(scope="module")
def world() -> exact.LinearGaussian:
    return exact.LinearGaussian(
        A=torch.tensor([[0.9, 0.2], [-0.1, 0.95]]),
        B=torch.eye(2),
        Q=torch.diag(torch.tensor([0.3, 0.2])),
        C=torch.tensor([[1.0, 0.3], [0.0, 1.0]]),
        R=torch.diag(torch.tensor([0.8, 0.5])),
        mean_0=torch.tensor([1.0, -2.0]),
        cov_0=torch.diag(torch.tensor([0.5, 0.4])),
    )


def test_prediction_in_a_linear_gaussian_world_is_the_kalman_filters(world):
    """Mean and covariance of what will be seen, from many equal particles of the true belief."""
    k, steps, a = 100_000, 5, torch.tensor([[0.4, -0.3]])
    g = torch.Generator().manual_seed(0)
    h = world.mean_0 + torch.randn(1, k, 2, generator=g) @ world.cov_0.sqrt()
    eps = torch.randn(steps, 1, k, 2, generator=g)
    ahead = imagine(LinearModel(world), h, torch.zeros(1, k), a, eps)
    belief = exact.initial(world, 1)
    for t in range(steps):
        belief = exact.predict(world, belief, a)
        assert torch.allclose(ahead.mean[t], belief.mean @ world.C.T, atol=0.02)
        cov = world.C @ belief.cov @ world.C.T
        assert torch.allclose(ahead.own[t, 0].T.cov(), cov, atol=0.03)


def few_particles() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(1, 4, 2, generator=g), torch.randn(1, 4, generator=g)


def test_without_noise_the_mean_of_weighted_particles_moves_as_one(world):
    h, log_w = few_particles()
    a = torch.tensor([[0.4, -0.3]])
    ahead = imagine(LinearModel(world), h, log_w, a, torch.zeros(6, 1, 4, 2))
    state = expected(h, log_w)
    for t in range(6):
        state = state @ world.A.T + a @ world.B.T
        assert torch.allclose(ahead.mean[t], state @ world.C.T, atol=1e-5)


def test_all_particles_are_told_the_same_mean(world):
    h, log_w = few_particles()
    a = torch.zeros(1, 2)
    ahead = imagine(Echo(world), h, log_w, a, torch.zeros(3, 1, 4, 2))
    for t in (1, 2):
        told = ahead.mean[t - 1] @ world.A.T @ world.C.T
        assert torch.allclose(ahead.own[t], told[:, None].expand(1, 4, 2), atol=1e-5)
