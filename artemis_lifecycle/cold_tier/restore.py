"""Restore an expired snapshot: copy its files from the cold tier to a folder of the live table, verify them against the
archive's records, and commit a new snapshot that references them, on a separate branch.

Iceberg refuses a snapshot without the newest sequence number, so the old one cannot return with its own id. But the
content of its manifests can: every entry keeps its sequence number, snapshot id and first row id. So deletes apply to
the same rows as before, and rows keep their ids. The new snapshot has no parent, because it has no ancestor in the live
table. Source: format/spec.md, "Snapshots", "Sequence Number Inheritance", "First Row ID Inheritance".

Restored files never get their old paths, because an unfinished deletion may still list those.
"""

from __future__ import annotations

from dataclasses import replace
from shlex import quote

import pyarrow as pa

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.cold_tier.ledger import COPIED, PRESENT, REWRITTEN
from artemis_lifecycle.cold_tier.paths import ColdIdentity
from artemis_lifecycle.cold_tier.restore_commit import (
    RESTORE_ID,
    RESTORED_AS,
    RESTORED_SNAPSHOT,
    branch_on,
    commit_restored,
    take_back,
    taken,
)
from artemis_lifecycle.cold_tier.restore_context import RestoreContext, Restored, RestoreMapping, RestoreRequest
from artemis_lifecycle.cold_tier.restore_copies import (
    abandon,
    begin,
    bring_back,
    goes_by,
    restore_ledger,
    stop_protecting,
)
from artemis_lifecycle.cold_tier.restore_ids import live_ids
from artemis_lifecycle.contracts.summary import OPERATION
from artemis_lifecycle.errors import BadInput, MissingFile, NoSuchSnapshot, RestoreFailed, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import refuse_encrypted
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.files import IndexFiles
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.spark.java_errors import brief


def restore(
    context: RestoreContext,
    request: RestoreRequest,
    live: TableMetadata,
    cold: TableMetadata | None,
    identity: ColdIdentity | None,
) -> Restored:
    """Restore the snapshot; `cold` and `identity` are None for a table without a cold table. The caller holds the
    table's lease. Another run continues after a kill, and does nothing if the restore is done.

    Raises NoSuchSnapshot if neither tier has it, and BadInput for a branch that cannot be created. Raises
    RestoreFailed, with the live table unchanged, if a file is gone, damaged, or cannot be copied, or if the live table
    cannot have the snapshot; and if the new branch cannot be read. Also raises LeaseLost, CommitConflict.
    """
    done = _done(context, request, live)
    if done is not None:
        return done
    source = None if cold is None else cold.snapshot(request.snapshot_id)
    if live.snapshot(request.snapshot_id) is not None:
        gone = _missing(context, live, request.snapshot_id)
        if gone is None:
            return branch_on(context, request)
        if source is None:
            raise RestoreFailed(
                f"The table's metadata names snapshot {request.snapshot_id}, but one of its files is gone, and the "
                "cold tier does not have the snapshot",
                table=request.table,
                path=gone,
                untouched="the live table",
                hint="find out whether the catalog was restored from a backup, and who deleted the file",
            )
    if source is None or cold is None or identity is None:
        raise NoSuchSnapshot(
            f"Neither tier has snapshot {request.snapshot_id}",
            table=request.table,
            untouched="the table",
            hint=f"list the snapshots with: artemis history {quote(request.table)}",
        )
    refuse_encrypted(cold, request.table)
    # Before files are copied for a commit that would be refused.
    context.require_lineage({**request.summary, OPERATION: RESTORED_AS})
    placement = live_ids(context, request, source, cold, live)
    ids = placement.ids
    record = begin(context, request, live)
    if not goes_by(context, record, ids):
        # Manifests that were already copied use the partition spec ids of that time.
        abandon(context, record)
        record = begin(context, request, live)
        goes_by(context, record, ids)
    try:
        manifest_list = bring_back(context, request, record, cold, source, RestoreMapping(identity, record.folder, ids))
        snapshot_id, result = commit_restored(context, request, record, source, cold, identity, ids, manifest_list)
        done = _finished(context, request, record.restore_id, snapshot_id, result.metadata_location, result.attempts)
    except RestoreFailed:
        # Nobody knows if it is ever run again, and its heartbeat stops the deletions of others for a day.
        abandon(context, record)
        raise
    if not placement.raises(live):
        return done
    said = (
        f"The table's catalog was put back ({placement.relation} of its archive): sequence numbers go on above "
        f"{placement.marks.sequence_number}, column ids above {placement.marks.column_id}, row ids at "
        f"{placement.marks.next_row_id}"
    )
    return replace(done, numbered_anew=said)


