"""Atari games as a vector environment: the emulators of `ale_py`, stepped in C++ threads."""

import difflib
import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from dvrl.envs.registration import OVER, SCORE

INSTALL = "pip install 'dvrl[atari]'"
SIDE = 84
"""Height and width of a screen as the agent sees it."""
NOOPS = 30
"""The random start has fewer emulator frames than this."""
SKIP = 4
SKIP_OF = {"asteroids": 1}
"""Asteroids draws its rocks every other frame; the paper does not skip there."""
SEEDS = 2**31
"""The emulator's seeds lie below."""
OBSERVATION_SPACE = gym.spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8)


def rom_name(game: str) -> str:
    """`MsPacman` as `ms_pacman`, the emulator's own name; or a sentence that there is none."""
    ale = _ale()
    roms = {rom.replace("_", ""): rom for rom in ale.roms.get_all_rom_ids()}
    asked = game.replace("_", "").replace(" ", "").lower()
    if asked in roms:
        rom = roms[asked]
        if ale.ALEInterface.isSupportedROM(ale.roms.get_rom_path(rom)) is None:
            # Asked to load it, the emulator would end the process.
            raise ValueError(f"the emulator has the game {game!r} but does not know how to play it")
        return rom
    within = sorted((name for name in roms if len(name) > 3 and name in asked), key=len)
    close = within[-1:] or difflib.get_close_matches(asked, roms, n=3)  # ALE/Pong-v5 means Pong
    names = [roms[name].title().replace("_", "") for name in close]
    hint = f"did you mean {' or '.join(names)}?" if names else "names look like Pong or MsPacman"
    raise ValueError(f"there is no Atari game {game!r}; {hint}")


def game_name(game: str) -> str:
    """The game as it is called here, however it was spelled: `ms_pacman` as `MsPacman`."""
    return rom_name(game).title().replace("_", "")


def action_space(game: str) -> gym.spaces.Discrete:
    """The choices a game has."""
    games = AtariGames(game, 1)
    games.close()
    return games.single_action_space


def options(rom: str, sticky: float, max_frames: int) -> dict[str, Any]:
    """How the paper plays, in the words of `ale_py.vector_env.AtariVectorEnv`."""
    return {
        "max_num_frames_per_episode": max_frames,
        "repeat_action_probability": sticky,
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "img_height": SIDE,
        "img_width": SIDE,
        "grayscale": True,
        "stack_num": 1,
        "frameskip": SKIP_OF.get(rom, SKIP),
        "maxpool": True,
        "noop_max": NOOPS,
        "episodic_life": False,  # it would restart the whole game
        "life_loss_info": True,
        "reward_clipping": False,
        "use_fire_reset": True,
    }


def emulators(rom: str, n: int, options: dict[str, Any]) -> VectorEnv:
    """The vector environment of `ale_py`, as many threads as there are cores for it.

    Threads that are as many as the machine's cores have one each: otherwise a step takes longer
    when the agent thought before it (docs/performance.md).
    """
    kind = _ale().vector_env.AtariVectorEnv
    # Its own dictionary: it writes its mode into the one that all vector environments share.
    kind.metadata = dict(kind.metadata)
    threads = min(n, _cores())
    first_core = 0 if threads == os.cpu_count() else -1  # -1: wherever the system puts them
    return kind(rom, n, num_threads=threads, thread_affinity_offset=first_core, **options)


def _cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
    Reward: its sign. `info["dvrl/score"]` is the reward itself.
    Start: FIRE for a frame where the game knows it, then nothing; at most 29 emulator frames in
    all, a random number, beside those in which a game is set up (DoubleDunk: 13).
    End: a lost life ends an episode, the game goes on. `info["dvrl/over"]` marks whole games; these
    also end `max_frames` emulator frames after their start, which is a cut in time.
    Sticky: with this probability an emulator frame repeats the action of the frame before.
    Differences from the paper's wrappers: they pressed FIRE after the random start, and they did
    nothing for a step and pressed FIRE after a lost life, where here nothing is done on the agent's
    behalf. A game that ends, or is cut, shows as its last screen the frames before the one that
    ended it.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self, game: str, num_envs: int, sticky: float = 0.0, max_frames: int = 400_000
    ) -> None:
        rom = rom_name(game)
        self.num_envs = num_envs
        self._games = emulators(rom, num_envs, options(rom, sticky, max_frames))
        self.single_observation_space = OBSERVATION_SPACE
        self.single_action_space = self._games.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._choices = frozenset(range(int(self.single_action_space.n)))
        self._frame = np.zeros(num_envs, np.int32)
        """Emulator frames since each game began."""

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new games; a number seeds them with consecutive values."""
        if seed is not None:
            seeds = seed + np.arange(self.num_envs) if np.ndim(seed) == 0 else np.array(seed)
            seed = seeds % SEEDS
        obs, info = self._games.reset(seed=seed, options=options)
        self._frame = info["episode_frame_number"]
        return obs, info

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.send(actions)
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        """Let the games go on; `recv` waits for them."""
        actions = np.asarray(actions)
        whole = actions.dtype.kind in "iu" and actions.shape == (self.num_envs,)
        if not (whole and self._choices.issuperset(actions.tolist())):
            # The emulator's threads would end over it, and `recv` wait for ever.
            raise ValueError(
                f"the actions are {actions.tolist()}; they must be {self.num_envs} whole numbers, "
                f"each at least 0 and below {self.single_action_space.n}"
            )
        self._games.send(actions.astype(np.int64))

    def recv(self) -> tuple[Any, ...]:
        obs, score, terminated, truncated, info = self._games.recv()
        frame = info["episode_frame_number"]
        over = truncated | (terminated & (frame <= self._frame))
        self._frame = frame
        told = {"lives": info["lives"], "episode_frame_number": frame, SCORE: score, OVER: over}
        if "final_obs" in info:  # the emulator keeps the last screen of games, not of lives
            told["final_obs"] = final_obs = info["final_obs"]
            final_obs[~over] = obs[~over]
        return obs, np.sign(score).astype(np.float32), terminated, truncated, told

    def close_extras(self, **kwargs: Any) -> None:
        self.__dict__.pop("_games", None)  # the threads end with it
