"""Look inside a run: episodes recorded with the belief beside the truth, for pictures."""

import io
from functools import partial
from pathlib import Path

import numpy as np
import torch

from dvrl.encoders import exact
from dvrl.encoders.config import ParticleConfig
from dvrl.encoders.particle_info import ParticleInfo
from dvrl.envs import mountain_hike
from dvrl.envs.config import MountainHikeConfig
from dvrl.envs.mountain_hike import MountainHike
from dvrl.records.layout import RunFiles, write_atomic
from dvrl.rollout.segment import advance, start
from dvrl.runs import checkpoint as checkpoints
from dvrl.runs.build import world_spec
from dvrl.runs.config import RunConfig
from dvrl.runs.errors import UsageError
from dvrl.runs.foresee import foresee, watch
from dvrl.runs.player import Player, load
from dvrl.runs.resume import read_config

HIKES = 64
STEPS = 600
"""Decisions of an episode that is recorded as images, at most."""
ROWS = 6
"""Moments at which an agent is asked what it expects to see next."""


def record_traces(run: str | Path, seed: int) -> list[Path]:
    """Record hikes, or an episode of images; nothing for other worlds, or before the first
    checkpoint."""
    files = RunFiles(Path(run))
    config = read_config(files)
    hiking = isinstance(config.world, MountainHikeConfig)
    if not checkpoints.newest_first(files.checkpoints) or not (hiking or shows_images(config)):
        return []
    player = load(run, seed=seed)
    if hiking:
        return [write_arrays(files.trace("hikes"), walk(player, HIKES, seed))]
    return [write_arrays(files.trace("episode"), watch(player, STEPS, seed).seen)]


def record_predictions(
    run: str | Path,
    *,
    rows: int = ROWS,
    steps: int = STEPS,
    seed: int = 1_000_000,
    particles: int | None = None,
    device: str = "cpu",
) -> list[Path]:
    """Record an episode of images, and what the model expects at `rows` moments of it."""
    for name, value in (("rows", rows), ("steps", steps)):
        if value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1")
    files = RunFiles(Path(run))
    config = read_config(files)
    if not isinstance(config.encoder, ParticleConfig):
        raise UsageError(f"{files.root} is a run of the RNN, which has no model to predict with")
    if not world_spec(config).image:
        raise UsageError(
            f"{files.root} has vectors for observations; dvrl predict draws images (of hikes, dvrl "
            "show draws the belief)"
        )
    player = load(run, particles=particles, seed=seed, device=device)
    watched = watch(player, steps, seed)
    foreseen = foresee(player, watched, rows)
    return [
        write_arrays(files.trace("episode"), watched.seen),
        write_arrays(files.trace("predictions"), foreseen),
    ]


def shows_images(config: RunConfig) -> bool:
    """Whether the world does; of one that cannot be made here, no."""
    try:
        return world_spec(config).image
    except UsageError:
        return False


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomic(path, buffer.getvalue())
    return path


@torch.no_grad()
def walk(player: Player, n: int, seed: int) -> dict[str, np.ndarray]:
    """`n` hikes, arrays `T N ...`: truth, sight, and the beliefs, learned and exact, about it.

    The worlds' noise depends on the seed alone: two players with one seed meet the same noise.
    """
    world_config = player.config.world
    worlds = MountainHike(n, world_config.sigma, seed)
    kalman_world = exact.mountain_hike_world(world_config.sigma)
    kalman = exact.initial(kalman_world, n)
    carry = start(player.agent, worlds)
    rows: list[dict[str, torch.Tensor]] = []
    act = partial(player.agent, generator=player.generator)
    for _ in range(mountain_hike.STEPS):
        kalman, log_evidence = exact.correct(kalman_world, kalman, carry.o_t)
        row = {"position": worlds.position, "obs": carry.o_t, "exact_mean": kalman.mean}
        row["exact_nats"] = -log_evidence
        decision, step, carry = advance(player.agent, act, worlds, carry)
        row |= {"action": decision.action, "reward": step.reward}
        if isinstance(decision.info, ParticleInfo):
            weight = decision.info.log_w.softmax(-1)
            row |= {"particles": decision.info.o_mean, "weights": weight}
            row["estimate"] = (weight[..., None] * decision.info.o_mean).sum(1)
            row["model_nats"] = decision.model_loss
        rows.append(row)
        kalman = exact.predict(kalman_world, kalman, mountain_hike.cap(decision.action))
    arrays = {name: torch.stack([row[name] for row in rows]).numpy() for name in rows[0]}
    return arrays | background()


def background() -> dict[str, np.ndarray]:
    """The reward map on a grid, so that pictures need no physics."""
    side = torch.linspace(-12, 12, 241)
    x, y = torch.meshgrid(side, side, indexing="xy")
    reward = mountain_hike.reward_map(torch.stack([x, y], -1))
    return {"map_side": side.numpy(), "map_reward": reward.numpy()}
