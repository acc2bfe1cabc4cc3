"""Transfers snapshots from one tier to the other: found, sealed, copied, verified, recorded by batch. A handoff
transfers to the cold tier, a restore back.

Contents come first; then manifests, which record the contents' new sizes; then manifest lists. A batch is recorded once
it is completely verified. A later run begins with the first batch that is not recorded.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection

from artemis_lifecycle.cold_tier.copy import DELETES, WANTED, Copier, copy_files
from artemis_lifecycle.cold_tier.demand import (
    DELETE,
    FILES,
    MANIFESTS,
    NAMED,
    PHASES,
    SEALED,
    Batch,
    Demand,
    Problem,
    Work,
    distinct_manifests,
    load_work,
    named_manifests,
    read_lists,
    read_manifests,
    readers,
)
from artemis_lifecycle.cold_tier.ledger import FAILED, LATE, LOST, PRESENT, TAKEN, VERIFIED, CopiedFile, Ledger
from artemis_lifecycle.cold_tier.needed import ARCHIVED_BEFORE, Reuse, count_needed, seal_work
from artemis_lifecycle.cold_tier.paths import PathMapping, Placing
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import ConfigError, LifecycleError
from artemis_lifecycle.metadata.types import MANIFEST, MANIFEST_LIST, TableMetadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.journal import HandoffBatches
from artemis_lifecycle.spark.runner import Cost, Rows, Runner, Spark
from artemis_lifecycle.storage.frames import arrow_schema, read_frame
from artemis_lifecycle.storage.stores import Stores

# --- losses -----------------------------------------------------------------------------------------------------------
# The consequences of lost files: which snapshots cannot be read without them.


@dataclass(frozen=True)
class Losses:
    """The consequences of lost files: problems, and destinations of manifests and lists that must not be written
    without them."""

    problems: tuple[Problem, ...] = ()
    excluded: frozenset[str] = frozenset()

    @property
    def snapshot_ids(self) -> frozenset[int]:
        return frozenset(snapshot for problem in self.problems for snapshot in problem.snapshot_ids)


def losses_of(runner: Runner, source: Stores, demand: Demand, lost: Sequence[CopiedFile]) -> Losses:
    """Find the snapshots of the demand that cannot be read without the `lost` files. Reads all its manifests, but files
    are rarely lost."""
    if not lost:
        return Losses()
    paths = {file.destination for file in lost}
    with runner.keeping() as keep:
        lists = keep(read_lists(runner, source, demand))
        named = lists.map(named_manifests, MANIFESTS)
        manifests = keep(runner.meet([named], "destination", distinct_manifests, MANIFESTS))
        files = read_manifests(source, demand, manifests)
        hits = files.map(partial(_hits, pa.array(sorted(paths), pa.string())), FILES).table()
        naming = set(hits.column("manifest").to_pylist())
        users = readers(lists, paths | naming)
    read_by = {path: users[path] for path in paths}
    for path, manifest in zip(hits.column("destination").to_pylist(), hits.column("manifest").to_pylist(), strict=True):
        read_by[path] = read_by[path] | users[manifest]
    wanted = set(demand.snapshot_ids)
    for file in demand.metadata.statistics:
        if file.snapshot_id in wanted and (destination := demand.mapping.used(file.path, file.snapshot_id)) in read_by:
            read_by[destination] = read_by[destination] | {file.snapshot_id}
    lists_of = {
        snapshot.snapshot_id: demand.mapping.used(snapshot.manifest_list, snapshot.snapshot_id)
        for snapshot in demand.snapshots()
        if snapshot.manifest_list is not None
    }
    # A list that is gone names no manifests.
    for snapshot_id, destination in lists_of.items():
        if destination in read_by:
            read_by[destination] = read_by[destination] | {snapshot_id}
    gone = {snapshot_id for ids in read_by.values() for snapshot_id in ids}
    return Losses(
        tuple(Problem(file.source, file.error or "", tuple(sorted(read_by[file.destination]))) for file in lost),
        frozenset(naming | {lists_of[snapshot_id] for snapshot_id in gone if snapshot_id in lists_of}),
    )


def _hits(paths: pa.Array, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.is_in(batch.column("destination"), paths))


# --- phases -----------------------------------------------------------------------------------------------------------
# The sealed rows of a work, phase by phase, with what each phase needs from earlier phases.

_BUCKETED = pa.schema([*WANTED, SEALED.field("bucket")])
_DESCRIBED = arrow_schema("destination string, rewritten string")
_REWRITTEN = arrow_schema("destination string, file string, rewritten string")
_SIZED = arrow_schema("destination string, size_in_bytes bigint")


@dataclass(frozen=True)
class PhaseRows:
    """The rows of one phase, and their copier."""

    runner: Runner
    rows: Rows
    copier: Copier

    def copy(self, batch: Batch, excluded: Collection[str]) -> list[CopiedFile]:
        """Copy the files of a batch except those to `excluded` destinations. Return one result per file, by
        destination."""
        rows = self.rows.between("bucket", batch.first_bucket, batch.last_bucket)
        cost = Cost(batch.files, batch.files, batch.size_in_bytes)
        return copy_files(self.runner, rows, replace(self.copier, excluded=excluded), cost)


@contextmanager
def open_phase(runner: Runner, sealed: Rows, ledger: Ledger, phase: int, copier: Copier) -> Iterator[PhaseRows]:
    """Yield the rows of a phase, which are valid inside the block. The phase before must be in the ledger."""
    rows = sealed.between("phase", phase, phase)
    with runner.keeping() as keep:
        if phase == 1:
            named = sealed.between("role", DELETE, DELETE)
            described = ledger.rows(runner, _DESCRIBED.names).map(_described, _DESCRIBED)
            deletes = runner.match(named, described, "destination", _rewritten_deletes, _REWRITTEN)
            rows = keep(runner.match(rows, deletes, "destination", _with_deletes, _BUCKETED))
        elif phase == 2:
            sizes = ledger.rows(runner, ("kind", *_SIZED.names)).map(_manifests, _SIZED)
            found = runner.match(sealed.between("role", NAMED, NAMED), sizes, "destination", _sizes_of, _SIZED).table()
            lengths = dict(zip(*(column.to_pylist() for column in found.columns), strict=True))
            copier = replace(copier, lengths=lengths)
        yield PhaseRows(runner, rows, copier)


def _described(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(batch.column("rewritten").is_valid())


def _manifests(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.equal(batch.column("kind"), MANIFEST)).select(_SIZED.names)


def _rewritten_deletes(named: pa.Table, described: pa.Table) -> pa.Table:
    """Return how the delete files of a manifest were rewritten, by the manifest's destination."""
    places = pc.index_in(named.column("destination"), described.column("destination").combine_chunks())
    found = [named.column("manifest"), named.column("destination"), described.column("rewritten").take(places)]
    return pa.Table.from_arrays(found, schema=_REWRITTEN).filter(pc.field("rewritten").is_valid())


