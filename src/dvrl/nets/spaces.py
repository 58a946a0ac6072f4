"""From a world's spaces to the sizes of networks."""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from dvrl.nets.heads import CategoricalPolicy, GaussianPolicy, PolicyHead
from dvrl.nets.sight import SIDE, ImageSight, Sight, VectorSight


@dataclass(frozen=True)
class Spec:
    """Observations are real vectors, or images; actions are real vectors or one of several
    choices."""

    obs_shape: tuple[int, ...]
    """`D` of a vector, `C 84 84` of an image."""
    action_dim: int
    """Length of an action vector, or the number of choices."""
    discrete: bool

    @classmethod
    def from_spaces(cls, obs: gym.Space, action: gym.Space) -> "Spec":
        """The sizes of one environment's spaces, or a sentence about what is not supported."""
        if not (isinstance(obs, gym.spaces.Box) and (len(obs.shape) == 1 or _is_image(obs))):
            raise ValueError(
                f"the observation space is {obs}; supported are vectors, Box(shape=(n,)): "
                "wrap the environment with gymnasium.wrappers.FlattenObservation; and images of "
                f"bytes, Box(0, 255, (channels, {SIDE}, {SIDE}), uint8)"
            )
        if isinstance(action, gym.spaces.Discrete):
            if action.start != 0:
                raise ValueError(f"the action space is {action}; its choices must start at 0")
            return cls(obs.shape, int(action.n), discrete=True)
        if isinstance(action, gym.spaces.Box) and len(action.shape) == 1:
            if not np.issubdtype(action.dtype, np.floating):
                raise ValueError(f"the action space is {action}; its numbers must be floats")
            return cls(obs.shape, action.shape[0], discrete=False)
        raise ValueError(
            f"the action space is {action}; supported are Discrete(n) and Box(shape=(n,))"
        )

    @property
    def image(self) -> bool:
        return len(self.obs_shape) == 3

    def sight(self, embed_dim: int, min_var: float, norm: bool) -> Sight:
        """The networks that fit the observations."""
        if self.image:
            return ImageSight(self.obs_shape[0], norm)
        return VectorSight(self.obs_shape[0], embed_dim, min_var)

    def policy(self, feature_dim: int, initial_std: float, mean_bound: float | None) -> PolicyHead:
        """The policy head that fits the actions."""
        if self.discrete:
            return CategoricalPolicy(feature_dim, self.action_dim)
        return GaussianPolicy(feature_dim, self.action_dim, initial_std, mean_bound)


def _is_image(obs: gym.spaces.Box) -> bool:
    return obs.dtype == np.uint8 and len(obs.shape) == 3 and obs.shape[1:] == (SIDE, SIDE)
