"""Training: one run, or several side by side. The same call again continues unfinished ones."""

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from dvrl.learners.engine import EngineName
from dvrl.records.layout import RunFiles
from dvrl.runs.build import choose_device, world_spec
from dvrl.runs.config import RunConfig
from dvrl.runs.errors import Interrupted, RunFailed, UsageError
from dvrl.runs.guard import Precision, StopFlag, claimed, disk_errors, numerics, stop_signals
from dvrl.runs.progress import Display, Silent
from dvrl.runs.resume import settle_config
from dvrl.runs.run import Follower, Run
from dvrl.runs.sinks import Sink
from dvrl.runs.together import check_shares, processes


def train(
    config: RunConfig,
    out: str | Path,
    *,
    device: str = "auto",
    engine: EngineName = "auto",
    precision: Precision = "float32",
    threads: int = 1,
    checkpoint_seconds: float = 60.0,
    display: Display | None = None,
    sinks: Sequence[Sink] = (),
) -> Path:
    """Train until `config.steps`, continuing what the directory `out` already holds.

    On the CPU a continued run ends with the same bytes as one that was never stopped, given the
    same number of threads.
    """
    [root] = train_many(
        [(config, out)],
        device=device,
        engine=engine,
        precision=precision,
        threads=threads,
        checkpoint_seconds=checkpoint_seconds,
        displays=[display or Silent()],
        sinks=sinks,
    )
    return root


def train_many(
    runs: Sequence[tuple[RunConfig, str | Path]],
    *,
    device: str = "auto",
    engine: EngineName = "auto",
    precision: Precision = "float32",
    threads: int = 1,
    checkpoint_seconds: float = 60.0,
    displays: Sequence[Display] = (),
    sinks: Sequence[Sink] = (),
) -> list[Path]:
    """Several runs side by side in one process, each with its own files and the same result as if
    it had run alone. One that fails does not stop the others."""
    if not checkpoint_seconds >= 0:
        raise UsageError(f"checkpoint_seconds is {checkpoint_seconds}; it must not be below 0")
    where = choose_device(device)
    if engine == "graph" and where.type != "cuda":
        raise UsageError("engine graph needs a GPU; use --engine auto")
    for config, _ in runs:
        world_spec(config)  # a world that cannot be played is refused before anything is written
    displays = displays or [Silent()] * len(runs)
    opened: list[Run] = []
    with (
        ExitStack() as stack,
        stop_signals() as stop,
        numerics(threads, precision),
        processes(where) as group,
    ):
        check_shares(runs[0][0], len(runs), group.size)
        if not group.leads:
            config, out = runs[0]
            Follower(config, RunFiles(Path(out)), where, group).loop()
            return [Path(out)]
        try:
            for (config, out), display in zip(runs, displays, strict=True):
                files = RunFiles(Path(out))
                with disk_errors(files):
                    stack.enter_context(claimed(files))
                    settle_config(files, config)
                    opened.append(Run(config, files, where, engine, display, sinks, group))
            take_turns(opened, stop, checkpoint_seconds)
        except (Interrupted, RunFailed):
            raise
        except BaseException:
            for run in opened:
                with suppress(OSError):
                    run.write_status("failed")
            raise
        finally:
            for run in opened:
                run.close()
                run.display.close()
    return [run.files.root for run in opened]


def take_turns(runs: Sequence[Run], stop: StopFlag, checkpoint_seconds: float) -> None:
    """Window by window, one run after the other, until all have ended."""
    for run in runs:
        if run.trainer.engine.depth > 1:
            run.announce()
            run.trainer.fill()  # while one is waited for, the others are under way
    active, failures = deque(runs), []
    while active:
        run = active.popleft()
        try:
            with disk_errors(run.files):
                going = run.advance(stop, checkpoint_seconds)
        except RunFailed as failure:
            with suppress(OSError):
                run.write_status("failed")
            failures.append(failure)
            continue
        if going:
            active.append(run)
    if failures:
        rest = f" ({len(runs) - len(failures)} of {len(runs)} runs did not fail)"
        raise RunFailed("; ".join(map(str, failures)) + (rest if len(runs) > 1 else ""))
    unfinished = [run for run in runs if run.trainer.steps < run.config.steps]
    if unfinished and stop.signal_number is not None:
        steps = ", ".join(f"{run.trainer.steps:,}" for run in unfinished)
        said = f"stopped at step {steps}, saved; the same command continues from here"
        if not any(run.trainer.steps for run in unfinished):
            said = "stopped before anything was trained; the same command begins anew"
        raise Interrupted(stop.signal_number, said)
