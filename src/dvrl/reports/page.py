"""One page about a run that opens offline: pictures inside, a table of numbers, the command."""

import base64
import html
import json
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dvrl.envs.hike_facts import ANCHORS
from dvrl.records.layout import RunFiles, write_atomic
from dvrl.reports.beliefs import belief_errors, hike_figure
from dvrl.reports.curves import WINDOW, learning_curve
from dvrl.reports.film import film
from dvrl.reports.images import png
from dvrl.reports.load import RunData, load_run
from dvrl.reports.predictions import particles_figure, predictions_figure

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
figure { margin: 1.5rem 0; } figcaption { color: GrayText; font-size: .9rem; }
img { max-width: 100%; background: white; border-radius: 6px; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .25rem 1rem .25rem 0; text-align: left; border-bottom: 1px solid #8884; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8884; border-radius: 6px; }
"""

FRAMES = 300
"""Of the film on the page, at most: twenty seconds, a few megabytes."""
PREDICTIONS = (
    "What the agent expects: o_t is what it saw at moment t (framed: the screen was blanked), dt 0 "
    "what it takes that for, then what it expects to see if it repeats its last action. Blank "
    "screens are part of what it expects, so dark pictures are mixtures with them."
)
PARTICLES = "What single particles expect to see next, the likeliest first; above each its weight."


def build_page(root: str | Path) -> tuple[Path, list[Path]]:
    """Write plots/ and report.html of a run."""
    root = Path(root)
    run, files = load_run(root), RunFiles(root)
    drawn = pictures(run)
    for picture in drawn:
        write_atomic(files.plots / picture.name, picture.content)
    write_atomic(files.report, page(run, list(map(figure_block, drawn))).encode())
    return files.report, [files.plots / picture.name for picture in drawn]


class Picture(NamedTuple):
    """A file and what it shows."""

    name: str
    content: bytes
    caption: str


def pictures(run: RunData) -> list[Picture]:
    """What there is to draw of a run."""
    drawn = [Picture("curve.png", png(learning_curve(run)), "Learning curve.")]
    if run.hikes is not None:
        caption = "One hike: true path (triangle to square), observations, and the exact filter."
        if "estimate" in run.hikes:
            caption += " White: where the belief places the hiker; small dots: single particles."
        drawn.append(Picture("hike.png", png(hike_figure(run)), caption))
    if run.episode is not None:
        beginning = {name: array[:FRAMES] for name, array in run.episode.items() if array.ndim}
        drawn.append(Picture("episode.gif", film(beginning), film_caption(run, beginning)))
    if run.predictions is not None:
        unit = "decisions" if run.game else "steps"
        step = f"The agent after {run.predictions['checkpoint_step']:,} {unit}."
        expected = predictions_figure(run.name, run.predictions)
        drawn.append(Picture("predictions.png", png(expected), f"{PREDICTIONS} {step}"))
        particles = particles_figure(run.name, run.predictions)
        drawn.append(Picture("particles.png", png(particles), f"{PARTICLES} {step}"))
    return drawn


def film_caption(run: RunData, episode: dict[str, np.ndarray]) -> str:
    """What the film of an episode shows."""
    score, over = episode["score"], episode["over"][-1]
    unit = "a game" if run.game else "an episode"
    played = f"{'All' if over else 'The first'} {len(score):,} decisions of {unit}"
    panels = "what was on the screen, what the agent saw of it"
    if "belief" in episode:
        panels += ", what it takes that for (the weighted mean over its particles; a blank screen "
        panels += "is expected blank)"
    so_far = "" if over else " so far"
    return f"{played}, return{so_far} {score.sum():g}: {panels}."


def figure_block(picture: Picture) -> str:
    data = base64.b64encode(picture.content).decode()
    text, kind = html.escape(picture.caption), picture.name.rpartition(".")[2]
    return (
        f'<figure><img alt="{text}" src="data:image/{kind};base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def page(run: RunData, blocks: list[str]) -> str:
    rows = "".join(
        f'<tr><td>{html.escape(label)}</td><td class="n">{html.escape(value)}</td></tr>'
        for label, value in facts(run)
    )
    command = shlex.join(run.starts[-1]["command"]) if run.starts else "unknown"
    versions = json.dumps(run.starts[-1]["versions"]) if run.starts else ""
    title = html.escape(f"{run.agent} · {run.name}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1><table>{rows}</table>"
        f"{''.join(blocks)}<h2>Rebuild</h2><pre>{html.escape(command)}</pre>"
        f"<p>{html.escape(versions)}</p>"
        f"<h2>Config</h2><pre>{html.escape(json.dumps(run.config, indent=2))}</pre></body></html>"
    )


def facts(run: RunData) -> list[tuple[str, str]]:
    """The numbers people look for first."""
    returns = np.array([e.ret for e in run.episodes[-WINDOW:]])
    rows = [("agent, seed", f"{run.agent}, {run.config['seed']}"), *world_facts(run)]
    rows.append((f"{run.unit}s finished", f"{len(run.episodes):,}"))
    if len(returns):
        raw = "raw " if run.game else ""
        label = f"mean {raw}return, last {len(returns)} {run.unit}s"
        rows.append((label, f"{returns.mean():.1f}"))
    if run.evaluation is not None:
        label = f"evaluated, {run.evaluation['episodes']:,} new {run.unit}s"
        rows.append((label, f"{run.evaluation['return_mean']:.1f}"))
    anchors = ANCHORS.get(run.sigma) if run.sigma is not None else None
    if anchors is not None:
        rows.append(("optimum with an exact belief", f"{anchors.optimum:.1f}"))
        if run.sigma:
            rows.append(("fully-observed policy on raw observations", f"{anchors.no_memory:.1f}"))
        rows.append(("standing still", f"{anchors.standing_still:.0f}"))
    loss, gap = settled(run, "loss/elbo"), settled(run, "belief/gap")
    if loss:
        rows.append(("model loss, nats per step (last 5 %)", f"{loss:.3f}"))
        if anchors is not None:
            rows.append(("exact filter, nats per step", f"{anchors.nats:.3f}"))
    if gap is not None:
        rows.append(("model gap, nats per frame (last 5 %)", f"{gap:.2f}"))
    if run.still_gap is not None:
        rows.append(("the same of a still picture of the episode below", f"{run.still_gap:.2f}"))
    if run.hikes is not None:
        for label, error in belief_errors(run.hikes).items():
            rows.append((f"distance from the truth: {label}", f"{error:.2f}"))
    return rows


def world_facts(run: RunData) -> list[tuple[str, str]]:
    """Where the agent acted, and for how long."""
    rows = []
    if run.game:
        rows.append(("game", f"{run.game}, {run.config['world']['variant']}"))
    if run.sigma is not None:
        rows.append(("observation noise", f"{run.sigma:g}"))
    if "flicker" in run.config["world"]:
        rows.append(("flicker probability", f"{run.config['world']['flicker']:g}"))
    if run.game and run.metrics:
        rows.append(("decisions", f"{run.metrics[-1]['step']:,}"))
    return rows


def settled(run: RunData, name: str) -> float | None:
    """The mean of a metric's last 5 %, if it was written down at all."""
    _, values = run.series(name)
    return float(values[-max(1, len(values) // 20) :].mean()) if len(values) else None
