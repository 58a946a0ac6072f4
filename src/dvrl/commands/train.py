"""`dvrl train`: which runs are asked for, and where they go."""

import argparse
import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dvrl.envs.config import AtariConfig, GymConfig, MountainHikeConfig, WorldConfig
from dvrl.experiments.presets import AgentName, PresetName, preset
from dvrl.records.layout import RunFiles
from dvrl.runs.config import RunConfig, to_data
from dvrl.runs.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Train:
    """Train an agent. --agent and --preset choose a whole config; every other flag changes it.
    Of --world.sigma and --world.variant the first half may be left out."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    agent: AgentName = "dvrl"
    """The particle belief of the paper, or its recurrent baseline."""
    preset: PresetName = "quick"
    """quick: small networks, minutes on two cores; tuned: the paper's networks with a learner that
    keeps up, for a GPU; paper: every constant as published."""
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
