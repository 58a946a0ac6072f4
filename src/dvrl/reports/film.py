"""An episode as a film: the screen, what the agent saw of it, and what it believed."""

import io

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SCALE = 3
"""Pixels of the film for a pixel of a screen, across and down."""
GAP, HEAD = 6, 20
"""Pixels between screens, and of the line of words above them."""
GREYS = 32
"""Shades; more would make the file larger and show no more."""
GROUND, WORDS = 60, 230
MILLISECONDS = 70
"""Of a frame; the format counts hundredths of a second."""
PANELS = {"screen": "screen", "shown": "what it saw", "belief": "what it believes"}
"""Arrays of an episode, and the words above them."""


def film(episode: dict[str, np.ndarray]) -> bytes:
    """An animated GIF; agents without a model of what they see have no belief to show."""
    panels = [name for name in PANELS if name in episode]
    head = header(episode["screen"].shape[-1], [PANELS[name] for name in panels])
    screens = zip(*(episode[name] for name in panels), strict=True)
    first, *others = (shaded(frame(head, side_by_side)) for side_by_side in screens)
    buffer = io.BytesIO()
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=MILLISECONDS, loop=0)
    return buffer.getvalue()


def header(side: int, titles: list[str]) -> np.ndarray:
    """A line with a title above every screen."""
    step = SCALE * side + GAP
    line = Image.new("L", (len(titles) * step + GAP, HEAD), GROUND)
    draw, font = ImageDraw.Draw(line), ImageFont.load_default(12)
    for place, title in enumerate(titles):
        middle = GAP + place * step + SCALE * side // 2
        draw.text((middle, HEAD // 2), title, WORDS, font, anchor="mm")
    return np.asarray(line)


def frame(head: np.ndarray, screens: tuple[np.ndarray, ...]) -> np.ndarray:
    """Screens beside each other under a header."""
    side = SCALE * screens[0].shape[0]
    ground = np.full((HEAD + side + GAP, head.shape[1]), GROUND, np.uint8)
    ground[:HEAD] = head
    for place, screen in enumerate(screens):
        x = GAP + place * (side + GAP)
        ground[HEAD : HEAD + side, x : x + side] = screen.repeat(SCALE, 0).repeat(SCALE, 1)
    return ground


def shaded(picture: np.ndarray) -> Image.Image:
    """A picture of bytes in fewer greys."""
    shades = (picture * ((GREYS - 1) / 255)).round().astype(np.uint8)
    image = Image.frombytes("P", shades.shape[::-1], shades.tobytes())
    greys = np.linspace(0, 255, GREYS).round().astype(np.uint8)
    image.putpalette(greys.repeat(3).tobytes())
    return image
