"""Which table owns a file: the current and former locations of a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.errors import BadInput, GarbageCollectionDisabled, Refused, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.files import ReachedFiles
from artemis_lifecycle.storage.frames import map_parts
from artemis_lifecycle.storage.local.store import through_link
from artemis_lifecycle.storage.location import (
    ByFolder,
    LocationRules,
    ambiguity,
    among,
    distinct,
    hash_column,
    is_under,
    normalize,
    overlap,
    parent,
    split,
)
from artemis_lifecycle.storage.stores import Stores

# --- prefixes ---------------------------------------------------------------------------------------------------------
# Where a writer's declared prefix is.

_HASHED = "write.object-storage.enabled"


def prefix_locations(prefix: str, metadata: TableMetadata, rules: LocationRules) -> tuple[str, ...]:
    """Return the folders (normal form) that a prefix protects: the prefix, or, if it is relative, that folder in each
    location of the table. The result is empty if the prefix does not say where the table's files go; then the whole
    table must be protected.

    That is the case for a folder that touches no location of the table (a typo, a former location), for one with `.` or
    `..`, and where Iceberg puts a hash between the location and the rest of a path.
    """
    segments = prefix.split("/")
    if not prefix.strip("/") or "." in segments or ".." in segments or _is_hashed(metadata):
        return ()
    own = [normalize(location, rules) for location in spelled_locations(metadata)]
    if split(prefix).scheme or prefix.startswith("/"):
        place = normalize(prefix.rstrip("/"), rules)
        return (place,) if any(overlap(place, location, rules) for location in own) else ()
    return tuple(dict.fromkeys(normalize(f"{location.rstrip('/')}/{prefix.strip('/')}", rules) for location in own))


def require_prefix(prefix: str, metadata: TableMetadata, table: str, rules: LocationRules) -> None:
    """Raise BadInput with the table's locations for a prefix that is in none of them, because it is probably a typo."""
    if prefix_locations(prefix, metadata, rules) or (prefix.strip("/") and _is_hashed(metadata)):
        return
    raise BadInput(
        f"The prefix {prefix!r} is in no location of the table ({', '.join(spelled_locations(metadata))})",
        table=table,
        untouched="everything: no heartbeat was begun",
        hint="use a folder in one of them, or one relative to them; or omit the prefix, which protects the whole table",
    )


def _is_hashed(metadata: TableMetadata) -> bool:
    return metadata.properties.get(_HASHED, "").lower() == "true"


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


# --- twins ------------------------------------------------------------------------------------------------------------
# Twins: files with the same path under two schemes or authorities.
#
# The text after a file's authority is appended to each scheme and authority of the known files, and looked up by
# hash. Two locations with one hash count as one, which can only keep a file.

_SPELLINGS = 1_000
"""Paths that begin in more ways than this are not compared: each way needs a pass over them."""

_PREFIX = re.compile(r"\A[A-Za-z][A-Za-z0-9+.\-]*://[^/]*")
"""Scheme and authority of a location."""


@dataclass(frozen=True)
class Known:
    """Known files as hashes: `has` says which location hashes are among them; `prefixes` are the schemes and
    authorities of their locations."""

    has: Callable[[NDArray[np.uint64]], NDArray[np.bool_]]
    prefixes: frozenset[str]

    @classmethod
    def reached_by(cls, files: ReachedFiles, rules: LocationRules) -> Known:
        """Everything that any snapshot reaches."""
        prefixes = _Prefixes(rules)

        def add(paths: pa.Array) -> None:
            prefixes.add_paths(paths)

        files.visit(add)
        return cls(files.reaches, frozenset(prefixes.found))

    @classmethod
    def sealed_in(cls, folder: str, stores: Stores, rules: LocationRules) -> Known:
        """The paths of a sealed frame."""

        def read(batches: Iterator[pa.RecordBatch]) -> tuple[NDArray[np.uint64], _Prefixes]:
            prefixes, hashes = _Prefixes(rules), [np.empty(0, np.uint64)]
            for batch in batches:
                paths = batch.column("path")
                prefixes.add_paths(paths)
                hashes.append(hash_column(paths, rules))
            return np.concatenate(hashes), prefixes

        parts = list(map_parts(folder, stores, read, ["path"]))
        known = distinct(np.concatenate([np.empty(0, np.uint64), *(hashes for hashes, _ in parts)]))
        found = frozenset(prefix for _, prefixes in parts for prefix in prefixes.found)
        return cls(lambda hashes: among(known, hashes), found)

    @classmethod
    def at(cls, locations: Iterable[str], rules: LocationRules) -> Known:
        """Single locations."""
        named = list(locations)
        known = distinct(np.asarray(hash_column(pa.array(named, pa.string()), rules)))
        return cls(lambda hashes: among(known, hashes), frozenset(split_location(each)[0] for each in named))


