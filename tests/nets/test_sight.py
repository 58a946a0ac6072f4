"""Eyes: convolutions and their mirror are torch's, and particles of one step share their norms."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from dvrl.core.laws import Bernoulli, Gaussian
from dvrl.encoders.config import GruConfig, ParticleConfig
from dvrl.envs.config import MountainHikeConfig
from dvrl.experiments.presets import preset
from dvrl.nets.layers import RELU_GAIN
from dvrl.nets.norm import unwatched
from dvrl.nets.sight import Convolutions, Enlarge, ImageDecoder, ImageSight, VectorSight
from dvrl.nets.spaces import Spec
from dvrl.runs.build import parameter_count

IMAGE = gym.spaces.Box(0, 255, (1, 84, 84), np.uint8)


def torchs(layers: nn.ModuleList, norms: nn.ModuleList) -> nn.Sequential:
    """The same layers as torch stacks them: behind each its norm and a ReLU, if it has one."""
    stack: list[nn.Module] = []
    for i, layer in enumerate(layers):
        stack.append(layer)
        if i < len(norms):
            norm = nn.BatchNorm2d(layer.out_channels)
            norm.weight, norm.bias = norms[i].weight, norms[i].bias
            stack += [norm, nn.ReLU()]
    return nn.Sequential(*stack)


def test_an_image_becomes_one_vector_as_in_torch(generator):
    eyes = Convolutions(1, norm=True)
    o = torch.rand(6, 1, 84, 84, generator=generator)
    expected = torchs(eyes.layers, eyes.norms)(o).flatten(1)
    assert expected.shape == (6, ImageSight(1, True).x_dim) == (6, 1568)
    torch.testing.assert_close(eyes(o), expected)


def test_images_of_several_steps_are_seen_as_step_by_step(generator):
    eyes = Convolutions(1, norm=True)
    steps = torch.rand(3, 4, 1, 84, 84, generator=generator)
    with unwatched():
        torch.testing.assert_close(eyes(steps), torch.stack([eyes(o) for o in steps]))


def test_a_decoder_gives_every_particle_an_image_as_in_torch(generator):
    decoder = ImageDecoder(10, 4, channels=1, norm=True)
    own = torch.randn(3, 5, 10, generator=generator)
    context = torch.randn(3, 4, generator=generator)
    first = nn.Linear(14, 1568)
    first.weight, first.bias = decoder.first.weight, decoder.first.bias
    norm = nn.BatchNorm1d(1568)
    norm.weight, norm.bias = decoder.norms[0].weight, decoder.norms[0].bias
    both = torch.cat([own, context[:, None].expand(3, 5, 4)], -1).flatten(0, 1)
    seed = norm(first(both)).relu().view(-1, 32, 7, 7)
    expected = torchs(decoder.layers, decoder.norms[1:])(seed).view(3, 5, 1, 84, 84)
    law = decoder(own, context)
    assert isinstance(law, Bernoulli)
    torch.testing.assert_close(law.logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", [True, False])
def test_first_weights_are_orthogonal_and_biases_zero(norm):
    for net in (Convolutions(1, norm), ImageDecoder(10, 4, 1, norm)):
        for layer in net.layers:
            values = torch.linalg.svdvals(layer.weight.detach().flatten(1))
            assert torch.allclose(values, torch.full_like(values, RELU_GAIN), atol=1e-4)
            assert not layer.bias.any()


def test_spaces_choose_the_eyes():
    image = Spec.from_spaces(IMAGE, gym.spaces.Discrete(6))
    assert image == Spec((1, 84, 84), 6, discrete=True)
    assert image.sight(128, 1e-4, True) == ImageSight(1, True)
    vector = Spec.from_spaces(*MountainHikeConfig().spaces())
    assert vector.sight(64, 1e-4, True) == VectorSight(2, 64, 1e-4)
    assert isinstance(vector.sight(64, 1e-4, True).decoder(8, 4)(torch.zeros(2, 3, 8),
                      torch.zeros(2, 4)), Gaussian)  # fmt: skip


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(0, 255, (84, 84, 3), np.uint8),
        gym.spaces.Box(0, 1, (1, 84, 84), np.float32),
        gym.spaces.Box(0, 255, (1, 64, 64), np.uint8),
    ],
)
def test_other_images_are_refused_with_what_would_be_right(space):
    with pytest.raises(ValueError, match=r"images of bytes, Box\(0, 255, \(channels, 84, 84\)"):
        Spec.from_spaces(space, gym.spaces.Discrete(2))


@pytest.mark.parametrize(
    ("config", "actions", "expected"),
    [
        (ParticleConfig(15, 256, 256, 128, batch_norm=True), 6, 4_336_264),
        (ParticleConfig(15, 256, 256, 128, batch_norm=True), 18, 4_340_884),
        (GruConfig(256, 128, batch_norm=True), 6, 1_557_767),
    ],
)
def test_agents_that_see_images_have_the_papers_number_of_parameters(config, actions, expected):
    from dvrl.agents.actor_critic import ActorCritic

    spec = Spec.from_spaces(IMAGE, gym.spaces.Discrete(actions))
    encoder = config.build(spec)
    agent = ActorCritic(encoder, spec.policy(encoder.feature_dim, 1.0, None), norm=True)
    assert parameter_count(agent) == expected


def test_the_preset_has_these_sizes():
    from dvrl.envs.config import AtariConfig

    dvrl, rnn = (preset("paper", agent, AtariConfig("Pong")) for agent in ("dvrl", "rnn"))
    assert dvrl.encoder == ParticleConfig(15, 256, 256, 128, batch_norm=True)
    assert rnn.encoder == GruConfig(256, 128, batch_norm=True)
    assert dvrl.policy.batch_norm
    assert rnn.policy == dvrl.policy
    assert (dvrl.learner.lr, rnn.learner.lr) == (2e-4, 1e-4)
    assert dvrl.learner.n_grad == rnn.learner.n_grad == 50
    assert dvrl.learner.elbo_weight == 0.1


@pytest.mark.parametrize(("width", "stride"), [(3, 1), (4, 2), (8, 4), (6, 2)])
def test_to_enlarge_is_to_convolve_transposed(width, stride, generator):
    layer = Enlarge(5, 3, width, stride).double()
    plain = nn.ConvTranspose2d(5, 3, width, stride).double()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 5, 7, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    out, expected = layer(x), plain(x)
    torch.testing.assert_close(out, expected)
    weight = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    got = torch.autograd.grad((out * weight).sum(), [x, layer.weight, layer.bias])
    wanted = torch.autograd.grad((expected * weight).sum(), [x, plain.weight, plain.bias])
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)
