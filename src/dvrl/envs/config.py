"""Settings of the worlds (no torch here: the command line reads this)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dvrl import checks

if TYPE_CHECKING:
    import gymnasium as gym
    import torch
    from gymnasium.vector import VectorEnv

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

    @property
    def short(self) -> str:
        """A word for names of files."""
        return f"hike{self.sigma:g}"

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
    """Any Gymnasium environment with vectors, or images of 84 x 84 bytes, as observations."""

    id: str = "CartPole-v1"
    """The name `gymnasium.make` knows it by."""
    flicker: float = 0.0
    """Probability with which an observation is blanked."""

    def __post_init__(self) -> None:
        checks.probability(self, "flicker")

    @property
    def name(self) -> str:
        return self.id

    @property
    def short(self) -> str:
        """A word for names of files."""
        return self.id.replace("/", "-")

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

        return GymWorlds.make(self.id, n, seed, device, share or WHOLE, self.flicker)


@dataclass(frozen=True)
class AtariConfig:
    """Flickering Atari (paper Sec. 4.2): a game seen one screen at a time, half of them blank."""

    game: str = "Pong"
    """Pong, MsPacman, ...: any game the emulator knows."""
    variant: Literal["stochastic", "deterministic"] = "stochastic"
    """stochastic: an emulator frame repeats the action of the frame before with probability 0.25;
    deterministic: never."""
    flicker: float = 0.5
    """Probability with which a screen is blanked."""
    max_frames: int = 400_000
    """Emulator frames after which a game is cut."""

    def __post_init__(self) -> None:
        checks.probability(self, "flicker")
        checks.at_least(self, 1, "max_frames")
        if self.max_frames >= 2**31:
            raise ValueError(f"max_frames is {self.max_frames}; it must be below 2**31")
        if self.variant not in ("stochastic", "deterministic"):
            raise ValueError(f"variant is {self.variant!r}; it must be stochastic or deterministic")

    @property
    def name(self) -> str:
        flicker = "flickering " if self.flicker else ""
        return f"{flicker}{self.game}, {self.variant}"

    @property
    def short(self) -> str:
        """A word for names of files."""
        return f"{self.game.lower()}-{self.variant}"

    def spaces(self) -> "tuple[gym.Space, gym.Space]":
        """Observation and action space of one environment."""
        from dvrl.envs.atari import OBSERVATION_SPACE, action_space

        return OBSERVATION_SPACE, action_space(self.game)

    def make(
        self, n: int, seed: int, device: "torch.device", share: "Share | None" = None
    ) -> "Worlds":
        """`n` worlds on the host, their tensors on `device`; likewise."""
        from dvrl.chance import WHOLE
        from dvrl.envs.atari import AtariGames
        from dvrl.envs.flicker import FlickerVector
        from dvrl.envs.gym_worlds import GymWorlds

        share = share or WHOLE
        games = AtariGames(self.game, n, self.sticky, self.max_frames)
        return GymWorlds(FlickerVector(games, self.flicker, seed, share), seed, device, share)

    @property
    def sticky(self) -> float:
        """Probability with which an emulator frame repeats the action of the frame before."""
        return 0.25 if self.variant == "stochastic" else 0.0

    def emulators(self, n: int) -> "VectorEnv":
        """The emulators themselves, as they are set up for `make`."""
        from dvrl.envs.atari import emulators, options, rom_name

        rom = rom_name(self.game)
        return emulators(rom, n, options(rom, self.sticky, self.max_frames))


WorldConfig = MountainHikeConfig | GymConfig | AtariConfig
