"""The examples run as they stand, for a moment."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from dvrl.encoders.gru import GruBelief
from dvrl.encoders.particle import ParticleBelief

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "flags", "words"),
    [
        ("mountain_hike", "--steps 5000", "believed"),
        ("own_environment", "--steps 5000", "one episode with the trained agent"),
        ("own_encoder", "--steps 5000", "mean return over the last tenth"),
        ("one_file_dvrl", "--steps 5000", "return"),
        ("faster_than_one_file", "--later 1 --repeats 1", "times"),
    ],
)
def test_an_example_runs_and_says_what_it_did(name, flags, words, tmp_path):
    assert words in run([str(ROOT / f"examples/{name}.py"), *flags.split()], tmp_path)


def run(argv: list[str], where: Path, code: int = 0) -> str:
    """What a command said, by either way out; it must end with this code."""
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=where,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def test_two_kinds_of_runs_are_compared(tmp_path):
    for agent in ("dvrl", "rnn"):
        flags = f"train mountain-hike --agent {agent} --seeds 0-1 --steps 3000 --out {agent}"
        run(["-m", "dvrl", *flags.split()], tmp_path)
    said = run([str(ROOT / "examples/compare_two.py"), "dvrl", "rnn"], tmp_path)
    assert "over 2 runs" in said
    assert "DVRL - RNN" in said
    assert (tmp_path / "compare.png").stat().st_size > 10_000
    twice = [str(ROOT / "examples/compare_two.py"), "dvrl", "dvrl", "--figure", "new/twice.png"]
    assert "dvrl - dvrl: 0.00" in run(twice, tmp_path)  # one agent: called by their directories
    said = run([str(ROOT / "examples/compare_two.py"), "dvrl", "."], tmp_path, code=2)
    assert ". must hold two runs or more" in said


def test_the_comparison_is_welchs():
    welch = runpy.run_path(str(ROOT / "examples/compare_two.py"))["welch"]
    rng = np.random.default_rng(0)
    for a, b in (
        (rng.normal(0, 1, 10), rng.normal(1, 3, 8)),
        (rng.normal(0, 1, 3), rng.normal(0, 1, 5)),
    ):
        theirs = stats.ttest_ind(a, b, equal_var=False)
        interval = theirs.confidence_interval()
        expected = (a.mean() - b.mean(), interval.low, interval.high, theirs.pvalue)
        np.testing.assert_allclose(welch(a, b), expected, rtol=2e-3)


def test_what_a_belief_knows_is_asked_of_runs_on_pong(tmp_path):
    """Whether anything is known after so few steps is not; R^2 of a plain mean is 0 or below."""
    example = str(ROOT / "examples/what_a_belief_knows.py")
    flags = "train atari:Pong --agent rnn --steps 160 --log-every 160 --encoder.h-dim 8 --out pong"
    run(["-m", "dvrl", *flags.split()], tmp_path)
    said = run([example, "pong", "--steps", "30"], tmp_path).splitlines()[-4:]
    assert [line[:20].strip() for line in said] == [
        f"{who}, {kind}" for who in ("untrained", "trained") for kind in ("shown", "blank")
    ]
    assert all(float(word) <= 1 for line in said for word in line[20:].split())
    run(["-m", "dvrl", "train", "mountain-hike", "--steps", "1000", "--out", "hike"], tmp_path)
    said = run([example, "hike"], tmp_path, code=2)
    assert "hike is not a run on atari:Pong" in said


def test_the_state_of_particles_is_their_mean_by_weight():
    state = runpy.run_path(str(ROOT / "examples/what_a_belief_knows.py"))["state"]
    h, weight = torch.randn(2, 3, 4), torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    mean = 0.2 * h[0, 0] + 0.3 * h[0, 1] + 0.5 * h[0, 2]
    np.testing.assert_allclose(
        state(ParticleBelief(h, weight.log())), np.stack([mean, h[1, 0]]), rtol=1e-5
    )
    assert np.array_equal(state(GruBelief(h[0])), h[0])


def test_positions_read_from_screens_are_those_in_the_games_memory():
    ale_py = pytest.importorskip("ale_py")
    example = runpy.run_path(str(ROOT / "examples/what_a_belief_knows.py"))
    game = ale_py.ALEInterface()
    game.setLoggerMode(ale_py.LoggerMode.Error)
    game.setInt("random_seed", 0)
    game.loadROM(ale_py.roms.get_rom_path("pong"))
    choices, rng = game.getMinimalActionSet(), np.random.default_rng(0)
    read, stored = [], []
    for frame in range(3000):
        if frame % 6 == 0:
            choice = rng.choice(choices)
        game.act(choice)
        screen = game.getScreenGrayscale().repeat(2, 0).reshape(84, 5, 160).mean(1)
        read.append(example["positions"](screen.repeat(21, 1).reshape(84, 84, 40).mean(2)))
        stored.append(game.getRAM()[[50, 51, 54, 49]].astype(float))
    read, stored = np.array(read), np.array(stored)
    for thing, ours, theirs in zip(example["THINGS"], read.T, stored.T, strict=True):
        seen = ~np.isnan(ours)
        assert seen.mean() > 0.3, thing  # between two points there is no ball
        slope, shift = np.polyfit(theirs[seen], ours[seen], 1)
        error = abs(slope * theirs + shift - ours)[seen]
        assert np.quantile(error, 0.95) < 1.5, (thing, error.max())
