"""GPU kernels compiled, and not run, on a machine without a GPU: can they be built, and what would
they take of one?

Triton asks its driver for a device and hands it what it compiled; here nothing of that reaches one.
What kernels would have written stays zero.
"""

import re
import subprocess
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from dvrl import kernels

H200 = 90
"""Its compute capability, times ten."""
SHARED = 232_448
"""Bytes of shared memory that a program may have there."""


class Built(NamedTuple):
    """One compilation of a kernel."""

    name: str
    """With the module's."""
    registers: int
    spilled: int
    """Bytes a thread keeps outside its registers."""
    shared: int


def compiling() -> list[Built]:
    """From now on, in this process, kernels are used wherever they are for, and compiled only: into
    this list."""
    from triton.runtime import driver

    built: list[Built] = []
    driver.set_active(_driver(built))
    kernels.find = _find
    for holder, name in ((torch.Tensor, "new_empty"), (torch, "empty"), (torch, "empty_like")):
        setattr(holder, name, getattr(holder, name.replace("empty", "zeros")))
    return built


def _find(module: str, x: torch.Tensor) -> Any:
    return import_module(module) if x.dtype == torch.float32 else None


def _driver(built: list[Built]) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class Compiler(DriverBase):
        """In a GPU's place."""

        utils = _Utils(built)

        def launcher_cls(self, source: Any, metadata: Any) -> Callable:
            self.utils.module = source.fn.__module__.removeprefix("dvrl.")
            return lambda *launch: None

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", H200, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def get_benchmarker(self) -> Callable:
            raise NotImplementedError("nothing runs here")

    return Compiler()


class _Utils:
    """What Triton does with machine code before it launches it."""

    def __init__(self, built: list[Built]) -> None:
        self.built = built
        self.module = ""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED}

    def load_binary(self, name: str, code: bytes, shared: int, device: int) -> tuple:
        """Read what the code takes, in the order in which Triton wants it."""
        said = _resources(code)
        registers, stack = (int(re.search(rf"{x}:(\d+)", said)[1]) for x in ("REG", "STACK"))
        self.built.append(Built(f"{self.module}.{name}", registers, stack, shared))
        return None, None, registers, stack, 1024


def _resources(code: bytes) -> str:
    origin = find_spec("triton.backends.nvidia").origin
    program = Path(origin).parent / "bin" / "cuobjdump"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(code)
        done = subprocess.run(
            [program, "--dump-resource-usage", file], capture_output=True, text=True, check=True
        )
    return done.stdout
