"""The examples run as they stand, for a moment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    argv = [sys.executable, str(ROOT / f"examples/{name}.py"), *flags.split()]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
