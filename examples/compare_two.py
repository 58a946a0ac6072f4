"""Two kinds of runs in one table and one picture: python examples/compare_two.py DIR DIR

Each directory holds runs, as `dvrl train ... --seeds 0-9 --out DIR` leaves them.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dvrl.envs.hike_facts import ANCHORS
from dvrl.reports.curves import moving_average, reference, tidy
from dvrl.reports.load import RunData, load_run

SHARE = 0.05
"""Of a run's episodes, the last ones, whose mean return counts."""
SMOOTH = 1000
"""Episodes in the moving average of the picture."""
COLOURS = ("#2b6cb0", "#c05621")


def welch(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float, float]:
    """Difference of means, its 95 % interval, and the two-sided p-value of Welch's test."""
    sizes = len(a), len(b)
    parts = a.var(ddof=1) / sizes[0], b.var(ddof=1) / sizes[1]
    error = math.sqrt(sum(parts))
    freedom = error**4 / sum(part**2 / (n - 1) for part, n in zip(parts, sizes, strict=True))
    difference = a.mean() - b.mean()
    t = np.linspace(0.0, 1000.0, 2_000_001)  # Student's law, summed up numerically
    density = (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
    inside = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    inside /= inside[-1]
    p = 1 - np.interp(abs(difference) / error, t, inside)
    reach = np.interp(0.95, inside, t) * error
    return difference, difference - reach, difference + reach, p


def last(run: RunData) -> float:
    """Mean return of the last episodes."""
    returns = [e.ret for e in run.episodes]
    return float(np.mean(returns[-max(1, round(SHARE * len(returns))) :]))


def bound(run: RunData) -> float:
    """Model loss over the same part of the run, nats per step; 0 without a model."""
    _, losses = run.series("loss/elbo")
    return float(np.mean(losses[-max(1, round(SHARE * len(losses))) :])) if len(losses) else 0.0


def names(groups: list[list[RunData]], directories: list[Path]) -> list[str]:
    """What to call the two: by their agents, or where these are the same by their directories."""
    agents = [group[0].agent for group in groups]
    return agents if agents[0] != agents[1] else [d.resolve().name for d in directories]


def trained(run: RunData) -> int:
    """Environment steps."""
    return max(run.episodes[-1].step, *(line["step"] for line in run.metrics[-1:]))


def table(groups: list[list[RunData]], called: list[str]) -> str:
    columns = ("runs", "seed", "steps", "return, last 5 %", "model, nats per step")
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for name, run in ((n, run) for n, group in zip(called, groups, strict=True) for run in group):
        model = f"{bound(run):.3f}" if bound(run) else "-"
        seed, steps = run.config["seed"], trained(run)
        lines.append(f"| {name} | {seed} | {steps:,} | {last(run):.2f} | {model} |")
    returns = [np.array([last(run) for run in group]) for group in groups]
    for name, r in zip(called, returns, strict=True):
        lines.append(
            f"\n{name}: {r.mean():.2f} +- {r.std(ddof=1):.2f} over {len(r)} runs, "
            f"worst {r.min():.2f}"
        )
    difference, low, high, p = welch(*returns)
    lines.append(
        f"\n{called[0]} - {called[1]}: {difference:.2f}, 95 % interval "
        f"{low:.2f} to {high:.2f}, Welch's test p = {p:.2g}"
    )
    return "\n".join(lines)


def picture(groups: list[list[RunData]], called: list[str]) -> Figure:
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axis = figure.subplots()
    lowest_end = math.inf
    for name, runs, colour in zip(called, groups, COLOURS, strict=True):
        ends = max(run.episodes[-1].step for run in runs)
        grid = np.linspace(0.01 * ends, ends, 400)
        curves = []
        for run in runs:
            steps = np.array([e.step for e in run.episodes], float)
            smooth = moving_average(np.array([e.ret for e in run.episodes]), SMOOTH)
            curves.append(np.interp(grid, steps, smooth))
            lowest_end = min(lowest_end, smooth[-1])
            axis.plot(grid, curves[-1], color=colour, linewidth=0.6, alpha=0.35)
        label = f"{name}, {len(runs)} runs"
        axis.plot(grid, np.mean(curves, 0), color=colour, linewidth=2.2, label=label)
    sigma = groups[0][0].sigma
    if sigma in ANCHORS:
        facts = ANCHORS[sigma]
        for label, height in (("optimum", facts.optimum), ("no memory", facts.no_memory)):
            reference(axis, height, f"{label} {height:g}")
        axis.set_ylim(min(facts.no_memory, lowest_end) - 15, facts.optimum + 10)
    axis.set_title(
        f"Mean return of the last {SMOOTH} episodes: each run, and the mean over runs",
        loc="left",
        fontsize=10,
    )
    axis.set_xlabel("environment steps")
    axis.set_ylabel("return of an episode")
    axis.legend(frameon=False)
    tidy(axis)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs=2, type=Path)
    parser.add_argument("--figure", type=Path, default=Path("compare.png"))
    args = parser.parse_args()
    groups = [
        [load_run(path.parent) for path in sorted(directory.glob("*/config.json"))]
        for directory in args.directories
    ]
    for directory, group in zip(args.directories, groups, strict=True):
        if len(group) < 2 or not all(run.episodes for run in group):
            parser.error(f"{directory} must hold two runs or more, each with finished episodes")
    called = names(groups, args.directories)
    print(table(groups, called))
    args.figure.parent.mkdir(parents=True, exist_ok=True)
    picture(groups, called).savefig(args.figure, dpi=130)
    print(f"\n{args.figure}")


if __name__ == "__main__":
    main()
