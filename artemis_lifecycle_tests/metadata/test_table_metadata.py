"""The metadata file: read to the letter of the spec in each format version, and refused when it is not whole."""

from __future__ import annotations

import gzip
import json
import pickle
import time
from datetime import UTC, datetime
from typing import Any, cast

import pandas as pd
import pytest

from artemis_lifecycle.errors import EncryptedTable, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import (
    parse_table_metadata,
    read_table_metadata,
    refuse_encrypted,
)
from artemis_lifecycle.metadata.types import (
    LogEntry,
    MetadataLogEntry,
    Ref,
    SnapshotHistory,
    StatisticsFile,
    TableMetadata,
)
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.metadata.avro_files import Shelf
from artemis_lifecycle_tests.metadata.metadata_json import TABLE_UUID, metadata_bytes, metadata_node, snapshot_node

WHERE = "file:///tables/t/metadata/00007-x.metadata.json"


def two_snapshots(**fields: Any) -> dict[str, Any]:
    fields.setdefault("current", 2)
    fields.setdefault("log", [(1000, 1), (2000, 2)])
    return metadata_node([snapshot_node(1, None, 1000, 1), snapshot_node(2, 1, 2000, 2)], **fields)


def parsed(node: dict[str, Any], where: str = WHERE) -> TableMetadata:
    return parse_table_metadata(json.dumps(node).encode(), where)


def test_everything_that_is_named_is_read() -> None:
    node = two_snapshots(
        format_version=3,
        properties={"gc.enabled": "FALSE"},
        refs={
            "main": {"snapshot-id": 2, "type": "branch", "min-snapshots-to-keep": 3, "max-snapshot-age-ms": 4},
            "audit": {"snapshot-id": 1, "type": "TAG", "max-ref-age-ms": 2**63 - 1},
        },
        statistics=[
            {
                "snapshot-id": 2,
                "statistics-path": "s3://b/s.puffin",
                "file-size-in-bytes": 9,
                "file-footer-size-in-bytes": 3,
                "blob-metadata": [],
            }
        ],
        partition_statistics=[{"snapshot-id": 1, "statistics-path": "s3://b/p.parquet", "file-size-in-bytes": 8}],
        metadata_log=[{"timestamp-ms": 5, "metadata-file": "s3://b/00006.metadata.json"}],
        next_row_id=77,
    )
    node["snapshots"][1] |= {
        "first-row-id": 7,
        "added-rows": 70,
        "summary": {"operation": "delete", "total-records": "5"},
    }
    metadata = parsed(node)
    assert (metadata.table_uuid, metadata.format_version, metadata.next_row_id) == (TABLE_UUID, 3, 77)
    assert metadata.refs == {
        "main": Ref("main", 2, "branch", 3, 4, None),
        "audit": Ref("audit", 1, "tag", None, None, 2**63 - 1),
    }
    assert metadata.snapshot_log == (LogEntry(1000, 1), LogEntry(2000, 2))
    assert metadata.metadata_log == (MetadataLogEntry(5, "s3://b/00006.metadata.json"),)
    assert metadata.statistics == (
        StatisticsFile(2, "s3://b/s.puffin", 9, "statistics"),
        StatisticsFile(1, "s3://b/p.parquet", 8, "partition_statistics"),
    )
    current = metadata.current_snapshot
    assert current is not None
    assert (current.parent_snapshot_id, current.sequence_number, current.first_row_id, current.added_rows) == (
        1,
        2,
        7,
        70,
    )
    assert (current.summary.operation, current.summary.total_records, current.summary.get("operation")) == (
        "delete",
        5,
        "delete",
    )
    assert metadata.gc_enabled is False
    assert metadata.invalid_refs == ()
    assert metadata.snapshot(99) is None
    assert pickle.loads(pickle.dumps(metadata)) == metadata


def test_unknown_fields_are_ignored() -> None:
    node = two_snapshots(invented={"deep": [1, {"x": None}]})
    node["snapshots"][0]["invented"] = 1
    node["refs"]["main"]["invented"] = "x"
    assert len(parsed(node).snapshots) == 2


