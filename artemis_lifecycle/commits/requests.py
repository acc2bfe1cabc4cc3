"""Which tables are gated, and what is wrong with a change to one: lifecycle.yaml applied to what a request would do."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal
from urllib.parse import unquote, unquote_to_bytes

from artemis_lifecycle.catalogs.identifier import dotted
from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.contracts import LineageRequirements, lineage_problems
from artemis_lifecycle.errors import TooLarge
from artemis_lifecycle.storage.bounded import require_bounded_json

# --- bodies -----------------------------------------------------------------------------------------------------------
# What the body of a request would commit: strict parsing, because what the gate reads must be what the server reads.
#
# An object with a repeated key, an update that this version does not know, or a field of another type than in the
# spec raises UnclearError: servers could take it for something else.

LARGEST = 32 * 2**20
"""Bytes of a body that the gate reads, also after decompression."""

_VALUES = 500_000
"""Values in a body: of 20,000 snapshots at once."""
_PIECE = 2**20
_ADD, _REMOVE = "add-snapshot", "remove-snapshots"
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
    known, `source` is the table that is renamed to this one. `expires` are snapshots that it removes, `refs` those that
    it asserts or removes."""

    table: TableName
    summaries: tuple[Mapping[str, str], ...] = ()
    unclear: str | None = None
    source: TableName | None = None
    expires: frozenset[int] = frozenset()
    refs: frozenset[str] = frozenset()


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
        return Change(table, tuple(_summaries(content)), None, None, *_expired(content))
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


def _expired(content: Mapping[str, object]) -> tuple[frozenset[int], frozenset[str]]:
    updates = [_object(each, "an update") for each in _list(content.get("updates"), "updates")]
    removing = [each for each in updates if str(each.get("action")).lower() == _REMOVE]
    gone = [number for each in removing for number in _list(each.get("snapshot-ids"), "snapshot-ids")]
    asserted = (_object(each, "a requirement") for each in _list(content.get("requirements") or [], "requirements"))
    refs = [each.get("ref") for each in asserted] + [each.get("ref-name") for each in updates]
    return frozenset(each for each in gone if isinstance(each, int)), frozenset(map(str, refs))


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


# --- routes -----------------------------------------------------------------------------------------------------------
# Which requests of the Iceberg REST API change tables, from the path alone.
#
# Servers are lenient about paths: they decode segments before they match them, some more than once, and drop empty
# ones, a trailing slash, matrix parameters and a fragment. What one of them could take for a table's path is judged
# as that path, or refused if it could mean several.

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


_MOST_READINGS = 16
_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class Finding:
    """What a table's requirements do not allow of one request: the first problems of its snapshots or of another
    change, and the first summary with any. `refused`: the table's mode is `reject`."""

    table: str
    problems: tuple[str, ...]
    refused: bool
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """The gate's rules in one lifecycle.yaml. The project's own namespace is never gated."""

    config: LifecycleConfig

    def findings(self, change: Change) -> tuple[Finding, ...]:
        """Return what is wrong with the change, one finding for each entry that gates the table; empty if it may pass.
        Raises UnclearError."""
        gated = self._gated(change.table).items()
        found = [(entry, table, *self._problems(entry, table, change)) for entry, table in gated]
        return tuple(
            Finding(table, problems, self._rejects(entry), summary)
            for entry, table, problems, summary in found
            if problems
        )

    def gates(self, change: Change) -> bool:
        """Return True if a problem of the change would refuse it."""
        return any(map(self._rejects, self._gated(change.table)))

    def _rejects(self, entry: str) -> bool:
        return self.config.policy(entry).lineage.mode == "reject"

    def _problems(self, entry: str, table: str, change: Change) -> tuple[tuple[str, ...], Mapping[str, str]]:
        requirements = self._requirements[entry]
        if change.unclear is not None:
            return (f"its new snapshots cannot be validated: {change.unclear}",), {}
        if change.source is not None and not self._as_strict(change.source, requirements):
            source = dotted((*change.source.levels, change.source.name))
            return (f"{source} has snapshots that this table's requirements did not apply to",), {}
        problems, first, rest = dict[str, None](), dict[str, str](), iter(change.summaries)
        for summary in rest:
            found = lineage_problems(summary, requirements)
            problems |= dict.fromkeys(found)
            first = first or (dict(summary) if found else {})
            if len(problems) >= _MOST_PROBLEMS:
                # One request has one bounded record and one bounded answer.
                return (*list(problems)[:_MOST_PROBLEMS], f"and more; {len(list(rest)):,} snapshots not read"), first
        return tuple(problems), first

    def _as_strict(self, source: TableName, requirements: LineageRequirements) -> bool:
        """Return whether every commit to `source` was held to the same requirements."""
        gated = filter(self._rejects, self._gated(source))
        return any(self._requirements[entry] == requirements for entry in gated)

    def _gated(self, table: TableName) -> dict[str, str]:
        """Return the entries of lifecycle.yaml that gate the table, each with a name of the table. Entries that match
        it equally well all do."""
        by_entry: dict[str, str] = {}
        for parts in _readings(table):
            for entry in () if parts[:-1] == (NAMESPACE,) else self.config.matching(dotted(parts)):
                by_entry.setdefault(entry, dotted(parts))
        return by_entry

    @cached_property
    def _requirements(self) -> Mapping[str, LineageRequirements]:
        return {
            entry: LineageRequirements.from_config(self.config.policy(entry).lineage) for entry in self.config.tables
        }


def _readings(table: TableName) -> list[tuple[str, ...]]:
    """Return the tables that servers could mean by a name: some decode it once more, with `+` for a space (as Iceberg's
    Java clients encode it), some split levels at dots too, and Nessie reads `name@branch` and `name#hash` as a version
    of `name`. Raises UnclearError."""
    levels = {
        tuple(part for part in re.split(separators, text) if part)
        for text in _spellings(SEPARATOR.join(table.levels))
        for separators in (SEPARATOR, f"[.{SEPARATOR}]")
    }
    names = {
        one for name in _spellings(table.name) for one in (name, name.partition("@")[0].partition("#")[0].strip("`"))
    }
    as_sent = (*table.levels, table.name)
    return [as_sent, *sorted({(*each, one) for each in levels for one in names} - {as_sent})]


def _spellings(text: str) -> set[str]:
    found, new = set[str](), {text}
    while new:
        found |= new
        if len(found) > _MOST_READINGS:
            raise UnclearError(f"its name {text[:80]} is encoded too many times")
        new = {one for each in new for one in (unquote(each), each.replace("+", " "))} - found
    return found
