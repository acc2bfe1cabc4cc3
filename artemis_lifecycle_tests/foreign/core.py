"""Iceberg's core in the session's JVM, without Spark: the hand of other writers, and the eye of the oracle.

`Core.java` is compiled once per session. Data files are written by pyarrow: uncompressed and without statistics, so
that two files of as many rows of one schema have the same size.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from artemis_lifecycle_tests.guardian import on_disk

JAVA_ERRORS = (Py4JError, PySparkException)
"""What comes of an exception in the JVM; pyspark has its own for some."""

Row = tuple[tuple[str, object], ...]
"""Names and values of the columns that have one, by name."""


@dataclass(frozen=True)
class Entry:
    """A file as a manifest has it. `content`: DATA, POSITION_DELETES or EQUALITY_DELETES."""

    path: str
    first_row_id: int | None
    records: int
    content: str
    sequence: int
    size: int


@dataclass(frozen=True)
class Described:
    """What a metadata file says. `own`: the table's own files. `reads`: by snapshot, the files that it reads; None
    where a level cannot be read."""

    location: str
    uuid: str
    version: int
    base: str
    own: frozenset[str]
    reads: Mapping[int, frozenset[str] | None]
    branches: Mapping[str, int]
    tags: Mapping[str, int]
    main: int | None
    files: tuple[Entry, ...]
    """Of all snapshots."""
    entries: Mapping[int, tuple[Entry, ...]]
    schemas: Mapping[int, Mapping[int, str] | None]
    """By snapshot: names by field id; None where its schema is not in the metadata."""

    @property
    def order(self) -> list[int]:
        """Snapshots as they were committed."""
        return list(self.reads)


@functools.cache
def compile_core(spark: SparkSession) -> Any:
    """Once: py4j remembers methods by the name of their class, and another class of the name is another one."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(Path(__file__).with_name("Core.java").read_text())
    kind = compiler.getClassLoader().loadClass("Core")
    conf = context._jsc.hadoopConfiguration()
    made = kind.getConstructors()[0]
    arguments = context._gateway.new_array(jvm.java.lang.Object, 1)
    arguments[0] = conf
    return made.newInstance(arguments)


