"""The tables of Amazon S3 Metadata as a listing: a bucket's live inventory, without what its journal knows better.

Source: the S3 user guide, "S3 Metadata live inventory tables schema" and "S3 Metadata journal tables schema". The
inventory has a row for each version of each object and lags behind the bucket, typically by less than an hour. The
journal, beside it in the namespace `b_<bucket>`, has a record for each change, in near real time. For one key, a larger
`sequence_number` is newer, across both tables. Keys are as stored, and times have no zone: they are in UTC.

Such a listing may be incomplete (S3 says "backfilling" only to who asks for the bucket's configuration): what it lacks
is not a candidate. Spark reads the tables, each at one snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from artemis_lifecycle.catalogs.identifier import Identifier, parse
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.orphans.external_listing import Below, once
from artemis_lifecycle.orphans.listing import LISTED, listing_folders
from artemis_lifecycle.spark.java_errors import java_errors, statement_errors, worker_errors
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.location import LocationRules, split

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

INVENTORY, JOURNAL = "inventory", "journal"
"""The names that S3 gives the tables of every bucket."""

_OBJECT, _TIME = dict.fromkeys(("bucket", "key", "sequence_number"), ("string",)), ("timestamp_ntz", "timestamp")
_NEEDED: Mapping[str, Mapping[str, Sequence[str]]] = {
    INVENTORY: {**_OBJECT, "is_delete_marker": ("boolean",), "size": ("bigint", "int"), "last_modified_date": _TIME},
    JOURNAL: {**_OBJECT, "record_type": ("string",), "record_timestamp": _TIME},
}

_SAME_FILE = "UPDATE_METADATA"
"""A record of tags or of a storage class: the object, its time and its size stay. Any other record ends the object that
the inventory has."""

_LAG = timedelta(days=1)
"""The inventory has every change that is this much older than its own last one. S3 says: typically one hour."""

_LAST = "\uffff"
"""Sorts after each sequence number: what has none counts as newer than everything."""


@dataclass(frozen=True)
class LiveInventory:
    """A bucket's inventory and journal, each at one snapshot. `begun_at` is when the inventory's last change was
    committed: it cannot have later objects. Compactions by S3 are no changes."""

    name: str
    begun_at: datetime
    inventory: str
    journal: str

    def files(self, spark: SparkSession, locations: Sequence[str], rules: LocationRules) -> DataFrame:
        """Return DataFrame[path, last_modified, size_in_bytes] of the objects below `locations`, spelled as these: the
        newest version of each key, unless that is a delete marker, or the journal has a newer record of the key.

        Raises BadInput if the inventory has no object of the locations' buckets: it is another bucket's, or S3 has not
        begun to fill it.
        """
        from pyspark.sql import functions as F

        with worker_errors():
            inventory, journal = spark.sql(self.inventory), spark.sql(self.journal)
            folders = listing_folders(locations, rules)
            buckets = sorted({split(folder).authority for folder in folders})
            if inventory.where(F.col("bucket").isin(buckets)).isEmpty():
                raise _unusable(
                    self.name,
                    f"it has no object of bucket {', '.join(buckets)}",
                    "name the inventory of the table's bucket, and wait until its status is ACTIVE",
                )
        key, size, at, kind = map(F.col, ("key", "size", "record_timestamp", "record_type"))
        number, none = F.coalesce("sequence_number", F.lit(_LAST)), F.lit(None)
        marked = F.coalesce("is_delete_marker", F.lit(False)) | F.col("sequence_number").isNull()
        modified = F.col("last_modified_date")
        if dict(inventory.dtypes)["last_modified_date"] != "timestamp":
            # Whatever the session's time zone is.
            modified = F.concat(modified.cast("string"), F.lit("Z")).cast("timestamp")

        def row(of_inventory: bool, gone: Column, modified: Column, size: Column) -> Column:
            # In this order: of one event in both tables, the inventory's row counts.
            values = (number, F.lit(of_inventory), gone, modified.cast("timestamp"), size.cast("bigint"))
            names = ("number", "of_inventory", "gone", "last_modified", "size_in_bytes")
            return F.struct(*(value.alias(name) for value, name in zip(values, names, strict=True))).alias("row")

        since = F.lit(f"{self.begun_at - _LAG:%Y-%m-%d %H:%M:%S.%f}Z").cast(dict(journal.dtypes)["record_timestamp"])
        changes = journal.where((at.isNull() | (at > since)) & (kind.isNull() | (kind != _SAME_FILE)))
        rows = inventory.select("bucket", "key", row(True, marked, modified, size)).union(
            changes.select("bucket", "key", row(False, F.lit(True), none, none))
        )
        below, path = F.lit(False), F.lit(None).cast("string")
        for folder in folders:
            parts = split(folder)
            here = (F.col("bucket") == parts.authority) & key.startswith(f"{parts.path[1:]}/")
            path = F.when(here, F.concat(F.lit(f"{folder.removesuffix(parts.path)}/"), key)).otherwise(path)
            below = below | here
        newest = rows.where(below).groupBy("bucket", "key").agg(F.max("row").alias("row"))
        return newest.where("NOT row.gone").select(path.alias("path"), "row.last_modified", "row.size_in_bytes")

    def rows(self, spark: SparkSession, locations: Sequence[str], rules: LocationRules) -> pa.Table:
        """Return `files` in memory, as `external_listing.rows_below`."""
        with worker_errors():
            found = self.files(spark, locations, rules).toArrow().cast(arrow_schema(LISTED))
        return once(pa.Table.from_batches(Below(locations, rules)(found.to_batches()), found.schema))


def is_live_inventory(name: str) -> bool:
    """Return True for the name of such a table, False for a path."""
    return "/" not in name and name.endswith(f".{INVENTORY}")


def read_live_inventory(spark: SparkSession, name: str, live: str) -> LiveInventory:
    """Return the live inventory with that `name`, `CATALOG:b_BUCKET.inventory`. CATALOG is any Iceberg catalog of the
    session; without it, `live`.

    Raises BadInput for no such table, without a snapshot, or if it or its journal lacks a column; OperationsUnavailable
    or StorageError if they cannot be read.
    """
    catalog, colon, table = name.partition(":")
    identifier = parse(table if colon else name)
    # In this order: the journal then has what the inventory has, and what came later.
    (inventory, begun_at), (journal, _) = (
        _pinned(spark, Identifier(identifier.namespace, each).sql(catalog if colon else live), name, each)
        for each in (INVENTORY, JOURNAL)
    )
    if begun_at is None:
        raise _unusable(name, "it has no snapshot", "wait until S3 has created and filled it: its status is ACTIVE")
    return LiveInventory(name, begun_at, inventory, journal)


def _pinned(spark: SparkSession, table: str, name: str, kind: str) -> tuple[str, datetime | None]:
    """Return the statement that reads a table at its current snapshot, and when its last change was committed."""
    jvm: Any = spark._jvm
    try:
        with java_errors(name), statement_errors():
            found = spark.table(table).schema
            loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)
            # A catalog may keep tables for a while.
            loaded.refresh()
            snapshot = loaded.currentSnapshot()
    except BadInput as error:
        hint = "name a catalog of spark.conf (docs/operators.md), and see that it has the inventory and the journal"
        raise _unusable(name, f"its {kind} cannot be found: {error.what}", hint) from error
    types = {column.name: column.dataType.simpleString() for column in found.fields}
    for column, accepted in _NEEDED[kind].items():
        if types.get(column) not in accepted:
            why = f"column {column} of its {kind} is {types.get(column, 'missing')}, not {accepted[0]}"
            raise _unusable(name, why, "name a table that S3 Metadata writes, or use an S3 Inventory")
    if snapshot is None:
        return f"SELECT * FROM {table}", None
    statement = f"SELECT * FROM {table} VERSION AS OF {snapshot.snapshotId()}"
    while snapshot.operation() == "replace" and (before := loaded.snapshot(snapshot.parentId() or -1)) is not None:
        snapshot = before
    return statement, datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC)


def _unusable(name: str, why: str, hint: str) -> BadInput:
    return BadInput(f"{name} cannot be a listing: {why}", untouched="all files", hint=hint)
