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

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.formats.paimon.documents import words
from artemis_lifecycle.formats.paimon.folders import Folders
from artemis_lifecycle.metadata.avro.container import Container, open_container, record_fields
from artemis_lifecycle.metadata.avro.scan import read_records
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
        records = list(_records(container, _MANIFEST_VERSION, path))
        kinds = [record["_KIND"] for record in records]
        if set(kinds) - {0, 1}:
            raise unreadable("The manifest has entries that are neither added nor deleted", path)
        counts = kinds.count(0), kinds.count(1)
        if counts != (listed.added, listed.deleted):
            raise unreadable(
                f"The manifest has {counts[0]} added and {counts[1]} deleted files, and its list says {listed.added} "
                f"and {listed.deleted}",
                path,
            )
        try:
            return _entries(records, folders, path, rules)
        except (KeyError, TypeError) as error:
            raise _lacking(error, path) from error


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
        raise _lacking(error, path) from error


def _lacking(error: Exception, path: str) -> UnreadableMetadata:
    return unreadable(f"The file's records lack {error}", path)


def _plain(name: object, path: str) -> str:
    """Return a file's name; anything that could lead to another folder is no name."""
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise unreadable(f"{name!r:.80} is not a file's name", path)
    return name


def _entries(records: Sequence[Mapping[str, Any]], folders: Folders, path: str, rules: LocationRules) -> Entries:
    paths, extra, of, appended = [], [], [], []
    for row, record in enumerate(records):
        file = record["_FILE"]
        external, name = file.get("_EXTERNAL_PATH"), file["_FILE_NAME"]
        # Extra files stand beside their data file.
        if external is None:
            place = folders.of_bucket(record["_PARTITION"], record["_BUCKET"], path)
            paths.append(f"{place}/{_plain(name, path)}")
        else:
            place = parent(external)
            paths.append(external)
        appended.append(file.get("_FILE_SOURCE") in (_APPENDED, None))
        beside = file.get("_EXTRA_FILES") or ()
        extra += [f"{place}/{_plain(each, path)}" for each in beside]
        of += [row] * len(beside)
    every = pa.array([*paths, *extra], pa.large_string())
    rows = np.array([*range(len(paths)), *of], np.int64)
    sizes = np.array([record["_FILE"]["_FILE_SIZE"] for record in records] + [0] * len(extra), np.int64)
    signs = np.array([1 if record["_KIND"] == 0 else -1 for record in records], np.int64)
    return Entries(every, hash_column(every, rules), signs[rows], sizes, np.array(appended, np.bool_)[rows])
