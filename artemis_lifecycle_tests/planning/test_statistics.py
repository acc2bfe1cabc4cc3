"""The columns that planning scans are the values that fastavro reads, entry by entry; what is cut stops the scan."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.data_files import read_manifest
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.statistics import Wanted, live_statistics
from artemis_lifecycle.metadata.summaries import summarized_manifests
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import EntryStatus
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.planning.iceberg_planner import IcebergPlanner
from artemis_lifecycle_tests.planning.random_tables import RandomTable


@pytest.mark.parametrize("seed", range(500, 504))
def test_columns_are_the_values_of_entries(spark: object, tmp_path: Path, seed: int) -> None:
    made = RandomTable(IcebergPlanner(spark), random.Random(seed), f"file://{tmp_path}/t").make()  # type: ignore[arg-type]
    stores = Stores()
    metadata = read_table_metadata(stores, made.table.operations().current().metadataFileLocation())
    snapshot = metadata.current_snapshot
    assert snapshot is not None
    listed = manifests_of(stores, snapshot).entries
    summarized = summarized_manifests(stores, snapshot, metadata)
    for row, entry in enumerate(listed):
        for position, summary in enumerate(entry.partitions):
            column = summarized.summaries[position]
            assert column.recorded[row] and bool(column.contains_null[row]) == summary.contains_null
            assert column.contains_nan[row] == (-1 if summary.contains_nan is None else int(summary.contains_nan))
            assert (column.lower[row].as_py(), column.upper[row].as_py()) == (summary.lower_bound, summary.upper_bound)
    ids = tuple(each.id for each in made.columns)
    found = 0
    for live in live_statistics(stores, listed, Wanted(ids)):
        for row in range(len(live)):
            entry = listed[int(live.manifests[row])]
            path = live.texts("file_path", np.array([row]))[0].as_py()
            (file,) = [each for each in read_manifest(stores, entry) if each.path == path]
            found += 1
            assert (live.sizes[row], live.record_counts[row]) == (file.size_in_bytes, file.record_count)
            assert live.sequence_numbers[row] == (
                entry.sequence_number if file.sequence_number is None else file.sequence_number
            )
            assert live.equality_ids(row) == file.equality_ids
            for field_id in ids:
                for kind in ("value_counts", "null_value_counts", "nan_value_counts"):
                    count = live.count(kind, field_id)
                    expected = getattr(file, kind).get(field_id)
                    assert (int(count.values[row]) if count.known[row] else None) == expected
                for kind in ("lower_bounds", "upper_bounds"):
                    assert live.bound(kind, field_id)[row].as_py() == getattr(file, kind).get(field_id)
    files = (each for entry in listed for each in read_manifest(stores, entry))
    assert found == sum(each.status != EntryStatus.DELETED for each in files) > 0


def test_a_manifest_that_differs_from_its_list_stops_the_scan(spark: object, tmp_path: Path) -> None:
    made = RandomTable(IcebergPlanner(spark), random.Random(7), f"file://{tmp_path}/t").make()  # type: ignore[arg-type]
    stores = Stores()
    metadata = read_table_metadata(stores, made.table.operations().current().metadataFileLocation())
    assert metadata.current_snapshot is not None
    listed = manifests_of(stores, metadata.current_snapshot).entries
    assert listed[0].added_files_count is not None
    wrong = (
        replace(listed[0], added_files_count=listed[0].added_files_count + 1),
        replace(listed[0], manifest_length=listed[0].manifest_length + 1),
        replace(listed[0], content=1 - listed[0].content),
    )
    for entry in wrong:
        with pytest.raises(UnreadableMetadata, match="manifest"):
            list(live_statistics(stores, [*listed[1:], entry], Wanted()))
