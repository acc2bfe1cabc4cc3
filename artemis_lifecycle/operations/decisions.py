"""Who decided what, when, why and with which account: an append-only history.

The record of a plan, a hold or a pause has the current decision, which a later one may change. This history keeps all.
"""

from __future__ import annotations

import os
import pwd
import socket
import threading
import time
import unicodedata
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Literal, Protocol, TypeVar

import sqlalchemy as sa

from artemis_lifecycle.errors import LifecycleError, Paused
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around

DecisionKind = Literal[
    "approve-large",
    "approve-lost",
    "approve-scan",
    "close",
    "hold",
    "release",
    "pause",
    "resume",
    "undelete",
    "close-undelete",
    "keep-dropped",
    "unkeep-dropped",
    "undrop",
    "settle-metadata",
    "renew-identities",
    "recover-archive",
    "request-thaw",
    "approve-thaw",
    "end-thaw",
    "acknowledge-lineage",
    "put-back",
]


@dataclass(frozen=True)
class Decision:
    """One decision. `subject` is the id of its object. `who` is the stated name. `account` is the operating system user
    as reported by the client (USER@HOST). `login` and `address` are the Postgres account and its client address (None
    for a local socket), as reported by the server."""

    decision_id: db.Serial
    kind: str
    subject: str
    table_uuid: str | None
    table: str | None
    who: str
    why: str
    account: str
    login: Annotated[str, {"server_default": sa.text("session_user")}]
    address: str | None
    decided_at: db.Filled


# Append-only. A trigger sets the login, the address and the time.
decisions = db.table_of(
    Decision,
    "decisions",
    sa.CheckConstraint("btrim(who) <> ''", name="decisions_said"),
    sa.Index("decisions_of_table", "table_uuid", "decision_id"),
    sa.Index("decisions_of_subject", "subject", "decision_id"),
)


class OfTable(Protocol):
    """A record of a table; `table_uuid` and `table` None apply to all tables."""

    @property
    def table_uuid(self) -> str | None: ...
    @property
    def table(self) -> str | None: ...


Changed = TypeVar("Changed", bound=OfTable)


class Decisions(db.Part):
    def of_table(self, table_uuid: str | None = None, *, limit: int = 1000) -> list[Decision]:
        """Return the newest `limit` decisions about one table, or about all, newest first."""
        where = db.if_given(decisions.c.table_uuid, table_uuid)
        return list(db.records(self.engine, Decision, *where, order_by=(decisions.c.decision_id.desc(),), limit=limit))

    def about(self, subject: str) -> list[Decision]:
        """Return all decisions about one plan, scan, hold, pause, thaw or quarantine, oldest first."""
        order = (decisions.c.decision_id,)
        return list(db.records(self.engine, Decision, decisions.c.subject == subject, order_by=order))


@dataclass(frozen=True)
class NewDecision:
    """A decision to record. `why` None: no reason is required."""

    kind: DecisionKind
    subject: str
    who: str
    why: str | None = None

    def record(self, connection: sa.Connection, of: OfTable | None = None) -> None:
        """Add the decision in the transaction that carries it out. `of` is the record that it changes; without it,
        `subject` is a table's uuid.

        Raises BadInput, which ends that transaction, if `who` or `why` has no letter and no digit.
        """
        said = {"who": self.who} if self.why is None else {"who": self.who, "why": self.why}
        db.require_said((of and of.table) or self.subject, **said)
        connection.execute(
            sa.insert(decisions).values(
                kind=self.kind,
                subject=self.subject,
                table_uuid=self.subject if of is None else of.table_uuid,
                table_name=of and of.table,
                who=db.storable(self.who),
                why=db.storable(self.why or ""),
                account=person(),
            )
        )


def change(
    engine: sa.Engine,
    point: str,
    kind: type[Changed],
    /,
    *where: sa.ColumnElement[bool],
    decision: NewDecision | None = None,
    **values: object,
) -> Changed | None:
    """Update the only row that matches `where` in a separate transaction, between the crash points of `point`, and
    record the decision in it. Return None, and record nothing, if no row matches."""
    with around(point), engine.begin() as connection:
        changed = db.update_record(connection, kind, *where, **values)
        if changed is not None and decision is not None:
            decision.record(connection, changed)
    return changed


def person() -> str:
    """Return the acting person if none is named: USER@HOST of this process. It uses the user id, because anyone can set
    a variable such as USER."""
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return f"{user}@{socket.gethostname()}"


def may_be_one_person(one: str, other: str) -> bool:
    """Return True if two names look alike, or differ only in case, marks, spaces, punctuation or the part after `@`.

    Compares the skeletons of Unicode TR39 (confusable characters) of letters, their vowel signs, and digits.
    """
    # A capital I looks like an l, and is an i.
    return _skeleton(one) == _skeleton(other) or _skeleton(one.replace("I", "l")) == _skeleton(other.replace("I", "l"))


def _skeleton(name: str) -> str:
    # The part after @, or before a backslash, is the account's place, not its name.
    normal = unicodedata.normalize("NFKD", name).casefold()
    local = _plain(normal.partition("@")[0].rpartition("\\")[2])
    return "".join(_prototype(each) for each in local or _plain(normal))


def _plain(text: str) -> str:
    # Marks on ASCII letters are decoration; in other scripts they are vowels.
    return "".join(each for each in text if unicodedata.category(each)[0] in "LNM" and not "\u0300" <= each <= "\u036f")


