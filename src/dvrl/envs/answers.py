"""What worlds on the host send to a device: several arrays as one row of bytes, sent at once."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

ALIGNED = 16
"""Bytes of which every part's place begins at a multiple: where a GPU likes to begin reading."""


class Form(NamedTuple):
    """An answer's memory, and its parts as arrays to write to."""

    answer: UInt8[Tensor, " B"]
    parts: list[np.ndarray]


class Layout:
    """Which parts an answer has, and where each begins."""

    def __init__(
        self, parts: Sequence[tuple[torch.dtype, tuple[int, ...]]], device: torch.device
    ) -> None:
        self.parts = parts
        self.goes_on = device.type == "cuda"
        """Whether answers are for a GPU: then all are written to one place."""
        self._place: Form | None = None
        self._bytes = [dtype.itemsize * prod(shape) for dtype, shape in parts]
        self._places = [-(-size // ALIGNED) * ALIGNED for size in self._bytes]
        kinds = [torch.empty(0, dtype=dtype).numpy().dtype for dtype, _ in parts]
        self.starts = [*accumulate(self._places[:-1], initial=0)]
        """The parts' first bytes."""
        self._arrays = [*zip([shape for _, shape in parts], kinds, self.starts, strict=True)]

    def blank(self) -> UInt8[Tensor, " B"]:
        """Fresh memory."""
        return torch.empty(sum(self._places), dtype=torch.uint8, pin_memory=self.goes_on)

    def form(self) -> "Form":
        """Memory to be filled in. What goes on to a GPU is written to one place: nobody asks for
        the next answer before the last one has arrived, since an action came from it."""
        if not self.goes_on:
            return self._form()
        self._place = self._place or self._form()
        return self._place

    def _form(self) -> "Form":
        answer = self.blank()
        memory = answer.numpy()
        return Form(
            answer, [np.ndarray(shape, kind, memory, start) for shape, kind, start in self._arrays]
        )

    def read(self, answer: UInt8[Tensor, " B"]) -> list[Tensor]:
        """The parts, as views of `answer` on whatever device it is."""
        rows = answer.split(self._places)
        return [
            row[:size].view(dtype).view(shape)
            for row, size, (dtype, shape) in zip(rows, self._bytes, self.parts, strict=True)
        ]
