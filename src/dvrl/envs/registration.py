"""Our names in Gymnasium (without loading torch)."""

import gymnasium as gym

MOUNTAIN_HIKE = "dvrl/MountainHike-v0"
SCORE, OVER = "dvrl/score", "dvrl/over"
"""In `info` of a vector environment, where an episode to learn from is not what is reported: the
rewards to report, and where that which is reported ended."""


def register() -> None:
    """Make our worlds known; idempotent."""
    if MOUNTAIN_HIKE not in gym.registry:
        gym.register(
            id=MOUNTAIN_HIKE,
            entry_point="dvrl.envs.gym_hike:MountainHikeEnv",
            vector_entry_point="dvrl.envs.gym_hike:MountainHikeVectorEnv",
        )
