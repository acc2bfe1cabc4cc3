"""Texts that come from files: Postgres holds neither NUL nor half a surrogate pair, and paths may have both."""

from __future__ import annotations


def storable(text: str) -> str:
    """`text` with what Postgres cannot hold written as an escape: an error has to be told, whatever it quotes."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
