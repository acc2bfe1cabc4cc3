"""Sealed expiration plans. A plan consists of the table, the base metadata file, the snapshots and refs to remove,
and the files that only they reach. Its id is the digest of that content, so that the same decision always has the
same id."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from artemis_lifecycle.catalogs.results import ResultTable
from artemis_lifecycle.errors import (
    GarbageCollectionDisabled,
    MissingFile,
    NoSuchPlan,
    PlanStateError,
    StalePlan,
    StorageError,
)
from artemis_lifecycle.metadata.table_metadata import (
    parse_table_metadata,
    read_table_metadata,
    refuse_encrypted,
    uncollected,
)
from artemis_lifecycle.metadata.types import CONTENT_KINDS, LogEntry, TableMetadata
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle.reachability.index import DEFAULT_SETTINGS, IndexSettings
from artemis_lifecycle.reachability.index.files import DELETABLE, deletable_parts
from artemis_lifecycle.reachability.index.refresh import require_present
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.retention.rules import Decision, Keepers, RetentionSettings, decide, view_of
from artemis_lifecycle.retention.views import Reason
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.storage.frames import (
    drop_frame,
    frame_batches,
    frame_of,
    owner_folder,
    rows_digest,
    write_batches,
)
from artemis_lifecycle.storage.instants import in_calendar, milliseconds
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.tabular import Shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


# --- lifetime ---------------------------------------------------------------------------------------------------------
# Since when, and until when, snapshots keep what they hold. Pure: a query to the retention rules.

_FAR_MS = 100 * 365 * 86_400_000
_EXACT_TO_MS = 1_000


def held_until(
    metadata: TableMetadata,
    snapshot_ids: Collection[int],
    settings: RetentionSettings,
    now_ms: int,
    keepers: Keepers,
) -> int | None:
    """Return the first instant (epoch ms, to the second) at which a plan would keep none of the snapshots, in the
    current state.

    None: not within a hundred years, if nothing is committed and no ref is changed. A branch's current snapshot stays
    forever, until a later commit replaces it. `now_ms` itself: the next plan removes them.
    """
    view, wanted = view_of(metadata), set(snapshot_ids)

    def kept_at(instant_ms: int) -> bool:
        holds = tuple(each for each in keepers["holds"] if each.until_ms is None or each.until_ms >= instant_ms)
        return not wanted.isdisjoint(decide(view, settings, instant_ms, **(keepers | {"holds": holds})).kept)

    if not kept_at(now_ms):
        return now_ms
    low, high = now_ms, now_ms + _FAR_MS
    if kept_at(high):
        return None
    while high - low > _EXACT_TO_MS:
        middle = (low + high) // 2
        low, high = (middle, high) if kept_at(middle) else (low, middle)
    return high


_TERMS = ("older_than_ms", "retain_last", "explicit_ids")
_DROPS = "write.metadata.delete-after-commit.enabled"
"""The property of tables whose writers delete metadata files that drop out of the log, including a plan's base."""

_BESIDE = "removal.json"


@dataclass(frozen=True)
class KindTotal:
    kind: str
    files: int
    size_in_bytes: int


