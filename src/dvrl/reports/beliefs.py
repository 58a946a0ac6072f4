"""Hikes on the reward map: truth, sight and belief."""

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from dvrl.reports.load import RunData

PATH, SIGHT, BELIEF, EXACT = "#000000", "#00e5ff", "#ffffff", "#7dff7d"


def typical(hikes: dict[str, np.ndarray]) -> int:
    """The hike whose return is the median: neither the luckiest nor the worst."""
    returns = hikes["reward"].sum(0)
    return int(np.argsort(returns)[len(returns) // 2])


def hike_figure(run: RunData) -> Figure:
    """One hike: true path, observations, and the belief's own estimate of where it is."""
    assert run.hikes is not None, "the run has no recorded hikes"
    hikes, which = run.hikes, typical(run.hikes)
    figure = Figure(figsize=(7.4, 6.6), layout="constrained")
    axis = figure.subplots()
    draw_map(axis, figure, hikes)
    position, obs = hikes["position"][:, which], hikes["obs"][:, which]
    axis.plot(*obs.T, "o", color=SIGHT, markersize=3.5, alpha=0.8, label="observations")
    if "estimate" in hikes:
        particles = hikes["particles"][:, which].reshape(-1, 2)
        axis.plot(*particles.T, ".", color=BELIEF, markersize=1.5, alpha=0.35)
        axis.plot(*hikes["estimate"][:, which].T, color=BELIEF, linewidth=1.6, label="belief")
    axis.plot(
        *hikes["exact_mean"][:, which].T, color=EXACT, linewidth=1, ls="--", label="exact filter"
    )
    outline = [withStroke(linewidth=3.2, foreground="white")]  # black on dark ground is not seen
    axis.plot(*position.T, color=PATH, linewidth=1.8, label="true path", path_effects=outline)
    axis.plot(*position[0], "^", color=PATH, markersize=8, markeredgecolor="white")
    axis.plot(*position[-1], "s", color=PATH, markersize=7, markeredgecolor="white")
    total = hikes["reward"][:, which].sum()
    axis.set_title(
        f"{run.name}: hike of median return ({total:.1f}) among {hikes['reward'].shape[1]}",
        loc="left",
        parse_math=False,  # a run may be called $x$
        fontsize=10,
    )
    axis.legend(loc="lower right", fontsize=8, facecolor="#555555", labelcolor="white")
    return figure


def draw_map(axis, figure: Figure, hikes: dict[str, np.ndarray]) -> None:
    side, reward = hikes["map_side"], hikes["map_reward"]
    colours = colormaps["gnuplot"].with_extremes(under="#b0b0b0")
    levels = np.linspace(-5, 0, 51)
    filled = axis.contourf(side, side, reward, levels=levels, cmap=colours, extend="min")
    figure.colorbar(
        filled, ax=axis, label="reward (grey: outside, -6)", shrink=0.8, ticks=range(-5, 1)
    )
    axis.set(xlim=(-12, 12), ylim=(-12, 12), aspect="equal", xlabel="x", ylabel="y")


def belief_errors(hikes: dict[str, np.ndarray]) -> dict[str, float]:
    """Root-mean-square distance from the truth, of what is seen and of what is believed."""

    def distance(name: str) -> float:
        return float(np.sqrt(((hikes[name] - hikes["position"]) ** 2).sum(-1).mean()))

    named = {"observations": "obs", "belief": "estimate", "exact filter": "exact_mean"}
    return {label: distance(name) for label, name in named.items() if name in hikes}