def _with_deletes(rows: pa.Table, deletes: pa.Table) -> pa.Table:
    by_manifest: dict[str, list[dict[str, str]]] = {}
    for manifest, file, rewritten in zip(*(column.to_pylist() for column in deletes.columns), strict=True):
        by_manifest.setdefault(manifest, []).append({"destination": file, "rewritten": rewritten})
    found = [by_manifest.get(path) for path in rows.column("destination").to_pylist()]
    return rows.append_column(DELETES, pa.array(found, DELETES.type))


def _sizes_of(named: pa.Table, recorded: pa.Table) -> pa.Table:
    return recorded.filter(pc.is_in(recorded.column("destination"), named.column("destination").combine_chunks()))


@dataclass(frozen=True)
class TransferSettings:
    """Limits of a batch, the unit that a killed run repeats."""

    files_per_batch: int = 2_000
    bytes_per_batch: int = 8 << 30


@dataclass(frozen=True)
class TransferProgress:
    """The progress of a running transfer: files and recorded bytes of finished batches, and in total."""

    done_files: int
    files: int
    done_bytes: int
    bytes: int


@dataclass(frozen=True)
class Consent:
    """Which losses do not stop a transfer: those that affect only snapshots whose loss a person `approved`, or that
    another process expired. If it is unknown which snapshots a loss affects, it stops the transfer. So does a file of
    an overtaken snapshot that is not gone: what cannot be decided is for a person. `there` asks the source for one."""

    approved: frozenset[int] = frozenset()
    overtaken: frozenset[int] = frozenset()
    there: Callable[[str], bool] = lambda path: False

    def to(self, problems: Sequence[Problem]) -> bool:
        return all(self._to(set(problem.snapshot_ids), problem.path) for problem in problems)

    def _to(self, snapshot_ids: set[int], path: str) -> bool:
        if not snapshot_ids or not snapshot_ids <= self.approved | self.overtaken:
            return False
        return snapshot_ids <= self.approved or not self.there(path)


