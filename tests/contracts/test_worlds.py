"""What every world promises the rollout, asked of each of them."""

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from dvrl.encoders.config import GruConfig
from dvrl.envs.config import AtariConfig, GymConfig, MountainHikeConfig, WorldConfig
from dvrl.envs.mountain_hike import START, cap
from dvrl.envs.worlds import HostWorlds, Step, Worlds
from dvrl.learners.config import A2CConfig
from dvrl.nets.spaces import Spec
from dvrl.runs.config import RunConfig
from dvrl.runs.trainer import Trainer

N = 3
WORLDS = [
    MountainHikeConfig(sigma=3.0),
    MountainHikeConfig(sigma=0.0),
    GymConfig("CartPole-v1"),
    GymConfig("Pendulum-v1"),
    GymConfig("dvrl/MountainHike-v0"),
]
GAME = AtariConfig("Pong", flicker=0.0, max_frames=400)
"""Without flicker, which would make all observations differ; a game of a hundred decisions."""
LONGEST = 200
"""No episode of these worlds is longer under random actions."""
SOON = 30
"""By then one can see whether two episodes are the same; Pong's first screens all look alike."""

with_emulator = pytest.mark.skipif(find_spec("ale_py") is None, reason="needs ale_py")
every_world = pytest.mark.parametrize(
    "config", [*WORLDS, pytest.param(GAME, marks=with_emulator)], ids=lambda config: config.name
)


def make(config: WorldConfig, seed: int = 0) -> Worlds:
    return config.make(N, seed, torch.device("cpu"))


def actions(config: WorldConfig, seed: int = 0) -> Callable[[], Tensor]:
    """Random actions that fit the world."""
    spec, chance = Spec.from_spaces(*config.spaces()), torch.Generator().manual_seed(seed)
    if spec.discrete:
        return lambda: torch.randint(spec.action_dim, (N,), generator=chance)
    return lambda: torch.randn(N, spec.action_dim, generator=chance)


def walk(worlds: Worlds, config: WorldConfig, length: int, seed: int = 0) -> list[Step]:
    act = actions(config, seed)
    return [worlds.step(act()) for _ in range(length)]


def same(one: list[Step], other: list[Step]) -> bool:
    return all(all(map(torch.equal, a, b)) for a, b in zip(one, other, strict=True))


@every_world
def test_observations_are_one_real_vector_or_image_per_environment(config):
    spec = Spec.from_spaces(*config.spaces())
    worlds = make(config)
    assert worlds.n == N
    first = worlds.reset()
    assert first.shape == (N, *spec.obs_shape)
    assert first.dtype == torch.float32
    for step in walk(worlds, config, LONGEST + 5):
        assert step.obs.shape == step.final_obs.shape == (N, *spec.obs_shape)
        assert step.reward.shape == step.terminated.shape == step.truncated.shape == (N,)
        assert step.obs.dtype == step.reward.dtype == torch.float32
        assert step.terminated.dtype == step.truncated.dtype == torch.bool
        assert all(leaf.isfinite().all() for leaf in step)


@every_world
def test_every_episode_ends_and_the_worlds_go_on(config):
    worlds = make(config)
    worlds.reset()
    steps = walk(worlds, config, 2 * LONGEST)
    ended = torch.stack([step.terminated | step.truncated for step in steps])
    assert (ended.sum(0) >= 2).all()


@every_world
def test_only_where_an_episode_ended_is_there_another_last_observation(config):
    worlds = make(config)
    worlds.reset()
    for step in walk(worlds, config, LONGEST + 5):
        ended = step.terminated | step.truncated
        last = worlds.seen(step.final_obs) if isinstance(worlds, HostWorlds) else step.final_obs
        differs = (last != step.obs).flatten(1).any(-1)
        assert torch.equal(differs, ended)


