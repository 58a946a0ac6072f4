"""Settings of the worlds (no torch here: the command line reads this)."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class MountainHikeConfig:
    """Mountain Hike (paper Sec. 4.1): stay on a ridge by noisy sight of your own position."""

    sigma: float = 3.0
    """sigma_o, standard deviation of the observation noise."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ValueError(f"sigma is {self.sigma}; it must be a number not below 0")