@dataclass(frozen=True)
class TransferErrors:
    """The errors of a transfer, worded for the step that runs it. `gone` describes missing files, and `named` records
    which snapshots they affect."""

    kind: type[LifecycleError]
    table: str
    untouched: str
    if_failed: str
    gone: Callable[[Sequence[Problem]], str]
    if_gone: str
    named: Callable[[Collection[int]], None] = lambda snapshot_ids: None

    def failed(self, what: str, path: str) -> LifecycleError:
        """Return the error for files that could not be copied, verified or rewritten; `path` is the first."""
        return self.kind(what, table=self.table, path=path, untouched=self.untouched, hint=self.if_failed)

    def lost(self, problems: Sequence[Problem]) -> LifecycleError:
        """Return the error for files that are gone or damaged, without consent."""
        what, path = self.gone(problems), problems[0].path
        self.named({snapshot for problem in problems for snapshot in problem.snapshot_ids})
        return self.kind(what, table=self.table, path=path, untouched=self.untouched, hint=self.if_gone)


@dataclass(frozen=True)
class Transfer:
    """The transfer of snapshots (`demand`) from `source` to `target`.

    `records` can access `folder`, where the work is sealed, and the `ledger`, where finished batches are recorded under
    `work_id`. `batches` shows them to people. `check` is called before each batch, and raises when the worker's lease
    is lost. `reuse` decides which file a path means that was used for several; `decided` records where they go.
    `archive`: the manifest lists of what was archived before.
    """

    runner: Runner
    source: Stores
    target: Stores
    records: Stores
    folder: str
    work_id: str
    demand: Demand
    ledger: Ledger
    errors: TransferErrors
    batches: HandoffBatches | None = None
    consent: Consent = field(default_factory=Consent)
    reuse: Reuse | None = None
    decided: Callable[[Sequence[tuple[str, int, int]]], None] = lambda reused: None
    archive: frozenset[str] = frozenset()
    settings: TransferSettings = field(default_factory=TransferSettings)
    check: Callable[[], None] = lambda: None
    on_progress: Callable[[TransferProgress], None] = lambda progress: None

    def run(self) -> tuple[Work, Losses, Placing]:
        """Copy everything that is not copied yet. Return the sealed work, the consequences of accepted losses, and
        where files went.

        Raises `errors`. Files that were copied count for the next run.
        """
        work, mapping = self._work()
        return work, self._copy_all(work, mapping), mapping

    def foreseen(self) -> tuple[int, int, tuple[Problem, ...]]:
        """Return (files, bytes) that a run would copy now, and the metadata that cannot be read. Writes nothing."""
        known = load_work(self.records, self.folder)
        if known is not None:
            recorded = self.ledger.batches(self.work_id)
            left = [batch for batch in known.batches if batch.number not in recorded]
            return sum(batch.files for batch in left), sum(batch.size_in_bytes for batch in left), known.problems
        demand, problems = self.demand, tuple[Problem, ...]()
        while True:
            found = count_needed(self.runner, self.source, demand, self.ledger)
            new = found.problems
            if found.reused is not None:
                demand, new = self._decide(demand, found.reused, dry_run=True)
            elif not new:
                return found.files, found.size_in_bytes, problems
            problems += new
            demand = _without(demand, new)

    def _decide(self, demand: Demand, rows: pa.Table, *, dry_run: bool = False) -> tuple[Demand, tuple[Problem, ...]]:
        assert self.reuse is not None
        demand, reused, aliases, problems = self.reuse.decide(demand, self.ledger, rows)
        if not dry_run:
            # Before any copy: whoever continues places the same files.
            if reused:
                self.decided(reused)
            if aliases:
                self.ledger.write(f"same-{uuid.uuid4().hex}", 0, aliases)
        return demand, problems

    def _work(self) -> tuple[Work, Placing]:
        """Return the sealed work; seal it if it is not. Snapshots with unreadable metadata are omitted only with
        consent."""
        known = load_work(self.records, self.folder)
        if known is not None:
            return known, self.demand.mapping
        demand, problems = self.demand, tuple[Problem, ...]()
        while True:
            with around("handoff.seal"):
                work = seal_work(
                    self.runner,
                    self.source,
                    self.records,
                    demand,
                    self.ledger,
                    self.folder,
                    files_per_batch=self.settings.files_per_batch,
                    bytes_per_batch=self.settings.bytes_per_batch,
                    problems=problems,
                )
            if isinstance(work, Work):
                return work, demand.mapping
            if isinstance(work, pa.Table):
                demand, work = self._decide(demand, work)
            problems += work
            if not self.consent.to(work):
                raise self.errors.lost(problems)
            demand = _without(demand, work)

    def _copy_all(self, work: Work, mapping: Placing) -> Losses:
        """Copy every batch that is not recorded yet, phase by phase."""
        demand = replace(self.demand, snapshot_ids=work.snapshot_ids, mapping=mapping)
        recorded = self.ledger.batches(self.work_id)
        self._show(work, recorded)
        progress = TransferProgress(
            0, sum(batch.files for batch in work.batches), 0, sum(batch.size_in_bytes for batch in work.batches)
        )
        copier = Copier(self.source, self.target, mapping)
        if self.reuse is not None:
            copier = replace(copier, committed=self.reuse.committed, replaceable=())
        with self.runner.keeping() as keep:
            sealed: Rows | None = None
            for phase in range(PHASES):
                batches = [batch for batch in work.batches if batch.phase == phase]
                left = [batch for batch in batches if batch.number not in recorded]
                lost: list[CopiedFile] = []
                if left:
                    sealed = sealed or keep(read_frame(self.runner, work.folder, self.records))
                    with open_phase(self.runner, sealed, self.ledger, phase, copier) as wanted:
                        excluded = self._losses(demand, self._lost()).excluded
                        for batch in left:
                            self.check()
                            files = self._copied(wanted, batch, excluded)
                            gone = [file for file in files if file.action == LOST]
                            go_on = not gone or self.consent.to(self._losses(demand, gone).problems)
                            self._settle_batch(work, batch, files, go_on)
                            lost += [] if go_on else gone
                            progress = _further(progress, batch)
                            self.on_progress(progress)
                if lost:
                    raise self.errors.lost(self._losses(demand, lost).problems)
                for batch in batches:
                    if batch not in left:
                        progress = _further(progress, batch)
        return self._losses(demand, self._lost())

    def _copied(self, wanted: PhaseRows, batch: Batch, excluded: Collection[str]) -> list[CopiedFile]:
        """Copy the batch's files. Those that another file has replaced are LOST; those whose place has another file
        that no record calls a copy are FAILED."""
        files = wanted.copy(batch, excluded)
        late = {file.destination: file for file in files if file.action == LATE}
        if late and self.reuse is not None:
            mapping, checked = self.demand.mapping, replace(wanted.copier, checked=set(late))
            assert isinstance(mapping, PathMapping)
            done = [file for file in files if file.action != LATE]
            heads = self.source.heads([file.source for file in late.values()])
            copies = self.ledger.of_locations(
                self.runner, mapping, {file.source: (file.destination,) for file in late.values()}
            )
            for file, head in zip(late.values(), heads, strict=True):
                by = self.reuse.overwritten(file.source, file.added_by, mapping.rules)
                error = None if by is None else f"it was overwritten: snapshot {by} added another there"
                if error is None and head is not None and file.source in copies:
                    by = self.reuse.archived_before(copies[file.source], file.added_by, head.since, file.source)
                    error = None if by is None else ARCHIVED_BEFORE.format(by)
                if error is None and self._unrecorded:
                    error = _UNDECIDED.format(len(self._unrecorded), self.ledger.folder)
                if error is not None:
                    done.append(replace(file, action=LOST, error=error))
            wanted = replace(wanted, copier=checked)
            files = done + wanted.copy(batch, {*excluded, *(file.destination for file in done)})
        taken = {file.destination for file in files if file.action == TAKEN}
        if taken:
            self.check()  # Perhaps another worker has finished this one's work.
            known = set(self.ledger.among(self.runner, taken))
            if not self._unrecorded:
                # A killed handoff may have written these with other sizes of the same files in them.
                known |= {file.destination for file in files if file.action == TAKEN and file.kind in _REWRITTEN_KINDS}
            done = [
                file if file.action != TAKEN else replace(file, action=FAILED, error=_TAKEN.format(file.destination))
                for file in files
                if file.destination not in known
            ]
            again = replace(wanted, copier=replace(wanted.copier, replaceable=frozenset(known)))
            files = done + (again.copy(batch, {*excluded, *(file.destination for file in done)}) if known else [])
        return sorted(files, key=lambda file: file.destination)

    @cached_property
    def _unrecorded(self) -> frozenset[str]:
        """The archived manifest lists without a record. A path may have been used for files that only their records
        would tell."""
        if not self.archive:
            return frozenset()
        recorded = self.ledger.rows(self.runner, ("destination",)).table().column("destination")
        lists = pa.array(sorted(self.archive), pa.string())
        return frozenset(lists.filter(pc.invert(pc.is_in(lists, recorded.combine_chunks()))).to_pylist())

    def _lost(self) -> tuple[CopiedFile, ...]:
        return self.ledger.outcome(self.work_id).lost

    def _losses(self, demand: Demand, lost: Sequence[CopiedFile]) -> Losses:
        return losses_of(self.runner, self.source, demand, lost)

    def _settle_batch(self, work: Work, batch: Batch, files: list[CopiedFile], go_on: bool) -> None:
        """Record the batch if all of it is settled. With losses, that needs consent (`go_on`)."""
        failed = [file for file in files if file.action == FAILED]
        lost = [file for file in files if file.action == LOST]
        if failed:
            error = self.errors.failed(
                f"{len(failed)} of {len(files)} files of batch {batch.number} failed; the first: {failed[0].error}",
                failed[0].source,
            )
            self._show_batch(work, batch, files, str(error))
            raise error
        if not go_on:
            self._show_batch(work, batch, files, f"{len(lost)} source files are gone or damaged: {lost[0].source}")
            return
        with around("handoff.batch"):
            self.ledger.write(self.work_id, batch.number, files)
        self._show_batch(work, batch, files, None)

    def _show(self, work: Work, recorded: Collection[int]) -> None:
        """Write the batches to Postgres. Those with `recorded` numbers are finished."""
        if self.batches is None:
            return
        self.batches.begin(self.work_id, [(batch.files, batch.size_in_bytes) for batch in work.batches])
        unfinished = {row.batch for row in self.batches.unfinished(self.work_id)}
        for index, batch in enumerate(work.batches):
            if batch.number in recorded and index in unfinished:
                # Killed between the two records.
                self.batches.finish_batch(self.work_id, index, batch.files, 0)

    def _show_batch(self, work: Work, batch: Batch, files: Sequence[CopiedFile], error: str | None) -> None:
        if self.batches is None:
            return
        present = sum(file.action == PRESENT for file in files)
        verified = sum(file.action in VERIFIED for file in files)
        self.batches.finish_batch(self.work_id, work.batches.index(batch), verified - present, present, error)


