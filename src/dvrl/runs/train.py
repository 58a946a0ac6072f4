"""A run = config + loop + files. The same call again continues an unfinished run."""

import os
import platform
import sys
import time
from collections import deque
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dvrl.records.layout import RunFiles, read_json, write_json
from dvrl.records.metrics import (
    EPISODE_HEADER,
    AppendLog,
    Episode,
    episode_line,
    metrics_line,
    read_episodes,
)
from dvrl.runs import checkpoint as checkpoints
from dvrl.runs.build import choose_device, world_spec
from dvrl.runs.config import RunConfig, differences, from_data, to_data
from dvrl.runs.errors import Interrupted, RunFailed, UsageError
from dvrl.runs.guard import StopFlag, claimed, disk_errors, stop_signals
from dvrl.runs.interval import Interval
from dvrl.runs.progress import Display, Silent, Status
from dvrl.runs.sinks import Sink, guarded, tensorboard_sink
from dvrl.runs.trainer import Trainer

RECENT = 200
"""Episodes in the running mean that a run shows of itself."""
HEARTBEAT_SECONDS = 5.0


def train(
    config: RunConfig,
    out: str | Path,
    *,
    device: str = "auto",
    threads: int = 1,
    checkpoint_seconds: float = 60.0,
    display: Display | None = None,
    sinks: Sequence[Sink] = (),
) -> Path:
    """Train until `config.steps`, continuing what the directory `out` already holds.

    On the CPU a continued run ends with the same bytes as one that was never stopped, given the
    same number of threads.
    """
    if threads < 1:
        raise UsageError(f"threads is {threads}; it must be at least 1")
    if not checkpoint_seconds >= 0:
        raise UsageError(f"checkpoint_seconds is {checkpoint_seconds}; it must not be below 0")
    torch.set_num_threads(threads)
    where = choose_device(device)
    world_spec(config)  # a world that cannot be played is refused before anything is written
    files = RunFiles(Path(out))
    display = display or Silent()
    with claimed(files), stop_signals() as stop, disk_errors(files):
        config = settle_config(files, config)
        run = Run(config, files, where, display, sinks)
        try:
            run.loop(stop, checkpoint_seconds)
        finally:
            run.close()
            display.close()
    return files.root


