"""Episodes of images, recorded with the belief beside them, and what is expected next."""

import math
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from dvrl.core.laws import Bernoulli
from dvrl.encoders.config import GruConfig, ParticleConfig
from dvrl.envs.atari import AtariGames
from dvrl.envs.config import AtariConfig, GymConfig
from dvrl.envs.gym_worlds import WHITE
from dvrl.records.layout import RunFiles, write_json
from dvrl.runs.build import build_agent
from dvrl.runs.config import RunConfig, to_data
from dvrl.runs.errors import UsageError
from dvrl.runs.evaluate import play
from dvrl.runs.foresee import AHEAD, foresee, pixels, spread, still_gap, watch
from dvrl.runs.inspect import record_predictions, record_traces
from dvrl.runs.player import Player
from dvrl.runs.train import train
from small_runs import LEARNER

PONG = AtariConfig("Pong", "deterministic")
SEED = 7


class Lamp(gym.Env):
    """A lamp of two colours that grows brighter; it is always seen."""

    observation_space = gym.spaces.Box(0, 255, (2, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.age = 0
        return self.light(), {}

    def step(self, action: int):
        self.age += 1
        return self.light(), 1.0, self.age == 9, False, {}

    def light(self) -> np.ndarray:
        colours = np.array([10, 20], np.uint8) * (self.age + 1)
        return np.broadcast_to(colours[:, None, None], (2, 84, 84)).copy()


@pytest.fixture
def lamp():
    """The name of a world, as long as it is known."""
    gym.register("test/Lamp-v0", Lamp)
    yield "test/Lamp-v0"
    gym.registry.pop("test/Lamp-v0", None)


def config(world=PONG, agent: str = "dvrl") -> RunConfig:
    particle = ParticleConfig(3, 8, 4, 6, batch_norm=True)
    encoder = particle if agent == "dvrl" else GruConfig(8, 6, batch_norm=True)
    return RunConfig(world, encoder, learner=LEARNER, steps=20, log_every=20)


def player(world=PONG, agent: str = "dvrl") -> Player:
    settings = config(world, agent)
    return Player(settings, build_agent(settings), seed=SEED)


@pytest.fixture(scope="module")
def watched():
    return watch(player(), steps=60, seed=SEED)


@pytest.fixture(scope="module")
def foreseen(watched):
    return foresee(player(), watched, rows=4)


# The episode


def test_the_recorded_screens_are_those_of_the_game_played_with_the_recorded_actions(watched):
    games = AtariGames("Pong", 1)
    obs, _ = games.reset(seed=SEED)
    for screen, action in zip(watched.seen["screen"], watched.seen["action"], strict=True):
        assert np.array_equal(screen, obs[0, 0])
        obs, *_ = games.step(np.array([action]))


def test_what_is_shown_is_the_screen_or_nothing(watched):
    seen = watched.seen
    assert not seen["shown"][seen["blank"]].any()
    assert np.array_equal(seen["shown"][~seen["blank"]], seen["screen"][~seen["blank"]])
    assert 15 <= seen["blank"].sum() <= 45  # of 60, half on average
    assert all(seen[name].dtype == np.uint8 for name in ("screen", "shown", "belief"))


def test_the_belief_is_the_weighted_mean_of_what_particles_take_the_screen_for(watched):
    for belief, moment in zip(watched.seen["belief"], watched.moments, strict=True):
        mean = torch.einsum("kyx,k->yx", moment.own.float(), moment.log_w.softmax(-1))
        assert np.abs(belief - mean.numpy()).max() <= 1.01  # all of them are rounded


def test_diagnostics_are_within_their_bounds(watched):
    assert ((watched.seen["ess"] >= 0.999) & (watched.seen["ess"] <= 3.001)).all()
    assert watched.seen["gap"].mean() > 0  # of single steps an estimate, which can be lucky


def test_an_episode_depends_on_its_seed_alone(watched):
    again = watch(player(), steps=60, seed=SEED).seen
    assert all(np.array_equal(again[name], watched.seen[name]) for name in again)


def test_a_lost_life_begins_a_belief_and_the_game_goes_on_until_it_is_over():
    """The same game in evaluation: one whole game, all its points and all its decisions."""
    world = AtariConfig("Asterix", "deterministic")
    seen = watch(player(world, "rnn"), steps=5000, seed=SEED).seen
    assert seen["first"].sum() == 3  # lives
    assert seen["over"].tolist() == [False] * (len(seen["over"]) - 1) + [True]
    assert len(seen["over"]) < 5000
    returns, decisions, _ = play(player(world, "rnn"), 1, SEED, greedy=False)
    assert returns.tolist() == [seen["score"].sum()]
    assert returns[0] > seen["reward"].sum()  # points, not their signs
    assert decisions == len(seen["score"])


def test_an_agent_without_particles_leaves_nothing_to_ask():
    watched = watch(player(agent="rnn"), steps=5, seed=SEED)
    assert watched.moments == []
    assert not {"belief", "ess", "gap", "still_gap"} & set(watched.seen)


def test_where_nothing_flickers_the_screen_is_what_is_shown(lamp):
    for world in (GymConfig(lamp), GymConfig(lamp, flicker=0.0), replace(PONG, flicker=0.0)):
        seen = watch(player(world), steps=5, seed=SEED).seen
        assert not seen["blank"].any()
        assert np.array_equal(seen["screen"], seen["shown"])


def test_several_channels_are_recorded_as_their_mean_and_whole_episodes_as_such(lamp):
    seen = watch(player(GymConfig(lamp)), steps=99, seed=SEED).seen
    assert np.array_equal(seen["screen"], seen["shown"])
    assert seen["screen"][:, 50, 50].tolist() == [15 * age for age in range(1, 10)]
    assert seen["over"].tolist() == [False] * 8 + [True]


def test_bytes_survive_being_seen():
    image = (torch.arange(84 * 84) % 256).view(1, 84, 84).to(torch.uint8)
    assert torch.equal(pixels(image / 255), image[0])


# Predictions


def test_moments_of_both_kinds_are_asked_and_shown_as_they_were(watched, foreseen):
    t = foreseen["t"]
    assert (np.diff(t) > 0).all()
    assert foreseen["blank"].sum() == 2
    for name, column in (("screen", "screen"), ("observation", "shown"), ("blank", "blank")):
        assert np.array_equal(foreseen[name], watched.seen[column][t])
    assert np.array_equal(foreseen["mean"][:, 0], watched.seen["belief"][t])


def test_means_are_the_weighted_means_of_the_particles_images(foreseen):
    assert foreseen["dt"].tolist() == [0, *AHEAD]
    assert foreseen["mean"].shape == (4, 6, 84, 84)
    assert foreseen["own"].shape == (4, 2, 3, 84, 84)
    assert np.allclose(foreseen["weight"].sum(1), 1, atol=1e-5)
    for dt in (0, 1):
        mean = np.einsum("rkyx,rk->ryx", foreseen["own"][:, dt].astype(float), foreseen["weight"])
        assert np.abs(mean - foreseen["mean"][:, dt]).max() <= 1.01


def test_the_last_action_is_repeated_not_the_next(watched):
    actions, first = watched.seen["action"], watched.seen["first"]
    for t in range(1, len(actions)):
        assert watched.moments[t].a_tm1.argmax() == (0 if first[t] else actions[t - 1])


def test_moments_are_spread_evenly_and_by_turns():
    blank = np.arange(60) % 2 == 1
    t = spread(blank, 6)
    assert blank[t].tolist() == [False, True] * 3
    assert np.abs(t - np.array([5, 15, 25, 35, 45, 55])).max() <= 1


@pytest.mark.parametrize("kind", [True, False])
def test_where_only_one_kind_of_moments_exists_it_serves_for_both(kind):
    assert spread(np.full(40, kind), 4).tolist() == [5, 15, 25, 35]


def test_there_are_no_more_moments_than_decisions():
    assert spread(np.array([True, False, True]), 9).tolist() == [0, 1, 2]


def test_a_rare_kind_is_found_wherever_it_is():
    blank = np.zeros(100, bool)
    blank[97] = True
    assert 97 in spread(blank, 2)


# On disk


def test_a_run_is_recorded_and_predicted_with_any_number_of_particles(tmp_path):
    run = train(config(), tmp_path / "run", device="cpu")
    paths = record_predictions(run, rows=2, steps=12, seed=SEED, particles=5)
    assert paths == [RunFiles(run).trace("episode"), RunFiles(run).trace("predictions")]
    episode, predictions = (dict(np.load(path)) for path in paths)
    assert episode["screen"].shape == (12, 84, 84)
    assert episode["checkpoint_step"] == predictions["checkpoint_step"] == 20
    assert predictions["weight"].shape == (2, 5)


def test_show_records_an_episode_of_either_agent_and_nothing_before_a_checkpoint(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("dvrl.runs.inspect.STEPS", 4)
    write_json(RunFiles(tmp_path / "new").config, to_data(config()))
    assert record_traces(tmp_path / "new", SEED) == []
    run = train(config(agent="rnn"), tmp_path / "run", device="cpu")
    assert record_traces(run, SEED) == [RunFiles(run).trace("episode")]
    assert len(np.load(RunFiles(run).trace("episode"))["shown"]) == 4


def test_a_world_that_cannot_be_made_here_has_no_traces(lamp, tmp_path):
    run = train(config(GymConfig(lamp)), tmp_path, device="cpu")
    gym.registry.pop(lamp)
    assert record_traces(run, SEED) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (config(agent="rnn"), "the RNN, which has no model to predict with"),
        (config(GymConfig("CartPole-v1")), "vectors .*of hikes, dvrl show draws the belief"),
        (RunConfig(), "vectors .*of hikes, dvrl show draws the belief"),
        (config(), "has no checkpoint yet"),
    ],
)
def test_what_cannot_be_predicted_is_said_in_a_sentence(settings, words, tmp_path: Path):
    write_json(RunFiles(tmp_path).config, to_data(settings))
    with pytest.raises(UsageError, match=words):
        record_predictions(tmp_path)


def test_numbers_that_make_no_sense_are_refused(tmp_path):
    for flags in ({"rows": 0}, {"steps": 0}):
        (name,) = flags
        with pytest.raises(UsageError, match=f"{name} is {flags[name]}; it must be at least"):
            record_predictions(tmp_path, **flags)


def test_images_of_particles_are_made_for_players_and_not_in_training():
    agent = player().agent
    encoder, screens = agent.encoder, torch.rand(2, 1, 84, 84)
    chance = torch.Generator().manual_seed(0)
    found = {}
    for training in (True, False):
        agent.train(training)
        noop = agent.policy.noop(2)
        found[training] = encoder.update(encoder.initial(2), noop, screens, chance).info.o_mean
    assert found[True].numel() == 0
    assert found[False].shape == (2, 3, 1, 84, 84)


# What a still picture would cost


def test_a_still_picture_costs_what_a_model_of_the_mean_screen_and_a_coin_costs():
    """Written out: every screen judged by the mixture of nothing and of the mean picture."""
    chance = torch.Generator().manual_seed(0)
    shown = torch.rand(20, 2, 84, 84, generator=chance)
    blank = torch.arange(20) % 4 == 0
    shown[blank] = 0
    mean = Bernoulli(torch.logit(shown[~blank].double().mean(0)))
    cost = [
        -math.log(0.25) if dark else -math.log(0.75) - float(mean.log_prob(o.double()))
        for o, dark in zip(shown, blank, strict=True)
    ]
    floor = mean.floor(shown.double())[:, 0].mean()
    assert float(still_gap(shown, blank)) == pytest.approx(sum(cost) / 20 - float(floor), rel=1e-6)


@pytest.mark.parametrize(
    ("dark", "cost"), [(0, 0.0), (3, 2 * math.log(2) - 0.75 * math.log(3)), (4, 0.0)]
)
def test_of_screens_that_do_not_move_only_the_coin_is_paid(dark, cost):
    screen = torch.rand(1, 84, 84, generator=torch.Generator().manual_seed(0))
    blank = torch.arange(4) < dark
    shown = torch.where(blank[:, None, None, None], 0.0, screen)
    assert float(still_gap(shown, blank)) == pytest.approx(cost, abs=1e-3)


def test_the_still_picture_of_an_episode_is_that_of_what_was_shown(watched):
    seen = watched.seen
    shown = torch.tensor(seen["shown"] / WHITE, dtype=torch.float32)[:, None]
    again = still_gap(shown, torch.tensor(seen["blank"]))
    assert float(seen["still_gap"]) == pytest.approx(float(again), rel=1e-5)
    assert math.log(2) / 2 < seen["still_gap"] < 10  # the coin, and a little that moves
