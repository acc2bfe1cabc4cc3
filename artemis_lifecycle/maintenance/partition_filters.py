"""Partitions as filters of Iceberg's actions: a term for each partition field, by the transform of its own spec.

A filter may select more than its partitions (files of another spec, whose values it cannot see), and never less: it is
only about what a rewrite takes first. Where a value has no literal that Iceberg reads back exactly (floats, decimals,
binary values, a source column that is gone), the partition has no filter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MICROSECONDS = frozenset({"time", "timestamp", "timestamptz"})
_PLAIN = frozenset({"boolean", "int", "long", "date", "string"}) | _MICROSECONDS
_SMALLEST_LONG = 1 << 31
"""Py4J passes smaller integers as Java's int, and Iceberg takes none for a time."""


@dataclass(frozen=True)
class _Field:
    """`term` is the JVM's, None if it has no filter; `is_time`: its values must be long."""

    term: Any | None
    is_void: bool
    is_time: bool


class PartitionFilters:
    """Makes filters for the partitions of a table in the JVM, whose schema it keeps."""

    def __init__(self, jvm: Any, table: Any) -> None:
        self._expressions = jvm.org.apache.iceberg.expressions.Expressions
        self._table = table
        self._specs: dict[str, tuple[_Field, ...] | None] = {}

    def of(self, partitions: Sequence[str]) -> Any | None:
        """Return Iceberg's Expression for these partitions, as in `live_partitions`; None if one of them has none."""
        found = None
        for text in partitions:
            one = self._one(text)
            if one is None:
                return None
            found = one if found is None else getattr(self._expressions, "or")(found, one)
        return found

    def _one(self, text: str) -> Any | None:
        spec_id, *values = json.loads(text)
        if spec_id not in self._specs:
            self._specs[spec_id] = self._fields(int(spec_id))
        fields = self._specs[spec_id]
        if fields is None or len(fields) != len(values):
            return None
        whole = self._expressions.alwaysTrue()
        for part, value in zip(fields, values, strict=True):
            if part.is_void:
                continue
            if part.term is None or (part.is_time and value is not None and abs(value) < _SMALLEST_LONG):
                return None
            predicate = (
                self._expressions.isNull(part.term) if value is None else self._expressions.equal(part.term, value)
            )
            whole = getattr(self._expressions, "and")(whole, predicate)
        return whole

    def _fields(self, spec_id: int) -> tuple[_Field, ...] | None:
        spec, schema = self._table.specs().get(spec_id), self._table.schema()
        if spec is None:
            return None
        found = []
        for part in spec.fields():
            transform, name = str(part.transform()), schema.findColumnName(part.sourceId())
            kind = None if name is None else str(schema.findType(part.sourceId()))
            is_value = transform == "identity" or transform.startswith("truncate")
            term = None
            if name is not None and (kind in _PLAIN or not is_value):
                make = self._expressions
                term = make.ref(name) if transform == "identity" else make.transform(name, part.transform())
            found.append(_Field(term, transform == "void", is_value and kind in _MICROSECONDS))
        return tuple(found)
