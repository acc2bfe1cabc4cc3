"""Holds: recorded reasons to keep snapshots, or a whole table, regardless of the retention rule."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Annotated, Any, Literal, Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import BadInput, Busy, LeaseLost, NaiveDatetime, OperationsUnavailable, Refused
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision, change
from artemis_lifecycle.operations.locks import busy_after
from artemis_lifecycle.operations.roles import INGEST, refusing
from artemis_lifecycle.storage.instants import elapsed

HoldKind = Literal["legal", "lease", "consumer"]


@dataclass(frozen=True)
class Hold:
    """`snapshot_ids` () means the whole table; `until` None means until it is released.

    A `legal` hold keeps its snapshots. So does a reader's `lease`, which ends unless it is renewed. A `consumer` has
    read up to its one snapshot, and keeps that and every later one. `reads` are the folders that the table read then.
    """

    hold_id: db.Key
    table_uuid: str
    table: str
    kind: Annotated[HoldKind, {"server_default": sa.text("'legal'")}]
    owner: str
    reason: str
    snapshot_ids: tuple[int, ...]
    created_at: db.Filled
    until: datetime | None
    released_at: datetime | None
    released_by: str | None = None
    released_why: str | None = None
    reads: Annotated[tuple[str, ...], {"server_default": sa.text("'{}'")}] = ()


holds = db.table_of(Hold, "holds", sa.Index("holds_of_table", "table_uuid"))

_OLDEST = (holds.c.created_at, holds.c.hold_id)


class Holds(db.Part):
    def place(
        self,
        table_uuid: str,
        table: str,
        owner: str,
        reason: str,
        snapshot_ids: tuple[int, ...] = (),
        until: datetime | None = None,
        *,
        kind: HoldKind = "legal",
        ttl: timedelta | None = None,
        timeout: float = 30.0,
        reads: tuple[str, ...] = (),
    ) -> Hold:
        """Place a hold under the table's lock (a trigger takes it), so that no deletion batch is between its last check
        and its deletes.

        `ttl` counts by the later of the clocks of Postgres and this host, and replaces `until`. Raises Busy if that
        lock is not free within `timeout` seconds; NaiveDatetime; BadInput for a past `until`, a lease without an end, a
        consumer without one position.
        """
        db.require_said(table, owner=owner, reason=reason)
        _require_sense(kind, table, snapshot_ids, until, ttl)
        NaiveDatetime.refuse("until", until, table=table)
        with (
            around("holds.place"),
            self.engine.begin() as connection,
            busy_after(connection, timeout, table_uuid, table),
        ):
            hold = db.insert_record(
                connection,
                Hold,
                hold_id=f"hold-{uuid.uuid4().hex}",
                table_uuid=table_uuid,
                table=table,
                owner=owner,
                reason=reason,
                snapshot_ids=list(snapshot_ids),
                reads=list(reads),
                kind=kind,
                until=until if ttl is None else _later() + ttl,
            )
            if kind == "legal":
                NewDecision("hold", hold.hold_id, owner, reason).record(connection, hold)
            if until is not None and until <= hold.created_at:
                raise BadInput(
                    f"The hold would end at {until.isoformat()}, before it begins ({hold.created_at.isoformat()})",
                    table=table,
                    hint="use a later instant, or none",
                )
        return hold

    def release(self, hold_id: str, who: str, why: str | None = None) -> Hold:
        """End a hold; releasing it again changes nothing. Raises NoSuchPlan; BadInput for a `who` without content."""
        hold = self.get(hold_id)
        db.require_said(hold.table, who=who)
        decision = NewDecision("release", hold_id, who, why) if hold.kind == "legal" else None
        released = {"released_at": sa.func.clock_timestamp(), "released_by": who, "released_why": why}
        open_one = (holds.c.hold_id == hold_id, holds.c.released_at.is_(None))
        ended = change(self.engine, "holds.release", Hold, *open_one, decision=decision, **released)
        return ended or self.get(hold_id)

    def renew(self, hold_id: str, ttl: timedelta) -> Hold:
        """Extend a reader's lease until `ttl` from now; never shorten it.

        Raises BadInput for another kind, Refused if it has ended, because what it kept may be gone. Raises NoSuchPlan.
        """
        until = sa.func.greatest(holds.c.until, _later() + ttl)
        return self._alter(hold_id, "lease", {"until": until}, "a lease that has ended cannot be renewed")

    def advance(self, hold_id: str, snapshot_id: int) -> Hold:
        """Move a consumer's position to `snapshot_id`, which it has not read yet. The caller checks that it is later.

        Raises BadInput for another kind, Refused if it has ended, NoSuchPlan.
        """
        return self._alter(hold_id, "consumer", {"snapshot_ids": [snapshot_id]}, "its position can no longer move")

    def _alter(self, hold_id: str, kind: HoldKind, values: dict[str, Any], refusal: str) -> Hold:
        one_of_kind = (holds.c.hold_id == hold_id, holds.c.kind == kind)
        changed = change(
            self.engine, "holds.alter", Hold, *one_of_kind, *_in_force(sa.func.clock_timestamp()), **values
        )
        if changed is not None:
            return changed
        hold = self.get(hold_id)
        if hold.kind != kind:
            raise BadInput(
                f"Hold {hold_id} is of kind {hold.kind}, not {kind}",
                table=hold.table,
                untouched="the hold",
                hint=f"list holds with: artemis holds {quote(hold.table)}",
            )
        raise Refused(
            f"Hold {hold_id} of {hold.owner} has ended: {refusal}",
            table=hold.table,
            untouched="the hold",
            hint="place a new one, on snapshots that the table still has",
        )

    def get(self, hold_id: str) -> Hold:
        """Raises NoSuchPlan."""
        found = db.one(self.engine, Hold, holds.c.hold_id == hold_id)
        return db.required(found, f"No hold {hold_id} is stored", "list holds with: artemis holds TABLE")

    def of_table(self, table_uuid: str) -> tuple[Hold, ...]:
        """Return all holds that a table ever had, oldest first."""
        return db.records(self.engine, Hold, holds.c.table_uuid == table_uuid, order_by=_OLDEST)

    def active(self, table_uuid: str | None = None, now: datetime | None = None) -> tuple[Hold, ...]:
        """Return active holds, of one table or of all, oldest first.

        `now` can only extend them: the earlier of it and the Postgres clock counts.
        """
        instant = sa.func.clock_timestamp() if now is None else sa.func.least(now, sa.func.clock_timestamp())
        of_table = db.if_given(holds.c.table_uuid, table_uuid)
        return db.records(self.engine, Hold, *_in_force(instant), *of_table, order_by=_OLDEST)


def _later() -> sa.ColumnElement[Any]:
    """The later of two clocks, of which one may be wrong: nothing ends earlier than promised by the right one."""
    return sa.func.greatest(sa.func.clock_timestamp(), datetime.now(UTC))


def _in_force(instant: sa.ColumnElement[datetime]) -> tuple[sa.ColumnElement[bool], ...]:
    return holds.c.released_at.is_(None), sa.or_(holds.c.until.is_(None), holds.c.until > instant)


def _require_sense(
    kind: HoldKind, table: str, snapshot_ids: tuple[int, ...], until: datetime | None, ttl: timedelta | None
) -> None:
    problem = None
    if until is not None and ttl is not None:
        problem = ("The hold has two ends, an instant and a time to live", "use one of them")
    elif ttl is not None and ttl <= timedelta(0):
        problem = ("A time to live of zero holds nothing", "use a duration such as 2h")
    elif kind == "lease" and until is None and ttl is None:
        problem = ("A reader's lease must end by itself, when its reader dies", "set a time to live (--ttl 2h)")
    elif kind == "consumer" and len(snapshot_ids) != 1:
        problem = ("A consumer has one position", "choose the one snapshot that it reads next")
    if problem is not None:
        raise BadInput(problem[0], table=table, hint=problem[1])


# --- tags -------------------------------------------------------------------------------------------------------------
# Who created which tag, when, why and for how long. Iceberg's own tags have no author, and count their age from their
# snapshot. These records count from the tag's creation.


@dataclass(frozen=True)
class TagRecord:
    """`retain` None means forever. The newest record of a name is active, unless it is removed.

    `max_ref_age_ms` is the value written on the ref. If the ref has another value, another tool changed it, and this
    record does not apply. `who` and `created_at` are None if only the removal of a tag is known, which others had
    created.
    """

    tag_record_id: db.Serial
    table_uuid: str
    table: str
    name: str
    snapshot_id: int
    who: str | None
    why: str | None
    retain: timedelta | None
    max_ref_age_ms: int | None
    created_at: Annotated[datetime | None, {"server_default": db.CLOCK}]
    removed_at: datetime | None
    removed_by: str | None
    removed_why: str | None


tags = db.table_of(
    TagRecord,
    "tags",
    sa.Index("tags_one_per_name", "table_uuid", "name", unique=True, postgresql_where=sa.text("removed_at IS NULL")),
)

REPLACED = "replaced by a newer tag of that name"
NOT_MADE = "its commit failed"
MOVED = "moved to another snapshot by another tool"
"""Why records ended that no person removed."""


class Tags(db.Part):
    def record(
        self,
        table_uuid: str,
        table: str,
        name: str,
        snapshot_id: int,
        who: str,
        why: str | None = None,
        retain: timedelta | None = None,
        *,
        created_at: datetime | None = None,
        max_ref_age_ms: int | None = None,
    ) -> TagRecord:
        """Record that the tag was created (at the Postgres time if none is given). An active record under that name
        ends as replaced."""
        made = {} if created_at is None else {"created_at": created_at}
        with around("tags.record"), self.engine.begin() as connection:
            connection.execute(
                sa.update(tags)
                .where(tags.c.table_uuid == table_uuid, tags.c.name == name, tags.c.removed_at.is_(None))
                .values(removed_at=sa.func.clock_timestamp(), removed_by=who, removed_why=REPLACED)
            )
            return db.insert_record(
                connection,
                TagRecord,
                table_uuid=table_uuid,
                table=table,
                name=name,
                snapshot_id=snapshot_id,
                who=who,
                why=why,
                retain=retain,
                max_ref_age_ms=max_ref_age_ms,
                **made,
            )

    def withdraw(self, record: TagRecord) -> None:
        """Record that the tag of `record` was not created after all. The record that it replaced is active again."""
        mine = (tags.c.table_uuid == record.table_uuid, tags.c.name == record.name)
        with around("tags.withdraw"), self.engine.begin() as connection:
            gone = connection.execute(
                sa.update(tags)
                .where(tags.c.tag_record_id == record.tag_record_id, tags.c.removed_at.is_(None))
                .values(removed_at=sa.func.clock_timestamp(), removed_by=record.who, removed_why=NOT_MADE)
            )
            if not gone.rowcount:
                return
            former = connection.execute(
                sa.select(tags)
                .where(*mine, tags.c.tag_record_id < record.tag_record_id)
                .order_by(tags.c.tag_record_id.desc())
            ).first()
            if former is not None and former.removed_why == REPLACED:
                connection.execute(
                    sa.update(tags)
                    .where(tags.c.tag_record_id == former.tag_record_id)
                    .values(removed_at=None, removed_by=None, removed_why=None)
                )

    def removed(
        self, table_uuid: str, table: str, name: str, snapshot_id: int, who: str, why: str | None = None
    ) -> TagRecord:
        """Record that the tag was removed. If no record of it on that snapshot was active, others had created it; the
        removal is still recorded."""
        with around("tags.removed"), self.engine.begin() as connection:
            ended = {"removed_at": sa.func.clock_timestamp(), "removed_by": who, "removed_why": why}
            mine = (tags.c.table_uuid == table_uuid, tags.c.name == name, tags.c.removed_at.is_(None))
            connection.execute(
                sa.update(tags)
                .where(*mine, tags.c.snapshot_id != snapshot_id)
                .values(removed_at=sa.func.clock_timestamp(), removed_why=MOVED)
            )
            removed = db.update_record(connection, TagRecord, *mine, tags.c.snapshot_id == snapshot_id, **ended)
            return removed or db.insert_record(
                connection,
                TagRecord,
                table_uuid=table_uuid,
                table=table,
                name=name,
                snapshot_id=snapshot_id,
                created_at=None,
                **ended,
            )

    def of_table(self, table_uuid: str, *, with_removed: bool = False) -> tuple[TagRecord, ...]:
        """Return active records, or all records ever made, oldest first."""
        in_force = () if with_removed else (tags.c.removed_at.is_(None),)
        mine = tags.c.table_uuid == table_uuid
        return db.records(self.engine, TagRecord, mine, *in_force, order_by=(tags.c.tag_record_id,))


# --- heartbeats -------------------------------------------------------------------------------------------------------
# Heartbeats: a writer reports that it is active, so that no file of its table, or of its prefix, is treated as an
# orphan.
#
# A writer in another language needs two statements. Before its first file, and then repeatedly, it inserts into
# lifecycle.heartbeats (or updates by primary key) with `expires_at` some time after clock_timestamp(). At its end, it
# deletes the row.

_LOG = escaping.logger(__name__)

_HISTORY = timedelta(days=30)


SHOWN = ("writer", "protects", "host", "pid", "at work since", "unless it beats, until")
"""A heartbeat for display: the columns of `Heartbeat.shown`."""


@dataclass(frozen=True)
class Heartbeat:
    """One active writer. `prefix` None protects the whole table; `host` and `pid` are unknown for foreign writers."""

    table_uuid: db.Key
    table: str
    writer_id: db.Key
    # Two processes may write under one id: when one ends, the other must stay protected.
    session: Annotated[db.Key, {"server_default": sa.text("''")}]
    prefix: str | None
    host: str | None
    pid: Annotated[int | None, {"type_": sa.Integer}]
    started_at: db.Filled
    last_beat_at: db.Filled
    expires_at: datetime

    @property
    def shown(self) -> tuple[object, ...]:
        """Return its display row; SHOWN has the column names."""
        protects = self.prefix or "the whole table"
        return self.writer_id, protects, self.host, self.pid, self.started_at, self.expires_at


heartbeats = db.table_of(
    Heartbeat,
    "heartbeats",
    # The Postgres login. A trigger sets it, and only that login (and the lifecycle) may end or renew the heartbeat.
    sa.Column("login", sa.Text),
    # Drivers cannot read times beyond these years, and one such row would stop every step that reads it.
    sa.CheckConstraint(
        " AND ".join(
            f"{name} BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-30 00:00:00+00'"
            for name in ("started_at", "last_beat_at", "expires_at")
        ),
        name="heartbeats_times",
    ),
    sa.Index("heartbeats_expiry", "expires_at"),
)


class Heartbeats(db.Part):
    def beat(
        self,
        table_uuid: str,
        table: str,
        writer_id: str,
        prefix: str | None = None,
        ttl: timedelta = timedelta(minutes=10),
        *,
        session: str | None = None,
        timeout: float = 30.0,
    ) -> Heartbeat:
        """Start or renew a heartbeat: protected until `ttl` from now. `session` distinguishes processes with one writer
        id (None: host and pid).

        The first beat, and one after a lapse, takes the table's lock (by a trigger), so that no deletion batch is
        between its last check and its deletes. Raises Busy if that lock is not free within `timeout` seconds; Refused
        if another Postgres login is writing under this id and session.
        """
        key = session or _this_process()
        with self.engine.begin() as connection:
            renewed = db.update_record(
                connection,
                Heartbeat,
                heartbeats.c.table_uuid == table_uuid,
                heartbeats.c.writer_id == writer_id,
                heartbeats.c.session == key,
                heartbeats.c.expires_at > sa.func.clock_timestamp(),
                # Another prefix starts like another writer.
                heartbeats.c.prefix.is_not_distinct_from(prefix),
                table=table,
                last_beat_at=sa.func.clock_timestamp(),
                expires_at=sa.func.clock_timestamp() + ttl,
            )
        if renewed is not None:
            return renewed
        with (
            refusing(
                f"Postgres refuses the heartbeat of writer {writer_id}",
                table=table,
                untouched="the heartbeat of another login, if one is live under this id",
                hint=f"use a writer id of your own, and a login with {INGEST} (docs/roles.md)",
            ),
            around("heartbeats.enter"),
            self.engine.begin() as connection,
            busy_after(connection, timeout, table_uuid, table),
        ):
            connection.execute(
                sa.delete(heartbeats).where(heartbeats.c.expires_at < sa.func.clock_timestamp() - _HISTORY)
            )
            mine = {"table_uuid": table_uuid, "writer_id": writer_id, "session": key}
            anew = {
                "table_name": table,
                "prefix": prefix,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "expires_at": sa.func.clock_timestamp() + ttl,
            }
            now = sa.func.clock_timestamp()
            statement = db.put(heartbeats, mine | anew, anew, started_at=now, last_beat_at=now)
            row = connection.execute(statement.returning(heartbeats)).one()
        return db.to_record(Heartbeat, row)

    def stop(self, table_uuid: str, writer_id: str, *, session: str | None = None) -> None:
        """End this session's protection. Without such a session, nothing changes."""
        mine = (heartbeats.c.table_uuid == table_uuid, heartbeats.c.writer_id == writer_id)
        this_one = heartbeats.c.session == (session or _this_process())
        db.write(self.engine, "heartbeats.stop", sa.delete(heartbeats).where(*mine, this_one))

    def live(self, table_uuid: str | None = None) -> list[Heartbeat]:
        """Return the active writers by the Postgres clock, of one table or of all, longest active first."""
        where = (heartbeats.c.expires_at > sa.func.clock_timestamp(), *db.if_given(heartbeats.c.table_uuid, table_uuid))
        return list(db.records(self.engine, Heartbeat, *where, order_by=(heartbeats.c.started_at,)))


