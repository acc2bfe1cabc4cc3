"""What pictures of sizes share. Belongs here: units, and turning a figure into bytes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def size_unit(size_in_bytes: float) -> tuple[float, str]:
    """The unit in which so many bytes read well: bytes in one of it, and its name."""
    for factor, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_in_bytes >= factor:
            return factor, name
    return 1.0, "B"


def drawn(figure: Figure, kind: str) -> bytes:
    """The figure as a picture of that kind (`png`, `svg`)."""
    picture = io.BytesIO()
    figure.savefig(picture, format=kind, dpi=110)
    return picture.getvalue()
