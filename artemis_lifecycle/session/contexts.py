"""What protection needs to decide about files of a live table, a dropped table, or the cold tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache, partial

from artemis_lifecycle.cold_tier.cold_tables import ColdSide, ColdTables, open_entries
from artemis_lifecycle.cold_tier.deep_archive import archived_files
from artemis_lifecycle.cold_tier.evolution import Ids, archive_ids, with_lists
from artemis_lifecycle.cold_tier.handoff import NOTHING_ARCHIVED, read_outcome
from artemis_lifecycle.cold_tier.ledger import handoff_ledger
from artemis_lifecycle.cold_tier.paths import PathMapping, no_cold_table, read_identity, recovering
from artemis_lifecycle.cold_tier.presence import ColdCopies, RecordedCopy, absent_among, repair
from artemis_lifecycle.cold_tier.transfer import HandoffContext
from artemis_lifecycle.errors import HandoffFailed, NoSuchTable
from artemis_lifecycle.expiration.history_index import history_folders, read_history
from artemis_lifecycle.expiration.plan import ExpirationPlan, load_plan, unarchived
from artemis_lifecycle.expiration.tags_and_holds import hold_views, tag_views
from artemis_lifecycle.metadata.table_metadata import metadata_json
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.plans import PlanRecord
from artemis_lifecycle.protection.absence import Absence
from artemis_lifecycle.protection.context import DeletionContext
from artemis_lifecycle.reachability.index import IndexSettings, IndexView
from artemis_lifecycle.reachability.index.refresh import require_present
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.retention.rules import HoldView, Keepers, RetentionSettings
from artemis_lifecycle.session.policies import effective_policy
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.session.steps import Step
from artemis_lifecycle.spark.java_errors import java_errors
from artemis_lifecycle.storage.frames import frame_batches
from artemis_lifecycle.storage.instants import milliseconds

# --- tiers ------------------------------------------------------------------------------------------------------------
# What a table has in each tier: the index of its manifests, and its cold tables.


def live_index(resources: Resources, table: str, metadata: TableMetadata) -> IndexView:
    """Return the manifest index of a live table, as of that metadata."""
    settings = IndexSettings.from_config(resources.config, table)
    stores, rules = resources.live_stores, resources.rules(table)
    return indexed(resources.start_spark, stores, metadata, rules, resources.root, settings)


def present_index(
    resources: Resources, table: str, metadata: TableMetadata, *, without: Collection[int] = ()
) -> IndexView:
    """`live_index`, once every list and manifest is in the store with its recorded length; except those that only the
    snapshots `without` list. Raises UnreadableMetadata, with the table's name."""
    with java_errors(table):
        view = live_index(resources, table, metadata)
        require_present(view, without=without)
    return view


def cold_index(resources: Resources, table: str, cold: TableMetadata, *, in_process: bool = False) -> IndexView:
    """Return the manifest index of a live table's cold tables, in a separate folder: they have the live table's uuid,
    but other files. With `in_process`, it is brought up to date without Spark."""
    spark, rules = None if in_process else resources.start_spark, resources.rules(table)
    return indexed(spark, resources.cold_stores, cold, rules, f"{resources.root}/cold", files=resources.live_stores)


def cold_tables(resources: Resources, table_uuid: str) -> ColdTables | None:
    """Return the cold tables of the live table with that uuid; None before its first handoff. Raises
    UnreadableMetadata."""
    stores = resources.cold_stores, resources.live_stores
    return ColdTables.open(resources.cold_catalog, *stores, resources.root, table_uuid)


def cold_metadata(resources: Resources, table_uuid: str) -> TableMetadata | None:
    """Return the metadata of all cold tables of the live table with that uuid, as one; None before its first
    handoff."""
    tables = cold_tables(resources, table_uuid)
    return None if tables is None else tables.whole()


# --- retention --------------------------------------------------------------------------------------------------------
# What the retention rules need for a table: its settings, holds and tags, and what is known of its past.


