"""The copies of a restore: its record, the heartbeat over its folder, and the transfer from the cold tier. Does not
belong here: the commit (`restore_commit`)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

from artemis_lifecycle.cold_tier.demand import Demand
from artemis_lifecycle.cold_tier.evolution import Ids
from artemis_lifecycle.cold_tier.ledger import Ledger, handoff_ledger
from artemis_lifecycle.cold_tier.restore_context import RestoreContext, RestoreMapping, RestoreRequest
from artemis_lifecycle.cold_tier.transfer import Transfer, TransferErrors
from artemis_lifecycle.errors import LeaseLost, RestoreFailed
from artemis_lifecycle.metadata.types import Snapshot, TableMetadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.restores import RestoreRecord
from artemis_lifecycle.spark.runner import Runner

FOLDER = "restored"
"""The subfolder of a live table's location for restored files, with one folder per restore."""

_WRITER = "artemis-lifecycle/restore"
_PROTECTED = timedelta(hours=24)
"""How long a killed restore can be continued. After that, orphan deletion may take its copies, and it starts over."""


def begin(context: RestoreContext, request: RestoreRequest, live: TableMetadata) -> RestoreRecord:
    """Return the restore's record. Its folder is protected from before the first copy on."""
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
        # Earlier copies may have been deleted as orphans, or may be soon: none of them is used.
        abandon(context, record)


def abandon(context: RestoreContext, record: RestoreRecord) -> None:
    context.operations.restores.abandon(record.restore_id)
    stop_protecting(context, record.table_uuid, record.restore_id)


def stop_protecting(context: RestoreContext, table_uuid: str, restore_id: str) -> None:
    context.operations.heartbeats.stop(table_uuid, _WRITER, session=restore_id)


def goes_by(context: RestoreContext, record: RestoreRecord, ids: Ids) -> bool:
    """Return True if the restore began with these partition spec ids. Records them if there are none yet."""
    path = f"{_folder(context, record.restore_id)}/specs.json"
    said = json.dumps(sorted(ids.specs.items())).encode()
    if context.live_stores.head(path) is None:
        with around("restore.specs"):
            context.live_stores.write(path, said, overwrite=True)
        return True
    return context.live_stores.read(path) == said


def _protect(context: RestoreContext, record: RestoreRecord) -> datetime:
    """Protect the restore's folder with a heartbeat. Return the start of its gapless protection."""
    return context.operations.heartbeats.beat(
        record.table_uuid, record.table, _WRITER, record.folder, _PROTECTED, session=record.restore_id
    ).started_at


def check_protected(context: RestoreContext, record: RestoreRecord) -> None:
    context.check()
    if _protect(context, record) != record.protected_since:
        raise LeaseLost(
            "The heartbeat over the restored files had a gap: some may have been deleted as orphans",
            table=record.table,
            path=record.folder,
            untouched="the table",
            hint="run the restore again: it starts over",
        )


def _errors(request: RestoreRequest) -> TransferErrors:
    return TransferErrors(
        RestoreFailed,
        request.table,
        untouched="the live table's metadata and all files that it had",
        if_failed="fix the cause and run the restore again: it starts over",
        gone=lambda problems: (
            f"{len(problems)} files of snapshot {request.snapshot_id} are gone from the cold tier, or damaged there: "
            f"{problems[0].reason}"
        ),
        if_gone="restore the file from a copy of the cold store, and run the restore again",
    )


def bring_back(
    context: RestoreContext,
    request: RestoreRequest,
    record: RestoreRecord,
    cold: TableMetadata,
    source: Snapshot,
    mapping: RestoreMapping,
) -> str:
    """Copy everything that the snapshot reads. Return the path of its manifest list."""
    origin = handoff_ledger(context.live_stores, context.root, request.table_uuid)
    # Statistics files contain the id of their snapshot. Those of the new snapshot must be computed again.
    metadata = replace(cold, statistics=())
    Transfer(
        runner=Runner(context.spark),
        source=context.cold_stores,
        target=context.live_stores,
        records=context.live_stores,
        folder=_folder(context, record.restore_id),
        work_id=record.restore_id,
        demand=Demand(metadata, (source.snapshot_id,), mapping, origin),
        ledger=restore_ledger(context, record.restore_id),
        errors=_errors(request),
        settings=context.settings,
        check=lambda: check_protected(context, record),
    ).run()
    assert source.manifest_list is not None
    return mapping(source.manifest_list)


def _folder(context: RestoreContext, restore_id: str) -> str:
    return f"{context.root}/restores/{restore_id}"


def restore_ledger(context: RestoreContext, restore_id: str) -> Ledger:
    return Ledger(context.live_stores, f"{_folder(context, restore_id)}/copies")
