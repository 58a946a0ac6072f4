"""What every history encoder promises, asked of each of them."""

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dvrl.core import smc, tree
from dvrl.encoders.base import BeliefEncoder, Update
from dvrl.encoders.config import EncoderConfig, GruConfig, ParticleConfig
from dvrl.encoders.particle import ParticleEncoder
from dvrl.nets.spaces import Spec

N, OBS, ACTIONS = 4, 3, 2
SIZES = {"h_dim": 6, "embed_dim": 5}
PARTICLES = SIZES | {"z_dim": 4, "n_particles": 7}
HEADS = ("mean.weight", "mean.bias", "var.weight", "var.bias")
LAYER = ("weight", "bias")

PRIOR = {f"model._prior.{p}" for p in LAYER} | {f"model._prior_head.{p}" for p in HEADS}
DECODER = {f"model._decoder.first.{p}" for p in LAYER} | {f"model._decoder.head.{p}" for p in HEADS}
DECODER |= {f"model._decoder.hidden.{p}" for p in LAYER}
SUMMARY = {f"summary.cell.{p}" for p in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
LONELY = "summary.cell.weight_hh"
"""Acts on the summary of the particles before: a single particle has none before it."""


class Case(NamedTuple):
    config: EncoderConfig
    unmoved_by_feature: set[str] | None = None
    """Parameters that the feature's gradient does not reach; None: all but the summary."""
    unmoved_by_loss: set[str] | None = SUMMARY
    """Parameters that the encoder's own loss does not reach; None: all."""


RECONSTRUCTION = {f"reconstruction.{i}.{p}" for i in ("first", "hidden") for p in LAYER}
RECONSTRUCTION |= {f"reconstruction.head.{p}" for p in HEADS}
CASES = {
    "systematic": Case(ParticleConfig(**PARTICLES), set()),
    "stratified": Case(ParticleConfig(**PARTICLES, resample="stratified"), set()),
    "multinomial": Case(ParticleConfig(**PARTICLES, resample="multinomial"), set()),
    "no resampling": Case(ParticleConfig(**PARTICLES, resample="none"), set()),
    "one particle": Case(  # its normalised weight is 1, whatever prior and decoder say
        ParticleConfig(**PARTICLES | {"n_particles": 1}), PRIOR | DECODER | {LONELY}
    ),
    "hundred particles": Case(ParticleConfig(**PARTICLES | {"n_particles": 100}), set()),
    "not joint": Case(ParticleConfig(**PARTICLES, joint=False), None),
    "gru": Case(GruConfig(**SIZES), set(), None),
    "gru, reconstructing": Case(GruConfig(**SIZES, reconstruct=True), RECONSTRUCTION, set()),
}

every_encoder = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
particle_encoders = pytest.mark.parametrize(
    "case",
    [c for c in CASES.values() if isinstance(c.config, ParticleConfig)],
    ids=[n for n, c in CASES.items() if isinstance(c.config, ParticleConfig)],
)


def build(case: Case) -> BeliefEncoder:
    torch.manual_seed(0)
    return case.config.build(Spec((OBS,), ACTIONS, discrete=False))


def history(length: int, n: int = N) -> list[tuple[Tensor, Tensor]]:
    """Actions and observations of `length` steps."""
    chance = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(n, ACTIONS, generator=chance),
            2 * torch.randn(n, OBS, generator=chance),
        )
        for _ in range(length)
    ]


def chance(seed: int = 2) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(encoder: BeliefEncoder, steps: list, seed: int = 2) -> list[Update]:
    generator, belief, updates = chance(seed), encoder.initial(len(steps[0][0])), []
    for a_tm1, o_t in steps:
        updates.append(encoder.update(belief, a_tm1, o_t, generator))
        belief = updates[-1].belief
    return updates


def equal(one: tuple, other: tuple) -> bool:
    a, b = tree.named_leaves(one, "x"), tree.named_leaves(other, "x")
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# The beginning


@every_encoder
def test_the_first_belief_is_the_same_for_all_environments_and_every_time(case):
    encoder = build(case)
    belief = encoder.initial(N)
    assert equal(belief, encoder.initial(N))
    for leaf in belief:
        assert leaf.shape[0] == N
        assert not leaf.requires_grad
        assert (leaf == leaf[:1]).all()
    assert equal(encoder.initial(1), tree.tree_map(lambda leaf: leaf[:1], belief))


