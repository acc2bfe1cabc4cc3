"""Why a snapshot stays. A snapshot has all its reasons, not the first that was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from artemis_lifecycle.storage.instants import if_in_calendar

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
    instant = if_in_calendar(milliseconds)
    return f"{milliseconds} ms" if instant is None else instant.strftime("%Y-%m-%d %H:%M:%S UTC")


_FEW = 20


def few(things: Sequence[object], between: str = ", ") -> str:
    """The first of them as text, for a person; a snapshot may have 100,000 tags."""
    return between.join(first_few(things))


def first_few(things: Sequence[object]) -> list[str]:
    """The first of them, and how many more there are."""
    more = [f"and {len(things) - _FEW:,} more"] if len(things) > _FEW else []
    return [*map(str, things[:_FEW]), *more]


class ReasonLedger:
    """Collects reasons by the position of a snapshot. Snapshots with the same reasons share one tuple: there may be
    millions of snapshots, and there are few combinations. A combination is another one and its newest reason, so that
    many refs on one snapshot take no more than their number."""

    def __init__(self, positions: int) -> None:
        self._state = [0] * positions
        self._combinations: list[tuple[int, int]] = [(0, -1)]
        self._reasons: list[Reason] = []

    def add(self, reason: Reason, positions: Iterable[int]) -> None:
        """Every snapshot at `positions` stays for `reason`. A position may come twice; it counts once."""
        number = len(self._reasons)
        self._reasons.append(reason)
        state = self._state
        following: dict[int, int] = {}
        for position in positions:
            before = state[position]
            after = following.get(before)
            if after is None:
                if self._combinations[before][1] == number:
                    continue
                after = len(self._combinations)
                self._combinations.append((before, number))
                following[before] = after
            state[position] = after

    def kept(self, position: int) -> bool:
        return self._state[position] != 0

    def reasons(self, position: int) -> tuple[Reason, ...]:
        return self._of(self._state[position])

    def collect(self, ids: Iterable[int], without: set[int]) -> Mapping[int, tuple[Reason, ...]]:
        """Reasons by snapshot id, of those that have any and are not at a position in `without`."""
        shared: dict[int, tuple[Reason, ...]] = {}
        kept: dict[int, tuple[Reason, ...]] = {}
        for position, (snapshot_id, state) in enumerate(zip(ids, self._state, strict=True)):
            if state and position not in without:
                if state not in shared:
                    shared[state] = self._of(state)
                kept[snapshot_id] = shared[state]
        return kept

    def _of(self, state: int) -> tuple[Reason, ...]:
        found = []
        while state:
            state, number = self._combinations[state]
            found.append(self._reasons[number])
        return tuple(reversed(found))
