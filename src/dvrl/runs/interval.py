"""Metrics between two lines of the log."""

from typing import Any

from dvrl.records.metrics import Episode


class Interval:
    """Sums of the windows since the last line of metrics; saved with every checkpoint."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        data = data or {"sums": {}, "windows": 0, "returns": [], "lengths": [], "logged": 0}
        self.sums: dict[str, float] = data["sums"]
        self.windows: int = data["windows"]
        self.returns: list[float] = data["returns"]
        self.lengths: list[int] = data["lengths"]
        self.logged: int = data["logged"]

    def to_data(self) -> dict[str, Any]:
        return vars(self)

    def add(self, metrics: dict[str, float], episodes: list[Episode]) -> None:
        self.sums = {name: self.sums.get(name, 0.0) + value for name, value in metrics.items()}
        self.windows += 1
        self.returns += [e.ret for e in episodes]
        self.lengths += [e.length for e in episodes]

    def take(self, step: int) -> dict[str, float | int | None]:
        """The means, and a new interval."""
        n = len(self.returns)
        values: dict[str, float | int | None] = {
            "step": step,
            "episodes": n,
            "return": sum(self.returns) / n if n else None,
            "length": sum(self.lengths) / n if n else None,
        }
        values |= {name: total / self.windows for name, total in self.sums.items()}
        self.__init__({"sums": {}, "windows": 0, "returns": [], "lengths": [], "logged": step})
        return values
