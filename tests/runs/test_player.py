"""Acting with a trained agent."""

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

import dvrl
from dvrl.encoders.config import GruConfig, ParticleConfig
from dvrl.envs.atari import AtariGames
from dvrl.envs.config import AtariConfig
from dvrl.runs.build import build_agent
from dvrl.runs.config import RunConfig
from dvrl.runs.errors import RunFailed, UsageError
from dvrl.runs.evaluate import evaluate_run
from dvrl.runs.inspect import record_traces
from dvrl.runs.player import Player, load
from dvrl.runs.train import train
from small_runs import tiny


def test_predict_without_a_memory_says_what_to_do(trained):
    with pytest.raises(UsageError, match=r"player\.initial\(n\).*player\.session\(\)"):
        load(trained).predict(np.zeros((1, 2)))


def test_predict_with_the_wrong_number_of_rows_says_what_is_right(trained):
    player = load(trained)
    with pytest.raises(UsageError, match=r"obs\[None\]"):
        player.predict(np.zeros(2), player.initial(1))
    with pytest.raises(UsageError, match="the memory has 3 rows"):
        player.predict(np.zeros((2, 2)), player.initial(3))


def test_a_session_acts_as_predict_with_the_memory_passed_on(trained):
    observations = np.random.default_rng(0).normal(size=(5, 2))
    session = load(trained, seed=4).session()
    acted = [session.act(o) for o in observations]
    player = load(trained, seed=4)
    memory = player.initial(1)
    for obs, action in zip(observations, acted, strict=True):
        prediction = player.predict(obs[None], memory)
        memory = prediction.memory
        assert np.array_equal(prediction.action[0], action)


def test_memory_matters_and_first_forgets_it(trained):
    player, obs = load(trained), np.ones((1, 2))
    used = player.predict(-9 * obs, player.initial(1), deterministic=True).memory

    def act(memory, first=None):
        player.generator.manual_seed(1)
        return player.predict(obs, memory, first=first, deterministic=True).action

    fresh = act(player.initial(1))
    assert not np.array_equal(act(used), fresh)
    assert np.array_equal(act(used, first=np.array([True])), fresh)


def test_the_same_agent_plays_in_gymnasium(trained):
    env = gym.make("dvrl/MountainHike-v0", sigma=3.0)
    session = dvrl.load(trained).session()
    obs, _ = env.reset(seed=0)
    steps, over = 0, False
    while not over:
        obs, _, terminated, truncated, _ = env.step(session.act(obs))
        over, steps = terminated or truncated, steps + 1
    assert steps == 75


def test_save_and_load_give_the_same_agent(trained, tmp_path):
    saved = load(trained).save(tmp_path / "saved")
    one, two = load(trained), load(saved)
    assert one.config == two.config
    obs = np.ones((4, 2))
    a = one.predict(obs, one.initial(4)).action
    assert np.array_equal(a, two.predict(obs, two.initial(4)).action)


def test_an_agent_is_not_saved_into_a_run_nor_a_run_trained_over_an_agent(trained, tmp_path):
    player = load(trained)
    with pytest.raises(UsageError, match="holds a run"):
        player.save(trained)
    saved = player.save(tmp_path / "saved")
    with pytest.raises(UsageError, match="holds a saved agent"):
        train(tiny(), saved, device="cpu")


def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(trained):
    newest = max((trained / "checkpoints").glob("step-*"))
    (newest / "weights.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="using the checkpoint before it"):
        player = load(trained)
    assert player.checkpoint_step == 380


def test_a_flipped_byte_in_a_saved_agent_is_noticed(trained, tmp_path):
    saved = load(trained).save(tmp_path / "saved")
    content = bytearray((saved / "weights.safetensors").read_bytes())
    content[-3] ^= 1
    (saved / "weights.safetensors").write_bytes(content)
    with pytest.raises(RunFailed, match="does not match its checksum"):
        load(saved)


def test_weights_that_do_not_fit_are_refused(trained, tmp_path):
    saved = load(trained).save(tmp_path / "saved")
    config = json.loads((saved / "config.json").read_text())
    config["encoder"]["h_dim"] = 9
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunFailed, match="do not fit"):
        load(saved)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_generator_takes_is_refused_whoever_plays(seed, trained):
    for play in (load, record_traces, evaluate_run):
        with pytest.raises(UsageError, match=f"seed is {seed}; it must be at least 0 and below"):
            play(trained, seed=seed)


