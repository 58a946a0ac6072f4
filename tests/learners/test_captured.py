"""Captured windows against eager ones, with CUDA's graphs acted on the CPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dvrl.agents.actor_critic import ActorCritic
from dvrl.core import tree
from dvrl.encoders.config import EncoderConfig, GruConfig, ParticleConfig
from dvrl.envs.config import MountainHikeConfig
from dvrl.envs.flicker import FlickerVector
from dvrl.envs.gym_worlds import GymWorlds
from dvrl.envs.mountain_hike import MountainHike
from dvrl.envs.worlds import Worlds
from dvrl.learners.a2c import A2C
from dvrl.learners.build import build_engine
from dvrl.learners.config import A2CConfig, Rates
from dvrl.learners.engine import Eager, Engine
from dvrl.learners.graph import Graph
from dvrl.learners.pieces import Pieces
from dvrl.nets.spaces import Spec
from dvrl.rollout.segment import start
from recorded_graphs import Acted, Behind

pytestmark = pytest.mark.usefixtures("fixed_shapes")

N = 3
ENCODERS = {
    "dvrl": ParticleConfig(n_particles=4, h_dim=8, z_dim=6, embed_dim=5),
    "rnn": GruConfig(h_dim=8, embed_dim=5),
}
AGES = torch.tensor([64, 71, 64])
"""Steps already walked in the mountains."""
LEARNER = A2CConfig(n_envs=N, n_steps=3, n_grad=6, reward_scale=0.1)

every_encoder = pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
cut_or_not = pytest.mark.parametrize("bootstrap_cuts", [False, True])


class Stroll(gym.Env):
    """A walk on a line, cut after a while that differs from episode to episode; it ends early far
    out, sometimes in the very step of the cut."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, discrete: bool) -> None:
        box = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(3) if discrete else box

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.place, self.age = 0.0, 0
        self.limit = int(self.np_random.integers(2, 12))
        return self.seen(), {}

    def step(self, action):
        self.place += float(np.sum(action)) / 2 + self.np_random.normal()
        self.age += 1
        terminated, truncated = abs(self.place) > 3, self.age == self.limit
        return self.seen(), -abs(self.place), terminated, truncated, {}

    def seen(self) -> np.ndarray:
        return np.array([self.place, self.np_random.normal()], np.float32)


class Filmed(Stroll):
    """The same walk as images: a bright bar at the place."""

    observation_space = gym.spaces.Box(0, 255, (1, 84, 84), np.uint8)

    def seen(self) -> np.ndarray:
        image = np.full((1, 84, 84), 20, np.uint8)
        column = int(np.clip(40 + 10 * self.place, 0, 80))
        image[0, 30:60, column : column + 4] = 200
        return image


class Sent(SyncVectorEnv):
    """Sent actions, and asked for the answer, as if it stepped in threads of its own."""

    def send(self, actions):
        self.sent = actions

    def recv(self):
        return self.step(self.sent)


def films(vector: type[SyncVectorEnv] = SyncVectorEnv) -> GymWorlds:
    envs = vector([lambda: Filmed(True)] * N, autoreset_mode=AutoresetMode.SAME_STEP)
    return GymWorlds(FlickerVector(envs, 0.5, seed=6), seed=5)


def strolls(discrete: bool = False, vector: type[SyncVectorEnv] = SyncVectorEnv) -> GymWorlds:
    envs = vector([lambda: Stroll(discrete)] * N, autoreset_mode=AutoresetMode.SAME_STEP)
    return GymWorlds(envs, seed=5)


def hikes() -> MountainHike:
    return MountainHike(N, 1.0, seed=5)