def retention_settings(
    resources: Resources,
    table: str,
    older_than: datetime | None = None,
    retain_last: int | None = None,
    snapshot_ids: Sequence[int] | None = None,
) -> RetentionSettings:
    """Return the settings of the table's policy (`retention.from`). Arguments of the call take precedence."""
    policy, is_set = resources.config.policy(table).retention, resources.config.explicit_window(table) is not None
    if policy.sources != ("lifecycle.yaml",):
        found = effective_policy(resources, table)
        given = {"window": found.window, "min_snapshots": found.min_snapshots}
        policy = policy.model_copy(update={name: value for name, value in given.items() if value is not None})
        is_set = is_set or found.window is not None
    return RetentionSettings.of(
        policy,
        explicit_window=is_set,
        older_than_ms=None if older_than is None else milliseconds(resources.instant("older_than", older_than)),
        retain_last=retain_last,
        explicit_ids=snapshot_ids or (),
    )


def active_holds(resources: Resources, table_uuid: str) -> tuple[HoldView, ...]:
    """Return the active holds of a table."""
    holds = resources.operations.holds.active(table_uuid, resources.operations.clock.now())
    named = any(hold.snapshot_ids and hold.kind != "consumer" for hold in holds)
    return hold_views(holds, _archived(resources, table_uuid) if named else frozenset())


def keepers(resources: Resources, table: str, table_uuid: str) -> Keepers:
    """Return what keeps a table's snapshots beside its settings: active holds, tags, and what is known of its past."""
    return {
        "holds": active_holds(resources, table_uuid),
        "tags": tag_views(resources.operations.tags.of_table(table_uuid)),
        "was_main": cache(partial(was_main, resources, table, table_uuid)),
    }


def was_main(resources: Resources, table: str, table_uuid: str) -> frozenset[int]:
    """Return the snapshots that are known to have been the table's current one."""
    stores, folders = resources.live_stores, history_folders(resources.root, table, table_uuid)
    known = (read_history(stores, folder) for folder in folders)
    return frozenset().union(*(index.snapshot_ids(stores) for index in known if index is not None))


# --- copies -----------------------------------------------------------------------------------------------------------
# The archived copies of live files: where they are, which are lost, and how to copy those again.


def cold_copies(resources: Resources, table: str, table_uuid: str) -> ColdCopies | None:
    """Return the archived copies of the table's files; None before its first handoff."""
    identity = read_identity(resources.live_stores, resources.root, table_uuid)
    if identity is None:
        return None

    def cold() -> IndexView | None:
        metadata = cold_metadata(resources, table_uuid)
        return None if metadata is None else cold_index(resources, table, metadata)

    def ids() -> Ids:
        tables, live = cold_tables(resources, table_uuid), resources.catalogs.entry(table).metadata_location
        places = [(resources.live_stores, live)]
        places += [] if tables is None else [(resources.cold_stores, tables.newest.metadata.metadata_location)]
        read = [with_lists(metadata_json(stores.read(at), at, stores.limits)) for stores, at in places]
        return archive_ids(read[0], read[1] if tables is not None else None)

    return ColdCopies(
        spark=resources.start_spark,
        live_stores=resources.live_stores,
        cold_stores=resources.cold_stores,
        mapping=PathMapping(identity),
        ledger=handoff_ledger(resources.live_stores, resources.root, table_uuid),
        cold=cold,
        moved=lambda: archived_files(resources.live_stores, resources.operations.deep_moves.of_table(table_uuid)),
        ids=ids,
    )


def absent_copies(resources: Resources, plan: ExpirationPlan, record: PlanRecord) -> list[RecordedCopy]:
    """Return the required copies of the plan's files that are missing from the cold store, by size, at this moment.

    Raises HandoffFailed if the plan was handed off and the cold tables do not have its snapshots.
    """
    if record.cold_metadata_location not in (None, NOTHING_ARCHIVED):
        require_published(resources, plan)
    copies = cold_copies(resources, plan.table, plan.table_uuid)
    if copies is None:
        return []
    batches = frame_batches(plan.files_location, resources.live_stores)
    return absent_among(copies, (batch.column("path").to_pylist() for batch in batches))


