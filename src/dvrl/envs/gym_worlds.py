"""Any Gymnasium environment as worlds of tensors: stepped on the host, seen on any device."""

from collections.abc import Callable
from math import prod

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from jaxtyping import Float, UInt8
from torch import Tensor

from dvrl import chance
from dvrl.envs.registration import register
from dvrl.envs.worlds import Step


def make_env(id: str) -> gym.Env:
    """`gymnasium.make`, with its errors as one sentence."""
    register()
    try:
        return gym.make(id)
    except (gym.error.Error, ImportError, ModuleNotFoundError) as error:
        raise ValueError(f"Gymnasium cannot make {id!r}: {error}") from error


class GymWorlds:
    """A vector environment that restarts ended episodes in the same step.

    Its inner state cannot be saved: after `restore` unfinished episodes begin anew.
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
        self.device = torch.device(device)
        self.seed = seed + share.index * envs.num_envs  # every environment has a seed of its own
        self.total = share.count * envs.num_envs
        self.restarts = 0
        self.cut = False
        obs = torch.float32, (self.n, *(envs.single_observation_space.shape or ()))
        reward, ended = (torch.float32, (self.n,)), (torch.bool, (self.n,))
        self._layout = (obs, reward, ended, ended, obs)
        self._bytes = [dtype.itemsize * prod(shape) for dtype, shape in self._layout]
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
    ) -> "GymWorlds":
        """`n` copies of a registered environment in this process."""
        make_env(id).close()
        envs = gym.make_vec(
            id,
            n,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        )
        return cls(envs, seed, device, share)

    def reset(self) -> Float[Tensor, "N *obs"]:
        obs, _ = self.envs.reset(seed=self.seed + self.restarts * self.total)
        return self._tensor(obs)

    def step(self, action: Tensor) -> Step:
        answer = self.step_on_host(action.cpu())
        return self.read(answer.to(self.device, non_blocking=True))

    def step_on_host(self, action: Tensor) -> UInt8[Tensor, " B"]:
        given = action.numpy()
        # A copy in any case: an environment may keep what it is given.
        given = given.copy() if self._bounds is None else given.clip(*self._bounds)
        obs, reward, terminated, truncated, info = self.envs.step(given)
        self.cut = bool((truncated & ~terminated).any())
        answer = self.blank()
        parts = [tensor.numpy() for tensor in self.read(answer)]
        for part, values in zip(parts, (obs, reward, terminated, truncated, obs), strict=True):
            part[:] = values
        for row in np.flatnonzero(terminated | truncated):
            parts[-1][row] = info["final_obs"][row]
        return answer

    def blank(self) -> UInt8[Tensor, " B"]:
        """Fresh memory: torch reuses pinned memory once it has been sent."""
        pin = self.device.type == "cuda"
        return torch.empty(sum(map(_aligned, self._bytes)), dtype=torch.uint8, pin_memory=pin)

    def read(self, answer: UInt8[Tensor, " B"]) -> Step:
        parts = answer.split(list(map(_aligned, self._bytes)))
        return Step(
            *(
                part[:size].view(dtype).view(shape)
                for part, size, (dtype, shape) in zip(parts, self._bytes, self._layout, strict=True)
            )
        )

    def if_cut(self, look: Callable[[], Float[Tensor, " N"]]) -> Float[Tensor, " N"] | None:
        return look() if self.cut else None

    def state(self) -> dict[str, Tensor]:
        return {"restarts": torch.tensor(self.restarts)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """The next reset begins new episodes with seeds that were not used before."""
        self.restarts = int(state["restarts"]) + 1

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(np.array(array, np.float32), device=self.device)


def _aligned(size: int) -> int:
    """Bytes up to the next place where a GPU likes to begin reading."""
    return -(-size // 16) * 16
