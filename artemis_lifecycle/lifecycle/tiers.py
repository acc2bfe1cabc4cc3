"""What a table has in each tier: the index of its manifests, and its cold tables."""

from __future__ import annotations

from collections.abc import Collection

from artemis_lifecycle.cold_tier.cold_tables import ColdTables
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import IndexSettings, IndexView
from artemis_lifecycle.reachability.index.presence import require_present
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.spark.java_errors import java_errors


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
