"""Leases: one worker per table and step of the walk, fenced by an increasing token.

A lapsed lease is lost, even if no worker has taken it over, because a monitor of runs may have given up on this one. If
a lease's holder is known to have ended (`processes`), the lease is free at once.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from artemis_lifecycle import escaping
from artemis_lifecycle.errors import LeaseLost, LeaseTaken, OperationsUnavailable
from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.locks import LOCK_VERSION, lock_row

_LOG = escaping.logger(__name__)

_HISTORY = timedelta(days=30)

_RESTARTS_LAST = 5.0
"""Seconds for which releasing a lease is retried."""


@dataclass(frozen=True)
class LeaseRecord:
    table_uuid: str
    table: str
    step: str
    owner: str
    run_id: str | None
    token: Annotated[int, {"primary_key": True, "autoincrement": False}]
    acquired_at: db.Filled
    expires_at: datetime
    process: str | None = None


lease_token = sa.Sequence("lease_token", schema=db.SCHEMA, metadata=db.metadata)

leases = db.table_of(
    LeaseRecord,
    "leases",
    sa.Column("released_at", db.Utc),
    sa.Column("taken_over_by", sa.BigInteger),
    # How tables are locked. A version with another locking method cannot take a lease, because it has no value for this
    # column.
    sa.Column("lock_version", sa.Integer, nullable=False),
    sa.Index("leases_of_table", "table_uuid", "token"),
    sa.Index("leases_of_run", "run_id", "token"),
    sa.Index(
        "leases_one_per_table",
        "table_uuid",
        unique=True,
        postgresql_where=sa.text("released_at IS NULL AND taken_over_by IS NULL"),
    ),
)

_HELD = (leases.c.released_at.is_(None), leases.c.taken_over_by.is_(None))
_LIVE = (*_HELD, leases.c.expires_at > sa.func.clock_timestamp())


class Lease:
    """A held lease. `token` is greater than that of every earlier lease of any table."""

    def __init__(self, engine: sa.Engine, record: LeaseRecord, ttl: timedelta) -> None:
        self.token = record.token
        self.table_uuid = record.table_uuid
        self.table = record.table
        self.acquired_at = record.acquired_at
        self._process = record.process
        self._engine = engine
        self._ttl = ttl
        self._lost: str | None = None
        self._guard = threading.Lock()
        self._expires_at = record.expires_at
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_always, name=f"lease-{record.token}", daemon=True)

    @property
    def expires_at(self) -> datetime:
        """When it lapses unless it is renewed, by the Postgres clock."""
        with self._guard:
            return self._expires_at

    def check(self) -> None:
        """Raise LeaseLost unless Postgres confirms now that this process holds the lease with at least half of its time
        left; renew it if less is left. Raises OperationsUnavailable if Postgres does not answer."""
        if self._lost is None and not self._lasts():
            self._renew()
        if self._lost is not None:
            raise LeaseLost(
                f"The lease (token {self.token}) is lost: {self._lost}",
                table=self.table,
                untouched="whatever this step had not done yet",
                hint="run the step again: it resumes",
            )

    def worked_on_by(self, process: str | None) -> None:
        """Record the mark of every process that works under the lease from now on (`processes.mark`); None if one is
        unknown. Raises LeaseLost if the lease is lost, OperationsUnavailable."""
        if process == self._process:
            return
        marked = sa.update(leases).where(leases.c.token == self.token, *_HELD).values(process=process)
        db.write(self._engine, "leases.worked_on_by", marked)
        self._process = process
        self.check()

    def _lasts(self) -> bool:
        # A read costs no disk write, but a renewal at each of several checks per deletion batch would.
        half = leases.c.expires_at > sa.func.clock_timestamp() + self._ttl / 2
        return db.one(self._engine, LeaseRecord, leases.c.token == self.token, *_HELD, half) is not None

    def _renew(self) -> None:
        with self._engine.begin() as connection:
            expires_at = connection.execute(
                sa.update(leases)
                .where(leases.c.token == self.token, *_LIVE)
                .values(expires_at=sa.func.clock_timestamp() + self._ttl)
                .returning(leases.c.expires_at)
            ).scalar_one_or_none()
            if expires_at is None:
                row = connection.execute(sa.select(leases).where(leases.c.token == self.token)).first()
                if row is None:
                    why = "its record is gone"
                elif row.taken_over_by is not None:
                    why = f"it lapsed at {row.expires_at.isoformat()} and token {row.taken_over_by} took the table over"
                elif row.released_at is not None:
                    why = f"it was released at {row.released_at.isoformat()}"
                else:
                    why = f"it lapsed at {row.expires_at.isoformat()} without being renewed"
        with self._guard:
            if expires_at is None:
                self._lost = why
            else:
                self._expires_at = expires_at

    def _renew_always(self) -> None:
        while not self._stop.wait(self._ttl.total_seconds() / 3) and self._lost is None:
            try:
                self._renew()
            except (OperationsUnavailable, DBAPIError) as error:
                # The next round tries again. If none succeeds in time, check() finds the lease lapsed.
                _LOG.warning("Lease %s of %s could not be renewed: %s", self.token, self.table, error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        # Wait for a Postgres that restarts, or the next worker would find a lease without a holder. Do not wait for one
        # that is gone: the lease lapses by itself, and the caller must see its own error.
        with suppress(OperationsUnavailable, DBAPIError), around("leases.release"):
            Retrying(
                retry=retry_if_exception_type((OperationsUnavailable, DBAPIError)),
                stop=stop_after_delay(_RESTARTS_LAST),
                wait=wait_fixed(0.25),
                reraise=True,
            )(self._release)

    def _release(self) -> None:
        with self._engine.begin() as connection:
            mine = sa.update(leases).where(leases.c.token == self.token, *_HELD)
            connection.execute(mine.values(released_at=sa.func.clock_timestamp()))


class Leases(db.Part):
    @contextmanager
    def hold(
        self,
        table_uuid: str,
        *,
        step: str,
        owner: str,
        table: str | None = None,
        run_id: str | None = None,
        ttl: timedelta = timedelta(minutes=2),
        process: str | None = None,
    ) -> Iterator[Lease]:
        """Hold the table's lease inside the block. A thread renews it every third of `ttl`.

        `process` marks every process that works under the lease (`processes.mark`); None if one is unknown. Raises
        LeaseTaken at once if another worker holds the lease. One that lapsed, or whose processes have ended, is taken
        over. At the end, only this token is released.
        """
        of = {"step": step, "owner": owner, "run_id": run_id, "process": process}
        record = self._acquire(ttl, table_uuid, table or table_uuid, **of)
        with Lease(self.engine, record, ttl) as lease:
            yield lease

    def newest_token(self) -> int:
        """Return the greatest token that this database has issued; 0 before the first."""
        return int(db.scalars(self.engine, sa.select(sa.func.max(leases.c.token)))[0] or 0)

    def live(self, table_uuid: str | None = None) -> list[LeaseRecord]:
        """Return the currently held leases, oldest first."""
        of_table = db.if_given(leases.c.table_uuid, table_uuid)
        return list(db.records(self.engine, LeaseRecord, *_LIVE, *of_table, order_by=(leases.c.token,)))

    def lapse(self, run_ids: Collection[str]) -> int:
        """End the leases of runs that are known to have ended, as if their time had run out. Return how many.

        If such a process is still alive, it finds its lease lost at its next check.
        """
        ended = sa.update(leases).where(leases.c.run_id.in_(run_ids), *_LIVE)
        return db.write(self.engine, "leases.lapse", ended.values(expires_at=sa.func.clock_timestamp()))

    def lapsed_runs(self) -> list[str]:
        """Return the ids of runs whose newest lease lapsed without being released, in the last 30 days."""
        later = leases.alias()
        query = (
            sa.select(leases.c.run_id)
            .where(
                leases.c.run_id.is_not(None),
                leases.c.released_at.is_(None),
                leases.c.expires_at <= sa.func.clock_timestamp(),
                leases.c.expires_at > sa.func.clock_timestamp() - _HISTORY,
                ~sa.exists().where(later.c.run_id == leases.c.run_id, later.c.token > leases.c.token),
            )
            .order_by(leases.c.token)
        )
        return [str(run_id) for run_id in db.scalars(self.engine, query)]

    def _acquire(self, ttl: timedelta, table_uuid: str, table: str, **of: str | None) -> LeaseRecord:
        with around("leases.acquire"), self.engine.begin() as connection:
            # Held only for this short transaction: a live lease is refused, never waited for.
            lock_row(connection, f"lease:{table_uuid}")
            current = connection.execute(
                sa.select(leases, (leases.c.expires_at > sa.func.clock_timestamp()).label("live"))
                .where(leases.c.table_uuid == table_uuid, *_HELD)
                .with_for_update()
            ).first()
            over = current is not None and is_over(current.process)
            if current is not None and current.live and not over:
                raise _taken(db.to_record(LeaseRecord, current))
            token: Any = lease_token.next_value()
            if current is not None:
                token = connection.execute(sa.select(token)).scalar_one()
                connection.execute(
                    sa.update(leases)
                    .where(leases.c.token == current.token)
                    .values(
                        taken_over_by=token, expires_at=sa.func.least(leases.c.expires_at, sa.func.clock_timestamp())
                    )
                )
                _LOG.warning(
                    "Lease %s of %s (%s, step %s) %s and is taken over",
                    current.token,
                    table,
                    current.owner,
                    current.step,
                    "belongs to a process that has ended" if over else "lapsed",
                )
            # Keep a table's newest lease, for the fence.
            connection.execute(
                sa.delete(leases).where(
                    leases.c.table_uuid == table_uuid, leases.c.expires_at < sa.func.clock_timestamp() - _HISTORY
                )
            )
            return db.insert_record(
                connection,
                LeaseRecord,
                token=token,
                table_uuid=table_uuid,
                table=table,
                lock_version=LOCK_VERSION,
                expires_at=sa.func.clock_timestamp() + ttl,
                **of,
            )


def _taken(holder: LeaseRecord) -> LeaseTaken:
    run = f", run {holder.run_id}" if holder.run_id else ""
    return LeaseTaken(
        f"{holder.owner} holds the table for step {holder.step} (token {holder.token}{run}) "
        f"until {holder.expires_at.isoformat()} at least",
        table=holder.table,
        hint="try again later; a holder that died loses the lease then, or at once if its death is detected",
    )


# --- processes --------------------------------------------------------------------------------------------------------
# Marks of processes, with which another process on the same machine can determine that they have ended.
#
# A mark has the running kernel, the namespaces in which its numbers are valid, and each process by number and start
# time. The answer is "over" or "unknown". If it is unknown (another machine, another container, no /proc), the caller
# waits as before.

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = ("pid", "time")  # Process numbers belong to the first, start times to the second.
_ENDED = ("Z", "X")


def mark(pids: Iterable[int]) -> str | None:
    """Return the mark of these living processes as text; None if the system cannot identify them."""
    kernel = _kernel()
    started = {pid: _start(pid) for pid in pids}
    if kernel is None or not started or None in started.values():
        return None
    return json.dumps({"kernel": kernel, "processes": sorted(started.items())})


def is_over(written: str | None) -> bool:
    """Return True if every process of the mark has certainly ended. False also means unknown."""
    if written is None:
        return False
    content = json.loads(written)
    return content["kernel"] == _kernel() and all(_ended(pid, start) for pid, start in content["processes"])


def _kernel() -> list[str] | None:
    """Return what identifies the system in which process numbers have the same meaning; None where it is unknown."""
    try:
        boot = _BOOT.read_text().strip()
        # Include the host name: machines resumed from one memory image share a boot id.
        return [socket.gethostname(), boot, *(os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES)]
    except OSError:
        return None


def _ended(pid: int, start: int) -> bool:
    try:
        os.kill(pid, 0)  # Sends nothing. It also sees processes of other users, which /proc may hide.
    except ProcessLookupError:
        return True
    except OSError:
        pass
    stat = _stat(pid)
    if stat is None:
        return False
    state, threads, started = stat
    # Ended but not yet reaped by its parent. A leader that ended before its threads still has some.
    return started != start or (state in _ENDED and threads <= 1)


def _start(pid: int) -> int | None:
    stat = _stat(pid)
    return None if stat is None else stat[2]


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return state, threads and start (in ticks since boot) from proc(5)'s stat; None if it cannot be read."""
    try:
        # The second field is the command in brackets, which may contain anything.
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return rest[0], int(rest[17]), int(rest[19])
