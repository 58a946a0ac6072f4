"""What can be read from an agent's belief about flickering Pong: where paddles and ball are.

python examples/what_a_belief_knows.py runs/pong

A ridge regression from the recurrent state h (of DVRL the mean over particles) to positions taken
from the screens themselves, blank or not. Printed is R^2 on later moments than those it was fitted
on: 1 is perfect, 0 is no better than the mean position. An untrained network is the yardstick: a
random recurrent network remembers a little of everything. The last column is how far the state
moves at all between screens that are all shown, or all blank: a standard deviation, the mean over
its units, which lie between -1 and 1. A state that is saturated hardly moves.
"""

import argparse
from collections.abc import Iterator

import numpy as np

import dvrl
from dvrl.envs.atari import AtariGames
from dvrl.envs.flicker import FlickerVector
from dvrl.runs.build import build_agent
from dvrl.runs.player import Player

FIELD, GROUND = slice(14, 77), 87
"""Rows of the field on a screen of 84 x 84, and its grey."""
LEFT, RIGHT, BETWEEN = 9, 74, slice(12, 72)
"""Columns of the paddles, and those where only the ball is."""
THINGS = ("their paddle", "own paddle", "ball, height", "ball, width")
GAMES, SKIPPED = 16, 40
RIDGE = 100.0


def positions(screen: np.ndarray) -> list[float]:
    """Of `THINGS`, in pixels; not a number where one is not on the screen."""
    lit = abs(screen[FIELD].astype(int) - GROUND) > 15
    ball = np.argwhere(lit[:, BETWEEN])
    height, width = ball.mean(0) if len(ball) else (np.nan, np.nan)
    paddles = [np.flatnonzero(lit[:, column]) for column in (LEFT, RIGHT)]
    return [*(rows.mean() if len(rows) else np.nan for rows in paddles), height, width]


def state(belief: tuple) -> np.ndarray:
    """The recurrent state, `N H`."""
    h = belief.h
    if h.ndim == 3:
        h = (h * belief.log_w.softmax(-1)[..., None]).sum(1)
    return h.numpy()


def played(player: Player, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """State, positions and what was blank, step by step."""
    player.agent.train()  # normalised as in training, over all games of a step
    world = player.config.world
    games = AtariGames(world.game, GAMES, 0.25 if world.variant == "stochastic" else 0.0)
    envs = FlickerVector(games, world.flicker, seed=1)
    obs, _ = envs.reset(seed=1)
    memory, first = player.initial(GAMES), np.ones(GAMES, bool)
    for step in range(SKIPPED + steps):
        truth = np.array([positions(screen[0]) for screen in envs.clear])
        blank = np.array(envs.blank)
        action, memory, *_ = player.predict(obs, memory, first=first)
        if step >= SKIPPED:
            yield state(memory.belief), truth, blank
        obs, _, terminated, truncated, _ = envs.step(action)
        first = terminated | truncated
    envs.close()


def readable(player: Player, steps: int) -> np.ndarray:
    """R^2 of every thing, and the spread of h; rows: at shown screens, at blank ones."""
    h, truth, blank = map(np.stack, zip(*played(player, steps), strict=True))  # T, N, ...
    spread = [h[kind].std(0).mean() for kind in (~blank, blank)]
    h = np.concatenate([(h - h.mean((0, 1))) / (h.std((0, 1)) + 1e-6), 1 + 0 * h[..., :1]], -1)
    fitted = np.arange(len(h)) < 2 * len(h) // 3
    found = np.zeros((2, len(THINGS)))
    for thing in range(len(THINGS)):
        y = truth[..., thing]
        known = ~np.isnan(y)
        x, target = (a[fitted][known[fitted]] for a in (h, y))
        weights = np.linalg.solve(
            x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (target - target.mean())
        )
        for row, kind in enumerate((~blank, blank)):
            here = known & kind & ~fitted[:, None]
            error = h[here] @ weights + target.mean() - y[here]
            found[row, thing] = 1 - (error**2).mean() / y[here].var()
    return np.column_stack([found, spread])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="directory of a run on Pong")
    parser.add_argument("--steps", type=int, default=600, help="of 16 games each")
    args = parser.parse_args()

    trained = dvrl.load(args.run)
    if getattr(trained.config.world, "game", None) != "Pong":
        parser.error(f"{args.run} is not a run on atari:Pong, whose screens this program can read")
    untrained = Player(trained.config, build_agent(trained.config))
    print(f"{'':<20}" + "".join(f"{name:>15}" for name in (*THINGS, "spread of h")))
    for name, player in (("untrained", untrained), ("trained", trained)):
        for kind, row in zip(("shown", "blank"), readable(player, args.steps), strict=True):
            print(f"{name + ', ' + kind:<20}" + "".join(f"{value:>15.2f}" for value in row))


if __name__ == "__main__":
    main()
