"""How a run shows itself: a live line on a terminal, plain lines elsewhere."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Watcher = Callable[[int, int], None]
"""Is told, after every step, the episodes finished and the decisions played in all."""


class Status(NamedTuple):
    """Where a run stands."""

    step: int
    steps: int
    speed: float
    """Environment steps per second since this start."""
    recent_return: float | None
    """Mean return of the last finished episodes."""
    elbo: float | None
    """Model loss in nats per step."""
    gap: float | None = None
    """How far that is above its floor, where there is one."""


@runtime_checkable
class Display(Protocol):
    """Someone who watches a run."""

    def say(self, sentence: str) -> None: ...

    def show(self, status: Status) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Nobody watches."""

    def say(self, sentence: str) -> None:
        pass

    def show(self, status: Status) -> None:
        pass

    def close(self) -> None:
        pass


class PlainDisplay:
    """A line every few seconds, for logs and pipes; `label` tells runs apart."""

    def __init__(self, seconds: float = 10.0, label: str = "") -> None:
        self.seconds = seconds
        self.label = label
        self._last = 0.0

    def say(self, sentence: str) -> None:
        with suppress(BrokenPipeError):  # whoever listened has gone; the run goes on
            print(f"{self.label}{sentence}", flush=True)

    def show(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._last >= self.seconds or status.step >= status.steps:
            self._last = now
            self.say(f"step {status.step:,} of {status.steps:,}  {_words(status)}")

    def close(self) -> None:
        pass


class LiveDisplay:
    """A progress bar with the numbers people look at; several runs share one `Progress`."""

    def __init__(self, progress: Progress, label: str = "") -> None:
        self._progress = progress
        self.label = label
        self._task = None

    def say(self, sentence: str) -> None:
        self._progress.console.print(f"{self.label}{sentence}", markup=False, highlight=False)

    def show(self, status: Status) -> None:
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task("", total=status.steps, completed=status.step)
        words = f"{self.label}{_words(status)}"
        self._progress.update(self._task, completed=status.step, description=words)

    def close(self) -> None:
        self._progress.stop()


def choose_display() -> Display:
    """Live on a terminal, plain lines elsewhere."""
    return choose_displays([""])[0]


def choose_displays(labels: Sequence[str]) -> list[Display]:
    """A display for each run, live on a terminal, plain lines elsewhere.

    Of several processes that train one run together the first speaks for all.
    """
    if os.environ.get("RANK", "0") != "0":
        return [Silent() for _ in labels]
    console = Console()
    if not console.is_terminal:
        return [PlainDisplay(label=label) for label in labels]
    progress = Progress(
        BarColumn(bar_width=30),
        TextColumn("step {task.completed:,.0f}  {task.description}"),
        TimeRemainingColumn(),
        console=console,
    )
    return [LiveDisplay(progress, label) for label in labels]


def _words(status: Status) -> str:
    parts = [f"return {status.recent_return:.1f}"] if status.recent_return is not None else []
    if status.gap is not None:
        parts.append(f"model gap {status.gap:.1f} nats/step")
    elif status.elbo:
        parts.append(f"model {status.elbo:.2f} nats/step")
    return "  ".join([*parts, f"{status.speed:,.0f} steps/s"])


def nobody(finished: int, decisions: int) -> None:
    """Nobody watches."""


@contextmanager
def watching(episodes: int) -> Iterator[Watcher]:
    """A bar on stderr, if that is a terminal."""
    console = Console(stderr=True)
    columns = (
        BarColumn(bar_width=30),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} episodes  {task.description}"),
        TimeElapsedColumn(),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=episodes)

        def watch(finished: int, decisions: int) -> None:
            words = f"{decisions:,} decisions"
            progress.update(task, completed=finished, description=words)

        yield watch
