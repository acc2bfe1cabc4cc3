"""A table's refs with their terms and authors, and records of tags and holds in the form that the retention rules use.
Belongs here: joining the metadata with the records in Postgres."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Literal

from artemis_lifecycle.config.calendar_units import UNITS, Every
from artemis_lifecycle.config.durations import format_duration
from artemis_lifecycle.errors import NoSuchSnapshot
from artemis_lifecycle.metadata.types import FOREVER_MS, MAIN_BRANCH, Ref, TableMetadata
from artemis_lifecycle.operations.cold_tier import ThawRecord
from artemis_lifecycle.operations.holds import NOT_MADE, REPLACED, Hold, TagRecord
from artemis_lifecycle.retention.rules import HoldView, RetentionSettings, TagView, newest_of_each, ref_ends, view_of
from artemis_lifecycle.retention.views import HistoryView, WasMain
from artemis_lifecycle.storage.instants import if_in_calendar, milliseconds
from artemis_lifecycle.tabular import Shown, frame_of

if TYPE_CHECKING:
    import pandas as pd

_MS = timedelta(milliseconds=1)
_MAX_REF_AGE = "history.expire.max-ref-age-ms"


@dataclass(frozen=True)
class TableRef:
    """A branch or tag, and what is known about it. `who`, `created_at` and `why` are None if no record matches: it was
    created, moved or changed by other means. `retention` says how long it is kept and from when that counts. `ends_at`
    is its last instant; None means forever. `keeps` says which ancestors a branch keeps."""

    name: str
    type: Literal["branch", "tag"]
    snapshot_id: int
    committed_at: datetime | None
    who: str | None
    created_at: datetime | None
    why: str | None
    retention: str
    ends_at: datetime | None
    keeps: str | None = None


@dataclass(frozen=True)
class TableRefs(Shown):
    """A table's refs by name, pinned to one metadata file; `removed` are records of tags that no longer exist."""

    table: str
    metadata_location: str
    refs: tuple[TableRef, ...]
    removed: tuple[TagRecord, ...] = ()

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per ref.

        Columns: name, type object; snapshot_id int64; committed_at, created_at, ends_at datetime64[ms, UTC] (NaT if
        unknown; an ends_at of NaT means forever); who, why, retention, keeps object (None if unknown).
        """
        return frame_of(TableRef, self.refs)


def table_refs(
    table: str,
    metadata: TableMetadata,
    records: Sequence[TagRecord],
    settings: RetentionSettings,
    now_ms: int,
    *,
    with_removed: bool = False,
) -> TableRefs:
    """Return the refs of `metadata`, main first. `records` are all records of this table, oldest first."""
    ends = ref_ends(view_of(metadata), settings, now_ms, tags=tag_views(records))
    by_name: dict[str, list[TagRecord]] = {}
    for record in records:
        by_name.setdefault(record.name, []).append(record)
    found = []
    for name in sorted(metadata.refs, key=lambda name: (name != MAIN_BRANCH, name)):
        ref = metadata.refs[name]
        snapshot = metadata.snapshot(ref.snapshot_id)
        made = record_of(ref, by_name.get(name, ()))
        found.append(
            TableRef(
                name=name,
                type=ref.type,
                snapshot_id=ref.snapshot_id,
                committed_at=None if snapshot is None else if_in_calendar(snapshot.timestamp_ms),
                who=None if made is None else made.who,
                created_at=None if made is None else made.created_at,
                why=None if made is None else made.why or None,
                retention=_retention(ref, made, metadata.properties.get(_MAX_REF_AGE)),
                ends_at=if_in_calendar(ends[name]),
                keeps=_keeps(ref),
            )
        )
    removed = tuple(record for record in records if record.removed_at is not None) if with_removed else ()
    return TableRefs(table, metadata.metadata_location, tuple(found), removed)


def record_of(ref: Ref, records: Iterable[TagRecord]) -> TagRecord | None:
    """Return the record that matches `ref`: the newest under its name, if the ref has not been changed since."""
    if ref.is_branch:
        return None
    found = None
    for record in records:
        # The replacement of a record may never have been committed: then the older record is still valid.
        ended = record.removed_at is not None and record.removed_why not in (REPLACED, NOT_MADE)
        as_made = (record.snapshot_id, record.max_ref_age_ms) == (ref.snapshot_id, ref.max_ref_age_ms)
        if record.name == ref.name and as_made and not ended and record.created_at is not None:
            found = record
    return found


def tag_views(records: Iterable[TagRecord]) -> tuple[TagView, ...]:
    """Return the active records in the rules' form."""
    return tuple(
        TagView(
            name=record.name,
            snapshot_id=record.snapshot_id,
            created_at_ms=milliseconds(record.created_at),
            retain_ms=None if record.retain is None else record.retain // _MS,
            max_ref_age_ms=record.max_ref_age_ms,
        )
        for record in records
        if record.removed_at is None and record.created_at is not None
    )