class Run:
    """A trainer with its files."""

    def __init__(
        self,
        config: RunConfig,
        files: RunFiles,
        device: torch.device,
        display: Display,
        sinks: Sequence[Sink],
    ) -> None:
        self.config = config
        self.files = files
        self.display = display
        self.trainer = Trainer(config, device)
        found, passed_over = load_newest(files)
        for sentence in passed_over:
            display.say(f"{sentence}; falling back to the checkpoint before it")
        numbers: dict[str, Any] = {"metrics_bytes": 0, "episodes_bytes": 0}
        if found is not None:
            restore(self.trainer, found, files)
            numbers = found.numbers
            display.say(self._resume_sentence())
        self.saved_step = self.trainer.steps
        self.metrics_log = AppendLog(files.metrics, numbers["metrics_bytes"])
        self.episodes_log = AppendLog(files.episodes, numbers["episodes_bytes"], EPISODE_HEADER)
        self.interval = Interval(numbers.get("interval"))
        self.recent = deque((e.ret for e in read_episodes(files.episodes)), maxlen=RECENT)
        self.sinks = [guarded(sink, "a metric sink", display.say) for sink in sinks]
        events = tensorboard_sink(files.events, purge_step=self.trainer.steps)
        if events is not None:
            self.sinks.append(guarded(events, "TensorBoard", display.say))
        self.began, self.began_step = time.monotonic(), self.trainer.steps
        self.beat = 0.0
        write_start(files, device)

    def loop(self, stop: StopFlag, checkpoint_seconds: float) -> None:
        """Windows until the end, a failure or a signal; state is saved in each case but failure."""
        trainer, last_save = self.trainer, time.monotonic()
        while trainer.steps < self.config.steps:
            try:
                window = trainer.window()
            except RuntimeError as error:
                self.write_status("failed")
                raise RunFailed(
                    f"training failed: {error}. The last checkpoint is at step "
                    f"{self.saved_step:,}; a smaller learner.lr often helps"
                ) from error
            self.record(window.metrics, window.episodes)
            if time.monotonic() - last_save >= checkpoint_seconds:
                self.save()
                last_save = time.monotonic()
            if stop.signal_number is not None:
                self.save()
                self.write_status("interrupted")
                raise Interrupted(
                    stop.signal_number,
                    f"stopped at step {trainer.steps:,}, saved; "
                    "the same command continues from here",
                )
        self.save()
        self.write_status("finished")

    def record(self, metrics: dict[str, float], episodes: list[Episode]) -> None:
        """Write down a window: its episodes now, its metrics when their interval is full."""
        self.interval.add(metrics, episodes)
        self.recent.extend(e.ret for e in episodes)
        self.episodes_log.write("".join(map(episode_line, episodes)))
        step = self.trainer.steps
        if step // self.config.log_every > self.interval.logged // self.config.log_every:
            values = self.interval.take(step)
            self.metrics_log.write(metrics_line(values))
            for sink in self.sinks:
                sink(
                    step, {k: float(v) for k, v in values.items() if k != "step" and v is not None}
                )
        self.display.show(self.status(metrics))
        if time.monotonic() - self.beat > HEARTBEAT_SECONDS:
            self.write_status("running")

    def save(self) -> None:
        """Write a checkpoint, unless nothing happened since the last one."""
        if self.trainer.steps == self.saved_step:
            return
        numbers = {
            "metrics_bytes": self.metrics_log.sync(),
            "episodes_bytes": self.episodes_log.sync(),
            "interval": self.interval.to_data(),
        }
        step = self.trainer.steps
        checkpoints.save(self.files.checkpoints, step, self.trainer.checkpoint(numbers))
        self.saved_step = step

    def status(self, metrics: dict[str, float]) -> Status:
        seconds = max(time.monotonic() - self.began, 1e-9)
        recent = sum(self.recent) / len(self.recent) if self.recent else None
        speed = (self.trainer.steps - self.began_step) / seconds
        return Status(
            self.trainer.steps, self.config.steps, speed, recent, metrics.get("loss/elbo")
        )

    def write_status(self, state: str) -> None:
        """The heartbeat: what the run does and how far it is."""
        self.beat = time.monotonic()
        status = self.status({})
        write_json(
            self.files.status,
            {
                "state": state,
                "step": status.step,
                "steps": status.steps,
                "recent_return": status.recent_return,
                "steps_per_second": round(status.speed, 1),
                "pid": os.getpid(),
                "updated": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            },
        )

    def close(self) -> None:
        self.metrics_log.close()
        self.episodes_log.close()

    def _resume_sentence(self) -> str:
        sentence = f"continuing from step {self.trainer.steps:,}"
        if not self.trainer.worlds.exact_resume:
            sentence += "; this world's inner state cannot be saved: unfinished episodes begin anew"
        return sentence


def settle_config(files: RunFiles, config: RunConfig) -> RunConfig:
    """The config to run: the one asked for, if the directory holds no other."""
    if files.config.exists():
        old = from_data(read_json(files.config), str(files.config))
        changed = differences(old, config)
        if changed:
            raise UsageError(
                f"{files.root} holds a run with other settings ({'; '.join(changed)}); "
                "choose another --out, or repeat the command it was started with"
            )
    write_json(files.config, to_data(config))
    return config


def load_newest(files: RunFiles) -> tuple[checkpoints.Checkpoint | None, list[str]]:
    try:
        return checkpoints.load_newest(files.checkpoints)
    except checkpoints.Damaged as damage:
        raise RunFailed(
            f"{damage}. Nothing was changed; remove {files.checkpoints} to start the run anew"
        ) from damage


def restore(trainer: Trainer, found: checkpoints.Checkpoint, files: RunFiles) -> None:
    try:
        trainer.restore(found)
    except (RuntimeError, KeyError, AssertionError, ValueError) as error:
        raise RunFailed(
            f"the checkpoint in {files.checkpoints} does not fit this version of dvrl ({error})"
        ) from error


def write_start(files: RunFiles, device: torch.device) -> None:
    """Add this start to the run's provenance."""
    starts = read_json(files.command) if files.command.exists() else []
    versions = {"python": platform.python_version()}
    for name in ("dvrl", "torch", "numpy", "gymnasium"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    starts.append(
        {
            "command": sys.argv,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "versions": versions,
            "machine": platform.machine(),
            "device": gpu or "cpu",
            "threads": torch.get_num_threads(),
        }
    )
    write_json(files.command, starts)
