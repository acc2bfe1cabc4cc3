"""Bringing an expired snapshot back: its files copied from the cold tier into a folder of the live table, verified
against what was recorded when they were archived, and named by a new snapshot on a branch of its own.

Iceberg refuses a snapshot whose sequence number is not the newest, so the old one cannot come back as itself. What its
manifests say does: every entry keeps its sequence number, its snapshot id and its first row id, so that deletes apply
to the rows that they applied to, and rows keep their ids. The new snapshot has no parent: nothing in the live table is
its ancestor. Source: format/spec.md, "Snapshots", "Sequence Number Inheritance", "First Row ID Inheritance".

Restored files never have the path that they had: an unfinished deletion may still name it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.commit import BaseState, BranchChange, Change, CommitResult, commit_with_retry
from artemis_lifecycle.cold_tier.evolution import (
    SCHEMAS,
    SPECS,
    AlwaysUnsorted,
    Ids,
    field_ids,
    same_ids,
    unreadable_fields,
)
from artemis_lifecycle.cold_tier.ledger import COPIED, PRESENT, REWRITTEN, CopiedFile, Ledger, handoff_ledger
from artemis_lifecycle.cold_tier.name_mapping import NAME_MAPPING, joint, names_its_fields
from artemis_lifecycle.cold_tier.paths import ColdIdentity
from artemis_lifecycle.cold_tier.tasks import FileWork, each_file
from artemis_lifecycle.cold_tier.transfer import Transfer, TransferSettings
from artemis_lifecycle.cold_tier.work import Batch, Demand, Problem, Work
from artemis_lifecycle.errors import BadInput, LeaseLost, NoSuchSnapshot, RestoreFailed
from artemis_lifecycle.metadata import manifest_lists, manifests
from artemis_lifecycle.metadata.table_metadata import read_table_metadata, refuse_encrypted
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.restores import RestoreRecord
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "restored"
"""In a live table's location: what was brought back, one folder for each restore."""

RESTORE_ID = "artemis.restore-id"
RESTORED_SNAPSHOT = "artemis.restored-snapshot-id"
RESTORED_FROM = "artemis.restored-from"
"""Keys of a restored snapshot's summary: the restore, the snapshot whose rows these are, and the cold table."""

_WRITER = "artemis-lifecycle/restore"
_PROTECTED = timedelta(hours=24)
"""A killed restore can go on for so long; after that its copies may be taken for orphans, and it begins anew."""


@dataclass(frozen=True)
class RestoreRequest:
    """`snapshot_id` of the cold tier is wanted on `branch` of the live table. `summary`: what the commit says of who
    made it, and why (lineage keys)."""

    table: str
    table_uuid: str
    snapshot_id: int
    branch: str
    who: str
    why: str | None = None
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RestoreContext:
    """What a restore works with. `check` raises when the worker's lease is lost."""

    spark: SparkSession
    live_stores: Stores
    cold_stores: Stores
    operations: Operations
    live_catalog: str
    root: str
    settings: TransferSettings = field(default_factory=TransferSettings)
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Restored:
    """What a restore did: `branch` has the rows of `source_snapshot_id` as its snapshot `snapshot_id`. A snapshot that
    the live table still had is its own, and nothing was copied. Sizes in bytes; every copied file was verified."""

    table: str
    source_snapshot_id: int
    branch: str
    snapshot_id: int
    metadata_location: str
    restore_id: str | None = None
    copied_files: int = 0
    copied_bytes: int = 0
    rewritten_files: int = 0
    attempts: int = 0


class RestoreMapping:
    """The path in a restore's folder of a path in the cold tier. Picklable."""

    def __init__(self, identity: ColdIdentity, folder: str, ids: Ids) -> None:
        self._roots = (
            (identity.cold_location.rstrip("/") + "/", f"{folder}/table/"),
            (identity.cold_warehouse.rstrip("/") + "/", f"{folder}/warehouse/"),
        )
        self._folder = folder + "/"
        self.rules = identity.rules
        self.ids = ids

    def __call__(self, path: str) -> str:
        for root, place in self._roots:
            if path.startswith(root):
                return place + path[len(root) :]
        raise RestoreFailed(
            "The cold table names a file outside the cold warehouse",
            path=path,
            untouched="the live table",
            hint="see who wrote that metadata: no handoff did",
        )

    def owns(self, path: str) -> bool:
        return path.startswith(self._folder)


