"""Any Gymnasium environment, seen less well: blank now and then, through noise, or in part."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs

from dvrl import checks

FLATTEN = "wrap the environment with gymnasium.wrappers.FlattenObservation first"


class _ChanceObservation(gym.ObservationWrapper):
    """What is seen depends on chance.

    `chance` is this wrapper's own: it begins anew where `reset` is given a seed, and what the
    environment draws is as it was without the wrapper. `chance.bit_generator.state` is its state,
    to be kept and put back.
    """

    stream: int
    """Sets its chance apart from others with the same seed."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.chance = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self.chance = np.random.default_rng(np.random.SeedSequence([seed, self.stream]))
        return self.observation(obs), info


class FlickerObservation(_ChanceObservation, RecordConstructorArgs):
    """Each observation, that of `reset` included, is blank (all zeros) with a probability.

    Observation: as before, or zeros; bounds are widened where they exclude zero.
    Chance: `chance`, seeded by `reset` but apart from the environment's own. Its state is
    `chance.bit_generator.state`; put back, it blanks as it would have.
    Arguments: `p_blank`, the probability.
    """

    stream = 0x626C6E6B

    def __init__(self, env: gym.Env, p_blank: float = 0.5) -> None:
        self.p_blank = p_blank
        checks.probability(self, "p_blank")
        space = _box(env)
        RecordConstructorArgs.__init__(self, p_blank=p_blank)
        super().__init__(env)
        low, high = np.minimum(space.low, 0), np.maximum(space.high, 0)
        self.observation_space = Box(low, high, dtype=space.dtype)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        blank = self.chance.random() < self.p_blank
        return np.zeros_like(observation) if blank else observation


class NoisyObservation(_ChanceObservation, RecordConstructorArgs):
    """Each number that is observed, at `reset` too, has Gaussian noise on it.

    Observation: floats of the same shape and dtype, without bounds, which noise would leave.
    Chance: `chance`, seeded by `reset` but apart from the environment's own. Its state is
    `chance.bit_generator.state`; put back, the noise goes on as it would have.
    Arguments: `std`, the standard deviation of the noise.
    """

    stream = 0x6E6F6973

    def __init__(self, env: gym.Env, std: float) -> None:
        self.std = std
        checks.not_negative(self, "std")
        space = _box(env)
        if not np.issubdtype(space.dtype, np.floating):
            raise ValueError(
                f"the observation space is {space}; noise needs floats: wrap the environment with "
                "gymnasium.wrappers.DtypeObservation(env, np.float32) first"
            )
        RecordConstructorArgs.__init__(self, std=std)
        super().__init__(env)
        self.observation_space = Box(-np.inf, np.inf, space.shape, space.dtype)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        noise = self.chance.normal(0, self.std, self.observation_space.shape)
        return (observation + noise).astype(self.observation_space.dtype)


class MaskObservation(gym.ObservationWrapper, RecordConstructorArgs):
    """Only some numbers of a vector are observed: positions without speeds, for example.

    Observation: the numbers at the indices `keep`, in that order, with their bounds and dtype.
    Arguments: `keep`, different indices of the vector.
    """

    def __init__(self, env: gym.Env, keep: Sequence[int] | np.ndarray) -> None:
        space = _box(env)
        if len(space.shape) != 1:
            raise ValueError(
                f"the observation space is {space}; a mask needs a vector, Box(shape=(n,)): "
                f"{FLATTEN}"
            )
        kept, n = np.asarray(keep), space.shape[0]
        self.keep = kept.tolist()
        indices = kept.ndim == 1 and np.issubdtype(kept.dtype, np.integer)  # a list, not of bools
        if not (indices and 0 < len(set(self.keep) & set(range(n))) == kept.size):
            raise ValueError(
                f"keep is {self.keep}; it must list one or more different indices, each at least "
                f"0 and below {n}"
            )
        RecordConstructorArgs.__init__(self, keep=self.keep)
        super().__init__(env)
        self.observation_space = Box(space.low[kept], space.high[kept], dtype=space.dtype)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[self.keep]


def _box(env: gym.Env) -> Box:
    space = env.observation_space
    if not isinstance(space, Box):
        raise ValueError(f"the observation space is {space}; it must be a Box: {FLATTEN}")
    return space
