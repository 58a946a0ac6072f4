"""Runs on a game: what a continued one keeps, and what it cannot."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dvrl.envs.config import AtariConfig
from dvrl.experiments.presets import preset
from dvrl.records.metrics import read_episodes, read_metrics
from dvrl.runs.config import from_data, to_data
from dvrl.runs.train import train
from dvrl.runs.trainer import Trainer

pytest.importorskip("ale_py")

CPU = torch.device("cpu")
FEW = 120
"""Emulator frames of a game: it is cut after about thirty decisions."""


def tiny(agent: str, steps: int = 240, max_frames: int = FEW):
    config = preset("quick", agent, AtariConfig("Breakout", max_frames=max_frames), steps=steps)
    encoder = replace(config.encoder, h_dim=16, embed_dim=8)
    if agent == "dvrl":
        encoder = replace(encoder, n_particles=2, z_dim=8)
    learner = replace(config.learner, n_envs=2, n_grad=10)
    return replace(config, encoder=encoder, learner=learner, log_every=40)


class Said:
    """A display that remembers."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def show(self, status) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("agent", ["dvrl", "rnn"])
def test_a_run_that_is_continued_says_that_its_games_began_anew(agent, tmp_path):
    train(tiny(agent, 120), tmp_path, device="cpu")
    said = Said()
    train(tiny(agent), tmp_path, device="cpu", display=said)
    assert "continuing from step 120" in said.sentences
    assert "this world's inner state cannot be saved: unfinished episodes begin anew" in (
        said.sentences
    )
    metrics, episodes = (
        read_metrics(tmp_path / "metrics.jsonl"),
        read_episodes(tmp_path / "episodes.csv"),
    )
    assert [m["step"] for m in metrics] == [40, 80, 120, 160, 200, 240]
    assert [e.step for e in episodes] == sorted(e.step for e in episodes)
    assert len(episodes) == sum(m["episodes"] for m in metrics) > 4
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "finished"
    if agent == "dvrl":
        for m in metrics:
            # Means over the same steps, but for the look behind each segment that is not counted.
            assert m["belief/gap"] == pytest.approx(m["loss/elbo"] - m["belief/floor"], rel=1e-3)
            assert m["belief/gap"] > 0


def test_all_but_the_unfinished_games_is_exact_when_a_run_is_continued():
    """Put where another stopped, weights, optimiser, statistics, chance and flicker are its own."""
    one = Trainer(tiny("dvrl"), CPU)
    for _ in range(3):
        one.window()
    saved = one.checkpoint({})
    other = Trainer(tiny("dvrl"), CPU)
    other.restore(saved)
    again = other.checkpoint({})
    assert saved.weights.keys() == again.weights.keys() > {"norm.mean", "norm.var"}
    for part in ("weights", "optimiser"):
        kept, found = getattr(saved, part), getattr(again, part)
        assert all(torch.equal(kept[name], found[name]) for name in kept), part
    assert not torch.equal(saved.weights["norm.mean"], torch.zeros(16))
    assert torch.equal(saved.state["generator"], again.state["generator"])
    assert other.engine.carry.first.all()
    assert not other.meter.ret.any()
    # The same restore gives the same course, and its games are not those of the beginning.
    third = Trainer(tiny("dvrl"), CPU)
    third.restore(saved)
    assert other.window() == third.window()
    first = Trainer(tiny("dvrl"), CPU)
    assert not torch.equal(first.engine.carry.o_t, other.engine.carry.o_t)


def test_one_seed_is_one_run_and_another_seed_another():
    windows = [Trainer(replace(tiny("rnn"), seed=seed), CPU).window() for seed in (0, 0, 1)]
    assert windows[0] == windows[1]
    assert windows[0] != windows[2]


def test_games_are_reported_whole_and_unclipped():
    """Of a game that ends by itself: five lives of Breakout, one episode each."""
    trainer = Trainer(tiny("rnn", steps=10**6, max_frames=400_000), CPU)
    episodes = []
    while len(episodes) < 3 and trainer.steps < 4_000:
        episodes += trainer.window().episodes
    lengths = np.array([e.length for e in episodes])
    assert len(episodes) == 3
    assert (lengths > 60).all()  # a life alone takes about thirty decisions
    assert all(e.ret == int(e.ret) >= 0 for e in episodes)


def test_a_config_with_a_game_is_read_back():
    config = tiny("dvrl")
    assert from_data(json.loads(json.dumps(to_data(config))), "here") == config