_REWRITTEN_KINDS = (MANIFEST, MANIFEST_LIST)
_TAKEN = (
    "another file is at its place in the cold tier ({}), and no record says that it is a broken copy of this one. It "
    "may be the only copy of an archived file whose record was lost, and was not overwritten. Find out which snapshot "
    "in the cold tier reads it; move it away only if none does"
)


_UNDECIDED = (
    "it is newer than the snapshot that added it, and the records of {} archived snapshots are lost, which would say "
    "whether it is another one's file: restore {} from a backup"
)


def _without(demand: Demand, problems: Sequence[Problem]) -> Demand:
    gone = {snapshot for problem in problems for snapshot in problem.snapshot_ids}
    return replace(demand, snapshot_ids=tuple(each for each in demand.snapshot_ids if each not in gone))


def _further(progress: TransferProgress, batch: Batch) -> TransferProgress:
    return replace(
        progress, done_files=progress.done_files + batch.files, done_bytes=progress.done_bytes + batch.size_in_bytes
    )


# --- handoff context --------------------------------------------------------------------------------------------------
# The input and the context of a handoff.


@dataclass(frozen=True)
class HandoffInput:
    """The snapshots to archive, from one metadata file of one table. `plan_id` identifies the handoff's work. `thinned`
    are snapshots of the plan that the policy does not archive. `read_base` reads the base metadata if it cannot be read
    at its own location. `current` is the live table's metadata as of now, `seen_ms` when the base was it. `named`
    records the snapshots that a refused handoff would have left out: an approval is for these."""

    plan_id: str
    table: str
    table_uuid: str
    base_metadata_location: str
    snapshot_ids: tuple[int, ...]
    thinned: tuple[int, ...] = ()
    read_base: Callable[[], bytes] | None = None
    current: TableMetadata | None = None
    seen_ms: int = 0
    named: Callable[[Collection[int]], None] = lambda snapshot_ids: None


@dataclass(frozen=True)
class HandoffContext:
    """What a handoff needs. `check` raises when the worker's lease is lost. It is called before each batch and before
    the cold catalog changes. `record` runs in the transaction that publishes, with the new metadata location, if both
    must commit together; its connection is to the cold catalog's database. `handed_off` is the cold metadata file
    that the table's newest handoff recorded in the operations database, `left_ms` when the live table last left a line
    of its metadata."""

    spark: Spark
    live_stores: Stores
    cold_stores: Stores
    config: LifecycleConfig
    batches: HandoffBatches | None = None
    settings: TransferSettings = field(default_factory=TransferSettings)
    check: Callable[[], None] = lambda: None
    on_progress: Callable[[TransferProgress], None] = lambda progress: None
    record: Callable[[Connection, str], None] | None = None
    handed_off: str | None = None
    left_ms: int = 0

    @property
    def runner(self) -> Runner:
        return Runner(self.spark)

    @property
    def root(self) -> str:
        root = self.config.operations.root
        if root is None:
            raise ConfigError("operations.root is not set", hint="set it in lifecycle.yaml")
        return root
