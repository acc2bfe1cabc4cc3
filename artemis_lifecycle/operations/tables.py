"""The tables of schema `lifecycle`, as SQLAlchemy Core. A change here needs a migration; a test holds the two equal."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Interval,
    MetaData,
    Row,
    Sequence,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

SCHEMA = "lifecycle"


class Utc(TypeDecorator[datetime]):
    """`timestamptz`, aware and in UTC on both sides."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone")
        return value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)


metadata = MetaData(schema=SCHEMA)

# Not now(): that is the transaction's start, and a transaction may wait for a lock.
_clock = text("clock_timestamp()")


def _at(name: str, *, nullable: bool = True) -> Column[datetime]:
    return Column(name, Utc, nullable=nullable, server_default=None if nullable else _clock)


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


plan_order = Sequence("plan_order", schema=SCHEMA, metadata=metadata)
lease_token = Sequence("lease_token", schema=SCHEMA, metadata=metadata)

plans = Table(
    "plans",
    metadata,
    Column("plan_id", Text, primary_key=True),
    _text("content_id"),
    _text("table_uuid"),
    _text("table_name"),
    _text("status"),
    _text("base_metadata_location"),
    _text("files_location"),
    _text("rule"),
    _count("expired_snapshots"),
    Column("expired_refs", ARRAY(Text), nullable=False),
    _count("files"),
    _count("bytes"),
    _text("summary"),
    Column("planned_at", Utc, nullable=False),
    _at("sealed_at", nullable=False),
    # Newest first by this: planned_at may be set back by the caller's `now`.
    Column("ordinal", BigInteger, nullable=False, server_default=func.nextval(f"{SCHEMA}.plan_order")),
    _text("superseded_by", nullable=True),
    _at("handed_off_at"),
    _text("cold_metadata_location", nullable=True),
    # The last swap that was begun for it: the base, and the `last-updated-ms` of what was to follow.
    _text("swap_base_location", nullable=True),
    Column("swap_updated_ms", BigInteger),
    _at("committed_at"),
    _text("committed_metadata_location", nullable=True),
    Column("attempts", Integer),
    _at("due_at"),
    _at("done_at"),
    _at("closed_at"),
    _text("closed_by", nullable=True),
    _text("closed_why", nullable=True),
    _text("approved_by", nullable=True),
    _at("approved_at"),
    _text("approved_why", nullable=True),
    # Another approval than the one of the plan's size: what is lost stays out of the cold tier.
    _text("lost_approved_by", nullable=True),
    _at("lost_approved_at"),
    _text("lost_approved_why", nullable=True),
    Column("night", Date),
    CheckConstraint(
        "status IN ('open', 'superseded', 'handed_off', 'committed', 'deleting', 'done', 'closed')",
        name="plans_status",
    ),
    Index("plans_content", "content_id"),
    Index("plans_of_table", "table_uuid", "ordinal"),
    Index("plans_by_status", "status", "due_at"),
    Index(
        "plans_one_uncommitted",
        "table_uuid",
        unique=True,
        postgresql_where=text("status IN ('open', 'handed_off')"),
    ),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", Text, primary_key=True),
    _text("kind"),
    _text("table_uuid"),
    _text("table_name"),
    _text("files_location"),
    _at("started_at", nullable=False),
    _at("finished_at"),
    Column("batches", Integer, nullable=False),
    _count("files"),
    _count("bytes"),
    # The sums of its batches, once those are deleted (`records.py`).
    _at("forgotten_at"),
    _count("deleted"),
    _count("absent"),
    _count("kept"),
    _count("failed"),
    _count("deleted_bytes"),
    CheckConstraint("kind IN ('expiration', 'orphans', 'dropped')", name="jobs_kind"),
    Index("jobs_of_table", "table_uuid"),
)