def make(
    engine: Callable[..., Engine],
    encoder: EncoderConfig,
    config: A2CConfig,
    worlds: Worlds,
    cuda: type[Acted] = Acted,
) -> Engine:
    torch.manual_seed(0)
    spaces = MountainHikeConfig().spaces()
    if isinstance(worlds, GymWorlds):
        spaces = worlds.envs.single_observation_space, worlds.envs.single_action_space
    spec = Spec.from_spaces(*spaces)
    built = encoder.build(spec)
    agent = ActorCritic(built, spec.policy(built.feature_dim, 1.0, None), encoder.batch_norm)
    learner = A2C(config, agent, worlds, torch.Generator().manual_seed(1))
    carry = start(agent, worlds)
    if isinstance(worlds, MountainHike):
        worlds.restore(worlds.state() | {"age": AGES.clone()})
    if engine is Eager:
        return Eager(learner, carry)
    if cuda is Behind:  # answers go on to a GPU, though there are none that could be pinned
        size = len(worlds.blank())
        worlds.layout.goes_on = True
        worlds.layout.blank = partial(torch.empty, size, dtype=torch.uint8)
    return engine(learner, worlds, carry, cuda())


def run(engine: Engine, windows: int) -> list:
    """Results of all windows, and everything that would go on from there."""
    found = []
    for i in range(windows):
        engine.launch(Rates(0.01 / (i + 1)))
        results = engine.result()
        found.append((results.score.tolist(), results.over.tolist(), results.metrics))
    learner = engine.learner
    tensors = [
        *tree.named_leaves(engine.carry, "carry").values(),
        *(learner.optimiser.flat, learner.optimiser.gradient, *learner.optimiser.slots.values()),
        *learner.worlds.state().values(),
        learner.generator.get_state(),
    ]
    return [*found, [t.tolist() for t in tensors]]


# Worlds on the host


@cut_or_not
@every_encoder
def test_windows_in_pieces_are_eager_windows_to_the_last_bit(encoder, bootstrap_cuts):
    config = replace(LEARNER, bootstrap_cuts=bootstrap_cuts, normalise_advantage=True)
    eager = run(make(Eager, encoder, config, strolls()), 6)
    assert run(make(Pieces, encoder, config, strolls()), 6) == eager
    ended = np.array([ended for _, ended, _ in eager[:-1]])
    assert ended.any(axis=(0, 1)).all()  # in every world


@pytest.mark.parametrize("window", ["clones", "stale"])
@pytest.mark.parametrize("recorded", [True, False])
def test_so_they_are_with_actions_to_choose_and_gradients_step_by_step(window, recorded):
    encoder = ENCODERS["dvrl"] if recorded else replace(ENCODERS["dvrl"], resample="none")
    config = replace(LEARNER, bootstrap_cuts=True, window=window, optimiser="adam")
    runs = [run(make(e, encoder, config, strolls(discrete=True)), 4) for e in (Eager, Pieces)]
    assert runs[0] == runs[1]


@every_encoder
def test_so_they_are_with_images_of_a_flickering_world(encoder):
    """Statistics of normalisation included: they are kept like weights."""
    encoder = replace(encoder, batch_norm=True)
    config = replace(LEARNER, bootstrap_cuts=True)
    engines = [make(engine, encoder, config, films()) for engine in (Eager, Pieces)]
    eager, pieces = (run(engine, 3) for engine in engines)
    assert pieces == eager
    kept = [list(engine.learner.agent.buffers()) for engine in engines]
    assert kept[0]
    assert all(map(torch.equal, *kept))


def test_the_worlds_are_stepped_once_for_every_step_and_not_for_a_capture():
    engine = make(Pieces, ENCODERS["rnn"], LEARNER, strolls())
    steps, send = [], engine.worlds.send
    engine.worlds.send = lambda action: (steps.append(1), send(action))[1]
    for windows in (1, 2, 3):
        engine.launch(Rates(0.01))
        engine.result()
        assert len(steps) == LEARNER.n_grad * windows
    assert engine.learner.worlds is engine.worlds