class Writing:
    """Protects what is written inside its block. A thread beats every third of `ttl`.

    Entering takes the table's lock, and raises Busy if it is not free within 30 s. Call `check()` before committing. It
    also calls `confirm`, which raises if the heartbeat is not visible where it must be.
    """

    def __init__(
        self,
        beats: Heartbeats,
        table_uuid: str,
        table: str,
        writer_id: str,
        prefix: str | None = None,
        ttl: timedelta = timedelta(minutes=10),
        *,
        confirm: Callable[[], object] = lambda: None,
    ) -> None:
        self.table = table
        self.writer_id = writer_id
        self.session = uuid.uuid4().hex
        self._beats = beats
        self._table_uuid = table_uuid
        self._prefix = prefix
        self._ttl = ttl
        self._confirm = confirm
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_always, name=f"heartbeat-{writer_id}", daemon=True)
        self._guard = threading.Lock()
        self._gap: str | None = None
        self._started_at: datetime | None = None
        self._deadline = float("inf")

    def check(self) -> None:
        """Beat now. Raises LeaseLost if the protection had a gap since the block began: a file written earlier may have
        been deleted as an orphan. Raises what `confirm` raises."""
        self._beat()
        self._confirm()
        if self._gap is not None:
            raise LeaseLost(
                f"The heartbeat of writer {self.writer_id} had a gap: {self._gap}",
                table=self.table,
                untouched="the table's metadata",
                hint="do not commit the files written so far; write them again",
            )

    def _beat(self) -> None:
        with self._guard:
            asked_at = elapsed()
            beat = self._beats.beat(
                self._table_uuid, self.table, self.writer_id, self._prefix, self._ttl, session=self.session
            )
            if self._started_at is not None and beat.started_at != self._started_at:
                self._gap = f"it lapsed and started again at {beat.started_at.isoformat()}"
            elif elapsed() > self._deadline:
                # The renewal started in time but was committed late: in between it was invisible.
                self._gap = "it was renewed only after it had lapsed"
            self._started_at = beat.started_at
            self._deadline = asked_at + self._ttl.total_seconds()

    def _beat_always(self) -> None:
        while not self._stop.wait(self._ttl.total_seconds() / 3):
            try:
                self._beat()
            except (OperationsUnavailable, Busy, Refused, DBAPIError) as error:
                _LOG.warning("Writer %s of %s could not beat: %s", self.writer_id, self.table, error)

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        # If Postgres is gone, the heartbeat lapses by itself, and the caller must see the writer's own error.
        with suppress(OperationsUnavailable, DBAPIError):
            self._beats.stop(self._table_uuid, self.writer_id, session=self.session)


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
