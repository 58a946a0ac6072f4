"""The gradient window n_g apart from n_s, against graphs built by hand."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.func import functional_call

from camera import SPEC, Camera
from dvrl.agents.actor_critic import ActorCritic
from dvrl.core import losses, rows, tree
from dvrl.encoders.config import GruConfig, ParticleConfig
from dvrl.envs.config import MountainHikeConfig
from dvrl.envs.mountain_hike import MountainHike
from dvrl.learners.a2c import A2C
from dvrl.learners.config import A2CConfig
from dvrl.nets.spaces import Spec
from dvrl.rollout.segment import Carry, collect, start

ENCODERS = {
    "dvrl": ParticleConfig(n_particles=4, h_dim=8, z_dim=6, embed_dim=5),
    "dvrl-no-resampling": ParticleConfig(4, 8, 6, 5, resample="none"),
    "dvrl-multinomial-not-joint": ParticleConfig(4, 8, 6, 5, resample="multinomial", joint=False),
    "rnn": GruConfig(h_dim=8, embed_dim=5),
    "rnn-reconstructing": GruConfig(h_dim=8, embed_dim=5, reconstruct=True),
    "dvrl-normed": ParticleConfig(4, 8, 6, 5, batch_norm=True),
    "dvrl-normed-not-joint": ParticleConfig(4, 8, 6, 5, batch_norm=True, joint=False),
    "dvrl-images": ParticleConfig(4, 8, 6, 5, batch_norm=True),
    "rnn-normed": GruConfig(h_dim=8, embed_dim=5, batch_norm=True),
    "rnn-images": GruConfig(h_dim=8, embed_dim=5, batch_norm=True),
}
AGES = torch.tensor([71, 68, 74])
"""Steps already walked at the start: episodes end in the middle of segments."""
WAYS = ["recorded", "step by step"]
"""How gradients are made: segments derived at once, or autograd through every step."""
every_way = pytest.mark.parametrize("way", WAYS)
LEARNER = A2CConfig(n_envs=3, n_steps=4, n_grad=12, lr=0.0, clip_norm=1e9, reward_scale=0.1)


class Recorder(A2C):
    """Keeps the gradient of every update."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.gradients: list[list[torch.Tensor]] = []
        step = self.optimiser.step

        def note_and_step(gradient):
            parts = rows.part(gradient, self.optimiser.shapes)
            given = {id(p): g for p, g in zip(self.parameters, parts, strict=True)}
            self.gradients.append([given[id(p)] for p in self.agent.parameters()])
            return step(gradient)

        self.optimiser.step = note_and_step


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make(name: str, learner: A2CConfig, way: str = "step by step") -> Recorder:
    encoder = ENCODERS[name]
    spec = SPEC if "images" in name else Spec.from_spaces(*MountainHikeConfig().spaces())
    torch.manual_seed(1)
    built = encoder.build(spec)
    agent = ActorCritic(built, spec.policy(built.feature_dim, 1.0, None), encoder.batch_norm)
    worlds = (Camera if "images" in name else MountainHike)(learner.n_envs, 1.0, 2)
    if way == "step by step":
        agent.encoder.recorder = lambda: None
    made = Recorder(learner, agent, worlds, torch.Generator().manual_seed(3))
    if way == "step by step":
        assert made.recorder is None
    elif learner.window == "clones" and name != "dvrl-no-resampling":
        assert made.recorder is not None
    return made


def begin(learner: Recorder) -> Carry:
    carry = start(learner.agent, learner.worlds)
    learner.worlds.restore(learner.worlds.state() | {"age": AGES})
    return carry


def windows(learner: Recorder, n: int) -> list[list[torch.Tensor]]:
    carry = begin(learner)
    for _ in range(n):
        carry, _, _ = learner.window(carry)
    return learner.gradients


def by_hand(learner: Recorder, n_segments: int, cut) -> list[list[torch.Tensor]]:
    """The same segments on the bare parameters; `cut(i)` says whether segment i starts detached."""
    act = partial(learner.agent, generator=learner.generator)
    carry, gradients = begin(learner), []
    for i in range(n_segments):
        carry = tree.detach(carry) if cut(i) else carry
        segment, carry = collect(learner.agent, act, learner.worlds, carry, 4, False)
        total = losses.combine(learner.terms(segment), learner.config.weights)
        gradients.append(
            list(torch.autograd.grad(total, list(learner.agent.parameters()), retain_graph=True))
        )
    return gradients


def assert_same(one, two, rtol=1e-9):
    """A bias in front of a normalisation has gradient zero, and what rounding leaves of it is as
    large as the others let it be."""
    assert len(one) == len(two)
    for a_update, b_update in zip(one, two, strict=True):
        largest = max(1.0, *(float(b.abs().max()) for b in b_update))
        for a, b in zip(a_update, b_update, strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=1e-12 * largest)


def differ(one, two) -> bool:
    return any(not torch.allclose(a, b, rtol=1e-3) for a, b in zip(one, two, strict=True))


@every_way
@pytest.mark.parametrize("window", ["clones", "stale"])
@pytest.mark.parametrize("name", ENCODERS)
def test_with_learning_rate_zero_the_window_is_one_full_graph(name, window, way):
    config = replace(LEARNER, window=window)
    got = windows(make(name, config, way), 1)
    want = by_hand(make(name, config), 3, cut=lambda i: False)
    assert_same(got, want)


