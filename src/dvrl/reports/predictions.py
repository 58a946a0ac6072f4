"""What an agent believes it sees, and what it expects to see next."""

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dvrl.records.layout import RunFiles, write_atomic
from dvrl.reports.film import film
from dvrl.reports.images import GAP, GREY, SCALE, Sheet, png
from dvrl.reports.load import read_arrays

TOP, HEAD, LEFT = 14, 34, 110
"""Pixels above the title, for a line of words, and left of the screens."""
ABREAST, MOST = 8, 32
"""Particles in a row of screens, and in all, at most."""


def draw_predictions(root: str | Path) -> list[Path]:
    """Write the pictures of what `dvrl predict` recorded."""
    files = RunFiles(Path(root))
    predictions, episode = (
        read_arrays(files.trace("predictions")),
        read_arrays(files.trace("episode")),
    )
    assert predictions is not None, "nothing was predicted"
    assert episode is not None, "no episode was recorded"
    name = files.root.resolve().name
    pictures = {
        "predictions.png": png(predictions_figure(name, predictions)),
        "particles.png": png(particles_figure(name, predictions)),
        "belief.gif": film(episode),
    }
    for picture, content in pictures.items():
        write_atomic(files.plots / picture, content)
    return [files.plots / picture for picture in pictures]


def predictions_figure(name: str, predictions: dict[str, np.ndarray]) -> Figure:
    """The paper's figure: a row for every moment; what was seen, believed, and expected."""
    side = SCALE * predictions["observation"].shape[-1]
    step, columns = side + GAP, 1 + len(predictions["dt"])
    top = TOP + 2 * HEAD
    sheet = Sheet(LEFT + columns * step, top + len(predictions["t"]) * step)
    particles = predictions["weight"].shape[1]
    words = f"{name}: mean over {particles} particles; dt steps ahead, the last action repeated"
    sheet.write(words, LEFT, TOP + HEAD // 2 - 6, fontsize=9)
    heads = ["$o_t$", *(f"dt {dt}" for dt in predictions["dt"])]
    for column, head in enumerate(heads):
        x = LEFT + column * step + side // 2
        sheet.write(head, x, top - HEAD // 2, ha="center", parse_math=True)
    for row, t in enumerate(predictions["t"]):
        y, blank = top + row * step, bool(predictions["blank"][row])
        label(sheet, int(t), blank, y + side // 2)
        sheet.place(predictions["observation"][row], LEFT, y, framed=blank)
        for column, image in enumerate(predictions["mean"][row], start=1):
            sheet.place(image, LEFT + column * step, y)
    return sheet.figure


def particles_figure(name: str, predictions: dict[str, np.ndarray]) -> Figure:
    """Two moments, one that was shown and one that was blank: what every particle expects next."""
    side = SCALE * predictions["observation"].shape[-1]
    rows, particles = two_moments(predictions["blank"]), predictions["weight"].shape[1]
    drawn = min(particles, MOST)
    lines = math.ceil(drawn / ABREAST)
    abreast = math.ceil(drawn / lines)
    top, block = TOP + HEAD, lines * (HEAD + side) + 2 * GAP
    sheet = Sheet(max(beside(side) + abreast * (side + GAP), 1000), top + len(rows) * block)
    which = f"each of {particles} particles expects"
    if drawn < particles:
        which = f"the likeliest {drawn} of {particles} particles expect"
    words = f"{name}: what {which} at dt 1; above, the weight"
    sheet.write(words, LEFT, TOP + HEAD // 2 - 6, fontsize=9)
    for place, row in enumerate(rows):
        y, blank = top + place * block, bool(predictions["blank"][row])
        label(sheet, int(predictions["t"][row]), blank, y + HEAD + side // 2)
        sheet.write("$o_t$", LEFT + side // 2, y + HEAD // 2, ha="center", parse_math=True)
        sheet.place(predictions["observation"][row], LEFT, y + HEAD, framed=blank)
        likeliest = np.argsort(-predictions["weight"][row], kind="stable")[:drawn]
        weights, screens = predictions["weight"][row], predictions["own"][row, 1]
        place_particles(sheet, weights[likeliest], screens[likeliest], y, abreast)
    return sheet.figure


def beside(side: int) -> int:
    """Where the particles begin, right of the observation."""
    return LEFT + side + 3 * GAP


def place_particles(
    sheet: Sheet, weights: np.ndarray, screens: np.ndarray, y: int, abreast: int
) -> None:
    """Screens in lines of so many, each under its weight."""
    side = SCALE * screens.shape[-1]
    for nth, (weight, screen) in enumerate(zip(weights, screens, strict=True)):
        line, column = divmod(nth, abreast)
        x, below = beside(side) + column * (side + GAP), y + line * (HEAD + side)
        sheet.write(share(float(weight)), x + side // 2, below + HEAD // 2, ha="center")
        sheet.place(screen, x, below + HEAD)


def label(sheet: Sheet, t: int, blank: bool, y: int) -> None:
    sheet.write(f"t = {t}", LEFT - GAP, y - 10 * blank, ha="right")
    if blank:
        sheet.write("blank", LEFT - GAP, y + 12, ha="right", color=GREY)


def two_moments(blank: np.ndarray) -> list[int]:
    """The middle one of those that were shown, and of those that were blank."""
    kinds = [np.flatnonzero(~blank), np.flatnonzero(blank)]
    return [int(kind[len(kind) // 2]) for kind in kinds if len(kind)]


def share(weight: float) -> str:
    return f"{weight:.3f}" if weight >= 0.001 else "< 0.001"
