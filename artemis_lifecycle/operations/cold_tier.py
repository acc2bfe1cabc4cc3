"""The contents of the deep archive and its thaws: one row for each move, archived snapshot and thaw."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from artemis_lifecycle.errors import Refused
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision, change, may_be_one_person, person
from artemis_lifecycle.operations.roles import APPROVER, LIFECYCLE, approving

LAPSED = "it was not approved in time"
OVER = "its days are over"

Found = TypeVar("Found")


@dataclass(frozen=True)
class MoveRecord:
    """Files of a cold table that were moved to the archive. `finished_at` None: not all of them yet."""

    move_id: db.Key
    table_uuid: str
    table: str
    storage_class: str
    cutoff: datetime
    files_location: str
    files: db.Count
    bytes: db.Count
    who: str
    started_at: db.FilledLater = None
    finished_at: datetime | None = None


deep_moves = db.table_of(MoveRecord, "deep_moves", sa.Index("deep_moves_of_table", "table_uuid", "started_at"))

# Cold snapshots that have at least one file in the archive, or on its way there.
deep_snapshots = sa.Table(
    "deep_snapshots",
    db.metadata,
    sa.Column("table_uuid", sa.Text, primary_key=True),
    sa.Column("snapshot_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("move_id", sa.Text, sa.ForeignKey(deep_moves.c.move_id), primary_key=True),
)


class ThawState(StrEnum):
    REQUESTED = "requested"
    APPROVED = "approved"
    THAWING = "thawing"
    READABLE = "readable"
    ENDED = "ended"


@dataclass(frozen=True)
class ThawRecord:
    """A request to make archived snapshots readable, and its result. Sizes in bytes.

    It lapses at `lapses_at` unless a second person approves it first. `requested_from` and `approved_from` are the two
    persons' accounts (USER@HOST) as reported by the client; `…_login` are their Postgres logins, as reported by the
    server. `ended_why`: refused, lapsed, or its days are over.
    """

    thaw_id: db.Key
    table_uuid: str
    table: str
    snapshot_ids: tuple[int, ...]
    case_id: str
    requester: str
    reason: str
    days: db.Small
    files_location: str
    files: db.Count
    bytes: db.Count
    requested_from: str
    requested_login: str | None
    requested_at: db.Filled
    lapses_at: datetime
    approved_by: str | None
    approved_at: datetime | None
    approved_why: str | None
    approved_from: str | None
    approved_login: str | None
    asked_at: datetime | None
    readable_at: datetime | None
    readable_until: datetime | None
    ended_at: datetime | None
    ended_by: str | None
    ended_why: str | None
    forgetting_at: datetime | None = None
    forgotten_at: datetime | None = None

    @property
    def what(self) -> str:
        """Return the request in a sentence."""
        size = f"{self.files:,} files ({self.bytes:,} bytes)"
        return f"{self.requester} asks to thaw {size} for {self.case_id}: {self.reason}"

    @property
    def state(self) -> ThawState:
        if self.ended_at is not None:
            return ThawState.ENDED
        if self.readable_at is not None:
            return ThawState.READABLE
        if self.asked_at is not None:
            return ThawState.THAWING
        return ThawState.REQUESTED if self.approved_at is None else ThawState.APPROVED


thaws = db.table_of(
    ThawRecord,
    "thaws",
    sa.CheckConstraint("btrim(case_id) <> '' AND btrim(requester) <> '' AND btrim(reason) <> ''", name="thaws_said"),
    sa.CheckConstraint("lower(btrim(approved_by)) <> lower(btrim(requester))", name="thaws_second_person"),
    # One Postgres login counts as two accounts only if the operating system users differ.
    sa.CheckConstraint(
        "approved_login IS NULL OR approved_from IS NOT NULL AND ("
        "approved_login <> coalesce(requested_login, approved_login) "
        "OR lower(split_part(approved_from, '@', 1)) <> lower(split_part(requested_from, '@', 1)))",
        name="thaws_second_account",
    ),
    sa.CheckConstraint("asked_at IS NULL OR approved_by IS NOT NULL", name="thaws_approved_first"),
    sa.CheckConstraint("days > 0", name="thaws_days"),
    sa.Index("thaws_of_table", "table_uuid", "requested_at"),
)


class DeepMoves(db.Part):
    def begin(self, move: MoveRecord, snapshot_ids: Collection[int]) -> MoveRecord:
        """Record what will be moved, and the snapshots that become unreadable, before the first file moves. So no
        reader is ever directed to a snapshot that is gone."""
        with around("deep_moves.begin"), self.engine.begin() as connection:
            begun = db.insert_new(connection, move)
            mine = {"table_uuid": move.table_uuid, "move_id": move.move_id}
            rows = [{**mine, "snapshot_id": each} for each in snapshot_ids]
            if rows:
                connection.execute(db.new(deep_snapshots), rows)
        return begun

    def mark(
        self, table_uuid: str, snapshots: Mapping[str, Collection[int]], *, instead_of: Collection[int] = ()
    ) -> None:
        """Record that more snapshots, by move, have a file in the archive; of the snapshots `instead_of`, no others."""
        marked = {(move_id, each) for move_id, ids in snapshots.items() for each in ids}
        rows = [{"table_uuid": table_uuid, "snapshot_id": each, "move_id": move_id} for move_id, each in marked]
        mine = (deep_snapshots.c.table_uuid == table_uuid, deep_snapshots.c.snapshot_id.in_(instead_of))
        with around("deep_moves.mark"), self.engine.begin() as connection:
            if instead_of:
                connection.execute(sa.delete(deep_snapshots).where(*mine))
            if rows:
                connection.execute(db.new(deep_snapshots), rows)

    def finish(self, move_id: str) -> MoveRecord:
        finished_at = sa.func.coalesce(deep_moves.c.finished_at, sa.func.clock_timestamp())
        mine = deep_moves.c.move_id == move_id
        return _known(move_id, change(self.engine, "deep_moves.finish", MoveRecord, mine, finished_at=finished_at))

    def settle(
        self, move_id: str, *, files_location: str, files: int, size_in_bytes: int, snapshot_ids: Collection[int]
    ) -> MoveRecord:
        """Record what an interrupted move did move: its files, and the snapshots that need them. The other snapshots
        that it had marked are readable, and are unmarked."""
        left_over = (deep_snapshots.c.move_id == move_id, deep_snapshots.c.snapshot_id.not_in(snapshot_ids))
        with around("deep_moves.settle"), self.engine.begin() as connection:
            connection.execute(sa.delete(deep_snapshots).where(*left_over))
            move = db.update_record(
                connection,
                MoveRecord,
                deep_moves.c.move_id == move_id,
                files_location=files_location,
                files=files,
                bytes=size_in_bytes,
                finished_at=sa.func.clock_timestamp(),
            )
        return _known(move_id, move)

    def of_table(self, table_uuid: str) -> list[MoveRecord]:
        """Newest first."""
        newest = (deep_moves.c.started_at.desc(),)
        return list(db.records(self.engine, MoveRecord, deep_moves.c.table_uuid == table_uuid, order_by=newest))

    def snapshots(self, table_uuid: str, among: Collection[int] | None = None) -> frozenset[int]:
        """Return the table's snapshots (of those in `among`) that have a file in the archive, or on its way there."""
        if among is not None and not among:
            return frozenset()
        query = sa.select(deep_snapshots.c.snapshot_id).where(deep_snapshots.c.table_uuid == table_uuid)
        if among is not None:
            query = query.where(deep_snapshots.c.snapshot_id.in_(among))
        return frozenset(db.scalars(self.engine, query))


