"""Any Gymnasium environment as worlds of tensors: stepped on the host, seen on any device."""

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from jaxtyping import Float, UInt8
from torch import Tensor

from dvrl import chance
from dvrl.envs.answers import Layout
from dvrl.envs.flicker import FlickerVector
from dvrl.envs.registration import OVER, SCORE, register
from dvrl.envs.worlds import Look, Step, nothing

WHITE = 255
"""The brightest of a pixel's bytes; networks see it as 1."""


def make_env(id: str) -> gym.Env:
    """`gymnasium.make`, with its errors as one sentence."""
    register()
    try:
        return gym.make(id)
    except (gym.error.Error, ImportError, ModuleNotFoundError) as error:
        hint = " (Atari games are worlds of their own: atari:Pong)" if "ALE" in id else ""
        raise ValueError(f"Gymnasium cannot make {id!r}: {error}{hint}") from error


class GymWorlds:
    """A vector environment that restarts ended episodes in the same step.

    Its inner state cannot be saved: after `restore` unfinished episodes begin anew. What flickers
    (envs.flicker) goes on flickering as it would have.

    Images of bytes travel as they are and are scaled to [0, 1] on the device. Where an episode to
    learn from is not what is reported, `info` says so under the names SCORE and OVER.
    """

    exact_resume = False
    by_row = ()

    def __init__(
        self,
        envs: VectorEnv,
        seed: int,
        device: torch.device | str = "cpu",
        share: chance.Share = chance.WHOLE,
    ) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"the vector environment's autoreset_mode is {mode}; it must be SAME_STEP, since "
                "other modes put a transition between episodes that never happened"
            )
        self.n = envs.num_envs
        self.envs = envs
        self._flicker = envs if isinstance(envs, FlickerVector) else None
        self._stepped = self._flicker.env if self._flicker else envs  # blanked in the answer
        self.apart = hasattr(self._stepped, "send")
        self.device = torch.device(device)
        self.seed = seed + share.index * envs.num_envs  # every environment has a seed of its own
        self.total = share.count * envs.num_envs
        self.restarts = 0
        self.cut = self._ended = False
        space = envs.single_observation_space
        self._pixels = space.dtype == np.uint8
        kind = torch.uint8 if self._pixels else torch.float32
        obs = kind, (self.n, *(space.shape or ()))
        number, flag = (torch.float32, (self.n,)), (torch.bool, (self.n,))
        self.layout = Layout((obs, number, flag, flag, number, flag, obs), self.device)
        self.usual = self.layout.starts[-1]
        self._bounds = None
        if isinstance(envs.single_action_space, gym.spaces.Box):
            self._bounds = envs.single_action_space.low, envs.single_action_space.high

    @classmethod
    def make(
        cls,
        id: str,
        n: int,
        seed: int,
        device: torch.device | str = "cpu",
        share: chance.Share = chance.WHOLE,
        flicker: float = 0.0,
    ) -> "GymWorlds":
        """`n` copies of a registered environment in this process."""
        make_env(id).close()
        envs = gym.make_vec(
            id,
            n,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        )
        if flicker > 0:
            envs = FlickerVector(envs, flicker, seed, share)
        return cls(envs, seed, device, share)

    def reset(self) -> Float[Tensor, "N *obs"]:
        obs, _ = self.envs.reset(seed=self.seed + self.restarts * self.total)
        kind = np.uint8 if self._pixels else np.float32
        return self.seen(torch.as_tensor(np.array(obs, kind), device=self.device))

    def step(self, action: Tensor, *, meanwhile: Callable[[], None] = nothing) -> Step:
        self.send(action.cpu())
        meanwhile()
        return self.receive()

    def send(self, action: Tensor) -> None:
        given = action.numpy()
        # A copy in any case: an environment may keep what it is given.
        given = given.copy() if self._bounds is None else given.clip(*self._bounds)
        if self.apart:
            self._stepped.send(given)
        else:
            self._sent = given

    def receive(self) -> Step:
        answer = self.receive_on_host().to(self.device, non_blocking=True)
        step = self.read(answer)
        return step if self._ended else step._replace(final_obs=self.layout.read(answer)[0])

    def receive_on_host(self) -> UInt8[Tensor, " B"]:
        answer, (seen, *others, last) = self.layout.form()  # while they step
        answered = self._stepped.recv() if self.apart else self._stepped.step(self._sent)
        obs, reward, terminated, truncated, info = answered
        ended = terminated | truncated
        self.cut = bool(np.count_nonzero(ended) > np.count_nonzero(terminated))
        blank = self._flicker.look(obs) if self._flicker else None
        told = reward, terminated, truncated, info.get(SCORE, reward), info.get(OVER, ended)
        for part, value in zip(others, told, strict=True):
            part[:] = value
        seen[:] = obs
        if blank:
            seen[blank.obs] = 0
        self._ended = bool(ended.any())
        if self._ended:
            last[:] = seen
            for row in ended.nonzero()[0]:
                last[row] = 0 if blank and blank.final_obs[row] else info["final_obs"][row]
        return answer

    def place(self) -> UInt8[Tensor, " B"]:
        return self.layout.form().answer

    def blank(self) -> UInt8[Tensor, " B"]:
        return self.layout.blank()

    def read(self, answer: UInt8[Tensor, " B"]) -> Step:
        obs, reward, terminated, truncated, score, over, final_obs = self.layout.read(answer)
        return Step(self.seen(obs), reward, terminated, truncated, final_obs, score, over)

    def if_cut(self, look: Look, final_obs: Tensor) -> Float[Tensor, " N"] | None:
        return look(self.seen(final_obs)) if self.cut else None

    def state(self) -> dict[str, Tensor]:
        flicker = {"flicker": self._flicker.generator.get_state()} if self._flicker else {}
        return {"restarts": torch.tensor(self.restarts)} | flicker

    def restore(self, state: dict[str, Tensor]) -> None:
        """The next reset begins new episodes with seeds that were not used before."""
        self.restarts = int(state["restarts"]) + 1
        if self._flicker:
            self._flicker.generator.set_state(state["flicker"])

    def seen(self, obs: Tensor) -> Float[Tensor, "N *obs"]:
        """Observations as they travel, as agents see them."""
        return obs / WHITE if self._pixels else obs
