"""The examples run as they stand, for a moment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mountain_hike", "believed"),
        ("own_environment", "one episode with the trained agent"),
        ("own_encoder", "mean return over the last tenth"),
        ("one_file_dvrl", "return"),
    ],
)
def test_an_example_runs_and_says_what_it_did(name, words, tmp_path):
    argv = [sys.executable, str(ROOT / f"examples/{name}.py"), "--steps", "5000"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
