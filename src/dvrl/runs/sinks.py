"""Places beside the metrics file that want the numbers too. One that fails never stops a run."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Sink = Callable[[int, dict[str, float]], None]


class TensorBoardSink:
    """Metrics as TensorBoard events."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __call__(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def tensorboard_sink(directory: Path, purge_step: int) -> TensorBoardSink | None:
    """Events from `purge_step` on, if the package is there (`pip install 'dvrl[tensorboard]'`)."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return TensorBoardSink(SummaryWriter(str(directory), purge_step=purge_step))


def guarded(sink: Sink, name: str) -> Sink:
    """The sink, silenced after its first failure, about which it warns."""
    failed = False

    def write(step: int, values: dict[str, float]) -> None:
        nonlocal failed
        if failed:
            return
        try:
            sink(step, values)
        except Exception as error:
            failed = True
            warnings.warn(f"{name} failed ({error}); training goes on without it", stacklevel=2)

    return write
