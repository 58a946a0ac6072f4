"""A run and its files: what continues, what is refused, what survives."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dvrl.learners.engine import Eager
from dvrl.records.layout import RunFiles, read_json
from dvrl.records.metrics import read_episodes, read_metrics
from dvrl.runs import checkpoint as checkpoints
from dvrl.runs.config import LATER
from dvrl.runs.errors import Interrupted, RunFailed, UsageError
from dvrl.runs.guard import claimed, stop_signals
from dvrl.runs.progress import Silent
from dvrl.runs.run import COMPILING
from dvrl.runs.train import train
from dvrl.runs.trainer import Trainer
from small_runs import tiny


class Listener(Silent):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def say(self, sentence: str) -> None:
        self.heard.append(sentence)


def contents(run: Path) -> dict[str, bytes]:
    newest = checkpoints.newest_first(run / "checkpoints")[0]
    files = [*newest.iterdir(), run / "metrics.jsonl", run / "episodes.csv"]
    return {f.name: f.read_bytes() for f in files}


@pytest.mark.parametrize("agent", ["dvrl", "rnn"])
def test_a_run_in_two_parts_equals_a_run_in_one(agent, tmp_path):
    whole = train(tiny(agent), tmp_path / "whole", device="cpu")
    train(tiny(agent, steps=200), tmp_path / "parts", device="cpu")
    parts = train(tiny(agent), tmp_path / "parts", device="cpu")
    assert contents(whole) == contents(parts)


@pytest.mark.parametrize(
    ("program", "written"),
    [
        ("/home/me/.venv/bin/dvrl", "dvrl"),
        ("/home/me/src/dvrl/__main__.py", "dvrl"),  # python -m dvrl
        ("/lib/other/__main__.py", "/lib/other/__main__.py"),
        ("mine.py", "mine.py"),
    ],
)
def test_a_run_knows_how_to_be_begun_anew(program, written, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", [program, "train", "--seed", "0"])
    run = train(tiny("rnn", steps=20), tmp_path / "run", device="cpu")
    assert [s["command"] for s in read_json(RunFiles(run).command)] == [
        [written, "train", "--seed", "0"]
    ]


def test_metrics_and_episodes_say_what_happened(trained):
    metrics, episodes = (
        read_metrics(trained / "metrics.jsonl"),
        read_episodes(trained / "episodes.csv"),
    )
    assert [m["step"] for m in metrics] == [100, 200, 300, 400]
    assert [e.step for e in episodes] == [150, 150, 300, 300]
    assert all(e.length == 75 for e in episodes)
    assert metrics[1]["return"] == pytest.approx(sum(e.ret for e in episodes[:2]) / 2)
    assert metrics[0]["return"] is None
    weights = tiny().learner.weights
    for m in metrics:
        total = sum(weight * m[f"loss/{name}"] for name, weight in weights.items())
        assert m["loss/total"] == pytest.approx(total, rel=1e-4)


def test_only_the_two_newest_checkpoints_are_kept(trained):
    kept = checkpoints.newest_first(trained / "checkpoints")
    assert [p.name for p in kept] == ["step-000000000400", "step-000000000380"]


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(trained, tmp_path):
    whole = train(tiny(steps=500), tmp_path / "whole", device="cpu")
    newest = checkpoints.newest_first(trained / "checkpoints")[0] / "weights.safetensors"
    content = bytearray(newest.read_bytes())
    content[-3] ^= 1
    newest.write_bytes(content)
    listener = Listener()
    train(tiny(steps=500), trained, device="cpu", display=listener)
    assert any("does not match its checksum" in s and "falling back" in s for s in listener.heard)
    assert any("continuing from step 380" in s for s in listener.heard)
    assert contents(whole) == contents(trained)


@pytest.mark.parametrize("broken", ["manifest.json", "state.safetensors", "state.json"])
def test_a_missing_file_makes_a_checkpoint_damaged(trained, broken):
    newest = checkpoints.newest_first(trained / "checkpoints")[0]
    (newest / broken).unlink()
    with pytest.raises(checkpoints.Damaged, match="cannot be read"):
        checkpoints.load(newest)


def test_when_no_checkpoint_is_whole_nothing_is_changed(trained):
    for path in checkpoints.newest_first(trained / "checkpoints"):
        (path / "manifest.json").write_text("{")
    before = (trained / "metrics.jsonl").read_bytes()
    with pytest.raises(RunFailed, match="no whole checkpoint is left"):
        train(tiny(steps=500), trained, device="cpu")
    assert (trained / "metrics.jsonl").read_bytes() == before


def test_a_directory_of_another_config_is_refused_with_the_difference(trained):
    other = replace(tiny(), learner=replace(tiny().learner, lr=3e-4))
    with pytest.raises(UsageError, match=r"learner\.lr: 0\.0001 -> 0\.0003"):
        train(other, trained, device="cpu")


def test_a_damaged_checkpoint_is_set_aside_and_two_whole_ones_are_kept(trained):
    damaged = checkpoints.newest_first(trained / "checkpoints")[0]
    (damaged / "state.json").unlink()
    train(tiny(steps=390), trained, device="cpu", checkpoint_seconds=0)
    names = {path.name for path in (trained / "checkpoints").iterdir()}
    assert names == {"step-000000000380", "step-000000000400", f"damaged-{damaged.name}"}


def test_a_finished_run_keeps_what_it_said_when_it_finished(trained):
    before = (trained / "status.json").read_bytes()
    train(tiny(), trained, device="cpu")
    assert (trained / "status.json").read_bytes() == before


def test_a_run_that_never_said_it_finished_says_so_when_started_again(trained):
    status = json.loads((trained / "status.json").read_text())
    (trained / "status.json").write_text(json.dumps(status | {"state": "running"}))
    train(tiny(), trained, device="cpu")
    assert json.loads((trained / "status.json").read_text())["state"] == "finished"


def test_more_steps_do_not_stretch_the_fall_of_the_learning_rate(tmp_path):
    def falling(steps: int, over: int):
        config = tiny("rnn", steps)
        return replace(config, learner=replace(config.learner, anneal_steps=over))

    run = train(falling(100, 100), tmp_path / "run", device="cpu")
    with pytest.raises(UsageError, match=r"add --learner\.anneal-steps 100, or choose another"):
        train(falling(200, 200), run, device="cpu")
    train(falling(200, 100), run, device="cpu")
    assert json.loads((run / "status.json").read_text())["step"] == 200


def test_fewer_steps_than_a_run_has_change_nothing(trained):
    before = (trained / "config.json").read_bytes()
    train(tiny(steps=40), trained, device="cpu")
    assert (trained / "config.json").read_bytes() == before


def test_another_number_of_threads_is_mentioned_and_another_device_refused(trained, monkeypatch):
    from dvrl.runs import run

    listener = Listener()
    train(tiny(steps=420), trained, device="cpu", threads=2, display=listener)
    assert any("threads was 1 and is 2" in s for s in listener.heard)
    honest = run.made_with
    monkeypatch.setattr(run, "made_with", lambda *args: honest(*args) | {"device": "cuda"})
    with pytest.raises(UsageError, match="continue with --device cpu"):
        train(tiny(steps=440), trained, device="cpu")


def test_a_world_that_gives_no_number_is_named(tmp_path, monkeypatch):
    from dvrl.envs.mountain_hike import MountainHike

    honest = MountainHike.step

    def broken(self, action, **idle):
        step = honest(self, action, **idle)
        return step._replace(reward=step.reward + torch.nan, score=step.score + torch.nan)

    monkeypatch.setattr(MountainHike, "step", broken)
    with pytest.raises(RunFailed, match="the world gave a reward that is not a number"):
        train(tiny(), tmp_path, device="cpu")
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"


def test_the_last_interval_is_written_and_completed_by_a_longer_run(tmp_path):
    whole = train(tiny(steps=300), tmp_path / "whole", device="cpu")
    train(tiny(steps=140), tmp_path / "parts", device="cpu")
    lines = read_metrics(tmp_path / "parts/metrics.jsonl")
    assert [m["step"] for m in lines] == [100, 140]
    again = (tmp_path / "parts/metrics.jsonl").read_bytes()
    train(tiny(steps=140), tmp_path / "parts", device="cpu")
    assert (tmp_path / "parts/metrics.jsonl").read_bytes() == again
    assert contents(train(tiny(steps=300), tmp_path / "parts", device="cpu")) == contents(whole)


def test_a_directory_with_foreign_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(UsageError, match="holds other files and no run"):
        train(tiny(), tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("world"), "in the run world is missing"),
        (lambda c: c["encoder"].pop("h_dim"), "in encoder h_dim is missing"),
        (lambda c: c["learner"].update(speed=3), "in learner speed is unknown"),
        (lambda c: c["encoder"].update(kind="Nope"), "encoder has no known kind"),
        (lambda c: c.update(encoder=3), "is not the config"),
        (lambda c: c["encoder"].update(n_particles=0), "at least 1"),
    ],
)
def test_a_config_file_that_was_changed_is_refused_by_name(trained, change, words):
    config = json.loads((trained / "config.json").read_text())
    change(config)
    (trained / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=words):
        train(tiny(), trained, device="cpu")


def test_a_run_of_an_earlier_version_is_continued(trained):
    """Its config lacks fields that were added later."""
    config = json.loads((trained / "config.json").read_text())
    for name in LATER:
        del config["learner"][name]
    (trained / "config.json").write_text(json.dumps(config))
    other = replace(tiny(), learner=replace(tiny().learner, memory_lr=0.5))
    with pytest.raises(UsageError, match=r"learner\.memory_lr: 1\.0 -> 0\.5"):
        train(other, trained, device="cpu")
    longer = tiny(steps=tiny().steps + 200)
    assert train(longer, trained, device="cpu") == trained
    assert json.loads((trained / "status.json").read_text())["step"] >= longer.steps


def test_weights_that_vanish_do_not_stop_a_run(tmp_path, monkeypatch):
    """An observation beyond all bounds: the row is revived and teaches nothing, the run goes on."""
    honest = Trainer.window

    def struck(self):
        if self.steps == 200:
            carry = self.engine.carry
            self.engine.carry = carry._replace(o_t=torch.full_like(carry.o_t, 1e25))
        return honest(self)

    monkeypatch.setattr(Trainer, "window", struck)
    run = train(tiny(), tmp_path, device="cpu")
    metrics = read_metrics(run / "metrics.jsonl")
    assert [m["step"] for m in metrics] == [100, 200, 300, 400]
    assert metrics[2]["belief/revived"] > 0
    assert metrics[3]["skipped"] == 0


def test_a_compilation_is_announced_once_and_only_if_there_will_be_one(tmp_path, monkeypatch):
    listener = Listener()
    train(tiny(), tmp_path / "eager", device="cpu", display=listener)
    assert COMPILING not in listener.heard
    # as of a captured engine: not ready before its first window
    has_learned = property(lambda engine: bool(engine.learner.optimiser.gradient.any()))
    monkeypatch.setattr(Eager, "ready", has_learned)
    train(tiny(), tmp_path / "graph", device="cpu", display=listener)
    assert listener.heard.count(COMPILING) == 1
    train(tiny(), tmp_path / "graph", device="cpu", display=listener)  # nothing left to do
    assert listener.heard.count(COMPILING) == 1


def test_windows_are_launched_ahead_again_after_a_checkpoint(tmp_path, monkeypatch):
    taken = []
    window = Trainer.window

    def taking(trainer):
        taken.append(trainer.engine.under_way)
        return window(trainer)

    monkeypatch.setattr(Eager, "depth", 2)  # as of a captured engine
    monkeypatch.setattr(Trainer, "window", taking)
    monkeypatch.setattr("dvrl.runs.run.time.monotonic", lambda: len(taken))  # a clock of windows
    train(tiny(steps=200), tmp_path / "ahead", device="cpu", checkpoint_seconds=3)
    # Before the checkpoints, and at the end, nothing new is launched.
    assert taken == [2, 2, 2, 1, 2, 2, 2, 1, 2, 1]


def test_a_checkpoint_does_not_change_when_training_goes_on():
    trainer = Trainer(tiny(), torch.device("cpu"))
    trainer.window()
    checkpoint = trainer.checkpoint({})
    named = checkpoint.weights | checkpoint.optimiser | checkpoint.state
    before = {name: tensor.clone() for name, tensor in named.items()}
    trainer.window()
    assert all(torch.equal(named[name], tensor) for name, tensor in before.items())


def test_tensorboard_keeps_every_point_over_a_resume(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tiny(steps=500), trained, device="cpu")
    events = EventAccumulator(str(trained / "events"))
    events.Reload()
    assert [s.step for s in events.Scalars("loss/elbo")] == [100, 200, 300, 400, 500]


def test_two_processes_cannot_train_in_one_directory(tmp_path):
    with claimed(RunFiles(tmp_path)), pytest.raises(UsageError, match="another process"):
        train(tiny(), tmp_path, device="cpu")


def test_cuda_without_a_gpu_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no GPU"):
        train(tiny(), tmp_path, device="cuda")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_survives(trained, monkeypatch):
    before = contents(trained)

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_files", full)
    with pytest.raises(RunFailed, match="No space left on device"):
        train(tiny(steps=600), trained, device="cpu", checkpoint_seconds=0)
    monkeypatch.undo()
    assert not list((trained / "checkpoints").glob(".tmp*"))
    newest = checkpoints.newest_first(trained / "checkpoints")[0]
    assert checkpoints.load(newest).numbers["steps"] == 400
    assert (newest / "weights.safetensors").read_bytes() == before["weights.safetensors"]


def test_a_loss_that_is_not_a_number_stops_the_run_and_is_never_saved(trained, monkeypatch):
    honest = Trainer.window

    def poisoned(self):
        if self.steps >= 440:
            with torch.no_grad():
                next(self.agent.parameters()).fill_(torch.nan)
        return honest(self)

    monkeypatch.setattr(Trainer, "window", poisoned)
    with pytest.raises(RunFailed, match="the loss is nan"):
        train(tiny(steps=600), trained, device="cpu", checkpoint_seconds=0)
    newest = checkpoints.load(checkpoints.newest_first(trained / "checkpoints")[0])
    assert newest.numbers["steps"] == 440
    assert all(t.isfinite().all() for t in newest.weights.values())


def test_a_signal_lets_the_window_end_saves_and_reports_its_number(tmp_path, monkeypatch):
    whole = train(tiny(), tmp_path / "whole", device="cpu")
    honest = Trainer.window

    def interrupted(self):
        import signal

        if self.steps == 120:
            signal.raise_signal(signal.SIGTERM)
        return honest(self)

    monkeypatch.setattr(Trainer, "window", interrupted)
    with pytest.raises(Interrupted, match="step 140, saved") as stop:
        train(tiny(), tmp_path / "run", device="cpu")
    assert stop.value.signal_number == 15
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "interrupted"
    monkeypatch.undo()
    assert contents(train(tiny(), tmp_path / "run", device="cpu")) == contents(whole)


def test_signal_handlers_are_given_back():
    import signal

    before = signal.getsignal(signal.SIGTERM)
    with stop_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_sink_that_fails_warns_once_and_does_not_stop_training(tmp_path):
    def broken(step, values):
        raise ConnectionError("nobody there")

    seen = []
    with pytest.warns(UserWarning, match="nobody there") as warned:
        train(
            tiny(),
            tmp_path,
            device="cpu",
            sinks=[broken, lambda step, values: seen.append(step)],
        )
    assert len(warned) == 1
    assert seen == [100, 200, 300, 400]


def test_tensorboard_events_hold_the_metrics(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained / "events"))
    events.Reload()
    logged = {s.step: s.value for s in events.Scalars("loss/elbo")}
    metrics = read_metrics(trained / "metrics.jsonl")
    assert logged == pytest.approx({m["step"]: m["loss/elbo"] for m in metrics}, rel=1e-6)