class Thaws(db.Part):
    def request(
        self,
        thaw_id: str,
        table_uuid: str,
        table: str,
        *,
        snapshot_ids: Sequence[int],
        case_id: str,
        requester: str,
        reason: str,
        days: int,
        files_location: str,
        files: int,
        size_in_bytes: int,
        approve_within: timedelta,
    ) -> ThawRecord:
        """Record a request. Sends nothing to the store yet. Raises BadInput for a text without content."""
        db.require_said(table, case_id=case_id, requester=requester, reason=reason)
        with around("thaws.request"), self.engine.begin() as connection:
            thaw = db.insert_record(
                connection,
                ThawRecord,
                thaw_id=thaw_id,
                table_uuid=table_uuid,
                table=table,
                snapshot_ids=list(snapshot_ids),
                case_id=case_id.strip(),
                requester=requester.strip(),
                reason=reason.strip(),
                days=days,
                files_location=files_location,
                files=files,
                bytes=size_in_bytes,
                requested_from=person(),
                lapses_at=sa.func.clock_timestamp() + approve_within,
            )
            NewDecision("request-thaw", thaw_id, requester, reason).record(connection, thaw)
        return thaw

    def approve(self, thaw_id: str, who: str, why: str) -> ThawRecord:
        """Record a second person's approval, from another Postgres login. For the schema's owner, another operating
        system user is sufficient.

        Raises Refused for a name that may be the requester's, for the requesting account, for a login that may not
        approve, and for a thaw that has lapsed or ended; BadInput without a person; NoSuchPlan. A second approval
        changes nothing.
        """
        thaw = self.get(thaw_id)
        db.require_said(thaw.table, who=who)
        if may_be_one_person(who, thaw.requester):
            raise Refused(
                f"{who.strip()} asked for this thaw (as {thaw.requester}), and cannot approve it",
                table=thaw.table,
                untouched="the thaw, and all files",
                hint="let a second person run: artemis approve-thaw",
            )
        open_to_approval = (thaws.c.approved_at.is_(None), thaws.c.lapses_at > sa.func.clock_timestamp())
        try:
            with approving(thaw_id):
                done = self._set(
                    thaw_id,
                    *open_to_approval,
                    decision=NewDecision("approve-thaw", thaw_id, who, why if why.strip() else None),
                    approved_by=who.strip(),
                    approved_at=sa.func.clock_timestamp(),
                    approved_why=why.strip() or None,
                    approved_from=person(),
                )
        except IntegrityError as error:
            if "thaws_second_" not in str(error.orig):
                raise
            raise Refused(
                f"The account that asked for this thaw ({thaw.requested_from}, login "
                f"{thaw.requested_login or 'unknown'} of Postgres) cannot approve it, whatever the name",
                table=thaw.table,
                untouched="the thaw, and all files",
                hint="let a second person approve from a separate account: CREATE ROLE … LOGIN PASSWORD '…' "
                f"IN ROLE {LIFECYCLE}, {APPROVER}, and that login in their operations.uri (docs/security.md)",
            ) from None
        if done is not None:
            return done
        thaw = self.get(thaw_id)
        if thaw.ended_at is not None or thaw.approved_at is None:
            ended = thaw.ended_why or LAPSED
            raise Refused(
                f"The thaw for case {thaw.case_id} has ended: {ended}",
                table=thaw.table,
                untouched="all files",
                hint="request it again: artemis thaw",
            )
        return thaw

    def asked(self, thaw_id: str) -> ThawRecord:
        """Record that every file was requested from the store."""
        asked_at = sa.func.coalesce(thaws.c.asked_at, sa.func.clock_timestamp())
        return self._set(thaw_id, asked_at=asked_at) or self.get(thaw_id)

    def readable(self, thaw_id: str, until: datetime) -> ThawRecord:
        """Record that every file is readable, and until when."""
        readable_at = sa.func.coalesce(thaws.c.readable_at, sa.func.clock_timestamp())
        return self._set(thaw_id, readable_at=readable_at, readable_until=until) or self.get(thaw_id)

    def end(self, thaw_id: str, who: str | None, why: str) -> ThawRecord:
        """End a thaw. One that has already ended does not change. Raises NoSuchPlan."""
        ended = None if who is None else NewDecision("end-thaw", thaw_id, who, why)
        done = self._set(thaw_id, decision=ended, ended_at=sa.func.clock_timestamp(), ended_by=who, ended_why=why)
        return done or self.get(thaw_id)

    def get(self, thaw_id: str) -> ThawRecord:
        """Raises NoSuchPlan."""
        return _known(thaw_id, db.one(self.engine, ThawRecord, thaws.c.thaw_id == thaw_id))

    def list(self, table_uuid: str | None = None, *, ended: bool = False) -> list[ThawRecord]:
        """Return those that have not ended (with `ended`, all), of one table or of all, newest first."""
        where = (*db.if_given(thaws.c.table_uuid, table_uuid), *(() if ended else (thaws.c.ended_at.is_(None),)))
        return list(db.records(self.engine, ThawRecord, *where, order_by=(thaws.c.requested_at.desc(),)))

    def to_approve(self) -> tuple[ThawRecord, ...]:
        """Return the requests that wait for a second person, longest first."""
        where = (
            thaws.c.approved_at.is_(None),
            thaws.c.ended_at.is_(None),
            thaws.c.lapses_at > sa.func.clock_timestamp(),
        )
        return db.records(self.engine, ThawRecord, *where, order_by=(thaws.c.requested_at,))

    def _set(
        self, thaw_id: str, *conditions: sa.ColumnElement[bool], decision: NewDecision | None = None, **values: object
    ) -> ThawRecord | None:
        """Return None if it has ended, or a condition is not met."""
        where = (thaws.c.thaw_id == thaw_id, thaws.c.ended_at.is_(None), *conditions)
        return change(self.engine, "thaws.record", ThawRecord, *where, decision=decision, **values)


