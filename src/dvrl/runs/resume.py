"""What a directory already holds: its config, its checkpoints, its earlier starts."""

import platform
import sys
import time
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dvrl.records.layout import RunFiles, read_json, write_json
from dvrl.runs import checkpoint as checkpoints
from dvrl.runs.config import RunConfig, differences, from_data, to_data
from dvrl.runs.errors import RunFailed, UsageError
from dvrl.runs.trainer import Trainer


def read_config(files: RunFiles) -> RunConfig:
    """The config of the run in a directory."""
    if not files.root.exists():
        raise UsageError(f"{files.root} does not exist")
    if not files.config.exists():
        raise UsageError(f"{files.root} is not a run: it has no config.json")
    try:
        return from_data(read_json(files.config), str(files.config))
    except ValueError as error:
        raise UsageError(str(error)) from error


def settle_config(files: RunFiles, config: RunConfig) -> None:
    """Write the config down, unless the directory holds something else."""
    if files.weights.exists():
        raise UsageError(f"{files.root} holds a saved agent, not a run; choose another --out")
    if files.config.exists():
        old = read_config(files)
        changed = differences(old, config)
        over, new = old.learner.anneal_steps, config.learner.anneal_steps
        stretched = replace(old, learner=replace(old.learner, anneal_steps=new))
        if changed and over is not None and not differences(stretched, config):
            raise UsageError(
                f"the learning rate of {files.root} falls over {over} steps; to train it to "
                f"{config.steps} add --learner.anneal-steps {over}, or choose another --out"
            )
        if changed:
            raise UsageError(
                f"{files.root} holds a run with other settings ({'; '.join(changed)}); "
                "choose another --out, or repeat the command it was started with"
            )
        if config.steps <= old.steps:
            return
    elif any(path != files.lock for path in files.root.iterdir()):
        raise UsageError(f"{files.root} holds other files and no run; choose another --out")
    write_json(files.config, to_data(config))


def made_with(device: torch.device, engine: str) -> dict[str, Any]:
    """What exact numbers depend on beside the config."""
    return {
        "device": device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "precision": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "float32",
        "engine": engine,
    }


def continue_from_checkpoint(
    trainer: Trainer, files: RunFiles, made: dict[str, Any]
) -> tuple[dict[str, Any] | None, list[str]]:
    """Put the trainer where the newest whole checkpoint left it.

    Its numbers (None if there is none), and sentences for the user. Damaged checkpoints are set
    aside under another name.
    """
    try:
        found, damages = checkpoints.load_newest(files.checkpoints)
    except checkpoints.Damaged as damage:
        raise RunFailed(
            f"{damage}. Nothing was changed; remove {files.checkpoints} to start the run anew"
        ) from damage
    said = [f"{damage}; falling back to the checkpoint before it" for damage in damages]
    for damage in damages:
        checkpoints.set_aside(damage.path)
    if found is None:
        if files.metrics.exists():
            said.append("no checkpoint was saved yet: starting from the beginning")
        return None, said
    said += compare(found.numbers["made_with"], made, files)
    try:
        trainer.restore(found)
    except (RuntimeError, KeyError, AssertionError, ValueError) as error:
        raise RunFailed(
            f"the checkpoint in {files.checkpoints} does not fit this version of dvrl ({error})"
        ) from error
    if trainer.steps >= trainer.config.steps:
        return found.numbers, [*said, f"already trained to step {trainer.steps:,}"]
    said.append(f"continuing from step {trainer.steps:,}")
    if not trainer.worlds.exact_resume:
        said.append("this world's inner state cannot be saved: unfinished episodes begin anew")
    return found.numbers, said


def compare(old: dict[str, Any], new: dict[str, Any], files: RunFiles) -> list[str]:
    """Sentences about what will make a continued run differ in its last digits."""
    if old["device"] != new["device"]:
        raise UsageError(
            f"{files.root} was trained on {old['device']} and its random numbers live there; "
            f"continue with --device {old['device']}"
        )
    return [
        f"{name} was {old[name]} and is {new[name]}: the run goes on, but not to the same bytes"
        for name in ("threads", "torch", "precision", "engine")
        if old[name] != new[name]
    ]


def _command() -> list[str]:
    """What to type to begin it anew: `dvrl`, wherever it lies; or a user's script."""
    program = Path(sys.argv[0])
    by_module = program.name == "__main__.py" and program.parent.name == "dvrl"
    return ["dvrl" if by_module or program.name == "dvrl" else sys.argv[0], *sys.argv[1:]]


def write_start(files: RunFiles, device: torch.device) -> None:
    """Add this start to the run's provenance."""
    starts = read_json(files.command) if files.command.exists() else []
    versions = {"python": platform.python_version()}
    for name in ("dvrl", "torch", "numpy", "gymnasium"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    with suppress(PackageNotFoundError):  # an extra
        versions["ale-py"] = version("ale-py")
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    starts.append(
        {
            "command": _command(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "versions": versions,
            "machine": platform.machine(),
            "device": gpu or "cpu",
            "threads": torch.get_num_threads(),
        }
    )
    write_json(files.command, starts)
