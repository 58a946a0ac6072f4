"""The command line's `dvrl bench hike | atari | check`."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import tyro

from dvrl.envs.config import AtariConfig
from dvrl.experiments.presets import AGENTS, PresetName
from dvrl.runs.errors import UsageError

USAGE = """\
usage: dvrl bench WHAT ...

  dvrl bench hike    how fast agents train on Mountain Hike, as a table and as JSON
  dvrl bench atari   the same on a game, beside the emulators alone in the same run
  dvrl bench check   on a GPU: engines agree, runs side by side are runs alone, memory stays flat

`dvrl bench WHAT --help` lists the flags.
"""


@dataclasses.dataclass(frozen=True)
class BenchHike:
    """Measure how fast agents train on Mountain Hike; prints a table and writes JSON."""

    agents: str = "dvrl,rnn"
    """Agents to measure."""
    particles: str = "1,10,30"
    """K of dvrl."""
    envs: str = "16"
    """n_e, environments of a run."""
    runs: str = "1"
    """Runs side by side."""
    preset: PresetName = "paper"
    """Sizes and constants."""
    repeats: int = 5
    """Stretches measured; their median is shown."""
    seconds: float = 2.0
    """Length of a stretch."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    precision: Literal["float32", "tf32"] = "float32"
    """Of matrix products on a GPU."""
    threads: int = 1
    """CPU threads."""
    out: Path = Path("bench-hike.json")
    """File for the numbers."""


