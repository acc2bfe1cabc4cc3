"""What is in the deep archive, and what is being thawed from it: one row for each move, archived snapshot and thaw."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import ColumnElement, Engine, delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or
from sqlalchemy.exc import IntegrityError

from artemis_lifecycle.errors import NoSuchPlan, Refused
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision, may_be_one_person, person
from artemis_lifecycle.operations.roles import APPROVER, LIFECYCLE, approving
from artemis_lifecycle.operations.tables import deep_moves, deep_snapshots, thaws, to_record
from artemis_lifecycle.operations.texts import require_said

LAPSED = "nobody approved it in time"
OVER = "its days are over"


@dataclass(frozen=True)
class MoveRecord:
    """Files of a cold table that were moved to the archive; `finished_at` None: not all of them yet."""

    move_id: str
    table_uuid: str
    table: str
    storage_class: str
    cutoff: datetime
    files_location: str
    files: int
    bytes: int
    who: str
    started_at: datetime
    finished_at: datetime | None


class ThawState(StrEnum):
    REQUESTED = "requested"
    APPROVED = "approved"
    THAWING = "thawing"
    READABLE = "readable"
    ENDED = "ended"


@dataclass(frozen=True)
class ThawRecord:
    """A request to make archived snapshots readable, and what became of it. Sizes in bytes.

    It lapses at `lapses_at` unless a second person approves it before. `requested_from` and `approved_from` are
    the accounts (USER@HOST) that the two were at work under, as they say; `…_login` theirs of Postgres, as it says.
    `ended_why`: refused, lapsed, or its days are over.
    """

    thaw_id: str
    table_uuid: str
    table: str
    snapshot_ids: tuple[int, ...]
    case_id: str
    requester: str
    reason: str
    days: int
    files_location: str
    files: int
    bytes: int
    requested_from: str
    requested_login: str | None
    requested_at: datetime
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

    @property
    def state(self) -> ThawState:
        if self.ended_at is not None:
            return ThawState.ENDED
        if self.readable_at is not None:
            return ThawState.READABLE
        if self.asked_at is not None:
            return ThawState.THAWING
        return ThawState.REQUESTED if self.approved_at is None else ThawState.APPROVED


class DeepMoves:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(
        self,
        move_id: str,
        table_uuid: str,
        table: str,
        *,
        storage_class: str,
        cutoff: datetime,
        files_location: str,
        files: int,
        size_in_bytes: int,
        who: str,
        snapshot_ids: Collection[int],
    ) -> MoveRecord:
        """Write down what is about to move, and the snapshots that will not be readable after it: before the first file
        moves, so that no reader is ever sent to one that is gone."""
        with around("deep_moves.begin"), self._engine.begin() as connection:
            row = connection.execute(
                insert(deep_moves)
                .values(
                    move_id=move_id,
                    table_uuid=table_uuid,
                    table_name=table,
                    storage_class=storage_class,
                    cutoff=cutoff,
                    files_location=files_location,
                    files=files,
                    bytes=size_in_bytes,
                    who=who,
                )
                .returning(deep_moves)
            ).one()
            rows = [{"table_uuid": table_uuid, "snapshot_id": each, "move_id": move_id} for each in snapshot_ids]
            if rows:
                connection.execute(insert_or(deep_snapshots).on_conflict_do_nothing(), rows)
        return to_record(MoveRecord, row)

    def finish(self, move_id: str) -> MoveRecord:
        with around("deep_moves.finish"), self._engine.begin() as connection:
            row = connection.execute(
                update(deep_moves)
                .where(deep_moves.c.move_id == move_id)
                .values(finished_at=func.coalesce(deep_moves.c.finished_at, func.clock_timestamp()))
                .returning(deep_moves)
            ).one()
        return to_record(MoveRecord, row)

    def settle(
        self, move_id: str, *, files_location: str, files: int, size_in_bytes: int, snapshot_ids: Collection[int]
    ) -> MoveRecord:
        """Write what a move that stopped half-way did move: its files, and the snapshots that these take. The others
        that it had marked are readable, and are said to be again."""
        left_over = (deep_snapshots.c.move_id == move_id, deep_snapshots.c.snapshot_id.not_in(snapshot_ids))
        with around("deep_moves.settle"), self._engine.begin() as connection:
            connection.execute(delete(deep_snapshots).where(*left_over))
            row = connection.execute(
                update(deep_moves)
                .where(deep_moves.c.move_id == move_id)
                .values(
                    files_location=files_location,
                    files=files,
                    bytes=size_in_bytes,
                    finished_at=func.clock_timestamp(),
                )
                .returning(deep_moves)
            ).one()
        return to_record(MoveRecord, row)

    def of_table(self, table_uuid: str) -> list[MoveRecord]:
        """Newest first."""
        query = select(deep_moves).where(deep_moves.c.table_uuid == table_uuid).order_by(deep_moves.c.started_at.desc())
        with self._engine.connect() as connection:
            return [to_record(MoveRecord, row) for row in connection.execute(query)]

    def snapshots(self, table_uuid: str, among: Collection[int] | None = None) -> frozenset[int]:
        """The table's snapshots (`among` these) of which a file is in the archive, or on its way there."""
        if among is not None and not among:
            return frozenset()
        query = select(deep_snapshots.c.snapshot_id).where(deep_snapshots.c.table_uuid == table_uuid)
        if among is not None:
            query = query.where(deep_snapshots.c.snapshot_id.in_(among))
        with self._engine.connect() as connection:
            return frozenset(connection.execute(query).scalars())


