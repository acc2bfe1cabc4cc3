"""The external asset for the tables themselves. Other assets that write to them are upstream of it."""

from dagster import AssetKey, AssetObservation, AssetSpec

from artemis_lifecycle.catalogs.identifier import CatalogEntry
from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.defs.common import OWNERS
from artemis_lifecycle.defs.partitions import partition_key, tables
from artemis_lifecycle.defs.tags import ASSET_TAG, DATA_VERSION_TAG
from artemis_lifecycle.escaping import terminal

NAME = "live_table"

live_table = AssetSpec(
    NAME,
    description="The table in the live catalog, whoever writes to it. The sensor `new_metadata` reports each new "
    "metadata file; its location is the data version.",
    group_name="live",
    kinds={"iceberg"},
    owners=OWNERS,
    tags={ASSET_TAG: NAME},
    partitions_def=tables,
)


def observed(key: AssetKey, table: str, entry: CatalogEntry) -> AssetObservation:
    """Return the report that `table` has this metadata file."""
    location = terminal(entry.metadata_location)
    return AssetObservation(
        key,
        partition=partition_key(table),
        metadata={
            "dagster/uri": ui_metadata.uri(entry.metadata_location),
            "metadata_location": ui_metadata.place(entry.metadata_location),
        },
        tags={DATA_VERSION_TAG: location},
    )
