"""Which requests of the Iceberg REST API change tables, from the path alone.

Servers are lenient about paths: they decode segments before they match them, and drop empty ones, a trailing slash and
matrix parameters. What one of them could take for a table's path is judged as that path, or refused if it could mean
several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote_to_bytes

Kind = Literal["update", "transaction", "register", "rename"]
_SEPARATOR = "\x1f"
"""Between the levels of a namespace in a path (REST spec, parameter `namespace`)."""


class UnclearError(ValueError):
    """A request that the gate cannot read with certainty; the text says why."""


@dataclass(frozen=True)
class TableName:
    """A table as a request names it: namespace levels, and a name."""

    levels: tuple[str, ...]
    name: str


@dataclass(frozen=True)
class Route:
    """A request that changes tables. `table` is the one that the path names; for `register`, without its name."""

    kind: Kind
    table: TableName | None = None


def route_of(path: bytes) -> Route | None:
    """Return what a write to this path, as sent, would change; None if it commits to no table. Raises UnclearError."""
    if b";" in path:
        raise UnclearError("its path has a semicolon, which servers read in different ways; encode it as %3B")
    as_sent = [unquote_to_bytes(part) for part in path.split(b"/")]
    decoded_first = unquote_to_bytes(path).split(b"/")
    found = {_matched(as_sent), _matched(decoded_first)}
    if len(found) > 1:
        raise UnclearError("an encoded slash lets its path mean several things")
    return found.pop()


def has_dot_segments(path: bytes) -> bool:
    """Return True if a server could resolve the path to another one."""
    parts = unquote_to_bytes(path).replace(b"\\", b"/").split(b"/")
    return b"." in parts or b".." in parts


def is_config(path: bytes) -> bool:
    """Return True for the path by which a client asks for its settings."""
    return [part for part in unquote_to_bytes(path).split(b"/") if part][-2:] == [b"v1", b"config"]


def _matched(segments: list[bytes]) -> Route | None:
    try:
        parts = [part.decode() for part in segments if part]
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
    return None


def _levels(namespace: str) -> tuple[str, ...]:
    return tuple(level for level in namespace.split(_SEPARATOR) if level)