def twins(paths: pa.Array, known: Sequence[Known], rules: LocationRules) -> Iterator[tuple[int, str]]:
    """Yield the rows of `paths` that have a known twin, with its location; one result for each twin."""
    prefixes, keys = (pa.array(each, pa.string()) for each in split_paths(paths, rules))
    for each in known:
        for prefix in sorted(each.prefixes):
            rows = np.flatnonzero(np.asarray(pc.not_equal(prefixes, prefix)))
            if not len(rows):
                continue  # The usual case: each question reads the whole index.
            locations = pc.binary_join_element_wise(pa.scalar(prefix), keys.take(pa.array(rows)), "")
            reached = np.flatnonzero(each.has(hash_column(locations, rules)))
            yield from ((int(rows[row]), locations[row].as_py()) for row in reached.tolist())


def split_location(location: str) -> tuple[str, str]:
    """Return (scheme and authority, the rest) of a location."""
    match = _PREFIX.match(location)
    prefix = match[0] if match else ""
    return prefix, location[len(prefix) :]


def split_paths(paths: pa.Array, rules: LocationRules) -> tuple[list[str], list[str]]:
    """`split_location` for the location to which each path of an Arrow array belongs: the first parts, and the
    second."""
    files, texts = ByFolder.of(paths), paths.to_pylist()
    prefixes: list[str] = []
    keys: list[str] = []
    for low, high in pairwise([*files.starts.tolist(), len(texts)]):
        folder = files.folder(low)
        if folder is None:
            prefix, key = split_location(normalize(texts[low], rules))
            prefixes.append(prefix)
            keys.append(key)
            continue
        prefix, key = split_location(normalize(f"{folder}/x", rules)[:-1])
        behind = len(folder) + 1
        prefixes += [prefix] * (high - low)
        keys += [key + text[behind:] for text in texts[low:high]]
    for row in pc.indices_nonzero(pc.ends_with(paths, ".crc")).to_pylist():
        prefixes[row], keys[row] = split_location(normalize(subject(texts[row]), rules))
    return prefixes, keys


class _Prefixes:
    """Collects the schemes and authorities (normal form) of many paths, by comparing their beginnings as spelled.

    A path without a scheme begins with its slash; one with `//` has its authority up to the next slash. For `file:/x`,
    the byte after the slash shows that there is no authority.
    """

    def __init__(self, rules: LocationRules) -> None:
        self.rules = rules
        self.found: set[str] = set()
        self._spelled: list[bytes] = []
        self._steps = 0

    def add_paths(self, paths: pa.Array) -> None:
        """Add paths, an Arrow array of strings without nulls."""
        left = paths.cast(pa.large_binary())
        for spelled in self._spelled:
            left = _not_beginning(left, spelled)
        while len(left):
            self._steps += 1
            if self._steps > _SPELLINGS:
                raise Refused(
                    f"Paths begin in more than {_SPELLINGS} ways: whether they refer to one store cannot be determined",
                    path=split_location(next(iter(self.found), ""))[0],
                    untouched="all files",
                    hint="check which schemes and authorities the table's paths have, and set equal ones in "
                    "orphans.equal_schemes and equal_authorities",
                )
            path = left[0].as_py().decode("utf-8", "surrogatepass")
            self.found.add(split_location(normalize(path, self.rules))[0])
            rest = split(path).path
            left = left[1:]
            if rest.startswith("/"):
                spelled = path[: len(path) - len(rest)].encode("utf-8", "surrogatepass")
                self._spelled.append(spelled)
                left = _not_beginning(left, spelled)


def _not_beginning(paths: pa.Array, spelled: bytes) -> pa.Array:
    """Return those of `paths` that do not begin with `spelled` as their scheme and authority."""
    wanted = spelled + b"/"
    begins = pc.starts_with(paths, pattern=wanted)
    if spelled.endswith(b":"):
        named = pc.and_not(
            pc.greater(pc.binary_length(paths), len(wanted)), pc.starts_with(paths, pattern=wanted + b"/")
        )
        begins = pc.and_(begins, named)
    return paths.filter(pc.invert(begins))
