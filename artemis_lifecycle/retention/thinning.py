"""Calendar thinning: keep hourly for a day, daily for a month, monthly forever.

Thinning only ever adds: of each calendar bucket (in UTC) it keeps the newest snapshot, for as long as the tier says.
What a rule keeps, stays as well; so nothing inside a window is thinned out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Literal

from artemis_lifecycle.metadata.types import LogEntry
from artemis_lifecycle.retention.reasons import Reason
from artemis_lifecycle.retention.views import SnapshotView

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_EPOCH = date(1970, 1, 1).toordinal()


Unit = Literal["hour", "day", "week", "month", "year"]


@dataclass(frozen=True)
class ThinningTier:
    """The newest snapshot of each calendar `every` stays for `for_ms` after its commit; None: forever."""

    every: Unit
    for_ms: int | None = None


def thinned(
    snapshots: Sequence[SnapshotView],
    tiers: Sequence[ThinningTier],
    now_ms: int,
    *,
    main: bytearray,
    referenced: bytearray,
    log: Sequence[LogEntry],
    present: Container[int],
) -> Iterator[tuple[Reason, int]]:
    """Each kept snapshot's position with its reason.

    `main` and `referenced` are flags by position: main's ancestors, and whatever any ref reaches. Candidates are main's
    ancestors, else what the snapshot log says was current, else, from before the log begins, what no ref reaches: those
    are the survivors of earlier thinning, whose chain of parents expired. In one bucket the better evidence wins, then
    the later commit, so that a snapshot once chosen is chosen again every night.
    """
    logged = {entry.snapshot_id for entry in log if entry.snapshot_id in present}
    begins = min((entry.timestamp_ms for entry in log), default=None)
    for tier in tiers:
        oldest = None if tier.for_ms is None else now_ms - tier.for_ms
        best: dict[int, tuple[int, int, int]] = {}
        for position, snapshot in enumerate(snapshots):
            at = snapshot.timestamp_ms
            if oldest is not None and at < oldest:
                continue
            if main[position]:
                evidence = 2
            elif snapshot.snapshot_id in logged:
                evidence = 1
            elif not referenced[position] and (begins is None or at < begins):
                evidence = 0
            else:
                continue
            bucket = _bucket(at, tier.every)
            rank = (evidence, at, position)
            if bucket not in best or rank > best[bucket]:
                best[bucket] = rank
        for _, at, position in best.values():
            until = None if tier.for_ms is None else at + tier.for_ms
            yield Reason("thinning", f"the newest of its {tier.every}", name=tier.every, until_ms=until), position


def _bucket(milliseconds: int, every: str) -> int:
    if every == "hour":
        return milliseconds // _HOUR_MS
    day = milliseconds // _DAY_MS
    if every == "day":
        return day
    if every == "week":
        # 1970-01-01 was a Thursday; weeks begin on Monday.
        return (day + 3) // 7
    month = _month(day)
    return month if every == "month" else month // 12


@lru_cache(maxsize=65_536)
def _month(day: int) -> int:
    try:
        calendar = date.fromordinal(_EPOCH + day)
    except (ValueError, OverflowError):
        # Beyond the calendar a clock was wrong; each such day is a bucket of its own, below every real month.
        return -(abs(day) + 1)
    return calendar.year * 12 + calendar.month - 1
