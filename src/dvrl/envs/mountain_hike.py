"""Mountain Hike, a batch of worlds as tensors on any device (paper Sec. 4.1).

World
    A mountain ridge in the box [-10, 10]^2 rises from the lower left to the upper right.
State
    Position s_t in R^2. Outside the box is allowed: nothing stops the hiker there.
Observation
    o_t = s_t + sigma * eps, eps standard normal, after every step and at the start.
Action
    a_t in R^2, the desired step; its length is capped at 0.5, its direction kept.
    s_{t+1} = s_t + cap(a_t) + 0.25 * eps.
Reward
    r(s_{t+1}) - 0.01 * |a_t| with the uncapped action; r is `reward_map` in the box, -6 outside.
Start
    s_0 ~ N((-8.5, -8.5), I).
End
    After 75 steps (a cut in time: `truncated`). The task itself never ends.
Arguments
    sigma, standard deviation of the observation noise; n, number of worlds; seed; device.
Differences from the paper
    Noise levels are standard deviations, where the paper writes variances; the reward map, of
    which the paper shows only a picture, is the one of the authors' code (docs/deviations.md).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dvrl import chance
from dvrl.envs.worlds import Look, Step, nothing
from dvrl.fuse import fusable

STEPS = 75
BOX = 10.0
MOVE_STD = 0.25
CAP = 0.5
START = (-8.5, -8.5)
OUTSIDE_REWARD = -6.0
ACTION_COST = 0.01
RIDGES = (  # mean x, mean y, std x, std y, height
    (5.0, 5.0, 7.5, 1.0, 1.0),
    (0.0, 2.0, 1.0, 7.5, 0.8),
    (-3.75, -5.0, 7.5, 1.0, 0.55),
)


class HikeNoise(NamedTuple):
    """Standard normal noise of one step in every world; given in, it fixes the weather."""

    start: Float[Tensor, "N 2"]
    """Start position of the next episode."""
    move: Float[Tensor, "N 2"]
    look: Float[Tensor, "N 2"]
    """Noise of the observation of the position that was reached."""
    look_start: Float[Tensor, "N 2"]
    """Noise of the first observation of the next episode."""


def reward_map(position: Float[Tensor, "*B 2"]) -> Float[Tensor, "*B"]:
    """r(x, y): the highest of three ridges, steepened, on a slope; -6 outside the box."""
    x, y = position.unbind(-1)
    ridge = torch.zeros_like(x)
    for mean_x, mean_y, std_x, std_y, height in RIDGES:
        peak = 100 * height / (3 * 2 * torch.pi * std_x * std_y)
        bump = torch.exp(-0.5 * (((x - mean_x) / std_x) ** 2 + ((y - mean_y) / std_y) ** 2))
        ridge = torch.maximum(ridge, peak * bump)
    inside = 4 * (1 - (1 - ridge) ** 4) - 4.5 + (x + y) / 40
    return torch.where(position.abs().amax(-1) <= BOX, inside, OUTSIDE_REWARD)


def cap(action: Float[Tensor, "*B 2"]) -> Float[Tensor, "*B 2"]:
    """The action with its length capped, its direction kept."""
    length = action.norm(dim=-1, keepdim=True)
    return action * (CAP / length.clamp(min=CAP))


@fusable
def hike(
    position: Float[Tensor, "N 2"],
    age: Int[Tensor, " N"],
    centre: Float[Tensor, "2"],
    sigma: float,
    action: Float[Tensor, "N 2"],
    noise: HikeNoise,
    never: Bool[Tensor, " N"],
) -> tuple[Float[Tensor, "N 2"], Int[Tensor, " N"], Float[Tensor, "N 2"], Step]:
    """One step: position and age afterwards, the position reached before a restart, the answer."""
    reached = position + cap(action) + MOVE_STD * noise.move
    reward = reward_map(reached) - ACTION_COST * action.norm(dim=-1)
    final_obs = reached + sigma * noise.look
    truncated = age + 1 == STEPS

    over = truncated[:, None]
    position = torch.where(over, centre + noise.start, reached)
    age = torch.where(truncated, 0, age + 1)
    obs = torch.where(over, position + sigma * noise.look_start, final_obs)
    step = Step(obs, reward, never, truncated, final_obs, score=reward, over=truncated)
    return position, age, reached, step


class MountainHike:
    """N hikes at once. All tensors live on `device`; chance comes from their own generator."""

    exact_resume = True
    by_row = ("position", "age")

    def __init__(
        self,
        n: int,
        sigma: float,
        seed: int,
        device: torch.device | str = "cpu",
        share: chance.Share = chance.WHOLE,
    ) -> None:
        self.n = n
        self.sigma = sigma
        self.generator = chance.stream(seed, device, share)
        self.centre = torch.tensor(START, device=device)
        self.position = self.centre.expand(n, 2).clone()
        self.reached = self.position
        """Where the last step led, before ended episodes restarted."""
        self.age: Int[Tensor, " N"] = torch.zeros(n, dtype=torch.long, device=device)
        self._never = torch.zeros(n, dtype=torch.bool, device=device)
        self.ages = np.zeros(n, int)
        """The same on the host, so that nobody has to ask the device when episodes end."""
        self.cut = False

    def noise(self) -> HikeNoise:
        """Fresh noise for one step."""
        return HikeNoise(*chance.normal(self.generator, 4, self.n, 2, rows=1))

    def reset(self, noise: HikeNoise | None = None) -> Float[Tensor, "N 2"]:
        noise = self.noise() if noise is None else noise
        self.position = self.reached = self.centre + noise.start
        self.age = torch.zeros_like(self.age)
        self.ages[:], self.cut = 0, False
        return self.position + self.sigma * noise.look_start

    def step(
        self,
        action: Float[Tensor, "N 2"],
        noise: HikeNoise | None = None,
        *,
        meanwhile: Callable[[], None] = nothing,
    ) -> Step:
        meanwhile()
        noise = self.noise() if noise is None else noise
        self.position, self.age, self.reached, step = hike(
            self.position, self.age, self.centre, self.sigma, action, noise, self._never
        )
        self.ages = (self.ages + 1) % STEPS
        self.cut = bool((self.ages == 0).any())
        return step

    def if_cut(self, look: Look, final_obs: Tensor) -> Float[Tensor, " N"] | None:
        return look(final_obs) if self.cut else None

    def tensors(self) -> dict[str, Tensor]:
        return {"position": self.position, "age": self.age}

    def hold(self, tensors: dict[str, Tensor]) -> None:
        self.position, self.age = tensors["position"], tensors["age"]
        self.reached = self.position

    def cuts_ahead(self, n_steps: int) -> tuple[bool, ...]:
        ages = self.ages + np.arange(1, n_steps + 1)[:, None]
        return tuple((ages % STEPS == 0).any(1).tolist())

    def skip(self, n_steps: int) -> None:
        self.ages = (self.ages + n_steps) % STEPS
        self.cut = bool((self.ages == 0).any())

    def state(self) -> dict[str, Tensor]:
        return {
            "position": self.position,
            "age": self.age,
            "generator": self.generator.get_state(),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        self.position = self.reached = state["position"].to(self.position, copy=True)
        self.age = state["age"].to(self.age, copy=True)
        self.ages, self.cut = state["age"].cpu().numpy().copy(), False
        self.generator.set_state(state["generator"])