@every_encoder
def test_the_first_belief_lives_where_the_parameters_live(case):
    belief = build(case).double().initial(N)
    assert {leaf.dtype for leaf in belief} == {torch.float64}


@particle_encoders
def test_particles_begin_at_zero_with_equal_weights(case):
    belief = build(case).initial(N)
    assert belief.h.shape == (N, case.config.n_particles, 6)
    assert belief.log_w.shape == (N, case.config.n_particles)
    assert not belief.h.any()
    assert not belief.log_w.any()


# The update


@every_encoder
def test_feature_loss_and_belief_are_finite_and_keep_their_shapes(case):
    encoder = build(case)
    shapes = [leaf.shape for leaf in encoder.initial(N)]
    for update in run(encoder, history(20)):
        assert update.feature.shape == (N, encoder.feature_dim)
        assert update.loss.shape == (N,)
        assert type(update.belief) is type(encoder.initial(N))
        assert [leaf.shape for leaf in update.belief] == shapes
        assert all(leaf.isfinite().all() for leaf in update.belief)
        assert update.feature.isfinite().all()
        assert update.loss.isfinite().all()


@every_encoder
def test_the_update_leaves_the_belief_it_was_given_as_it_was(case):
    encoder = build(case)
    before = run(encoder, history(2))[-1].belief
    copy = tree.tree_map(Tensor.clone, before)
    encoder.update(before, *history(1)[0], chance())
    assert equal(before, copy)


@every_encoder
def test_the_same_chance_gives_the_same_update(case):
    encoder = build(case)
    for one, other in zip(run(encoder, history(3)), run(encoder, history(3)), strict=True):
        assert equal(one.belief, other.belief)
        assert torch.equal(one.feature, other.feature)
        assert torch.equal(one.loss, other.loss)


@every_encoder
def test_chance_comes_from_the_generator_alone(case):
    encoder, generator = build(case), chance()
    before, outside = generator.get_state(), torch.get_rng_state()
    encoder.update(encoder.initial(N), *history(1)[0], generator)
    assert torch.equal(torch.get_rng_state(), outside)
    stochastic = isinstance(encoder, ParticleEncoder)
    assert torch.equal(generator.get_state(), before) == (not stochastic)
    one, other = run(encoder, history(1), seed=3)[0], run(encoder, history(1), seed=4)[0]
    assert torch.equal(one.feature, other.feature) == (not stochastic)


@every_encoder
def test_history_beyond_the_last_observation_is_remembered(case):
    encoder, steps = build(case), history(2)
    other = [(steps[0][0], steps[0][1] + 1), steps[1]]
    assert not torch.allclose(run(encoder, steps)[1].feature, run(encoder, other)[1].feature)


@every_encoder
@pytest.mark.parametrize("which", ["action", "observation"])
def test_what_one_environment_does_and_sees_changes_no_other(case, which):
    encoder, steps = build(case), history(3)
    changed = [(a.clone(), o.clone()) for a, o in steps]
    for a_tm1, o_t in changed:
        (a_tm1 if which == "action" else o_t)[1] += 5
    others = torch.arange(N) != 1
    for one, other in zip(run(encoder, steps), run(encoder, changed), strict=True):
        for mine, theirs in [
            *zip(one.belief, other.belief, strict=True),
            *zip(one.info, other.info, strict=True),
            (one.feature, other.feature),
            (one.loss, other.loss),
        ]:
            assert torch.equal(mine[others], theirs[others])
        assert not torch.equal(one.feature[1], other.feature[1])


@every_encoder
def test_the_gradient_of_one_environment_reaches_no_other(case):
    encoder = build(case)
    steps = [(a.requires_grad_(), o.requires_grad_()) for a, o in history(3)]
    last = run(encoder, steps)[-1]
    (last.feature[1].sum() + last.loss[1]).backward()
    others = torch.arange(N) != 1
    grads = [leaf.grad for step in steps for leaf in step if leaf.grad is not None]
    assert not any(grad[others].any() for grad in grads)
    assert any(grad[1].any() for grad in grads)


# The belief as a record


