"""Whole Avro records through fastavro: their stored values, in and out."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from artemis_lifecycle.errors import LifecycleError, UnreadableMetadata
from artemis_lifecycle.metadata.avro.container import Container, parsed_schema
from artemis_lifecycle.metadata.avro.programs import Program, compile_scan
from artemis_lifecycle.metadata.avro.scan import require_bounded
from artemis_lifecycle.metadata.avro.schema import structure
from artemis_lifecycle.metadata.unreadable import unreadable
from artemis_lifecycle.storage.bounded import within_memory

_BLOCK = 64 * 1024
_BROKEN = (ValueError, EOFError, LookupError, TypeError, AttributeError, OverflowError, SchemaParseException)


def read_records(container: Container, path: str) -> Iterator[dict[str, Any]]:
    """Yield the records as stored: no logical type is applied, so that no unusual value can fail to convert.

    Raises UnreadableMetadata if the payload is not exactly these records.
    """
    try:
        schema, program = _structure(container.schema_text)
    except UnreadableMetadata:
        # Again, for an error with this file's path.
        schema, program = structure(container.schema, path), None
    require_bounded(schema, program, container.payload, container.records, path)
    with decoding(path):
        parsed, stream = _parsed(container.schema_text), io.BytesIO(container.payload)
        for _ in range(container.records):
            record = fastavro.schemaless_reader(stream, parsed, None)
            if not isinstance(record, dict):
                raise unreadable("The Avro file has values that are not records", path)
            yield record
        if stream.tell() != len(container.payload):
            raise unreadable("The Avro file's blocks have more than their records", path)


@lru_cache(maxsize=64)
def _structure(schema_text: str) -> tuple[Any, Program | None]:
    # A table's files have one schema, and there are tens of thousands of them.
    schema = structure(parsed_schema(schema_text), "")
    return schema, compile_scan(schema, {})


@lru_cache(maxsize=64)
def _parsed(schema_text: str) -> Any:
    return fastavro.parse_schema(_structure(schema_text)[0])


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
