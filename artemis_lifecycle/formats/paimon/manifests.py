"""Paimon's manifest lists, manifests and index manifests. Source: Paimon's ManifestFileMeta, ManifestEntry,
DataFileMeta and IndexManifestEntry; pypaimon's manifest sidecars.

All are Avro files, read by the project's one codec. Each is checked against what the level above records: sizes and
counts. Fields that are unknown here stop the run, because they may name files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.formats.paimon.documents import words
from artemis_lifecycle.formats.paimon.folders import Folders
from artemis_lifecycle.metadata.avro.container import Container, open_container, record_fields, structure
from artemis_lifecycle.metadata.avro.scan import ITEM, Further, Program, compile_scan, read_records, scan_records
from artemis_lifecycle.metadata.types import DELETION_VECTORS, INDEX, Kind
from artemis_lifecycle.metadata.unreadable import read_file, unreadable
from artemis_lifecycle.storage.bounded import within_memory
from artemis_lifecycle.storage.location import LocationRules, hash_column, parent
from artemis_lifecycle.storage.stores import Stores

_LIST_VERSION, _MANIFEST_VERSION, _INDEX_VERSION = 2, 2, 1

_LIST_FIELDS = words(
    "_VERSION _FILE_NAME _FILE_SIZE _NUM_ADDED_FILES _NUM_DELETED_FILES _PARTITION_STATS _SCHEMA_ID _MIN_BUCKET "
    "_MAX_BUCKET _MIN_LEVEL _MAX_LEVEL _MIN_ROW_ID _MAX_ROW_ID _TOTAL_BUCKETS _EXTRA_FILES"
)
_ENTRY_FIELDS = words("_VERSION _KIND _PARTITION _BUCKET _TOTAL_BUCKETS _FILE")
_FILE_FIELDS = words(
    "_FILE_NAME _FILE_SIZE _ROW_COUNT _MIN_KEY _MAX_KEY _KEY_STATS _VALUE_STATS _MIN_SEQUENCE_NUMBER "
    "_MAX_SEQUENCE_NUMBER _SCHEMA_ID _LEVEL _EXTRA_FILES _CREATION_TIME _DELETE_ROW_COUNT _EMBEDDED_FILE_INDEX "
    "_FILE_SOURCE _VALUE_STATS_COLS _EXTERNAL_PATH _FIRST_ROW_ID _WRITE_COLS _WRITE_COLS_SEQUENCES"
)
_INDEX_FIELDS = words(
    "_VERSION _KIND _PARTITION _BUCKET _INDEX_TYPE _FILE_NAME _FILE_SIZE _ROW_COUNT _DELETIONS_VECTORS_RANGES "
    "_EXTERNAL_PATH _GLOBAL_INDEX"
)
_VECTORS = "DELETION_VECTORS"

_LONGS = ("_VERSION", "_KIND", "_BUCKET")
_FILE_LONGS = ("_FILE_SIZE", "_FILE_SOURCE")
_FILE_TEXTS = ("_FILE_NAME", "_EXTERNAL_PATH")
_EXTRA = 2
"""Extra files of one data file that the scan takes; a manifest with more in one is read the slow way."""

_APPENDED = 0


@dataclass(frozen=True)
class Listed:
    """One manifest of a list. `extra` are paths of files beside it that readers may use."""

    path: str
    size_in_bytes: int
    added: int
    deleted: int
    extra: tuple[str, ...]


@dataclass(frozen=True)
class ManifestList:
    path: str
    size_in_bytes: int
    manifests: tuple[Listed, ...]


@dataclass(frozen=True)
class Entries:
    """The files of a manifest, one row each; a data file's extra files are rows of their own, with unknown size 0.

    `hashes` are location hashes; `signs` are 1 for files that are added and -1 for those that are deleted. `appended`
    are files of a writer's append, or of an unknown source: the changelog of a table without a changelog producer.
    """

    paths: pa.Array
    hashes: NDArray[np.uint64]
    signs: NDArray[np.int64]
    sizes: NDArray[np.int64]
    appended: NDArray[np.bool_]

    def only(self, rows: NDArray[np.bool_]) -> Entries:
        numbers = (getattr(self, name)[rows] for name in ("hashes", "signs", "sizes", "appended"))
        return Entries(self.paths.filter(pa.array(rows)), *numbers)


@dataclass(frozen=True)
class IndexFile:
    path: str
    size_in_bytes: int
    kind: Kind


@dataclass(frozen=True)
class IndexManifest:
    path: str
    size_in_bytes: int
    files: tuple[IndexFile, ...]


def read_list(stores: Stores, folders: Folders, name: str, size: int | None) -> ManifestList:
    """Read a manifest list of `size` bytes (None if that is not recorded). Raises UnreadableMetadata."""
    path = folders.in_manifests(name)
    data, container = _open(stores, path, size)
    _require_known(container, _LIST_FIELDS, (), path)
    found = []
    for record in _records(container, _LIST_VERSION, path):
        named = folders.in_manifests(_plain(record["_FILE_NAME"], path))
        extra = tuple(folders.in_manifests(_plain(each, path)) for each in record.get("_EXTRA_FILES") or ())
        counts = (record["_FILE_SIZE"], record["_NUM_ADDED_FILES"], record["_NUM_DELETED_FILES"])
        found.append(Listed(named, *counts, extra))
    return ManifestList(path, len(data), tuple(found))


def read_manifest(stores: Stores, folders: Folders, listed: Listed, rules: LocationRules) -> Entries:
    """Read a manifest, and check it against its list. Raises UnreadableMetadata."""
    path = listed.path
    with within_memory(path):
        _, container = _open(stores, path, listed.size_in_bytes)
        _require_known(container, _ENTRY_FIELDS, _FILE_FIELDS, path)
        rows = _scanned(container, path) or _decoded(container, path)
        if set(rows.kinds.tolist()) - {0, 1}:
            raise unreadable("The manifest has entries that are neither added nor deleted", path)
        counts = int(np.count_nonzero(rows.kinds == 0)), int(np.count_nonzero(rows.kinds == 1))
        if counts != (listed.added, listed.deleted):
            raise unreadable(
                f"The manifest has {counts[0]} added and {counts[1]} deleted files, and its list says {listed.added} "
                f"and {listed.deleted}",
                path,
            )
        return _entries(rows, folders, path, rules)


def read_index_manifest(stores: Stores, folders: Folders, name: str) -> IndexManifest:
    """Read an index manifest, whose size nothing records. Raises UnreadableMetadata."""
    path = folders.in_manifests(name)
    data, container = _open(stores, path, None)
    _require_known(container, _INDEX_FIELDS, (), path)
    found = []
    for record in _records(container, _INDEX_VERSION, path):
        if record["_KIND"] != 0:
            raise unreadable("The index manifest has an entry that is not an added file", path)
        place = record.get("_EXTERNAL_PATH")
        if place is None:
            folder = folders.of_index(record["_PARTITION"], record["_BUCKET"], path)
            place = f"{folder}/{_plain(record['_FILE_NAME'], path)}"
        kind: Kind = DELETION_VECTORS if record["_INDEX_TYPE"] == _VECTORS else INDEX
        found.append(IndexFile(place, record["_FILE_SIZE"], kind))
    return IndexManifest(path, len(data), tuple(found))


# --- reading ----------------------------------------------------------------------------------------------------------


def _open(stores: Stores, path: str, size: int | None) -> tuple[bytes, Container]:
    data = read_file(stores, path)
    if size is not None and len(data) != size:
        raise unreadable(f"The file has {len(data)} bytes, and the level above records {size}", path)
    return data, open_container(data, path, stores.limits)


def _require_known(container: Container, outer: Collection[str], inner: Collection[str], path: str) -> None:
    unknown = _unknown(container.schema_text, frozenset(outer), frozenset(inner))
    if unknown is None:
        raise unreadable("The Avro file's schema is not a record", path)
    if unknown:
        raise unreadable(f"The file has fields that this version does not know: {', '.join(unknown)}", path)


@lru_cache(maxsize=64)
def _unknown(schema_text: str, outer: frozenset[str], inner: frozenset[str]) -> tuple[str, ...] | None:
    schema = _record(json.loads(schema_text))
    if schema is None:
        return None
    names = {field["name"] for field in schema["fields"]} - outer
    if inner:
        names |= {field["name"] for field in record_fields(schema, "_FILE")} - inner
    return tuple(sorted(names))


def _record(schema: Any) -> Any:
    """Return the record of a schema; Rust's writer has it in a union with null."""
    if isinstance(schema, list):
        return next((each for each in map(_record, schema) if each is not None), None)
    return schema if isinstance(schema, dict) and schema.get("type") == "record" else None


