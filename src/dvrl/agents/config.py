"""Settings of the policy (no torch here: the command line reads this)."""

from dataclasses import dataclass

from dvrl import checks


@dataclass(frozen=True)
class PolicyConfig:
    """The law over actions on top of the belief's feature."""

    initial_std: float = 1.0
    """Continuous actions: standard deviation at the start, in the world's units."""
    mean_bound: float | None = None
    """Continuous actions: longest mean, its direction kept; None leaves the mean free (paper)."""
    batch_norm: bool = False
    """Normalise the feature before policy and value by a step's statistics over all environments
    (the paper's choice for Atari)."""

    def __post_init__(self) -> None:
        checks.positive(self, "initial_std")
        if self.mean_bound is not None:
            checks.positive(self, "mean_bound")
