"""A run on disk: where its files lie and how they are written, so that a kill loses nothing.

config.json       the resolved settings, class names beside fields
command.json      the command, versions and machine of every start
status.json       state, step and speed; rewritten as a heartbeat
metrics.jsonl     one line per logging interval; append-only
episodes.csv      one line per finished episode: step, return, length; append-only
events/           the same metrics for TensorBoard
checkpoints/      step-.../ directories, the two newest kept
evaluations/      results of `dvrl evaluate`
traces/           recorded episodes and predictions, from which pictures are drawn
plots/, report.html
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunFiles:
    """The files of the run in directory `root`."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def command(self) -> Path:
        return self.root / "command.json"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        return self.root / "episodes.csv"

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluations"

    @property
    def traces(self) -> Path:
        return self.root / "traces"

    def trace(self, name: str) -> Path:
        """Arrays of one kind: `hikes`, an `episode` of images, `predictions` at moments of it."""
        return self.traces / f"{name}.npz"

    @property
    def plots(self) -> Path:
        return self.root / "plots"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def weights(self) -> Path:
        """Of a saved agent; a run keeps its weights in checkpoints."""
        return self.root / "weights.safetensors"

    @property
    def manifest(self) -> Path:
        """Checksums of a saved agent."""
        return self.root / "manifest.json"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"


def write_atomic(path: Path, content: bytes, durable: bool = True) -> None:
    """The file is either as it was or holds all of `content`, whatever happens meanwhile.

    What need not outlast a power cut need not be waited for: some disks take a tenth of a second.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    write_atomic(path, (json.dumps(value, indent=2) + "\n").encode(), durable)


def read_json(path: Path) -> Any:
    """The file's content, or a ValueError that names the file."""
    try:
        return json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error})") from error