def require_published(resources: Resources, plan: ExpirationPlan) -> None:
    """Raise HandoffFailed if the cold tables lack snapshots that the plan's handoff archived."""
    outcome = read_outcome(resources.live_stores, resources.root, plan.plan_id)
    try:
        tables = cold_tables(resources, plan.table_uuid)
    except NoSuchTable:
        tables = None
    in_cold = set() if tables is None else {each.snapshot_id for each in tables.newest.metadata.snapshots}
    if tables is not None and outcome is not None and not in_cold.issuperset(outcome.archived):
        in_cold = {each.snapshot_id for each in tables.whole().snapshots}
    if outcome is None or not in_cold.issuperset(outcome.archived):
        raise HandoffFailed(
            f"Plan {plan.plan_id} was handed off, but the cold tables no longer have all its snapshots",
            table=plan.table,
            untouched="the live table and all its files",
            hint=f"{recovering(plan.table)}, if the cold catalog was put back; "
            f"before the commit, artemis hand-off {plan.plan_id} publishes them again",
        )


def copy_again(resources: Resources, plan: ExpirationPlan, record: PlanRecord, step: Step) -> int:
    """Copy again what cold has lost of the plan's files. Return how many files. Raises HandoffFailed."""
    absent = absent_copies(resources, plan, record)
    if not absent:
        return 0
    copies = cold_copies(resources, plan.table, plan.table_uuid)
    assert copies is not None  # it reported which are absent
    done = repair(copies, resources.live_stores, absent, check=step.check)
    failed = [each for each in done if each.error is not None]
    if failed:
        raise HandoffFailed(
            f"{len(absent)} archived copies are lost in cold, and {len(failed)} of them cannot be made again; the "
            f"first: {failed[0].error}",
            table=plan.table,
            path=failed[0].copy.destination,
            untouched="the live table and all its files",
            hint="restore the file in the cold store, or the live file that it is a copy of, then rerun",
        )
    return len(absent)


def deletion_context(resources: Resources, table: str, dropped: Absence | None = None) -> DeletionContext:
    """Return what protection needs for files of a table of any kind, or of a `dropped` one."""
    other = resources.other(table)
    if other is not None:
        context = other.context(table)
        beside = _nessie_locations(resources, context.catalog_name)
        return replace(context, dropped=dropped, reserved=(*context.reserved, *beside))
    config = resources.config
    live = config.catalogs.of(table)
    # No table of a live catalog owns the roots of the other tiers and formats, whatever its metadata says.
    others = (each.warehouse for each in config.catalogs.others.values())
    tiers = (config.catalogs.cold.root, config.quarantine.root, *others, *_nessie_locations(resources, live.name))
    context = context_of(resources, table)
    if dropped is not None:
        context = replace(context, catalog=resources.readers_of(table, strict=True))
    return replace(
        context,
        reserved=tuple(tier.rstrip("/") for tier in tiers if tier is not None),
        roots=live.places,
        archived=partial(_archived, resources),
        overtaken=lambda plan, metadata, kept_base: unarchived(
            resources.live_stores,
            load_plan(resources.start_spark, resources.live_stores, resources.operations, plan.plan_id),
            metadata,
            kept_base,
        ),
        dropped=dropped,
    )


