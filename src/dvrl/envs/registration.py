"""Makes our worlds known to Gymnasium (without loading torch)."""

import gymnasium as gym

MOUNTAIN_HIKE = "dvrl/MountainHike-v0"


def register() -> None:
    """Idempotent."""
    if MOUNTAIN_HIKE not in gym.registry:
        gym.register(
            id=MOUNTAIN_HIKE,
            entry_point="dvrl.envs.gym_hike:MountainHikeEnv",
            vector_entry_point="dvrl.envs.gym_hike:MountainHikeVectorEnv",
        )
