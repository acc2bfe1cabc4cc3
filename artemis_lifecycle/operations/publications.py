"""The outbox of the result tables: which rows must still be published, and which were. Belongs here: that record. Does
not belong here: the rows, which are sealed elsewhere, and publishing them (`lifecycle/publishing.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from sqlalchemy import Engine, Index, func, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.ledger_progress import LedgerProgress, save_progress
from artemis_lifecycle.operations.tables import Filled, Key, records, table_of

ResultTable = Literal["plan_files", "deletions", "lineage_ledger", "lineage_edges", "lineage_events"]


@dataclass(frozen=True)
class Publication:
    """The rows of one plan, one deletion or one recording in a result table, or a part of its lineage events.
    `recorded_at` is the instant in the rows; `first_at` is the earliest one that published rows of the job may have.
    `published_at` None: never published."""

    catalog: Key
    result_table: Annotated[ResultTable, {"primary_key": True}]
    job_id: Key
    recorded_at: datetime
    first_at: datetime
    pending: bool
    queued_at: Filled
    published_at: datetime | None = None


publications = table_of(
    Publication, "publications", Index("publications_pending", "catalog", postgresql_where=text("pending"))
)


class Publications:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.asked = False
        """Whether this object requested a publication: a client that only reads may not have the right to publish."""

    def plan(self, catalog: str, plan_id: str, planned_at: datetime) -> None:
        """Request that a plan's files be published. A plan that was requested before has the same files."""
        self.asked = True
        values = _values(catalog, "plan_files", plan_id, planned_at)
        with around("publications.plan"), self._engine.begin() as connection:
            connection.execute(upsert(publications).values(values).on_conflict_do_nothing())

    def deletion(self, catalog: str, job_id: str) -> None:
        """Request that a deletion's outcomes be published; again if a later run changed them."""
        self.asked = True
        values = _values(catalog, "deletions", job_id, func.clock_timestamp())
        # The transaction's start, before any instant in rows of the job: each clock_timestamp() differs.
        statement = upsert(publications).values(values | {"first_at": func.now()})
        changed = {"recorded_at": func.clock_timestamp(), "pending": True}
        with around("publications.deletion"), self._engine.begin() as connection:
            connection.execute(statement.on_conflict_do_update(constraint=publications.primary_key, set_=changed))

    def lineage(self, catalog: str, batch_id: str, progress: LedgerProgress | None, events: Sequence[str] = ()) -> None:
        """Request that a batch of the lineage ledger be published, and these parts of its events sent, and save how far
        the ledger is now. Does nothing for a batch that was requested before."""
        self.asked = True
        batches = [_values(catalog, name, batch_id, func.now()) for name in ("lineage_ledger", "lineage_edges")]
        batches += [_values(catalog, "lineage_events", part, func.now()) for part in events]
        with around("publications.lineage"), self._engine.begin() as connection:
            connection.execute(upsert(publications).values(batches).on_conflict_do_nothing())
            if progress is not None:
                save_progress(connection, progress)

    def pending(self, catalog: str) -> tuple[Publication, ...]:
        """Return the pending publications, oldest first."""
        mine = (publications.c.catalog == catalog, publications.c.pending)
        return records(self._engine, Publication, *mine, order_by=(publications.c.queued_at,))

    def published(self, publication: Publication) -> None:
        """Record that these rows are published. If the job was requested again in the meantime, it stays pending."""
        statement = (
            update(publications)
            .where(
                publications.c.catalog == publication.catalog,
                publications.c.result_table == publication.result_table,
                publications.c.job_id == publication.job_id,
            )
            .values(published_at=func.clock_timestamp(), pending=publications.c.recorded_at != publication.recorded_at)
        )
        with around("publications.published"), self._engine.begin() as connection:
            connection.execute(statement)


def _values(catalog: str, table: str, job_id: str, instant: object) -> dict[str, object]:
    return {
        "catalog": catalog,
        "result_table": table,
        "job_id": job_id,
        "recorded_at": instant,
        "first_at": instant,
        "pending": True,
    }