def test_the_value_behind_a_cut_is_asked_for_only_when_there_was_one():
    engine = make(Pieces, ENCODERS["rnn"], replace(LEARNER, bootstrap_cuts=True), strolls())
    cuts, receive = [], engine.worlds.receive_on_host

    def counted():
        answer = receive()
        cuts.append(engine.worlds.cut)
        return answer

    engine.worlds.receive_on_host = counted
    for _ in range(3):
        engine.launch(Rates(0.01))
        engine.result()
    pieces = engine._film.pieces
    # Of a step: decide, see, look. Of a segment: derive while the worlds step. The last update.
    assert len(pieces) == 3 * LEARNER.n_grad + LEARNER.segments + 1
    looked = [piece.graph.replays for piece in pieces if piece.only_if_cut]
    assert looked == np.reshape(cuts, (3, -1)).sum(0).tolist()
    assert 0 < sum(looked) < len(cuts)
    assert all(piece.graph.replays == 3 for piece in pieces if not piece.only_if_cut)


def test_last_observations_travel_only_where_an_episode_was_cut():
    engine = make(Pieces, ENCODERS["rnn"], replace(LEARNER, bootstrap_cuts=True), strolls())
    lasts, cuts = engine._answers[:, engine.worlds.usual :], []
    lasts.fill_(77)
    receive = engine.worlds.receive_on_host
    engine.worlds.receive_on_host = lambda: (receive(), cuts.append(engine.worlds.cut))[0]
    engine.launch(Rates(0.01))
    engine.result()
    arrived = (lasts != 77).any(1)
    assert arrived.tolist() == cuts
    assert 0 < sum(cuts) < len(cuts)


def test_stale_values_behind_cuts_are_never_seen():
    config = replace(LEARNER, bootstrap_cuts=True)
    eager = run(make(Eager, ENCODERS["rnn"], config, strolls()), 3)
    engine = make(Pieces, ENCODERS["rnn"], config, strolls())
    launch = engine.launch

    def spoil_and_launch(lr):
        engine._looks.fill_(torch.nan)
        launch(lr)

    engine.launch = spoil_and_launch
    assert run(engine, 3) == eager


# Worlds on the device


@cut_or_not
@every_encoder
def test_windows_as_one_graph_are_eager_windows_to_the_last_bit(encoder, bootstrap_cuts):
    config = replace(LEARNER, bootstrap_cuts=bootstrap_cuts)
    eager = run(make(Eager, encoder, config, hikes()), 5)
    graph = make(Graph, encoder, config, hikes())
    assert run(graph, 5) == eager
    assert np.any([ended for _, ended, _ in eager[:-1]])
    assert len(graph.cuda.graphs) == (3 if bootstrap_cuts else 1)  # no cut, one early, one late


# Which engine


@pytest.mark.parametrize("worlds", [strolls, hikes])
def test_without_a_gpu_auto_is_eager_and_graph_is_refused(worlds):
    eager = make(Eager, ENCODERS["rnn"], LEARNER, worlds())
    built = build_engine("auto", eager.learner, eager.carry)
    assert (built.name, built.depth, built.ready) == ("eager", 1, True)
    with pytest.raises(ValueError, match="needs a GPU, a single process, and worlds that"):
        build_engine("graph", eager.learner, eager.carry)


@pytest.mark.parametrize(("kind", "worlds"), [(Pieces, strolls), (Graph, hikes)])
def test_a_captured_engine_is_ready_once_it_has_captured(kind, worlds):
    engine = make(kind, ENCODERS["rnn"], LEARNER, worlds())
    assert not engine.ready
    engine.launch(Rates(0.01))
    assert engine.ready
    assert engine.name == "graph"
    assert engine.under_way == 1
    engine.result()
    assert engine.under_way == 0


