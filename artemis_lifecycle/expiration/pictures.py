"""What pictures of sizes share. Belongs here: units, an empty figure, and turning a figure into bytes."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.escaping import terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def size_unit(size_in_bytes: float) -> tuple[float, str]:
    """The unit in which so many bytes read well: bytes in one of it, and its name."""
    for factor, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_in_bytes >= factor:
            return factor, name
    return 1.0, "B"


def label(text: str, most: int = 40) -> str:
    """A name in a picture: escaped, and cut where it would leave no room for what is drawn."""
    text = terminal(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that size in inches. Raises EnvironmentMissing without the extra `ui`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentMissing.extra("ui", error) from error
    return Figure(figsize=(width, height), layout="constrained")


def drawn(figure: Figure, kind: str) -> bytes:
    """The figure as a picture of that kind (`png`, `svg`), with every text as it is written."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        # Names of tables and refs may have dollar signs, which are no formulas.
        text.set_parse_math(False)
        text.set_text(label(text.get_text(), most=100))
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # A script that the font lacks is drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(picture, format=kind, dpi=110)
    return picture.getvalue()
