"""Metadata that Spark and pyiceberg really wrote, in every format version and codec, against Iceberg's own readers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata import manifest_lists, manifests
from artemis_lifecycle.metadata.avro.container import Container
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import EntryStatus, ManifestListEntry, Snapshot, SnapshotHistory, TableMetadata
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.upkeep import health
from artemis_lifecycle.upkeep.health import MIN_INPUT_FILES, TableHealth, table_health
from artemis_lifecycle_tests.conftest import on_executors
from artemis_lifecycle_tests.metadata.avro_files import Shelf
from artemis_lifecycle_tests.metadata.whole_manifests import whole_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODECS = {"gzip": "deflate", "snappy": "snappy", "zstd": "zstandard", "uncompressed": "null"}
WRITTEN = [(1, "snappy"), (2, "gzip"), (2, "uncompressed"), (3, "zstd"), (4, "gzip")]

COLUMNS = (
    "id bigint, price decimal(9,2), big decimal(30,5), day date, at timestamp, local timestamp_ntz, raw binary, "
    "flag boolean, small float, large double, name string"
)
ROWS = (
    "({0}, 1.25, 123456789012345678901234.56789, date'0001-01-03', timestamp'9999-12-31 23:00:00', "
    "timestamp_ntz'1969-01-01 00:00:00.123456', X'00ff', true, 1.5, double('NaN'), 'añb')",
    "({0} + 1, null, null, null, null, null, null, null, null, null, null)",
    "({0} + 2, -1.25, -0.00001, date'2001-01-03', timestamp'1960-12-31 23:00:00', "
    "timestamp_ntz'1969-01-01 00:00:00.123456', X'', false, float('-Infinity'), 1.5, '')",
)


@dataclass(frozen=True)
class Written:
    name: str
    version: int
    codec: str
    metadata: TableMetadata
    stores: Stores

    def manifests(self) -> Iterator[tuple[Snapshot, ManifestListEntry]]:
        for snapshot in self.metadata.snapshots:
            for entry in manifest_lists.manifests_of(self.stores, snapshot).entries:
                yield snapshot, entry


@pytest.fixture(scope="module")
def tables(spark: SparkSession, module_config: LifecycleConfig) -> list[Written]:
    live = module_config.catalogs.live
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live.name}.odd")
    reader, stores = CatalogReader(live), Stores()
    written = []
    for version, codec in WRITTEN:
        table = f"odd.t{version}_{codec}"
        _write(spark, f"{live.name}.{table}", version, codec)
        metadata = read_table_metadata(stores, reader.entry(table).metadata_location)
        written.append(Written(f"{live.name}.{table}", version, codec, metadata, stores))
    return written


def _write(spark: SparkSession, name: str, version: int, codec: str) -> None:
    compression = "gzip" if version == 3 else "none"
    mode = "copy-on-write" if version == 1 else "merge-on-read"
    spark.sql(
        f"CREATE TABLE {name} ({COLUMNS}) USING iceberg PARTITIONED BY (price, big, day, hours(at), local, raw, flag, "
        "small, large, truncate(3, name)) TBLPROPERTIES "
        f"('format-version'='{version}', 'write.manifest.compression-codec'='{codec}', "
        f"'write.metadata.compression-codec'='{compression}', 'write.distribution-mode'='none', "
        f"'write.delete.mode'='{mode}', 'commit.manifest-merge.enabled'='false')"
    )
    for start in (0, 100):
        spark.sql(f"ALTER TABLE {name} WRITE LOCALLY ORDERED BY {'id' if start else 'id DESC'}")
        values = ", ".join(row.format(start + more) for row in ROWS for more in (0, 10, 20))
        spark.sql(f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")
    spark.sql(f"ALTER TABLE {name} DROP PARTITION FIELD raw")
    # Two files lose a row each; then one file loses all that it has.
    spark.sql(f"DELETE FROM {name} WHERE id IN (0, 1)")
    spark.sql(f"DELETE FROM {name} WHERE id IN (101, 111, 121)")
    if version > 1:
        _add_equality_deletes(spark, name)


def _add_equality_deletes(spark: Any, name: str) -> None:
    core = spark._jvm.org.apache.iceberg
    table = core.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    ids = spark.sparkContext._gateway.new_array(spark._jvm.int, 1)
    ids[0] = 1
    first = table.snapshots().iterator().next().dataManifests(table.io()).get(0)
    beside = core.ManifestFiles.read(first, table.io(), table.specs()).iterator().next()
    # No query reads it from here on: its manifest entry matters, not its rows.
    deletes = (
        core.FileMetadata.deleteFileBuilder(table.specs().get(beside.specId()))
        .ofEqualityDeletes(ids)
        .withPath(f"{table.location()}/data/equality-{uuid.uuid4()}.parquet")
        .withPartition(beside.partition())
        .withFileSizeInBytes(11)
        .withRecordCount(1)
        .withFormat("parquet")
        .build()
    )
    table.newRowDelta().addDeletes(deletes).commit()


def test_the_corpus_has_every_codec_kind_and_status(tables: list[Written]) -> None:
    codecs, kinds, statuses = set(), set(), set()
    for written in tables:
        for _, entry in written.manifests():
            container = manifests.open_manifest(written.stores, entry)
            if isinstance(container, Container):
                codecs.add(container.codec)
            for item in whole_entries(written.stores, entry):
                kinds.add((written.version, item.data_file.kind))
                statuses.add(item.status)
    assert codecs == set(CODECS.values())
    assert kinds == {
        (1, "data"),
        (2, "data"),
        (2, "position_deletes"),
        (2, "equality_deletes"),
        (3, "data"),
        (3, "deletion_vectors"),
        (3, "equality_deletes"),
        (4, "data"),
        (4, "deletion_vectors"),
        (4, "equality_deletes"),
    }
    assert statuses == set(EntryStatus)


def test_the_fast_path_equals_the_whole_reading(tables: list[Written]) -> None:
    fast_ones = 0
    for written in tables:
        for _, entry in written.manifests():
            fast_ones += 1
            live = manifests.live_entries(written.stores, entry)
            whole = [e.data_file for e in whole_entries(written.stores, entry) if e.status != 2]
            assert live.column("file_path").to_pylist() == [file.file_path for file in whole]
            assert live.column("file_size_in_bytes").to_pylist() == [file.file_size_in_bytes for file in whole]
            assert live.column("record_count").to_pylist() == [file.record_count for file in whole]
            assert live.column("content").to_pylist() == [file.content for file in whole]
            assert live.column("file_format").to_pylist() == [file.file_format for file in whole]
            assert live.column("referenced_data_file").to_pylist() == [file.referenced_data_file for file in whole]
            assert manifests.live_sort_orders(written.stores, entry) == {file.sort_order_id or 0 for file in whole}
    assert fast_ones > 15


def test_entries_are_those_of_icebergs_metadata_tables(spark: SparkSession, tables: list[Written]) -> None:
    for written in tables:
        rows = spark.sql(
            "SELECT DISTINCT status, data_file.content, data_file.file_path, data_file.file_format, "
            "data_file.record_count, data_file.file_size_in_bytes, data_file.equality_ids, data_file.split_offsets "
            f"FROM {written.name}.all_entries"
        ).collect()
        theirs = {(*row[:6], *(None if cell is None else tuple(cell) for cell in row[6:])) for row in rows}
        ours = {
            (
                int(item.status),
                item.data_file.content,
                item.data_file.file_path,
                item.data_file.file_format.upper(),
                item.data_file.record_count,
                item.data_file.file_size_in_bytes,
                item.data_file.equality_ids,
                item.data_file.split_offsets,
            )
            for _, entry in written.manifests()
            for item in whole_entries(written.stores, entry)
        }
        assert ours == theirs


def test_health_is_what_icebergs_metadata_tables_say(
    spark: SparkSession, tables: list[Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    for written in tables:
        current = written.metadata.current_snapshot
        assert current is not None
        files = spark.table(f"{written.name}.files").toPandas()
        data, deletes = files[files["content"] == 0], files[files["content"] != 0]
        partitions = data.groupby([data["spec_id"], data["partition"].astype(str)]).size()
        manifests = spark.table(f"{written.name}.manifests").toPandas()
        expected = {
            "data_files": len(data),
            "data_bytes": data["file_size_in_bytes"].sum(),
            "records": data["record_count"].sum(),
            "small_files": len(data),
            "rewritable_files": partitions[partitions >= MIN_INPUT_FILES].sum(),
            "delete_files": len(deletes),
            "delete_bytes": deletes["file_size_in_bytes"].sum(),
            "deleted_records": deletes["record_count"].sum(),
            "manifests": len(manifests),
            "manifest_bytes": manifests["length"].sum(),
            "manifest_list_bytes": len(written.stores.read(str(current.manifest_list))),
        }

        def measured(written: Written = written) -> TableHealth:
            return table_health(spark, written.stores, written.name, written.metadata, datetime.now(UTC))

        here = measured()
        assert {name: getattr(here, name) for name in expected} == expected
        with monkeypatch.context() as patch:
            # Partitions of two files of which no fast reader takes the values.
            patch.setattr(health, "MIN_INPUT_FILES", 2)
            assert measured().rewritable_files == partitions[partitions >= 2].sum() > 0
        with monkeypatch.context() as patch:
            on_executors(patch)
            there = measured()
        assert {name: getattr(there, name) for name in expected} == expected


def test_lists_are_those_of_icebergs_metadata_tables(spark: SparkSession, tables: list[Written]) -> None:
    for written in tables:
        rows = spark.sql(
            "SELECT reference_snapshot_id, path, length, partition_spec_id, content, added_snapshot_id, "
            "added_data_files_count + added_delete_files_count, "
            "existing_data_files_count + existing_delete_files_count, "
            "deleted_data_files_count + deleted_delete_files_count, "
            "transform(partition_summaries, s -> struct(s.contains_null, s.contains_nan)) "
            f"FROM {written.name}.all_manifests"
        ).collect()
        theirs = {(*row[:9], tuple(map(tuple, row[9]))) for row in rows}
        ours = {
            (
                snapshot.snapshot_id,
                entry.manifest_path,
                entry.manifest_length,
                entry.partition_spec_id,
                entry.content,
                entry.added_snapshot_id,
                entry.added_files_count,
                entry.existing_files_count,
                entry.deleted_files_count,
                tuple((summary.contains_null, summary.contains_nan) for summary in entry.partitions),
            )
            for snapshot, entry in written.manifests()
        }
        assert ours == theirs


def test_metadata_is_what_icebergs_parser_reads(spark: Any, tables: list[Written]) -> None:
    core = spark._jvm.org.apache.iceberg
    for written in tables:
        loaded = core.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, written.name)
        theirs = loaded.operations().current()
        ours = written.metadata
        assert theirs.metadataFileLocation() == ours.metadata_location
        assert (theirs.uuid(), theirs.location(), theirs.formatVersion()) == (
            ours.table_uuid,
            ours.location,
            ours.format_version,
        )
        assert theirs.lastSequenceNumber() == ours.last_sequence_number
        assert theirs.currentSnapshot().snapshotId() == ours.current_snapshot_id
        assert dict(theirs.properties()) == ours.properties
        assert {spec.specId() for spec in theirs.specs()} == set(ours.partition_specs)
        assert (theirs.currentSchemaId(), theirs.defaultSpecId()) == (ours.current_schema_id, ours.default_spec_id)
        assert [(entry.timestampMillis(), entry.snapshotId()) for entry in theirs.snapshotLog()] == [
            (entry.timestamp_ms, entry.snapshot_id) for entry in ours.snapshot_log
        ]
        assert [(entry.timestampMillis(), entry.file()) for entry in theirs.previousFiles()] == [
            (entry.timestamp_ms, entry.metadata_file) for entry in ours.metadata_log
        ]
        for snapshot, other in zip(ours.snapshots, theirs.snapshots(), strict=True):
            assert (
                snapshot.snapshot_id,
                snapshot.parent_snapshot_id,
                snapshot.sequence_number,
                snapshot.timestamp_ms,
                snapshot.manifest_list,
                snapshot.schema_id,
                snapshot.summary.operation,
                snapshot.summary.properties,
                snapshot.first_row_id,
                snapshot.added_rows,
            ) == (
                other.snapshotId(),
                other.parentId(),
                other.sequenceNumber(),
                other.timestampMillis(),
                other.manifestListLocation(),
                other.schemaId(),
                other.operation(),
                dict(other.summary()),
                other.firstRowId(),
                other.addedRows(),
            )


def test_gzip_metadata_was_among_them(tables: list[Written]) -> None:
    assert any(written.metadata.metadata_location.endswith(".gz.metadata.json") for written in tables)


def test_deletion_vectors_of_one_commit_share_a_file(tables: list[Written]) -> None:
    for written in tables:
        if written.version != 3:
            continue
        vectors = [
            item.data_file
            for _, entry in written.manifests()
            for item in whole_entries(written.stores, entry)
            if item.data_file.kind == "deletion_vectors"
        ]
        assert len({vector.file_path for vector in vectors}) < len({v.referenced_data_file for v in vectors})
        for vector in vectors:
            assert vector.referenced_data_file is not None
            assert vector.content_offset is not None
            assert vector.content_size_in_bytes is not None


def test_each_byte_less_of_a_real_manifest_is_noticed(tables: list[Written]) -> None:
    for written in tables:
        _, entry = next(written.manifests())
        data = written.stores.read(entry.manifest_path)
        for length in range(0, len(data), 97):
            shelf: Any = Shelf({entry.manifest_path: data[:length]})
            for reader in (manifests.live_files, manifests.live_entries, manifests.live_sort_orders):
                with pytest.raises(UnreadableMetadata):
                    reader(shelf, entry)


def test_a_real_history_as_a_frame(tables: list[Written]) -> None:
    for written in tables:
        frame = SnapshotHistory.of(written.name, written.metadata, datetime.now(UTC)).to_pandas()
        assert frame["snapshot_id"].tolist() == [snapshot.snapshot_id for snapshot in written.metadata.snapshots]
        assert frame["committed_at"].is_monotonic_increasing
        assert frame["refs"].tolist()[-1] == "main"


class TestWhatPyicebergWrites:
    """Types that Spark has no column for: uuid, fixed, time."""

    VALUES: Mapping[str, Any] = {
        "key": uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"),
        "code": b"\x00\x01\xff",
        "time": 86_399_999_999,
        "price": Decimal("-12.34"),
    }

    @pytest.fixture
    def manifest(self, tmp_path: Path) -> tuple[Stores, ManifestListEntry]:
        from pyiceberg.io.pyarrow import PyArrowFileIO
        from pyiceberg.manifest import (
            DataFile,
            DataFileContent,
            FileFormat,
            ManifestEntry,
            ManifestEntryStatus,
            write_manifest,
        )
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.schema import Schema
        from pyiceberg.transforms import IdentityTransform
        from pyiceberg.typedef import Record
        from pyiceberg.types import DecimalType, FixedType, NestedField, TimeType, UUIDType

        types = {"key": UUIDType(), "code": FixedType(3), "time": TimeType(), "price": DecimalType(9, 2)}
        schema = Schema(*(NestedField(n, name, kind) for n, (name, kind) in enumerate(types.items(), start=1)))
        spec = PartitionSpec(
            *(PartitionField(n, 999 + n, IdentityTransform(), name) for n, name in enumerate(types, start=1))
        )
        path = f"file://{tmp_path}/m.avro"
        with write_manifest(2, spec, schema, PyArrowFileIO().new_output(path), 7, "deflate") as writer:
            for number, values in enumerate((tuple(self.VALUES.values()), (None, None, None, None))):
                file = DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=f"s3://b/{number}.parquet",
                    file_format=FileFormat.PARQUET,
                    partition=Record(*values),
                    record_count=1,
                    file_size_in_bytes=10,
                )
                file.spec_id = 0
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED, snapshot_id=7, sequence_number=1, data_file=file
                    )
                )
        listed = writer.to_manifest_file()
        entry = ManifestListEntry(path, listed.manifest_length, 0, 0, 1, 1, 7, 2, 0, 0)
        return Stores(), entry

    def test_partition_values_are_the_stored_ones(self, manifest: tuple[Stores, ManifestListEntry]) -> None:
        first, second = whole_entries(*manifest)
        assert first.data_file.partition == {
            "key": self.VALUES["key"].bytes,
            "code": self.VALUES["code"],
            "time": self.VALUES["time"],
            "price": (-1234).to_bytes(4, "big", signed=True),
        }
        assert set(second.data_file.partition.values()) == {None}

    def test_its_entries_are_read(self, manifest: tuple[Stores, ManifestListEntry]) -> None:
        stores, entry = manifest
        assert manifests.live_entries(stores, entry).column("file_path").to_pylist() == [
            "s3://b/0.parquet",
            "s3://b/1.parquet",
        ]
