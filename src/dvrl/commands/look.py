"""`dvrl evaluate | show | predict`: what a run's agent earns, sees and expects."""

import dataclasses
import json
from pathlib import Path
from typing import Literal

import tyro


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play a run's agent with frozen weights."""

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    episodes: int = 200
    """Episodes to play."""
    particles: int | None = None
    """K, which may differ from training."""
    deterministic: bool = False
    """Act by the policy's mode instead of sampling."""
    seed: int = 1_000_000
    """Seed of worlds and chance; the default is far from training seeds."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Where to play."""


@dataclasses.dataclass(frozen=True)
class Show:
    """Draw a run: learning curve, hikes with belief or an episode as a film, and a page that holds
    all of it."""

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    seed: int = 1_000_000
    """Seed of the hikes, or of the episode."""


@dataclasses.dataclass(frozen=True)
class Predict:
    """Play an episode of images and draw what the agent believes and expects to see next."""

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    rows: int = 6
    """Moments at which it is asked, by turns after a screen that was shown and one that was
    blank."""
    steps: int = 600
    """Decisions to play, unless the game is over before."""
    seed: int = 1_000_000
    """Seed of the episode."""
    particles: int | None = None
    """K, which may differ from training."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Where to play."""


def evaluate(argv: list[str]) -> int:
    args = tyro.cli(Evaluate, args=argv, prog="dvrl evaluate")
    from dvrl.runs.evaluate import evaluate_run
    from dvrl.runs.guard import numerics
    from dvrl.runs.progress import watching

    with numerics(1), watching(args.episodes) as watch:
        result = evaluate_run(
            args.run,
            episodes=args.episodes,
            particles=args.particles,
            deterministic=args.deterministic,
            seed=args.seed,
            device=args.device,
            watch=watch,
        )
    print(json.dumps(result, indent=2))
    return 0


def show(argv: list[str]) -> int:
    args = tyro.cli(Show, args=argv, prog="dvrl show")
    from dvrl.reports.page import build_page
    from dvrl.runs.guard import numerics
    from dvrl.runs.inspect import record_traces

    with numerics(1):
        record_traces(args.run, args.seed)
    page, pictures = build_page(args.run)
    for path in [*pictures, page]:
        print(path)
    return 0


def predict(argv: list[str]) -> int:
    args = tyro.cli(Predict, args=argv, prog="dvrl predict")
    from dvrl.reports.predictions import draw_predictions
    from dvrl.runs.guard import numerics
    from dvrl.runs.inspect import record_predictions

    with numerics(1):
        record_predictions(
            args.run,
            rows=args.rows,
            steps=args.steps,
            seed=args.seed,
            particles=args.particles,
            device=args.device,
        )
    for path in draw_predictions(args.run):
        print(path)
    return 0
