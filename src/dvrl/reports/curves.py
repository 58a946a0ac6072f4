"""Learning curves."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from dvrl.envs.hike_facts import ANCHORS
from dvrl.reports.load import RunData

WINDOW = 200
"""Episodes in the moving average; every figure states it."""
FEW_GAMES, MANY_GAMES = 10, 1000
"""A mean is drawn from the former on; dots are faint from the latter on."""
INK, BLUE, GREY = "#222222", "#2b6cb0", "#888888"


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values at each point, of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)


def learning_curve(run: RunData) -> Figure:
    """Return of finished episodes over steps, and the model's loss below it if it has a model.

    Where the least that the loss could be is known, its distance from that.
    """
    gap_steps, gap = run.series("belief/gap")
    model_steps, model_loss = run.series("loss/elbo")
    has_model = bool(len(model_loss)) and bool(np.any(model_loss != 0))
    figure = Figure(figsize=(8, 6.4 if has_model else 4.2), layout="constrained")
    axes = figure.subplots(2 if has_model else 1, sharex=True, squeeze=False)[:, 0]
    draw_returns(axes[0], run)
    if has_model and len(gap):
        draw_gap(axes[1], run, gap_steps, gap)
    elif has_model:
        draw_model(axes[1], run, model_steps, model_loss)
    axes[-1].set_xlabel("decisions" if run.game else "environment steps")
    return figure


def draw_returns(axis, run: RunData) -> None:
    steps = np.array([e.step for e in run.episodes], float)
    returns = np.array([e.ret for e in run.episodes], float)
    few = bool(run.game) and len(returns) < MANY_GAMES
    dots = {"alpha": 0.5, "markersize": 5} if few else {"alpha": 0.15, "markersize": 3}
    axis.plot(steps, returns, ".", color=BLUE, linewidth=0, **dots)
    if len(returns):
        draw_mean(axis, run, steps, returns)
    if run.sigma in ANCHORS:
        anchors = ANCHORS[run.sigma]
        lines = [("optimum", anchors.optimum), ("standing still", anchors.standing_still)]
        if run.sigma > 0:
            lines.append(("no memory", anchors.no_memory))
        for label, height in lines:
            reference(axis, height, f"{label} {height:g}")
    elif not len(returns):  # nothing to measure by
        last = run.metrics[-1]["step"] if run.metrics else 0
        axis.set(yticks=[], xlim=(0, max(last, 1000)))
    if not len(returns):
        words = f"no {run.unit} has finished yet"
        axis.text(0.5, 0.5, words, transform=axis.transAxes, ha="center", color=GREY)
    unit = "a game" if run.game else "an episode"
    axis.set_ylabel(f"raw return of {unit}" if run.game else f"return of {unit}")
    axis.set_title(
        f"{run.name}: each dot {unit}, line the mean of at most {WINDOW}",
        loc="left",
        parse_math=False,  # a run may be called $x$
        fontsize=10,
        color=INK,
    )
    tidy(axis)


def draw_mean(axis, run: RunData, steps: np.ndarray, returns: np.ndarray) -> None:
    """The moving average, and its last value in words."""
    smooth = moving_average(returns, WINDOW)
    few = FEW_GAMES if run.game else WINDOW // 4  # of so few there is no mean to speak of
    settled = slice(min(few, len(smooth) - 1), None)
    axis.plot(steps[settled], smooth[settled], color=BLUE, linewidth=2, label=run.agent)
    axis.annotate(
        f"{smooth[-1]:.1f}",
        (steps[-1], smooth[-1]),
        (6, 0),
        textcoords="offset points",
        color=BLUE,
        va="center",
    )


def draw_model(axis, run: RunData, steps: np.ndarray, loss: np.ndarray) -> None:
    axis.plot(steps, loss, "." if len(loss) == 1 else "-", color=BLUE, linewidth=1.5)
    floor = ANCHORS[run.sigma].nats if run.sigma in ANCHORS else loss.min()
    if run.sigma in ANCHORS:
        reference(axis, floor, f"exact filter {floor:g}")
    settled = np.quantile(loss, 0.9) if len(loss) > 10 else loss.max()
    margin = max(settled - floor, 0.2)
    axis.set_ylim(floor - 0.3 * margin, floor + 2 * margin)
    axis.set_ylabel("model loss, nats per step")
    tidy(axis)


def draw_gap(axis, run: RunData, steps: np.ndarray, gap: np.ndarray) -> None:
    """Falls by factors: on a logarithmic axis, as long as it is above 0."""
    axis.plot(steps, gap, "." if len(gap) == 1 else "-", color=BLUE, linewidth=1.5)
    if run.still_gap:
        reference(axis, run.still_gap, f"a still picture {run.still_gap:.1f}")
    if gap.min() > 0:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axis.yaxis.set_minor_locator(NullLocator())
    axis.set_ylabel("model gap, nats per frame\n(loss above the pixels' own entropy)")
    tidy(axis)


def reference(axis, height: float, label: str) -> None:
    axis.axhline(height, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axis.annotate(
        label,
        (0, height),
        (4, 2),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        color=GREY,
        fontsize=8,
        va="bottom",
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.5},
    )


def tidy(axis) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g} M" if x >= 1e6 else f"{x / 1e3:g} k")
    axis.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axis.set_axisbelow(True)