class Thaws:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
        """Record a request. It asks nothing of the store yet. Raises BadInput for a text that says nothing."""
        require_said(table, case_id=case_id, requester=requester, reason=reason)
        with around("thaws.request"), self._engine.begin() as connection:
            row = connection.execute(
                insert(thaws)
                .values(
                    thaw_id=thaw_id,
                    table_uuid=table_uuid,
                    table_name=table,
                    snapshot_ids=list(snapshot_ids),
                    case_id=case_id.strip(),
                    requester=requester.strip(),
                    reason=reason.strip(),
                    days=days,
                    files_location=files_location,
                    files=files,
                    bytes=size_in_bytes,
                    requested_from=person(),
                    lapses_at=func.clock_timestamp() + approve_within,
                )
                .returning(thaws)
            ).one()
            thaw = to_record(ThawRecord, row)
            NewDecision("request-thaw", requester, reason).record(connection, thaw_id, thaw)
        return thaw

    def approve(self, thaw_id: str, who: str, why: str) -> ThawRecord:
        """Record a second person's approval, from another login of Postgres; for the schema's owner another user of
        the operating system suffices.

        Raises Refused for a name that may be the requester's, for the account that asked, for a login that may not
        approve, and for a thaw that has lapsed or ended; BadInput for nobody's; NoSuchPlan. Approving twice changes
        nothing.
        """
        thaw = self.get(thaw_id)
        require_said(thaw.table, who=who)
        if may_be_one_person(who, thaw.requester):
            raise Refused(
                f"{who.strip()} asked for this thaw (as {thaw.requester}), and cannot approve it",
                table=thaw.table,
                untouched="the thaw, and all files",
                do="let a second person run: artemis approve-thaw",
            )
        open_to_approval = (thaws.c.approved_at.is_(None), thaws.c.lapses_at > func.clock_timestamp())
        try:
            with approving(thaw_id):
                done = self._set(
                    thaw_id,
                    *open_to_approval,
                    decision=NewDecision("approve-thaw", who, why if why.strip() else None),
                    approved_by=who.strip(),
                    approved_at=func.clock_timestamp(),
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
                do="let a second person approve from an account of their own: CREATE ROLE … LOGIN PASSWORD '…' "
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
                do="ask for it anew: artemis thaw",
            )
        return thaw

    def asked(self, thaw_id: str) -> ThawRecord:
        """Write that the store was asked for every file."""
        asked_at = func.coalesce(thaws.c.asked_at, func.clock_timestamp())
        return self._set(thaw_id, asked_at=asked_at) or self.get(thaw_id)

    def readable(self, thaw_id: str, until: datetime) -> ThawRecord:
        """Write that every file is readable, and until when."""
        readable_at = func.coalesce(thaws.c.readable_at, func.clock_timestamp())
        return self._set(thaw_id, readable_at=readable_at, readable_until=until) or self.get(thaw_id)

    def end(self, thaw_id: str, who: str | None, why: str) -> ThawRecord:
        """End a thaw. One that has ended stays as it was. Raises NoSuchPlan."""
        ended = None if who is None else NewDecision("end-thaw", who, why)
        done = self._set(thaw_id, decision=ended, ended_at=func.clock_timestamp(), ended_by=who, ended_why=why)
        return done or self.get(thaw_id)

    def get(self, thaw_id: str) -> ThawRecord:
        """Raises NoSuchPlan."""
        with self._engine.connect() as connection:
            row = connection.execute(select(thaws).where(thaws.c.thaw_id == thaw_id)).first()
        if row is None:
            raise NoSuchPlan(
                f"No thaw {thaw_id} is stored", untouched="everything", do="artemis thaws lists those that there are"
            )
        return to_record(ThawRecord, row)

    def list(self, table_uuid: str | None = None, *, ended: bool = False) -> list[ThawRecord]:
        """Those that have not ended (with `ended`, all), of one table or of every, newest first."""
        query = select(thaws).order_by(thaws.c.requested_at.desc())
        if table_uuid is not None:
            query = query.where(thaws.c.table_uuid == table_uuid)
        if not ended:
            query = query.where(thaws.c.ended_at.is_(None))
        with self._engine.connect() as connection:
            return [to_record(ThawRecord, row) for row in connection.execute(query)]

    def _set(
        self,
        thaw_id: str,
        *conditions: ColumnElement[bool],
        decision: NewDecision | None = None,
        **values: object,
    ) -> ThawRecord | None:
        """None when it has ended, or a condition does not hold."""
        with around("thaws.record"), self._engine.begin() as connection:
            row = connection.execute(
                update(thaws)
                .where(thaws.c.thaw_id == thaw_id, thaws.c.ended_at.is_(None), *conditions)
                .values(**values)
                .returning(thaws)
            ).first()
            if row is not None and decision is not None:
                decision.record(connection, thaw_id, to_record(ThawRecord, row))
        return None if row is None else to_record(ThawRecord, row)


def new_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"
