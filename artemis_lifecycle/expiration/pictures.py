"""What pictures of sizes share. Belongs here: units, an empty figure, and converting a figure to bytes."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.escaping import terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_DPI = 80
_COLORS = 16


def size_unit(size_in_bytes: float) -> tuple[float, str]:
    """Return a readable unit for this size: the bytes in one unit, and its name."""
    for factor, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_in_bytes >= factor:
            return factor, name
    return 1.0, "B"


def label(text: str, most: int = 40) -> str:
    """Return a name for a picture: escaped, and cut if it would leave no space for the plot."""
    text = terminal(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of that size in inches. Raises EnvironmentMissing without the extra `ui`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentMissing.extra("ui", error) from error
    return Figure(figsize=(width, height), layout="constrained")


def drawn(figure: Figure, kind: str) -> bytes:
    """Return the figure as a picture of that kind (`png`, `svg`), with all texts taken literally."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        # Names of tables and refs may contain dollar signs, which are not formulas.
        text.set_parse_math(False)
        text.set_text(label(text.get_text(), most=100))
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # Scripts that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(picture, format=kind, dpi=_DPI)
    return _in_few_colors(picture) if kind == "png" else picture.getvalue()


def _in_few_colors(png: io.BytesIO) -> bytes:
    """Return the picture with a palette: a quarter of the size, because Dagster stores it with each materialization."""
    from PIL import Image  # matplotlib needs it, too.

    small = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()
