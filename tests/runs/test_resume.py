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


def launch(argv: list[str]) -> subprocess.Popen:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def run_to_the_end(argv: list[str]) -> None:
    process = launch(argv)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors


def saved_step(out: Path) -> int:
    return max(
        (int(p.name.removeprefix("step-")) for p in out.glob("checkpoints/step-*")), default=0
    )


def kill_in_training(argv: list[str], out: Path, delay: float) -> None:
    """Kill -9 a run `delay` seconds after it has saved more than it began with."""
    before, process, patience = saved_step(out), launch(argv), time.monotonic() + 120
    while saved_step(out) <= before:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < patience, "the run never trained"
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "the run ended before the kill"


def result(out: Path) -> dict[str, bytes]:
    """What must not depend on when a run was killed."""
    newest = max(out.glob("checkpoints/step-*"))
    files = [*newest.iterdir(), out / "metrics.jsonl", out / "episodes.csv"]
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.parametrize("agent", ["dvrl", "rnn"])
def test_a_run_killed_at_random_instants_ends_with_the_same_bytes(agent, tmp_path):
    """Every kill meets a run that trains; it saves after every window, so many meet a write."""
    kills, rng = int(os.environ.get("DVRL_KILLS", "3")), random.Random(7)
    steps = 3_000 + 1_500 * kills
    run_to_the_end(command(agent, tmp_path / "whole", steps))
    out = tmp_path / "killed"
    for _ in range(kills):
        kill_in_training(command(agent, out, steps), out, delay=rng.uniform(0.0, 0.6))
    run_to_the_end(command(agent, out, steps))
    whole, killed = result(tmp_path / "whole"), result(out)
    assert whole.keys() == killed.keys()
    assert {name for name in whole if whole[name] != killed[name]} == set()
    assert json.loads((out / "status.json").read_text())["state"] == "finished"
