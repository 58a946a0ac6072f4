"""A trained agent to play with: `predict` with an explicit belief, or a session that carries it."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dvrl.agents.actor_critic import ActorCritic
from dvrl.core import tree
from dvrl.encoders.base import Info
from dvrl.encoders.config import ParticleConfig
from dvrl.envs.gym_worlds import WHITE
from dvrl.nets.spaces import Spec
from dvrl.records.layout import RunFiles, write_atomic, write_json
from dvrl.runs import checkpoint as checkpoints
from dvrl.runs.build import agent_generator, build_agent, choose_device
from dvrl.runs.config import RunConfig, to_data
from dvrl.runs.errors import RunFailed, UsageError
from dvrl.runs.resume import read_config


class Memory(NamedTuple):
    """What an agent must not forget between two observations; rows are environments."""

    belief: tuple
    a_tm1: Float[Tensor, "N A"]


class Prediction(NamedTuple):
    """An action for every row, the memory to bring to the next call, and a look inside."""

    action: np.ndarray
    memory: Memory
    value: np.ndarray
    info: Info


class Player:
    """An agent with frozen weights."""

    def __init__(
        self,
        config: RunConfig,
        agent: ActorCritic,
        seed: int = 0,
        checkpoint_step: int | None = None,
    ) -> None:
        self.config = config
        self.agent = agent.eval()  # normalised as training was on average: one row is enough
        device = next(agent.parameters()).device
        self.device = device
        self.generator = agent_generator(seed, device)
        self.checkpoint_step = checkpoint_step
        obs_space, space = config.world.spaces()
        self.spec = Spec.from_spaces(obs_space, space)
        self._bytes = obs_space.dtype == np.uint8
        self._bounds = (space.low, space.high) if isinstance(space, gym.spaces.Box) else None

    def initial(self, n: int = 1) -> Memory:
        """The memory of `n` environments before their first observation."""
        if n < 1:
            raise UsageError(f"n is {n}; it must be at least 1")
        return Memory(self.agent.encoder.initial(n), self.agent.policy.noop(n))

    @torch.no_grad()
    def predict(
        self,
        obs: np.ndarray,
        memory: Memory | None = None,
        *,
        first: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> Prediction:
        """Actions for observations `obs` (rows are environments), given what went before.

        Bytes of a world that shows bytes are scaled to [0, 1], as in training; floats must lie
        there already. `first` marks rows whose episode begins here: their memory is replaced by
        the initial one.
        """
        if not isinstance(memory, Memory):
            raise UsageError(
                "predict needs the memory of what went before: start an episode with "
                "memory = player.initial(n) and pass on prediction.memory, or use player.session()"
            )
        o_t = torch.as_tensor(self._scaled(np.asarray(obs)), device=self.device)
        n = memory.a_tm1.shape[0]
        if o_t.shape != (n, *self.spec.obs_shape):
            raise UsageError(
                f"observations have shape {tuple(o_t.shape)} but the memory has {n} rows; the "
                f"shape must be {(n, *self.spec.obs_shape)} (for one environment: obs[None])"
            )
        if first is not None:
            if np.shape(first) != (n,):
                raise UsageError(f"first has shape {np.shape(first)}; it must be {(n,)}")
            memory = tree.where(torch.as_tensor(first, device=self.device), self.initial(n), memory)
        decision = self.agent(memory.belief, memory.a_tm1, o_t, self.generator, deterministic)
        action = decision.action.cpu().numpy()
        if self._bounds is not None:  # worlds are given what they allow, as in training
            action = action.clip(*self._bounds)
        return Prediction(
            action,
            Memory(decision.belief, decision.a_t),
            decision.value.cpu().numpy(),
            decision.info,
        )

    def _scaled(self, obs: np.ndarray) -> np.ndarray:
        """Numbers as networks see them; bytes of images between 0 and 1."""
        if self._bytes and obs.dtype == np.uint8:
            return obs.astype(np.float32) / WHITE
        if self._bytes and not (obs.dtype.kind == "f" and (obs >= 0).all() and (obs <= 1).all()):
            raise UsageError(
                f"images are {obs.dtype}, from {obs.min():g} to {obs.max():g}; they must be bytes "
                "(uint8), or floats from 0 to 1"
            )
        return obs.astype(np.float32)

    def session(self, deterministic: bool = False) -> "Session":
        """Play one environment; the session keeps the memory."""
        return Session(self, deterministic)

    def save(self, directory: str | Path) -> Path:
        """Config and weights as a directory that `dvrl.load` reads."""
        files = RunFiles(Path(directory))
        if files.metrics.exists() or files.checkpoints.exists():
            raise UsageError(f"{files.root} holds a run; save the agent in another directory")
        write_json(files.config, to_data(self.config))
        content = checkpoints.tensor_bytes(self.agent.state_dict())
        write_atomic(files.weights, content)
        write_json(files.manifest, checkpoints.manifest({files.weights.name: content}))
        return files.root


class Session:
    """One environment's player. Call `act` with each observation, `reset` between episodes."""

    def __init__(self, player: Player, deterministic: bool) -> None:
        self.player = player
        self.deterministic = deterministic
        self.memory = player.initial(1)
        self.last: Prediction | None = None

    def reset(self) -> None:
        """Forget: the next observation begins an episode."""
        self.memory = self.player.initial(1)
        self.last = None

    def act(self, obs: np.ndarray):
        """The action for this observation, as one environment takes it."""
        batch = np.asarray(obs)[None]
        self.last = self.player.predict(batch, self.memory, deterministic=self.deterministic)
        self.memory = self.last.memory
        return self.last.action[0]


def load(
    directory: str | Path,
    *,
    particles: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Player:
    """The agent of a run (its newest whole checkpoint) or of a directory made by `save`."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed is {seed}; it must be at least 0 and below 2**32")
    files = RunFiles(Path(directory))
    config = read_config(files)
    if particles is not None:
        config = with_particles(config, particles)
    agent = build_agent(config).to(choose_device(device))
    weights, step = read_weights(files)
    try:
        agent.load_state_dict(weights)
    except RuntimeError as error:
        raise RunFailed(f"the weights in {files.root} do not fit its config ({error})") from error
    return Player(config, agent, seed, step)


def with_particles(config: RunConfig, particles: int) -> RunConfig:
    if not isinstance(config.encoder, ParticleConfig):
        raise UsageError("this run has no particles: its encoder is the recurrent baseline")
    try:
        return replace(config, encoder=replace(config.encoder, n_particles=particles))
    except ValueError as error:
        raise UsageError(str(error)) from error


def read_weights(files: RunFiles) -> tuple[dict[str, Tensor], int | None]:
    """Weights, and the step of the checkpoint they come from; a warning if it is not the newest."""
    try:
        if files.weights.exists():
            contents = checkpoints.read_checked(files.root)
            return checkpoints.parse_tensors(contents[files.weights.name]), None
        found, damages = checkpoints.load_newest(files.checkpoints)
    except checkpoints.Damaged as damage:
        raise RunFailed(str(damage)) from damage
    if found is None:
        raise UsageError(f"{files.root} has no checkpoint yet: let it train first")
    for damage in damages:
        warnings.warn(f"{damage}; using the checkpoint before it", stacklevel=3)
    return found.weights, found.numbers["steps"]
