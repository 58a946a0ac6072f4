"""Metrics between two lines of the log."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from dvrl.records.metrics import Episode


@dataclass
class Interval:
    """Sums of the windows since the last line of metrics; saved with every checkpoint."""

    logged: int = 0
    """The step of that line."""
    windows: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    def add(self, metrics: dict[str, float], episodes: list[Episode]) -> None:
        self.sums = {name: self.sums.get(name, 0.0) + value for name, value in metrics.items()}
        self.windows += 1
        self.returns += [e.ret for e in episodes]
        self.lengths += [e.length for e in episodes]

    def means(self, step: int) -> dict[str, float | int | None]:
        """The line of metrics for `step`; null is what is not a number."""
        n = len(self.returns)
        values: dict[str, float | int | None] = {
            "step": step,
            "episodes": n,
            "return": sum(self.returns) / n if n else None,
            "length": sum(self.lengths) / n if n else None,
        }
        for name, total in self.sums.items():
            values[name] = total / self.windows if math.isfinite(total) else None
        return values
