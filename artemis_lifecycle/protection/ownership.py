"""Which table owns a file. Belongs here: the current and former locations of a table. Does not belong here: other
tables (`neighbors.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.errors import GarbageCollectionDisabled, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.storage.local.paths import through_link
from artemis_lifecycle.storage.location import LocationRules, ambiguity, is_under, normalize, parent
from artemis_lifecycle.storage.stores import Stores

LOCATION_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Table properties that place files outside the table's location (Iceberg's TableProperties)."""

METADATA_PROPERTY = "write.metadata.path"

# Hadoop's local file system writes `.<name>.crc` next to every file.
_SIDECAR = re.compile(r"/\.([^/]+)\.crc\Z")


def own_locations(metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """Return the locations (normal form, none inside another) whose files belong to a table.

    The root of a file system or of a bucket owns nothing; otherwise everything would belong to the table.
    """
    return normal_locations(spelled_locations(metadata), rules)


def normal_locations(spelled: Iterable[str], rules: LocationRules) -> tuple[str, ...]:
    """Return `own_locations` of a table with these locations."""
    return outermost(_trimmed(normalize(location, rules)) for location in spelled)


def spelled_locations(metadata: TableMetadata) -> tuple[str, ...]:
    """Return the table's locations in its metadata's spelling, including nested ones."""
    moved = (metadata.properties.get(key) for key in LOCATION_PROPERTIES)
    return tuple(dict.fromkeys((metadata.location, *(location for location in moved if location))))


def former_locations(stores: Stores, metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """Return former locations from the metadata log. A metadata file is below its table's location, so one file is read
    for each other folder in the log. Missing or unreadable files are skipped."""
    current = metadata_locations(metadata, rules)
    newest: dict[str, str] = {}
    for entry in metadata.metadata_log:
        folder = parent(normalize(entry.metadata_file, rules))
        if folder not in current:
            newest[folder] = entry.metadata_file
    found: list[str] = []
    for location in newest.values():
        try:
            before = read_table_metadata(stores, location)
        except (UnreadableMetadata, StorageError):
            continue
        if before.table_uuid == metadata.table_uuid:
            found += own_locations(before, rules)
    return tuple(dict.fromkeys(found))


def require_collectable(metadata: TableMetadata, table: str) -> None:
    """Raise GarbageCollectionDisabled if the table has `gc.enabled=false`: none of its files may be deleted."""
    if not metadata.gc_enabled:
        raise GarbageCollectionDisabled(
            "The table has gc.enabled=false: other tables may own its files",
            table=table,
            path=metadata.metadata_location,
            untouched="all files that were not deleted before",
            hint="set gc.enabled=true if no other table shares its files, then rerun",
        )


def metadata_locations(metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """Return where the table's writers put metadata files, manifest lists and manifests."""
    named = metadata.properties.get(METADATA_PROPERTY)
    roots = {normalize(f"{metadata.location.rstrip('/')}/metadata", rules)}
    if named:
        roots.add(_trimmed(normalize(named, rules)))
    return outermost(roots)


def subject(path: str) -> str:
    """Return the file to which a path belongs: for Hadoop's local checksum file `.<name>.crc`, the file next to it.

    Both must be deleted together: if a checksum file outlives its file, Hadoop refuses another file with that name.
    """
    return _SIDECAR.sub(r"/\1", path) if path.endswith(".crc") else path


def subject_array(paths: pa.Array) -> pa.Array:
    """`subject` for an Arrow array of strings."""
    if not pc.any(pc.ends_with(paths, ".crc")).as_py():
        return paths
    return pc.replace_substring_regex(paths, r"/\.([^/]+)\.crc\z", r"/\1")


def sidecars(paths: pa.Array) -> NDArray[np.bool_]:
    """Return which of these paths are checksum files. One never stands for its file, which may be lost."""
    found = pc.ends_with(paths, ".crc")
    if pc.any(found).as_py():
        found = pc.match_substring_regex(paths, r"/\.[^/]+\.crc\z")
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def sidecar_array(paths: pa.Array) -> pa.Array:
    """Return where Hadoop's local file system stores the checksums of files."""
    return pc.replace_substring_regex(paths, r"/([^/]*)\z", r"/.\1.crc")


def outermost(roots: Iterable[str]) -> tuple[str, ...]:
    """Return those of `roots` that are inside no other one, without file system and bucket roots."""
    usable = sorted({root for root in roots if not is_root(root)}, key=len)
    kept: list[str] = []
    for root in usable:
        if not any(is_under(root, other) for other in kept):
            kept.append(root)
    return tuple(kept)


def is_root(location: str) -> bool:
    """Return True if a location is a whole file system or bucket."""
    return not location.partition("://")[2].partition("/")[2].strip("/")


def owned(
    path: str, roots: Sequence[str], rules: LocationRules, links: dict[tuple[str, str], bool] | None = None
) -> bool:
    """Return True if a file is below one of `roots` and its path is unambiguous.

    A path belongs to no table if it contains `.` or `..`, ends in a slash, leads through a symbolic link, or is read
    differently by different engines: a delete might hit another file than the text says. `links` caches, for one check,
    which folders are reached through a link, because most files share theirs.
    """
    segments = path.split("/")
    if segments[-1] == "" or any(segment in (".", "..") for segment in segments) or ambiguity(path, rules) is not None:
        return False
    known: dict[tuple[str, str], bool] = {} if links is None else links
    folder = path.rpartition("/")[0]
    for root in roots:
        if not is_under(path, root, rules):
            continue
        if (folder, root) not in known:
            known[folder, root] = through_link(path, root)
        if not known[folder, root]:
            return True
    return False


def _trimmed(location: str) -> str:
    return location.rstrip("/") if not is_root(location) else location
