"""The package against its one-file twin: same seeds, same weights, same numbers.

The twin (examples/one_file_dvrl.py) was written from the paper without the package's code. In
double precision the two may differ by rounding alone.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from dvrl.agents.config import PolicyConfig
from dvrl.core import losses, rows
from dvrl.encoders.config import ParticleConfig
from dvrl.encoders.particle_info import ParticleInfo
from dvrl.envs import mountain_hike
from dvrl.envs.config import MountainHikeConfig
from dvrl.experiments.presets import preset
from dvrl.learners.a2c import A2C
from dvrl.learners.config import A2CConfig
from dvrl.rollout.segment import start
from dvrl.runs.build import build_agent, parameter_count
from dvrl.runs.config import RunConfig

PATH = Path(__file__).parents[2] / "examples" / "one_file_dvrl.py"


def load_twin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_file_dvrl", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


twin = load_twin()

NAMES = {  # package -> twin; every entry has a weight and a bias
    "encoder.model.embed_obs.0": "embed_obs.0",
    "encoder.model.embed_obs.2": "embed_obs.2",
    "encoder.model.embed_action.0": "embed_action.0",
    "encoder.model.embed_latent.0": "embed_latent.0",
    "encoder.model._proposal": "proposal.joint.0",
    "encoder.model._proposal_head.mean": "proposal.mean",
    "encoder.model._proposal_head.var": "proposal.var",
    "encoder.model._prior": "prior.joint.0",
    "encoder.model._prior_head.mean": "prior.mean",
    "encoder.model._prior_head.var": "prior.var",
    "encoder.model._decoder.first": "decoder.joint.0",
    "encoder.model._decoder.hidden": "decoder.joint.2",
    "encoder.model._decoder.head.mean": "decoder.mean",
    "encoder.model._decoder.head.var": "decoder.var",
    "policy.mean": "policy_mean",
    "value": "value",
}
PARAMETERS = {
    f"{ours}.{kind}": f"{theirs}.{kind}"
    for ours, theirs in NAMES.items()
    for kind in ("weight", "bias")
}
for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
    PARAMETERS[f"encoder.model._transition.{part}"] = f"transition.{part}"
    PARAMETERS[f"encoder.summary.cell.{part}"] = f"summary.{part}"
PARAMETERS["policy.log_std"] = "policy_log_std"

SMALL = {"n_particles": 4, "h_dim": 6, "z_dim": 5, "embed_dim": 7}
AGES = (0, 72, 38)
"""Steps already walked at the start: the worlds meet their time limits at different steps."""
UPDATES = 18
"""90 steps: every world meets its time limit, the first one after a whole episode."""


@dataclass(frozen=True)
class Case:
    """The settings that differ between the tests."""

    n_grad: int
    mean_bound: float | None
    gamma: float
    reward_scale: float
    bootstrap_cuts: bool
    normalise_advantage: bool
    entropy_weight: float
    lr: float


PAPER = Case(
    n_grad=5,
    mean_bound=None,
    gamma=0.99,
    reward_scale=1.0,
    bootstrap_cuts=False,
    normalise_advantage=False,
    entropy_weight=0.01,
    lr=1e-4,
)
TUNED = Case(
    n_grad=5,
    mean_bound=0.6,
    gamma=0.95,
    reward_scale=0.1,
    bootstrap_cuts=True,
    normalise_advantage=True,
    entropy_weight=0.002,
    lr=3e-3,
)


class Record(NamedTuple):
    """One update: the terms of the loss (`T N`), their sum, and what the optimiser was given."""

    terms: dict[str, Tensor]
    total: Tensor
    weights: dict[str, Tensor]
    """Before the step."""
    gradients: dict[str, Tensor]
    """Before clipping."""


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def package_pieces(case: Case, seed: int, recorded: bool = True) -> A2C:
    settings = asdict(case)
    policy = PolicyConfig(mean_bound=settings.pop("mean_bound"))
    learner = A2CConfig(n_envs=len(AGES), n_steps=5, value_weight=0.7, elbo_weight=0.8, **settings)
    world = MountainHikeConfig(sigma=1.5)
    config = RunConfig(world, ParticleConfig(**SMALL), policy, learner, seed=seed)
    worlds = world.make(learner.n_envs, seed, torch.device("cpu"))
    agent = build_agent(config)
    if not recorded:
        agent.encoder.recorder = lambda: None
    made = A2C(learner, agent, worlds, torch.Generator().manual_seed(seed))
    assert (made.recorder is not None) == recorded
    return made


def twin_config(case: Case) -> Any:
    weights = {"value_weight": 0.7, "elbo_weight": 0.8}
    return twin.Config(sigma=1.5, n_envs=len(AGES), n_steps=5, **weights, **SMALL, **asdict(case))


def stir(agent: nn.Module) -> None:
    """Leave the first weights: zero biases and means far below the bound would hide mistakes."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in agent.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
        agent.policy.mean.weight.mul_(8.0)
        agent.encoder.model._decoder.head.var.bias.add_(30.0)  # wide: no particle takes all weight


