"""Calendar thinning: keep hourly for a day, daily for a month, monthly forever.

Thinning only ever adds: of each calendar bucket (in UTC) it keeps the newest snapshot, for as long as the tier says.
What a rule keeps, stays as well; so nothing inside a window is thinned out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from artemis_lifecycle.config.calendar_units import UNITS, Unit, bucket_of
from artemis_lifecycle.config.policies import Thin
from artemis_lifecycle.metadata.types import LogEntry
from artemis_lifecycle.retention.views import Reason, SnapshotView, WasMain


@dataclass(frozen=True)
class ThinningTier:
    """The newest snapshot of each calendar `every` stays for `for_ms` after its commit; None: forever."""

    every: Unit
    for_ms: int | None = None

    @classmethod
    def of(cls, thin: Thin) -> ThinningTier:
        """The tier that lifecycle.yaml sets."""
        lasts = None if thin.lasting == "forever" else thin.lasting // timedelta(milliseconds=1)
        return cls(UNITS[thin.keep], lasts)


def thinned(
    snapshots: Sequence[SnapshotView],
    tiers: Sequence[ThinningTier],
    now_ms: int,
    *,
    main: bytearray,
    referenced: bytearray,
    log: Sequence[LogEntry],
    present: Container[int],
    was_main: WasMain = frozenset,
) -> Iterator[tuple[Reason, int]]:
    """Each kept snapshot's position with its reason.

    `main` and `referenced` are flags by position: main's ancestors, and whatever any ref reaches. Candidates are main's
    ancestors, else what was current by the snapshot log or, from before it begins, by the record `was_main`, else what
    no ref reaches: those may be survivors of earlier thinning, whose chain of parents expired, or of a dropped branch.
    In one bucket the better evidence wins, then the later commit, so that a snapshot once chosen is chosen again every
    night.
    """
    current = {entry.snapshot_id for entry in log if entry.snapshot_id in present}
    begins = min((entry.timestamp_ms for entry in log), default=None)
    if any(not main[at] and (begins is None or each.timestamp_ms < begins) for at, each in enumerate(snapshots)):
        current.update(was_main())
    for tier in tiers:
        oldest = None if tier.for_ms is None else now_ms - tier.for_ms
        best: dict[int, tuple[int, int, int]] = {}
        for position, snapshot in enumerate(snapshots):
            at = snapshot.timestamp_ms
            if oldest is not None and at < oldest:
                continue
            if main[position]:
                evidence = 2
            elif snapshot.snapshot_id in current:
                evidence = 1
            elif not referenced[position] and (begins is None or at < begins):
                evidence = 0
            else:
                continue
            bucket = bucket_of(at, tier.every)
            rank = (evidence, at, position)
            if bucket not in best or rank > best[bucket]:
                best[bucket] = rank
        for _, at, position in best.values():
            until = None if tier.for_ms is None else at + tier.for_ms
            yield Reason("thinning", f"the newest of its {tier.every}", name=tier.every, until_ms=until), position