def _records(container: Container, version: int, path: str) -> Iterator[Mapping[str, Any]]:
    try:
        for record in read_records(container, path):
            if record["_VERSION"] != version:
                raise unreadable(f"The file has records of version {record['_VERSION']}; known is {version}", path)
            yield record
    except (KeyError, TypeError) as error:
        raise unreadable(f"The file's records lack {error}", path) from error


def _plain(name: object, path: str) -> str:
    """Return a file's name; anything that could lead to another folder is no name."""
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise unreadable(f"{name!r:.80} is not a file's name", path)
    return name


@dataclass(frozen=True)
class _Rows:
    """The columns of a manifest's entries. `source` is -1 where it is unknown; `extra` are rows and names of extra
    files."""

    kinds: NDArray[np.int64]
    partitions: Sequence[bytes]
    buckets: NDArray[np.int64]
    names: Sequence[str]
    external: Sequence[str | None]
    sizes: NDArray[np.int64]
    source: NDArray[np.int64]
    extra: Sequence[tuple[int, str]]


@lru_cache(maxsize=64)
def _program(schema_text: str) -> Program | None:
    schema = json.loads(schema_text)
    ways: dict[str, tuple[str, ...]] = {name: (name,) for name in (*_LONGS, "_PARTITION")}
    known = {field["name"] for field in record_fields(schema, "_FILE")}
    ways |= {name: ("_FILE", name) for name in (*_FILE_LONGS, *_FILE_TEXTS) if name in known}
    ways["_EXTRA_FILES"] = ("_FILE", "_EXTRA_FILES", ITEM)
    program = compile_scan(structure(schema, ""), ways, Further(items=_EXTRA))
    if program is None:
        return None
    texts = {"_PARTITION", "_FILE_NAME", f"_EXTRA_FILES[{_EXTRA}]"}
    return program if texts <= {*program.texts} and {*_LONGS, "_FILE_SIZE"} <= {*program.longs} else None


