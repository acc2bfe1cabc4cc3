"""Scans Avro records for a few fields, without building the others. Source: the Avro specification.

A schema becomes a small program of skips and takes, which a compiled loop runs once per record. It steps over a
manifest's bounds, counts and partition values in place. A path is an offset and a length until it is read as a string.
This is ten times as fast as a reader that builds records.

If the program cannot follow a schema (recursive types, unions inside taken fields), the result is `None`, and the
caller reads the file the slow way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.avro import steps
from artemis_lifecycle.metadata.avro.container import Container
from artemis_lifecycle.metadata.avro.programs import FIXED, LONGS, MOST_STEPS, TEXTS, Program, compile_scan
from artemis_lifecycle.metadata.avro.schema import structure
from artemis_lifecycle.metadata.unreadable import unreadable

_UNSET = -(2**63)


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

    def has(self, field: str) -> bool:
        """Return True if the schema has the field."""
        return field in self.sizes or field in self.longs

    def is_set(self, field: str) -> NDArray[np.bool_]:
        """Return whether each record has a value in the field."""
        found: NDArray[np.bool_] = self.sizes[field] >= 0 if field in self.sizes else self.longs[field] != _UNSET
        return found


Ways = Callable[[Any, tuple[str, ...], str], Mapping[str, tuple[str, ...]]]
"""From a file's schema, the wanted fields and the file's path, returns each field in the schema -> its way through
nested records."""


def scan_container(
    container: Container, ways: Ways, wanted: tuple[str, ...], texts: frozenset[str], path: str
) -> Scan | None:
    """Read the `wanted` fields of the records; None if no program can follow the schema, or if a field of `texts` is a
    number in it, or another field is a text."""
    try:
        # A table's files have one schema, and there are tens of thousands of them.
        program = _cached(container.schema_text, ways, wanted, texts)
    except UnreadableMetadata:
        # Compile again, for an error with this file's path.
        program = _program(container.schema, ways, wanted, texts, path)
    return None if program is None else scan_records(program, container.payload, container.records, path)


@lru_cache(maxsize=256)
def _cached(schema_text: str, ways: Ways, wanted: tuple[str, ...], texts: frozenset[str]) -> Program | None:
    return _program(json.loads(schema_text), ways, wanted, texts, "")


def _program(schema: Any, ways: Ways, wanted: tuple[str, ...], texts: frozenset[str], path: str) -> Program | None:
    fields = ways(schema, wanted, path)
    program = compile_scan(structure(schema, path), fields)
    if program is None:
        return None
    right = all(name in (program.texts if name in texts else program.longs) for name in fields)
    return program if right else None


def scan_records(program: Program, payload: bytes, records: int, path: str) -> Scan:
    """Run a program over the records of an Avro payload.

    Raises UnreadableMetadata if the payload is not exactly these records.
    """
    from artemis_lifecycle.metadata.avro.scan_kernels import OK, walk_records

    data = np.frombuffer(payload, np.uint8)
    if records * program.plain > len(payload):
        raise _ends_elsewhere(0, records, path)
    longs = np.full((max(len(program.longs), 1), records), _UNSET, np.int64)
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

    Raises UnreadableMetadata if the payload is not exactly these records, or nests without end.
    """
    program = compile_scan(schema, {})
    if program is not None and program.widthless <= _MOST_WIDTHLESS:
        scan_records(program, payload, records, path)
        return
    try:
        walker = _Walker(payload)
        for _ in range(records):
            walker.skip(schema)
        whole = walker.at == len(payload)
    except (IndexError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise unreadable("The Avro file's records do not end where the file does, or nest without end", path)


class _Walker:
    """Skips values of any schema, including recursive ones, in Python, whose recursion limit is detectable."""

    def __init__(self, payload: bytes) -> None:
        if len(payload) > _MOST_WALKED:
            raise IndexError
        self.payload = payload
        self.at = 0
        self.named: dict[str, Any] = {}
        self.left = _MOST_WIDTHLESS * len(payload) + MOST_STEPS

    def skip(self, schema: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise IndexError
        if isinstance(schema, list):
            branch = self._long()
            if branch < 0:
                raise IndexError
            for option in schema[:branch]:
                self._define(option)
            self.skip(schema[branch])
            return
        self._define(schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            for field in schema["fields"]:
                self.skip(field["type"])
        elif kind in ("array", "map"):
            self._skip_blocks(schema, kind)
        elif kind in LONGS or kind == "enum":
            self._long()
        elif kind in TEXTS:
            self._forward(self._long())
        elif kind == "fixed":
            self._forward(schema["size"])
        elif kind in FIXED:
            self._forward(FIXED[kind])
        else:
            self.skip(self.named[kind])

    def _skip_blocks(self, schema: Any, kind: str) -> None:
        while count := self._long():
            if count < 0:
                self._long()
            if abs(count) > len(self.payload) - self.at + steps.MAX_EMPTY:
                raise IndexError
            for _ in range(abs(count)):
                if kind == "map":
                    self._forward(self._long())
                self.skip(schema["items" if kind == "array" else "values"])

    def _define(self, schema: Any) -> None:
        # A branch that is not taken may define a type to which a later value refers.
        if isinstance(schema, dict):
            name = schema.get("name")
            if name is not None:
                if name in self.named:
                    return
                self.named[name] = schema
            for field in schema.get("fields", ()):
                self._define(field["type"])
            for key in ("items", "values"):
                self._define(schema.get(key))
        elif isinstance(schema, list):
            for option in schema:
                self._define(option)

    def _long(self) -> int:
        value = shift = 0
        while True:
            byte = self.payload[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise IndexError

    def _forward(self, size: int) -> None:
        self.at += size
        if size < 0 or self.at > len(self.payload):
            raise IndexError


_MOST_WIDTHLESS = 64
"""Maximum zero-byte values (nulls, empty records) in one record that a reader builds: nothing in the file limits
them."""

_MOST_WALKED = 16 << 20
"""Maximum bytes whose values are walked in Python: only recursive schemas need it, which no Iceberg writer uses."""