def _known(wanted: str, found: Found | None) -> Found:
    return db.required(found, f"No move or thaw {wanted} is stored", "artemis thaws lists all thaws")


def new_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


# --- restores ---------------------------------------------------------------------------------------------------------
# Restores from the cold tier, in progress and finished: one row per restore.


@dataclass(frozen=True)
class RestoreRecord:
    """A restore of `source_snapshot_id` to `branch`, with its files in `folder`. `snapshot_id` is the new snapshot's.

    `protected_since` is when the heartbeat over the folder began. If the heartbeat began again later, earlier copies
    may have been deleted as orphans, so the restore is abandoned and started over.
    """

    restore_id: db.Key
    table_uuid: str
    table: str
    source_snapshot_id: int
    branch: str
    folder: str
    who: str
    why: str | None
    started_at: db.FilledLater = None
    protected_since: datetime | None = None
    abandoned_at: datetime | None = None
    finished_at: datetime | None = None
    snapshot_id: int | None = None
    metadata_location: str | None = None
    forgetting_at: datetime | None = None
    forgotten_at: datetime | None = None


restores = db.table_of(
    RestoreRecord,
    "restores",
    sa.Index("restores_of_table", "table_uuid", "started_at"),
    sa.Index(
        "restores_one_open",
        "table_uuid",
        "source_snapshot_id",
        "branch",
        unique=True,
        postgresql_where=sa.text("finished_at IS NULL AND abandoned_at IS NULL"),
    ),
)