def restore(
    context: RestoreContext,
    request: RestoreRequest,
    live: TableMetadata,
    cold: TableMetadata | None,
    identity: ColdIdentity | None,
) -> Restored:
    """Bring the snapshot back; `cold` and `identity` are None for a table without a cold one. Call it under the table's
    lease. Running it again goes on where it was killed, and does nothing when it is done.

    Raises NoSuchSnapshot when neither tier has it; BadInput for a branch that cannot be made; RestoreFailed, the live
    table unchanged, when a file is gone, damaged, or cannot be copied; LeaseLost; CommitConflict.
    """
    done = _done(context, request, live)
    if done is not None:
        return done
    if live.snapshot(request.snapshot_id) is not None:
        return _branch_on(context, request)
    source = None if cold is None else cold.snapshot(request.snapshot_id)
    if source is None or cold is None or identity is None:
        raise NoSuchSnapshot(
            f"Neither tier has snapshot {request.snapshot_id}",
            table=request.table,
            untouched="the table",
            hint=f"see what there is with: artemis history {quote(request.table)}",
        )
    refuse_encrypted(cold, request.table)
    ids = _live_ids(context, request, source, cold, live)
    record = _begin(context, request, live)
    if not _goes_by(context, record, ids):
        # Manifests that were copied name partition specs by what was theirs then.
        _abandon(context, record)
        record = _begin(context, request, live)
        _goes_by(context, record, ids)
    manifest_list = _bring_back(context, request, record, cold, source, RestoreMapping(identity, record.folder, ids))
    snapshot_id, result = _commit(context, request, record, source, cold, identity, ids, manifest_list)
    return _finished(context, request, record.restore_id, snapshot_id, result.metadata_location, result.attempts)


def _finished(
    context: RestoreContext,
    request: RestoreRequest,
    restore_id: str,
    snapshot_id: int,
    metadata_location: str,
    attempts: int,
) -> Restored:
    context.operations.restores.finish(restore_id, snapshot_id, metadata_location)
    context.operations.heartbeats.stop(request.table_uuid, _WRITER, session=restore_id)
    outcome = _ledger(context, restore_id).outcome(restore_id)
    actions = (COPIED, REWRITTEN, PRESENT)
    return Restored(
        table=request.table,
        source_snapshot_id=request.snapshot_id,
        branch=request.branch,
        snapshot_id=snapshot_id,
        metadata_location=metadata_location,
        restore_id=restore_id,
        copied_files=sum(outcome.files.get(action, 0) for action in actions),
        copied_bytes=sum(outcome.size_in_bytes.get(action, 0) for action in actions),
        rewritten_files=outcome.files.get(REWRITTEN, 0),
        attempts=attempts,
    )


# --- before anything is touched -------------------------------------------------------------------------------------


def _done(context: RestoreContext, request: RestoreRequest, live: TableMetadata) -> Restored | None:
    """The answer, where the branch has the snapshot already; None where it is still to be made."""
    if not request.branch.strip() or request.branch == "main":
        raise BadInput(
            "main is what the table's writers write to" if request.branch.strip() else "The branch has no name",
            table=request.table,
            untouched="the table",
            hint="restore to a branch of its own, look at it, and take from there what you need",
        )
    ref = live.refs.get(request.branch)
    if ref is None or (ref.is_branch and ref.snapshot_id == request.snapshot_id):
        return None
    head = live.snapshot(ref.snapshot_id)
    restore_id = None if head is None else head.summary.get(RESTORE_ID)
    if (
        not ref.is_branch
        or head is None
        or restore_id is None
        or head.summary.get(RESTORED_SNAPSHOT) != str(request.snapshot_id)
    ):
        raise _taken(request, ref.snapshot_id, "branch" if ref.is_branch else "tag")
    # Killed between the commit and its record, or asked for twice.
    return _finished(context, request, restore_id, head.snapshot_id, live.metadata_location, 0)


def _taken(request: RestoreRequest, snapshot_id: int, kind: str) -> BadInput:
    return BadInput(
        f"The table has a {kind} {request.branch!r} already, on snapshot {snapshot_id}",
        table=request.table,
        untouched="the table",
        hint="name another branch, or drop that one first",
    )


