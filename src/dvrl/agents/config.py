"""Settings of the policy (no torch here: the command line reads this)."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyConfig:
    """The law over actions on top of the belief's feature."""

    initial_std: float = 1.0
    """Continuous actions: standard deviation at the start, in the world's units."""
    mean_bound: float | None = None
    """Continuous actions: longest mean, its direction kept; None leaves the mean free (paper)."""

    def __post_init__(self) -> None:
        for name in ("initial_std", "mean_bound"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}; it must be a positive number")