batches = Table(
    "batches",
    metadata,
    Column("job_id", Text, ForeignKey(jobs.c.job_id), primary_key=True),
    Column("batch", Integer, primary_key=True, autoincrement=False),
    _text("state"),
    _count("files"),
    _count("bytes"),
    _count("deleted"),
    _count("absent"),
    _count("kept"),
    _count("failed"),
    _count("deleted_bytes"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("fence", BigInteger),
    _text("error", nullable=True),
    _at("updated_at", nullable=False),
    CheckConstraint("state IN ('planned', 'deleting', 'done', 'failed', 'waiting')", name="batches_state"),
)

handoff_batches = Table(
    "handoff_batches",
    metadata,
    Column("plan_id", Text, ForeignKey(plans.c.plan_id), primary_key=True),
    Column("batch", Integer, primary_key=True, autoincrement=False),
    _text("state"),
    _count("files"),
    _count("bytes"),
    _count("copied"),
    _count("skipped"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    _text("error", nullable=True),
    _at("updated_at", nullable=False),
    CheckConstraint("state IN ('planned', 'done', 'failed')", name="handoff_batches_state"),
)

leases = Table(
    "leases",
    metadata,
    Column("token", BigInteger, primary_key=True, autoincrement=False),
    _text("table_uuid"),
    _text("table_name"),
    _text("step"),
    _text("owner"),
    _text("run_id", nullable=True),
    _at("acquired_at", nullable=False),
    Column("expires_at", Utc, nullable=False),
    _at("released_at"),
    Column("taken_over_by", BigInteger),
    _text("process", nullable=True),
    # How tables are locked. A version that locks otherwise cannot take a lease: it knows no value for this.
    Column("lock_version", Integer, nullable=False),
    Index("leases_of_table", "table_uuid", "token"),
    Index("leases_of_run", "run_id", "token"),
    Index(
        "leases_one_per_table",
        "table_uuid",
        unique=True,
        postgresql_where=text("released_at IS NULL AND taken_over_by IS NULL"),
    ),
)

holds = Table(
    "holds",
    metadata,
    Column("hold_id", Text, primary_key=True),
    _text("table_uuid"),
    _text("table_name"),
    _text("owner"),
    _text("reason"),
    Column("snapshot_ids", ARRAY(BigInteger), nullable=False),
    Column("kind", Text, nullable=False, server_default=text("'legal'")),
    _at("created_at", nullable=False),
    _at("until"),
    _at("released_at"),
    _text("released_by", nullable=True),
    _text("released_why", nullable=True),
    CheckConstraint("kind IN ('legal', 'lease', 'consumer')", name="holds_kind"),
    Index("holds_of_table", "table_uuid"),
)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("writer_id", Text, primary_key=True),
    # Two processes may write under one id: the end of one must not end the other's protection.
    Column("session", Text, primary_key=True, server_default=text("''")),
    _text("table_name"),
    _text("prefix", nullable=True),
    _text("host", nullable=True),
    Column("pid", Integer),
    _at("started_at", nullable=False),
    _at("last_beat_at", nullable=False),
    Column("expires_at", Utc, nullable=False),
    # Of Postgres; a trigger says whose, and only that login (and the lifecycle) ends or renews it.
    _text("login", nullable=True),
    CheckConstraint(
        " AND ".join(
            f"{name} BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-30 00:00:00+00'"
            for name in ("started_at", "last_beat_at", "expires_at")
        ),
        name="heartbeats_times",
    ),
    Index("heartbeats_expiry", "expires_at"),
)

# A row for each lock that was ever taken: who has it, has the row locked (`locks.py`).
locks = Table("locks", metadata, Column("name", Text, primary_key=True))

# Only ever added to. A trigger stamps the login, the address and the time.
decisions = Table(
    "decisions",
    metadata,
    Column("decision_id", BigInteger, primary_key=True, autoincrement=True),
    _text("kind"),
    _text("subject"),
    _text("table_uuid", nullable=True),
    _text("table_name", nullable=True),
    _text("who"),
    _text("why"),
    _text("account"),
    Column("login", Text, nullable=False, server_default=text("session_user")),
    _text("address", nullable=True),
    _at("decided_at", nullable=False),
    CheckConstraint("btrim(who) <> ''", name="decisions_said"),
    Index("decisions_of_table", "table_uuid", "decision_id"),
    Index("decisions_of_subject", "subject", "decision_id"),
)

steps = Table(
    "steps",
    metadata,
    Column("step_id", BigInteger, primary_key=True, autoincrement=True),
    _text("table_uuid"),
    _text("table_name"),
    _text("step"),
    Column("night", Date, nullable=False),
    _text("owner"),
    _text("run_id", nullable=True),
    Column("dry_run", Boolean, nullable=False),
    _text("state"),
    Column("counts", JSONB, nullable=False, server_default=text("'{}'")),
    _text("error", nullable=True),
    _at("started_at", nullable=False),
    _at("finished_at"),
    CheckConstraint("state IN ('running', 'done', 'failed', 'pending', 'skipped')", name="steps_state"),
    Index("steps_of_table", "table_uuid", "step_id"),
    Index("steps_of_night", "table_uuid", "night"),
)

listings = Table(
    "listings",
    metadata,
    Column("listing_id", Text, primary_key=True),
    _text("table_uuid"),
    _text("table_name"),
    _text("location"),
    _text("files_location"),
    Column("started_at", Utc, nullable=False),
    Column("finished_at", Utc, nullable=False),
    _count("files"),
    _count("bytes"),
    _at("stored_at", nullable=False),
    Index("listings_of_table", "table_uuid", "started_at"),
)

scans = Table(
    "scans",
    metadata,
    Column("scan_id", Text, primary_key=True),
    _text("table_uuid"),
    _text("table_name"),
    _text("listing_id", nullable=True),
    Column("listed_at", Utc, nullable=False),
    Column("listing_finished_at", Utc, nullable=False),
    _text("metadata_location"),
    Column("metadata_read_at", Utc, nullable=False),
    _text("files_location"),
    _count("files"),
    _count("bytes"),
    _count("skipped_young"),
    _count("skipped_in_flight"),
    _text("summary"),
    _text("state"),
    _at("created_at", nullable=False),
    _text("approved_by", nullable=True),
    _at("approved_at"),
    _text("approved_why", nullable=True),
    Column("kind", Text, nullable=False, server_default=text("'orphans'")),
    CheckConstraint("state IN ('open', 'deleting', 'done')", name="scans_state"),
    CheckConstraint("kind IN ('orphans', 'dropped')", name="scans_kind"),
    Index("scans_of_table", "table_uuid", "created_at"),
)

tags = Table(
    "tags",
    metadata,
    Column("tag_record_id", BigInteger, primary_key=True, autoincrement=True),
    _text("table_uuid"),
    _text("table_name"),
    _text("name"),
    Column("snapshot_id", BigInteger, nullable=False),
    # Nobody and no time: the tag was made elsewhere, and only its removal is on record.
    _text("who", nullable=True),
    _text("why", nullable=True),
    Column("retain", Interval),
    Column("max_ref_age_ms", BigInteger),
    Column("created_at", Utc, server_default=_clock),
    _at("removed_at"),
    _text("removed_by", nullable=True),
    _text("removed_why", nullable=True),
    Index(
        "tags_one_per_name",
        "table_uuid",
        "name",
        unique=True,
        postgresql_where=text("removed_at IS NULL"),
    ),
)

restores = Table(
    "restores",
    metadata,
    Column("restore_id", Text, primary_key=True),
    _text("table_uuid"),
    _text("table_name"),
    Column("source_snapshot_id", BigInteger, nullable=False),
    _text("branch"),
    _text("folder"),
    _text("who"),
    _text("why", nullable=True),
    _at("started_at", nullable=False),
    # When the heartbeat over `folder` began: if it began again, copies may be gone.
    _at("protected_since"),
    _at("abandoned_at"),
    _at("finished_at"),
    Column("snapshot_id", BigInteger),
    _text("metadata_location", nullable=True),
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

deep_moves = Table(
    "deep_moves",
    metadata,
    Column("move_id", Text, primary_key=True),
    _text("table_uuid"),
    _text("table_name"),
    _text("storage_class"),
    Column("cutoff", Utc, nullable=False),
    _text("files_location"),
    _count("files"),
    _count("bytes"),
    _text("who"),
    _at("started_at", nullable=False),
    _at("finished_at"),
    Index("deep_moves_of_table", "table_uuid", "started_at"),
)

# Cold snapshots of which at least one file is in the archive, or is on its way there.
deep_snapshots = Table(
    "deep_snapshots",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("snapshot_id", BigInteger, primary_key=True, autoincrement=False),
    Column("move_id", Text, ForeignKey(deep_moves.c.move_id), nullable=False),
)

thaws = Table(
    "thaws",
    metadata,
    Column("thaw_id", Text, primary_key=True),
    _text("table_uuid"),
    _text("table_name"),
    Column("snapshot_ids", ARRAY(BigInteger), nullable=False),
    _text("case_id"),
    _text("requester"),
    _text("reason"),
    Column("days", Integer, nullable=False),
    _text("files_location"),
    _count("files"),
    _count("bytes"),
    _text("requested_from"),
    _text("requested_login", nullable=True),
    _at("requested_at", nullable=False),
    Column("lapses_at", Utc, nullable=False),
    _text("approved_by", nullable=True),
    _at("approved_at"),
    _text("approved_why", nullable=True),
    _text("approved_from", nullable=True),
    _text("approved_login", nullable=True),
    _at("asked_at"),
    _at("readable_at"),
    _at("readable_until"),
    _at("ended_at"),
    _text("ended_by", nullable=True),
    _text("ended_why", nullable=True),
    CheckConstraint("btrim(case_id) <> '' AND btrim(requester) <> '' AND btrim(reason) <> ''", name="thaws_said"),
    CheckConstraint("lower(btrim(approved_by)) <> lower(btrim(requester))", name="thaws_second_person"),
    CheckConstraint(
        "approved_login IS NULL OR approved_from IS NOT NULL AND ("
        "approved_login <> coalesce(requested_login, approved_login) "
        "OR lower(split_part(approved_from, '@', 1)) <> lower(split_part(requested_from, '@', 1)))",
        name="thaws_second_account",
    ),
    CheckConstraint("asked_at IS NULL OR approved_by IS NOT NULL", name="thaws_approved_first"),
    CheckConstraint("days > 0", name="thaws_days"),
    Index("thaws_of_table", "table_uuid", "requested_at"),
)

quarantines = Table(
    "quarantines",
    metadata,
    Column("job_id", Text, primary_key=True),
    _text("table_uuid"),
    _text("table_name"),
    _text("folder"),
    _text("metadata_location", nullable=True),
    Column("retain_seconds", BigInteger, nullable=False),
    _at("began_at", nullable=False),
    _at("purge_after"),
    _at("undeleted_at"),
    _text("undeleted_by", nullable=True),
    _text("undeleted_why", nullable=True),
    _at("closed_at"),
    _text("closed_by", nullable=True),
    _text("closed_why", nullable=True),
    _at("purging_at"),
    _at("purged_at"),
    CheckConstraint("purging_at IS NULL OR purge_after IS NOT NULL", name="quarantines_purge"),
    CheckConstraint("undeleted_at IS NULL OR btrim(undeleted_by) <> ''", name="quarantines_said"),
    Index("quarantines_of_table", "table_uuid", "began_at"),
)

# How far the rotation through a cold table's files is, and what it found lost (`scrubs.py`).
cold_scrubs = Table(
    "cold_scrubs",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    _text("table_name"),
    Column("position", BigInteger, nullable=False),
    Column("began_at", Utc, nullable=False),
    _count("files"),
    _count("bytes"),
    _at("updated_at", nullable=False),
)

cold_losses = Table(
    "cold_losses",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    _text("table_name"),
    _text("source"),
    _text("reason"),
    _at("found_at", nullable=False),
    _at("checked_at", nullable=False),
    _at("settled_at"),
    Index("cold_losses_open", "table_uuid", postgresql_where=text("settled_at IS NULL")),
)

pauses = Table(
    "pauses",
    metadata,
    Column("pause_id", Text, primary_key=True),
    _text("table_uuid", nullable=True),
    _text("table_name", nullable=True),
    _text("who"),
    _text("why"),
    _at("since", nullable=False),
    _at("ended_at"),
    _text("ended_by", nullable=True),
    CheckConstraint("btrim(who) <> '' AND btrim(why) <> ''", name="pauses_said"),
    Index("pauses_in_force", "table_uuid", postgresql_where=text("ended_at IS NULL")),
)

known_tables = Table(
    "known_tables",
    metadata,
    Column("catalog", Text, primary_key=True),
    Column("table_uuid", Text, primary_key=True),
    _text("table_name"),
    _text("metadata_location"),
    _at("first_seen", nullable=False),
    _at("last_seen", nullable=False),
    _at("missing_since"),
    _at("kept_at"),
    _text("kept_by", nullable=True),
    _text("kept_why", nullable=True),
    _at("gone_at"),
    CheckConstraint("kept_at IS NULL OR (btrim(kept_by) <> '' AND btrim(kept_why) <> '')", name="known_tables_kept"),
    CheckConstraint("gone_at IS NULL OR missing_since IS NOT NULL", name="known_tables_gone"),
    Index("known_tables_missing", "catalog", "missing_since"),
)

table_locations = Table(
    "table_locations",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("location", Text, primary_key=True),
    _at("first_seen", nullable=False),
)

seen_pointers = Table(
    "seen_pointers",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("metadata_location", Text, primary_key=True),
    _at("seen_at", nullable=False),
)

swap_attempts = Table(
    "swap_attempts",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("base_location", Text, primary_key=True),
    Column("updated_ms", BigInteger, primary_key=True),
    _at("began_at", nullable=False),
)

settled_metadata = Table(
    "settled_metadata",
    metadata,
    Column("table_uuid", Text, primary_key=True),
    Column("metadata_location", Text, primary_key=True),
    _at("settled_at", nullable=False),
    _text("who"),
    _text("why"),
    CheckConstraint("btrim(who) <> '' AND btrim(why) <> ''", name="settled_metadata_said"),
)

identity = Table(
    "identity",
    metadata,
    Column("operations_id", Text, primary_key=True),
    _at("made_at", nullable=False),
    Index("identity_once", text("(true)"), unique=True),
)

paces = Table("paces", metadata, Column("name", Text, primary_key=True), Column("ready_at", Utc, nullable=False))

Record = TypeVar("Record")


def to_record(kind: type[Record], row: Row[Any]) -> Record:
    """The frozen record `kind` from a row: fields by column name, `table` from `table_name`, arrays as tuples."""
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = row._mapping["table_name" if field.name == "table" else field.name]
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)