class Restores(db.Part):
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
        with around("restores.begin"), self.engine.begin() as connection:
            found = db.one(
                connection,
                RestoreRecord,
                restores.c.table_uuid == table_uuid,
                restores.c.source_snapshot_id == source_snapshot_id,
                restores.c.branch == branch,
                restores.c.finished_at.is_(None),
                restores.c.abandoned_at.is_(None),
            )
            if found is None:
                restore_id, what = new_id("restore"), (table_uuid, table, source_snapshot_id, branch)
                found = db.insert_new(
                    connection, RestoreRecord(restore_id, *what, f"{location}/{restore_id}", who, why)
                )
        return found

    def protected(self, restore_id: str, since: datetime) -> RestoreRecord:
        """Record since when the folder is protected."""
        return self._set(restore_id, protected_since=since)

    def abandon(self, restore_id: str) -> RestoreRecord:
        """Record that the restore is not used; its files are orphans."""
        return self._set(restore_id, abandoned_at=sa.func.clock_timestamp())

    def finish(self, restore_id: str, snapshot_id: int, metadata_location: str) -> RestoreRecord:
        return self._set(
            restore_id,
            finished_at=sa.func.coalesce(restores.c.finished_at, sa.func.clock_timestamp()),
            snapshot_id=snapshot_id,
            metadata_location=metadata_location,
        )

    def of_table(self, table_uuid: str) -> list[RestoreRecord]:
        """Newest first, including abandoned ones."""
        newest = (restores.c.started_at.desc(),)
        return list(db.records(self.engine, RestoreRecord, restores.c.table_uuid == table_uuid, order_by=newest))

    def _set(self, restore_id: str, **values: object) -> RestoreRecord:
        mine = restores.c.restore_id == restore_id
        changed = change(self.engine, "restores.record", RestoreRecord, mine, decision=None, **values)
        return db.required(changed, f"No restore {restore_id} is stored", "start it first")


