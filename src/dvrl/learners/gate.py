"""Gates in a CUDA stream: what comes behind one waits until the host opens it.

So the host can hand over work before there is what the work will read: it need not be quick then.
"""

import ctypes
import os
from ctypes import c_uint32, c_uint64, c_void_p
from typing import Protocol, runtime_checkable

import torch

GREATER_OR_EQUAL = 0
"""Wait until memory has at least a value; numbers go round."""


@runtime_checkable
class Gates(Protocol):
    """Gates that are shut, and opened again one by one, in the order of the stream."""

    def shut(self) -> None:
        """What comes now waits."""

    def open(self) -> None:
        """The oldest that is shut."""

    def open_all(self) -> None: ...


class DriverGates(Gates):
    """The driver is told to wait for a number in the host's memory (`cuStreamWaitValue32`): nothing
    runs on the GPU meanwhile. Between `shut` and `open` nobody may wait for all of the device.
    """

    def __init__(self, stream: int) -> None:
        """`stream`: its handle. OSError or AttributeError where the driver cannot do it."""
        self.stream = stream
        self._wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
        self._wait.argtypes = c_void_p, c_uint64, c_uint32, c_uint32
        self._memory = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._opened = self._memory.numpy().view("uint32")
        self._shut = 0
        self._tell(0)  # does it take such orders?

    def shut(self) -> None:
        self._shut += 1
        self._tell(self._shut)

    def open(self) -> None:
        self._opened += 1

    def open_all(self) -> None:
        self._opened[0] = self._shut & 0xFFFFFFFF

    def _tell(self, number: int) -> None:
        order = self.stream, self._memory.data_ptr(), number & 0xFFFFFFFF
        failed = self._wait(*order, GREATER_OR_EQUAL)
        if failed:
            raise OSError(f"the CUDA driver does not let a stream wait: error {failed}")


def find(stream: int) -> Gates | None:
    """Gates in the stream with this handle, if the driver has them.

    None where CUDA has the host wait for everything it launches: it would never come to open one.
    Profilers that run kernels one by one do the same: use the eager engine with them.
    """
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0":
        return None
    try:
        return DriverGates(stream)
    except (OSError, AttributeError):
        return None
