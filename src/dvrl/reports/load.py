"""A run's files as arrays."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dvrl.records.layout import RunFiles, read_json
from dvrl.records.metrics import Episode, read_episodes, read_metrics
from dvrl.runs.errors import UsageError


@dataclass(frozen=True)
class RunData:
    """What a report needs to know about a run."""

    name: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    episodes: list[Episode]
    starts: list[dict[str, Any]]
    evaluation: dict[str, Any] | None
    """The newest result of `dvrl evaluate`."""
    hikes: dict[str, np.ndarray] | None
    episode: dict[str, np.ndarray] | None
    """An episode of images."""
    predictions: dict[str, np.ndarray] | None
    """What `dvrl predict` recorded."""

    @property
    def sigma(self) -> float | None:
        """Observation noise, if the world is Mountain Hike."""
        return self.config["world"].get("sigma")

    @property
    def game(self) -> str | None:
        """The Atari game, if the world is one."""
        return self.config["world"].get("game")

    @property
    def unit(self) -> str:
        """What a return is of."""
        return "game" if self.game else "episode"

    @property
    def agent(self) -> str:
        kind = self.config["encoder"]["kind"]
        return {"ParticleConfig": "DVRL", "GruConfig": "RNN"}.get(kind, kind)

    @property
    def still_gap(self) -> float | None:
        """What a still picture of the recorded episode would cost, if the agent has a model."""
        still = (self.episode or {}).get("still_gap")
        return None if still is None else float(still)

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of a metric, lines without it left out."""
        points = [(m["step"], m[name]) for m in self.metrics if m.get(name) is not None]
        steps, values = zip(*points, strict=True) if points else ((), ())
        return np.array(steps, float), np.array(values, float)


def load_run(root: Path) -> RunData:
    """Read a run's directory."""
    files = RunFiles(root)
    needed = (files.config, files.metrics, files.episodes)
    missing = ", ".join(path.name for path in needed if not path.exists())
    if missing:
        raise UsageError(f"{root} is not a run: it has no {missing}")
    try:
        metrics = read_metrics(files.metrics)
    except ValueError as error:
        raise UsageError(str(error)) from error
    evaluations = sorted(files.evaluations.glob("*.json"))
    return RunData(
        name=root.resolve().name,
        config=read_json(files.config),
        metrics=metrics,
        episodes=read_episodes(files.episodes),
        starts=read_json(files.command) if files.command.exists() else [],
        evaluation=read_json(evaluations[-1]) if evaluations else None,
        hikes=read_arrays(files.trace("hikes")),
        episode=read_arrays(files.trace("episode")),
        predictions=read_arrays(files.trace("predictions")),
    )


def read_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """A trace, if it was recorded."""
    return dict(np.load(path)) if path.exists() else None
