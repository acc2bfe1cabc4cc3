"""Tags, holds, and the heartbeats of writers: what protects snapshots and files from expiration and deletion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from shlex import quote

from artemis_lifecycle.catalogs.commit import BaseState, Change, CommitResult, TagChange
from artemis_lifecycle.commits.gate import Gate
from artemis_lifecycle.config.durations import parse_duration
from artemis_lifecycle.contracts.summary import OPERATION
from artemis_lifecycle.errors import BadInput, CommitStateUnknown, LifecycleError, NoSuchSnapshot
from artemis_lifecycle.expiration.tags_and_holds import TableRefs, max_ref_age_ms, no_such_snapshot, table_refs
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import Ref
from artemis_lifecycle.operations.decisions import person
from artemis_lifecycle.operations.holds import Hold, HoldKind, Writing
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.plans import ENDED
from artemis_lifecycle.protection.ownership import require_prefix
from artemis_lifecycle.reachability.reached import ReachedFolders
from artemis_lifecycle.session.contexts import cold_tables, retention_settings
from artemis_lifecycle.session.formats import COPIED_BY_TAGS
from artemis_lifecycle.session.resources import Resources, host_now
from artemis_lifecycle.session.steps import Steps, TableState
from artemis_lifecycle.storage.instants import milliseconds


@dataclass(frozen=True)
class Tagged:
    """A tag that was set, or removed (then `snapshot_id` is None). `who`, `at` and `why` are from its record; `ends_at`
    None means forever."""

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
    """Sets and removes tags, places and moves holds, and records who did it."""

    resources: Resources
    steps: Steps

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
        """Tag a snapshot of the live table. `retain`: "forever", or a duration from now.

        Iceberg counts from the snapshot's commit; the value on the ref expresses the same end in its terms. `who`
        (default: user and host), when and `why` are recorded in Postgres. A tag with that name on another snapshot is
        moved only with `replace`.

        Raises NoSuchSnapshot; BadInput for an invalid duration, a name that a branch has, or such a tag.
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
            # As the end of a hold: by the later clock.
            created_at = self.resources.instant("now", max(self.resources.clock.now(), host_now()))
            age = max_ref_age_ms(kept, created_at, snapshot.timestamp_ms)

            def change(base: BaseState) -> Change:
                found = self._ref(base, name)
                if found is not None and not found.is_branch and found.snapshot_id != snapshot_id and not replace:
                    raise BadInput(
                        f"Tag {name!r} is on snapshot {found.snapshot_id} already",
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
                result = self._commit(state, change, "tag", who)
            except CommitStateUnknown:
                raise
            except LifecycleError:
                self.resources.operations.tags.withdraw(record)
                raise
        ends = None if kept is None else created_at + kept
        return Tagged(table, name, snapshot_id, result.metadata_location, record.who, created_at, why or None, ends)

    def untag(self, table: str, name: str, *, why: str = "", who: str | None = None) -> Tagged:
        """Remove a tag, whoever created it, and record who, when and `why`. Raises NoSuchSnapshot if the table has no
        such tag, BadInput if it was moved in the meantime."""
        state = self.steps.table_state(table)
        ref = state.metadata.refs.get(name) or self._removed_unsaid(state, name)
        if ref is None or ref.is_branch:
            raise NoSuchSnapshot(
                f"The live table has no tag {name!r}",
                table=table,
                untouched="its refs",
                hint=f"artemis tags {quote(table)} lists its refs",
            )

        def change(base: BaseState) -> Change | None:
            found = self._ref(base, name)
            if found is not None and (found.is_branch or found.snapshot_id != ref.snapshot_id):
                raise BadInput(
                    f"Tag {name!r} was moved to snapshot {found.snapshot_id} meanwhile",
                    table=table,
                    untouched="its refs",
                    hint=f"check again (artemis tags {quote(table)}), then remove it",
                )
            return Change(remove_refs=(name,)) if found is not None else None

        with self.steps.run(state, "untag", pausable=False):
            result = self._commit(state, change, "untag", who)
            record = self.resources.operations.tags.removed(
                state.metadata.table_uuid, table, name, ref.snapshot_id, who or person(), why or None
            )
        return Tagged(
            table, name, None, result.metadata_location, record.removed_by, record.removed_at, record.removed_why
        )

    def _commit(
        self, state: TableState, change: Callable[[BaseState], Change | None], what: str, who: str | None
    ) -> CommitResult:
        worker = replace(self.steps.worker(what), trigger_type="manual", operator=who or person())
        return self.resources.committer(state.name)(
            state.name,
            change,
            swaps=self.resources.swaps(state.name, state.metadata.table_uuid),
            lineage=Gate(self.resources).noted(state.name, {**worker.summary(), OPERATION: what}),
        )

    def _ref(self, base: BaseState, name: str) -> Ref | None:
        return read_table_metadata(self.resources.live_stores, base.metadata_location).refs.get(name)

    def _removed_unsaid(self, state: TableState, name: str) -> Ref | None:
        """Return a tag that is gone, but did not expire, while its record is active: its remover died before recording
        the removal."""
        table_uuid = state.metadata.table_uuid
        record = next((each for each in self.resources.operations.tags.of_table(table_uuid) if each.name == name), None)
        if record is None or any(
            name in plan.expired_refs for plan in self.resources.operations.plans.of_table(table_uuid, ENDED)
        ):
            return None
        return Ref(name, record.snapshot_id, "tag")

    def tags(self, table: str, *, with_removed: bool = False) -> TableRefs:
        """Return the table's branches and tags, each with its snapshot, terms and end, and who created it, when and
        why, if known. `with_removed` adds the records of removed tags."""
        state = self.steps.table_state(table)
        return table_refs(
            table,
            state.metadata,
            self.resources.operations.tags.of_table(state.metadata.table_uuid, with_removed=True),
            retention_settings(self.resources, table),
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
        state_of: Callable[[str], TableState],
    ) -> Hold:
        resources, state = self.resources, state_of(table)
        table = state.name
        # It protects only if the table's catalog is this deployment's, whose steps look for it.
        resources.require_deployment(table)
        self._require_snapshots(state, snapshot_ids, kind)
        # The folders that its snapshots read elsewhere stay known, even if another tool expires them.
        reads: tuple[str, ...] = ()
        if state.catalog is None and not state.is_dropped:
            reached = ReachedFolders(resources.start_spark, resources.live_stores, resources.root, resources.rules)
            reached.refresh({table: state.entry})
            reads = reached.of(table)
        if not state.is_dropped:
            self.steps.saw(state)
        placed = resources.operations.holds.place(
            table_uuid=state.metadata.table_uuid,
            table=table,
            owner=owner,
            reason=reason,
            snapshot_ids=tuple(snapshot_ids),
            until=None if until is None else resources.instant("until", until),
            kind=kind,
            ttl=None if ttl is None else _duration("ttl", ttl),
            reads=reads,
        )
        try:
            # Placing the hold waited for commits under way; a hold cannot restore what they removed.
            self._require_snapshots(state if state.is_dropped else self.steps.again(state), snapshot_ids, kind)
        except BadInput:
            resources.operations.holds.release(placed.hold_id, person(), "its snapshot expired while it was placed")
            raise
        return placed

    def _require_snapshots(self, state: TableState, snapshot_ids: Sequence[int], kind: HoldKind = "lease") -> None:
        absent = [snapshot_id for snapshot_id in snapshot_ids if state.metadata.snapshot(snapshot_id) is None]
        if self.resources.kind(state.name) in COPIED_BY_TAGS:
            tagged = {ref.snapshot_id for ref in state.metadata.refs.values()}
            absent = [snapshot_id for snapshot_id in absent if snapshot_id not in tagged]
        if absent and kind == "legal":
            # A legal hold also keeps a snapshot of the cold tier out of the archive.
            cold = cold_tables(self.resources, state.metadata.table_uuid)
            absent = [each for each in absent if cold is None or cold.holding(each) is None]
        if absent:
            raise no_such_snapshot(state.name, absent[0], "its holds")

    def renew(self, hold_id: str, ttl: str | timedelta) -> Hold:
        """Extend a reader's lease until `ttl` from now. Raises Refused if it has ended, BadInput for another kind,
        NoSuchPlan for an unknown id."""
        return self.resources.operations.holds.renew(hold_id, _duration("ttl", ttl))

    def advance(self, hold_id: str, snapshot_id: int) -> Hold:
        """Move a consumer's position: that snapshot, and every later one, stay from now on.

        Raises NoSuchSnapshot if the table no longer has it, Refused if the hold has ended, BadInput for another kind,
        NoSuchPlan for an unknown id.
        """
        hold = self.resources.operations.holds.get(hold_id)
        with table_lock(self.resources.operations.engine, hold.table_uuid, table=hold.table):
            state = self.steps.state_of(hold.table, hold.table_uuid)
            self._require_snapshots(state, [snapshot_id])
            return self.resources.operations.holds.advance(hold_id, snapshot_id)

    def writing(self, table: str, writer_id: str, prefix: str | None = None, ttl: str | timedelta = "10m") -> Writing:
        """Send a heartbeat while the block runs: every unreferenced file of the table (or under `prefix`) then counts
        as a writer's.

        `prefix` is a folder in a location of the table, or is relative to each of them. Raises BadInput for another;
        OtherDeployment, also from `check`: a heartbeat protects only if the catalog's own deployment sees it.
        """
        state = self.steps.any_state(table)
        if prefix is not None:
            require_prefix(prefix, state.metadata, table, self.resources.rules(table))
        # A writer does not claim the catalog, because it may lack the right.
        self.resources.require_deployment(table, record=False)
        return Writing(
            self.resources.unchecked_operations.heartbeats,
            state.metadata.table_uuid,
            table,
            writer_id,
            prefix,
            parse_duration(ttl),
            confirm=lambda: self.resources.require_deployment(table, record=False),
        )


def _duration(name: str, given: str | timedelta) -> timedelta:
    try:
        duration = parse_duration(given)
    except ValueError as error:
        raise BadInput(f"{name}: {error}", hint="use a duration such as 90d or 12h") from error
    if duration < timedelta(milliseconds=1):
        raise BadInput(f"{name} is not a time span: {given}", hint="use a duration such as 90d or 12h")
    return duration