def context_of(resources: Resources, table: str) -> DeletionContext:
    """Return what protection needs for files of a table of any kind, without what depends on its kind."""
    catalogs = resources.config.catalogs
    live, others = catalogs.of(table), catalogs.others
    marked = {name for name, other in others.items() if other.type == "nessie"}
    return DeletionContext(
        spark=resources.start_spark,
        stores=resources.live_stores,
        operations=resources.operations,
        # Tables of the live catalogs' databases may read files of any table, and some were dropped from them.
        catalog=resources.readers_of(table),
        catalog_name=live.name,
        other_catalogs=tuple(each.name for each in catalogs.iceberg if each is not live),
        configured=(*(each.name for each in catalogs.iceberg), catalogs.cold.name, *others.keys() - marked),
        marked=tuple(sorted(marked)),
        confirm=partial(resources.confirm, table),
        table=table,
        policy=resources.config.policy(table),
        root=resources.root,
        rules=resources.rules(table),
        rules_of=resources.rules,
        isolated=catalogs.is_isolated,
    )


def _nessie_locations(resources: Resources, catalog: str) -> list[str]:
    """Return every location that the live tables of Nessie catalogs ever had, except of `catalog` itself: a table may
    write outside its catalog's warehouse, into the place of another one's table. As of the newest marks."""
    sets = resources.operations.live_sets
    names = [name for name, each in resources.config.catalogs.others.items() if each.type == "nessie"]
    newest = [found for name in names if name != catalog and (found := sets.newest(name)) is not None]
    places: dict[str, None] = {}
    for each in newest:
        live = {content.table_uuid for content in sets.contents(each.live_set_id)}
        places |= dict.fromkeys(seen.location for seen in sets.locations(each.catalog) if seen.table_uuid in live)
    return list(places)


def cold_context(resources: Resources, table: str, table_uuid: str) -> tuple[ColdSide, DeletionContext]:
    """Return the cold tables of a live table, and what protection needs for their files. Raises NoSuchTable before the
    first handoff."""
    config = resources.config
    identity = read_identity(resources.live_stores, resources.root, table_uuid)
    if identity is None:
        raise no_cold_table(table)
    side = ColdSide(
        table,
        identity,
        resources.cold_catalog,
        lambda: cold_tables(resources, table_uuid),
        lambda metadata: cold_index(resources, table, metadata),
    )
    side.current()
    others = (*(each.root for each in config.catalogs.iceberg), config.quarantine.root)
    return side, DeletionContext(
        spark=resources.start_spark,
        stores=resources.cold_stores,
        root_stores=resources.live_stores,
        operations=resources.operations,
        catalog=side,
        confirm=resources.confirm,
        catalog_name=resources.cold_catalog.name,
        table=identity.cold_table,
        policy=config.policy(table),
        # Separate indexes for the other tables: combined with their closed tables, their content differs.
        root=f"{resources.root}/cold/others",
        rules=resources.rules(table),
        rules_of=resources.rules,
        reserved=tuple(tier.rstrip("/") for tier in others if tier is not None),
        own=(identity.cold_location,),
        cold=side,
    )


def _archived(resources: Resources, table_uuid: str) -> frozenset[int]:
    cold = cold_metadata(resources, table_uuid)
    return frozenset() if cold is None else frozenset(each.snapshot_id for each in cold.snapshots)


def handoff_context(resources: Resources, table_uuid: str, check: Callable[[], None] = lambda: None) -> HandoffContext:
    plans = resources.operations.plans.of_table(table_uuid)
    recorded = {each.handed_off_at: each.cold_metadata_location for each in plans if each.cold_metadata_location}
    return HandoffContext(
        spark=resources.start_spark,
        live_stores=resources.live_stores,
        cold_stores=resources.cold_stores,
        config=resources.config,
        batches=resources.operations.handoffs,
        check=check,
        handed_off=recorded[max(filter(None, recorded))] if any(recorded) else None,
        left_ms=resources.operations.table_locations.left_ms(table_uuid),
    )


def require_newest_archive(
    resources: Resources, table: str, table_uuid: str, check: Callable[[], None] = lambda: None
) -> None:
    """Raise HandoffFailed, with the way out, if the cold catalog was put back behind what a handoff has published."""
    identity = read_identity(resources.live_stores, resources.root, table_uuid)
    if identity is not None:
        with open_entries(handoff_context(resources, table_uuid, check), table, table_uuid, identity) as entries:
            entries.newest(identity)