class Core:
    def __init__(self, spark: SparkSession) -> None:
        self.java = compile_core(spark)
        self._maps = spark._jvm.java.util.HashMap  # type: ignore[union-attr]
        self._described: dict[tuple[str, int], Described] = {}
        self._entries: dict[str, Entry] = {}

    def open(self, name: str, options: Mapping[str, str]) -> Any:
        given = self._maps()
        for key, value in options.items():
            given.put(key, value)
        return self.java.open(name, given)

    def forget(self) -> None:
        """Between two worlds."""
        self._described.clear()
        self._entries.clear()
        self.java.forget()

    def describe(self, location: str) -> Described:
        """Raises OSError, ValueError or JAVA_ERRORS where the metadata file is none."""
        place = on_disk(location)
        at = (location, os.stat(place).st_mtime_ns)
        if at not in self._described:
            self._described[at] = self._describe(location, json.loads(place.read_bytes()))
        return self._described[at]

    def _describe(self, location: str, document: dict[str, Any]) -> Described:
        reads: dict[int, frozenset[str] | None] = {}
        lists: dict[int, list[str]] = {}
        manifests: dict[str, list[str]] = {}
        for line in self.java.describe(location).splitlines():
            kind, what, *rest = line.split("\t")
            if kind == "S":
                lists[int(what)] = rest
            else:
                manifests[what] = rest
        entries: dict[int, tuple[Entry, ...]] = {}
        for snapshot, paths in lists.items():
            found = [entry for manifest in paths[1:] for entry in manifests.get(manifest, ())]
            is_whole = "!" not in paths and "!" not in found
            entries[snapshot] = tuple(map(self._entry, found)) if is_whole else ()
            reads[snapshot] = frozenset([*paths, *(each.path for each in entries[snapshot])]) if is_whole else None
        own = {location, *(each["metadata-file"] for each in document.get("metadata-log") or ())}
        for kind in ("statistics", "partition-statistics"):
            own.update(each["statistics-path"] for each in document.get(kind) or ())
        refs = document.get("refs") or {}
        snapshots = document.get("snapshots") or ()
        committed = [each["snapshot-id"] for each in snapshots]
        schemas = {
            each["schema-id"]: {field["id"]: field["name"] for field in each["fields"]} for each in document["schemas"]
        }
        current = document["current-schema-id"]
        return Described(
            location,
            document["table-uuid"],
            document["format-version"],
            document["location"],
            frozenset(own),
            {snapshot: reads[snapshot] for snapshot in committed},
            {name: ref["snapshot-id"] for name, ref in refs.items() if ref["type"] == "branch"},
            {name: ref["snapshot-id"] for name, ref in refs.items() if ref["type"] == "tag"},
            refs.get("main", {}).get("snapshot-id"),
            tuple({each.path: each for of in entries.values() for each in of}.values()),
            entries,
            {each["snapshot-id"]: schemas.get(each.get("schema-id", current)) for each in snapshots},
        )

    def _entry(self, line: str) -> Entry:
        if line not in self._entries:
            path, first, records, content, sequence, size = line.rsplit("|", 5)
            row_id = None if first == "-1" else int(first)
            self._entries[line] = Entry(path, row_id, int(records), content, int(sequence), int(size))
        return self._entries[line]

    def rows(self, location: str, snapshot: int, *, current: bool = False) -> tuple[Row, ...]:
        """In the snapshot's schema, or in the table's current one. Raises JAVA_ERRORS where they cannot be read."""
        return as_rows(map(json.loads, self.java.rows(location, snapshot, current).splitlines()))


def as_rows(rows: Iterable[Mapping[str, object]]) -> tuple[Row, ...]:
    # The core's reader leaves `_pos` in rows to which it applied deletes.
    found = (
        tuple(sorted((name, each) for name, each in row.items() if each is not None and name[0] != "_")) for row in rows
    )
    return tuple(sorted(found, key=repr))


# --- files of writers -------------------------------------------------------------------------------------------------

_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)


def write_rows(path: str, rows: Sequence[Mapping[str, object]], columns: Sequence[tuple[int, str]]) -> str:
    """A data file; returns its line for Core.java. `columns`: field id and name of the schema."""
    fields = [
        pa.field(name, pa.int64() if name == "id" else pa.string(), True, {"PARQUET:field_id": str(field_id)})
        for field_id, name in columns
    ]
    return _write(path, pa.table([[row.get(name) for row in rows] for _, name in columns], pa.schema(fields)))


def made_up(row_id: int, columns: Sequence[tuple[int, str]]) -> dict[str, object]:
    """A row whose values are as long as any other's."""
    return {name: row_id if name == "id" else f"{name[:4]:4}-{row_id:010}" for _, name in columns}


def write_positions(path: str, of: str, records: int) -> str:
    return _write(path, pa.table([[of] * records, list(range(records))], _POSITIONS))


def write_equality(path: str, row_id: int) -> str:
    field = pa.field("id", pa.int64(), True, {"PARQUET:field_id": "1"})
    return _write(path, pa.table([[row_id]], pa.schema([field])))


def _write(path: str, table: pa.Table) -> str:
    place = on_disk(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    # Whoever writes through Hadoop writes the checksum anew; nobody leaves one that is wrong.
    place.with_name(f".{place.name}.crc").unlink(missing_ok=True)
    pq.write_table(table, place, compression="NONE", use_dictionary=False, write_statistics=False, store_schema=False)
    return f"{path}\t{place.stat().st_size}\t{table.num_rows}"


def ids_in(path: Path) -> list[int]:
    return list(pq.read_table(path, columns=["id"]).column("id").to_pylist())


def records_in(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)
