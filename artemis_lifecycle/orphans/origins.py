"""What the name of an unreferenced file suggests about its origin. Pure guesses from the names that Iceberg's writers
use; nothing is deleted or kept because of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.metadata import types
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.protection.ownership import subject
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.instants import if_in_calendar, of_microseconds

ORPHAN = "orphan"

ORPHANS = (
    "path string, kind string, size_in_bytes bigint, last_modified timestamp, tag bigint, reason string, origin string"
)

_REASON = "listed, and no snapshot, plan or writer has it"

CRASHED_WRITER = "crashed_writer"
"""A file of a write that was never committed, or of a task whose write was committed without it."""

LOST_COMMIT = "lost_commit"
"""Metadata of a commit attempt that lost its compare-and-swap; the next commit has different metadata."""

UNKNOWN = "unknown"
"""The name shows no origin: copied by hand, left by another tool, or dropped from the metadata log."""

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_METADATA = re.compile(rf"(?:v(\d+)|(\d+)-{_UUID})(?:\.gz)?\.metadata\.json(?:\.gz)?", re.IGNORECASE)
_LIST = re.compile(rf"snap-(\d+)-\d+-({_UUID})\.avro", re.IGNORECASE)
_MANIFEST = re.compile(rf"({_UUID})-m\d+\.(?:avro|parquet)", re.IGNORECASE)
_WRITTEN = re.compile(_UUID, re.IGNORECASE)


@dataclass(frozen=True)
class Known:
    """The table's history as needed to guess origins: ids of commits in its manifest lists, the oldest version in the
    metadata log, and when the oldest snapshot was committed."""

    commits: frozenset[str]
    oldest_version: int | None
    oldest_snapshot_at: datetime | None


def known(metadata: TableMetadata) -> Known:
    """Return this history from `metadata`."""
    files = [metadata.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    versions = [version for path in files if (version := version_of(path)) is not None]
    lists = [snapshot.manifest_list for snapshot in metadata.snapshots if snapshot.manifest_list is not None]
    commits = {match[2].lower() for path in lists if (match := _LIST.fullmatch(path.rpartition("/")[2]))}
    oldest = min((snapshot.timestamp_ms for snapshot in metadata.snapshots), default=None)
    return Known(frozenset(commits), min(versions, default=None), if_in_calendar(oldest))


def version_of(path: str) -> int | None:
    """Return the version in a metadata file's name (`00012-<uuid>.metadata.json`, `v12.metadata.json`)."""
    match = _METADATA.fullmatch(path.rpartition("/")[2])
    return int(match[1] or match[2]) if match else None


def origin_of(path: str, kind: str, last_modified: datetime | None, history: Known) -> str:
    """Return the likely origin of an orphan, from its name, its time and the table's history."""
    name = path.rpartition("/")[2]
    if kind == types.METADATA:
        version = version_of(path)
        if version is None or history.oldest_version is None:
            return UNKNOWN
        # The log has another file of this version, or none yet: this one never became current.
        return LOST_COMMIT if version >= history.oldest_version else UNKNOWN
    if kind in (types.MANIFEST, types.MANIFEST_LIST):
        match = _LIST.fullmatch(name)
        commit = match[2] if match else (found[1] if (found := _MANIFEST.fullmatch(name)) else None)
        if commit is None:
            return UNKNOWN
        # A retried commit keeps its id: lists and manifests of its earlier attempts remain. An id that is in no list
        # was never committed if the file is younger than the oldest snapshot; otherwise it may belong to an expired
        # one.
        since = history.oldest_snapshot_at
        younger = last_modified is not None and since is not None and last_modified >= since
        return LOST_COMMIT if commit.lower() in history.commits or younger else UNKNOWN
    if kind in types.CONTENT_KINDS:
        return CRASHED_WRITER if _WRITTEN.search(name) else UNKNOWN
    return UNKNOWN


def origins_of(paths: pa.Array, found: pa.Array, last_modified: pa.Array, history: Known) -> pa.Array:
    """`origin_of` for the file to which each path of an Arrow array belongs. `found` are their kinds. `last_modified`
    are instants in microseconds, null if the listing does not have them."""
    content = pc.is_in(found, pa.array(sorted(types.CONTENT_KINDS)))
    origins = pc.if_else(pc.match_substring_regex(paths, rf"(?i){_UUID}[^/]*\z"), CRASHED_WRITER, UNKNOWN)
    if pc.all(content).as_py() is not False:
        return origins
    rows = zip(*(column.to_pylist() for column in (content, origins, paths, found, last_modified)), strict=True)
    return pa.array(
        [
            origin
            if is_content
            else origin_of(subject(path), kind, None if since is None else of_microseconds(since), history)
            for is_content, origin, path, kind, since in rows
        ],
        pa.string(),
    )


class Origins:
    """Guesses the origins of orphans; without a history, all have the same `origin`."""

    def __init__(self, history: Known | None, origin: str = "", reason: str = _REASON) -> None:
        self.history = history
        self.origin = origin
        self.reason = reason

    def __call__(self, judged: pa.RecordBatch) -> pa.RecordBatch:
        """Return the orphans among checked files, as `ORPHANS`."""
        batch = judged.filter(pc.equal(judged.column("verdict"), ORPHAN))
        path, kind, modified = (batch.column(name) for name in ("path", "kind", "last_modified"))
        count = batch.num_rows
        if self.history is None:
            origins = pa.repeat(self.origin, count)
        else:
            origins = origins_of(path, kind, modified.cast(pa.int64()), self.history)
        size, tag, reason = batch.column("size_in_bytes"), batch.column("tag"), pa.repeat(self.reason, count)
        columns = [path, kind, size, modified, tag, reason, origins]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(ORPHANS))
