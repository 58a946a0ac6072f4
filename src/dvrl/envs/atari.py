"""Atari games as a vector environment: the emulators of `ale_py`, stepped in C++ threads."""

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

INSTALL = "pip install 'dvrl[atari]'"
SIDE = 84
"""Height and width of a screen as the agent sees it."""
STICKY = 0.25
NOOPS = 30
SKIP = 4
SKIP_OF = {"asteroids": 1}
"""Asteroids draws its rocks every other frame; the paper does not skip there."""
OBSERVATION_SPACE = gym.spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8)


def rom_name(game: str) -> str:
    """`MsPacman` as `ms_pacman`, the emulator's own name; a sentence where there is no such game."""
    roms = _ale().roms.get_all_rom_ids()
    spelled = "".join("_" + c.lower() if c.isupper() else c for c in game).lstrip("_")
    if spelled in roms:
        return spelled
    joined = {rom.replace("_", ""): rom for rom in roms}
    found = joined.get(game.replace("_", "").lower())
    if found is None:
        raise ValueError(
            f"there is no Atari game {game!r}; names look like Pong or MsPacman, and ale_py knows "
            f"{len(roms)} of them: {', '.join(sorted(roms))}"
        )
    return found


def action_space(game: str) -> gym.spaces.Discrete:
    """The choices a game has."""
    return AtariGames(game, 1).single_action_space


def _ale() -> Any:
    try:
        import ale_py
        import ale_py.roms
        import ale_py.vector_env
    except ImportError as error:
        raise ValueError(f"Atari worlds need the package ale_py: {INSTALL}") from error
    return ale_py


class AtariGames(VectorEnv):
    """N games of one kind, as the paper plays them.

    World: a game of the Atari 2600. Each action is held for four emulator frames (one in
    Asteroids), rewards are summed.
    Observation: `1 84 84` bytes, the brighter of the last two frames, grey and scaled down.
    Action: one of the game's own choices; 0 is to do nothing.
    Reward: its sign. `info["score"]` is the reward itself.
    Start: 1 to 30 frames of doing nothing, then FIRE where the game knows it.
    End: a lost life ends an episode, the game goes on. `info["over"]` marks whole games; these also
    end after `max_frames` emulator frames, which is a cut in time.
    Sticky: with this probability an emulator frame repeats the action of the frame before.
    Differences from the paper's wrappers: after a lost life nothing is done on the agent's behalf
    (they did nothing for a step and pressed FIRE).
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self, game: str, num_envs: int, sticky: float = 0.0, max_frames: int = 400_000
    ) -> None:
        rom = rom_name(game)
        self.num_envs = num_envs
        self._games = _ale().vector_env.AtariVectorEnv(
            rom,
            num_envs,
            num_threads=min(num_envs, len(os.sched_getaffinity(0))),
            max_num_frames_per_episode=max_frames,
            repeat_action_probability=sticky,
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=SIDE,
            img_width=SIDE,
            grayscale=True,
            stack_num=1,
            frameskip=SKIP_OF.get(rom, SKIP),
            maxpool=True,
            noop_max=NOOPS,
            episodic_life=False,  # it would restart the whole game
            life_loss_info=True,
            reward_clipping=False,
            use_fire_reset=True,
        )
        self.single_observation_space = OBSERVATION_SPACE
        self.single_action_space = self._games.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._frame = np.zeros(num_envs, np.int32)
        """Emulator frames since each game began."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = self._games.reset(seed=seed, options=options)
        self._frame = info["episode_frame_number"].copy()
        return obs, info

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.send(actions)
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        """Let the games go on; `recv` waits for them."""
        self._games.send(actions)

    def recv(self) -> tuple[Any, ...]:
        obs, score, terminated, truncated, info = self._games.recv()
        frame = info["episode_frame_number"]
        over = truncated | (terminated & (frame <= self._frame))
        self._frame = frame.copy()
        told = {"lives": info["lives"], "score": score, "over": over}
        if "final_obs" in info:  # the emulator keeps the last screen of games, not of lives
            told["final_obs"] = np.where(over[:, None, None, None], info["final_obs"], obs)
        return obs, np.sign(score).astype(np.float32), terminated, truncated, told

    def close_extras(self, **kwargs: Any) -> None:
        self._games.close()
