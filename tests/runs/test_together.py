"""One run over two processes (gloo) is the run of one process with all environments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dvrl.encoders.config import GruConfig, ParticleConfig
from dvrl.learners.config import A2CConfig
from dvrl.runs.config import RunConfig
from dvrl.runs.trainer import Trainer

WINDOWS = 9
AGENTS = {
    "dvrl": ParticleConfig(n_particles=4, h_dim=8, z_dim=8, embed_dim=8),
    "rnn": GruConfig(h_dim=8, embed_dim=8),
}


def config(agent: str) -> RunConfig:
    learner = A2CConfig(n_envs=6, n_grad=10, lr=1e-3, bootstrap_cuts=True, normalise_advantage=True)
    return RunConfig(encoder=AGENTS[agent], learner=learner, seed=3)


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def course(trainer: Trainer) -> tuple[list[dict[str, float]], list[tuple], torch.Tensor]:
    """Metrics and episodes of all windows, and the last weights."""
    windows = [trainer.window() for _ in range(WINDOWS)]
    episodes = [tuple(e) for w in windows for e in w.episodes]
    return [w.metrics for w in windows], episodes, trainer.learner.optimiser.flat


@pytest.mark.parametrize("agent", AGENTS)
def test_two_processes_train_like_one(agent, tmp_path):
    """In double precision: the same noise, losses, episodes and weights, up to rounding."""
    torch.set_default_dtype(torch.float64)
    try:
        metrics, episodes, weights = course(Trainer(config(agent), torch.device("cpu")))
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(episodes) == 6
    done = torchrun(__file__, agent, str(tmp_path))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        found = torch.load(tmp_path / f"weights-{rank}.pt", weights_only=True)
        torch.testing.assert_close(found, weights, rtol=1e-9, atol=1e-12)
        told = json.loads((tmp_path / f"told-{rank}.json").read_text())
        assert told["episodes"] == [pytest.approx(e) for e in episodes]
        for got, want in zip(told["metrics"], metrics, strict=True):
            assert got == pytest.approx(want, rel=1e-6, abs=1e-9)


def one_of_two(agent: str, out: Path) -> None:
    from dvrl.runs.together import processes

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    with processes(torch.device("cpu")) as group:
        assert group.size == 2
        trainer = Trainer(config(agent), torch.device("cpu"), group=group)
        assert trainer.worlds.n == 3
        metrics, episodes, weights = course(trainer)
        torch.save(weights, out / f"weights-{group.rank}.pt")
        told = json.dumps({"metrics": metrics, "episodes": episodes})
        (out / f"told-{group.rank}.json").write_text(told)


def test_a_run_goes_on_over_two_processes_and_then_in_one_again(tmp_path):
    """Files are one process's affair; a checkpoint holds the environments of all."""
    arguments = ["mountain-hike", "--agent", "rnn", "--learner.n-envs", "4", "--device", "cpu"]
    arguments += ["--out", str(tmp_path / "run")]
    for steps, together in [("400", False), ("800", True), ("1200", True), ("1600", False)]:
        command = ["-m", "dvrl.cli", "train", *arguments, "--steps", steps]
        command += ["--learner.anneal-steps", "1600"]
        if together:
            done = torchrun(*command)
        else:
            done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("finished") == 1
    episodes = (tmp_path / "run" / "episodes.csv").read_text().splitlines()
    steps = [int(line.split(",")[0]) for line in episodes[1:]]
    assert steps == sorted(steps)
    assert len(steps) == 4 * (1600 // 4 // 75)


def test_environments_that_cannot_be_divided_are_refused_in_a_sentence(tmp_path):
    arguments = ["mountain-hike", "--learner.n-envs", "3", "--device", "cpu", "--steps", "100"]
    done = torchrun("-m", "dvrl.cli", "train", *arguments, "--out", str(tmp_path / "run"))
    assert done.returncode != 0
    assert "n_envs must be a multiple" in done.stderr
    assert not (tmp_path / "run").exists()


if __name__ == "__main__":
    one_of_two(sys.argv[1], Path(sys.argv[2]))