@every_way
@pytest.mark.parametrize("name", ENCODERS)
def test_a_window_as_long_as_a_segment_is_the_cut_graph(name, way):
    config = replace(LEARNER, n_grad=4)
    got = windows(make(name, config, way), 3)
    want = by_hand(make(name, config), 3, cut=lambda i: True)
    assert_same(got, want)


@every_way
@pytest.mark.parametrize("name", ENCODERS)
def test_the_gradient_ends_where_the_window_closes_and_nowhere_else(name, way):
    got = windows(make(name, LEARNER, way), 2)
    want = by_hand(make(name, LEARNER), 6, cut=lambda i: i == 3)
    full = by_hand(make(name, LEARNER), 6, cut=lambda i: False)
    assert_same(got, want)
    assert differ(got[3], full[3])


@every_way
@pytest.mark.parametrize("name", ENCODERS)
def test_a_moving_window_sums_the_gradients_at_each_segments_own_parameters(name, way):
    """With clones, update 2 is d L_2 / d theta_1 at theta_1 plus d L_2 / d theta_2 at theta_2."""
    config = replace(LEARNER, lr=0.01, n_grad=8)
    learner = make(name, config, way)
    first = {k: p.detach().clone().requires_grad_() for k, p in learner.agent.named_parameters()}
    carry = begin(learner)
    learner.open()
    carry, _, _ = learner.update(carry, retain_graph=True)
    second = {k: p.detach().clone().requires_grad_() for k, p in learner.agent.named_parameters()}
    assert differ(list(first.values()), list(second.values()))
    learner.update(carry, retain_graph=False)

    other = make(name, config)
    carry = begin(other)
    for parameters in (first, second):

        def act(*inputs, parameters=parameters):
            return functional_call(other.agent, parameters, inputs, {"generator": other.generator})

        segment, carry = collect(other.agent, act, other.worlds, carry, 4, False)
    total = losses.combine(other.terms(segment), config.weights)
    leaves = [*first.values(), *second.values()]
    grads = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    want = [a + b for a, b in zip(grads[: len(first)], grads[len(first) :], strict=True)]
    assert_same([learner.gradients[1]], [want])


@every_way
def test_stale_and_cloned_windows_part_once_the_weights_move(way):
    config = replace(LEARNER, lr=0.01)
    clones = windows(make("dvrl", config, way), 1)
    stale = windows(make("dvrl", replace(config, window="stale")), 1)
    assert_same(clones[:1], stale[:1])
    assert differ(clones[2], stale[2])


@every_way
def test_old_losses_are_not_kept_alive_by_an_open_window(way):
    """Neither through the belief a later update can reach, nor through what a window returns."""
    learner = make("dvrl", LEARNER, way)
    carry = begin(learner)
    learner.open()
    carry, _, _ = learner.update(carry, retain_graph=True)
    reached = carry.belief.h.sum() + 0 * carry.belief.log_w.sum()
    decoder = list(learner.agent.encoder.model._decoder.head.parameters())
    assert reached.requires_grad == (way == "step by step")
    if reached.requires_grad:
        gradients = torch.autograd.grad(reached, decoder, allow_unused=True)
        assert all(g is None for g in gradients)
    _, outcomes, metrics = learner.window(tree.detach(carry))
    kept = [t for outcome in outcomes for t in outcome] + list(metrics.values())
    assert not any(t.requires_grad for t in kept)


@every_way
@pytest.mark.parametrize("optimiser", ["rmsprop", "adam"])
def test_a_gradient_that_is_not_a_number_is_skipped_and_counted(optimiser, way):
    config = replace(LEARNER, lr=0.01, n_grad=4, optimiser=optimiser)
    learner = make("dvrl", config, way)
    carry = begin(learner)
    carry, _, metrics = learner.window(carry)
    assert metrics["skipped"] == 0
    before = [p.detach().clone() for p in learner.parameters]
    carry = carry._replace(o_t=torch.full_like(carry.o_t, torch.inf))
    _, _, metrics = learner.window(carry)
    assert metrics["belief/revived"] > 0
    assert metrics["skipped"] == 1
    assert_same([before], [[p.detach() for p in learner.parameters]])


@every_way
@pytest.mark.parametrize("name", ["dvrl-images", "rnn-images"])
def test_an_encoder_of_images_is_asked_for_no_gradient_it_could_not_give(name, way):
    """Every parameter but those whose gradient is zero by nature moves."""
    learner = make(name, LEARNER, way)
    windows(learner, 1)
    names = [n for n, _ in learner.agent.named_parameters()]
    largest = dict(zip(names, (g.abs().max().item() for g in learner.gradients[-1]), strict=True))
    still = {n for n, g in largest.items() if g < 1e-9}
    before_norm = {"embed_action.0.bias", *(f"embed_obs.layers.{i}.bias" for i in range(3))}
    decoder = {"model._decoder.first.bias", *(f"model._decoder.layers.{i}.bias" for i in range(2))}
    before = {"rnn-images": before_norm}.get(name)
    if before is None:
        before = {f"model.{n}" for n in before_norm} | decoder | {"model._proposal.bias"}
    assert still == {f"encoder.{n}" for n in before}
