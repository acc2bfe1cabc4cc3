"""What snapshots reach: a query on the manifest index (`index/`) after bringing it up to date."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import DEFAULT_SETTINGS, IndexSettings, IndexView, ManifestIndex
from artemis_lifecycle.reachability.index.files import reachable
from artemis_lifecycle.reachability.index.lookups import entries_of
from artemis_lifecycle.reachability.index.on_spark import rows_of_shares, shares
from artemis_lifecycle.reachability.index.refresh import compact, refresh
from artemis_lifecycle.spark.runner import Cost, Rows, Runner, Spark
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores

FILES = "path string, kind string, size_in_bytes bigint, location string"


def indexed(
    spark: Spark | None,
    stores: Stores,
    metadata: TableMetadata,
    rules: LocationRules,
    root: str,
    settings: IndexSettings = DEFAULT_SETTINGS,
    files: Stores | None = None,
) -> IndexView:
    """Return the table's manifest index under `root`, as of `metadata`. Reads only what the index lacks.

    `files` can access `root` if `stores`, which access the metadata, cannot.

    Raises UnreadableMetadata or EncryptedTable if anything that it has to read is missing, damaged, or differs from the
    level above.
    """
    index = ManifestIndex.open(stores, f"{root}/index", metadata.table_uuid, rules, settings, files)
    return refresh(index, metadata, spark)


def tidy(stores: Stores, metadata: TableMetadata, rules: LocationRules, root: str) -> int:
    """Merge and rewrite segments of the table's index where it pays off. Return how many were replaced."""
    return compact(ManifestIndex.open(stores, f"{root}/index", metadata.table_uuid, rules), metadata)


def reachable_files(runner: Runner, view: IndexView, snapshot_ids: Collection[int]) -> Rows:
    """Return everything that the given snapshots reach: rows of `FILES`, one per location.

    These are manifest lists, manifests, live entries of every content, and statistics files, but not the table's
    metadata files. Reading the rows may raise UnreadableMetadata.
    """
    ids, schema = list(snapshot_ids), arrow_schema(FILES)
    if not ids:
        return runner.rows(schema.empty_table())
    above = reachable(view, ids, entries=False).select(schema.names).cast(schema)
    count = entries_of(view, ids)
    entries = runner.map(shares(view, ids), rows_of_shares, schema, Cost(rows=count))
    return runner.meet([runner.concat(entries, above)], "location", _once, schema, Cost(rows=count + above.num_rows))


def _once(files: pa.Table) -> pa.Table:
    """Return one row per location."""
    kept = files.group_by("location").aggregate([("path", "min"), ("kind", "min"), ("size_in_bytes", "max")])
    return kept.rename_columns({"path_min": "path", "kind_min": "kind", "size_in_bytes_max": "size_in_bytes"})
