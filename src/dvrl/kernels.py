"""GPU kernels of our own: where they can be used, and how precisely they multiply."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

PLENTY = 256
"""Environments from which on a program for each more than fills a GPU."""


_left = False


def find(module: str, x: Tensor) -> ModuleType | None:
    """The kernels in `module`, if tensors like `x` live where Triton compiles for."""
    if _left or not x.is_cuda or x.dtype != torch.float32 or find_spec("triton") is None:
        return None
    return import_module(module)


@contextmanager
def left() -> Iterator[None]:
    """Within this context there are none, and plain operations do everything."""
    global _left
    before, _left = _left, True
    try:
        yield
    finally:
        _left = before


def tf32() -> bool:
    """Whether matrix products on the GPU may be rounded to tf32."""
    return bool(torch.backends.cuda.matmul.allow_tf32)


def precision() -> Literal["tf32", "tf32x3"]:
    """The same in Triton's words; three products of tf32 are as exact as one of float32."""
    return "tf32" if tf32() else "tf32x3"


_beside: set[torch.device] = set()
"""Where something runs beside."""


@contextmanager
def beside(x: Tensor) -> Iterator[None]:
    """Within this context operations run beside those that follow it, on a GPU; what came before is
    waited for. Nobody waits for them before `meet`, and what they read must be kept until then."""
    if not x.is_cuda:
        yield
        return
    side = _side(x.device)
    side.wait_stream(torch.cuda.current_stream(x.device))
    _beside.add(x.device)
    with torch.cuda.stream(side):
        yield


def meet(x: Tensor) -> None:
    """Wait for what runs beside, if anything does: a capture must not wait for what it knows
    nothing of."""
    if x.device in _beside:
        torch.cuda.current_stream(x.device).wait_stream(_side(x.device))
        _beside.remove(x.device)


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
