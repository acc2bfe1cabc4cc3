"""A manifest that differs from what its list records stops a plan."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.statistics import Wanted, live_statistics
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.planning.iceberg_planner import IcebergPlanner
from artemis_lifecycle_tests.planning.random_tables import RandomTable


def test_a_manifest_that_differs_from_its_list_stops_the_scan(spark: object, tmp_path: Path) -> None:
    made = RandomTable(IcebergPlanner(spark), random.Random(7), f"file://{tmp_path}/t").make()  # type: ignore[arg-type]
    stores = Stores()
    metadata = read_table_metadata(stores, made.table.operations().current().metadataFileLocation())
    assert metadata.current_snapshot is not None
    listed = manifests_of(stores, metadata.current_snapshot).entries
    assert listed[0].added_files_count is not None
    assert listed[0].added_snapshot_id is not None and len(live_statistics(stores, listed[0], Wanted()))
    wrong = (
        replace(listed[0], added_snapshot_id=listed[0].added_snapshot_id + 1),
        replace(listed[0], added_files_count=listed[0].added_files_count + 1),
        replace(listed[0], manifest_length=listed[0].manifest_length + 1),
        replace(listed[0], content=1 - listed[0].content),
    )
    for entry in wrong:
        with pytest.raises(UnreadableMetadata, match="manifest"):
            live_statistics(stores, entry, Wanted())
