"""Whole Avro records through fastavro: their stored values, in and out."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.metadata.avro.container import Container
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
