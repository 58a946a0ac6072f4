"""GPU kernels of our own: where they can be used, and how precisely they multiply."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

PLENTY = 256
"""Environments from which on a program for each more than fills a GPU."""


def find(module: str, x: Tensor) -> ModuleType | None:
    """The kernels in `module`, if tensors like `x` live where Triton compiles for."""
    if not x.is_cuda or x.dtype != torch.float32 or find_spec("triton") is None:
        return None
    return import_module(module)


def tf32() -> bool:
    """Whether matrix products on the GPU may be rounded to tf32."""
    return bool(torch.backends.cuda.matmul.allow_tf32)


def precision() -> Literal["tf32", "tf32x3"]:
    """The same in Triton's words; three products of tf32 are as exact as one of float32."""
    return "tf32" if tf32() else "tf32x3"
