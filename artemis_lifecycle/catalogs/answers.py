"""Answers of HTTP servers, bounded before they are parsed. Belongs here: what every client of `requests` needs."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.storage.bounded import ReadLimits, require_bounded_json

if TYPE_CHECKING:
    import requests

_SECONDS = (10.0, 300.0)
"""To connect, and between two parts of an answer."""
_LIMITS = ReadLimits(max_bytes=512 << 20)
_PIECE = 64 << 10


def bounded(session: requests.Session) -> requests.Session:
    """Make `session` raise TooLarge for an answer of more than 512 MiB, or of too many or too deeply nested values, and
    time out where a request sets no time of its own. Return it."""
    session.hooks["response"].append(_bounded)
    session.request = partial(session.request, timeout=_SECONDS)  # type: ignore[method-assign]
    return session


def _bounded(response: requests.Response, *_: Any, **__: Any) -> None:
    # Called with the headers; what reads the content afterwards finds it here.
    content = bytearray()
    for piece in response.raw.stream(_PIECE, decode_content=True):
        content += piece
        _LIMITS.require(len(content), response.url)
    require_bounded_json(bytes(content), response.url)
    response.raw = io.BytesIO(content)
