"""The command line: `dvrl train | evaluate | show | predict`. It only chooses what to call."""

import argparse
import dataclasses
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dvrl.envs.config import AtariConfig, GymConfig, MountainHikeConfig, WorldConfig
from dvrl.experiments.presets import AgentName, PresetName, preset
from dvrl.records.layout import RunFiles
from dvrl.runs.config import RunConfig, to_data
from dvrl.runs.errors import Interrupted, RunFailed, UsageError

USAGE = """\
usage: dvrl COMMAND ...

Deep variational reinforcement learning: agents that act on a learned belief.

  dvrl train WORLD    train an agent; the same command again continues an unfinished run
  dvrl evaluate RUN   play a run's agent with frozen weights and print what it earns
  dvrl show RUN       draw a run's learning curve and what it sees, and build its page
  dvrl predict RUN    draw what a run's agent expects to see next, where it sees images
  dvrl bench WHAT     measure this machine: hike, atari (training speed), check (engines agree)

WORLD is mountain-hike, atari:GAME for a flickering Atari game (atari:Pong), or gym:ID for a
Gymnasium environment (gym:CartPole-v1).
`dvrl COMMAND --help` lists the flags of a command.
"""


@dataclasses.dataclass(frozen=True)
class Train:
    """Train an agent. --agent and --preset choose a whole config; every other flag changes it.
    Of --world.sigma and --world.variant the first half may be left out."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    agent: AgentName = "dvrl"
    """The particle belief of the paper, or its recurrent baseline."""
    preset: PresetName = "quick"
    """quick: small networks, minutes on two cores; tuned: the paper's networks with a learner that
    keeps up, for a GPU (not for images yet); paper: every constant as published."""
    out: Path | None = None
    """Directory of the run (default: runs/WORLD-AGENT-PRESET-sSEED)."""
    seeds: str | None = None
    """Several runs side by side, one for each seed: 0-4, or 1,3,7. Their directories carry the seed
    in their name."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    engine: Literal["auto", "eager", "graph"] = "auto"
    """graph: a gradient window is captured once and replayed on the GPU; eager: operation by
    operation; auto: graph where it can be."""
    precision: Literal["float32", "tf32"] = "float32"
    """Of matrix products on a GPU; tf32 is faster and rounds to 10 bits (docs/performance.md)."""
    threads: int = 1
    """CPU threads; one is fastest for small networks."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints; 0 saves after every gradient window."""
    print_config: bool = False
    """Print the resolved config and the parameter count as JSON; train nothing."""


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    # A queue on the GPU for every run side by side; CUDA reads it when it starts.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"dvrl: {message}\n"
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train,
        "evaluate": evaluate,
        "show": show,
        "predict": predict,
        "bench": bench,
    }
    if argv == ["--version"]:
        print(f"dvrl {version('dvrl')}")
        return 0
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] not in commands:
        return complain(f"there is no command {argv[0]!r}; there are {', '.join(commands)}")
    try:
        return commands[argv[0]](argv[1:])
    except KeyboardInterrupt:
        saved = "; what was saved before is whole" if argv[0] == "train" else ""
        print(f"stopped at once{saved}", file=sys.stderr)
        return 130
    except UsageError as error:
        # Of processes that train together all make the same mistake: one tells.
        return complain(str(error)) if os.environ.get("RANK", "0") == "0" else 2
    except RunFailed as failure:
        return complain(str(failure), code=1)
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.signal_number
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more
        return 141
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}", code=1)


def train(argv: list[str]) -> int:
    args = parse_train(argv)
    if args.print_config:
        return print_config(args.config)
    from dvrl.runs.progress import choose_displays
    from dvrl.runs.train import train_many

    runs = planned(args)
    displays = choose_displays([f"s{c.seed}  " if len(runs) > 1 else "" for c, _ in runs])
    for display, (config, out) in zip(displays, runs, strict=True):
        display.say(f"{config.world.name}, {args.agent} ({args.preset}) -> {out}")
    train_many(
        runs,
        device=args.device,
        engine=args.engine,
        precision=args.precision,
        threads=args.threads,
        checkpoint_seconds=args.checkpoint_seconds,
        displays=displays,
    )
    for display, (_, out) in zip(displays, runs, strict=True):
        display.say(f"finished: {out}  (look at it: dvrl show {shlex.quote(str(out))})")
    return 0


