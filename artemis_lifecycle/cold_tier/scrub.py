"""Reads copies in the cold tier again, and compares them with their records: those of a plan or a share of all
(`verify_copies`), and all in rotation, so that each is read once per configured period (`scrub`).

Each copy has a place on the ledger's ring. A run of the rotation reads from the last run's end to the current position,
one day ahead: a daily run reads its share, and a run after a week's pause reads a week's share.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

import pyarrow as pa

from artemis_lifecycle.cold_tier.copy import each_file
from artemis_lifecycle.cold_tier.ledger import COPIES, RING, CopiedFile, Ledger, handoff_ledger, place_of
from artemis_lifecycle.cold_tier.presence import RecordedCopy
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.operations.cold_tier import ColdLoss, LostCopy, ScrubRecord, Scrubs
from artemis_lifecycle.spark.runner import Cost, Runner, Spark, record_batch
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.stores import Stores

_AHEAD = timedelta(days=1)
_FILES_PER_BATCH = 2_000
_BYTES_PER_BATCH = 8 << 30
_LOSSES_AGAIN = 1_000
_PROBLEMS_SHOWN = 1_000
_CHECKED = ("destination", "size_in_bytes", "checksum")
_DAMAGED = arrow_schema("destination string, reason string")

Repair = Callable[[Sequence[RecordedCopy]], Mapping[str, str]]
"""Copies lost files from live again. Returns the error of each file that cannot be copied, by cold path."""


@dataclass(frozen=True)
class ScrubProblem:
    """A copy that differed from its record. `repaired` means that it was copied from the live file `source` again."""

    path: str
    source: str
    reason: str
    repaired: bool


@dataclass(frozen=True)
class ColdScrub:
    """What one run of the rotation read and found. Sizes in bytes.

    `archived_files` are in the deep archive and unreadable: only their presence and size were checked. `repaired`
    copies were copied from live again. `lost` ones cannot be, and exist nowhere else. `open_losses` counts all lost
    ones, of any run. The rotation began at `began_at`, and its share `share_done` (0 to 1) is done.
    """

    table: str
    checked_files: int = 0
    checked_bytes: int = 0
    archived_files: int = 0
    repaired: int = 0
    lost: int = 0
    open_losses: int = 0
    began_at: datetime | None = None
    share_done: float = 0.0
    problems: tuple[ScrubProblem, ...] = ()
    """At most 1,000 problems; Postgres has all of them."""


@dataclass(frozen=True)
class ScrubContext:
    """What a scrub needs. `check` raises when the work has to stop; it is called before each batch."""

    spark: Spark
    cold_stores: Stores
    ledger: Ledger
    scrubs: Scrubs
    table: str
    table_uuid: str
    repair: Repair
    check: Callable[[], None] = lambda: None

    @property
    def runner(self) -> Runner:
        return Runner(self.spark)


@dataclass
class _Totals:
    files: int = 0
    size: int = 0
    archived: int = 0
    repaired: int = 0
    problems: list[ScrubProblem] = field(default_factory=list)


def scrub(context: ScrubContext, every: timedelta, now: datetime, limit: int | None = None) -> ColdScrub:
    """Read the due copies of the table (at most about `limit` files), and check earlier losses again.

    A missing, truncated or corrupted copy is repaired, or recorded as lost. After a kill, another run resumes after the
    last complete batch. Raises what `check` raises, and StorageError if a store does not answer.
    """
    state = rotation(context.scrubs.of_table(context.table_uuid), every, now)
    totals = _Totals()
    _again(context, state, totals)
    read = 0
    for batch, end in _batches(_due(context, state.position, _target(state.began_at, every, now)), limit):
        context.check()
        found, archived = _read(context, batch)
        lost = _settle(context, found, totals)
        totals.archived += len(archived)
        totals.files += len(batch) - len(archived)
        totals.size += sum(copy.size_in_bytes for copy in batch if copy.destination not in archived)
        read += len(batch)
        state = state.to(end, batch)
        _record(context, state, lost, found)
    if limit is None or read < limit:
        # No copy is between the last file and the current position.
        state = state.to(_target(state.began_at, every, now))
        _record(context, state, (), ())
    return ColdScrub(
        table=context.table,
        checked_files=totals.files,
        checked_bytes=totals.size,
        archived_files=totals.archived,
        repaired=totals.repaired,
        lost=sum(not problem.repaired for problem in totals.problems),
        open_losses=len(context.scrubs.losses(context.table_uuid)),
        began_at=state.began_at,
        share_done=state.position / RING,
        problems=tuple(totals.problems[:_PROBLEMS_SHOWN]),
    )


# --- the rotation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rotation:
    began_at: datetime
    position: int
    files: int = 0
    size: int = 0

    def to(self, position: int, read: Sequence[CopiedFile] = ()) -> _Rotation:
        size = self.size + sum(copy.size_in_bytes for copy in read)
        return _Rotation(self.began_at, max(self.position, position), self.files + len(read), size)


def rotation(record: ScrubRecord | None, every: timedelta, now: datetime) -> _Rotation:
    """Return the rotation to continue: the recorded one, or the next if that is finished and its period is over."""
    if record is None:
        return _Rotation(now, 0)
    turns = (now - record.began_at) // every
    if record.position >= RING and turns >= 1:
        return _Rotation(record.began_at + turns * every, 0)
    return _Rotation(record.began_at, record.position, record.files, record.bytes)


def _target(began_at: datetime, every: timedelta, now: datetime) -> int:
    return min(RING, -(-RING * max(now - began_at + _AHEAD, timedelta(0)) // every))


def _due(context: ScrubContext, first: int, end: int) -> Iterator[CopiedFile]:
    """Yield the recorded copies at positions from `first` to before `end`, in order of position."""
    if first >= end:
        return
    with context.runner.keeping() as keep:
        due = context.ledger.newest(context.runner, keep, first=first, end=end)
        for batch in due.ordered("place", "destination").batches():
            for row in batch.select(COPIES.names).to_pylist():
                yield CopiedFile(**row)


def _batches(due: Iterable[CopiedFile], limit: int | None) -> Iterator[tuple[list[CopiedFile], int]]:
    """Yield (copies, position up to which everything is then read). A batch never splits a position."""
    batch: list[CopiedFile] = []
    size = read = 0
    last = -1
    for copy in due:
        place = place_of(copy.destination)
        full = len(batch) >= _FILES_PER_BATCH or size >= _BYTES_PER_BATCH
        over = limit is not None and read + len(batch) >= limit
        if batch and place != last and (full or over):
            yield batch, last + 1
            read += len(batch)
            batch, size = [], 0
            if over:
                return
        batch.append(copy)
        size += copy.size_in_bytes
        last = place
    if batch:
        yield batch, last + 1


# --- reading --------------------------------------------------------------------------------------------------------


def _again(context: ScrubContext, state: _Rotation, totals: _Totals) -> None:
    """Check earlier losses again: a file may have been restored, or may be copyable now."""
    losses: list[ColdLoss] = context.scrubs.losses(context.table_uuid, _LOSSES_AGAIN)
    batch = list(context.ledger.among(context.runner, {loss.path for loss in losses}).values())
    if not batch:
        return
    context.check()
    found, _ = _read(context, batch)
    lost = _settle(context, found, totals)
    still = {each.path for each in lost}
    _record(context, state, lost, (), [copy.destination for copy in batch if copy.destination not in still])


def _read(context: ScrubContext, batch: Sequence[CopiedFile]) -> tuple[list[tuple[CopiedFile, str]], set[str]]:
    """Return the copies that differ from their record, with the reason, and the paths of archived ones, which cannot be
    read."""
    by_path = {copy.destination: copy for copy in batch}
    request = partial(compared, recorded={path: (copy.size_in_bytes, copy.checksum) for path, copy in by_path.items()})
    schema = "path string, reason string, archived boolean"
    answers = each_file(context.runner, context.cold_stores, request, schema, list(by_path))
    bad = [(by_path[path], reason) for path, reason, _ in answers if reason is not None]
    return bad, {path for path, _, archived in answers if archived}


def _settle(context: ScrubContext, found: Sequence[tuple[CopiedFile, str]], totals: _Totals) -> list[LostCopy]:
    """Repair what was found. Return what cannot be repaired."""
    if not found:
        return []
    failed = context.repair([RecordedCopy.of(copy.source, copy.destination, copy) for copy, _ in found])
    lost = []
    for copy, reason in found:
        why = failed.get(copy.destination)
        said = reason if why is None else f"{reason}; it cannot be made again: {why}"
        totals.problems.append(ScrubProblem(copy.destination, copy.source, said, repaired=why is None))
        if why is None:
            totals.repaired += 1
        else:
            lost.append(LostCopy(copy.destination, copy.source, said))
    return lost


def _record(
    context: ScrubContext,
    state: _Rotation,
    lost: Sequence[LostCopy],
    found: Sequence[tuple[CopiedFile, str]],
    settled: Sequence[str] = (),
) -> None:
    still = {each.path for each in lost}
    context.scrubs.moved(
        context.table_uuid,
        context.table,
        state.position,
        state.began_at,
        files=state.files,
        size_in_bytes=state.size,
        lost=lost,
        settled=[*settled, *(copy.destination for copy, _ in found if copy.destination not in still)],
    )


# --- without the rotation -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """The result of reading cold files again. `damaged` are (cold path, reason), at most 1,000."""

    checked_files: int
    checked_bytes: int
    damaged: tuple[tuple[str, str], ...]


def verify_copies(
    spark: Spark,
    root_stores: Stores,
    cold_stores: Stores,
    root: str,
    table_uuid: str,
    *,
    plan_id: str | None = None,
    share: float = 1.0,
) -> Verification:
    """Read the cold files of a table (or of one plan, or a `share` of them from 0 to 1, always the same ones) and
    compare size and checksum with the verified record. `root_stores` can access `operations.root`."""
    runner, ledger = Runner(spark), handoff_ledger(root_stores, root, table_uuid)
    with runner.keeping() as keep:
        chosen = ledger.newest(runner, keep, _CHECKED, plan_id, end=int(share * RING))
        files, size = chosen.sums("size_in_bytes")
        damaged = chosen.map(partial(_damaged, cold_stores), _DAMAGED, Cost(files, files, size))
        rows = (row for batch in damaged.batches() for row in batch.to_pylist())
        shown = heapq.nsmallest(_PROBLEMS_SHOWN, ((row["destination"], row["reason"]) for row in rows))
    return Verification(files, size, tuple(shown))


def _damaged(stores: Stores, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path, size, checksum in zip(*(batch.column(name).to_pylist() for name in _CHECKED), strict=True):
            try:
                _, reason, _ = compared(stores, path, recorded={path: (size, checksum)})
            except StorageError as error:
                reason = error.what
            if reason is not None:
                yield record_batch([(path, reason)], _DAMAGED)


def compared(
    stores: Stores, path: str, *, recorded: Mapping[str, tuple[int, str | None]]
) -> tuple[str, str | None, bool]:
    """Return the path, why the copy differs from its `recorded` size and checksum (None if it does not), and whether it
    is archived, so that only its presence and size can be checked.

    Raises StorageError if the store does not answer; a copy that exists and cannot be read is such a case.
    """
    size, checksum = recorded[path]
    head = stores.head(path)
    if head is None:
        return path, "the file is gone", False
    if head.size_in_bytes != size:
        return path, f"the file has {head.size_in_bytes} bytes, but had {size}", False
    state = stores.archive_state(path)
    if state is not None and not state.readable:
        return path, None, True
    try:
        now = stores.checksum(path)
    except StorageError as error:
        if stores.head(path) is not None:
            # A store that does not answer is not a loss: the rotation of a scrub does not advance.
            raise
        return path, error.what, False
    return path, None if now == checksum else f"the file is {now}, but was {checksum}", False
