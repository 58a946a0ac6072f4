"""Learning curves."""

import numpy as np
from matplotlib.figure import Figure

from dvrl.envs.hike_facts import ANCHORS
from dvrl.reports.load import RunData

WINDOW = 200
"""Episodes in the moving average; every figure states it."""
INK, BLUE, GREY = "#222222", "#2b6cb0", "#888888"


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values at each point, of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)


def learning_curve(run: RunData) -> Figure:
    """Return of finished episodes over steps, and the model's loss below it if it has a model."""
    model_steps, model_loss = run.series("loss/elbo")
    has_model = bool(len(model_loss)) and bool(np.any(model_loss != 0))
    figure = Figure(figsize=(8, 6.4 if has_model else 4.2), layout="constrained")
    axes = figure.subplots(2 if has_model else 1, sharex=True, squeeze=False)[:, 0]
    draw_returns(axes[0], run)
    if has_model:
        draw_model(axes[1], run, model_steps, model_loss)
    axes[-1].set_xlabel("environment steps")
    return figure


def draw_returns(axis, run: RunData) -> None:
    steps = np.array([e.step for e in run.episodes], float)
    returns = np.array([e.ret for e in run.episodes], float)
    axis.plot(steps, returns, ".", color=BLUE, alpha=0.15, markersize=3, linewidth=0)
    if len(returns):
        smooth = moving_average(returns, WINDOW)
        settled = slice(
            min(WINDOW // 4, len(smooth) - 1), None
        )  # few episodes: no mean to speak of
        axis.plot(steps[settled], smooth[settled], color=BLUE, linewidth=2, label=run.agent)
        axis.annotate(
            f"{smooth[-1]:.1f}",
            (steps[-1], smooth[-1]),
            (6, 0),
            textcoords="offset points",
            color=BLUE,
            va="center",
        )
    if run.sigma in ANCHORS:
        anchors = ANCHORS[run.sigma]
        lines = [("optimum", anchors.optimum), ("standing still", anchors.standing_still)]
        if run.sigma > 0:
            lines.append(("no memory", anchors.no_memory))
        for label, height in lines:
            reference(axis, height, f"{label} {height:g}")
    if not len(returns):
        words = "no episode has finished yet"
        axis.text(0.5, 0.5, words, transform=axis.transAxes, ha="center", color=GREY)
    axis.set_ylabel("return of an episode")
    axis.set_title(
        f"{run.name}: each dot an episode, line the mean of the last {WINDOW}",
        loc="left",
        parse_math=False,  # a run may be called $x$
        fontsize=10,
        color=INK,
    )
    tidy(axis)


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
