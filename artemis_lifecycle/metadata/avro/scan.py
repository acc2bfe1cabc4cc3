"""Scans Avro records for a few fields, without building the others. Source: the Avro specification.

A schema becomes a small program of skips and takes, which a compiled loop runs once per record. It steps over a
manifest's bounds, counts and partition values in place. A path is an offset and a length until it is read as a string.
This is ten times as fast as a reader that builds records.

No program can follow a type that has itself in it, which no Iceberg writer makes: such a file is unreadable.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import lru_cache
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from fastavro.schema import SchemaParseException
from numpy.typing import NDArray

from artemis_lifecycle.errors import LifecycleError, UnreadableMetadata
from artemis_lifecycle.metadata.avro import steps
from artemis_lifecycle.metadata.avro.container import Container, structure
from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.storage.bounded import within_memory
from artemis_lifecycle.storage.location import text_buffers

# --- programs ---------------------------------------------------------------------------------------------------------
# Programs of scans: an Avro schema as instructions that skip and take. Source: the Avro specification.

LONGS = frozenset({"int", "long"})
TEXTS = frozenset({"string", "bytes"})
FIXED = {"boolean": 1, "float": 4, "double": 8, "null": 0}

MOST_STEPS = 100_000
"""Maximum steps of a program: a schema whose types refer to each other may expand beyond any memory."""


@dataclass(frozen=True)
class Program:
    """The program that `walk_records` runs, and the columns that it fills."""

    steps: NDArray[np.int64]
    targets: NDArray[np.int64]
    longs: tuple[str, ...]
    texts: tuple[str, ...]
    widthless: int
    """Number of zero-byte values in a record."""
    plain: int
    """Number of columns that have at least one byte in each record."""


@dataclass(frozen=True)
class Further:
    """What a scan takes besides single numbers and texts.

    `pairs`: the way to an array of pairs -> the keys to take, each with the name of its column. `spans`: the way to a
    value -> the name of the column that gets its encoded bytes. Fractions, flags and fixed bytes are taken as their
    bytes, like texts.
    """

    pairs: Mapping[tuple[str, ...], Mapping[int, str]] = dataclass_field(default_factory=dict)
    spans: Mapping[tuple[str, ...], str] = dataclass_field(default_factory=dict)


class _CannotFollow(Exception):  # noqa: N818  (control flow inside this module)
    pass


def compile_scan(schema: Any, fields: Mapping[str, tuple[str, ...]], further: Further | None = None) -> Program | None:
    """Return the program that reads `fields` (name -> the field's way through nested records) from records of `schema`.

    `schema` is parsed JSON without annotations. Fields that it lacks have no column. None if no program can follow the
    schema.
    """
    compiler = _Compiler({way: name for name, way in fields.items()}, further)
    try:
        compiler.add(schema, ())
        return compiler.finish()
    except (_CannotFollow, KeyError, TypeError, RecursionError):
        return None


class _Compiler:
    def __init__(self, wanted: Mapping[tuple[str, ...], str], further: Further | None) -> None:
        self.wanted = wanted
        self.further = further or Further()
        self.takes_fixed = further is not None
        self.plain = 0
        self.steps: list[list[int]] = []
        self.targets: list[int] = []
        self.longs: list[str] = []
        self.texts: list[str] = []
        self.named: dict[str, Any] = {}
        self.open: list[str] = []
        self.added = 0
        self.widthless = 0

    def finish(self) -> Program:
        self._step(steps.END)
        return Program(
            np.array(self.steps, np.int64),
            np.array(self.targets or [0], np.int64),
            tuple(self.longs),
            tuple(self.texts),
            self.widthless,
            self.plain,
        )

    def _step(self, code: int, one: int = 0, two: int = 0) -> int:
        self.steps.append([code, one, two])
        return len(self.steps) - 1

    def add(self, schema: Any, way: tuple[str, ...] | None) -> None:
        """`way` leads to this value through records only; None inside arrays and maps, where nothing is taken."""
        self.added += 1
        if self.added > MOST_STEPS:
            raise _CannotFollow
        span = None if way is None else self.further.spans.get(way)
        if span is not None and schema != "null":
            # Behind a union, only the branch that has a value is the span.
            if isinstance(schema, list):
                self._union(schema, way)
                return
            column = self._column(self.texts, self.longs, span)
            self._step(steps.MARK, column)
            self._value(schema, way)
            self._step(steps.END_MARK, column)
            return
        self._value(schema, way)

    def _value(self, schema: Any, way: tuple[str, ...] | None) -> None:
        if isinstance(schema, list):
            self._union(schema, way)
            return
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            self.add(kind, way)
        elif kind in ("record", "error"):
            self._record(schema, way)
        elif kind in ("array", "map"):
            self._blocks(schema, kind, way)
        elif kind == "fixed":
            self._define(schema)
            self.widthless += not schema["size"]
            self._fixed(int(schema["size"]), way)
        elif kind == "enum":
            self._define(schema)
            self._step(steps.SKIP_LONG)
        elif kind in LONGS:
            name = self._name(way)
            if name is None:
                self._step(steps.SKIP_LONG)
            else:
                self._step(steps.TAKE_LONG, self._taken(self.longs, self.texts, name))
        elif kind in TEXTS:
            name = self._name(way)
            if name is None:
                self._step(steps.SKIP_BYTES)
            else:
                self._step(steps.TAKE_BYTES, self._taken(self.texts, self.longs, name))
        elif kind in FIXED:
            if FIXED[kind]:
                self._fixed(FIXED[kind], way)
            else:
                self.widthless += 1
        elif isinstance(kind, str) and kind in self.named:
            if kind in self.open:
                raise _CannotFollow
            self.add(self.named[kind], way)
        else:
            raise _CannotFollow

    def _name(self, way: tuple[str, ...] | None) -> str | None:
        return None if way is None else self.wanted.get(way)

    def _fixed(self, size: int, way: tuple[str, ...] | None) -> None:
        name = self._name(way) if self.takes_fixed else None
        if name is None:
            self._step(steps.SKIP_FIXED, size)
        else:
            self._step(steps.TAKE_FIXED, self._taken(self.texts, self.longs, name), size)

    def _taken(self, mine: list[str], other: Sequence[str], name: str) -> int:
        """Return the column of a value."""
        if name not in mine:
            self.plain += 1
        return self._column(mine, other, name)

    @staticmethod
    def _column(mine: list[str], other: Sequence[str], name: str) -> int:
        if name in other:
            # A union of a number and a text: no column can store it.
            raise _CannotFollow
        if name not in mine:
            mine.append(name)
        return mine.index(name)

    def _define(self, schema: Any) -> None:
        self.named[schema["name"]] = schema

    def _record(self, schema: Any, way: tuple[str, ...] | None) -> None:
        self._define(schema)
        self.widthless += not schema["fields"]
        self.open.append(schema["name"])
        for field in schema["fields"]:
            self.add(field["type"], None if way is None else (*way, field["name"]))
        self.open.pop()

    def _union(self, options: list[Any], way: tuple[str, ...] | None) -> None:
        first = len(self.targets)
        self.targets += [0] * len(options)
        self._step(steps.UNION, first, len(options))
        ends = []
        for number, option in enumerate(options):
            self.targets[first + number] = len(self.steps)
            self.add(option, way)
            # The branch's number takes one byte.
            self.widthless -= option == "null"
            ends.append(self._step(steps.JUMP))
        for end in ends:
            self.steps[end][1] = len(self.steps)

    def _pair(self, items: Any) -> int | None:
        """Return 1 for records of a number and bytes, 0 for records of two numbers; None for anything else."""
        if not isinstance(items, dict) or items.get("type") != "record" or len(items["fields"]) != 2:
            return None
        first, second = (field["type"] for field in items["fields"])
        if not isinstance(first, str) or not isinstance(second, str):
            return None
        if first not in LONGS or second not in LONGS | TEXTS:
            return None
        self._define(items)
        return int(second in TEXTS)

    def _blocks(self, schema: Any, kind: str, way: tuple[str, ...] | None) -> None:
        pair = self._pair(schema["items"]) if kind == "array" else None
        keys = None if way is None else self.further.pairs.get(way)
        if pair is not None and keys is None:
            self._step(steps.SKIP_PAIRS, pair)
            return
        if keys is not None:
            if pair is None:
                raise _CannotFollow
            mine, other = (self.texts, self.longs) if pair else (self.longs, self.texts)
            place = len(self.targets)
            self.targets.append(len(keys))
            for key, name in keys.items():
                self.targets += [key, self._column(mine, other, name)]
            self._step(steps.TAKE_PAIRS, pair, place)
            return
        begin = self._step(steps.BLOCKS)
        if kind == "map":
            self._step(steps.SKIP_BYTES)
        self.add(schema["items" if kind == "array" else "values"], None)
        self._step(steps.NEXT, begin + 1)
        self.steps[begin][1] = len(self.steps)


UNSET = -(2**63)


@dataclass(frozen=True)
class Scan:
    """The result of a scan of `rows` records.

    `longs[field]` are numbers; `unset` masks have the field's name if a record has null. For a text or bytes field,
    `starts` and `sizes` say where it is in `data`; size -1 means null.
    """

    rows: int
    data: NDArray[np.uint8]
    longs: Mapping[str, NDArray[np.int64]]
    starts: Mapping[str, NDArray[np.int64]]
    sizes: Mapping[str, NDArray[np.int64]]

    def texts(self, field: str, rows: NDArray[np.int64] | None = None) -> pa.Array:
        """Return the field as a large_string array, for all records or for the given rows. Raises pa.ArrowInvalid if it
        is not UTF-8."""
        found = self.binary(field, rows)
        array = pa.Array.from_buffers(pa.large_string(), len(found), found.buffers())
        array.validate(full=True)
        return array

    def binary(self, field: str, rows: NDArray[np.int64] | None = None) -> pa.Array:
        """Return the field as a large_binary array, for all records or for the given rows."""
        from artemis_lifecycle.metadata.avro.scan_kernels import gather

        chosen = np.arange(self.rows, dtype=np.int64) if rows is None else rows
        sizes = self.sizes[field]
        present = sizes[chosen] >= 0
        lengths = np.where(sizes >= 0, sizes, 0)
        out = np.empty(int(lengths[chosen].sum()), np.uint8)
        offsets = np.empty(len(chosen) + 1, np.int64)
        gather(self.data, self.starts[field], lengths, chosen, out, offsets)
        mask = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
        buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.large_binary(), len(chosen), buffers)

    def with_texts(self, field: str, texts: pa.Array) -> Scan:
        """Return the scan with other texts in a field, one for each record."""
        offsets, data = text_buffers(texts.cast(pa.large_string()))
        starts, sizes = (
            offsets[:-1] - offsets[0] + len(self.data),
            np.where(self.sizes[field] < 0, -1, np.diff(offsets)),
        )
        return replace(
            self,
            data=np.concatenate([self.data, data[offsets[0] : offsets[-1]]]),
            starts={**self.starts, field: starts},
            sizes={**self.sizes, field: sizes},
        )

    def has(self, field: str) -> bool:
        """Return True if the schema has the field."""
        return field in self.sizes or field in self.longs

    def is_set(self, field: str) -> NDArray[np.bool_]:
        """Return whether each record has a value in the field."""
        found: NDArray[np.bool_] = self.sizes[field] >= 0 if field in self.sizes else self.longs[field] != UNSET
        return found


Ways = Callable[[Any, tuple[str, ...], str], Mapping[str, tuple[str, ...]]]
"""From a file's schema, the wanted fields and the file's path, returns each field in the schema -> its way through
nested records."""


def scan_container(container: Container, ways: Ways, wanted: tuple[str, ...], texts: frozenset[str], path: str) -> Scan:
    """Read the `wanted` fields of the records; those in `texts` are texts or bytes, all others numbers. Raises
    UnreadableMetadata, also for a schema in which they are not, or that no program can follow."""
    try:
        # A table's files have one schema, and there are tens of thousands of them.
        program = _cached(container.schema_text, ways, wanted, texts)
    except UnreadableMetadata:
        # Compile again, for an error with this file's path.
        program = _program(container.schema, ways, wanted, texts, path)
    return scan_records(program, container.payload, container.records, path)


@lru_cache(maxsize=256)
def _cached(schema_text: str, ways: Ways, wanted: tuple[str, ...], texts: frozenset[str]) -> Program:
    return _program(json.loads(schema_text), ways, wanted, texts, "")


def _program(schema: Any, ways: Ways, wanted: tuple[str, ...], texts: frozenset[str], path: str) -> Program:
    fields = ways(schema, wanted, path)
    program = compile_scan(structure(schema, path), fields)
    if program is None:
        raise strange_schema(path)
    for name in fields:
        if name not in (program.texts if name in texts else program.longs):
            kind = "text" if name in texts else "a number"
            raise unreadable(f"The Avro file's schema has a {name} that is not {kind}", path)
    return program


def strange_schema(path: str) -> UnreadableMetadata:
    return unreadable("The Avro file's schema is not one that an Iceberg writer makes", path)


def scan_records(program: Program, payload: bytes, records: int, path: str) -> Scan:
    """Run a program over the records of an Avro payload.

    Raises UnreadableMetadata if the payload is not exactly these records.
    """
    from artemis_lifecycle.metadata.avro.scan_kernels import OK, walk_records

    data = np.frombuffer(payload, np.uint8)
    if records * program.plain > len(payload):
        raise _ends_elsewhere(0, records, path)
    longs = np.full((max(len(program.longs), 1), records), UNSET, np.int64)
    starts = np.zeros((max(len(program.texts), 1), records), np.int64)
    sizes = np.full((max(len(program.texts), 1), records), -1, np.int64)
    outcome, at = walk_records(data, records, program.steps, program.targets, longs, starts, sizes)
    if outcome != OK:
        raise _ends_elsewhere(at, records, path)
    return Scan(
        records,
        data,
        {name: longs[column] for column, name in enumerate(program.longs)},
        {name: starts[column] for column, name in enumerate(program.texts)},
        {name: sizes[column] for column, name in enumerate(program.texts)},
    )


def _ends_elsewhere(at: int, records: int, path: str) -> UnreadableMetadata:
    what = f"The Avro file's records do not end where the file does; the scan stopped at record {at} of {records}"
    return unreadable(what, path)


def require_bounded(schema: Any, payload: bytes, records: int, path: str) -> None:
    """Walk records before a reader in C reads them: it would nest as deep, and build as many empty items, as they
    claim.

    Raises UnreadableMetadata if the payload is not exactly these records, or the schema bounds neither.
    """
    program = compile_scan(schema, {})
    if program is None or program.widthless > _MOST_WIDTHLESS:
        raise strange_schema(path)
    scan_records(program, payload, records, path)


_MOST_WIDTHLESS = 64
"""Maximum zero-byte values (nulls, empty records) in one record that a reader builds: nothing in the file limits
them."""


# --- records ----------------------------------------------------------------------------------------------------------
# Whole Avro records through fastavro: their stored values, in and out.

_BLOCK = 64 * 1024
_BROKEN = (ValueError, EOFError, LookupError, TypeError, AttributeError, OverflowError, SchemaParseException)


def read_records(container: Container, path: str) -> Iterator[dict[str, Any]]:
    """Yield the records as stored: no logical type is applied, so that no unusual value can fail to convert.

    Raises UnreadableMetadata if the payload is not exactly these records.
    """
    schema = structure(container.schema, path)
    require_bounded(schema, container.payload, container.records, path)
    with decoding(path):
        parsed, stream = fastavro.parse_schema(schema), io.BytesIO(container.payload)
        for _ in range(container.records):
            record = fastavro.schemaless_reader(stream, parsed, None)
            if not isinstance(record, dict):
                raise unreadable("The Avro file has values that are not records", path)
            yield record
        if stream.tell() != len(container.payload):
            raise unreadable("The Avro file's blocks have more than their records", path)


def with_records(container: Container, records: Iterable[dict[str, Any]], path: str) -> bytes:
    """Return the file of `container` with these records instead of its own; header, codec and sync marker stay."""

    def blocks() -> Iterator[tuple[int, bytes]]:
        block, count = io.BytesIO(), 0
        for record in records:
            fastavro.schemaless_writer(block, parsed, record)
            count += 1
            if block.tell() >= _BLOCK:
                yield count, block.getvalue()
                block, count = io.BytesIO(), 0
        if count:
            yield count, block.getvalue()

    with decoding(path):
        parsed = fastavro.parse_schema(structure(container.schema, path))
        return container.rewritten(blocks())


@contextmanager
def decoding(path: str) -> Iterator[None]:
    """Raise UnreadableMetadata for a schema or a record that no writer produces; TooLarge if memory is insufficient."""
    with within_memory(path):
        try:
            yield
        except LifecycleError:
            raise
        except _BROKEN as error:
            raise unreadable(f"The Avro file's records cannot be decoded: {error!r:.200}", path) from error