@every_encoder
def test_a_belief_can_be_chosen_row_by_row(case):
    encoder = build(case)
    fresh, used = encoder.initial(N), run(encoder, history(2))[-1].belief
    rows = torch.tensor([True, False, False, True])
    mixed = tree.where(rows, fresh, used)
    assert type(mixed) is type(fresh)
    for new, old, leaf in zip(fresh, used, mixed, strict=True):
        assert torch.equal(leaf[rows], new[rows])
        assert torch.equal(leaf[~rows], old[~rows])


@every_encoder
def test_beliefs_stack_along_time_and_come_apart_again(case):
    beliefs = [update.belief for update in run(build(case), history(3))]
    stacked = tree.tree_map(lambda *leaves: torch.stack(leaves), *beliefs)
    assert type(stacked) is type(beliefs[0])
    for t, belief in enumerate(beliefs):
        assert equal(tree.at(stacked, t), belief)


@every_encoder
def test_a_detached_belief_has_the_same_values_and_no_history(case):
    belief = run(build(case), history(2))[-1].belief
    detached = tree.detach(belief)
    assert type(detached) is type(belief)
    assert equal(detached, belief)
    assert any(leaf.requires_grad for leaf in belief)
    assert not any(leaf.requires_grad for leaf in detached)


@every_encoder
def test_a_belief_comes_back_from_its_named_leaves(case):
    encoder = build(case)
    belief = tree.detach(run(encoder, history(2))[-1].belief)
    named = tree.named_leaves(belief, "carry.belief")
    assert set(named) == {f"carry.belief.{field}" for field in belief._fields}
    back = tree.from_named_leaves(encoder.initial(N), named, "carry.belief")
    assert type(back) is type(belief)
    assert equal(back, belief)


# Gradients


def reached(encoder: BeliefEncoder, loss: Tensor) -> set[str]:
    """Names of the parameters to which the gradient of `loss` is not zero."""
    encoder.zero_grad()
    if loss.requires_grad:
        loss.backward()
    return {n for n, p in encoder.named_parameters() if p.grad is not None and p.grad.any()}


def names(encoder: BeliefEncoder) -> set[str]:
    return {name for name, _ in encoder.named_parameters()}


@every_encoder
def test_the_features_gradient_reaches_every_parameter_it_should(case):
    encoder = build(case)
    feature = sum(update.feature.square().sum() for update in run(encoder, history(3)))
    unmoved = case.unmoved_by_feature
    expected = SUMMARY if unmoved is None else names(encoder) - unmoved
    assert reached(encoder, feature) == expected


@every_encoder
def test_the_losss_gradient_reaches_every_parameter_it_should(case):
    encoder = build(case)
    loss = sum(update.loss.sum() for update in run(encoder, history(3)))
    unmoved = case.unmoved_by_loss
    expected = set() if unmoved is None else names(encoder) - unmoved
    assert reached(encoder, loss) == expected


@every_encoder
def test_together_loss_and_feature_reach_every_parameter(case):
    encoder = build(case)
    total = sum(u.feature.square().sum() + u.loss.sum() for u in run(encoder, history(3)))
    exceptions = {LONELY} if getattr(case.config, "n_particles", 2) == 1 else set()
    assert reached(encoder, total) == names(encoder) - exceptions


def gradient(of: Tensor, to: Tensor) -> Tensor:
    """Zero where there is no path."""
    if not of.requires_grad:
        return torch.zeros_like(to)
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    return torch.autograd.grad(of.sum(), to, **options)[0]


@every_encoder
def test_gradients_reach_back_through_the_carried_belief(case):
    encoder, steps = build(case), history(3)
    o_0 = steps[0][1].requires_grad_()
    last = run(encoder, steps)[-1]
    assert gradient(last.feature, o_0).any() == (case.unmoved_by_feature is not None)
    assert gradient(last.loss, o_0).any() == (case.unmoved_by_loss is not None)


@every_encoder
def test_no_gradient_passes_a_detached_belief(case):
    encoder, (first, second) = build(case), history(2)
    o_0 = first[1].requires_grad_()
    belief = tree.detach(run(encoder, [first])[0].belief)
    update = encoder.update(belief, *second, chance())
    assert not gradient(update.feature, o_0).any()
    assert not gradient(update.loss, o_0).any()


