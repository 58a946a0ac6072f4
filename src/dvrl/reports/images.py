"""Pictures made of screens: each pixel of a screen covers whole pixels of the picture."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DPI = 150
SCALE = 2
"""Pixels of the picture for a pixel of a screen, across and down."""
GAP = 10
"""Pixels between screens."""
INK, GREY, BLANK = "#222222", "#777777", "#f08c00"


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


class Sheet:
    """A figure that is measured in pixels, from its top left corner."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)

    def place(self, screen: np.ndarray, x: int, y: int, framed: bool = False) -> Axes:
        """A screen of bytes; a frame marks one that was blanked."""
        height, width = (SCALE * side for side in screen.shape)
        axis = self.figure.add_axes(
            (
                x / self.width,
                1 - (y + height) / self.height,
                width / self.width,
                height / self.height,
            )
        )
        axis.imshow(screen, cmap="gray", vmin=0, vmax=255, interpolation="none")
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set(visible=framed, edgecolor=BLANK, linewidth=1.4)
        return axis

    def write(self, words: str, x: int, y: int, **style) -> None:
        """Words as they are: names may hold signs that stand for formulas."""
        style = {"fontsize": 8, "color": INK, "va": "center", "parse_math": False} | style
        self.figure.text(x / self.width, 1 - y / self.height, words, **style)