class TestFormatVersion1:
    def test_an_old_writers_file_without_snapshots_refs_or_lists(self) -> None:
        node = two_snapshots(format_version=1)
        for key in ("snapshots", "refs", "snapshot-log", "metadata-log", "schemas", "current-schema-id", "properties"):
            del node[key]
        for key in ("partition-specs", "default-spec-id", "statistics", "sort-orders", "default-sort-order-id"):
            node.pop(key, None)
        node["current-snapshot-id"] = -1
        metadata = parsed(node)
        assert (metadata.snapshots, metadata.refs, metadata.current_snapshot_id) == ((), {}, None)
        assert metadata.current_snapshot is None
        assert (metadata.last_sequence_number, metadata.next_row_id) == (0, None)
        assert list(metadata.schemas) == [0]
        assert list(metadata.partition_specs) == [0]
        assert (metadata.default_sort_order_id, metadata.sort_orders) == (0, {})

    def test_inline_manifests_and_a_synthesised_main(self) -> None:
        node = two_snapshots(format_version=1)
        del node["refs"]
        for snapshot in node["snapshots"]:
            for key in ("manifest-list", "sequence-number", "schema-id", "summary"):
                del snapshot[key]
            snapshot["manifests"] = ["s3://b/m1.avro", "s3://b/m2.avro"]
        metadata = parsed(node)
        snapshot = metadata.snapshots[1]
        assert (snapshot.manifest_list, snapshot.manifests) == (None, ("s3://b/m1.avro", "s3://b/m2.avro"))
        assert (snapshot.sequence_number, snapshot.schema_id, snapshot.summary.operation) == (0, None, None)
        assert metadata.refs == {"main": Ref("main", 2, "branch")}

    def test_a_snapshot_with_neither_list_nor_manifests_is_refused(self) -> None:
        node = two_snapshots(format_version=1)
        del node["snapshots"][1]["manifest-list"]
        with pytest.raises(UnreadableMetadata, match="Snapshot 2: there is neither a manifest-list nor"):
            parsed(node)


