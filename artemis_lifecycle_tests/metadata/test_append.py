"""`build_append_snapshot` writes what Iceberg's own append writes, and refuses what does not fit."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.metadata import (
    AppendSnapshot,
    DataFile,
    EntryStatus,
    ManifestListEntry,
    Snapshot,
    TableMetadata,
    build_append_snapshot,
    column_statistics,
    manifests_of,
    partition_ranges,
    read_manifest,
    read_table_metadata,
)
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.planning.iceberg_planner import IcebergPlanner, Long
from artemis_lifecycle_tests.planning.random_tables import RandomTable, predicate

STORES = Stores()


@pytest.fixture(scope="module")
def planner(spark: Any) -> IcebergPlanner:
    return IcebergPlanner(spark)


def _location(table: Any) -> str:
    return str(table.operations().current().metadataFileLocation())


def _java_append(made: RandomTable) -> None:
    """One fast append of one to five files."""
    append, spec = made.table.newFastAppend(), made.table.spec().specId()
    for number in range(made.dice.randint(1, 5)):
        words, stats = made._words(spec), made._stats(100, made.columns)
        path = f"{made.location}/data/appended-{number}.parquet"
        append.appendFile(made.planner.call("dataFile", made.table, spec, path, "parquet", Long(100), words, stats))
    append.commit()
    made.table.refresh()


def _comparable(entry: ManifestListEntry) -> ManifestListEntry:
    return replace(entry, manifest_path="", manifest_length=0)


def _counted(snapshot: Snapshot) -> dict[str, str]:
    engine = ("iceberg-version", "app-id", "app-name", "engine-name", "engine-version")
    return {key: value for key, value in snapshot.summary.whole().items() if key not in engine}


# Among them NaN, a null of a required column, a decimal of 30 digits, and format versions 1 to 3.
@pytest.mark.parametrize("seed", [700, 702, 704, 706, 717, 721])
def test_an_append_is_what_icebergs_own_append_makes(planner: IcebergPlanner, tmp_path: Path, seed: int) -> None:
    _compare(planner, tmp_path, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100))
def test_an_append_is_what_icebergs_own_append_makes_of_many(
    planner: IcebergPlanner, tmp_path: Path, seed: int
) -> None:
    _compare(planner, tmp_path, seed + 1000 * int(os.environ["ARTEMIS_SEED"]))


def _compare(planner: IcebergPlanner, tmp_path: Path, seed: int) -> None:
    made = RandomTable(planner, random.Random(seed), f"file://{tmp_path}/t").make()
    base_location = _location(made.table)
    base = read_table_metadata(STORES, base_location)
    _java_append(made)
    theirs = read_table_metadata(STORES, _location(made.table))
    snapshot = theirs.current_snapshot
    assert snapshot is not None and (base.current_snapshot is not None)
    listed = manifests_of(STORES, snapshot).entries
    (added,) = [each for each in listed if each.added_snapshot_id == snapshot.snapshot_id]
    files = read_manifest(STORES, added)

    def build() -> AppendSnapshot:
        assert base.current_snapshot is not None
        return build_append_snapshot(
            STORES.read(base_location),
            base_location,
            manifests_of(STORES, base.current_snapshot),
            files,
            snapshot_id=snapshot.snapshot_id,
            now_ms=snapshot.timestamp_ms,
        )

    if base.format_version == 1:
        with pytest.raises(BadInput, match="format version 1"):
            build()
        return
    built = build()
    assert build() == built
    for file in built.files:
        STORES.write(file.path, file.data)
    ours = read_table_metadata(STORES, built.metadata.path)

    # The same values as Iceberg wrote, level by level.
    assert ours.current_snapshot == built.snapshot
    assert replace(built.snapshot, manifest_list=None, summary=snapshot.summary) == replace(
        snapshot, manifest_list=None
    )
    assert _counted(built.snapshot) == _counted(snapshot)
    assert {_comparable(each) for each in manifests_of(STORES, built.snapshot).entries} == {
        _comparable(_without_uuid_bounds(theirs, each) if each is added else each) for each in listed
    }
    (new,) = set(manifests_of(STORES, built.snapshot).entries) - set(built.reused)
    assert (new.manifest_path, new.manifest_length) == (built.manifest.path, len(built.manifest.data))
    assert repr(read_manifest(STORES, new)) == repr(files)  # NaN is not equal to itself.
    names = ("last_sequence_number", "next_row_id", "refs", "snapshot_log", "metadata_log", "statistics", "properties")
    for name in (*names, "schemas", "partition_specs", "current_schema_id", "default_spec_id"):
        assert getattr(ours, name) == getattr(theirs, name), name
    _check_decoding(theirs, files, new)

    # Iceberg plans the same scans from them.
    jvm = planner.jvm
    operations = jvm.org.apache.iceberg.StaticTableOperations(built.metadata.path, made.table.io())
    table = jvm.org.apache.iceberg.BaseTable(operations, "ours")
    for _ in range(10):
        case = predicate(made.dice, made.columns)
        assert planner.plan(table, case.java) == planner.plan(made.table, case.java), case.python


def _without_uuid_bounds(metadata: TableMetadata, entry: ManifestListEntry) -> ManifestListEntry:
    kinds = [each.lower for each in partition_ranges(metadata, entry)]
    return replace(
        entry,
        partitions=tuple(
            replace(summary, lower_bound=None, upper_bound=None) if type(kind).__name__ == "UUID" else summary
            for summary, kind in zip(entry.partitions, kinds, strict=True)
        ),
    )


def _check_decoding(metadata: TableMetadata, files: tuple[DataFile, ...], entry: ManifestListEntry) -> None:
    for file in files:
        for column in column_statistics(metadata, file):
            assert (column.lower is None) == (column.field_id not in file.lower_bounds)
            assert column.value_count == file.value_counts.get(column.field_id)
    assert len(partition_ranges(metadata, entry)) == len(entry.partitions)


def test_the_first_append_of_an_empty_table(planner: IcebergPlanner, tmp_path: Path) -> None:
    schema = '{"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "type": "int", "required": false}]}'
    table = planner.create(schema, '{"spec-id": 0, "fields": []}', f"file://{tmp_path}/t", {"format-version": "3"})
    location = _location(table)
    path = f"file://{tmp_path}/1.parquet"
    file = DataFile(EntryStatus.ADDED, "data", path, "parquet", 7, 100, {}, None, None)
    built = build_append_snapshot(STORES.read(location), location, None, [file], snapshot_id=5, now_ms=1)
    for each in built.files:
        STORES.write(each.path, each.data)
    operations = planner.jvm.org.apache.iceberg.StaticTableOperations(built.metadata.path, table.io())
    java = planner.jvm.org.apache.iceberg.BaseTable(operations, "ours")
    assert planner.plan(java, "TRUE").files == {file.path: ()}
    assert (built.snapshot.parent_snapshot_id, built.snapshot.first_row_id, built.snapshot.added_rows) == (None, 0, 7)
    # The base is never before its own last update.
    assert built.snapshot.timestamp_ms == read_table_metadata(STORES, location).last_updated_ms


def test_what_does_not_fit_is_refused(planner: IcebergPlanner, tmp_path: Path) -> None:
    schema = '{"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "type": "int", "required": false}]}'
    spec = '{"spec-id": 0, "fields": [{"name": "a", "transform": "identity", "source-id": 1, "field-id": 1000}]}'
    table = planner.create(schema, spec, f"file://{tmp_path}/t", {"format-version": "2"})
    location = _location(table)
    base = STORES.read(location)
    file = DataFile(EntryStatus.ADDED, "data", "file:/1.parquet", "parquet", 7, 100, {"a": 1}, None, None)
    first = build_append_snapshot(base, location, None, [file], snapshot_id=5, now_ms=1)
    for each in first.files:
        STORES.write(each.path, each.data)
    listed = manifests_of(STORES, first.snapshot)
    after = first.metadata.data, first.metadata.path

    def refused(match: str, base: tuple[bytes, str] = (base, location), manifests: Any = None, **other: Any) -> None:
        arguments = {"files": [file], "snapshot_id": 6, "now_ms": 1} | other
        with pytest.raises(BadInput, match=match):
            build_append_snapshot(*base, manifests, **arguments)

    refused("no file to append", files=[])
    refused("passed twice", files=[file, file])
    refused("position_deletes", files=[replace(file, kind="position_deletes")])
    refused("partition fields", files=[replace(file, partition={})])
    refused("does not fit", files=[replace(file, partition={"a": "x"})])
    refused("does not fit", files=[replace(file, record_count=None)])
    refused("cannot be the id", snapshot_id=0)
    refused("cannot be the id", after, listed, snapshot_id=5)
    refused("counts total-records itself", summary={"total-records": "1"})
    # A list of another snapshot would drop files, or bring some back.
    refused("not the one of the table's current", after)
    refused("not the one of the table's current", (base, location), listed)
    refused("not the one of the table's current", after, replace(listed, path="file:/other.avro"))
    refused(
        "without their counts", after, replace(listed, entries=(replace(listed.entries[0], added_rows_count=None),))
    )