def test_a_directory_that_is_no_run_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"has no config\.json"):
        load(tmp_path)


def test_evaluation_counts_whole_episodes_and_may_change_k(trained):
    result = evaluate_run(trained, episodes=7, particles=11)
    assert result["episodes"] == 7
    assert result["decisions"] == 7 * 75
    assert result["particles"] == 11
    assert -600 < result["return_mean"] < 0
    assert result["belief/ess"] <= 11
    assert json.loads(next((trained / "evaluations").iterdir()).read_text()) == result


def test_evaluation_depends_on_its_seed_alone(trained):
    one = evaluate_run(trained, episodes=5, seed=3)
    assert evaluate_run(trained, episodes=5, seed=3) == one
    assert evaluate_run(trained, episodes=5, seed=4)["return_mean"] != one["return_mean"]


def test_whoever_watches_an_evaluation_is_told_of_every_step(trained):
    told = []
    evaluate_run(trained, episodes=3, watch=lambda *news: told.append(news))
    assert told[:2] == [(0, 3), (0, 6)]
    assert told[-1] == (3, 3 * 75)
    assert len(told) == 75


def test_the_recurrent_baseline_has_no_particles_to_change(tmp_path):
    run = train(tiny("rnn", steps=100), tmp_path, device="cpu")
    with pytest.raises(UsageError, match="no particles"):
        evaluate_run(run, episodes=1, particles=5)


@pytest.mark.parametrize("world", ["CartPole-v1", "Pendulum-v1"])
def test_any_gymnasium_environment_can_be_trained_continued_and_played(world, tmp_path):
    config = replace(tiny(steps=200), world=dvrl.GymConfig(world))
    train(config, tmp_path, device="cpu")
    train(replace(config, steps=400), tmp_path, device="cpu")
    env = gym.make(world)
    session = dvrl.load(tmp_path).session()
    obs, _ = env.reset(seed=0)
    action = session.act(obs)
    assert env.action_space.contains(action)
    assert evaluate_run(tmp_path, episodes=2)["episodes"] == 2


# Images


def sees(agent: str, world=None) -> Player:
    """A player of images with its first weights."""
    particle = ParticleConfig(3, 8, 4, 6, batch_norm=True)
    encoder = particle if agent == "dvrl" else GruConfig(8, 6, batch_norm=True)
    config = RunConfig(world or AtariConfig("Pong"), encoder, dvrl.PolicyConfig(batch_norm=True))
    return Player(config, build_agent(config))


@pytest.mark.parametrize("agent", ["dvrl", "rnn"])
def test_bytes_are_seen_as_in_training_and_so_are_floats_that_are_scaled(agent):
    screens, _ = AtariGames("Pong", 2).reset(seed=0)
    assert screens.dtype == np.uint8
    trained_on = AtariConfig("Pong", flicker=0.0).make(2, 0, "cpu").reset()

    def value(obs: np.ndarray) -> np.ndarray:
        player = sees(agent)
        return player.predict(obs, player.initial(2)).value

    assert np.array_equal(value(screens), value(trained_on.numpy()))
    assert np.array_equal(value(screens), value(screens.astype(np.float32) / 255))
    for kind in (np.float32, np.int64):
        with pytest.raises(UsageError, match=r"to 236; they must be bytes \(uint8\), or floats"):
            value(screens.astype(kind))


def test_bytes_of_a_world_of_real_numbers_are_numbers(trained):
    def value(obs: np.ndarray) -> np.ndarray:
        player = load(trained)
        return player.predict(obs, player.initial(1)).value

    places = np.array([[3, 250]])
    assert np.array_equal(value(places.astype(np.uint8)), value(places.astype(float)))


def test_a_player_normalises_one_environment_as_it_does_many():
    """By what training remembers: batches are told apart from none of their rows."""
    player = sees("rnn")
    assert not any(module.training for module in player.agent.modules())
    screens = np.random.default_rng(0).integers(0, 256, (3, 1, 84, 84), np.uint8)
    together = player.predict(screens, player.initial(3)).value
    alone = [player.predict(screen[None], player.initial(1)).value[0] for screen in screens]
    assert together == pytest.approx(alone, abs=1e-5)


def test_a_session_plays_a_game_from_its_screens():
    games = AtariGames("Pong", 1)
    screens, _ = games.reset(seed=0)
    session = sees("dvrl").session()
    for _ in range(3):
        screens, *_ = games.step(np.array([session.act(screens[0])]))
    assert session.last is not None