@every_encoder
@pytest.mark.parametrize("make_worlds", [strolls, films])
def test_pieces_launched_ahead_of_the_worlds_are_eager_windows_to_the_last_bit(
    encoder, make_worlds
):
    encoder = replace(encoder, batch_norm=make_worlds is films)
    eager = run(make(Eager, encoder, LEARNER, make_worlds()), 3)
    ahead = make(Pieces, encoder, LEARNER, make_worlds(vector=Sent), Behind)
    assert run(ahead, 3) == eager
    assert ahead.cuda.shut_so_far == 3 * LEARNER.n_grad
    assert not ahead.cuda.waiting


def test_a_piece_is_launched_while_the_one_before_it_decides():
    engine = make(Pieces, ENCODERS["dvrl"], LEARNER, strolls(vector=Sent), Behind)
    happened = []
    send, shut = engine.worlds.send, engine.cuda.shut
    engine.worlds.send = lambda action: (happened.append("send"), send(action))
    engine.cuda.shut = lambda: (happened.append("shut"), shut())
    engine.launch(Rates(0.01))
    engine.result()
    assert happened == ["shut", *["shut", "send"] * (LEARNER.n_grad - 1), "send"]


def test_where_cuts_are_looked_behind_nothing_is_launched_ahead():
    config = replace(LEARNER, bootstrap_cuts=True)
    eager = run(make(Eager, ENCODERS["rnn"], config, strolls()), 3)
    engine = make(Pieces, ENCODERS["rnn"], config, strolls(vector=Sent), Behind)
    assert run(engine, 3) == eager
    assert engine.cuda.shut_so_far == 0


def test_nothing_waits_on_the_device_for_worlds_that_may_wait_for_it():
    eager = run(make(Eager, ENCODERS["rnn"], LEARNER, strolls()), 3)
    engine = make(Pieces, ENCODERS["rnn"], LEARNER, strolls(), Behind)
    assert run(engine, 3) == eager
    assert engine.cuda.shut_so_far == 0


def test_worlds_that_fail_leave_no_gate_shut():
    engine = make(Pieces, ENCODERS["rnn"], LEARNER, strolls(vector=Sent), Behind)
    receive, answers = engine.worlds.receive_on_host, []

    def fails():
        answers.append(receive())
        if len(answers) == 3:
            raise OSError("the emulator is gone")
        return answers[-1]

    engine.worlds.receive_on_host = fails
    with pytest.raises(OSError, match="the emulator is gone"):
        engine.launch(Rates(0.01))
    assert engine.cuda.shut_so_far > 3
    assert not engine.cuda.waiting


def test_what_is_done_meanwhile_is_under_way_before_the_worlds_have_their_action():
    """As many threads as cores step the worlds: the host would hardly get round to it then."""
    engine = make(Pieces, ENCODERS["dvrl"], LEARNER, strolls())
    engine.launch(Rates(0.01))
    engine.result()
    happened = []
    for i, piece in enumerate(engine._film.pieces):
        replay = piece.graph.replay
        piece.graph.replay = lambda i=i, replay=replay: (happened.append(i), replay())
    send = engine.worlds.send
    engine.worlds.send = lambda action: (happened.append("send"), send(action))
    engine.launch(Rates(0.01))
    engine.result()
    pieces = iter(enumerate(engine._film.pieces))
    expected = []
    for i, piece in pieces:
        decides = piece.action is not None
        meanwhile = [next(pieces)[0]] if decides and piece.answer is None else []
        expected += [i, *meanwhile, *(["send"] if decides else [])]
    assert happened == expected
    assert happened.count("send") == LEARNER.n_grad


def test_a_segment_is_derived_while_the_worlds_take_its_last_step():
    """Between a segment's last action and the answer to it, and nowhere else."""
    engine = make(Pieces, ENCODERS["dvrl"], LEARNER, strolls())
    engine.launch(Rates(0.01))
    engine.result()
    at_work = False
    idle = []
    for piece in engine._film.pieces:
        if at_work:
            idle.append(piece)
        at_work = (at_work or piece.action is not None) and piece.answer is None
    assert len(idle) == LEARNER.segments
    assert all(len(piece.graph.calls) > 50 and piece.answer is not None for piece in idle)