# Looking inside


@every_encoder
def test_what_is_looked_at_carries_no_gradient(case):
    for update in run(build(case), history(2)):
        assert not any(leaf.requires_grad for leaf in update.info)
        assert all(leaf.shape[0] == N for leaf in update.info)


@every_encoder
def test_looking_changes_nothing(case):
    encoder = build(case)
    grads = []
    for look in (False, True):
        encoder.zero_grad()
        updates = run(encoder, history(3))
        if look:
            metrics = type(updates[0].info).metrics([update.info for update in updates])
            assert all(value.ndim == 0 and value.isfinite() for value in metrics.values())
        else:
            updates = [update._replace(info=None) for update in updates]
        sum(u.feature.square().sum() + u.loss.sum() for u in updates).backward()
        grads.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None])
    assert all(map(torch.equal, *grads))


# What one of them promises besides


def test_a_reconstruction_is_judged_before_the_observation_is_seen():
    encoder = build(CASES["gru, reconstructing"]).double()
    steps = [(a.double(), o.double()) for a, o in history(2)]
    belief = run(encoder, steps)[-1].belief
    a_tm1, step = steps[0][0], torch.ones(N, OBS, dtype=torch.float64)

    def bend(o_t: Tensor) -> Tensor:
        """Second difference: 1 / variance if the law that judges does not know `o_t`."""
        low, middle, high = (
            encoder.update(belief, a_tm1, o, chance()).loss for o in (o_t - step, o_t, o_t + step)
        )
        return high - 2 * middle + low

    assert torch.allclose(bend(steps[0][1]), bend(steps[1][1] + 3))
    assert (bend(steps[0][1]) > 0).all()


# What particles promise besides


@particle_encoders
def test_the_loss_is_minus_the_log_of_the_mean_weight(case):
    for update in run(build(case), history(3)):
        expected = -smc.log_mean_exp(update.info.log_w)
        assert torch.allclose(update.loss, expected)
        assert torch.equal(update.belief.log_w, update.info.log_w)
        assert not update.info.vanished.any()


@particle_encoders
def test_a_weight_is_prior_times_decoder_by_proposal(case):
    shares = torch.zeros(N, case.config.n_particles)
    for update in run(build(case), history(3)):
        info = update.info
        expected = info.log_prior + info.log_decoder - info.log_proposal
        if case.config.resample == "none":  # each keeps its share of the weight before
            expected = expected + shares
            shares = update.belief.log_w - smc.log_mean_exp(update.belief.log_w)[:, None]
        assert torch.allclose(info.log_w, expected, atol=1e-4)


def test_without_resampling_the_evidence_of_the_steps_telescopes_to_that_of_the_trajectory():
    encoder = build(CASES["no resampling"])
    updates = run(encoder, history(5))
    step_weights = [u.info.log_prior + u.info.log_decoder - u.info.log_proposal for u in updates]
    whole = smc.log_mean_exp(sum(step_weights))
    assert torch.allclose(-sum(u.loss for u in updates), whole, rtol=1e-4)
    assert all((u.info.ancestors == torch.arange(7)).all() for u in updates)


@particle_encoders
def test_ancestors_are_particles_of_the_own_environment_drawn_by_weight(case):
    k = case.config.n_particles
    updates = run(build(case), history(4))
    for before, after in itertools.pairwise(updates):
        ancestors = after.info.ancestors
        assert ((ancestors >= 0) & (ancestors < k)).all()
        if case.config.resample == "systematic":
            share = k * before.belief.log_w.softmax(-1)
            offspring = torch.stack([(ancestors == i).sum(-1) for i in range(k)], -1)
            assert ((offspring - share).abs() < 1 + 1e-3).all()


@particle_encoders
def test_metrics_of_the_weights_stay_in_their_ranges(case):
    k = case.config.n_particles
    infos = [update.info for update in run(build(case), history(5))]
    metrics = type(infos[0]).metrics(infos)
    assert 1 - 1e-4 <= metrics["belief/ess"] <= k + 1e-4
    assert 1 <= metrics["belief/distinct_ancestors"] <= k
    assert -1e-4 <= metrics["belief/weight_entropy"] <= math.log(k) + 1e-4
    assert metrics["belief/revived"] == 0