def _finished(
    context: RestoreContext,
    request: RestoreRequest,
    restore_id: str,
    snapshot_id: int,
    metadata_location: str,
    attempts: int,
) -> Restored:
    try:
        _read_back(context, request, snapshot_id)
    except RestoreFailed:
        take_back(context, request, snapshot_id)
        raise
    context.operations.restores.finish(restore_id, snapshot_id, metadata_location)
    stop_protecting(context, request.table_uuid, restore_id)
    outcome = restore_ledger(context, restore_id).outcome(restore_id)
    return Restored(
        table=request.table,
        source_snapshot_id=request.snapshot_id,
        branch=request.branch,
        snapshot_id=snapshot_id,
        metadata_location=metadata_location,
        restore_id=restore_id,
        copied_files=outcome.files(COPIED, REWRITTEN, PRESENT),
        copied_bytes=outcome.bytes(COPIED, REWRITTEN, PRESENT),
        rewritten_files=outcome.files(REWRITTEN),
        attempts=attempts,
    )


def _missing(context: RestoreContext, live: TableMetadata, snapshot_id: int) -> str | None:
    """Return a file of a snapshot that is gone, though the live metadata names it: the catalog may have been restored
    from a backup. None if all are there."""
    kept = tuple(each for each in live.snapshots if each.snapshot_id == snapshot_id)
    only = replace(live, snapshots=kept, current_snapshot_id=None, refs={}, snapshot_log=(), statistics=())
    gone: list[str] = []

    def look(paths: pa.Array) -> None:
        texts = paths.to_pylist()
        gone.extend(path for path, found in zip(texts, context.live_stores.heads(texts), strict=True) if found is None)

    root, rules = f"{context.root}/unarchived", context.rules
    try:
        IndexFiles(indexed(context.spark, context.live_stores, only, rules, root)).visit(look)
    except (UnreadableMetadata, MissingFile) as error:
        return error.path or kept[0].manifest_list
    return gone[0] if gone else None


def _read_back(context: RestoreContext, request: RestoreRequest, snapshot_id: int) -> None:
    """Read every row and column of the branch once, as a reader will."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    name = parse(request.table).sql(context.live_catalog)
    try:
        context.spark.sql(f"REFRESH TABLE {name}")
        # Iceberg's selector of a branch ends at a line break in its name.
        option = ("branch", request.branch) if len(request.branch.splitlines()) == 1 else ("versionAsOf", snapshot_id)
        rows = context.spark.read.option(*option).table(name)
        rows.write.format("noop").mode("overwrite").save()
    except (Py4JJavaError, PySparkException) as error:
        raise RestoreFailed(
            f"The restored branch {request.branch!r} cannot be read: {brief(error)}",
            table=request.table,
            untouched="the table: the new branch was removed again",
            hint=f"run the restore again; if that does not help, read snapshot {request.snapshot_id} in place "
            "(lifecycle.read)",
        ) from error


def _done(context: RestoreContext, request: RestoreRequest, live: TableMetadata) -> Restored | None:
    """Return the result if the branch already has the snapshot; None if it must still be restored."""
    if not request.branch.strip() or request.branch == "main":
        raise BadInput(
            "main is what the table's writers write to" if request.branch.strip() else "The branch has no name",
            table=request.table,
            untouched="the table",
            hint="restore to a separate branch, inspect it, and copy what you need from there",
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
        raise taken(request, ref.snapshot_id, "branch" if ref.is_branch else "tag")
    # Killed between the commit and its record, or requested twice.
    return _finished(context, request, restore_id, head.snapshot_id, live.metadata_location, 0)
