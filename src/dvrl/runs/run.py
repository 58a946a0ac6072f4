"""One run: a trainer with its files."""

import os
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

import torch

from dvrl.learners.engine import EngineName
from dvrl.learners.group import ALONE, Group
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
from dvrl.runs.background import Background
from dvrl.runs.config import RunConfig
from dvrl.runs.errors import NotANumber, RunFailed
from dvrl.runs.guard import StopFlag
from dvrl.runs.interval import Interval
from dvrl.runs.progress import Display, Status
from dvrl.runs.resume import continue_from_checkpoint, made_with, write_start
from dvrl.runs.sinks import Sink, guarded, tensorboard_sink
from dvrl.runs.trainer import Trainer

RECENT = 200
"""Episodes in the running mean that a run shows of itself."""
HEARTBEAT_SECONDS = 5.0
COMPILING = "compiling kernels for the GPU (a minute or two, once)"


GO, SAVE, STOP, END = range(4)
"""What the leading process tells the others: one more window, one and save, or none any more."""


class Run:
    """A trainer with its files."""

    def __init__(
        self,
        config: RunConfig,
        files: RunFiles,
        device: torch.device,
        engine: EngineName,
        display: Display,
        sinks: Sequence[Sink],
        group: Group = ALONE,
    ) -> None:
        self.config = config
        self.files = files
        self.display = display
        self.group = group
        self.background = Background()
        self.trainer = Trainer(config, device, engine, group)
        self.made_with = made_with(device, self.trainer.engine.name)
        found, said = continue_from_checkpoint(self.trainer, files, self.made_with)
        for sentence in said:
            display.say(sentence)
        group.agree(self.trainer.steps)
        numbers = found or {"metrics_bytes": 0, "episodes_bytes": 0, "interval": {}}
        self.saved_step, self.saved_at = self.trainer.steps, time.monotonic()
        self.metrics_log = AppendLog(files.metrics, numbers["metrics_bytes"])
        self.episodes_log = AppendLog(files.episodes, numbers["episodes_bytes"], EPISODE_HEADER)
        self.interval = Interval(**numbers["interval"])
        self.recent = deque((e.ret for e in read_episodes(files.episodes)), maxlen=RECENT)
        self.sinks = [guarded(sink, "a metric sink") for sink in sinks]
        self.events = None
        if self.trainer.steps < config.steps:
            write_start(files, device)
            self.events = tensorboard_sink(files.events, purge_step=self.trainer.steps + 1)
        if self.events is not None:
            self.sinks.append(guarded(self.events, "TensorBoard"))
        self.began, self.began_step = time.monotonic(), self.trainer.steps
        self.beat = 0.0

    def announce(self) -> None:
        """Say why the next window will take long, if it will."""
        if self.trainer.compiles_next:
            self.display.say(COMPILING)

    def advance(self, stop: StopFlag, checkpoint_seconds: float) -> bool:
        """Write down the oldest window under way; False when the run has ended or was stopped.

        The next windows are launched before this one is waited for, unless it is time to save:
        then those under way are taken first, since state is whole only between windows.
        """
        trainer = self.trainer
        if trainer.steps >= self.config.steps:
            self.group.agree(END)
            self.finish()
            return False
        stopped = stop.signal_number is not None
        if stopped and not trainer.engine.under_way:
            self.group.agree(STOP)
            self.save()
            self.background.settle()
            self.write_status("interrupted")
            return False
        pause = stopped or time.monotonic() - self.saved_at >= checkpoint_seconds
        self.group.agree(SAVE if pause else GO)
        self.announce()
        if not pause:
            trainer.fill()
        try:
            window = trainer.window()
        except NotANumber as error:
            self.background.settle()
            raise RunFailed(
                f"{error} (the checkpoint at step {self.saved_step:,} is good)"
            ) from error
        self.record(window.metrics, window.episodes)
        if pause and not trainer.engine.under_way:
            self.save()
        return True

    def finish(self) -> None:
        """Save, and close the last interval of metrics."""
        self.save()
        self.background.settle()
        if self.interval.windows:
            # Behind the checkpoint: a run that is continued cuts this line off and completes it.
            self.write_metrics(self.trainer.steps)
        if self.trainer.steps > self.began_step or not self._has_finished():
            self.write_status("finished")

    def _has_finished(self) -> bool:
        """Whether an earlier start said so."""
        status = self.files.status
        return status.exists() and read_json(status).get("state") == "finished"

    def record(self, metrics: dict[str, float], episodes: list[Episode]) -> None:
        """Write down a window: its episodes now, its metrics when their interval is full."""
        self.interval.add(metrics, episodes)
        self.recent.extend(e.ret for e in episodes)
        self.episodes_log.write("".join(map(episode_line, episodes)))
        step = self.trainer.steps
        if step // self.config.log_every > self.interval.logged // self.config.log_every:
            self.write_metrics(step)
            self.interval = Interval(logged=step)
        self.display.show(self.status(metrics))
        if time.monotonic() - self.beat > HEARTBEAT_SECONDS:
            self.write_status("running")

    def write_metrics(self, step: int) -> None:
        values = self.interval.means(step)
        self.metrics_log.write(metrics_line(values))
        shown = {k: float(v) for k, v in values.items() if k != "step" and v is not None}
        for sink in self.sinks:
            sink(step, shown)

    def save(self) -> None:
        """Begin to write a checkpoint, unless nothing happened since the last one."""
        self.saved_at = time.monotonic()
        if self.trainer.steps == self.saved_step:
            return
        numbers = {
            "metrics_bytes": self.metrics_log.length,
            "episodes_bytes": self.episodes_log.length,
            "interval": self.interval.to_data(),
            "made_with": self.made_with,
        }
        step, checkpoint = self.trainer.steps, self.trainer.checkpoint(numbers).on_host()
        self.background.do(partial(self.write_checkpoint, step, checkpoint))
        self.saved_step = step

    def write_checkpoint(self, step: int, checkpoint: checkpoints.Checkpoint) -> None:
        """The logs first: a checkpoint names a place in them."""
        self.metrics_log.sync()
        self.episodes_log.sync()
        checkpoints.save(self.files.checkpoints, step, checkpoint)

    def status(self, metrics: dict[str, float]) -> Status:
        seconds = max(time.monotonic() - self.began, 1e-9)
        recent = sum(self.recent) / len(self.recent) if self.recent else None
        speed = (self.trainer.steps - self.began_step) / seconds
        model = metrics.get("loss/elbo"), metrics.get("belief/gap")
        return Status(self.trainer.steps, self.config.steps, speed, recent, *model)

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
            durable=state != "running",
        )

    def close(self) -> None:
        self.background.close()
        self.metrics_log.close()
        self.episodes_log.close()
        if self.events is not None:
            self.events.close()


class Follower:
    """One of the processes that train a run together and keep no files."""

    def __init__(
        self,
        config: RunConfig,
        files: RunFiles,
        device: torch.device,
        group: Group,
    ) -> None:
        self.group = group
        self.trainer = Trainer(config, device, "eager", group)
        step = group.agree(0)  # where the leader continues
        if step:
            self.trainer.restore(checkpoints.load(checkpoints.at(files.checkpoints, step)))
        self.saved_step = self.trainer.steps

    def loop(self) -> None:
        """Windows in step with the leader, until it says that it was the last."""
        while (order := self.group.agree(GO)) in (GO, SAVE):
            self.trainer.window()
            if order == SAVE:
                self.save()
        self.save()

    def save(self) -> None:
        """Hand this process's rows to the leader's checkpoint."""
        if self.trainer.steps != self.saved_step:
            self.trainer.checkpoint({})
            self.saved_step = self.trainer.steps
