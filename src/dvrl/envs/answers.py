"""What worlds on the host send to a device: several arrays as one row of bytes, sent at once."""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import UInt8
from torch import Tensor

ALIGNED = 16
"""Bytes of which every part's place begins at a multiple: where a GPU likes to begin reading."""


class Layout:
    """Which parts an answer has, and where each begins."""

    def __init__(
        self, parts: Sequence[tuple[torch.dtype, tuple[int, ...]]], device: torch.device
    ) -> None:
        self.parts = parts
        self.pin = device.type == "cuda"
        self._bytes = [dtype.itemsize * prod(shape) for dtype, shape in parts]
        self._places = [-(-size // ALIGNED) * ALIGNED for size in self._bytes]

    def blank(self) -> UInt8[Tensor, " B"]:
        """Fresh memory: torch reuses pinned memory once it has been sent."""
        return torch.empty(sum(self._places), dtype=torch.uint8, pin_memory=self.pin)

    def read(self, answer: UInt8[Tensor, " B"]) -> list[Tensor]:
        """The parts, as views of `answer` on whatever device it is."""
        rows = answer.split(self._places)
        return [
            row[:size].view(dtype).view(shape)
            for row, size, (dtype, shape) in zip(rows, self._bytes, self.parts, strict=True)
        ]