def copy_weights(agent: nn.Module, other: nn.Module) -> None:
    """Weights of the package's agent into the twin's, none left out on either side."""
    ours, theirs = dict(agent.named_parameters()), dict(other.named_parameters())
    assert ours.keys() == PARAMETERS.keys()
    assert theirs.keys() == set(PARAMETERS.values())
    assert len(PARAMETERS) == len(set(PARAMETERS.values()))
    with torch.no_grad():
        for name, p in ours.items():
            assert p.shape == theirs[PARAMETERS[name]].shape, name
            theirs[PARAMETERS[name]].copy_(p)


def named(agent: nn.Module, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    names = [name for name, _ in agent.named_parameters()]
    return {name: t.detach().clone() for name, t in zip(names, tensors, strict=True)}


def run_package(learner: A2C) -> list[Record]:
    """UPDATES updates, window by window."""
    sums: list[tuple[dict[str, Tensor], Tensor]] = []
    combine = losses.combine

    def note_and_combine(terms, weights):
        total = combine(terms, weights)
        values = {name: term.detach().clone() for name, term in terms.items()}
        sums.append((values, total.detach()))
        return total

    agent, noted, step = learner.agent, [], learner.optimiser.step

    def note_and_step(gradient):
        parts = rows.part(gradient, learner.optimiser.shapes)
        given = {id(p): g for p, g in zip(learner.parameters, parts, strict=True)}
        in_order = [given[id(p)] for p in agent.parameters()]
        noted.append((named(agent, agent.parameters()), named(agent, in_order)))
        return step(gradient)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(learner.optimiser, "step", note_and_step)
        monkeypatch.setattr(losses, "combine", note_and_combine)
        carry = start(learner.agent, learner.worlds)
        learner.worlds.restore(learner.worlds.state() | {"age": torch.tensor(AGES)})
        for _ in range(UPDATES // learner.config.segments):
            carry, _, _ = learner.window(carry)
    assert len(sums) == len(noted) == UPDATES
    return [Record(*s, *n) for s, n in zip(sums, noted, strict=True)]


def run_twin(config: Any, agent: nn.Module, seed: int) -> list[Record]:
    """The same updates by the twin."""
    worlds = twin.MountainHike(config.n_envs, config.sigma, seed)
    worlds.age = torch.tensor(AGES)
    generator = torch.Generator().manual_seed(seed)
    names = ("policy", "entropy", "value", "elbo")
    sums, noted, clip = [], [], nn.utils.clip_grad_norm_

    def note_and_clip(parameters, max_norm):
        assert max_norm == 0.5
        gradients = [p.grad for p in agent.parameters()]
        noted.append((named(agent, agent.parameters()), named(agent, gradients)))
        return clip(parameters, max_norm)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(nn.utils, "clip_grad_norm_", note_and_clip)
        for terms, total in islice(twin.train(config, agent, worlds, generator), UPDATES):
            values = dict(zip(names, (term.detach() for term in terms), strict=True))
            sums.append((values, total.detach()))
    return [Record(*s, *n) for s, n in zip(sums, noted, strict=True)]


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], what: str) -> None:
    for name, tensor in ours.items():
        other = theirs[PARAMETERS.get(name, name)]
        torch.testing.assert_close(
            other, tensor, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{what}, {n}: {m}"
        )


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("n_grad", [5, 15])
@pytest.mark.parametrize("case", [PAPER, TUNED], ids=["paper", "tuned"])
def test_losses_gradients_and_weights_are_the_twins(case: Case, n_grad: int, recorded: bool):
    case, seed = replace(case, n_grad=n_grad), 3
    learner, config = package_pieces(case, seed, recorded), twin_config(case)
    other = twin.Agent(config)
    stir(learner.agent)
    copy_weights(learner.agent, other)
    ours, theirs = run_package(learner), run_twin(config, other, seed)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert_same(a.weights, b.weights, f"weights before update {i}")
        assert_same(a.terms, b.terms, f"loss of update {i}")
        assert_same({"total": a.total}, {"total": b.total}, f"loss of update {i}")
        assert_same(a.gradients, b.gradients, f"gradient of update {i}")
    final = [{n: p.detach() for n, p in m.named_parameters()} for m in (learner.agent, other)]
    assert_same(*final, "weights at the end")


