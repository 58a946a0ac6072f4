"""Random numbers for the environments of one run, whether one process has them all or several.

Rows are environments. A process that has only a share of them draws for all and keeps its own rows:
so every environment meets the same noise however many processes there are.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Share(NamedTuple):
    """Which of `count` equal parts of a run's environments a process has."""

    index: int = 0
    count: int = 1


WHOLE = Share()


_shared: list[tuple[torch.Generator, Share]] = []
"""Beside the generators, since CUDA graphs take none but torch's own."""


def stream(seed: int, device: torch.device | str, share: Share = WHOLE) -> torch.Generator:
    """A stream of chance for a share of the environments."""
    generator = torch.Generator(device).manual_seed(seed)
    if share != WHOLE:
        _shared.append((generator, share))
    return generator


def normal(generator: torch.Generator, *shape: int, rows: int = 0) -> Tensor:
    """Standard normal noise; axis `rows` of `shape` counts this process's environments."""
    return _draw(torch.randn, generator, shape, rows)


def uniform(generator: torch.Generator, *shape: int, rows: int = 0) -> Tensor:
    """Uniform noise in [0, 1), likewise."""
    return _draw(torch.rand, generator, shape, rows)


def _draw(draw, generator: torch.Generator, shape: tuple[int, ...], rows: int) -> Tensor:
    share = next((s for g, s in _shared if g is generator), WHOLE)
    n = shape[rows]
    all_rows = (*shape[:rows], n * share.count, *shape[rows + 1 :])
    drawn = draw(all_rows, generator=generator, device=generator.device)
    return drawn.narrow(rows, share.index * n, n)
