"""Why a snapshot stays. A snapshot has all its reasons, not the first that was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

ReasonKind = Literal[
    "ref",
    "branch_count",
    "branch_age",
    "unreferenced_young",
    "window_edge",
    "window",
    "log_continuity",
    "log_gap",
    "num_retained_min",
    "time_retained",
    "expire_limit",
    "sequence",
    "thinning",
    "hold",
    "lease",
    "consumer",
]


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. `name` is the ref or the hold's id; `until_ms` is when it ends, where that is known today."""

    kind: ReasonKind
    detail: str
    name: str | None = None
    owner: str | None = None
    until_ms: int | None = None

    def __str__(self) -> str:
        if self.until_ms is None:
            return self.detail
        return f"{self.detail}, until {format_instant(self.until_ms)}"


def format_instant(milliseconds: int) -> str:
    """An epoch time as text; the number itself where a calendar cannot hold it."""
    try:
        instant = datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return instant.strftime("%Y-%m-%d %H:%M:%S UTC")


class ReasonLedger:
    """Collects reasons by the position of a snapshot. Snapshots with the same reasons share one tuple: there may be
    millions of snapshots, and there are few combinations."""

    def __init__(self, positions: int) -> None:
        self._state = [0] * positions
        self._combinations: list[tuple[int, ...]] = [()]
        self._next: dict[tuple[int, int], int] = {}
        self._reasons: list[Reason] = []

    def add(self, reason: Reason, positions: Iterable[int]) -> None:
        """Every snapshot at `positions` stays for `reason`. A position may come twice; it counts once."""
        number = len(self._reasons)
        self._reasons.append(reason)
        state, following = self._state, self._next
        for position in positions:
            before = state[position]
            after = following.get((before, number))
            if after is None:
                combination = self._combinations[before]
                if number in combination:
                    continue
                after = len(self._combinations)
                self._combinations.append((*combination, number))
                following[(before, number)] = after
            state[position] = after

    def kept(self, position: int) -> bool:
        return self._state[position] != 0

    def reasons(self, position: int) -> tuple[Reason, ...]:
        return tuple(self._reasons[number] for number in self._combinations[self._state[position]])

    def collect(self, ids: Iterable[int], without: set[int]) -> Mapping[int, tuple[Reason, ...]]:
        """Reasons by snapshot id, of those that have any and are not at a position in `without`."""
        shared = [tuple(self._reasons[number] for number in combination) for combination in self._combinations]
        return {
            snapshot_id: shared[state]
            for position, (snapshot_id, state) in enumerate(zip(ids, self._state, strict=True))
            if state and position not in without
        }