def _live_ids(
    context: RestoreContext, request: RestoreRequest, source: Snapshot, cold: TableMetadata, live: TableMetadata
) -> Ids:
    """What the ids that the snapshot's files go by are in the live table. Raises RestoreFailed where it has no such
    partition spec any more, or has another column in the place of one."""

    def refusal(what: str) -> RestoreFailed:
        return RestoreFailed(
            what,
            table=request.table,
            path=live.metadata_location,
            untouched="the live table",
            hint=f"read it where it is (lifecycle.read, artemis query … FOR VERSION AS OF {source.snapshot_id}) and "
            "insert what you need",
        )

    if source.manifest_list is None:
        raise refusal(
            f"Snapshot {source.snapshot_id} was written without a manifest list, as format version 1 once allowed"
        )
    specs = same_ids(cold.partition_specs, live.partition_specs, SPECS)
    for entry in manifest_lists.manifests_of(context.cold_stores, source).entries:
        if entry.partition_spec_id not in specs:
            raise refusal(
                f"The live table no longer has partition spec {entry.partition_spec_id}, by which the snapshot's files "
                "are partitioned"
            )
    then = cold.schemas.get(cold.current_schema_id if source.schema_id is None else source.schema_id)
    if then is not None:
        fields = unreadable_fields(json.loads(then), json.loads(live.schemas[live.current_schema_id]))
        if fields:
            raise refusal(
                f"The live table has columns of another type under the ids {', '.join(map(str, fields))}: the "
                "snapshot's values cannot be read as those"
            )
        _require_mapping(context, source, json.loads(then), cold, live, refusal)
    schemas = same_ids(cold.schemas, live.schemas, SCHEMAS)
    # Whatever order a file is in, it may be called unsorted.
    return Ids(schemas, specs, AlwaysUnsorted())


def _require_mapping(
    context: RestoreContext,
    source: Snapshot,
    schema: dict[str, Any],
    cold: TableMetadata,
    live: TableMetadata,
    refusal: Callable[[str], RestoreFailed],
) -> None:
    """Raise where a file of the snapshot has no field ids, and live's name mapping would read it otherwise."""
    read = set(field_ids(schema))
    then, now = (metadata.properties.get(NAME_MAPPING) for metadata in (cold, live))
    if joint(then, now, read, read) is not None:
        return
    files: dict[str, str] = {}
    for entry in manifest_lists.manifests_of(context.cold_stores, source).entries:
        batch = manifests.live_entries(context.cold_stores, entry)
        files |= zip(batch.column("file_path").to_pylist(), batch.column("file_format").to_pylist(), strict=True)
    look = _Named(context.cold_stores, files)
    bare = [path for path, named in each_file(context.spark, look, sorted(files)) if not named]
    if bare:
        raise refusal(
            f"{len(bare)} of the snapshot's files have no field ids (such as {bare[0]}), and the live table's "
            f"{NAME_MAPPING} would read their columns otherwise than the snapshot did"
        )


class _Named(FileWork):
    schema = "path string, named boolean"

    def __init__(self, stores: Stores, formats: Mapping[str, str]) -> None:
        super().__init__(stores)
        self._formats = formats

    def one(self, path: str) -> tuple[str, bool]:
        with self.stores.open(path) as file:
            return path, names_its_fields(file, self._formats[path], path)


# --- copying --------------------------------------------------------------------------------------------------------


def _begin(context: RestoreContext, request: RestoreRequest, live: TableMetadata) -> RestoreRecord:
    """The restore's record, its folder protected from now on, and since before its first copy."""
    restores = context.operations.restores
    location = f"{live.location.rstrip('/')}/{FOLDER}"
    while True:
        record = restores.begin(
            request.table_uuid,
            request.table,
            request.snapshot_id,
            request.branch,
            location,
            request.who,
            request.why,
        )
        since = _protect(context, record)
        if record.protected_since is None:
            return restores.protected(record.restore_id, since)
        if record.protected_since == since:
            return record
        # What was copied may have been taken for an orphan, or may be when this looks: none of it is used.
        _abandon(context, record)


