"""Places beside the metrics file that want the numbers too. One that fails never stops a run."""

from collections.abc import Callable
from pathlib import Path

Sink = Callable[[int, dict[str, float]], None]


def tensorboard_sink(directory: Path, purge_step: int) -> Sink | None:
    """TensorBoard events, if its package is installed (`pip install 'dvrl[tensorboard]'`)."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    writer = SummaryWriter(str(directory), purge_step=purge_step)

    def write(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def guarded(sink: Sink, name: str, say: Callable[[str], None]) -> Sink:
    """The sink, silenced after its first failure, about which it says one sentence."""
    failed = False

    def write(step: int, values: dict[str, float]) -> None:
        nonlocal failed
        if failed:
            return
        try:
            sink(step, values)
        except Exception as error:
            failed = True
            say(f"{name} failed ({error}); training goes on without it")

    return write
