"""Texts that are kept on record: what people say, and errors. Postgres holds neither NUL nor half a surrogate pair, and
paths may have both.
"""

from __future__ import annotations

from artemis_lifecycle.errors import BadInput


def storable(text: str | None) -> str | None:
    """`text` with what Postgres cannot hold written as an escape: an error has to be told, whatever it quotes."""
    if text is None:
        return None
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def require_said(table: str, **said: str) -> None:
    """Raise BadInput for whatever of `said` is empty."""
    for name, value in said.items():
        if not value.strip():
            raise BadInput(
                f"This needs {name.replace('_', ' ')}, and none is given",
                table=table,
                untouched="everything",
                do="say it; it is kept on record",
            )
