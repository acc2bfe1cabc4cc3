"""Bring an expired snapshot back: copy its files from the cold tier into a folder of the live table, verify them
against what was recorded when they were archived, and commit a new snapshot that names them, on a branch of its own.

Iceberg refuses a snapshot whose sequence number is not the newest, so the old one cannot come back as itself. What its
manifests say does: every entry keeps its sequence number, its snapshot id and its first row id, so that deletes apply
to the rows that they applied to, and rows keep their ids. The new snapshot has no parent: nothing in the live table is
its ancestor. Source: format/spec.md, "Snapshots", "Sequence Number Inheritance", "First Row ID Inheritance".

Restored files never have the path that they had: an unfinished deletion may still name it.
"""

from __future__ import annotations

from shlex import quote

from artemis_lifecycle.cold_tier.ledger import COPIED, PRESENT, REWRITTEN
from artemis_lifecycle.cold_tier.paths import ColdIdentity
from artemis_lifecycle.cold_tier.restore_commit import RESTORE_ID, RESTORED_SNAPSHOT, branch_on, commit_restored, taken
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
from artemis_lifecycle.errors import BadInput, NoSuchSnapshot
from artemis_lifecycle.metadata.table_metadata import refuse_encrypted
from artemis_lifecycle.metadata.types import TableMetadata


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
        return branch_on(context, request)
    source = None if cold is None else cold.snapshot(request.snapshot_id)
    if source is None or cold is None or identity is None:
        raise NoSuchSnapshot(
            f"Neither tier has snapshot {request.snapshot_id}",
            table=request.table,
            untouched="the table",
            hint=f"see what there is with: artemis history {quote(request.table)}",
        )
    refuse_encrypted(cold, request.table)
    ids = live_ids(context, request, source, cold, live)
    record = begin(context, request, live)
    if not goes_by(context, record, ids):
        # Manifests that were copied name partition specs by what was theirs then.
        abandon(context, record)
        record = begin(context, request, live)
        goes_by(context, record, ids)
    manifest_list = bring_back(context, request, record, cold, source, RestoreMapping(identity, record.folder, ids))
    snapshot_id, result = commit_restored(context, request, record, source, cold, identity, ids, manifest_list)
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
        raise taken(request, ref.snapshot_id, "branch" if ref.is_branch else "tag")
    # Killed between the commit and its record, or asked for twice.
    return _finished(context, request, restore_id, head.snapshot_id, live.metadata_location, 0)
