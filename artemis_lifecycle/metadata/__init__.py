"""The four levels of an Iceberg table's metadata as typed values: the catalog's pointer, the snapshot (in a metadata
file), the manifest list, the manifests, and the data files that they list. docs/four-levels.md shows them.

Belongs here: reading them exactly; detecting a missing, truncated or shorter file by the level above; and the types of
what was read. Does not belong here: deciding what stays (`retention/`), sets over many manifests (`reachability/`), or
commits (`catalogs/`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from artemis_lifecycle.metadata.manifest_lists import manifests_of as manifests_of
    from artemis_lifecycle.metadata.manifests import DataFile as DataFile
    from artemis_lifecycle.metadata.manifests import read_manifest as read_manifest
    from artemis_lifecycle.metadata.table_metadata import read_table_metadata as read_table_metadata
    from artemis_lifecycle.metadata.types import CatalogEntry as CatalogEntry
    from artemis_lifecycle.metadata.types import EntryStatus as EntryStatus
    from artemis_lifecycle.metadata.types import ManifestList as ManifestList
    from artemis_lifecycle.metadata.types import ManifestListEntry as ManifestListEntry
    from artemis_lifecycle.metadata.types import PartitionSummary as PartitionSummary
    from artemis_lifecycle.metadata.types import Snapshot as Snapshot
    from artemis_lifecycle.metadata.types import SnapshotSummary as SnapshotSummary
    from artemis_lifecycle.metadata.types import TableMetadata as TableMetadata
    from artemis_lifecycle.metadata.values import ColumnStatistics as ColumnStatistics
    from artemis_lifecycle.metadata.values import PartitionRange as PartitionRange
    from artemis_lifecycle.metadata.values import column_statistics as column_statistics
    from artemis_lifecycle.metadata.values import partition_ranges as partition_ranges

_HOMES = {
    "manifests": ("DataFile", "read_manifest"),
    "manifest_lists": ("manifests_of",),
    "table_metadata": ("read_table_metadata",),
    "types": (
        "CatalogEntry",
        "EntryStatus",
        "ManifestList",
        "ManifestListEntry",
        "PartitionSummary",
        "Snapshot",
        "SnapshotSummary",
        "TableMetadata",
    ),
    "values": ("ColumnStatistics", "PartitionRange", "column_statistics", "partition_ranges"),
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: Spark's workers import modules of this room and need few of these.
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
