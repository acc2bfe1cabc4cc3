"""Texts that are stored: what people enter, and errors. Postgres can store neither NUL nor unpaired surrogates, but
paths may have both."""

from __future__ import annotations

import unicodedata

from artemis_lifecycle.errors import BadInput

_INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0")
"""Zero-width letters (Hangul fillers)."""


def storable(text: str | None) -> str | None:
    """Return `text` with escapes for what Postgres cannot store: an error must be stored, whatever it quotes."""
    if text is None:
        return None
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def require_said(table: str, **said: str) -> None:
    """Raise BadInput for texts in `said` without content: they have no visible letter or digit."""
    for name, value in said.items():
        if not any(each.isalnum() and each not in _INVISIBLE for each in unicodedata.normalize("NFKC", value)):
            raise BadInput(
                f"This needs {name.replace('_', ' ')}, and none is given",
                table=table,
                hint="provide it; it is recorded",
            )
