"""Flickering: now and then an observation is blank (paper Sec. 4.2)."""

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv, VectorWrapper
from jaxtyping import Bool

from dvrl import chance, checks

STREAM = 0x666C6963
"""Sets the flicker's chance apart from that of the worlds, which take the run's seed itself."""

AHEAD = 64
"""Steps whose chance is drawn at once: it takes as long as for four of them, one by one."""


class Blank(NamedTuple):
    """What of an answer is blank."""

    obs: Bool[np.ndarray, " N"]
    final_obs: Bool[np.ndarray, " N"]
    """Of last observations, where there are any."""


class FlickerVector(VectorWrapper):
    """Any vector environment; each observation is blanked (all zeros) with a probability.

    Its chance is a stream of its own, `generator`, which can be saved and put back: what is shown
    does not depend on what the environments draw. Final observations have draws of their own.

    Who copies observations anyway can step `env` instead, and blank the copy as `look` tells.
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
        self._generator = chance.stream(seed ^ STREAM, "cpu", share)
        self._ahead, self._used = np.empty((AHEAD, 2, self.num_envs), bool), AHEAD
        """What is drawn to be blank in so many steps, and how many of these are over."""
        self._before = self._generator.get_state()
        """The stream before that was drawn."""
        if hasattr(env, "send"):
            self.send = env.send

    @property
    def generator(self) -> torch.Generator:
        """The stream as it is behind all that was shown: what was drawn ahead is put back.

        It is drawn from again; so ask for it where it is wanted, and do not keep it over a step.
        """
        if self._used < AHEAD:
            self._generator.set_state(self._before)
            self._draw(self._used)
            self._used = AHEAD
        return self._generator

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._flickering(obs, self.look(obs).obs), info

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        return self._answer(*self.env.step(actions))

    def recv(self) -> tuple[Any, ...]:
        """The answer to `send`, where the environment has it."""
        return self._answer(*self.env.recv())  # type: ignore[attr-defined]

    def look(self, obs: np.ndarray) -> Blank:
        """Take what the environments show next, and tell what of it is blank."""
        if self._used == AHEAD:
            self._before = self._generator.get_state()
            self._ahead, self._used = self._draw(AHEAD), 0
        blank = Blank(*self._ahead[self._used])
        self._used += 1
        self.clear, self.blank = obs, blank.obs
        return blank

    def _answer(
        self,
        obs: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: dict[str, Any],
    ) -> tuple[Any, ...]:
        blank = self.look(obs)
        if "final_obs" in info:
            info = dict(info)
            info["final_obs"] = self._flickering(info["final_obs"], blank.final_obs)
        return self._flickering(obs, blank.obs), reward, terminated, truncated, info

    def _draw(self, steps: int) -> Bool[np.ndarray, "T 2 N"]:
        """What is blank: by the same numbers as if they were drawn step by step."""
        uniform = chance.uniform(self._generator, steps, 2, self.num_envs, rows=2)
        return uniform.numpy() < self.p_blank

    def _flickering(self, obs: np.ndarray, blank: np.ndarray) -> np.ndarray:
        shown = np.array(obs)
        if shown.dtype != object:
            shown[blank] = 0
            return shown
        for row in np.flatnonzero(blank):  # one array for each environment that has any
            shown[row] = None if shown[row] is None else np.zeros_like(shown[row])
        return shown
