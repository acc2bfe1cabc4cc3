"""Texts that are kept on record: what people say, and errors. Postgres holds neither NUL nor half a surrogate pair, and
paths may have both.
"""

from __future__ import annotations

import unicodedata

from artemis_lifecycle.errors import BadInput

_INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0")
"""Letters of no width (Hangul fillers)."""


def storable(text: str | None) -> str | None:
    """`text` with what Postgres cannot hold written as an escape: an error must be stored, whatever it quotes."""
    if text is None:
        return None
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def require_said(table: str, **said: str) -> None:
    """Raise BadInput for whatever of `said` says nothing: it has no letter and no digit that can be seen."""
    for name, value in said.items():
        if not any(each.isalnum() and each not in _INVISIBLE for each in unicodedata.normalize("NFKC", value)):
            raise BadInput(
                f"This needs {name.replace('_', ' ')}, and none is given",
                table=table,
                hint="say it; it is kept on record",
            )
