"""Commits that remove snapshots through a REST catalog: what each attempt asked for, recorded before it is sent, and
what its proof found."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import sqlalchemy as sa

from artemis_lifecycle.operations import tables as db
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.decisions import NewDecision


class RestState(StrEnum):
    """`sent`: may still happen, or has and is not proven. `refused`: the server said that it did not happen. `absent`:
    it did not, a day later. `proven`: the base that the server used is known, and no ref is lost. `unproven`: it
    happened, and a ref is lost, or may be. `closed`: a person closed its plan before it was proven."""

    SENT = "sent"
    REFUSED = "refused"
    ABSENT = "absent"
    PROVEN = "proven"
    UNPROVEN = "unproven"
    CLOSED = "closed"


OPEN_STATES = frozenset({RestState.SENT, RestState.UNPROVEN})
_LANDS_WITHIN = timedelta(days=1)
"""After that, a commit that was sent and is not in the table's metadata never will be."""


@dataclass(frozen=True)
class PutBack:
    """A ref that a commit dropped unseen, and that was set again (empty: a snapshot that no ref names). Its snapshot
    has the same id, and new numbers unless the table still had it."""

    ref: str
    snapshot_id: int
    old_sequence_number: int
    sequence_number: int
    timestamp_ms: int
    first_row_id: int | None = None


@dataclass(frozen=True)
class RestCommit:
    """One attempt. `marker` is the value of its table property. `used_location` is the base that the server used, and
    `metadata_location` the file that it wrote. `put_back` has one JSON text for each `PutBack`."""

    marker: db.Key
    table_uuid: str
    table: str
    plan_id: str | None
    base_location: str
    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    state: RestState
    sent_at: db.FilledLater = None
    settled_at: datetime | None = None
    metadata_location: str | None = None
    used_location: str | None = None
    put_back: tuple[str, ...] | None = None
    why: str | None = None

    @property
    def is_overtaken(self) -> bool:
        """Whether a later attempt removed the snapshots of this one, which had not happened by then."""
        return self.state == RestState.SENT and self.used_location is not None

    @property
    def refs_put_back(self) -> tuple[PutBack, ...]:
        """The refs that were set again."""
        return tuple(PutBack(**json.loads(each)) for each in self.put_back or ())


rest_commits = db.table_of(RestCommit, "rest_commits", sa.Index("rest_commits_of_table", "table_uuid", "state"))


class RestCommits(db.Part):
    def begin(
        self,
        marker: str,
        table_uuid: str,
        table: str,
        plan_id: str | None,
        base_location: str,
        snapshot_ids: Collection[int],
        refs: Collection[str],
    ) -> None:
        """Record an attempt before it is sent."""
        of = (marker, table_uuid, table, plan_id, base_location)
        with around("rest_commits.begin"), self.engine.begin() as connection:
            db.insert_new(connection, RestCommit(*of, tuple(snapshot_ids), tuple(refs), RestState.SENT))

    def settle(
        self,
        marker: str,
        state: RestState,
        *,
        metadata_location: str | None = None,
        used_location: str | None = None,
        put_back: Sequence[PutBack] = (),
        why: str | None = None,
        who: str | None = None,
    ) -> RestCommit:
        """Record what is known of an attempt now. Each ref that was put back is a decision of the table's history, too:
        `who` is the step that did it."""
        with around("rest_commits.settle"), self.engine.begin() as connection:
            found = db.update_record(
                connection,
                RestCommit,
                rest_commits.c.marker == marker,
                state=state,
                settled_at=sa.func.clock_timestamp(),
                metadata_location=metadata_location,
                used_location=used_location,
                put_back=tuple(json.dumps(asdict(each)) for each in put_back),
                why=why,
            )
            assert found is not None
            for each in put_back:
                ref = f"ref {each.ref} on snapshot {each.snapshot_id}" if each.ref else f"snapshot {each.snapshot_id}"
                said = f"{ref} was made or kept anew while {marker} was committed"
                NewDecision("put-back", found.plan_id or marker, who or "artemis", said).record(connection, found)
        return found

    def overtaken(self, by: RestCommit, snapshot_ids: Collection[int]) -> None:
        """Record of the attempts before a proven one that they had not happened by then, and can remove nothing any
        more: each of their snapshots is one of `snapshot_ids`, which that one removed."""
        c = rest_commits.c
        earlier = (c.table_uuid == by.table_uuid, c.state == RestState.SENT, c.sent_at < by.sent_at)
        mine = (*earlier, c.snapshot_ids.contained_by(list(snapshot_ids)))
        # They stay open: while the table's metadata log reaches back to them, what became of them is proven.
        passed = sa.update(rest_commits).where(*mine).values(used_location=by.metadata_location)
        db.write(self.engine, "rest_commits.overtaken", passed)

    def open(self, table_uuid: str) -> tuple[RestCommit, ...]:
        """Return the table's attempts that are not settled, oldest first."""
        of_table = (rest_commits.c.table_uuid == table_uuid, rest_commits.c.state.in_(OPEN_STATES))
        return db.records(self.engine, RestCommit, *of_table, order_by=(rest_commits.c.sent_at,))

    def of_table(self, table_uuid: str, plan_id: str | None = None) -> tuple[RestCommit, ...]:
        """Return all attempts on the table, or those of one plan, oldest first."""
        plan = db.if_given(rest_commits.c.plan_id, plan_id)
        mine = rest_commits.c.table_uuid == table_uuid
        return db.records(self.engine, RestCommit, mine, *plan, order_by=(rest_commits.c.sent_at,))

    def proven(self, table_uuid: str, plan_id: str) -> tuple[RestCommit, ...]:
        """Return the plan's attempts that happened and are proven, oldest first."""
        return tuple(each for each in self.of_table(table_uuid, plan_id) if each.state == RestState.PROVEN)

    def give_up(self, marker: str) -> None:
        """Record an attempt that is not in the table's metadata as absent, once it can no longer happen."""
        c = rest_commits.c
        late = c.sent_at < sa.func.clock_timestamp() - _LANDS_WITHIN
        mine = (c.marker == marker, c.state.in_(OPEN_STATES), c.metadata_location.is_(None), late)
        absent = {"state": RestState.ABSENT, "settled_at": sa.func.clock_timestamp()}
        db.write(self.engine, "rest_commits.give_up", sa.update(rest_commits).where(*mine).values(absent))