def _abandon(context: RestoreContext, record: RestoreRecord) -> None:
    context.operations.restores.abandon(record.restore_id)
    context.operations.heartbeats.stop(record.table_uuid, _WRITER, session=record.restore_id)


def _goes_by(context: RestoreContext, record: RestoreRecord, ids: Ids) -> bool:
    """Whether the restore began with these ids of partition specs; written down where nothing is yet."""
    path = f"{_folder(context, record.restore_id)}/specs.json"
    said = json.dumps(sorted(ids.specs.items())).encode()
    if context.live_stores.head(path) is None:
        with around("restore.specs"):
            context.live_stores.write(path, said, overwrite=True)
        return True
    return context.live_stores.read(path) == said


def _protect(context: RestoreContext, record: RestoreRecord) -> datetime:
    """A heartbeat over the restore's folder; since when it is without a gap."""
    return context.operations.heartbeats.beat(
        record.table_uuid, record.table, _WRITER, record.folder, _PROTECTED, session=record.restore_id
    ).started_at


def _check_protected(context: RestoreContext, record: RestoreRecord) -> None:
    context.check()
    if _protect(context, record) != record.protected_since:
        raise LeaseLost(
            "The heartbeat over the restored files had a gap: some may have been taken for orphans",
            table=record.table,
            path=record.folder,
            untouched="the table",
            hint="run the restore again: it begins anew",
        )


@dataclass(frozen=True)
class _Watcher:
    request: RestoreRequest

    def begin(self, work: Work, recorded: Collection[int]) -> None: ...

    def finish(self, work: Work, batch: Batch, files: Sequence[CopiedFile], error: str | None) -> None: ...

    def failed(self, what: str, path: str) -> RestoreFailed:
        return RestoreFailed(
            what,
            table=self.request.table,
            path=path,
            untouched="the live table's metadata and all files that it had",
            hint="mend what it says and run the restore again: finished batches are kept",
        )

    def lost(self, problems: Sequence[Problem]) -> RestoreFailed:
        return RestoreFailed(
            f"{len(problems)} files of snapshot {self.request.snapshot_id} are gone from the cold tier, or damaged "
            f"there: {problems[0].reason}",
            table=self.request.table,
            path=problems[0].path,
            untouched="the live table's metadata and all files that it had",
            hint="bring the file back from a copy of the cold store, and run the restore again",
        )


def _bring_back(
    context: RestoreContext,
    request: RestoreRequest,
    record: RestoreRecord,
    cold: TableMetadata,
    source: Snapshot,
    mapping: RestoreMapping,
) -> str:
    """Copy all that the snapshot reads; the path of its manifest list."""
    origin = handoff_ledger(context.live_stores, context.root, request.table_uuid)
    # Statistics name the snapshot that they were made for, inside the file too; the new one's are made anew.
    metadata = replace(cold, statistics=())
    Transfer(
        spark=context.spark,
        source=context.cold_stores,
        target=context.live_stores,
        records=context.live_stores,
        folder=_folder(context, record.restore_id),
        work_id=record.restore_id,
        demand=Demand(metadata, (source.snapshot_id,), mapping, origin),
        ledger=_ledger(context, record.restore_id),
        watcher=_Watcher(request),
        settings=context.settings,
        check=lambda: _check_protected(context, record),
    ).run()
    assert source.manifest_list is not None
    return mapping(source.manifest_list)


def _folder(context: RestoreContext, restore_id: str) -> str:
    return f"{context.root}/restores/{restore_id}"


def _ledger(context: RestoreContext, restore_id: str) -> Ledger:
    return Ledger(context.live_stores, f"{_folder(context, restore_id)}/copies")


# --- the commit -----------------------------------------------------------------------------------------------------


