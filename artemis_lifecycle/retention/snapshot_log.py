"""The snapshot log: what must stay so that no AS OF changes its answer when a commit cuts the log.

Sources: Iceberg's SnapshotUtil.nullableSnapshotIdAsOfTime and TableMetadata.Builder.updateSnapshotLog.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from artemis_lifecycle.metadata.types import LogEntry


@dataclass(frozen=True)
class LogNeeds:
    """What AS OF inside a window rests on. Numbers are positions in the log.

    `start`: from there on every entry's snapshot must stay; None when no instant of the window has an answer.
    `edges`: entries whose snapshot was current at the window's edge. `gap`: the position of an entry without its
    snapshot, because of which any removal would change an answer; None when there is none.
    """

    start: int | None
    edges: tuple[int, ...] = ()
    gap: int | None = None


def needs_of(log: Sequence[LogEntry], present: Collection[int], edge_ms: int, now_ms: int) -> LogNeeds:
    """What must stay so that AS OF any instant from `edge_ms` to `now_ms` answers as before, after Iceberg's cut.

    The answers themselves are not enough: removing any snapshot with a later entry would clear the log up to that
    entry, answers included. So everything from the first answering entry on stays, whatever its time.
    """
    edge: int | None = None
    answering: list[int] = []
    times: set[int] = set()
    for position, entry in enumerate(log):
        at = entry.timestamp_ms
        if at <= edge_ms:
            if edge is None or at > log[edge].timestamp_ms:
                edge = position
        elif at <= now_ms and at not in times:
            times.add(at)
            answering.append(position)
    edges = () if edge is None else (edge,)
    answering = [*edges, *answering]
    with_snapshot = [position for position in answering if log[position].snapshot_id in present]
    start = min(with_snapshot, default=None)
    return LogNeeds(start, edges, _gap(log, present, start, answering))


def _gap(log: Sequence[LogEntry], present: Collection[int], start: int | None, answering: list[int]) -> int | None:
    absent = [position for position, entry in enumerate(log) if entry.snapshot_id not in present]
    if not absent:
        return None
    if start is not None and absent[-1] > start:
        return absent[-1]
    # An instant whose answer is already lost fails today. After the cut a later entry with an earlier time, if there is
    # one, would answer instead, and wrongly.
    answers = set(answering)
    earliest_behind: int | None = None
    for position in range(len(log) - 1, -1, -1):
        at = log[position].timestamp_ms
        if position in answers and log[position].snapshot_id not in present:
            if earliest_behind is not None and earliest_behind <= at:
                return position
        else:
            earliest_behind = at if earliest_behind is None else min(earliest_behind, at)
    return None
