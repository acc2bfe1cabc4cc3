"""The input of the rules: a table's history, and the tags and holds on it. Times are epoch milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from artemis_lifecycle.metadata.types import LogEntry, Ref, SnapshotHistory, TableMetadata


class SnapshotView(NamedTuple):
    """The three things about a snapshot that a rule may ask for. A tuple, because a table may have millions."""

    snapshot_id: int
    parent_id: int | None
    timestamp_ms: int


@dataclass(frozen=True)
class HistoryView:
    """A table's history: snapshots in the order of the metadata file, which is the order of their commits."""

    snapshots: Sequence[SnapshotView]
    refs: Mapping[str, Ref]
    log: Sequence[LogEntry]
    current_snapshot_id: int | None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HoldView:
    """A promise to keep snapshots: a legal hold, a reader's lease, a consumer's position.

    No `snapshot_ids` means the whole table. A consumer's position keeps its snapshot and every later one, for the
    consumer has yet to read them. It binds up to and including `until_ms`; None: until it is released.
    """

    hold_id: str
    owner: str
    reason: str
    snapshot_ids: tuple[int, ...] = ()
    until_ms: int | None = None
    kind: Literal["legal", "lease", "consumer"] = "legal"


@dataclass(frozen=True)
class TagView:
    """A tag as it was made: its life counts from `created_at_ms`; `retain_ms` None is forever.

    It speaks for the table's ref of that name only while that ref is a tag on the same snapshot and, where
    `max_ref_age_ms` says what was written on it, still says so: a tag moved or altered since then has its own terms.
    """

    name: str
    snapshot_id: int
    created_at_ms: int
    retain_ms: int | None
    max_ref_age_ms: int | None = None


def view_of(metadata: TableMetadata | SnapshotHistory) -> HistoryView:
    """The history in `metadata`."""
    return HistoryView(
        snapshots=[SnapshotView(s.snapshot_id, s.parent_snapshot_id, s.timestamp_ms) for s in metadata.snapshots],
        refs=metadata.refs,
        log=metadata.snapshot_log if isinstance(metadata, TableMetadata) else metadata.log,
        current_snapshot_id=metadata.current_snapshot_id,
        properties=metadata.properties,
    )
