"""Restores from the cold tier, in progress and finished: one row per restore."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, Index, func, text

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import change
from artemis_lifecycle.operations.tables import Filled, Key, insert_record, one, records, required, table_of


@dataclass(frozen=True)
class RestoreRecord:
    """A restore of `source_snapshot_id` to `branch`, with its files in `folder`. `snapshot_id` is the new snapshot's.

    `protected_since` is when the heartbeat over the folder began. If the heartbeat began again later, earlier copies
    may have been deleted as orphans, so the restore is abandoned and started over.
    """

    restore_id: Key
    table_uuid: str
    table: str
    source_snapshot_id: int
    branch: str
    folder: str
    who: str
    why: str | None
    started_at: Filled
    protected_since: datetime | None
    abandoned_at: datetime | None
    finished_at: datetime | None
    snapshot_id: int | None
    metadata_location: str | None
    forgetting_at: datetime | None = None
    forgotten_at: datetime | None = None


restores = table_of(
    RestoreRecord,
    "restores",
    Index("restores_of_table", "table_uuid", "started_at"),
    Index(
        "restores_one_open",
        "table_uuid",
        "source_snapshot_id",
        "branch",
        unique=True,
        postgresql_where=text("finished_at IS NULL AND abandoned_at IS NULL"),
    ),
)


class Restores:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(
        self,
        table_uuid: str,
        table: str,
        source_snapshot_id: int,
        branch: str,
        location: str,
        who: str,
        why: str | None = None,
    ) -> RestoreRecord:
        """Return the open restore of that snapshot to that branch, or a new one with a folder in `location`. The caller
        holds the table's lease."""
        with around("restores.begin"), self._engine.begin() as connection:
            found = one(
                connection,
                RestoreRecord,
                restores.c.table_uuid == table_uuid,
                restores.c.source_snapshot_id == source_snapshot_id,
                restores.c.branch == branch,
                restores.c.finished_at.is_(None),
                restores.c.abandoned_at.is_(None),
            )
            if found is None:
                restore_id = f"restore-{uuid.uuid4().hex}"
                found = insert_record(
                    connection,
                    RestoreRecord,
                    restore_id=restore_id,
                    table_uuid=table_uuid,
                    table=table,
                    source_snapshot_id=source_snapshot_id,
                    branch=branch,
                    folder=f"{location}/{restore_id}",
                    who=who,
                    why=why,
                )
        return found

    def protected(self, restore_id: str, since: datetime) -> RestoreRecord:
        """Record since when the folder is protected."""
        return self._set(restore_id, protected_since=since)

    def abandon(self, restore_id: str) -> RestoreRecord:
        """Record that the restore is not used; its files are orphans."""
        return self._set(restore_id, abandoned_at=func.clock_timestamp())

    def finish(self, restore_id: str, snapshot_id: int, metadata_location: str) -> RestoreRecord:
        return self._set(
            restore_id,
            finished_at=func.coalesce(restores.c.finished_at, func.clock_timestamp()),
            snapshot_id=snapshot_id,
            metadata_location=metadata_location,
        )

    def of_table(self, table_uuid: str) -> list[RestoreRecord]:
        """Newest first, including abandoned ones."""
        newest = (restores.c.started_at.desc(),)
        return list(records(self._engine, RestoreRecord, restores.c.table_uuid == table_uuid, order_by=newest))

    def _set(self, restore_id: str, **values: object) -> RestoreRecord:
        mine = restores.c.restore_id == restore_id
        changed = change(self._engine, "restores.record", RestoreRecord, mine, decision=None, **values)
        return required(changed, f"No restore {restore_id} is stored", "start it first")