def _scanned(container: Container, path: str) -> _Rows | None:
    """Return the rows by a scan that skips all other fields; None if it cannot follow them."""
    program = _program(container.schema_text)
    if program is None:
        return None
    scan = scan_records(program, container.payload, container.records, path)
    needed = (*_LONGS, "_FILE_SIZE", "_PARTITION", "_FILE_NAME")
    if not all(scan.is_set(name).all() for name in needed) or scan.is_set(f"_EXTRA_FILES[{_EXTRA}]").any():
        return None
    _require_version(scan.longs["_VERSION"], path)
    try:
        extra = [
            (row, name)
            for item in range(_EXTRA)
            for row, name in enumerate(scan.texts(f"_EXTRA_FILES[{item}]").to_pylist())
            if name is not None
        ]
        names = scan.texts("_FILE_NAME").to_pylist()
        external = scan.texts("_EXTERNAL_PATH").to_pylist() if scan.has("_EXTERNAL_PATH") else [None] * scan.rows
    except pa.ArrowInvalid as error:
        raise unreadable(f"The manifest has names that are not text: {error}", path) from error
    source = np.full(scan.rows, -1, np.int64)
    if scan.has("_FILE_SOURCE"):
        source = np.where(scan.is_set("_FILE_SOURCE"), scan.longs["_FILE_SOURCE"], -1)
    return _Rows(
        scan.longs["_KIND"],
        scan.binary("_PARTITION").to_pylist(),
        scan.longs["_BUCKET"],
        names,
        external,
        scan.longs["_FILE_SIZE"],
        source,
        extra,
    )


def _decoded(container: Container, path: str) -> _Rows:
    """Return the same rows from whole records."""
    records = list(_records(container, _MANIFEST_VERSION, path))
    files = [record["_FILE"] for record in records]

    def numbers(values: list[Any]) -> NDArray[np.int64]:
        return np.array([-1 if value is None else value for value in values], np.int64)

    return _Rows(
        numbers([record["_KIND"] for record in records]),
        [record["_PARTITION"] for record in records],
        numbers([record["_BUCKET"] for record in records]),
        [file["_FILE_NAME"] for file in files],
        [file.get("_EXTERNAL_PATH") for file in files],
        numbers([file["_FILE_SIZE"] for file in files]),
        numbers([file.get("_FILE_SOURCE") for file in files]),
        [(row, name) for row, file in enumerate(files) for name in file.get("_EXTRA_FILES") or ()],
    )


def _require_version(versions: NDArray[np.int64], path: str) -> None:
    strange = versions[versions != _MANIFEST_VERSION]
    if len(strange):
        raise unreadable(f"The manifest has entries of version {strange[0]}; known is {_MANIFEST_VERSION}", path)


def _entries(rows: _Rows, folders: Folders, path: str, rules: LocationRules) -> Entries:
    places, paths = [], []
    columns = zip(rows.partitions, rows.buckets.tolist(), rows.names, rows.external, strict=True)
    for partition, bucket, name, external in columns:
        # Extra files stand beside their data file.
        places.append(folders.of_bucket(partition, bucket, path) if external is None else parent(external))
        paths.append(f"{places[-1]}/{_plain(name, path)}" if external is None else external)
    of = np.array([*range(len(paths)), *(row for row, _ in rows.extra)], np.int64)
    paths += [f"{places[row]}/{_plain(name, path)}" for row, name in rows.extra]
    every = pa.array(paths, pa.large_string())
    sizes = np.concatenate([rows.sizes, np.zeros(len(rows.extra), np.int64)])
    signs = np.where(rows.kinds == 0, 1, -1)
    appended = (rows.source == _APPENDED) | (rows.source == -1)
    return Entries(every, hash_column(every, rules), signs[of], sizes, appended[of])
