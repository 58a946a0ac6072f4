"""Mountain Hike with a Gymnasium face: one environment, and the vector form on the same physics.

`gymnasium.make("dvrl/MountainHike-v0", sigma=3.0)` after `import dvrl`;
`gymnasium.make_vec("dvrl/MountainHike-v0", num_envs=16, sigma=3.0)` for the vector form.
The specification is the docstring of `dvrl.envs.mountain_hike`. The hidden position is in
`info["position"]`. The noise depends on the seed alone, never on the actions: two agents that
reset with the same seed walk through the same noise.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from dvrl.envs import mountain_hike
from dvrl.envs.config import MountainHikeConfig
from dvrl.envs.mountain_hike import MountainHike

OBSERVATION_SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTION_SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
PIXELS = 240


class MountainHikeEnv(gym.Env):
    """One hike. Pictures show the reward map, the path so far and the last observation."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = OBSERVATION_SPACE
    action_space = ACTION_SPACE

    def __init__(self, sigma: float = 3.0, render_mode: str | None = None) -> None:
        sigma = MountainHikeConfig(sigma).sigma
        self.render_mode = render_mode
        self._world = MountainHike(1, sigma, seed=0)
        self._path: list[np.ndarray] = []
        self._obs = np.zeros(2, np.float32)
        self._background: np.ndarray | None = None

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not self._path:
            self._world.generator.manual_seed(int(self.np_random.integers(2**31)))
        self._obs = self._world.reset()[0].numpy()
        position = self._world.position[0].numpy().copy()
        self._path = [position]
        return self._obs.copy(), {"position": position}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._path:
            raise gym.error.ResetNeeded("call reset() before step()")
        step = self._world.step(torch.as_tensor(np.asarray(action, np.float32))[None])
        self._obs = step.final_obs[0].numpy()
        position = self._world.reached[0].numpy().copy()
        self._path.append(position)
        info = {"position": position}
        return self._obs.copy(), float(step.reward[0]), False, bool(step.truncated[0]), info

    def render(self) -> np.ndarray | None:
        if self.render_mode != "rgb_array":
            return None
        if not self._path:
            raise gym.error.ResetNeeded("call reset() before render()")
        if self._background is None:
            self._background = draw_map(PIXELS)
        picture = self._background.copy()
        for point in self._path:
            draw_square(picture, point, 1, (0, 0, 0))
        draw_square(picture, self._obs, 2, (0, 200, 255))
        draw_square(picture, self._path[-1], 3, (255, 255, 255))
        return picture


class MountainHikeVectorEnv(VectorEnv):
    """N hikes in one call; ended episodes restart in the same step."""

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = 1, sigma: float = 3.0) -> None:
        sigma = MountainHikeConfig(sigma).sigma
        self.num_envs = num_envs
        self.single_observation_space = OBSERVATION_SPACE
        self.single_action_space = ACTION_SPACE
        self.observation_space = batch_space(OBSERVATION_SPACE, num_envs)
        self.action_space = batch_space(ACTION_SPACE, num_envs)
        self._world = MountainHike(num_envs, sigma, seed=0)
        self._seeded = False

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self._world.generator.manual_seed(int(self.np_random.integers(2**31)))
            self._seeded = True
        obs = self._world.reset().numpy()
        return obs, {"position": self._world.position.numpy().copy()}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        step = self._world.step(torch.as_tensor(np.asarray(actions, np.float32)))
        truncated = step.truncated.numpy()
        info: dict[str, Any] = {"position": self._world.position.numpy().copy()}
        info["_position"] = np.ones(self.num_envs, bool)
        if truncated.any():
            info["final_obs"] = step.final_obs.numpy()
            info["final_info"] = {"position": self._world.reached.numpy().copy()}
            info["_final_obs"] = info["_final_info"] = truncated
        reward = step.reward.numpy().astype(np.float64)
        return step.obs.numpy(), reward, step.terminated.numpy(), truncated, info


def draw_map(pixels: int) -> np.ndarray:
    """The reward map as an RGB picture, north up; a little of the outside is shown."""
    side = torch.linspace(-1.1, 1.1, pixels) * mountain_hike.BOX
    x, y = torch.meshgrid(side, side.flip(0), indexing="xy")
    reward = mountain_hike.reward_map(torch.stack([x, y], -1)).numpy()
    level = ((reward + 5) / 5).clip(0, 1)
    # black - violet - red - yellow, the order of gnuplot's palette
    red, green, blue = level**0.5, level**3, np.sin(2 * np.pi * level).clip(0, 1)
    picture = np.stack([red, green, blue], -1)
    return (255 * picture).astype(np.uint8)


def draw_square(picture: np.ndarray, point: np.ndarray, radius: int, colour: tuple) -> None:
    """A filled square around `point`; nothing where it lies outside the picture."""
    pixels = picture.shape[0]
    column = int((point[0] / mountain_hike.BOX / 1.1 + 1) / 2 * (pixels - 1))
    row = int((1 - point[1] / mountain_hike.BOX / 1.1) / 2 * (pixels - 1))
    if 0 <= column < pixels and 0 <= row < pixels:
        rows = slice(max(row - radius, 0), row + radius + 1)
        picture[rows, max(column - radius, 0) : column + radius + 1] = colour
