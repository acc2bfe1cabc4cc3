"""The input of the rules: a table's history, and the tags and holds on it. Times are epoch milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypedDict

from artemis_lifecycle.metadata.types import LogEntry, Ref, SnapshotHistory, TableMetadata
from artemis_lifecycle.storage.instants import if_in_calendar


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
    consumer has yet to read them. It binds up to and including `until_ms`; None: until it is released. Where one of its
    snapshots is neither in the table nor `archived`, another tool expired it: then it keeps the whole table, whose
    later snapshots share its files.
    """

    hold_id: str
    owner: str
    reason: str
    snapshot_ids: tuple[int, ...] = ()
    until_ms: int | None = None
    kind: Literal["legal", "lease", "consumer"] = "legal"
    archived: frozenset[int] = frozenset()


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


WasMain = Callable[[], Collection[int]]
"""Returns the ids of the snapshots that are known to have been the table's current one, at any time."""


class Keepers(TypedDict):
    """What `decide` goes by beside the history and the settings."""

    holds: tuple[HoldView, ...]
    tags: tuple[TagView, ...]
    was_main: WasMain


NO_KEEPERS: Keepers = {"holds": (), "tags": (), "was_main": frozenset}


def view_of(metadata: TableMetadata | SnapshotHistory) -> HistoryView:
    """The history in `metadata`."""
    return HistoryView(
        snapshots=[SnapshotView(s.snapshot_id, s.parent_snapshot_id, s.timestamp_ms) for s in metadata.snapshots],
        refs=metadata.refs,
        log=metadata.snapshot_log if isinstance(metadata, TableMetadata) else metadata.log,
        current_snapshot_id=metadata.current_snapshot_id,
        properties=metadata.properties,
    )


# --- reasons ----------------------------------------------------------------------------------------------------------
# Why a snapshot stays. A snapshot has all its reasons, not the first that was found.

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
