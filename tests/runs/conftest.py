"""Runs that tests share."""

import shutil
from pathlib import Path

import pytest

from dvrl.runs.train import train
from small_runs import tiny


@pytest.fixture(scope="session")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(
        tiny(), tmp_path_factory.mktemp("master") / "run", device="cpu", checkpoint_seconds=0
    )


@pytest.fixture
def trained(master: Path, tmp_path: Path) -> Path:
    """A finished run with two checkpoints, free to be damaged."""
    return shutil.copytree(master, tmp_path / "run")
