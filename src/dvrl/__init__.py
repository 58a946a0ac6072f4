"""Deep variational reinforcement learning: agents that act on a learned belief.

The names below load torch only when they are used, so that `dvrl --help` answers at once.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

if Path(sys.argv[0]).name != "dvrl":  # the command itself registers what it needs, and is quicker
    from dvrl.envs.registration import register

    register()

_LAZY = {
    "MountainHikeConfig": "dvrl.envs.config",
    "GymConfig": "dvrl.envs.config",
    "AtariConfig": "dvrl.envs.config",
    "FlickerObservation": "dvrl.envs.wrappers",
    "NoisyObservation": "dvrl.envs.wrappers",
    "MaskObservation": "dvrl.envs.wrappers",
    "ParticleConfig": "dvrl.encoders.config",
    "GruConfig": "dvrl.encoders.config",
    "PolicyConfig": "dvrl.agents.config",
    "A2CConfig": "dvrl.learners.config",
    "RunConfig": "dvrl.runs.config",
    "preset": "dvrl.experiments.presets",
    "train": "dvrl.runs.train",
    "choose_display": "dvrl.runs.progress",
    "UsageError": "dvrl.runs.errors",
    "RunFailed": "dvrl.runs.errors",
    "Interrupted": "dvrl.runs.errors",
    "evaluate_run": "dvrl.runs.evaluate",
    "Player": "dvrl.runs.player",
    "load": "dvrl.runs.player",
}
__all__ = sorted(_LAZY)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dvrl' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
