"""Which requests of the Iceberg REST API change tables, from the path alone.

Servers are lenient about paths: they decode segments before they match them, some more than once, and drop empty ones,
a trailing slash, matrix parameters and a fragment. What one of them could take for a table's path is judged as that
path, or refused if it could mean several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote_to_bytes

Kind = Literal["update", "transaction", "register", "rename", "unknown"]
SEPARATOR = "\x1f"
"""Between the levels of a namespace in a path (REST spec, parameter `namespace`)."""
_BELOW_A_TABLE = frozenset(("credentials", "metrics", "plan", "sign", "tasks"))
"""The endpoints of the REST spec below a table that commit nothing."""
_MOST_DECODINGS = 4
_DELIMITERS = {b";": "semicolon", b"#": "hash sign", b"\\": "backslash"}


class UnclearError(ValueError):
    """A request that the gate cannot read with certainty; the text says why."""


@dataclass(frozen=True)
class TableName:
    """A table as a request names it: namespace levels, and a name."""

    levels: tuple[str, ...]
    name: str


@dataclass(frozen=True)
class Route:
    """A request that changes tables, or could (`unknown`: an endpoint below a table that the REST spec does not have).
    `table` is the one that the path names; for `register`, without its name."""

    kind: Kind
    table: TableName | None = None


def route_of(path: bytes) -> Route | None:
    """Return what a write to this path, as sent, would change; None if it commits to no table. Raises UnclearError."""
    require_one_meaning(path)
    once = unquote_to_bytes(path)
    if re.search(rb"[\x00-\x1e\x7f]", once):
        raise UnclearError("its path has an encoded control character")
    found = {_matched([unquote_to_bytes(part) for part in path.split(b"/")]), _matched(once.split(b"/"))}
    if len(found) > 1:
        raise UnclearError("an encoded slash lets its path mean several things")
    route = found.pop()
    # What is encoded several times, the rules read in the names; here it must not lead to another kind of request.
    for each in _decodings(path):
        parts = re.split(rb"[?#]", each)[0].replace(b"\\", b"/").split(b"/")
        other = _matched([part.partition(b";")[0].strip() or part for part in parts], "replace")
        if (other and other.kind) != (route and route.kind):
            raise UnclearError("an encoded delimiter, or repeated encoding, lets its path mean several things")
    return route


def require_one_meaning(path: bytes) -> None:
    """Raise UnclearError for characters at which some servers end a path, or a part of it, and others do not."""
    for character, name in _DELIMITERS.items():
        if character in path:
            raise UnclearError(f"its path has a {name}, which servers read in different ways; encode it")


def has_dot_segments(path: bytes) -> bool:
    """Return True if a server could resolve the path to another one. Raises UnclearError."""
    return any(
        part.partition(b";")[0] in (b".", b"..") for each in _decodings(path) for part in re.split(rb"[/\\]", each)
    )


def _decodings(path: bytes) -> Iterator[bytes]:
    for _ in range(_MOST_DECODINGS):
        before, path = path, unquote_to_bytes(path)
        yield path
        if path == before:
            return
    raise UnclearError(f"its path is percent-encoded more than {_MOST_DECODINGS - 1} times")


def is_config(path: bytes) -> bool:
    """Return True for the path by which a client asks for its settings."""
    return [part for part in unquote_to_bytes(path).split(b"/") if part][-2:] == [b"v1", b"config"]


def _matched(segments: list[bytes], errors: Literal["strict", "replace"] = "strict") -> Route | None:
    try:
        parts = [part.decode(errors=errors) for part in segments if part]
    except UnicodeDecodeError:
        raise UnclearError("its path is not UTF-8") from None
    match parts:
        case [*_, "namespaces", namespace, "tables", table]:
            return Route("update", TableName(_levels(namespace), table))
        case [*_, "namespaces", namespace, "tables", table, "notifications"]:
            # A notification (Apache Polaris) makes a metadata file current, as a registration does.
            return Route("register", TableName(_levels(namespace), table))
        case [*_, "namespaces", namespace, "register"]:
            return Route("register", TableName(_levels(namespace), ""))
        case [*_, "tables", "rename"]:
            return Route("rename")
        case [*_, "transactions", "commit"]:
            return Route("transaction")
    for at in range(len(parts) - 5, -1, -1):
        if (parts[at], parts[at + 2]) == ("namespaces", "tables"):
            below = parts[at + 4 :]
            is_known = below[0] in _BELOW_A_TABLE and len(below) <= 1 + (below[0] == "plan")
            return None if is_known else Route("unknown", TableName(_levels(parts[at + 1]), parts[at + 3]))
    return None


def _levels(namespace: str) -> tuple[str, ...]:
    return tuple(level for level in namespace.split(SEPARATOR) if level)