@dataclasses.dataclass(frozen=True)
class BenchAtari:
    """Measure how fast agents train on an Atari game, and the emulators alone beside them."""

    game: str = "Pong"
    """The game."""
    variant: Literal["stochastic", "deterministic"] = "stochastic"
    """With or without actions that stick."""
    agents: str = "rnn,dvrl"
    """Agents to measure."""
    particles: str = "15"
    """K of dvrl."""
    envs: str = "16,64"
    """n_e, environments of a run."""
    preset: PresetName = "paper"
    """Sizes and constants."""
    repeats: int = 5
    """Stretches measured; their median is shown."""
    seconds: float = 3.0
    """Length of a stretch."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    precision: Literal["float32", "tf32"] = "float32"
    """Of matrix products and convolutions on a GPU."""
    threads: int = 1
    """CPU threads, beside those of the emulators."""
    out: Path = Path("bench-atari.json")
    """File for the numbers."""


@dataclasses.dataclass(frozen=True)
class BenchCheck:
    """On a GPU: engines agree, runs side by side are runs alone, memory stays flat."""

    preset: PresetName = "paper"
    """Sizes and constants."""
    updates: int = 10_000
    """Updates over which memory is watched."""
    only: str = ""
    """Those checks alone whose name this regular expression finds."""


def bench(argv: list[str]) -> int:
    if argv[:1] == ["hike"]:
        return bench_hike(tyro.cli(BenchHike, args=argv[1:], prog="dvrl bench hike"))
    if argv[:1] == ["atari"]:
        return bench_atari(tyro.cli(BenchAtari, args=argv[1:], prog="dvrl bench atari"))
    if argv[:1] == ["check"]:
        return bench_check(tyro.cli(BenchCheck, args=argv[1:], prog="dvrl bench check"))
    if argv[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    raise UsageError("bench needs to know what: dvrl bench hike, atari or check")


def bench_check(args: BenchCheck) -> int:
    import torch

    from dvrl.experiments.check import checks
    from dvrl.runs.guard import numerics

    every = list(checks(torch.device("cuda"), args.updates, args.preset))
    try:
        chosen = [check for check in every if re.search(args.only, check.name)]
    except re.error as error:
        raise UsageError(
            f"only is {args.only!r}, which is no regular expression: {error}"
        ) from None
    if not chosen:
        names = "; ".join(check.name for check in every)
        raise UsageError(f"no check has a name like {args.only!r}; there are {names}")
    if not torch.cuda.is_available():
        raise UsageError("bench check compares engines on a GPU, and torch sees none here")
    failed = 0
    with numerics(1):
        for name, findings in chosen:
            for finding in findings():
                verdict = "holds" if finding.holds else "FAILS"
                failed += not finding.holds
                measured = f"{finding.value:9.2e} <= {finding.bound:g}"
                print(f"{verdict}  {measured}  {name}: {finding.name}", flush=True)
    print("all hold" if not failed else f"{failed} failed")
    return 1 if failed else 0


def bench_hike(args: BenchHike) -> int:
    numbers = {name: parse_numbers(name, getattr(args, name)) for name in BENCH_NUMBERS}
    return measure(args, numbers, None)


def bench_atari(args: BenchAtari) -> int:
    from dvrl.envs.atari import game_name

    numbers = {name: parse_numbers(name, getattr(args, name)) for name in ("particles", "envs")}
    try:
        game = game_name(args.game)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return measure(args, numbers | {"runs": [1]}, AtariConfig(game, args.variant))


def measure(
    args: BenchHike | BenchAtari, numbers: dict[str, list[int]], world: AtariConfig | None
) -> int:
    """Every cell of the grid; a line as soon as it is known, all as JSON at the end."""
    from dvrl.experiments import bench as benches
    from dvrl.records.layout import write_json
    from dvrl.runs.build import choose_device
    from dvrl.runs.guard import numerics

    agents = [agent.strip() for agent in args.agents.split(",")]
    for agent in agents:
        if agent not in AGENTS:
            raise UsageError(f"there is no agent {agent!r}; there are {', '.join(AGENTS)}")
    if args.repeats < 1:
        raise UsageError(f"repeats is {args.repeats}; it must be at least 1")
    if not 0 < args.seconds < float("inf"):
        raise UsageError(f"seconds is {args.seconds:g}; it must be above 0")
    if args.out.is_dir():
        raise UsageError(f"{args.out} is a directory; --out must be a file")
    device = choose_device(args.device)
    args.out.parent.mkdir(parents=True, exist_ok=True)  # else an hour's numbers may have no place
    cells = list(benches.grid(agents, **numbers, preset=args.preset, world=world))
    try:
        for cell in cells:
            cell.config(0)
    except ValueError as error:
        raise UsageError(str(error)) from error
    with numerics(args.threads, args.precision):
        print(BENCH_HEADER + (EMULATOR_HEADER if world else EAGER_HEADER))
        result = benches.bench(
            cells,
            device,
            args.repeats,
            args.seconds,
            lambda row: print(bench_line(row), flush=True),
        )
    write_json(args.out, result)
    print(BENCH_FOOTER + (EMULATOR_FOOTER if world else EAGER_FOOTER))
    print(f"{args.out}  ({result['machine']['device']})")
    return 0


BENCH_NUMBERS = ("particles", "envs", "runs")
BENCH_HEADER = (
    "agent       K    n_e  runs  engine     steps/s   lowest  highest  ms/update  peak MiB"
)
BENCH_FOOTER = """\
ms/update: of all runs in a row together; peak MiB: the GPU's, or the most this process has had;
"""
EAGER_HEADER, EAGER_FOOTER = (
    "  x eager",
    "x eager: against one run, operation by operation, on a GPU",
)
EMULATOR_HEADER, EMULATOR_FOOTER = (
    "  of emulator",
    "of emulator: share of what the emulators make alone, with actions drawn beforehand",
)


def bench_line(row: dict[str, Any]) -> str:
    speed = f"{row['steps_per_second']:>12,.0f}{row['lowest']:>9,.0f}{row['highest']:>9,.0f}"
    if row["agent"] == "emulator":
        return f"{'emulator':<8}{row['envs']:>12}{'':>14}{speed}"
    if "of_emulator" in row:
        beside = f"{row['of_emulator']:>13.2f}"
    else:
        beside = f"{row['times_eager']:>9.1f}" if row["times_eager"] else f"{'-':>9}"
    return (
        f"{row['agent']:<8}{row['particles'] or '-':>5}{row['envs']:>7}{row['runs']:>6}"
        f"  {row['engine']:<6}{speed}{row['ms_per_update']:>11.3f}{row['peak_mib']:>10,.0f}"
        f"{beside}"
    )


def parse_numbers(name: str, text: str) -> list[int]:
    """`1,5,15` as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"{name} is {text!r}; it must be whole numbers above 0, as in 1,5,15")
    return [int(part) for part in parts]