def test_the_comparison_meets_time_limits_resampling_bound_and_clip():
    """Guards the test above: where it never went it would prove nothing."""
    learner = package_pieces(replace(TUNED, n_grad=15), seed=3)
    stir(learner.agent)
    means, infos, cuts = [], [], []
    learner.agent.policy.mean.register_forward_hook(
        lambda _, __, mean: means.append(mean.flatten(0, -2))
    )
    step, experience = learner.worlds.step, learner.experience

    def step_and_note(action, **idle):
        result = step(action, **idle)
        cuts.append(result.truncated)
        return result

    def experience_and_note(carry):
        segment, carry = experience(carry)
        infos.extend(segment.infos)
        return segment, carry

    learner.worlds.step, learner.experience = step_and_note, experience_and_note
    records = run_package(learner)
    assert torch.stack(cuts).sum(0).tolist() == [1, 2, 1]
    assert 0.1 < (torch.cat(means).norm(dim=-1) > TUNED.mean_bound).double().mean() < 0.9
    seen = ParticleInfo.metrics(infos)
    assert 1.5 < seen["belief/ess"] < 3.5
    assert 1.5 < seen["belief/distinct_ancestors"] < 3.5
    assert all(sum(g.square().sum() for g in r.gradients.values()) > 0.5**2 for r in records)


def test_the_twin_stands_alone():
    names = set()
    for node in ast.walk(ast.parse(PATH.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names <= {"torch", "numpy"}


def test_both_have_the_papers_number_of_parameters():
    ours = build_agent(preset("paper", "dvrl", MountainHikeConfig()))
    theirs = twin.Agent(twin.Config(n_particles=30, h_dim=128, z_dim=128, embed_dim=64))
    assert parameter_count(ours) == sum(p.numel() for p in theirs.parameters()) == 466_889


def test_first_weights_follow_the_same_laws():
    """Orthogonal matrices are known by their singular values, the summary's by their range."""
    torch.manual_seed(0)
    config = preset("quick", "dvrl", MountainHikeConfig())
    ours = dict(build_agent(config).named_parameters())
    theirs = dict(twin.Agent(twin.Config()).named_parameters())
    assert ours.keys() == PARAMETERS.keys()
    for name, p in ours.items():
        a, b = p.detach(), theirs[PARAMETERS[name]].detach()
        if name.startswith("encoder.summary"):
            limit = config.encoder.h_dim**-0.5
            for w in (a, b):
                assert 0.9 * limit < w.abs().max() <= limit
        elif a.ndim == 2:
            torch.testing.assert_close(torch.linalg.svdvals(b), torch.linalg.svdvals(a), msg=name)
        else:
            assert (a == 0).all(), name
            assert (b == 0).all(), name


def test_the_twins_settings_are_those_of_the_quick_preset():
    quick = preset("quick", "dvrl", MountainHikeConfig())
    settings: dict[str, Any] = {}
    for part in (quick.world, quick.encoder, quick.policy, quick.learner):
        settings |= asdict(part)
    theirs = asdict(twin.Config())
    assert theirs == {name: settings[name] for name in theirs}


def test_the_twins_reward_map_has_the_known_values():
    """Values computed by hand from the published environment's formula."""
    known = {
        (-8.5, -8.5): -4.91387,
        (5.0, 5.0): -0.27934,
        (0.0, 2.0): -0.59206,
        (-3.75, -5.0): -1.27606,
        (8.11, 5.06): -0.23222,
        (-10.0, -10.0): -5.0,
        (10.1, 0.0): -6.0,
    }
    rewards = twin.reward_map(torch.tensor(list(known)))
    assert torch.allclose(rewards, torch.tensor(list(known.values())), rtol=0, atol=2e-5)


def test_reward_maps_agree_inside_and_outside_the_box(generator):
    position = 8 * torch.randn(2_000, 2, generator=generator)
    ours, theirs = mountain_hike.reward_map(position), twin.reward_map(position)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