@cache
def _prototype(character: str) -> str:
    """Return the ASCII text with which a character is confused, or the character itself."""
    if character.isascii():
        # Unicode treats these as confusable, and people confuse them.
        return {"0": "o", "1": "l", "m": "rn"}.get(character, character)
    # Loaded on demand: 1.6 MB of tables, which ASCII names do not need.
    from confusable_homoglyphs.confusables import confusables_data

    alike = sorted(
        folded
        for each in confusables_data.get(character, ())
        if (folded := unicodedata.normalize("NFKD", each["c"]).casefold()).isascii() and folded.isalnum()
    )
    return "".join(_prototype(each) for each in alike[0]) if alike else character


# --- pauses -----------------------------------------------------------------------------------------------------------
# The kill switch: a row in Postgres that every worker reads every second, on any machine.

CHECKED_EVERY = 1.0
"""Seconds between two reads of a worker."""


@dataclass(frozen=True)
class Pause:
    """Who stopped the lifecycle, for one table or (`table_uuid` None) for all, since when and why. It counts for the
    table, whatever its name is now, and for whatever table has the name: a person paused "db.t"."""

    pause_id: db.Key
    table_uuid: str | None
    table: str | None
    who: str
    why: str
    since: db.Filled
    ended_at: datetime | None
    ended_by: str | None

    def __str__(self) -> str:
        what = "all tables are" if self.table is None else f"{self.table} is"
        scope = "" if self.table is None else f" (table {self.table_uuid}, and any table with that name)"
        return f"{what} paused by {self.who} since {self.since:%Y-%m-%d %H:%M:%S} UTC{scope}: {self.why}"


pauses = db.table_of(
    Pause,
    "pauses",
    sa.CheckConstraint("btrim(who) <> '' AND btrim(why) <> ''", name="pauses_said"),
    sa.Index("pauses_in_force", "table_uuid", postgresql_where=sa.text("ended_at IS NULL")),
)

_IN_FORCE = pauses.c.ended_at.is_(None)


class Pauses(db.Part):
    def begin(self, who: str, why: str, table_uuid: str | None = None, table: str | None = None) -> Pause:
        """Stop one table's work, or all work without a table. An active pause does not change."""
        db.require_said(table or "all tables", who=who, why=why)
        with around("pauses.begin"), self.engine.begin() as connection:
            found = db.one(connection, Pause, _IN_FORCE, pauses.c.table_uuid.is_not_distinct_from(table_uuid))
            if found is None:
                pause_id = f"pause-{uuid.uuid4().hex[:12]}"
                found = db.insert_record(
                    connection, Pause, pause_id=pause_id, table_uuid=table_uuid, table=table, who=who, why=why
                )
                NewDecision("pause", pause_id, who, why).record(connection, found)
        return found

    def end(
        self, who: str, table_uuid: str | None = None, why: str | None = None, *, name: str | None = None
    ) -> list[Pause]:
        """Resume the work on one table (by its uuid, or by the name that it had when it was paused), or on all. Return
        the ended pauses. Raises BadInput without a person."""
        db.require_said(name or table_uuid or "all tables", who=who)
        those = pauses.c.table_uuid.is_not_distinct_from(table_uuid)
        if name is not None:
            # Never `table_uuid IS NULL`: that is the pause of all.
            those = sa.or_(*db.if_given(pauses.c.table_uuid, table_uuid), pauses.c.table_name == name)
        with around("pauses.end"), self.engine.begin() as connection:
            ended = db.update_records(
                connection, Pause, _IN_FORCE, those, ended_at=sa.func.clock_timestamp(), ended_by=who
            )
            for each in ended:
                NewDecision("resume", each.pause_id, who, why).record(connection, each)
        return list(ended)

    def in_force(self) -> list[Pause]:
        """Return the active pauses, those of all tables first."""
        return list(db.records(self.engine, Pause, _IN_FORCE, order_by=(pauses.c.table_uuid.nulls_first(),)))

    def of_table(self, table_uuid: str, table: str) -> Pause | None:
        """Return the pause that currently stops a table's work, if any: by its uuid or its name."""
        those = (each for each in self.in_force() if each.table_uuid in (None, table_uuid) or each.table == table)
        return next(those, None)


class Watch:
    """Checks every second, while the block runs, whether a step has to stop. `why` then has the reason.

    `reason` returns the reason to stop, or None. Once there is one, `stop` is called every second, and may cancel
    running work, because the step may be about to start more. If Postgres does not answer, nothing is stopped for that
    reason: the lease, which also needs Postgres, takes care of it.
    """

    def __init__(self, reason: Callable[[], str | None], stop: Callable[[], None] = lambda: None) -> None:
        self._reason = reason
        self._stop = stop
        self._why: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="artemis-watch", daemon=True)

    @property
    def why(self) -> str | None:
        return self._why

    def __enter__(self) -> Watch:
        self._why = self._reason()
        if self._why is None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(max(0.0, CHECKED_EVERY - (time.monotonic() - began))):
            began = time.monotonic()
            try:
                self._why = self._why or self._reason()
            except LifecycleError:
                continue
            if self._why is not None:
                self._stop()


def paused(table: str, why: str) -> Paused:
    """Return the error for work on `table` that was stopped by a pause or the end of its quiet window."""
    return Paused(
        f"The work stopped: {why}",
        table=table,
        untouched="the unfinished work, which the next run continues",
        hint="run artemis resume, or wait for the next window",
    )
