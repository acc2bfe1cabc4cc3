"""What the bench measures on is what Iceberg would have written: every count, length and total of it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from artemis_lifecycle.metadata import manifest_lists
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import EntryStatus, ManifestListEntry, Snapshot, TableMetadata
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.metadata.whole_manifests import whole_entries
from bench import metadata
from bench.metadata import Shape, Table

STORES = Stores()
SHAPES = {
    "daily": metadata.daily(0.002, further_days=2),
    "merged-manifests": metadata.daily(0.01, further_days=2, merge=True),
    "many-small-commits": replace(metadata.many_small_commits(), days=4, expire=1, further_days=2, appends=140),
    "fleet": metadata.fleet(1, snapshots=200)[0],
    "tags": metadata.daily(0.002, further_days=2, tags=9),
}


@pytest.fixture(scope="module", params=SHAPES)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    shape: Shape = SHAPES[request.param]
    return metadata.generate(shape, tmp_path_factory.mktemp("bench"), processes=1)


def _base(table: Table, stage: int) -> TableMetadata:
    return read_table_metadata(STORES, table.stages[stage].metadata_location)


def _live(snapshot: Snapshot) -> tuple[set[str], int, int]:
    """Paths, records and bytes of the snapshot's live files, entry by entry."""
    paths: list[str] = []
    records = size = 0
    for entry in manifest_lists.manifests_of(STORES, snapshot).entries:
        for item in whole_entries(STORES, entry):
            if item.status != EntryStatus.DELETED:
                paths.append(item.data_file.file_path)
                records += item.data_file.record_count
                size += item.data_file.file_size_in_bytes
    assert len(paths) == len(set(paths))
    return set(paths), records, size


@pytest.mark.slow
def test_each_snapshots_summary_is_what_its_manifests_hold(table: Table) -> None:
    for stage in (0, 2 if len(table.stages) > 2 else 1):
        snapshots = _base(table, stage).snapshots
        for snapshot in snapshots[:: max(1, len(snapshots) // 7)]:
            paths, records, size = _live(snapshot)
            summary = snapshot.summary
            assert (len(paths), records, size) == (
                summary.total_data_files,
                summary.total_records,
                summary.total_files_size,
            )


@pytest.mark.slow
def test_each_manifest_is_as_its_list_records_it(table: Table) -> None:
    seen: dict[str, ManifestListEntry] = {}
    for snapshot in _base(table, 0).snapshots:
        for entry in manifest_lists.manifests_of(STORES, snapshot).entries:
            # A manifest is listed in the same words by every snapshot that has it.
            assert seen.setdefault(entry.manifest_path, entry) == entry
    sequence = {s.snapshot_id: s.sequence_number for s in _base(table, 0).snapshots}
    for entry in list(seen.values())[:: max(1, len(seen) // 50)]:
        entries = whole_entries(STORES, entry)
        rows = dict.fromkeys(EntryStatus, 0)
        for item in entries:
            rows[item.status] += item.data_file.record_count
            if item.status == EntryStatus.ADDED:
                assert item.snapshot_id == entry.added_snapshot_id and item.sequence_number is None
            elif item.status == EntryStatus.EXISTING:
                assert item.snapshot_id in sequence and item.sequence_number == sequence[item.snapshot_id]
            else:
                assert item.snapshot_id == entry.added_snapshot_id and item.sequence_number < entry.sequence_number
        assert rows == {
            EntryStatus.ADDED: entry.added_rows_count,
            EntryStatus.EXISTING: entry.existing_rows_count,
            EntryStatus.DELETED: entry.deleted_rows_count,
        }
        live = [item.sequence_number for item in entries if item.status == EntryStatus.EXISTING]
        if rows[EntryStatus.ADDED] or live:
            assert entry.min_sequence_number == min([*live, entry.sequence_number])


@pytest.mark.seconds
def test_the_window_slides_by_a_day_and_tags_stay(table: Table) -> None:
    full, night = _base(table, 0), _base(table, 1)
    a_day = table.shape.appends + 1
    assert full.table_uuid == night.table_uuid
    tagged = {ref.snapshot_id for ref in full.refs.values() if not ref.is_branch}
    assert len(tagged) == table.shape.tags
    expired = [s for s in full.snapshots if s.timestamp_ms < table.stages[0].cutoff_ms and s.snapshot_id not in tagged]
    assert len(expired) == table.stages[0].expired
    kept = [s for s in full.snapshots if s.snapshot_id not in {gone.snapshot_id for gone in expired}]
    assert list(night.snapshots[: len(kept)]) == kept and len(night.snapshots) == len(kept) + a_day
    assert table.stages[1].cutoff_ms - table.stages[0].cutoff_ms == metadata.DAY_MS
    parents = {s.snapshot_id: s.parent_snapshot_id for s in full.snapshots}
    for one, two in zip(full.snapshots, full.snapshots[1:], strict=False):
        assert parents[two.snapshot_id] == one.snapshot_id and one.timestamp_ms < two.timestamp_ms


@pytest.mark.seconds
def test_manifests_are_merged_as_iceberg_merges_them(table: Table) -> None:
    if not table.shape.merge:
        pytest.skip("this shape does not merge")
    lengths = [len(manifest_lists.manifests_of(STORES, snapshot).entries) for snapshot in _base(table, 0).snapshots]
    if table.shape.name == "many-small-commits":
        # All fit one bin of 8 MB: the hundredth manifest makes them one.
        assert max(lengths) == 99 and lengths[99] == 1
    carried = [
        entry.existing_files_count
        for entry in manifest_lists.manifests_of(STORES, _base(table, 0).snapshots[-1]).entries
    ]
    assert any(carried) == (table.shape.name != "fleet")


@pytest.mark.seconds
def test_another_reader_agrees(table: Table) -> None:
    from pyiceberg.table import StaticTable

    read = StaticTable.from_metadata(table.stages[0].metadata_location)
    current = _base(table, 0).current_snapshot
    assert current is not None
    planned = {task.file.file_path for task in read.scan().plan_files()}
    assert planned == _live(current)[0]


@pytest.mark.slow
def test_a_finished_table_is_not_made_again_and_a_moved_one_is(tmp_path: Path) -> None:
    shape = metadata.daily(0.002, further_days=1)
    one = metadata.generate(shape, tmp_path / "a", processes=1)
    assert metadata.generate(shape, tmp_path / "a", processes=1) == one
    (tmp_path / "a").rename(tmp_path / "b")
    moved = metadata.generate(shape, tmp_path / "b", processes=1)
    assert moved.location == f"file://{tmp_path}/b/{shape.key}" and _base(moved, 0).location == moved.location
