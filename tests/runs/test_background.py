"""Checkpoints are written while training goes on."""

import threading

import pytest

from dvrl.runs import checkpoint as checkpoints
from dvrl.runs.background import Background
from dvrl.runs.train import train
from dvrl.runs.trainer import Trainer
from small_runs import tiny


def test_pieces_come_one_after_the_other_and_failures_where_they_are_waited_for():
    order, background = [], Background()
    gate = threading.Event()

    def first() -> None:
        gate.wait(10)
        order.append("first")

    def failing() -> None:
        order.append("second")
        raise OSError("no room")

    background.do(first)
    order.append("meanwhile")
    gate.set()
    background.do(failing)
    with pytest.raises(OSError, match="no room"):
        background.settle()
    background.settle()  # told once
    background.close()
    assert order == ["meanwhile", "first", "second"]


def test_a_slow_disk_does_not_stop_training(tmp_path, monkeypatch):
    """Every checkpoint but the last is held back until a later window has been trained."""
    config = tiny()
    trained, save, window = threading.Condition(), checkpoints.save, Trainer.window
    steps = 0

    def counted(trainer):
        nonlocal steps
        result = window(trainer)
        with trained:
            steps = trainer.steps
            trained.notify_all()
        return result

    def slow(directory, step, checkpoint):
        with trained:
            assert trained.wait_for(lambda: steps > step or step >= config.steps, timeout=30)
        return save(directory, step, checkpoint)

    monkeypatch.setattr(Trainer, "window", counted)
    monkeypatch.setattr(checkpoints, "save", slow)
    train(config, tmp_path / "run", checkpoint_seconds=0)
    newest, _ = checkpoints.load_newest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    assert newest.numbers["steps"] == config.steps
