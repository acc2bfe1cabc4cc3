"""Brute-force restatements of the rules, from their sources and not from the code under test. Slow on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from artemis_lifecycle.metadata.types import LogEntry, Ref
from artemis_lifecycle.retention.rules import HistoryView, SnapshotView

FIVE_DAYS = 5 * 24 * 60 * 60 * 1000


def lineage(history: HistoryView, snapshot_id: int) -> list[SnapshotView]:
    """A snapshot and its ancestors, as far as they are in the table."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in history.snapshots}
    chain: list[SnapshotView] = []
    following: int | None = snapshot_id
    while following is not None and following in by_id:
        chain.append(by_id[following])
        following = by_id[following].parent_id
    return chain


def live_refs(history: HistoryView, now: int) -> dict[str, Ref]:
    """Spec, "Snapshot Retention Policy": main never expires; others by the age of their snapshot."""
    times = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in history.snapshots}
    default = int(history.properties.get("history.expire.max-ref-age-ms", 2**63 - 1))
    live = {}
    for name, ref in history.refs.items():
        age = default if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        if name == "main" or (ref.snapshot_id in times and now - times[ref.snapshot_id] <= age):
            live[name] = ref
    return live


def kept_by_iceberg(
    history: HistoryView, now: int, *, older_than: int | None, retain_last: int | None, explicit: Iterable[int] = ()
) -> tuple[set[int], set[str]]:
    """Ids that RemoveSnapshots keeps, and names of the refs that it keeps."""
    if not history.snapshots:
        return set(), set(history.refs)
    if older_than is None:
        older_than = now - int(history.properties.get("history.expire.max-snapshot-age-ms", FIVE_DAYS))
    if retain_last is None:
        retain_last = int(history.properties.get("history.expire.min-snapshots-to-keep", 1))
    refs = live_refs(history, now)
    present = {snapshot.snapshot_id for snapshot in history.snapshots}
    kept = {ref.snapshot_id for ref in refs.values()} & present
    referenced = set(kept)
    for ref in refs.values():
        if ref.type == "tag":
            continue
        least = retain_last if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
        edge = older_than if ref.max_snapshot_age_ms is None else now - ref.max_snapshot_age_ms
        chain = lineage(history, ref.snapshot_id)
        referenced |= {snapshot.snapshot_id for snapshot in chain}
        stays = takewhile(lambda pair: pair[0] < least or pair[1].timestamp_ms >= edge, enumerate(chain))  # noqa: B023
        kept |= {snapshot.snapshot_id for _, snapshot in stays}
    kept |= {
        s.snapshot_id for s in history.snapshots if s.snapshot_id not in referenced and s.timestamp_ms >= older_than
    }
    return kept - set(explicit), set(refs)


def answer(log: Iterable[LogEntry], instant: int) -> int | None:
    """AS OF, as SnapshotUtil.nullableSnapshotIdAsOfTime reads the log."""
    found: int | None = None
    best: int | None = None
    for entry in log:
        if entry.timestamp_ms <= instant and (best is None or entry.timestamp_ms > best):
            found, best = entry.snapshot_id, entry.timestamp_ms
    return found


def log_after(log: Iterable[LogEntry], left: set[int], removed_any: bool) -> list[LogEntry]:
    """The log after a commit, as TableMetadata.Builder.updateSnapshotLog writes it."""
    if not removed_any:
        return list(log)
    kept: list[LogEntry] = []
    for entry in log:
        if entry.snapshot_id in left:
            kept.append(entry)
        else:
            kept = []
    return kept


def instants(log: Iterable[LogEntry], first: int, last: int) -> list[int]:
    """Every instant in [first, last] at which an answer can change, and its neighbors."""
    points = {first, last}
    for entry in log:
        points |= {entry.timestamp_ms - 1, entry.timestamp_ms, entry.timestamp_ms + 1}
    return sorted(point for point in points if first <= point <= last)


def paimon_survivors(
    snapshots: dict[int, int],
    *,
    now: int,
    time_retained: int,
    retain_min: int,
    retain_max: int,
    limit: int,
    consumer: int | None = None,
    next_timestamp: bool = False,
) -> set[int]:
    """Numbers that stay, of `snapshots` numbered as Paimon numbers them -> commit time. From ExpireSnapshotsImpl."""
    earliest, latest = min(snapshots), max(snapshots)
    first_allowed = max(latest - retain_max + 1, earliest)
    until = min(latest - retain_min + 1, earliest + limit)
    if consumer is not None:
        until = min(until, consumer)
    number = first_allowed
    while number < until:
        if now - time_retained <= snapshots[number + 1 if next_timestamp else number]:
            until = number
            break
        number += 1
    return {number for number in snapshots if number >= until}