# --- scrubs -----------------------------------------------------------------------------------------------------------
# The progress of the rotation through each cold table's files, and the lost copies that it found.


@dataclass(frozen=True)
class ScrubRecord:
    """The state of a rotation: every copy with a position on the ring below `position` was read since `began_at`.
    `files` and `bytes` were read in this rotation."""

    table_uuid: db.Key
    table: str
    position: int
    began_at: datetime
    files: db.Count
    bytes: db.Count
    updated_at: db.Filled


@dataclass(frozen=True)
class ColdLoss:
    """A cold copy that was missing or differed from its record when it was read. `settled_at`: it matches its record
    again."""

    table_uuid: db.Key
    table: str
    path: db.Key
    source: str
    reason: str
    found_at: db.Filled
    checked_at: db.Filled
    settled_at: datetime | None


cold_scrubs = db.table_of(ScrubRecord, "cold_scrubs")
cold_losses = db.table_of(
    ColdLoss, "cold_losses", sa.Index("cold_losses_open", "table_uuid", postgresql_where=sa.text("settled_at IS NULL"))
)


@dataclass(frozen=True)
class LostCopy:
    """One copy that differed from its record: its cold path, the live path of the original, and what was wrong."""

    path: str
    source: str
    reason: str


class Scrubs(db.Part):
    def of_table(self, table_uuid: str) -> ScrubRecord | None:
        return db.one(self.engine, ScrubRecord, cold_scrubs.c.table_uuid == table_uuid)

    def last(self) -> dict[str, datetime]:
        """Return when cold copies of each table were last read, by its name."""
        found = db.records(self.engine, ScrubRecord, order_by=(cold_scrubs.c.updated_at,))
        return {each.table: each.updated_at for each in found}

    def moved(
        self,
        table_uuid: str,
        table: str,
        position: int,
        began_at: datetime,
        *,
        files: int,
        size_in_bytes: int,
        lost: Sequence[LostCopy] = (),
        settled: Collection[str] = (),
    ) -> None:
        """Record that the rotation that began at `began_at` has read everything below `position`: the total files and
        bytes, and the copies that were found lost, or that match their records again (`settled`, by path)."""
        values = {
            "position": position,
            "began_at": began_at,
            "files": files,
            "bytes": size_in_bytes,
            "table_name": table,
        }
        now = sa.func.clock_timestamp()
        with around("scrubs.moved"), self.engine.begin() as connection:
            connection.execute(db.put(cold_scrubs, {"table_uuid": table_uuid, **values}, values, updated_at=now))
            for found in lost:
                row = {"table_uuid": table_uuid, "table_name": table, **db.values_of(found)}
                again = ("table_name", "source", "reason")
                connection.execute(db.put(cold_losses, row, again, checked_at=now, settled_at=None))
            if settled:
                connection.execute(
                    sa.update(cold_losses)
                    .where(
                        cold_losses.c.table_uuid == table_uuid,
                        cold_losses.c.path.in_(settled),
                        cold_losses.c.settled_at.is_(None),
                    )
                    .values(settled_at=now, checked_at=now)
                )

    def losses(self, table_uuid: str, limit: int | None = None) -> list[ColdLoss]:
        """Return the copies that are still lost, longest unchecked first."""
        still = (cold_losses.c.table_uuid == table_uuid, cold_losses.c.settled_at.is_(None))
        order = (cold_losses.c.checked_at, cold_losses.c.path)
        return list(db.records(self.engine, ColdLoss, *still, order_by=order, limit=limit))
