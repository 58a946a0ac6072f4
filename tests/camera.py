"""Mountain Hike seen by a camera: a small world with images for agents that have eyes."""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from dvrl.envs.gym_hike import ACTION_SPACE
from dvrl.envs.mountain_hike import MountainHike
from dvrl.envs.worlds import Step
from dvrl.nets.spaces import Spec

SIDE = 84
SPEC = Spec.from_spaces(gym.spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8), ACTION_SPACE)


class Camera(MountainHike):
    """What is observed is a bright spot at the place that the hiker believes to see."""

    def reset(self) -> Tensor:
        return picture(super().reset())

    def step(self, *args, **kwargs) -> Step:
        step = super().step(*args, **kwargs)
        return step._replace(obs=picture(step.obs), final_obs=picture(step.final_obs))


def picture(place: Tensor) -> Tensor:
    """A spot of light in the box of the mountains, on a ground that is not quite dark."""
    side = torch.linspace(-12, 12, SIDE).to(place)
    x, y = (torch.exp(-0.2 * (side - place[:, i, None]) ** 2) for i in range(2))
    return 0.1 + 0.8 * (y[:, :, None] * x[:, None, :])[:, None]  # N, 1, 84, 84
