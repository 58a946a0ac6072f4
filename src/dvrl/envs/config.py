"""Settings of the worlds (no torch here: the command line reads this)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dvrl import checks

if TYPE_CHECKING:
    import gymnasium as gym
    import torch

    from dvrl.chance import Share
    from dvrl.envs.worlds import Worlds


@dataclass(frozen=True)
class MountainHikeConfig:
    """Mountain Hike (paper Sec. 4.1): stay on a ridge by noisy sight of your own position."""

    sigma: float = 3.0
    """sigma_o, standard deviation of the observation noise."""

    def __post_init__(self) -> None:
        checks.not_negative(self, "sigma")

    @property
    def name(self) -> str:
        return f"Mountain Hike, sigma_o = {self.sigma:g}"

    def spaces(self) -> "tuple[gym.Space, gym.Space]":
        """Observation and action space of one environment."""
        from dvrl.envs.gym_hike import ACTION_SPACE, OBSERVATION_SPACE

        return OBSERVATION_SPACE, ACTION_SPACE

    def make(
        self, n: int, seed: int, device: "torch.device", share: "Share | None" = None
    ) -> "Worlds":
        """`n` worlds on `device`; of a run over several processes, those of one `share`."""
        from dvrl.chance import WHOLE
        from dvrl.envs.mountain_hike import MountainHike

        return MountainHike(n, self.sigma, seed, device, share or WHOLE)


@dataclass(frozen=True)
class GymConfig:
    """Any Gymnasium environment with vector observations."""

    id: str = "CartPole-v1"
    """The name `gymnasium.make` knows it by."""

    @property
    def name(self) -> str:
        return self.id

    def spaces(self) -> "tuple[gym.Space, gym.Space]":
        """Observation and action space of one environment."""
        from dvrl.envs.gym_worlds import make_env

        env = make_env(self.id)
        try:
            return env.observation_space, env.action_space
        finally:
            env.close()

    def make(
        self, n: int, seed: int, device: "torch.device", share: "Share | None" = None
    ) -> "Worlds":
        """`n` worlds on the host, their tensors on `device`; likewise."""
        from dvrl.chance import WHOLE
        from dvrl.envs.gym_worlds import GymWorlds

        return GymWorlds.make(self.id, n, seed, device, share or WHOLE)


WorldConfig = MountainHikeConfig | GymConfig
