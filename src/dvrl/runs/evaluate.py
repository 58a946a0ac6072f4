"""Frozen weights at work: what the agent earns, and how good its model is."""

import math
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dvrl.records.layout import RunFiles, write_json
from dvrl.rollout.segment import advance, start
from dvrl.runs.errors import UsageError
from dvrl.runs.player import Player, load
from dvrl.runs.progress import Watcher, nobody

MOST_WORLDS = 256
MOST_OF_IMAGES = 32
"""Fewer where images are seen: games differ in length, and who is done plays on with the others."""


class Played(NamedTuple):
    """What whole episodes brought."""

    returns: np.ndarray
    """Raw, in the order in which episodes ended."""
    decisions: int
    """How many the episodes took."""
    metrics: dict[str, float]
    """The belief's diagnostics, means over all steps played."""


def evaluate_run(
    run: str | Path,
    *,
    episodes: int = 200,
    particles: int | None = None,
    deterministic: bool = False,
    seed: int = 1_000_000,
    device: str = "cpu",
    watch: Watcher = nobody,
) -> dict[str, Any]:
    """Play `episodes` whole episodes; results also go to the run's evaluations/."""
    if episodes < 1:
        raise UsageError(f"episodes is {episodes}; it must be at least 1")
    player = load(run, particles=particles, seed=seed, device=device)
    returns, decisions, metrics = play(player, episodes, seed, deterministic, watch)
    result = {
        "episodes": episodes,
        "decisions": decisions,
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std(ddof=1)) if episodes > 1 else None,
        "return_standard_error": (
            float(returns.std(ddof=1) / math.sqrt(episodes)) if episodes > 1 else None
        ),
        "deterministic": deterministic,
        "particles": getattr(player.config.encoder, "n_particles", None),
        "seed": seed,
        "checkpoint_step": player.checkpoint_step,
    } | metrics
    name = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 10**9:09d}.json"
    try:
        write_json(RunFiles(Path(run)).evaluations / name, result)
    except OSError as error:
        warnings.warn(f"the result could not be stored ({error.strerror})", stacklevel=2)
    return result


@torch.no_grad()
def play(player: Player, episodes: int, seed: int, greedy: bool, watch: Watcher = nobody) -> Played:
    """`episodes` whole episodes; of games that outlast a life, whole games.

    Every world plays its share of whole episodes, so that short ones are not over-represented.
    """
    n = min(episodes, MOST_OF_IMAGES if player.spec.image else MOST_WORLDS)
    worlds = player.config.world.make(n, seed, player.device)
    quota = np.full(n, episodes // n)
    quota[: episodes % n] += 1
    act = partial(player.agent, generator=player.generator, greedy=greedy)
    carry = start(player.agent, worlds)
    running, returns, sums, rounds, decisions = np.zeros(n), [], {}, 0, 0
    while quota.sum() > 0:
        decision, step, carry = advance(player.agent, act, worlds, carry)
        decisions += int((quota > 0).sum())
        running += step.score.cpu().numpy()
        for row in np.flatnonzero(step.over.cpu().numpy()):
            if quota[row] > 0:
                returns.append(running[row])
                quota[row] -= 1
            running[row] = 0.0
        metrics = {"model_nats_per_step": decision.model_loss.mean()}
        metrics |= type(decision.info).metrics([decision.info])
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        rounds += 1
        watch(len(returns), decisions)
    means = {name: total / rounds for name, total in sums.items()}
    if means["model_nats_per_step"] == 0:  # an encoder without a model of its own
        del means["model_nats_per_step"]
    return Played(np.array(returns), decisions, means)
