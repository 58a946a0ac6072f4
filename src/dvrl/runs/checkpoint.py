"""Checkpoints: directories that appear whole or not at all, of tensors and JSON only.

step-000000012000/
    weights.safetensors  optimiser.safetensors  state.safetensors  state.json  manifest.json
The manifest holds the SHA-256 of every other file: a flipped byte is noticed, not trained on.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from dvrl.records.layout import sync_directory

KEPT = 2
TENSOR_FILES = ("weights", "optimiser", "state")


class Checkpoint(NamedTuple):
    """All that a run needs to go on as if it had not stopped."""

    weights: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    state: dict[str, Tensor]
    """Carry, worlds, generators."""
    numbers: dict[str, Any]
    """Steps done, offsets of the logs, sums not yet logged."""

    def on_host(self) -> "Checkpoint":
        """The same in the CPU's memory."""
        tensors = ({k: t.detach().cpu() for k, t in part.items()} for part in self[:3])
        return Checkpoint(*tensors, numbers=self.numbers)


class Damaged(Exception):
    """A checkpoint that is not what its manifest says."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path


def save(directory: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write under a temporary name, make it durable, then give it its name; drop the oldest."""
    directory.mkdir(parents=True, exist_ok=True)
    final = at(directory, step)
    temporary = directory / f".tmp-{step:012d}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        write_files(temporary, checkpoint)
        if final.exists():  # same step, same numbers: the new one takes its place
            shutil.rmtree(final)
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_directory(directory)
    for old in newest_first(directory)[KEPT:]:
        shutil.rmtree(old)
    for leftover in directory.glob(".tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return final


def at(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return directory / f"step-{step:012d}"


def write_files(directory: Path, checkpoint: Checkpoint) -> None:
    """The files of a checkpoint and their manifest, durable when this returns."""
    contents = {
        f"{name}.safetensors": tensor_bytes(getattr(checkpoint, name)) for name in TENSOR_FILES
    }
    contents["state.json"] = (json.dumps(checkpoint.numbers, indent=2) + "\n").encode()
    contents["manifest.json"] = (json.dumps(manifest(contents), indent=2) + "\n").encode()
    for name, content in contents.items():
        with (directory / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    sync_directory(directory)


def tensor_bytes(tensors: dict[str, Tensor]) -> bytes:
    return format_tensors({key: t.detach().cpu().contiguous() for key, t in tensors.items()})


def manifest(contents: dict[str, bytes]) -> dict[str, dict[str, str]]:
    """Checksums by file name."""
    return {"sha256": {n: hashlib.sha256(content).hexdigest() for n, content in contents.items()}}


def newest_first(directory: Path) -> list[Path]:
    return sorted(directory.glob("step-*"), reverse=True)


def read_checked(path: Path) -> dict[str, bytes]:
    """The files a manifest names, each as its checksum says; else `Damaged` with the reason."""
    try:
        digests = json.loads((path / "manifest.json").read_text())["sha256"]
        contents = {name: (path / name).read_bytes() for name in digests}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Damaged(path, f"{path} cannot be read ({error})") from error
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != digests[name]:
            raise Damaged(path, f"{path / name} does not match its checksum")
    return contents


def load(path: Path) -> Checkpoint:
    """The checkpoint at `path`, or `Damaged` with the reason."""
    contents = read_checked(path)
    try:
        tensors = [parse_tensors(contents[f"{name}.safetensors"]) for name in TENSOR_FILES]
        return Checkpoint(*tensors, numbers=json.loads(contents["state.json"]))
    except (KeyError, ValueError) as error:
        raise Damaged(path, f"{path} cannot be read ({error})") from error


def set_aside(path: Path) -> None:
    """Keep a damaged checkpoint, but out of the way of whole ones."""
    aside = path.with_name(f"damaged-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def load_newest(directory: Path) -> tuple[Checkpoint | None, list[Damaged]]:
    """The newest checkpoint that is whole, and the damage of each that had to be passed over.

    Damaged only when there are checkpoints and none is whole.
    """
    passed_over = []
    for path in newest_first(directory):
        try:
            return load(path), passed_over
        except Damaged as damage:
            passed_over.append(damage)
    if passed_over:
        reasons = "; ".join(map(str, passed_over))
        raise Damaged(directory, f"no whole checkpoint is left: {reasons}")
    return None, []
