"""Flickering: now and then an observation is blank (paper Sec. 4.2)."""

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from torch import Tensor

from dvrl import chance, checks

STREAM = 0x666C6963
"""Sets the flicker's chance apart from that of the worlds, which take the run's seed itself."""


class FlickerVector(VectorWrapper):
    """Any vector environment; each observation is blanked (all zeros) with a probability.

    Its chance is a stream of its own, `generator`, which can be saved and put back: what is shown
    does not depend on what the environments draw. Final observations have draws of their own.
    """

    clear: np.ndarray
    """The last observations before any was blanked; the environments may write over them in the
    next step."""
    blank: np.ndarray
    """Which of them were blanked."""

    def __init__(
        self, env: VectorEnv, p_blank: float, seed: int, share: chance.Share = chance.WHOLE
    ) -> None:
        super().__init__(env)
        self.p_blank = p_blank
        checks.probability(self, "p_blank")
        self.generator = chance.stream(seed ^ STREAM, "cpu", share)
        if hasattr(env, "send"):
            self.send = env.send

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self.clear, self.blank = obs, self._draw()[0]
        return self._flickering(obs, self.blank), info

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        return self._answer(*self.env.step(actions))

    def recv(self) -> tuple[Any, ...]:
        """The answer to `send`, where the environment has it."""
        return self._answer(*self.env.recv())  # type: ignore[attr-defined]

    def _answer(
        self,
        obs: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: dict[str, Any],
    ) -> tuple[Any, ...]:
        self.blank, blank_final = self._draw()
        if "final_obs" in info:
            info = dict(info)
            info["final_obs"] = self._flickering(info["final_obs"], blank_final)
        self.clear = obs
        return self._flickering(obs, self.blank), reward, terminated, truncated, info

    def _draw(self) -> np.ndarray:
        """For the next observations, and for final ones, whether they are blank."""
        uniform: Tensor = chance.uniform(self.generator, 2, self.num_envs, rows=1)
        return uniform.numpy() < self.p_blank

    def _flickering(self, obs: np.ndarray, blank: np.ndarray) -> np.ndarray:
        shown = np.array(obs)
        if shown.dtype != object:
            shown[blank] = 0
            return shown
        for row in np.flatnonzero(blank):  # one array for each environment that has any
            shown[row] = None if shown[row] is None else np.zeros_like(shown[row])
        return shown
