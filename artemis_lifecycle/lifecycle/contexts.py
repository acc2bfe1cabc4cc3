"""What protection needs to decide about files of a live table, a dropped table, or the cold tables."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from artemis_lifecycle.cold_tier.cold_side import ColdSide
from artemis_lifecycle.cold_tier.paths import no_cold_table, read_identity
from artemis_lifecycle.expiration.plan import load_plan, unarchived
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.tiers import cold_index, cold_metadata, cold_tables
from artemis_lifecycle.protection.absence import Absence
from artemis_lifecycle.protection.context import DeletionContext


def deletion_context(resources: Resources, table: str, dropped: Absence | None = None) -> DeletionContext:
    """Return what protection needs for files of a table of any kind, or of a `dropped` one."""
    other = resources.other(table)
    if other is not None:
        context = other.context(table)
        beside = _nessie_locations(resources, context.catalog_name)
        return replace(context, dropped=dropped, reserved=(*context.reserved, *beside))
    config = resources.config
    live = config.catalogs.live
    # No table of the live catalog owns the roots of the other tiers and catalogs, whatever its metadata says.
    others = (each.warehouse for each in config.catalogs.others.values())
    tiers = (config.catalogs.cold.warehouse, config.quarantine.root, *others, *_nessie_locations(resources, live.name))
    return replace(
        context_of(resources, table),
        reserved=tuple(tier.rstrip("/") for tier in tiers if tier is not None),
        roots=tuple(root for root in (live.warehouse, *live.roots) if root is not None),
        archived=partial(_archived, resources),
        overtaken=lambda plan, metadata: unarchived(
            resources.live_stores,
            load_plan(resources.start_spark, resources.live_stores, resources.operations, plan.plan_id),
            metadata,
        ),
        dropped=dropped,
    )


def context_of(resources: Resources, table: str) -> DeletionContext:
    """Return what protection needs for files of a table of any kind, without what depends on its kind."""
    live = resources.config.catalogs.live
    return DeletionContext(
        spark=resources.start_spark,
        stores=resources.live_stores,
        operations=resources.operations,
        # Tables of the live catalog's database may read files of any table, and some were dropped from it.
        catalog=resources.database_catalogs,
        catalog_name=live.name,
        confirm=resources.confirm,
        table=table,
        policy=resources.config.policy(table),
        root=resources.root,
        rules=resources.rules(table),
        rules_of=resources.rules,
        isolated=live.is_isolated,
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
    others = (config.catalogs.live.warehouse, config.quarantine.root)
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