def _commit(
    context: RestoreContext,
    request: RestoreRequest,
    record: RestoreRecord,
    source: Snapshot,
    cold: TableMetadata,
    identity: ColdIdentity,
    ids: Ids,
    manifest_list: str,
) -> tuple[int, CommitResult]:
    made = secrets.randbits(63)

    def change(base: BaseState) -> Change | None:
        nonlocal made
        _check_table(request, base)
        ref = base.metadata.ref(request.branch)
        if ref is not None:
            head = base.metadata.snapshot(ref.snapshotId())
            if ref.isBranch() and head is not None and dict(head.summary()).get(RESTORE_ID) == record.restore_id:
                made = int(ref.snapshotId())
                return None
            raise _taken(request, int(ref.snapshotId()), "branch" if ref.isBranch() else "tag")
        while made == 0 or base.metadata.snapshot(made) is not None:
            made = secrets.randbits(63)
        _check_protected(context, record)
        # The copies took their time: specs, column types and the name mapping are as they are now.
        now = read_table_metadata(context.live_stores, base.metadata_location)
        found = _live_ids(context, request, source, cold, now)
        if found.specs != ids.specs:
            raise RestoreFailed(
                "The live table's partition specs got other ids during the restore",
                table=request.table,
                path=base.metadata_location,
                untouched="the live table",
                hint="run the restore again: it begins anew",
            )
        return Change(
            add_snapshots={made: _snapshot(request, record, base, made, source, identity, found, manifest_list)},
            set_branches=(BranchChange(request.branch, made),),
        )

    with table_lock(context.operations.engine, request.table_uuid, table=request.table), around("restore.commit"):
        result = commit_with_retry(
            context.spark,
            context.live_catalog,
            request.table,
            change,
            before_swap=context.operations.table_locations.attempts_of(request.table_uuid),
        )
    return made, result


def _snapshot(
    request: RestoreRequest,
    record: RestoreRecord,
    base: BaseState,
    snapshot_id: int,
    source: Snapshot,
    identity: ColdIdentity,
    ids: Ids,
    manifest_list: str,
) -> str:
    """The new snapshot as JSON, the next one of `base`."""
    metadata = base.metadata
    totals = {key: value for key, value in source.summary.properties.items() if key.startswith("total-")}
    snapshot: dict[str, object] = {
        "snapshot-id": snapshot_id,
        "timestamp-ms": max(time.time_ns() // 1_000_000, int(metadata.lastUpdatedMillis())),
        "summary": {
            **totals,
            **request.summary,
            "operation": "overwrite",
            RESTORE_ID: record.restore_id,
            RESTORED_SNAPSHOT: str(request.snapshot_id),
            RESTORED_FROM: identity.cold_table,
        },
        "manifest-list": manifest_list,
    }
    known = {int(schema.schemaId()) for schema in metadata.schemas()}
    then = None if source.schema_id is None else ids.schemas.get(source.schema_id)
    snapshot["schema-id"] = then if then in known else int(metadata.currentSchemaId())
    if metadata.formatVersion() > 1:
        snapshot["sequence-number"] = int(metadata.nextSequenceNumber())
    if metadata.formatVersion() > 2:
        # Its manifests have their row ids already.
        snapshot["first-row-id"] = int(metadata.nextRowId())
        snapshot["added-rows"] = 0
    return json.dumps(snapshot)


def _branch_on(context: RestoreContext, request: RestoreRequest) -> Restored:
    """A branch on a snapshot that the live table still has: nothing needs to be brought back."""

    def change(base: BaseState) -> Change | None:
        _check_table(request, base)
        ref = base.metadata.ref(request.branch)
        if ref is not None and not (ref.isBranch() and ref.snapshotId() == request.snapshot_id):
            raise _taken(request, int(ref.snapshotId()), "branch" if ref.isBranch() else "tag")
        return None if ref is not None else Change(set_branches=(BranchChange(request.branch, request.snapshot_id),))

    with table_lock(context.operations.engine, request.table_uuid, table=request.table):
        result = commit_with_retry(
            context.spark,
            context.live_catalog,
            request.table,
            change,
            before_swap=context.operations.table_locations.attempts_of(request.table_uuid),
        )
    return Restored(
        table=request.table,
        source_snapshot_id=request.snapshot_id,
        branch=request.branch,
        snapshot_id=request.snapshot_id,
        metadata_location=result.metadata_location,
        attempts=result.attempts,
    )


def _check_table(request: RestoreRequest, base: BaseState) -> None:
    if base.table_uuid != request.table_uuid:
        raise NoSuchSnapshot(
            f"The name now belongs to another table ({base.table_uuid}, not {request.table_uuid})",
            table=request.table,
            untouched="both tables",
            hint="look at the table, and run the restore again if it is the one that you mean",
        )
