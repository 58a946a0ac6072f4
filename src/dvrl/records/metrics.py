"""Append-only logs that can be cut back to a checkpoint, and how to read them."""

import csv
import json
import os
from pathlib import Path
from typing import NamedTuple

EPISODE_HEADER = "step,return,length\n"


class Episode(NamedTuple):
    """A finished episode: the step of the run at which it ended, its raw return, its length."""

    step: int
    ret: float
    length: int


class AppendLog:
    """Lines at the end of a file; `offset` is what a checkpoint needs to cut it back."""

    def __init__(self, path: Path, offset: int, header: str = "") -> None:
        """Open at `offset`: what an interrupted run wrote behind its checkpoint is dropped."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        size = path.stat().st_size if path.exists() else 0
        if offset > size:
            raise ValueError(
                f"{path} has {size} bytes but its checkpoint was taken at {offset}: "
                "the file was changed by something else"
            )
        self._file = path.open("ab")
        self._file.truncate(offset)
        self._file.seek(offset)
        if offset == 0:
            self.write(header)

    def write(self, text: str) -> None:
        self._file.write(text.encode())
        self._file.flush()

    @property
    def length(self) -> int:
        """In bytes."""
        return self._file.tell()

    def sync(self) -> None:
        """Make it durable."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def metrics_line(values: dict[str, float | int | None]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"


def episode_line(episode: Episode) -> str:
    return f"{episode.step},{episode.ret!r},{episode.length}\n"


def read_metrics(path: Path) -> list[dict[str, float | int | None]]:
    """All complete lines; a last line that a kill cut short is left out."""
    lines = path.read_text().split("\n")
    try:
        return [json.loads(line) for line in lines[:-1]]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged: a line is not JSON ({error})") from error


def read_episodes(path: Path) -> list[Episode]:
    """All complete lines."""
    text = path.read_text()
    complete = text[: text.rfind("\n") + 1]
    rows = csv.DictReader(complete.splitlines())
    return [Episode(int(r["step"]), float(r["return"]), int(r["length"])) for r in rows]