def hold_views(holds: Iterable[Hold], archived: frozenset[int] = frozenset()) -> tuple[HoldView, ...]:
    """Return holds in the rules' form. `archived` are the table's snapshots in the cold tier."""
    return tuple(
        HoldView(
            hold_id=hold.hold_id,
            owner=hold.owner,
            reason=hold.reason,
            snapshot_ids=hold.snapshot_ids,
            until_ms=None if hold.until is None else milliseconds(hold.until),
            kind=hold.kind,
            archived=archived.intersection(hold.snapshot_ids),
        )
        for hold in holds
    )


def thaw_views(thaws: Iterable[ThawRecord]) -> tuple[HoldView, ...]:
    """Return active thaws as holds: their file lists must not change while a person waits for them."""
    return tuple(
        HoldView(thaw.thaw_id, thaw.requester, f"a thaw for case {thaw.case_id}", thaw.snapshot_ids) for thaw in thaws
    )


def to_archive(
    plan_snapshots: Sequence[int], history: HistoryView, was_main: WasMain, archive: Literal["every"] | Every
) -> tuple[int, ...]:
    """Return which of a plan's snapshots the policy archives; `history` is that of the plan's base."""
    if archive == "every":
        return tuple(plan_snapshots)
    wanted = newest_of_each(history, UNITS[archive], was_main)
    return tuple(snapshot_id for snapshot_id in plan_snapshots if snapshot_id in wanted)


def max_ref_age_ms(retain: timedelta | None, created_at: datetime, committed_ms: int) -> int:
    """Return the age to write on a tag so that Iceberg, which counts from the snapshot's commit, keeps it for `retain`
    from `created_at`; None means forever."""
    if retain is None:
        return FOREVER_MS
    return min(max(milliseconds(created_at) - committed_ms + retain // _MS, 1), FOREVER_MS)


def _retention(ref: Ref, record: TagRecord | None, by_property: str | None) -> str:
    if ref.name == MAIN_BRANCH or (ref.max_ref_age_ms is not None and ref.max_ref_age_ms >= FOREVER_MS):
        return "forever"
    if record is not None and record.retain is not None:
        return f"{format_duration(record.retain)} from its creation"
    if ref.max_ref_age_ms is not None:
        return f"{_duration(ref.max_ref_age_ms)} from its snapshot's commit"
    if by_property is None or int(by_property) >= FOREVER_MS:
        return "forever (nothing says otherwise)"
    return f"{_duration(int(by_property))} from its snapshot's commit (table property)"


def _keeps(ref: Ref) -> str | None:
    parts = []
    if ref.min_snapshots_to_keep is not None:
        parts.append(f"its newest {ref.min_snapshots_to_keep}")
    if ref.max_snapshot_age_ms is not None:
        parts.append(f"what is younger than {_duration(ref.max_snapshot_age_ms)}")
    return " and ".join(parts) or ("by the table's rule" if ref.is_branch else None)


def _duration(age_ms: int) -> str:
    try:
        return format_duration(age_ms * _MS)
    except OverflowError:
        return f"{age_ms} ms"


def no_such_snapshot(table: str, snapshot_id: int, untouched: str) -> NoSuchSnapshot:
    """Return the error for a snapshot that the live table does not have."""
    return NoSuchSnapshot(
        f"The live table has no snapshot {snapshot_id}",
        table=table,
        untouched=untouched,
        hint=f"artemis history {quote(table)} lists its snapshots",
    )
