"""The metadata commit of a plan: one compare-and-swap removes snapshots and refs from the table, and changes nothing
else, except that a table property says who did it.

The guards run at every attempt, on exactly the metadata file that the swap compares: a check of another base proves
nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote
from types import MappingProxyType
from typing import TYPE_CHECKING

from artemis_lifecycle.catalogs.commit import BaseState, Change, commit_with_retry
from artemis_lifecycle.errors import Refused, StalePlan, require_uuid
from artemis_lifecycle.expiration.plan import ExpirationPlan, refuse_unexpirable
from artemis_lifecycle.expiration.unused import Unused
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.retention.reasons import few
from artemis_lifecycle.retention.rules import HoldView, TagView, decide, view_of
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ExpirationCommit:
    """The result of the commit. `attempts` is 0 if there was nothing to remove. `overtaken` are planned snapshots that
    another tool had already expired. `absent_copies` are archived copies that were lost in cold: the commit first
    copied them again from live, or, in a dry run, would have to."""

    plan_id: str
    metadata_location: str
    attempts: int
    snapshots_removed: int = 0
    refs_removed: int = 0
    schemas_removed: int = 0
    specs_removed: int = 0
    orders_removed: int = 0
    overtaken: tuple[int, ...] = ()
    absent_copies: int = 0
    committed_at: datetime | None = None
    due_at: datetime | None = None
    dry_run: bool = False


def removal(
    plan: ExpirationPlan, base: TableMetadata, holds: Iterable[HoldView] = (), tags: Iterable[TagView] = ()
) -> Change | None:
    """Return what `plan` still removes from `base`; None if all of it is already gone.

    A plan is stale if the same rule, at the plan's own instant, would now keep what it removes: because of a new ref or
    hold on an expired snapshot, a rollback to one, or a longer setting on a branch. A concurrent append does not make
    it stale. Raises StalePlan, AnotherTable, and what `refuse_unexpirable` raises.
    """
    require_uuid(plan.table, base.table_uuid, plan.table_uuid)
    refuse_unexpirable(base, plan.table)
    present = {snapshot.snapshot_id for snapshot in base.snapshots}
    doomed = [snapshot for snapshot in plan.expired_snapshots if snapshot in present]
    doomed_refs = [ref for ref in plan.expired_refs if ref in base.refs]
    if not doomed and not doomed_refs:
        return None
    try:
        decision = decide(
            view_of(base), plan.settings, milliseconds(plan.decided_at), holds=tuple(holds), tags=tuple(tags)
        )
    except Refused as refusal:
        # For snapshots selected by id, what forbids them now did not exist when the plan was made.
        raise _stale(plan, base, refusal.what) from refusal
    revived = [snapshot for snapshot in doomed if snapshot in decision.kept]
    still_expired = set(decision.expired_refs)
    revived_refs = [ref for ref in doomed_refs if ref not in still_expired]
    if revived or revived_refs:
        reasons = "; ".join(f"snapshot {snapshot}: {few(decision.kept[snapshot])}" for snapshot in revived[:3])
        refs = f"refs {', '.join(revived_refs[:3])}" if revived_refs else ""
        raise _stale(plan, base, "; ".join(filter(None, (reasons, refs))))
    return Change(expire_snapshot_ids=tuple(doomed), remove_refs=tuple(doomed_refs))


def _stale(plan: ExpirationPlan, base: TableMetadata, why: str) -> StalePlan:
    return StalePlan(
        f"Plan {plan.plan_id} would remove what the table now keeps: {why}",
        table=plan.table,
        path=base.metadata_location,
        untouched="the table's metadata and all files",
        hint=f"plan again: artemis plan {quote(plan.table)}",
    )


def made_by(base_location: str | None, updated_ms: int | None, metadata: TableMetadata) -> bool:
    """Return True if the metadata log proves that a recorded swap succeeded: its base is followed by the metadata of
    the swap. A log that no longer reaches back to the base proves nothing."""
    return any(
        before == base_location and after_ms == updated_ms
        for (before, _), (_, after_ms) in itertools.pairwise(_whole_log(metadata))
    )


def successor(base_location: str | None, metadata: TableMetadata) -> str:
    """Return the metadata file that replaced a base, as the metadata log has it; the current one if it does not say."""
    pairs = itertools.pairwise(_whole_log(metadata))
    return next((after for (before, _), (after, _) in pairs if before == base_location), metadata.metadata_location)


def _whole_log(metadata: TableMetadata) -> list[tuple[str, int]]:
    log = [(entry.metadata_file, entry.timestamp_ms) for entry in metadata.metadata_log]
    return [*log, (metadata.metadata_location, metadata.last_updated_ms)]


def commit_expiration(
    spark: SparkSession,
    stores: Stores,
    catalog: str,
    plan: ExpirationPlan,
    guards: Callable[[], tuple[tuple[HoldView, ...], tuple[TagView, ...]]],
    begin_swap: Callable[[str, int], None],
    clean: Callable[[TableMetadata, Collection[int]], Unused],
    lineage: Mapping[str, str] = MappingProxyType({}),
) -> ExpirationCommit:
    """Commit `plan` to the live catalog named `catalog`, and retry while others win the swap.

    `guards` reads the active holds and tag records at each attempt. `begin_swap` records the attempt (`made_by`
    recognizes it). `clean` returns the schemas, specs and sort orders to remove from an attempt's base, together
    with these snapshots. `lineage` (keys and `operation`) goes into the table's properties. Raises what `removal`
    raises, CommitConflict if every attempt lost, and CommitStateUnknown if the catalog did not report the result.
    """
    removed: list[Change] = []

    def change(base: BaseState) -> Change | None:
        metadata = read_table_metadata(stores, base.metadata_location)
        holds, tags = guards()
        found = removal(plan, metadata, holds, tags)
        unused = clean(metadata, () if found is None else found.expire_snapshot_ids)
        if found is not None or unused:
            found = replace(
                found or Change(),
                remove_schema_ids=sorted(unused.schemas),
                remove_spec_ids=sorted(unused.specs),
                remove_order_ids=sorted(unused.orders),
            )
        removed[:] = [found] if found is not None else []
        return found

    result = commit_with_retry(spark, catalog, plan.table, change, before_swap=begin_swap, lineage=lineage)
    done = removed[0] if removed and result.changed else Change()
    gone = set(done.expire_snapshot_ids)
    return ExpirationCommit(
        plan_id=plan.plan_id,
        metadata_location=result.metadata_location,
        attempts=result.attempts if result.changed else 0,
        snapshots_removed=len(gone),
        refs_removed=len(done.remove_refs),
        schemas_removed=len(done.remove_schema_ids),
        specs_removed=len(done.remove_spec_ids),
        orders_removed=len(done.remove_order_ids),
        overtaken=tuple(snapshot for snapshot in plan.expired_snapshots if snapshot not in gone),
    )
