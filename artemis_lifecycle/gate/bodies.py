"""What the body of a request would commit: strict parsing, because what the gate reads must be what the server reads.

An object with a repeated key, an update that this version does not know, or a field of another type than in the spec
raises UnclearError: servers could take it for something else.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from artemis_lifecycle.errors import TooLarge
from artemis_lifecycle.gate.routes import Route, TableName, UnclearError
from artemis_lifecycle.storage.bounded import require_bounded_json

LARGEST = 32 * 2**20
"""Bytes of a body that the gate reads, also after decompression."""

_VALUES = 500_000
"""Values in a body: of 20,000 snapshots at once."""
_PIECE = 2**20
_ADD = "add-snapshot"
_KNOWN = frozenset(
    [
        "add-encryption-key",
        "add-schema",
        "add-sort-order",
        "add-spec",
        "assign-uuid",
        "remove-encryption-key",
        "remove-partition-specs",
        "remove-partition-statistics",
        "remove-properties",
        "remove-schemas",
        "remove-snapshot-ref",
        "remove-snapshots",
        "remove-statistics",
        "set-current-schema",
        "set-default-sort-order",
        "set-default-spec",
        "set-location",
        "set-partition-statistics",
        "set-properties",
        "set-snapshot-ref",
        "set-statistics",
        "upgrade-format-version",
    ]
)
"""The actions of `TableUpdate` in the REST spec that add no snapshot."""


@dataclass(frozen=True)
class Change:
    """What a request does to one table. `summaries` has one for each new snapshot. `unclear` says why they cannot be
    known, `source` is the table that is renamed to this one."""

    table: TableName
    summaries: tuple[Mapping[str, str], ...] = ()
    unclear: str | None = None
    source: TableName | None = None


def changes(route: Route, body: bytes, encoding: str) -> tuple[Change, ...]:
    """Return what a request would change. Raises UnclearError if the body does not say which tables."""
    if route.kind == "unknown":
        assert route.table is not None
        return (Change(route.table, unclear="the gate does not know this endpoint below a table"),)
    content = _object(_parsed(_decoded(body, encoding)), "the body")
    if route.kind == "transaction":
        each = (_object(change, "a table change") for change in _list(content.get("table-changes"), "table-changes"))
        return tuple(_change(_name(change.get("identifier"), "identifier"), change) for change in each)
    if route.kind == "rename":
        source, target = (_name(content.get(key), key) for key in ("source", "destination"))
        return (Change(target, source=source),)
    assert route.table is not None
    if route.kind == "register":
        name = route.table.name or _text(content.get("name"), "name")
        return (
            Change(TableName(route.table.levels, name), unclear="a registered metadata file is not in the request"),
        )
    tables = {route.table}
    if content.get("identifier") is not None:
        tables.add(_name(content["identifier"], "identifier"))
    return tuple(_change(table, content) for table in tables)


def _change(table: TableName, content: Mapping[str, object]) -> Change:
    try:
        return Change(table, tuple(_summaries(content)))
    except UnclearError as error:
        # For the rules to decide: a table that is not gated may have what the gate cannot read.
        return Change(table, unclear=str(error))


def _summaries(content: Mapping[str, object]) -> Iterator[Mapping[str, str]]:
    for each in _list(content.get("updates"), "updates"):
        update = _object(each, "an update")
        # Iceberg reads it in any case.
        action = _text(update.get("action"), "action").lower()
        if action != _ADD:
            if action not in _KNOWN:
                raise UnclearError(f"the gate does not know the update {action[:80]}")
            continue
        summary = _object(update.get("snapshot"), "snapshot").get("summary")
        yield {key: _text(value, f"summary {key[:80]}") for key, value in _object(summary or {}, "summary").items()}


def _decoded(body: bytes, encoding: str) -> bytes:
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            reader = zlib.decompressobj(wbits=31)
        case "deflate":
            reader = zlib.decompressobj()
        case _:
            raise UnclearError(f"the gate does not read the content encoding {encoding[:80]}; send gzip, or none")
    content, rest, values = bytearray(), body, 0
    try:
        while not reader.eof and len(content) <= LARGEST and values <= _VALUES:
            piece = reader.decompress(rest, _PIECE)
            rest = reader.unconsumed_tail
            if not piece and not rest and not reader.eof:
                break
            content += piece
            values += sum(map(piece.count, (b",", b"[", b"{")))
    except zlib.error:
        raise UnclearError(f"its body is not valid {encoding}") from None
    if not reader.eof or len(content) > LARGEST or reader.unused_data:
        raise UnclearError(
            f"its body is more than {LARGEST:,} bytes or {_VALUES:,} values, or not one whole stream, when decompressed"
        )
    return bytes(content)


def _parsed(content: bytes) -> object:
    try:
        require_bounded_json(content, "the body", 0, _VALUES)
        return json.loads(content.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except TooLarge as error:
        raise UnclearError(f"its body takes too much memory: {error.what}") from None
    except (ValueError, RecursionError) as error:
        raise UnclearError(f"its body is not JSON that all servers read alike: {error or 'nested too deep'}") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _object(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise UnclearError(f"{what} is not an object")
    return value


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise UnclearError(f"{what} is not a list")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise UnclearError(f"{what} is not a text")
    return value


def _name(value: object, what: str) -> TableName:
    found = _object(value, what)
    levels = tuple(_text(level, f"a level of {what}") for level in _list(found.get("namespace"), f"{what}.namespace"))
    return TableName(levels, _text(found.get("name"), f"{what}.name"))
