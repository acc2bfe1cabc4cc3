"""What the files of each format version look like: which versions are known, which encodings their manifests have, and
what a version that is still a draft may add. Nothing else compares a version with a number to learn that.

Format version 4 is read as Iceberg 1.12 writes it: manifests in Parquet beside older ones in Avro, and lists in Avro. A
location without a scheme is relative to the table's (spec, "Path Resolution"), which 1.12 does not write. The
specification goes on: tables without a location, root manifests, deletion vectors of manifests. A file that has any of
that is refused, because a reader that steps over it would miss files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.errors import NewerFormat

NEWEST = 4
DRAFT: Final = 4
"""The first version whose files may have fields that change what a table reaches, and paths that are relative."""

ENTRY_FIELDS = frozenset({0, 1, 2, 3, 4})
FILE_FIELDS = frozenset(
    {100, 101, 102, 103, 104, 108, 109, 110, 125, 128, 131, 132, 134, 135, 137, 140, 142, 143, 144, 145}
)
LIST_FIELDS = frozenset({*range(500, 508), *range(512, 518), 519, 520})
"""Field ids in files of version 4, as Iceberg's V4Metadata has them."""

_KEYS = frozenset(
    """
    format-version table-uuid location last-sequence-number last-updated-ms last-column-id schema schemas
    current-schema-id partition-spec partition-specs default-spec-id last-partition-id default-sort-order-id sort-orders
    properties current-snapshot-id refs snapshots statistics partition-statistics snapshot-log metadata-log next-row-id
    encryption-keys snapshot-id parent-snapshot-id sequence-number timestamp-ms summary manifest-list manifests
    schema-id first-row-id added-rows key-id type min-snapshots-to-keep max-snapshot-age-ms max-ref-age-ms
    identifier-field-ids fields id name required doc initial-default write-default element-id element element-required
    key value-id value value-required spec-id source-id source-ids field-id transform order-id direction null-order
    statistics-path file-size-in-bytes file-footer-size-in-bytes blob-metadata key-metadata metadata-file
    encrypted-key-metadata encrypted-by-id
    """.split()  # noqa: SIM905
)
"""Fields of a metadata file of version 4, and of what is in it, as Iceberg 1.12 writes them."""
_FREE = frozenset({"properties", "summary", "initial-default", "write-default"})
"""Fields whose own content is anybody's."""

_FILE_SYSTEMS = ("file:", "hdfs:", "viewfs:")
"""Schemes of stores in which engines read a path without a scheme."""

_SCHEME = "^[A-Za-z][A-Za-z0-9+.-]*:"
_HAS_SCHEME = re.compile(_SCHEME)


def is_draft(header: Mapping[str, str], otherwise: str = "") -> bool:
    """Return whether a file whose header is this may have what only a draft has. `otherwise` counts where the header
    names no version: then a file in Avro is an old one."""
    version = header.get("format-version", otherwise)
    return not (version.isdecimal() and int(version) < DRAFT) if version else False


def require_known(fields: Iterable[Mapping[str, Any]], known: frozenset[int], path: str) -> None:
    """Raise NewerFormat for a field (of an Avro schema) that is not among the `known` ids."""
    for field in fields:
        if field.get("field-id") not in known:
            raise drafted(f"The file has the field {field.get('name')!r:.80}, which this release does not know", path)


def require_known_keys(node: Any, path: str) -> None:
    """Raise NewerFormat for a field of a metadata file of version 4 that this release does not know, at any
    depth: it may name files."""
    if isinstance(node, list):
        for each in node:
            require_known_keys(each, path)
    elif isinstance(node, dict):
        for key in node.keys() - _KEYS:
            raise drafted(f"The metadata file has the field {key!r:.80}, which this release does not know", path)
        for key, value in node.items():
            if key not in _FREE and isinstance(value, list | dict):
                require_known_keys(list(value.values()) if key == "refs" and isinstance(value, dict) else value, path)


def resolved(location: str, base: str | None, path: str) -> str:
    """Return the `location` that the file at `path` has, against the table's (`base`) if it is relative. Raises
    NewerFormat for a relative one without `base`, or with a name that some reader would resolve."""
    if _HAS_SCHEME.match(location):
        return location
    if base is None or not _HAS_SCHEME.match(base):
        raise drafted(f"The path {location!r:.200} has no scheme, and nothing says what it is relative to", path)
    if location.startswith("/") and base.startswith(_FILE_SYSTEMS):
        # So Iceberg 1.12 reads it, and tables that were upgraded have it. By the specification it would be below the
        # table; but no writer that leaves the location out leaves its slash.
        return location
    if not location or location.startswith("/") or {".", ".."} & set(location.split("/")):
        raise drafted(f"The path {location!r:.200} is not one that a table may have", path)
    return f"{base}/{location}"


LOCATIONS: Final = {
    "snapshots": "manifest-list",
    "statistics": "statistics-path",
    "partition-statistics": "statistics-path",
    "metadata-log": "metadata-file",
}
"""Lists of a metadata file, and the field of their items that is a location."""


def resolve_node(node: Mapping[str, Any], path: str) -> None:
    """Resolve, in place, the locations of a metadata file as JSON. Raises as `resolved` does."""
    if node.get("format-version") not in range(DRAFT, NEWEST + 1):
        return
    for key, name in LOCATIONS.items():
        found = node.get(key)
        for each in found if isinstance(found, list) else ():
            if isinstance(each, dict) and isinstance(each.get(name), str):
                each[name] = resolved(each[name], node.get("location"), path)


def all_resolved(locations: pa.Array, base: str | None, path: str) -> pa.Array:
    """Return what `resolved` does for each location that is not null; the array itself if none is relative."""
    if not len(locations) or pc.all(pc.match_substring_regex(locations, _SCHEME)).as_py() is not False:
        return locations
    found = (each if each is None else resolved(each, base, path) for each in locations.to_pylist())
    return pa.array(found, locations.type)


def drafted(what: str, path: str) -> NewerFormat:
    """The error for what a later draft of a known version has."""
    return NewerFormat(
        f"{what}: it was written by a later draft of the table's format",
        path=path,
        untouched="the table and all its files",
        hint="use a release of artemis-lifecycle that reads it, or exclude the table from lifecycle.yaml",
    )
