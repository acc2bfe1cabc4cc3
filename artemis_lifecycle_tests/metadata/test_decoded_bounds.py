"""What Iceberg writes of any partition and column type is decoded as it was stored."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle.metadata import (
    column_statistics,
    manifests_of,
    partition_ranges,
    read_manifest,
    read_table_metadata,
)
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.planning.iceberg_planner import IcebergPlanner
from artemis_lifecycle_tests.planning.random_tables import RandomTable


# Among them NaN, a null of a required column, a decimal of 30 digits, and format versions 1 to 3.
@pytest.mark.parametrize("seed", [700, 702, 704, 706, 717, 721])
def test_ranges_and_statistics_of_every_type_are_decoded(spark: Any, tmp_path: Path, seed: int) -> None:
    stores = Stores()
    made = RandomTable(IcebergPlanner(spark), random.Random(seed), f"file://{tmp_path}/t").make()
    metadata = read_table_metadata(stores, str(made.table.operations().current().metadataFileLocation()))
    assert metadata.current_snapshot is not None
    for entry in manifests_of(stores, metadata.current_snapshot).entries:
        ranges = partition_ranges(metadata, entry)
        assert len(ranges) == len(entry.partitions)
        for found, stored in zip(ranges, entry.partitions, strict=True):
            assert (found.lower is None) == (stored.lower_bound is None)
        for file in read_manifest(stores, entry):
            for column in column_statistics(metadata, file):
                assert (column.lower is None) == (column.field_id not in file.lower_bounds)
                assert column.value_count == file.value_counts.get(column.field_id)
