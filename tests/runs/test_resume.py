"""A killed run, continued by the same command, ends with the same bytes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SMALL = {
    "dvrl": ["--encoder.n-particles", "3", "--encoder.h-dim", "8", "--encoder.z-dim", "4"],
    "rnn": ["--encoder.h-dim", "16"],
}


def command(agent: str, out: Path, steps: int) -> list[str]:
    return [
        *(sys.executable, "-m", "dvrl.cli", "train", "mountain-hike", "--agent", agent),
        *("--preset", "quick", "--encoder.embed-dim", "8", *SMALL[agent]),
        *("--learner.n-envs", "4", "--steps", str(steps), "--log-every", "500"),
        *("--device", "cpu", "--checkpoint-seconds", "0", "--out", str(out)),
    ]


def run(argv: list[str], kill_after: float | None = None) -> int:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if kill_after is not None:
        time.sleep(kill_after)
        process.kill()
    _, errors = process.communicate(timeout=300)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode


def result(out: Path) -> dict[str, bytes]:
    """What must not depend on when a run was killed."""
    newest = max(out.glob("checkpoints/step-*"))
    files = [*newest.iterdir(), out / "metrics.jsonl", out / "episodes.csv"]
    return {path.name: path.read_bytes() for path in files}


def killed_and_continued(argv: list[str], kills: int, seed: int) -> int:
    """Kill `kills` times at random instants, then let it end; how often a kill met a live run."""
    rng, met = random.Random(seed), 0
    for _ in range(kills):
        met += run(argv, kill_after=rng.uniform(1.0, 4.0)) != 0
    assert run(argv) == 0
    return met


@pytest.mark.parametrize("agent", ["dvrl", "rnn"])
def test_a_run_killed_at_random_instants_ends_with_the_same_bytes(agent, tmp_path):
    kills = int(os.environ.get("DVRL_KILLS", "3"))
    steps = 3_000 + 1_000 * kills
    assert run(command(agent, tmp_path / "whole", steps)) == 0
    met = killed_and_continued(command(agent, tmp_path / "killed", steps), kills, seed=7)
    whole, killed = result(tmp_path / "whole"), result(tmp_path / "killed")
    assert met >= kills / 2
    assert whole.keys() == killed.keys()
    assert {name for name in whole if whole[name] != killed[name]} == set()
    assert json.loads((tmp_path / "killed/status.json").read_text())["state"] == "finished"
