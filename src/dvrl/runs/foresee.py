"""One episode of images from inside: what was on the screen, seen, believed, and expected next."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from dvrl import chance
from dvrl.core import smc
from dvrl.core.laws import binary_entropy
from dvrl.encoders.config import ParticleConfig
from dvrl.encoders.particle import ParticleBelief, ParticleEncoder
from dvrl.encoders.particle_info import ParticleInfo
from dvrl.envs.flicker import FlickerVector
from dvrl.envs.gym_worlds import WHITE, GymWorlds
from dvrl.envs.worlds import Worlds
from dvrl.models.imagine import expected, imagine
from dvrl.rollout.segment import Carry, advance, begin, start
from dvrl.runs.player import Player

AHEAD = (1, 2, 3, 10, 30)
"""How many steps ahead (the paper's choice)."""


class Moment(NamedTuple):
    """What an agent needs of a decision to ask how it might go on."""

    h: Float[Tensor, "K H"]
    log_w: Float[Tensor, " K"]
    a_tm1: Float[Tensor, " A"]
    own: UInt8[Tensor, "K 84 84"]
    """What each particle takes the present observation for."""


class Watched(NamedTuple):
    """An episode in a world of images."""

    seen: dict[str, np.ndarray]
    """Arrays `T ...`, and the step of the checkpoint that played."""
    moments: list[Moment]
    """Of agents with particles."""


@torch.no_grad()
def watch(player: Player, steps: int, seed: int) -> Watched:
    """One whole game, or its first `steps` decisions. A lost life ends the belief, not the game."""
    worlds = player.config.world.make(1, seed, player.device)
    carry = start(player.agent, worlds)
    rows, moments, shown, over = [], [], [], False
    act = partial(player.agent, generator=player.generator)
    while len(rows) < steps and not over:
        row = screens(worlds, carry)
        now = begin(player.agent, carry)
        decision, step, carry = advance(player.agent, act, worlds, carry)
        row |= {"first": now.first, "action": decision.action}
        row |= {"reward": step.reward, "score": step.score, "over": step.over}
        info = decision.info
        if isinstance(info, ParticleInfo):
            assert isinstance(decision.belief, ParticleBelief)
            row["belief"] = pixels(expected(info.o_mean, info.log_w))
            row["ess"] = smc.effective_sample_size(info.log_w)
            row["gap"] = decision.model_loss - info.floor[:, 0]
            shown.append(now.o_t[0])
            inside = (*decision.belief, now.a_tm1, pixels(info.o_mean))
            moments.append(Moment(*(t[0] for t in inside)))
        rows.append(row)
        over = bool(step.over)
    seen = {name: torch.cat([row[name] for row in rows]).cpu().numpy() for name in rows[0]}
    if shown:
        seen["still_gap"] = still_gap(torch.stack(shown).cpu(), torch.tensor(seen["blank"])).numpy()
    return Watched(seen | {"checkpoint_step": np.array(player.checkpoint_step or 0)}, moments)


def still_gap(shown: Float[Tensor, "T C Y X"], blank: Bool[Tensor, " T"]) -> Float[Tensor, ""]:
    """What a still picture would cost above the pixels' own entropy, in nats per screen: the mean
    of all that was shown, and a coin with the right bias for whether a screen is blank.

    A model whose gap is larger has not even learned that; what moves is worth what lies below.
    """
    coin = blank.double().mean()
    if blank.all():
        return 0 * coin
    clear = shown[~blank]
    own = binary_entropy(clear).sum(dtype=torch.double) / len(clear)
    picture = binary_entropy(clear.mean(0, dtype=torch.double)).sum() - own
    return (1 - coin) * picture + binary_entropy(coin)


def screens(worlds: Worlds, carry: Carry) -> dict[str, Tensor]:
    """The screen, what was shown of it, and whether that was nothing."""
    shown = screen = pixels(carry.o_t)
    blank = torch.zeros(1, dtype=torch.bool)
    if isinstance(worlds, GymWorlds) and isinstance(worlds.envs, FlickerVector):
        screen = pixels(torch.tensor(worlds.envs.clear) / WHITE)
        blank = torch.tensor(worlds.envs.blank)
    return {"screen": screen, "shown": shown, "blank": blank}


def pixels(images: Float[Tensor, "*B C 84 84"]) -> UInt8[Tensor, "*B 84 84"]:
    """Images as grey bytes; of several channels their mean."""
    return (WHITE * images.mean(-3)).round().to(torch.uint8)


@torch.no_grad()
def foresee(player: Player, watched: Watched, rows: int) -> dict[str, np.ndarray]:
    """What is seen, believed and expected at moments of an episode, arrays `R ...`.

    `mean` has the belief's own image of the present, dt = 0, and those `dt` steps ahead if the last
    action were repeated; `own` the particles' images for the first two of these.
    """
    encoder, config = player.agent.encoder, player.config.encoder
    assert isinstance(encoder, ParticleEncoder)
    assert isinstance(config, ParticleConfig)
    t = spread(watched.seen["blank"], rows)
    h, log_w, a_tm1, present = map(torch.stack, zip(*(watched.moments[i] for i in t), strict=True))
    eps = chance.normal(player.generator, AHEAD[-1], *log_w.shape, config.z_dim)
    ahead = imagine(encoder.model, h, log_w, a_tm1, eps)
    mean = pixels(ahead.mean[[dt - 1 for dt in AHEAD]]).transpose(0, 1)  # R, D, 84, 84
    own = torch.stack([present, pixels(ahead.own[0])], 1)  # R, 2, K, 84, 84
    seen = {name: watched.seen[name][t] for name in ("screen", "shown", "blank", "belief")}
    return {
        "t": t,
        "dt": np.array((0, *AHEAD)),
        "screen": seen["screen"],
        "observation": seen["shown"],
        "blank": seen["blank"],
        "mean": np.concatenate([seen["belief"][:, None], mean.cpu().numpy()], 1),
        "own": own.cpu().numpy(),
        "weight": log_w.softmax(-1).cpu().numpy(),
        "checkpoint_step": watched.seen["checkpoint_step"],
    }


def spread(blank: Bool[np.ndarray, " T"], rows: int) -> Int[np.ndarray, " R"]:
    """Moments spread evenly over an episode, by turns one that was shown and one that was blank,
    as far as there are such."""
    free, rows = np.ones(len(blank), bool), min(rows, len(blank))
    for row in range(rows):
        wanted = free & (blank == bool(row % 2))
        candidates = np.flatnonzero(wanted if wanted.any() else free)
        middle = (row + 0.5) * len(blank) / rows
        free[candidates[np.abs(candidates - middle).argmin()]] = False
    return np.flatnonzero(~free)
