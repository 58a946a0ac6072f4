"""One page about a run that opens offline: pictures inside, a table of numbers, the command."""

import base64
import html
import io
import json
import shlex
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dvrl.envs.hike_facts import ANCHORS
from dvrl.records.layout import RunFiles, write_atomic
from dvrl.reports.beliefs import belief_errors, hike_figure
from dvrl.reports.curves import WINDOW, learning_curve
from dvrl.reports.load import RunData, load_run

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


def build_page(root: str | Path) -> tuple[Path, list[Path]]:
    """Write plots/*.png and report.html of a run."""
    root = Path(root)
    run, files = load_run(root), RunFiles(root)
    figures = [("curve", learning_curve(run), "Learning curve.")]
    if run.hikes is not None:
        caption = "One hike: true path (triangle to square), observations, and the exact filter."
        if "estimate" in run.hikes:
            caption += " White: where the belief places the hiker; small dots: single particles."
        figures.append(("hike", hike_figure(run), caption))
    pictures, blocks = [], []
    for name, figure, caption in figures:
        content = png(figure)
        path = files.plots / f"{name}.png"
        write_atomic(path, content)
        pictures.append(path)
        blocks.append(figure_block(content, caption))
    write_atomic(files.report, page(run, blocks).encode())
    return files.report, pictures


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def figure_block(content: bytes, caption: str) -> str:
    data = base64.b64encode(content).decode()
    text = html.escape(caption)
    return (
        f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
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
    rows = [("agent, seed", f"{run.agent}, {run.config['seed']}")]
    if run.sigma is not None:
        rows.append(("observation noise", f"{run.sigma:g}"))
    rows.append(("episodes finished", f"{len(run.episodes):,}"))
    if len(returns):
        rows.append((f"mean return, last {len(returns)} episodes", f"{returns.mean():.1f}"))
    if run.evaluation is not None:
        label = f"evaluated, {run.evaluation['episodes']:,} new episodes"
        rows.append((label, f"{run.evaluation['return_mean']:.1f}"))
    anchors = ANCHORS.get(run.sigma) if run.sigma is not None else None
    if anchors is not None:
        rows.append(("optimum with an exact belief", f"{anchors.optimum:.1f}"))
        if run.sigma:
            rows.append(("fully-observed policy on raw observations", f"{anchors.no_memory:.1f}"))
        rows.append(("standing still", f"{anchors.standing_still:.0f}"))
    _, loss = run.series("loss/elbo")
    if len(loss) and loss[-1] != 0:
        last = loss[-max(1, len(loss) // 20) :].mean()
        rows.append(("model loss, nats per step (last 5 %)", f"{last:.3f}"))
        if anchors is not None:
            rows.append(("exact filter, nats per step", f"{anchors.nats:.3f}"))
    if run.hikes is not None:
        for label, error in belief_errors(run.hikes).items():
            rows.append((f"distance from the truth: {label}", f"{error:.2f}"))
    return rows
