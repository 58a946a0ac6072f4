"""What stands around a run: one process per directory, signals that wait, disk errors in words."""

import ctypes
import errno
import fcntl
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from dvrl.records.layout import RunFiles
from dvrl.runs.errors import RunFailed, UsageError

Precision = Literal["float32", "tf32"]
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of glibc's settings."""


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, up to a GiB, instead of giving it back to the system.

    Every update asks for the same megabytes again; to be given them anew, page by page, costs 3 %
    of the time on a CPU at the paper's sizes. Without glibc nothing happens.
    """
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:
            set_option(MMAP_THRESHOLD, 32 << 20)  # the most it takes
            set_option(TRIM_THRESHOLD, 1 << 30)


@contextmanager
def numerics(threads: int, precision: Precision = "float32") -> Iterator[None]:
    """CPU threads and the precision of matrix products on a GPU, for a while; and freed memory is
    kept from now on."""
    if threads < 1:
        raise UsageError(f"threads is {threads}; it must be at least 1")
    keep_freed_memory()
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = torch.get_num_threads(), *(backend.allow_tf32 for backend in backends)
    torch.set_num_threads(threads)
    for backend in backends:
        backend.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        for backend, allowed in zip(backends, before[1:], strict=True):
            backend.allow_tf32 = allowed


@contextmanager
def claimed(files: RunFiles) -> Iterator[None]:
    """Only one process trains in a directory."""
    try:
        files.root.mkdir(parents=True, exist_ok=True)
        lock = files.lock.open("w")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        reason = "it is a file" if files.root.is_file() else error.strerror
        raise UsageError(f"cannot write to {files.root} ({reason})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another process is training in {files.root}") from error
        yield


@contextmanager
def disk_errors(files: RunFiles) -> Iterator[None]:
    """A disk that is full or gone, in words."""
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"writing the run to {files.root} failed ({error.strerror or error}); what was saved "
            "before is whole: make room and run the same command again to continue"
        ) from error


class StopFlag:
    """Set by the first Ctrl-C, SIGTERM or SIGHUP; the second one stops at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def set(self, number: int, frame: object) -> None:
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def stop_signals() -> Iterator[StopFlag]:
    """Let a run finish its window before it stops (in the main thread; elsewhere: no change).

    What whoever started it wants ignored, as nohup does, is ignored.
    """
    flag = StopFlag()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [s for s in signals if signal.getsignal(s) != signal.SIG_IGN]
    try:
        old = {s: signal.signal(s, flag.set) for s in heard}
    except ValueError:
        yield flag
        return
    try:
        yield flag
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
