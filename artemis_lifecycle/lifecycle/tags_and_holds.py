"""What keeps snapshots and files by somebody's word: tags, holds, and the heartbeats of writers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from shlex import quote

from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Steps, TableState, Step
from artemis_lifecycle.lifecycle.retention import Retention
from artemis_lifecycle.lifecycle.reading import Reading
from artemis_lifecycle.catalogs.commit import BaseState, Change, TagChange, commit_with_retry
from artemis_lifecycle.config.durations import parse_duration
from artemis_lifecycle.errors import BadInput, CommitStateUnknown, LifecycleError, NoSuchSnapshot, NoSuchTable
from artemis_lifecycle.expiration.promises import TableRefs, max_ref_age_ms, table_refs
from artemis_lifecycle.metadata.types import Ref
from artemis_lifecycle.operations.decisions import person
from artemis_lifecycle.operations.heartbeats import Heartbeat, Writing, writing
from artemis_lifecycle.operations.holds import Hold, HoldKind
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.plans import ENDED
from artemis_lifecycle.protection.prefixes import require_prefix
from artemis_lifecycle.storage.instants import milliseconds


@dataclass(frozen=True)
class Tagged:
    """A tag that was set, or removed (then `snapshot_id` is None). `who`, `at` and `why` are what is on record of it;
    `ends_at` None is for ever."""

    table: str
    name: str
    snapshot_id: int | None
    metadata_location: str
    who: str | None = None
    at: datetime | None = None
    why: str | None = None
    ends_at: datetime | None = None


@dataclass(frozen=True)
class TagsAndHolds:
    """Made, renewed and taken back, each by somebody who is on record."""

    resources: Resources
    steps: Steps
    retention: Retention
    reading: Reading

    def tag(
        self,
        table: str,
        name: str,
        snapshot_id: int,
        retain: str | timedelta = "forever",
        *,
        why: str = "",
        who: str | None = None,
        replace: bool = False,
    ) -> Tagged:
        """Tag a snapshot of the live table. `retain`: "forever", or a duration counted from now.

        Iceberg counts from the snapshot's commit; what is written on the ref says the same end in its terms. `who` (the
        user and host, if none is given), when and `why` are kept in Postgres. A tag of that name on another snapshot is
        moved only with `replace`.

        Raises NoSuchSnapshot; BadInput for a duration that is none, a name that a branch has, or such a tag.
        """
        kept = None if retain == "forever" else _duration("retain", retain)
        state = self.steps.table_state(table)
        snapshot = state.metadata.snapshot(snapshot_id)
        if snapshot is None:
            raise no_such_snapshot(table, snapshot_id, "its refs")
        with (
            self.steps.run(state, "tag", pausable=False),
            table_lock(self.resources.operations.engine, state.metadata.table_uuid),
        ):
            created_at = self.resources.instant("now", None)
            age = max_ref_age_ms(kept, created_at, snapshot.timestamp_ms)

            def change(base: BaseState) -> Change:
                found = base.metadata.ref(name)
                if found is not None and found.isTag() and found.snapshotId() != snapshot_id and not replace:
                    raise BadInput(
                        f"Tag {name!r} is on snapshot {found.snapshotId()} already",
                        table=table,
                        untouched="its refs",
                        hint="choose another name, or move the tag with --replace (replace=True)",
                    )
                return Change(set_tags=(TagChange(name, snapshot_id, age),))

            record = self.resources.operations.tags.record(
                state.metadata.table_uuid,
                table,
                name,
                snapshot_id,
                who or person(),
                why,
                kept,
                created_at=created_at,
                max_ref_age_ms=age,
            )
            try:
                result = commit_with_retry(
                    self.resources.spark,
                    self.resources.config.catalogs.live.name,
                    table,
                    change,
                    before_swap=self.resources.operations.table_locations.attempts_of(state.metadata.table_uuid),
                )
            except CommitStateUnknown:
                raise
            except LifecycleError:
                self.resources.operations.tags.withdraw(record)
                raise
        ends = None if kept is None else created_at + kept
        return Tagged(table, name, snapshot_id, result.metadata_location, record.who, created_at, why or None, ends)

    def untag(self, table: str, name: str, *, why: str = "", who: str | None = None) -> Tagged:
        """Remove a tag; who, when and `why` are kept, whoever made it. Raises NoSuchSnapshot when the table has no such
        tag, BadInput when it was moved meanwhile."""
        state = self.steps.table_state(table)
        ref = state.metadata.refs.get(name) or self._removed_unsaid(state, name)
        if ref is None or ref.is_branch:
            raise NoSuchSnapshot(
                f"The live table has no tag {name!r}",
                table=table,
                untouched="its refs",
                hint=f"artemis tags {quote(table)} lists the refs that it has",
            )

        def change(base: BaseState) -> Change | None:
            found = base.metadata.ref(name)
            if found is not None and (found.isBranch() or found.snapshotId() != ref.snapshot_id):
                raise BadInput(
                    f"Tag {name!r} was moved to snapshot {found.snapshotId()} meanwhile",
                    table=table,
                    untouched="its refs",
                    hint=f"look again (artemis tags {quote(table)}), then remove it",
                )
            return Change(remove_refs=(name,)) if found is not None else None

        with self.steps.run(state, "untag", pausable=False):
            result = commit_with_retry(
                self.resources.spark,
                self.resources.config.catalogs.live.name,
                table,
                change,
                before_swap=self.resources.operations.table_locations.attempts_of(state.metadata.table_uuid),
            )
            record = self.resources.operations.tags.removed(
                state.metadata.table_uuid, table, name, ref.snapshot_id, who or person(), why or None
            )
        return Tagged(
            table, name, None, result.metadata_location, record.removed_by, record.removed_at, record.removed_why
        )

    def _removed_unsaid(self, state: TableState, name: str) -> Ref | None:
        """A tag that is gone, and not because it expired, while its record is in force: who removed it died before that
        was written down."""
        table_uuid = state.metadata.table_uuid
        record = next((each for each in self.resources.operations.tags.of_table(table_uuid) if each.name == name), None)
        if record is None or any(
            name in plan.expired_refs for plan in self.resources.operations.plans.of_table(table_uuid, ENDED)
        ):
            return None
        return Ref(name, record.snapshot_id, "tag")

    def tags(self, table: str, *, with_removed: bool = False) -> TableRefs:
        """The table's branches and tags, each with its snapshot, its terms and its end, and who made it, when and why,
        where that is known. `with_removed` adds the records of tags that are no more."""
        state = self.steps.table_state(table)
        return table_refs(
            table,
            state.metadata,
            self.resources.operations.tags.of_table(state.metadata.table_uuid, with_removed=True),
            self.retention.settings(table, state.read_at),
            milliseconds(state.read_at),
            with_removed=with_removed,
        )

    def hold(
        self,
        table: str,
        owner: str,
        reason: str,
        snapshot_ids: Sequence[int] = (),
        until: datetime | None = None,
        *,
        kind: HoldKind = "legal",
        ttl: str | timedelta | None = None,
    ) -> Hold:
        """Hold the whole table (no ids) or some of its snapshots against expiration and deletion, until released.

        `kind`: "legal", which also keeps snapshots of the cold tier from the deep archive; "lease", a reader's, which
        ends after `ttl` unless it is renewed; "consumer", whose one snapshot is what it reads next: that and every
        later one stay. `until`, or `ttl` from now, ends any of them.

        Raises NoSuchSnapshot, also for one that expired while the hold was placed; BadInput; Busy.
        """
        state = self.steps.table_state(table)
        self._require_snapshots(state, snapshot_ids, kind)
        # What its snapshots read elsewhere stays known, should another tool expire them.
        self._reached_folders().look({table: state.entry}, self.resources.database_catalogs.tables())
        placed = self.resources.operations.holds.place(
            table_uuid=state.metadata.table_uuid,
            table=table,
            owner=owner,
            reason=reason,
            snapshot_ids=tuple(snapshot_ids),
            until=None if until is None else self.resources.instant("until", until),
            kind=kind,
            ttl=None if ttl is None else _duration("ttl", ttl),
        )
        try:
            # Placing waited for commits under way; what they removed, no hold brings back.
            self._require_snapshots(self.steps.table_state(table), snapshot_ids, kind)
        except BadInput:
            self.resources.operations.holds.release(
                placed.hold_id, person(), "its snapshot expired while it was placed"
            )
            raise
        return placed

    def _require_snapshots(self, state: TableState, snapshot_ids: Sequence[int], kind: HoldKind = "lease") -> None:
        absent = [snapshot_id for snapshot_id in snapshot_ids if state.metadata.snapshot(snapshot_id) is None]
        if absent and kind == "legal":
            # A legal hold also keeps a snapshot of the cold tier from the archive.
            cold = self.reading.cold_tables(state.metadata.table_uuid)
            absent = [each for each in absent if cold is None or cold.holding(each) is None]
        if absent:
            raise no_such_snapshot(state.name, absent[0], "its holds")

    def holds(self, table: str, *, ended: bool = False) -> list[Hold]:
        """The table's holds in force, oldest first; with `ended`, those that were, too."""
        table_uuid = self.steps.table_state(table).metadata.table_uuid
        found = (
            self.resources.operations.holds.of_table(table_uuid)
            if ended
            else self.resources.operations.holds.active(table_uuid)
        )
        return list(found)

    def renew(self, hold_id: str, ttl: str | timedelta) -> Hold:
        """Let a reader's lease last until `ttl` from now. Raises Refused when it has ended, BadInput for another kind,
        NoSuchPlan for an id that no hold has."""
        return self.resources.operations.holds.renew(hold_id, _duration("ttl", ttl))

    def advance(self, hold_id: str, snapshot_id: int) -> Hold:
        """Move a consumer's position: that snapshot, and every later one, stay from now on.

        Raises NoSuchSnapshot when the table has it no more, Refused when the hold has ended, BadInput for another kind,
        NoSuchPlan for an id that no hold has.
        """
        hold = self.resources.operations.holds.get(hold_id)
        with table_lock(self.resources.operations.engine, hold.table_uuid, table=hold.table):
            state = self.steps.table_state(hold.table)
            if state.metadata.table_uuid != hold.table_uuid:
                raise NoSuchTable(
                    f"The name now belongs to another table ({state.metadata.table_uuid}, not {hold.table_uuid})",
                    table=hold.table,
                    untouched="the hold",
                    hint=f"release the hold: artemis release {hold_id}",
                )
            self._require_snapshots(state, [snapshot_id])
            return self.resources.operations.holds.advance(hold_id, snapshot_id)

    def release(self, hold_id: str, *, who: str | None = None, why: str | None = None) -> Hold:
        """Release a hold. `who` (default: the account, USER@HOST) and `why` are kept. Raises NoSuchPlan for an id that
        no hold has; BadInput where nobody is named."""
        return self.resources.operations.holds.release(hold_id, person() if who is None else who, why)

    def writers(self, table: str | None = None) -> list[Heartbeat]:
        """The writers at work, by their heartbeats, of one table or of all, longest at work first."""
        return self.resources.operations.heartbeats.live(
            None if table is None else self.steps.table_state(table).metadata.table_uuid
        )

    def writing(
        self, table: str, writer_id: str, prefix: str | None = None, ttl: str | timedelta = "10m"
    ) -> AbstractContextManager[Writing]:
        """A heartbeat while the block runs: every unreferenced file of the table (or under `prefix`) is a writer's.

        `prefix` is a folder in a location of the table, or is relative to each of them. Raises BadInput for another;
        OtherDeployment, also by `check`: a heartbeat protects only where the catalog's own deployment sees it.
        """
        state = self.steps.table_state(table)
        if prefix is not None:
            require_prefix(prefix, state.metadata, table, self.resources.rules(table))
        # A writer claims no catalog: it may have no right to, and it works for whoever does.
        self.resources.require_deployment(record=False)
        return writing(
            self.resources.unchecked_operations.heartbeats,
            state.metadata.table_uuid,
            table,
            writer_id,
            prefix,
            parse_duration(ttl),
            confirm=lambda: self.resources.require_deployment(record=False),
        )


def _duration(name: str, given: str | timedelta) -> timedelta:
    try:
        duration = parse_duration(given)
    except ValueError as error:
        raise BadInput(f"{name}: {error}", hint="write it as 90d or 12h") from error
    if duration < timedelta(milliseconds=1):
        raise BadInput(f"{name} is no time at all: {given}", hint="write it as 90d or 12h")
    return duration
