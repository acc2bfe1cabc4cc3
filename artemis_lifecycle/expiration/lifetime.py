"""Since when, and until when, snapshots keep what they hold. Pure: a query to the retention rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.retention.rules import HoldView, RetentionSettings, TagView, decide, view_of

_FAR_MS = 100 * 365 * 86_400_000
_EXACT_TO_MS = 1_000


def held_until(
    metadata: TableMetadata,
    snapshot_ids: Collection[int],
    settings: RetentionSettings,
    now_ms: int,
    *,
    holds: Sequence[HoldView] = (),
    tags: Sequence[TagView] = (),
) -> int | None:
    """Return the first instant (epoch ms, to the second) at which a plan would keep none of the snapshots, in the
    current state.

    None: not within a hundred years, if nothing is committed and no ref is changed. A branch's current snapshot stays
    forever, until a later commit replaces it. `now_ms` itself: the next plan removes them.
    """
    view, wanted = view_of(metadata), set(snapshot_ids)

    def kept_at(instant_ms: int) -> bool:
        return not wanted.isdisjoint(decide(view, settings, instant_ms, holds=holds, tags=tags).kept)

    if not kept_at(now_ms):
        return now_ms
    low, high = now_ms, now_ms + _FAR_MS
    if kept_at(high):
        return None
    while high - low > _EXACT_TO_MS:
        middle = (low + high) // 2
        low, high = (middle, high) if kept_at(middle) else (low, middle)
    return high