@dataclass(frozen=True)
class PlanSummary:
    """Counts of a plan; sizes in bytes. `warnings` say what about the table a person should change."""

    snapshots_kept: int
    snapshots_expired: int
    refs_expired: int
    files: int
    size_in_bytes: int
    by_kind: tuple[KindTotal, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExpirationPlan(Shown):
    """What one expiration removes, sealed. The table has not changed yet.

    `expired_snapshots` are ids in the order of the table's history. `ref_snapshots` are those of `expired_refs`. `kept`
    has every reason of every kept snapshot. `snapshot_log` is the table's complete log at the plan's base, for the
    checks of the plan. Long after the plan is over (`records.keep`), `kept` and `snapshot_log` are empty, and its list
    of files is gone.
    """

    plan_id: str
    table: str
    table_uuid: str
    base_metadata_location: str
    decided_at: datetime
    cutoff: datetime | None
    settings: RetentionSettings
    expired_snapshots: tuple[int, ...]
    expired_refs: tuple[str, ...]
    kept: Mapping[int, tuple[str, ...]] = field(repr=False)
    snapshot_log: tuple[LogEntry, ...] = field(repr=False)
    summary: PlanSummary
    files_location: str
    _spark: Spark = field(repr=False, compare=False)
    _stores: Stores = field(repr=False, compare=False)
    ref_snapshots: tuple[int, ...] = ()

    def files(self) -> DataFrame:
        """Return DataFrame[path, kind, size_in_bytes, reason], one row per file that may be deleted after the
        commit."""
        return frame_of(self._spark, self.files_location, self._stores)

    @property
    def deletable_data_files(self) -> DataFrame:
        """Return DataFrame[path] of data files, delete files and deletion vectors."""
        files = self.files()
        return files.filter(files.kind.isin(*CONTENT_KINDS)).select("path")

    @property
    def deletable_manifests(self) -> DataFrame:
        """Return DataFrame[path] of manifests."""
        return self.files().filter("kind = 'manifest'").select("path")

    @property
    def deletable_manifest_lists(self) -> DataFrame:
        """Return DataFrame[path] of manifest lists."""
        return self.files().filter("kind = 'manifest_list'").select("path")


@dataclass(frozen=True)
class WhatIf(Shown):
    """What a plan would remove now. It is not sealed: no step can use it. The fields are those of `ExpirationPlan`."""

    table: str
    decided_at: datetime
    cutoff: datetime | None
    settings: RetentionSettings
    expired_snapshots: tuple[int, ...]
    expired_refs: tuple[str, ...]
    kept: Mapping[int, tuple[str, ...]] = field(repr=False)
    summary: PlanSummary
    _spark: Spark = field(repr=False, compare=False)
    _files: pa.Table = field(repr=False, compare=False)

    def files(self) -> DataFrame:
        """Return DataFrame[path, kind, size_in_bytes, reason], one row per file that could be deleted."""
        return Runner(self._spark).rows(self._files).frame()


class Wanted(NamedTuple):
    """The arguments of `Lifecycle.plan_expiration` besides the table."""

    now: datetime | None = None
    older_than: datetime | None = None
    retain_last: int | None = None
    snapshot_ids: Sequence[int] | None = None

    @property
    def is_specific(self) -> bool:
        """Whether the caller asks for another plan than the policy makes."""
        return self[1:] != (None, None, None)


def not_committable(plan: ExpirationPlan, status: str) -> PlanStateError:
    """Return the error for a plan that is no longer there to be committed."""
    return PlanStateError(
        f"Plan {plan.plan_id} is {status}",
        table=plan.table,
        untouched="the table and all files",
        hint=f"plan again: artemis plan {quote(plan.table)}",
    )


@dataclass(frozen=True)
class PlanRequest:
    """All inputs of a plan; the same request on the same metadata gives the same plan."""

    table: str
    metadata: TableMetadata
    settings: RetentionSettings
    now: datetime
    keepers: Keepers


@uncollected()
def plan_expiration(
    spark: Spark,
    stores: Stores,
    operations: Operations,
    request: PlanRequest,
    *,
    root: str,
    rules: LocationRules,
    window_day: date | None = None,
    stale: str | None = None,
    index: IndexSettings = DEFAULT_SETTINGS,
) -> ExpirationPlan:
    """Decide, walk and seal. Reads only the table's metadata; writes under `root` and in Postgres.

    Supersedes the table's other uncommitted plan; an approved one only if it is the `stale` one.

    Raises UnreadableMetadata, without sealing anything, if any metadata file is missing or cannot be read; what
    `refuse_unexpirable` raises; the errors of `decide` for explicit ids that cannot be removed.
    """
    decision, files = _decided(spark, stores, request, root, rules, index)
    return seal_plan(spark, stores, operations, request, decision, files, root=root, window_day=window_day, stale=stale)


@uncollected()
def what_if(
    spark: Spark, stores: Stores, request: PlanRequest, *, root: str, rules: LocationRules, index: IndexSettings
) -> WhatIf:
    """Return what `plan_expiration` would seal. Raises as it does."""
    decision, found = _decided(spark, stores, request, root, rules, index)
    files = pa.concat_tables(found)
    return WhatIf(
        table=request.table,
        decided_at=request.now,
        cutoff=None if decision.cutoff_ms is None else in_calendar(decision.cutoff_ms),
        settings=request.settings,
        expired_snapshots=tuple(decision.expired),
        expired_refs=tuple(decision.expired_refs),
        kept=_as_texts(decision.kept),
        summary=_summary(decision, [_counted(files)]),
        _spark=spark,
        _files=files,
    )


def _decided(
    spark: Spark, stores: Stores, request: PlanRequest, root: str, rules: LocationRules, index: IndexSettings
) -> tuple[Decision, Iterable[pa.Table]]:
    refuse_unexpirable(request.metadata, request.table)
    decision = decide(view_of(request.metadata), request.settings, milliseconds(request.now), **request.keepers)
    view = indexed(spark, stores, request.metadata, rules, root, index)
    require_present(view)
    return decision, deletable_parts(view, decision.expired)


def _counted(files: pa.Table) -> pa.Table:
    counted = files.group_by("kind").aggregate([("path", "count"), ("size_in_bytes", "sum")])
    return counted.rename_columns({"path_count": "files", "size_in_bytes_sum": "size"})


def _summary(decision: Decision, counted: Sequence[pa.Table], warnings: tuple[str, ...] = ()) -> PlanSummary:
    every = pa.concat_tables(counted).group_by("kind").aggregate([("files", "sum"), ("size", "sum")]).sort_by("kind")
    totals = tuple(KindTotal(row["kind"], row["files_sum"], row["size_sum"]) for row in every.to_pylist())
    return PlanSummary(
        snapshots_kept=len(decision.kept),
        snapshots_expired=len(decision.expired),
        refs_expired=len(decision.expired_refs),
        files=sum(total.files for total in totals),
        size_in_bytes=sum(total.size_in_bytes for total in totals),
        by_kind=totals,
        warnings=warnings,
    )


def seal_plan(
    spark: Spark,
    stores: Stores,
    operations: Operations,
    request: PlanRequest,
    decision: Decision,
    files: Iterable[pa.Table],
    *,
    root: str,
    window_day: date | None = None,
    stale: str | None = None,
    warnings: tuple[str, ...] = (),
    beside: bytes | None = None,
) -> ExpirationPlan:
    """Seal what was decided, and the files (path, kind, size_in_bytes, reason) that then may go, in parts that depend
    on nothing else. `beside` is what the commit of another format needs; `read_beside` returns it."""
    metadata = request.metadata
    folder = f"{root}/plans/{metadata.table_uuid}/{uuid.uuid4().hex}"
    counted: list[pa.Table] = []
    digests: list[str] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for part in files:
            counted.append(_counted(part))
            digests.append(rows_digest(part))
            yield from part.to_batches()

    write_batches(batches(), DELETABLE, f"{folder}/files", stores)
    # A plan that a person asked for by other terms than the policy's is another one: its commit goes by these.
    content: dict[str, object] = {
        "table_uuid": metadata.table_uuid,
        "base": metadata.metadata_location,
        "expired": list(decision.expired),
        "refs": sorted(decision.expired_refs),
        "files": "".join(digests),
        **{name: value for name in _TERMS if (value := getattr(request.settings, name)) not in (None, ())},
        **({} if beside is None else {"beside": hashlib.sha256(beside).hexdigest(), "warnings": warnings}),
    }
    content_id = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
    generation = operations.plans.generation(content_id)
    plan_id = content_id if generation == 0 else f"{content_id}-{generation}"
    known = next((each for each in operations.plans.of_table(metadata.table_uuid) if each.plan_id == plan_id), None)
    if known is not None:
        drop_frame(f"{folder}/files", stores)
        if known.status in (PlanStatus.OPEN, PlanStatus.HANDED_OFF):
            return load_plan(spark, stores, operations, plan_id)
        folder = owner_folder(known.files_location)
    plan = ExpirationPlan(
        plan_id=plan_id,
        table=request.table,
        table_uuid=metadata.table_uuid,
        base_metadata_location=metadata.metadata_location,
        decided_at=request.now,
        cutoff=None if decision.cutoff_ms is None else in_calendar(decision.cutoff_ms),
        settings=request.settings,
        expired_snapshots=tuple(decision.expired),
        expired_refs=tuple(decision.expired_refs),
        kept=_as_texts(decision.kept),
        snapshot_log=tuple(metadata.snapshot_log),
        summary=_summary(decision, counted, warnings),
        files_location=f"{folder}/files",
        _spark=spark,
        _stores=stores,
        ref_snapshots=tuple(metadata.refs[ref].snapshot_id for ref in decision.expired_refs),
    )
    if plan.expired_snapshots and metadata.properties.get(_DROPS, "").lower() == "true":
        # If it is already gone, the step that needs it reports a stale plan.
        with suppress(MissingFile):
            stores.copy(metadata.metadata_location, _base_copy(plan.files_location))
    if beside is not None:
        stores.write(f"{folder}/{_BESIDE}", beside, overwrite=True)
    stores.write(description_of(plan), _to_json(plan), overwrite=True)
    operations.plans.seal(
        PlanRecord(
            plan_id=plan_id,
            content_id=content_id,
            table_uuid=metadata.table_uuid,
            table=request.table,
            status=PlanStatus.OPEN,
            base_metadata_location=metadata.metadata_location,
            files_location=plan.files_location,
            rule=request.settings.rule,
            expired_snapshots=len(plan.expired_snapshots),
            expired_refs=plan.expired_refs,
            files=plan.summary.files,
            bytes=plan.summary.size_in_bytes,
            summary=json.dumps(asdict(plan.summary)),
            planned_at=request.now,
            window_day=window_day,
        ),
        stale=stale,
    )
    return plan


def read_beside(stores: Stores, plan: ExpirationPlan) -> bytes:
    """Return what was sealed beside the plan for its commit. Raises StorageError."""
    return stores.read(f"{owner_folder(plan.files_location)}/{_BESIDE}")


def refuse_unexpirable(metadata: TableMetadata, table: str) -> None:
    """Raise GarbageCollectionDisabled or EncryptedTable for a table whose snapshots must not, or cannot, be expired."""
    refuse_encrypted(metadata, table)
    if not metadata.gc_enabled:
        raise GarbageCollectionDisabled(
            "The table has gc.enabled=false: its files may also belong to other tables",
            table=table,
            path=metadata.metadata_location,
            untouched="its metadata and all files",
            hint="set gc.enabled=true if no other table shares its files",
        )


def load_plan(spark: Spark, stores: Stores, operations: Operations, plan_id: str) -> ExpirationPlan:
    """Return the sealed plan with that id; works from any process. Raises NoSuchPlan, and StorageError if its seal is
    damaged."""
    record = operations.plans.get(plan_id)
    path = description_of(record)
    if record.forgetting_at is not None and record.committed_at is None:
        raise NoSuchPlan(
            f"Plan {plan_id} was {record.status}, and its list was deleted on {record.forgetting_at:%Y-%m-%d}, after "
            "`records.keep`",
            table=record.table,
            hint=f"its record is in: artemis plans {quote(record.table)}",
        )
    try:
        return _from_json(stores.read(path), record, spark, stores)
    except (MissingFile, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"Plan {plan_id} cannot be read: {error}",
            table=record.table,
            path=path,
            untouched="the table and all files of the plan",
            hint=f"restore the file; or close the plan (artemis close {plan_id}) and plan again",
        ) from error


def trim_plan(stores: Stores, operations: Operations, plan_id: str) -> None:
    """Shorten the description of a committed plan that is over: remove why each snapshot is kept, and the snapshot log.
    A description that is missing or damaged stays as it is."""
    path = description_of(operations.plans.get(plan_id))
    try:
        content = json.loads(stores.read(path))
    except (MissingFile, ValueError):
        return
    trimmed = {**content, "kept": [], "kept_because": [], "snapshot_log": []}
    if trimmed != content:
        stores.write(path, json.dumps(trimmed).encode(), overwrite=True)


def read_base(stores: Stores, plan: ExpirationPlan) -> bytes:
    """Return the base metadata file of the plan, or its copy if the table has deleted it since. Raises StalePlan."""
    try:
        return stores.read(plan.base_metadata_location)
    except MissingFile as missing:
        try:
            return stores.read(_base_copy(plan.files_location))
        except MissingFile:
            raise StalePlan(
                "The plan's base metadata file is gone: the table deletes old ones",
                table=plan.table,
                path=plan.base_metadata_location,
                untouched="both tiers",
                hint=f"close it (artemis close {plan.plan_id}) and plan again: artemis plan {quote(plan.table)}",
            ) from missing


def base_metadata(stores: Stores, plan: ExpirationPlan) -> TableMetadata:
    """Return the parsed result of `read_base`."""
    return parse_table_metadata(read_base(stores, plan), plan.base_metadata_location, stores.limits)


def overtaken(plan: ExpirationPlan, current: TableMetadata) -> tuple[int, ...]:
    """Return the plan's snapshots that the table no longer has."""
    return tuple(snapshot for snapshot in plan.expired_snapshots if current.snapshot(snapshot) is None)


def unarchived(
    stores: Stores, plan: ExpirationPlan, current: TableMetadata, kept_base: str | None = None
) -> TableMetadata | None:
    """Return the base of a plan, or its copy `kept_base` in quarantine, reduced to the plan's snapshots that the table
    no longer has; None if there are none.

    What they reach must stay: an open plan's handoff has yet to copy it, or an undelete has brought it back. No other
    metadata reaches it any more. A snapshot whose manifest list is gone cannot be archived, and is omitted. Raises
    StalePlan if the base is gone.
    """
    wanted = set(overtaken(plan, current))
    if not wanted:
        return None
    base = base_metadata(stores, plan) if kept_base is None else read_table_metadata(stores, kept_base)
    snapshots = [snapshot for snapshot in base.snapshots if snapshot.snapshot_id in wanted]
    lists = {each.manifest_list for each in snapshots if each.manifest_list is not None}
    absent = {path for path, found in zip(lists, stores.heads(list(lists)), strict=True) if found is None}
    kept = tuple(each for each in snapshots if each.manifest_list not in absent)
    ids = {each.snapshot_id for each in kept}
    return replace(
        base,
        snapshots=kept,
        current_snapshot_id=None,
        refs={},
        snapshot_log=(),
        statistics=tuple(file for file in base.statistics if file.snapshot_id in ids),
    )


def _base_copy(files_location: str) -> str:
    return f"{owner_folder(files_location)}/base.metadata.json"


def description_of(plan: ExpirationPlan | PlanRecord) -> str:
    """Return where the plan is described, in a file that is written when it is sealed."""
    return f"{owner_folder(plan.files_location)}/plan.json"


def _as_texts(kept: Mapping[int, tuple[Reason, ...]]) -> dict[int, tuple[str, ...]]:
    """Return the reasons as texts. Snapshots with the same reasons share one tuple of reasons, and one of texts."""
    words = {id(reasons): tuple(map(str, reasons)) for reasons in {id(each): each for each in kept.values()}.values()}
    return {snapshot: words[id(reasons)] for snapshot, reasons in kept.items()}


def _to_json(plan: ExpirationPlan) -> bytes:
    # Each set of reasons is stored once: thousands of snapshots may have the reasons of thousands of refs.
    sets = {id(reasons): reasons for reasons in plan.kept.values()}
    numbers = {key: number for number, key in enumerate(sets)}
    content = {
        "plan_id": plan.plan_id,
        "decided_at_ms": milliseconds(plan.decided_at),
        "cutoff_ms": None if plan.cutoff is None else milliseconds(plan.cutoff),
        "settings": asdict(plan.settings),
        "expired_snapshots": list(plan.expired_snapshots),
        "expired_refs": list(plan.expired_refs),
        "ref_snapshots": list(plan.ref_snapshots),
        "kept": [(snapshot, numbers[id(reasons)]) for snapshot, reasons in plan.kept.items()],
        "kept_because": list(sets.values()),
        "snapshot_log": [(entry.timestamp_ms, entry.snapshot_id) for entry in plan.snapshot_log],
        "summary": asdict(plan.summary),
    }
    return json.dumps(content).encode()


def _from_json(data: bytes, record: PlanRecord, spark: Spark, stores: Stores) -> ExpirationPlan:
    content = json.loads(data)
    summary = content["summary"]
    by_kind = tuple(KindTotal(**total) for total in summary.pop("by_kind"))
    warnings = tuple(summary.pop("warnings", ()))
    settings = content["settings"]
    explicit: Sequence[int] = settings.pop("explicit_ids")
    because = [tuple(reasons) for reasons in content["kept_because"]]
    return ExpirationPlan(
        plan_id=record.plan_id,
        table=record.table,
        table_uuid=record.table_uuid,
        base_metadata_location=record.base_metadata_location,
        decided_at=in_calendar(content["decided_at_ms"]),
        cutoff=None if content["cutoff_ms"] is None else in_calendar(content["cutoff_ms"]),
        settings=RetentionSettings(**settings, explicit_ids=tuple(explicit)),
        expired_snapshots=tuple(content["expired_snapshots"]),
        expired_refs=tuple(content["expired_refs"]),
        kept={snapshot: because[number] for snapshot, number in content["kept"]},
        snapshot_log=tuple(LogEntry(timestamp_ms=at, snapshot_id=snapshot) for at, snapshot in content["snapshot_log"]),
        summary=PlanSummary(**summary, by_kind=by_kind, warnings=warnings),
        files_location=record.files_location,
        _spark=spark,
        _stores=stores,
        ref_snapshots=tuple(content["ref_snapshots"]),
    )


# --- explained --------------------------------------------------------------------------------------------------------
# Why a file is in a plan, or why it is not.


@dataclass(frozen=True)
class Keeper:
    """What keeps a file out of a plan: a snapshot of the plan's base, with every reason why it is kept, or (without an
    id) the metadata file itself."""

    snapshot_id: int | None
    what: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanExplanation:
    """A file and a plan. `in_plan` means that it may be deleted after the plan's commit, for `reason`. Otherwise
    `kept_by` says what keeps it; if that is empty, no snapshot of the plan's base reaches it."""

    plan_id: str
    table: str
    path: str
    in_plan: bool
    reason: str
    kind: str | None = None
    size_in_bytes: int | None = None
    kept_by: tuple[Keeper, ...] = ()


def why_kept(plan: ExpirationPlan, path: str, holders: Sequence[tuple[int | None, str]]) -> PlanExplanation:
    """Return the explanation of a file that is not in `plan`. `holders` are the snapshots of the plan's base that reach
    it, as (id, text); (None, text) for the metadata file itself."""
    keepers = tuple(
        Keeper(snapshot_id, text, plan.kept.get(snapshot_id, ()) if snapshot_id is not None else ())
        for snapshot_id, text in holders
        if snapshot_id is None or snapshot_id in plan.kept
    )
    if keepers:
        reason = f"{len(keepers)} of what the plan keeps reaches it"
    else:
        reason = (
            "no snapshot of the plan's base reaches it: it is of a newer commit, of a commit in flight, an orphan, or "
            "already deleted; artemis explain shows which"
        )
    return PlanExplanation(plan.plan_id, plan.table, path, False, reason, kept_by=keepers)


# --- results ----------------------------------------------------------------------------------------------------------
# Plans as rows of the result table `plan_files`, for people. No decision uses them.

PLAN_FILES = ResultTable(
    "plan_files",
    """
    plan_id string,
    table_name string,
    table_uuid string,
    path string COMMENT 'as the metadata spells it',
    kind string,
    size_in_bytes bigint,
    reason string,
    planned_at timestamp
    """,
    key="plan_id",
    instant="planned_at",
)


def plan_rows(stores: Stores, plan: PlanRecord) -> Iterator[pa.Table]:
    """Yield the plan's files with the columns of PLAN_FILES."""
    same = {"plan_id": plan.plan_id, "table_name": plan.table, "table_uuid": plan.table_uuid}
    instant = pa.scalar(plan.planned_at, pa.timestamp("us", "UTC"))
    for files in frame_batches(plan.files_location, stores):
        columns: dict[str, pa.Array] = {name: pa.repeat(value, files.num_rows) for name, value in same.items()}
        columns |= {name: files.column(name) for name in ("path", "kind", "size_in_bytes", "reason")}
        yield pa.table({**columns, "planned_at": pa.repeat(instant, files.num_rows)})