def planned(args: Train) -> list[tuple[RunConfig, Path]]:
    """The runs that were asked for and their directories."""
    if args.seeds is None:
        return [(args.config, args.out or default_out(args, args.config))]
    configs = [dataclasses.replace(args.config, seed=seed) for seed in parse_seeds(args.seeds)]
    if args.out is None:
        return [(config, default_out(args, config)) for config in configs]
    if RunFiles(args.out).config.exists():
        raise UsageError(f"{args.out} is a run itself; --seeds wants an --out to hold several")
    return [(config, args.out / f"s{config.seed}") for config in configs]


def parse_seeds(text: str) -> list[int]:
    """`0-4,7` as 0, 1, 2, 3, 4, 7."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise UsageError(f"seeds are {text!r}; they must look like 0-4 or 1,3,7")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UsageError(f"seeds are {text!r}; a range must go upwards, as in 0-4")
        seeds += range(first, last + 1)
    if len(set(seeds)) != len(seeds):
        raise UsageError(f"seeds are {text!r}; each seed must be named once")
    return seeds


def parse_train(argv: list[str]) -> Train:
    """Two readings: world, agent and preset choose the defaults for all other flags."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--agent", default="dvrl")
    first.add_argument("--preset", default="quick")
    first.add_argument("--steps")
    chosen, _ = first.parse_known_args(argv)
    if argv and not argv[0].startswith("-"):
        name, rest = argv[0], argv[1:]
    elif {"-h", "--help"} & set(argv):
        name, rest = "mountain-hike", argv
    else:
        raise UsageError(
            "train needs a world right behind it: dvrl train mountain-hike, dvrl train atari:GAME, "
            "or dvrl train gym:ID"
        )
    changes = (
        {"steps": int(chosen.steps)} if (chosen.steps or "").replace("_", "").isdigit() else {}
    )
    try:
        config = preset(chosen.preset, chosen.agent, parse_world(name), **changes)
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        args = tyro.cli(
            Train,
            args=[re.sub(r"^--(sigma|variant)(?==|$)", r"--world.\1", arg) for arg in rest],
            default=Train(config),
            prog=f"dvrl train {name}",
            config=(tyro.conf.AvoidSubcommands,),
        )
        args = dataclasses.replace(args, config=well_named(args.config))
    except ValueError as error:  # of the run as a whole
        raise UsageError(str(error)) from error
    if args.seeds is not None and any(re.fullmatch(r"--seed(=.*)?", arg) for arg in rest):
        raise UsageError("both --seed and --seeds were given; give one of them")
    return args


def parse_world(name: str) -> WorldConfig:
    if name == "mountain-hike":
        return MountainHikeConfig()
    kind, _, rest = name.partition(":")
    if kind == "gym" and rest:
        return GymConfig(rest)
    if kind == "atari" and rest:
        from dvrl.envs.atari import game_name

        return AtariConfig(game_name(rest))
    raise UsageError(f"there is no world {name!r}; there are mountain-hike, atari:GAME and gym:ID")


def well_named(config: RunConfig) -> RunConfig:
    """A game called as we call it, however --world.game spelled it."""
    if not isinstance(config.world, AtariConfig):
        return config
    from dvrl.envs.atari import game_name

    world = dataclasses.replace(config.world, game=game_name(config.world.game))
    return dataclasses.replace(config, world=world)


def default_out(args: Train, config: RunConfig) -> Path:
    return Path("runs") / f"{config.world.short}-{args.agent}-{args.preset}-s{config.seed}"


def print_config(config: RunConfig) -> int:
    from dvrl.runs.build import build_agent, parameter_count

    shown = to_data(config) | {"parameters": parameter_count(build_agent(config))}
    print(json.dumps(shown, indent=2))
    return 0


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


def bench(argv: list[str]) -> int:
    from dvrl.cli_bench import bench

    return bench(argv)


def complain(sentence: str, code: int = 2) -> int:
    print(f"dvrl: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
