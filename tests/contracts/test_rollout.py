"""Agents meet worlds: what a segment holds, with every kind of action and of belief."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from dvrl.agents.actor_critic import ActorCritic
from dvrl.core import tree
from dvrl.encoders.config import EncoderConfig, GruConfig, ParticleConfig
from dvrl.envs.config import GymConfig, MountainHikeConfig
from dvrl.envs.worlds import Step, nothing
from dvrl.nets.spaces import Spec
from dvrl.rollout.segment import Act, Carry, Segment, begin, collect, start

N = 4
GRU = GruConfig(h_dim=6, embed_dim=5)
PARTICLES = ParticleConfig(n_particles=5, h_dim=6, z_dim=4, embed_dim=5)
ENCODERS = {"gru": GRU, "particles": PARTICLES}
WORLDS = {
    "continuous": MountainHikeConfig(sigma=3.0),
    "discrete": GymConfig("CartPole-v1"),
    "bounded": GymConfig("Pendulum-v1"),
}

every_encoder = pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
every_kind_of_action = pytest.mark.parametrize("discrete", [False, True])


def build(encoder: EncoderConfig, spec: Spec) -> ActorCritic:
    torch.manual_seed(0)
    built = encoder.build(spec)
    return ActorCritic(built, spec.policy(built.feature_dim, 1.0, None))


def acting(agent: ActorCritic, greedy: bool = False) -> Act:
    generator = torch.Generator().manual_seed(1)
    return partial(agent, generator=generator, greedy=greedy)


class Scripted:
    """A world that ends when its script says so; observations are given, actions are noted."""

    n = N
    exact_resume = False

    def __init__(self, terminated: Sequence[str], truncated: Sequence[str]) -> None:
        """One string per environment, one letter per step, `x` where the episode ends."""
        self.terminated, self.truncated = (
            torch.tensor([[letter == "x" for letter in row] for row in script]).T
            for script in (terminated, truncated)
        )
        length, chance = len(terminated[0]), torch.Generator().manual_seed(2)
        self.seen = torch.randn(length + 1, N, 3, generator=chance)
        last = torch.randn(length, N, 3, generator=chance)
        ended = (self.terminated | self.truncated)[..., None]
        self.final = torch.where(ended, last, self.seen[1:])
        self.rewards = torch.randn(length, N, generator=chance)
        self.t = 0
        self.cut = False
        self.by_row = ()
        self.taken: list[Tensor] = []

    def reset(self) -> Tensor:
        self.t = 0
        return self.seen[0]

    def step(self, action: Tensor, *, meanwhile=nothing) -> Step:
        meanwhile()
        t, self.t = self.t, self.t + 1
        self.cut = bool((self.truncated[t] & ~self.terminated[t]).any())
        self.taken.append(action)
        return Step(
            self.seen[t + 1],
            self.rewards[t],
            self.terminated[t],
            self.truncated[t],
            self.final[t],
            10 * self.rewards[t],
            self.terminated[t],
        )

    def if_cut(self, look, final_obs):
        return look(final_obs) if self.cut else None

    def state(self) -> dict[str, Tensor]:
        return {"t": torch.tensor(self.t)}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.t = int(state["t"])


TERMINATED = ["..x...", "......", "....x.", ".....x"]
TRUNCATED = ["......", ".x..x.", "....x.", "..x..."]  # row 2: both at once
LENGTH = 6


def scripted(encoder: EncoderConfig, discrete: bool) -> tuple[ActorCritic, Scripted]:
    return build(encoder, Spec((3,), 2, discrete)), Scripted(TERMINATED, TRUNCATED)


# Segments


BY_STEP = [name for name in Segment._fields if name not in ("v_boot", "infos")]


@every_world
@every_encoder
def test_a_segment_has_a_row_per_step_and_a_column_per_environment(world, encoder):
    agent = build(encoder, Spec.from_spaces(*world.spaces()))
    worlds = world.make(N, 0, torch.device("cpu"))
    segment, carry = collect(agent, acting(agent), worlds, start(agent, worlds), 7, True)
    for name in BY_STEP:
        assert getattr(segment, name).shape == (7, N), name
        assert getattr(segment, name).isfinite().all(), name
    assert segment.v_boot.shape == (N,)
    assert len(segment.infos) == 7
    assert carry.o_t.shape == worlds.reset().shape
    assert torch.equal(segment.ended, segment.terminated | segment.truncated)
    for name in ("log_prob", "entropy", "value"):
        assert getattr(segment, name).requires_grad, name


@every_kind_of_action
@every_encoder
def test_a_segment_is_what_one_gets_by_acting_step_by_step(encoder, discrete):
    agent, worlds = scripted(encoder, discrete)
    segment, _ = collect(agent, acting(agent), worlds, start(agent, worlds), LENGTH, False)
    collected = worlds.taken

    act = acting(agent)  # the same chance once more
    belief, a_tm1 = agent.encoder.initial(N), agent.policy.noop(N)
    for t in range(LENGTH):
        decision = act(belief, a_tm1, worlds.seen[t])
        assert torch.equal(decision.action, collected[t])
        for name in ("log_prob", "entropy", "value", "model_loss"):
            assert torch.equal(getattr(decision, name), getattr(segment, name)[t]), name
        assert torch.equal(segment.reward[t], worlds.rewards[t])
        belief, a_tm1 = decision.belief, agent.policy.encode(decision.action)
        for row in range(N):
            if worlds.terminated[t, row] or worlds.truncated[t, row]:
                rows = torch.arange(N) == row
                belief = tree.where(rows, agent.encoder.initial(N), belief)
                a_tm1 = torch.where(rows[:, None], agent.policy.noop(N), a_tm1)
    assert torch.equal(act(belief, a_tm1, worlds.seen[LENGTH]).value, segment.v_boot)


@every_kind_of_action
def test_two_short_segments_are_one_long_one(discrete):
    agent, worlds = scripted(GRU, discrete)
    act = acting(agent, greedy=True)  # bootstrap values then need no chance
    whole, end = collect(agent, act, worlds, start(agent, worlds), LENGTH, True)
    carry, parts = start(agent, worlds), []
    for _ in range(2):
        part, carry = collect(agent, act, worlds, carry, LENGTH // 2, True)
        parts.append(part)
    for name in BY_STEP:
        joined = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(joined, getattr(whole, name)), name
    assert torch.equal(parts[1].v_boot, whole.v_boot)
    assert torch.equal(carry.first, end.first)
    assert torch.equal(carry.belief.h, end.belief.h)


# Beginnings


@every_kind_of_action
@every_encoder
def test_before_the_first_step_every_episode_begins(encoder, discrete):
    agent, worlds = scripted(encoder, discrete)
    carry = start(agent, worlds)
    assert carry.first.all()
    assert torch.equal(carry.o_t, worlds.seen[0])
    assert all(map(torch.equal, carry.belief, agent.encoder.initial(N)))
    assert torch.equal(carry.a_tm1, agent.policy.noop(N))


@every_kind_of_action
@every_encoder
def test_where_an_episode_begins_the_belief_is_fresh_and_elsewhere_it_is_kept(encoder, discrete):
    agent, worlds = scripted(encoder, discrete)
    act, carry = acting(agent), start(agent, worlds)
    fresh, noop = agent.encoder.initial(N), agent.policy.noop(N)
    for t in range(LENGTH):
        _, carry = collect(agent, act, worlds, carry, 1, False)
        assert torch.equal(carry.first, worlds.terminated[t] | worlds.truncated[t])
        assert torch.equal(carry.o_t, worlds.seen[t + 1])
        begun = begin(agent, carry)
        first = carry.first
        for new, old, leaf in zip(fresh, carry.belief, begun.belief, strict=True):
            assert torch.equal(leaf[first], new[first])
            assert torch.equal(leaf[~first], old[~first])
        assert torch.equal(begun.a_tm1[first], noop[first])
        assert torch.equal(begun.a_tm1[~first], carry.a_tm1[~first])
        assert torch.equal(begun.o_t, carry.o_t)


@pytest.mark.parametrize("world", [WORLDS["continuous"], WORLDS["discrete"]], ids=str)
def test_what_happened_before_a_restart_does_not_matter_after_it(world):
    agent = build(GRU, Spec.from_spaces(*world.spaces()))
    worlds = world.make(N, 0, torch.device("cpu"))
    act, carry = acting(agent), start(agent, worlds)
    for _ in range(80):
        _, carry = collect(agent, act, worlds, carry, 1, False)
        if carry.first.any():
            break
    first = carry.first
    assert first.any()
    newborn = Carry(agent.encoder.initial(N), agent.policy.noop(N), carry.o_t, first)
    greedy = acting(agent, greedy=True)
    one = greedy(*begin(agent, carry)[:3])
    other = greedy(*newborn[:3])
    assert torch.equal(one.value[first], other.value[first])
    assert torch.equal(one.log_prob[first], other.log_prob[first])


@every_encoder
def test_no_gradient_passes_from_one_episode_to_the_next(encoder):
    agent, worlds = scripted(encoder, discrete=False)
    worlds.seen.requires_grad_()
    segment, _ = collect(agent, acting(agent), worlds, start(agent, worlds), LENGTH, False)
    # row 1 is cut after its second step; its next episode is steps 2, 3, 4
    (grad,) = torch.autograd.grad((segment.value + segment.model_loss)[2:5, 1].sum(), worlds.seen)
    assert not grad[:2].any()
    assert grad[2:5, 1].flatten(1).any(-1).all()
    assert not grad[:, torch.arange(N) != 1].any()


# Ends


@every_kind_of_action
def test_a_cut_is_worth_the_value_of_the_last_observation_and_an_end_nothing(discrete):
    agent, worlds = scripted(GRU, discrete)
    act = acting(agent, greedy=True)
    segment, _ = collect(agent, act, worlds, start(agent, worlds), LENGTH, True)
    carry = start(agent, worlds)
    expected = torch.zeros(LENGTH, N)
    for t in range(LENGTH):
        carry = begin(agent, carry)
        decision = act(*carry[:3])
        step = worlds.step(decision.action)
        v_last = act(decision.belief, decision.a_t, step.final_obs).value
        for row in range(N):
            if step.truncated[row] and not step.terminated[row]:
                expected[t, row] = v_last[row]
        carry = Carry(decision.belief, decision.a_t, step.obs, step.terminated | step.truncated)
    assert torch.equal(segment.v_end, expected)
    assert (expected != 0).nonzero().tolist() == [[1, 1], [2, 3], [4, 1]]
    assert not segment.v_end.requires_grad


@every_encoder
def test_without_bootstrapping_a_cut_is_worth_nothing(encoder):
    agent, worlds = scripted(encoder, discrete=False)
    segment, _ = collect(agent, acting(agent), worlds, start(agent, worlds), LENGTH, False)
    assert segment.truncated.any()
    assert not segment.v_end.any()


@pytest.mark.parametrize("bootstrap_cuts", [False, True])
def test_real_cuts_are_worth_something_only_when_bootstrapped(bootstrap_cuts):
    world = WORLDS["continuous"]
    agent = build(PARTICLES, Spec.from_spaces(*world.spaces()))
    worlds = world.make(N, 0, torch.device("cpu"))
    carry = start(agent, worlds)
    with torch.no_grad():
        segment, _ = collect(agent, acting(agent), worlds, carry, 76, bootstrap_cuts)
    assert segment.truncated.nonzero()[:, 0].tolist() == [74] * N
    assert (segment.v_end != 0).nonzero()[:, 0].tolist() == ([74] * N if bootstrap_cuts else [])


def test_fallen_poles_are_worth_nothing_even_when_cuts_are_bootstrapped():
    world = WORLDS["discrete"]
    agent = build(GRU, Spec.from_spaces(*world.spaces()))
    worlds = world.make(N, 0, torch.device("cpu"))
    with torch.no_grad():
        segment, _ = collect(agent, acting(agent), worlds, start(agent, worlds), 100, True)
    assert segment.terminated.any(0).all()
    assert not segment.v_end.any()


@every_encoder
def test_targets_carry_no_gradient(encoder):
    agent, worlds = scripted(encoder, discrete=False)
    segment, _ = collect(agent, acting(agent), worlds, start(agent, worlds), LENGTH, True)
    assert segment.v_end.any()
    assert not segment.v_end.requires_grad
    assert not segment.v_boot.requires_grad
    assert not segment.reward.requires_grad


# Decisions


@every_kind_of_action
@every_encoder
def test_a_decision_gives_the_world_an_action_and_the_encoder_its_code(encoder, discrete):
    agent, worlds = scripted(encoder, discrete)
    decision = acting(agent)(*start(agent, worlds)[:3])
    assert not decision.action.requires_grad
    if discrete:
        assert decision.action.shape == (N,)
        assert torch.equal(decision.a_t.argmax(-1), decision.action)
        assert torch.equal(decision.a_t.sum(-1), torch.ones(N))
    else:
        assert torch.equal(decision.a_t, decision.action)
    assert decision.a_t.shape == (N, 2)


@every_kind_of_action
def test_a_greedy_decision_is_the_likeliest_and_needs_no_chance(discrete):
    agent, worlds = scripted(GRU, discrete)
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    carry = start(agent, worlds)
    greedy = agent(*carry[:3], generator, greedy=True)
    assert torch.equal(generator.get_state(), before)
    for _ in range(20):
        assert (agent(*carry[:3], generator).log_prob <= greedy.log_prob).all()


@every_kind_of_action
@every_encoder
def test_policy_and_value_train_themselves_and_the_encoder(encoder, discrete):
    agent, worlds = scripted(encoder, discrete)
    segment, _ = collect(agent, acting(agent), worlds, start(agent, worlds), LENGTH, False)
    for name, heads in [("log_prob", {"policy"}), ("value", {"value"})]:
        agent.zero_grad()
        getattr(segment, name).sum().backward(retain_graph=True)
        moved = {n for n, p in agent.named_parameters() if p.grad is not None and p.grad.any()}
        assert {n.split(".")[0] for n in moved} == heads | {"encoder"}
        every = {n for n, _ in agent.named_parameters() if n.split(".")[0] in heads | {"encoder"}}
        assert moved == every