@every_world
def test_somebody_looks_exactly_when_an_episode_was_cut(config):
    worlds, act = make(config), actions(config)
    worlds.reset()
    for _ in range(LONGEST + 5):
        step = worlds.step(act())
        looked = worlds.if_cut(lambda last: torch.ones(N), step.final_obs)
        assert (looked is not None) == bool((step.truncated & ~step.terminated).any())


@every_world
def test_one_seed_and_one_course_of_action_give_one_course_of_the_world(config):
    one, other, third = make(config), make(config), make(config, seed=1000)
    assert torch.equal(one.reset(), other.reset())
    third.reset()
    first = walk(one, config, LONGEST + 5)
    assert same(first, walk(other, config, LONGEST + 5))
    assert not torch.equal(first[0].obs, walk(third, config, 1)[0].obs)


@every_world
def test_environments_of_one_batch_differ(config):
    worlds, act = make(config), actions(config)
    seen = [worlds.reset()]
    for _ in range(SOON):
        seen.append(worlds.step(act()[:1].repeat_interleave(N, 0)).obs)
    assert len({row.numpy().tobytes() for row in torch.stack(seen, 1)}) == N


@every_world
def test_actions_are_only_read(config):
    worlds, action = make(config), actions(config)()
    worlds.reset()
    if action.is_floating_point():
        action *= 100  # beyond every bound
    before = action.clone()
    worlds.step(action)
    assert torch.equal(action, before)


@every_world
def test_what_was_handed_out_does_not_change_later(config):
    worlds, act = make(config), actions(config)
    handed = [worlds.reset()]
    for _ in range(10):
        handed += worlds.step(act())
    copies = [leaf.clone() for leaf in handed]
    walk(worlds, config, 20)
    assert all(map(torch.equal, handed, copies))


@every_world
def test_the_state_is_named_tensors(config):
    worlds = make(config)
    worlds.reset()
    walk(worlds, config, 3)
    state = worlds.state()
    assert state
    assert all(isinstance(value, Tensor) for value in state.values())


@every_world
def test_restored_worlds_go_on_where_they_can_and_begin_anew_where_they_cannot(config):
    worlds = make(config)
    first = [worlds.reset(), *(step.obs for step in walk(worlds, config, SOON))]
    state = {name: value.clone() for name, value in worlds.state().items()}
    again = make(config, seed=0)
    again.restore(state)
    if worlds.exact_resume:
        assert same(walk(worlds, config, 90, seed=1), walk(again, config, 90, seed=1))
    else:
        anew = [again.reset(), *(step.obs for step in walk(again, config, SOON))]
        alike = torch.stack([(a == b).flatten(1).all(1) for a, b in zip(anew, first, strict=True)])
        assert not alike.all(0).any()  # new episodes, not the old ones once more


# Chance


def crossed(one: list[Tensor], other: list[Tensor]) -> Tensor:
    """The largest correlation between noise of one list and noise of the other."""
    a, b = (torch.stack([noise.flatten() for noise in noises]) for noises in (one, other))
    return torch.corrcoef(torch.cat([a, b]))[: len(a), len(a) :].abs().max()


def test_in_a_run_the_agents_chance_is_not_the_worlds_chance():
    n, length = 300, 6
    learner = A2CConfig(n_envs=n)
    trainer = Trainer(
        RunConfig(encoder=GruConfig(h_dim=8, embed_dim=8), learner=learner, seed=0),
        torch.device("cpu"),
    )
    worlds, carry = trainer.worlds, trainer.engine.carry
    shaken, explored = [worlds.position - torch.tensor(START)], []
    with torch.no_grad():
        belief, a_tm1, o_t = carry.belief, carry.a_tm1, carry.o_t
        for _ in range(length):
            shaken.append(o_t - worlds.position)
            decision = trainer.agent(belief, a_tm1, o_t, trainer.generator)
            before = worlds.position
            o_t = worlds.step(decision.action).obs
            shaken.append(worlds.position - before - cap(decision.action))
            explored.append(decision.action)
            belief, a_tm1 = decision.belief, decision.a_t
    assert crossed(explored, shaken) < 5 / (2 * n) ** 0.5