class TestGzip:
    data = metadata_bytes([snapshot_node(1, None, 1000)], current=1)

    @pytest.mark.parametrize("name", ["00001-x.gz.metadata.json", "v1.metadata.json.gz", "v1.metadata.json"])
    def test_it_is_recognised_by_its_bytes_under_every_name(self, name: str) -> None:
        assert parse_table_metadata(gzip.compress(self.data), f"file:///t/{name}").current_snapshot_id == 1

    @pytest.mark.parametrize("name", ["00001-x.gz.metadata.json", "v1.metadata.json.gz"])
    def test_a_name_that_promises_it_must_keep_it(self, name: str) -> None:
        with pytest.raises(UnreadableMetadata, match="named as gzip and is not"):
            parse_table_metadata(self.data, f"file:///t/{name}")

    def test_a_cut_stream_is_refused_at_every_length(self) -> None:
        packed = gzip.compress(self.data)
        for length in range(len(packed)):
            with pytest.raises(UnreadableMetadata):
                parse_table_metadata(packed[:length], "file:///t/v1.metadata.json.gz")

    def test_a_flipped_bit_is_refused(self) -> None:
        packed = bytearray(gzip.compress(self.data))
        packed[len(packed) // 2] ^= 0x10
        with pytest.raises(UnreadableMetadata):
            parse_table_metadata(bytes(packed), "file:///t/v1.metadata.json.gz")


class TestRefusals:
    def test_a_file_cut_anywhere(self) -> None:
        data = json.dumps(two_snapshots()).encode()
        for length in range(len(data)):
            with pytest.raises(UnreadableMetadata):
                parse_table_metadata(data[:length], WHERE)

    @pytest.mark.parametrize(
        "key",
        [
            "format-version",
            "table-uuid",
            "location",
            "last-sequence-number",
            "last-updated-ms",
            "last-column-id",
            "schemas",
            "current-schema-id",
            "partition-specs",
            "default-spec-id",
            "next-row-id",
        ],
    )
    def test_a_missing_required_field_is_named(self, key: str) -> None:
        node = two_snapshots(format_version=3)
        del node[key]
        with pytest.raises(UnreadableMetadata, match=key):
            parsed(node)

    @pytest.mark.parametrize("key", ["snapshot-id", "timestamp-ms", "manifest-list"])
    def test_a_snapshot_without_a_required_field_is_named(self, key: str) -> None:
        node = two_snapshots()
        del node["snapshots"][1][key]
        with pytest.raises(UnreadableMetadata, match=key):
            parsed(node)

    @pytest.mark.parametrize(
        ("path", "wrong"),
        [
            (("format-version",), "2"),
            (("format-version",), True),
            (("table-uuid",), 5),
            (("snapshots",), {}),
            (("snapshots",), None),
            (("snapshots", 0), "x"),
            (("snapshots", 0, "snapshot-id"), 1.0),
            (("snapshots", 0, "timestamp-ms"), "1000"),
            (("snapshots", 0, "timestamp-ms"), 2**63),
            (("snapshots", 1, "parent-snapshot-id"), "1"),
            (("snapshots", 0, "manifest-list"), None),
            (("snapshots", 0, "manifest-list"), ""),
            (("snapshots", 0, "summary"), None),
            (("snapshots", 0, "summary"), {"operation": "append", "total-data-files": 3}),
            (("refs",), []),
            (("refs", "main"), 2),
            (("refs", "main", "type"), "bookmark"),
            (("refs", "main", "type"), "tag"),
            (("refs", "main", "snapshot-id"), 1),
            (("refs", "main", "max-ref-age-ms"), "never"),
            (("snapshot-log", 0, "snapshot-id"), None),
            (("properties", "x"), 1),
            (("statistics",), [{"snapshot-id": 1}]),
            (("metadata-log",), [{"timestamp-ms": 1}]),
            (("current-schema-id",), 9),
            (("default-spec-id",), 9),
            (("last-sequence-number",), 1),
        ],
    )
    def test_a_wrong_value(self, path: tuple[Any, ...], wrong: Any) -> None:
        node = two_snapshots()
        inner: Any = node
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = wrong
        with pytest.raises(UnreadableMetadata) as caught:
            parsed(node)
        assert caught.value.path == WHERE

    @pytest.mark.parametrize("data", [b"", b"null", b"[]", b'"x"', b"\xff\xfe", b"{}", b"[" * 100_000])
    def test_files_that_are_not_metadata(self, data: bytes) -> None:
        with pytest.raises(UnreadableMetadata):
            parse_table_metadata(data, WHERE)

    @pytest.mark.parametrize(
        ("version", "said"),
        [(0, "Format version 0"), (5, "version 5, newer than this release"), (99, "version 99, newer")],
    )
    def test_a_format_version_that_is_not_known(self, version: int, said: str) -> None:
        with pytest.raises(UnreadableMetadata, match=said):
            parsed(two_snapshots() | {"format-version": version})

    def test_a_current_snapshot_that_is_not_there(self) -> None:
        node = two_snapshots()
        node["current-snapshot-id"] = 5
        with pytest.raises(UnreadableMetadata, match="current-snapshot-id 5 is not among"):
            parsed(node)

    def test_main_without_a_current_snapshot(self) -> None:
        with pytest.raises(UnreadableMetadata, match="main is a branch at 2, and the current snapshot is None"):
            parsed(two_snapshots() | {"current-snapshot-id": None})

    def test_one_id_twice(self) -> None:
        node = two_snapshots()
        node["snapshots"].append(node["snapshots"][0])
        with pytest.raises(UnreadableMetadata, match="Two snapshots"):
            parsed(node)

    def test_a_missing_file(self) -> None:
        with pytest.raises(UnreadableMetadata, match="cannot be read"):
            read_table_metadata(cast(Stores, Shelf({})), WHERE)


def test_a_ref_without_its_snapshot_is_recorded() -> None:
    node = two_snapshots()
    node["refs"]["lost"] = {"snapshot-id": 404, "type": "tag"}
    assert parsed(node).invalid_refs == ("lost",)


def test_main_is_the_current_snapshot_if_refs_omit_it() -> None:
    node = two_snapshots(refs={"audit": {"snapshot-id": 1, "type": "tag"}})
    assert parsed(node).refs["main"] == Ref("main", 2, "branch")


class TestEncryption:
    def test_a_plain_table_passes(self) -> None:
        refuse_encrypted(parsed(two_snapshots()))

    @pytest.mark.parametrize("where", ["keys", "snapshot", "property"])
    def test_any_sign_of_it_is_refused(self, where: str) -> None:
        node = two_snapshots(format_version=3, properties={"encryption.key-id": "k"} if where == "property" else {})
        if where == "keys":
            node["encryption-keys"] = [{"key-id": "k1", "encrypted-key-metadata": "eA=="}]
        if where == "snapshot":
            node["snapshots"][0]["key-id"] = "k1"
        with pytest.raises(EncryptedTable) as caught:
            refuse_encrypted(parsed(node), "artemis.t")
        assert caught.value.table == "artemis.t"


def test_many_snapshots_take_no_time_that_grows_faster_than_they_do() -> None:
    count = 40_000
    snapshots = [snapshot_node(n, n - 1 or None, n * 1000, n) for n in range(1, count + 1)]
    data = metadata_bytes(snapshots, current=count, log=[(n * 1000, n) for n in range(1, count + 1)])
    begun = time.process_time()
    assert len(parse_table_metadata(data, WHERE).snapshots) == count
    # Half a second in practice; anything quadratic would take minutes.
    assert time.process_time() - begun < 20


def test_history_as_a_frame_has_the_documented_columns() -> None:
    node = two_snapshots()
    node["snapshots"][1]["summary"] |= {"added-data-files": "3", "total-data-files": "many"}
    node["refs"]["audit"] = {"snapshot-id": 2, "type": "tag"}
    node["snapshots"][0]["timestamp-ms"] = 2**53 + 1
    read_at = datetime(2024, 1, 1, tzinfo=UTC)
    frame = SnapshotHistory.of("artemis.t", parsed(node), read_at).to_pandas()
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        "snapshot_id": "int64",
        "parent_snapshot_id": "Int64",
        "sequence_number": "int64",
        "committed_at": "datetime64[ms, UTC]",
        "current_since": "datetime64[ms, UTC]",
        "is_current": "bool",
        "refs": "object",
        "operation": "object",
        "added_data_files": "Int64",
        "deleted_data_files": "Int64",
        "total_data_files": "Int64",
        "total_delete_files": "Int64",
        "total_records": "Int64",
        "total_files_size": "Int64",
        "manifest_list": "object",
        "schema_id": "Int64",
    }
    assert frame["refs"].tolist() == ["", "audit, main"]
    assert frame["is_current"].tolist() == [False, True]
    assert frame["committed_at"][1] == pd.Timestamp(2000, unit="ms", tz="UTC")
    assert frame["committed_at"].astype("int64")[0] == 2**53 + 1
    assert frame["added_data_files"].tolist() == [pd.NA, 3]
    assert frame["total_data_files"].isna().all()
    empty = SnapshotHistory.of("artemis.t", parsed(metadata_node()), read_at).to_pandas()
    assert empty.shape == (0, 16)
    assert (empty.dtypes == frame.dtypes).all()


def test_a_rolled_back_snapshot_was_current_since_its_last_time() -> None:
    node = two_snapshots(current=1, log=[(1000, 1), (2000, 2), (3000, 1)])
    frame = SnapshotHistory.of("t", parsed(node), datetime(2024, 1, 1, tzinfo=UTC)).to_pandas()
    assert frame["current_since"].tolist() == [pd.Timestamp(at, unit="ms", tz="UTC") for at in (3000, 2000)]
