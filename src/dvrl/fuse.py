"""Functions that a compiler may fuse.

`@fusable` marks a function of tensors, without chance or side effects. It runs as it stands unless
an engine asks for `fusing()`; then torch.compile turns its many element-wise operations into few.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

P = ParamSpec("P")
R = TypeVar("R")
_fusing = False


def fusable(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, compiled where an engine wants it so."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if _fusing and not torch.compiler.is_compiling():
            return _compiled(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call


@contextmanager
def fusing() -> Iterator[None]:
    """Within this context fusable functions are compiled, once for all sizes they meet."""
    global _fusing
    before, _fusing = _fusing, True
    try:
        yield
    finally:
        _fusing = before


SMALL = 2**21
"""Multiplications below which a product costs less as a part of a fused kernel than as its own."""


def product(
    x: Float[Tensor, "*B D"], weight: Float[Tensor, "O D"], bias: Float[Tensor, " O"]
) -> Float[Tensor, "*B O"]:
    """A linear layer; where it is small, on a GPU and without gradients, left to the compiler."""
    small = x.numel() * len(weight) <= SMALL
    if torch.compiler.is_compiling() and small and x.is_cuda and not torch.is_grad_enabled():
        return (x[..., None, :] * weight).sum(-1) + bias
    return F.linear(x, weight, bias)


def warm() -> bool:
    """Whether something was compiled in this process before."""
    return _compiled.cache_info().currsize > 0


@cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    import torch._dynamo
    import torch._functorch.config

    # A gradient window visits its early segments again: their buffers are not to be given away.
    torch._functorch.config.donated_buffer = False
    torch._dynamo.config.recompile_limit = 64
    # Advice to whoever writes such functions, not to whoever trains.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
    return torch.compile(function, fullgraph=True, dynamic=False)
