"""Whose file is it. Belongs here: the locations that a table has and had. Does not belong: other tables
(`neighbors.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

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
"""Table properties that move files out of the table's location (Iceberg's TableProperties)."""

METADATA_PROPERTY = "write.metadata.path"

# Hadoop's local file system writes `.<name>.crc` beside every file.
_SIDECAR = re.compile(r"/\.([^/]+)\.crc\Z")


def own_locations(metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """The locations (normal form, none inside another) whose files a table may call its own.

    The root of a file system or of a bucket owns nothing: everything would be the table's.
    """
    return outermost(_trimmed(normalize(location, rules)) for location in spelled_locations(metadata))


def spelled_locations(metadata: TableMetadata) -> tuple[str, ...]:
    """The table's locations as its metadata spells them, also those that lie in another."""
    moved = (metadata.properties.get(key) for key in LOCATION_PROPERTIES)
    return tuple(dict.fromkeys((metadata.location, *(location for location in moved if location))))


def former_locations(stores: Stores, metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """Locations that the metadata log shows the table to have had. A metadata file stands below its table's location,
    so one file is read for each other folder in the log; one that is gone or unreadable shows nothing."""
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
    """Raise GarbageCollectionDisabled where the table says `gc.enabled=false`: none of its files may be deleted."""
    if not metadata.gc_enabled:
        raise GarbageCollectionDisabled(
            "The table says gc.enabled=false: other tables may own its files",
            table=table,
            path=metadata.metadata_location,
            untouched="all files that were not deleted before",
            hint="set gc.enabled=true if no other table shares its files, then rerun",
        )


def metadata_locations(metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """Where the table's writers put metadata files, manifest lists and manifests."""
    named = metadata.properties.get(METADATA_PROPERTY)
    roots = {normalize(f"{metadata.location.rstrip('/')}/metadata", rules)}
    if named:
        roots.add(_trimmed(normalize(named, rules)))
    return outermost(roots)


def subject(path: str) -> str:
    """The file that a path is about: for Hadoop's local checksum file `.<name>.crc`, the file beside it.

    The two live and go together: a checksum file that outlives its file makes Hadoop refuse another of that name.
    """
    return _SIDECAR.sub(r"/\1", path) if path.endswith(".crc") else path


def subject_array(paths: pa.Array) -> pa.Array:
    """`subject` of an Arrow array of strings."""
    if not pc.any(pc.ends_with(paths, ".crc")).as_py():
        return paths
    return pc.replace_substring_regex(paths, r"/\.([^/]+)\.crc\z", r"/\1")


def sidecar_array(paths: pa.Array) -> pa.Array:
    """Where Hadoop's local file system keeps the checksums of files."""
    return pc.replace_substring_regex(paths, r"/([^/]*)\z", r"/.\1.crc")


def outermost(roots: Iterable[str]) -> tuple[str, ...]:
    """Those of `roots` that lie in no other of them, file system and bucket roots left out."""
    usable = sorted({root for root in roots if not is_root(root)}, key=len)
    kept: list[str] = []
    for root in usable:
        if not any(is_under(root, other) for other in kept):
            kept.append(root)
    return tuple(kept)


def is_root(location: str) -> bool:
    """Whether a location is a whole file system or bucket."""
    return not location.partition("://")[2].partition("/")[2].strip("/")


def owned(
    path: str, roots: Sequence[str], rules: LocationRules, links: dict[tuple[str, str], bool] | None = None
) -> bool:
    """Whether a file is below one of `roots` and its path spells its way there plainly.

    A path with `.` or `..` in it, one that ends in a slash, one that leads through a symbolic link or one that engines
    read differently has no owner: a delete would hit another file than the text names. `links` remembers, for the
    length of one check, which folders are reached through a link: most files of a check share theirs.
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
