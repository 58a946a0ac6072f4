"""The examples run as they stand, for a moment."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

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
