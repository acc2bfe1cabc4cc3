"""Apache Paimon's rule, on an Iceberg history. Source: Paimon's ExpireSnapshotsImpl and "Manage Snapshots".

Paimon numbers snapshots in the order of their commits and expires from the old end only; here the order of the metadata
file stands for the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PaimonBounds:
    """Positions below `end` expire. The others say why not more: each is the first position that its option
    keeps, None where the option is not set."""

    end: int
    by_minimum: int
    by_limit: int | None


def paimon_bounds(
    times: Sequence[int],
    *,
    older_than_ms: int,
    retain_min: int,
    retain_max: int | None,
    limit: int | None,
    consumer: int | None,
    pinned: bytearray,
    next_timestamp: bool,
) -> PaimonBounds:
    """`times` are commit times by position; `consumer` the earliest position that a consumer has yet to read.

    A snapshot is young when its own time is not before `older_than_ms`, or, with `next_timestamp`, when its successor's
    is not, which is how newer Paimon reads it: what was current inside the time lives on. `limit` bounds how many
    expire at once, counted from the earliest that no ref or hold has `pinned`: those would use it up forever.
    """
    count = len(times)
    earliest = next((position for position in range(count) if not pinned[position]), count)
    start = earliest if retain_max is None else max(count - retain_max, earliest)
    by_minimum = max(count - retain_min, 0)
    by_limit = None if limit is None else min(earliest + limit, count)
    end = min(bound for bound in (by_minimum, by_limit, consumer) if bound is not None)
    for position in range(start, end):
        judged = position + 1 if next_timestamp else position
        if older_than_ms <= times[judged]:
            end = position
            break
    return PaimonBounds(max(end, 0), by_minimum, by_limit)
