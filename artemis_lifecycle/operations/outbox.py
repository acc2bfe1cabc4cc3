"""What this database observed, on its way out of it: a backup that is put back must not forget it.

A trigger copies each new state of a row of these tables to the outbox, in the transaction that changes it:
`known_tables`, `seen_pointers`, `table_locations`, `holds`, `jobs` and `quarantines`. `session/progress.py` moves the
outbox to files under `operations.root`, and lets a database that was put back read those that it does not know.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around


@dataclass(frozen=True)
class Outgoing:
    """The new state of one row. `was`: the name that a table had before, if that changed."""

    outbox_id: db.Serial
    of_table: str
    state: Mapping[str, Any]
    was: str | None


@dataclass(frozen=True)
class SentFile:
    """A file of them under `operations.root`, that was written, or read back."""

    name: db.Key
    sent_at: db.Filled


outbox = db.table_of(Outgoing, "outbox")
sent_files = db.table_of(SentFile, "sent_files")

_AT_ONCE = 20_000

_KEPT = ("kept_at", "kept_by", "kept_why")
_RELEASED = ("released_at", "released_by", "released_why")
_UNDELETED = ("undeleted_at", "undeleted_by", "undeleted_why", "purge_after", "purging_at", "purged_at")
_CLOSED = ", ".join(f"{name} = excluded.{name}" for name in ("closed_at", "closed_by", "closed_why"))


def _first(names: Collection[str], of: str, then: str) -> str:
    return ", ".join(f"{name} = coalesce({of}.{name}, {then}.{name})" for name in names)


_RENAME = sa.text(
    "UPDATE lifecycle.known_tables AS there SET table_name = :name WHERE catalog = :catalog AND table_uuid = :uuid AND "
    "table_name = :was AND NOT EXISTS (SELECT FROM lifecycle.known_tables AS taken WHERE taken.catalog = there.catalog "
    "AND taken.table_uuid = there.table_uuid AND taken.table_name = :name)"
)
# Where the database has a row, too, both are true: what is known longest, seen last, kept and released counts. The next
# look finds out which tables are still there, and compares their pointers with the ones that are known.
_CONFLICTS = {
    "known_tables": "(catalog, table_uuid, table_name) DO UPDATE SET metadata_location = excluded.metadata_location, "
    "last_seen = greatest(there.last_seen, excluded.last_seen), missing_since = excluded.missing_since, "
    f"gone_at = excluded.gone_at, {_first(_KEPT, 'excluded', 'there')}",
    "seen_pointers": "(table_uuid, metadata_location) DO UPDATE SET lost = there.lost OR excluded.lost, "
    "lost_at = greatest(there.lost_at, excluded.lost_at)",
    "table_locations": "(table_uuid, location) DO NOTHING",
    "holds": "(hold_id) DO UPDATE SET until = CASE WHEN there.until IS NOT NULL AND excluded.until IS NOT NULL "
    "THEN greatest(there.until, excluded.until) END, snapshot_ids = excluded.snapshot_ids, "
    f"{_first(_RELEASED, 'there', 'excluded')}",
    "jobs": f"(job_id) DO UPDATE SET {_first(['finished_at'], 'excluded', 'there')}",
    "quarantines": f"(job_id) DO UPDATE SET {_CLOSED}, {_first(_UNDELETED, 'excluded', 'there')}",
}
# Nothing resumes a deletion whose plan or scan is forgotten; what it moved can come back.
_END = sa.text(
    "UPDATE lifecycle.jobs AS job SET finished_at = clock_timestamp() WHERE finished_at IS NULL "
    "AND NOT EXISTS (SELECT FROM lifecycle.plans WHERE plan_id = job.job_id) "
    "AND NOT EXISTS (SELECT FROM lifecycle.scans WHERE scan_id = job.job_id)"
)
# Postgres gives each value the type of its column.
_RECALL = {
    name: sa.text(
        f"INSERT INTO lifecycle.{name} AS there SELECT given.* FROM "
        f"jsonb_populate_record(NULL::lifecycle.{name}, CAST(:state AS jsonb)) AS given ON CONFLICT {conflict}"
    )
    for name, conflict in _CONFLICTS.items()
}
_IDS = ARRAY(sa.BigInteger)


class Outbox(db.Part):
    def send(self, write: Callable[[str, bytes], object]) -> None:
        """Move what there is to files, each by `write` (name, content) before it is no longer here. Their names are in
        the order of time."""
        while db.scalars(self.engine, sa.select(outbox.c.outbox_id).limit(1)):
            taken = sa.select(outbox).order_by(outbox.c.outbox_id).limit(_AT_ONCE).with_for_update(skip_locked=True)
            with around("outbox.send"), self.engine.begin() as connection:
                rows = connection.execute(taken).all()
                if not rows:
                    return  # Another process sends them.
                now: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
                name = f"{now.astimezone(UTC):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"
                write(name, json.dumps([[row.of_table, row.state, row.was] for row in rows]).encode())
                ids = [row.outbox_id for row in rows]
                connection.execute(sa.delete(outbox).where(outbox.c.outbox_id == sa.any_(sa.literal(ids, _IDS))))
                connection.execute(db.new(sent_files, {"name": name}))

    def newest(self) -> str:
        """Return the name of the newest file that was sent or recalled; "" for none."""
        (found,) = db.scalars(self.engine, sa.select(sa.func.max(sent_files.c.name)))
        return found or ""

    def unknown(self, names: Collection[str]) -> list[str]:
        """Return those files that this database neither sent nor recalled, in order."""
        known = db.scalars(self.engine, sa.select(sent_files.c.name).where(sent_files.c.name.in_(names)))
        return sorted(set(names).difference(known))

    def recall(self, files: Mapping[str, bytes]) -> None:
        """Store what these files say beside what is known, and that they are known from now on. Raises ValueError for
        content that is not `send`'s."""
        rows = sorted((row for name in sorted(files) for row in _rows(files[name])), key=_seen_at)
        with around("outbox.recall"), self.engine.begin() as connection:
            for of_table, state, was in rows:
                if was is not None and of_table == "known_tables":
                    names = {"name": state["table_name"], "was": was}
                    connection.execute(_RENAME, {"catalog": state["catalog"], "uuid": state["table_uuid"], **names})
                connection.execute(_RECALL[of_table], {"state": json.dumps(state)})
            connection.execute(_END)
            for name in files:
                connection.execute(db.new(sent_files, {"name": name}))

    def forget(self, before: datetime) -> None:
        """Delete the names of files that were sent before; never the newest one's."""
        newest = sa.select(sa.func.max(sent_files.c.name)).scalar_subquery()
        old = sent_files.c.sent_at < before, sent_files.c.name < newest
        db.write(self.engine, "outbox.forget", sa.delete(sent_files).where(*old))


def _rows(content: bytes) -> Iterator[tuple[str, Mapping[str, Any], str | None]]:
    for of_table, state, was in json.loads(content):
        if of_table not in _RECALL:
            raise ValueError(f"{of_table} is no table whose rows are sent")
        yield of_table, state, was


def _seen_at(row: tuple[str, Mapping[str, Any], str | None]) -> datetime:
    """Return the key by which rows are recalled: what waited in the outbox of a backup is older than its file."""
    seen = row[1].get("last_seen")
    return datetime.min.replace(tzinfo=UTC) if seen is None else datetime.fromisoformat(seen)
