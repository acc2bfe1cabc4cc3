"""Manifest lists and manifests: whoever wrote them, in whatever codec, whole or not at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.errors import EncryptedTable, UnreadableMetadata
from artemis_lifecycle.metadata import manifest_lists, manifests
from artemis_lifecycle.metadata.avro.container import open_container
from artemis_lifecycle.metadata.types import (
    UNKNOWN_LENGTH,
    EntryStatus,
    ManifestList,
    ManifestListEntry,
    Snapshot,
    SnapshotSummary,
)
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.metadata.avro_files import (
    MANIFEST_LIST,
    Schema,
    Shelf,
    avro_file,
    block_ends,
    entry_for,
    file_record,
    list_record,
    manifest_schema,
    renamed,
    without_ids,
)
from artemis_lifecycle_tests.metadata.whole_manifests import whole_entries

M = "s3://bucket/t/metadata/m.avro"
L = "s3://bucket/t/metadata/snap-1.avro"

READERS: tuple[Callable[[Stores, ManifestListEntry], Any], ...] = (
    manifests.live_files,
    manifests.live_entries,
    manifests.live_sort_orders,
)


def shelf(**files: bytes) -> Stores:
    return cast(Stores, Shelf({M: files.get("manifest", b""), L: files.get("listed", b"")}))


def snapshot(**totals: str) -> Snapshot:
    properties = {key.replace("_", "-"): value for key, value in totals.items()}
    return Snapshot(1, None, 1, 1000, L, summary=SnapshotSummary("append", properties))


def listed(records: list[Any], expected: Snapshot | None = None, **options: Any) -> ManifestList:
    schema = options.pop("schema", MANIFEST_LIST)
    return manifest_lists.read_manifest_list(shelf(listed=avro_file(schema, records, **options)), L, expected=expected)


class TestManifestLists:
    @pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
    def test_every_field_is_read_from_every_block(self, codec: str) -> None:
        records = [list_record(f"s3://b/m{n}.avro", 100 + n, n % 2, (n, 1, 2)) for n in range(50)]
        found = listed(records, codec=codec, block_bytes=100)
        assert [entry.manifest_path for entry in found.entries] == [f"s3://b/m{n}.avro" for n in range(50)]
        assert found.entries[3] == ManifestListEntry("s3://b/m3.avro", 103, 0, 1, 1, 1, 1, 1, 3, 2)
        assert found.entries[3].live_files_count == 4

    def test_old_names_are_found_by_id_and_without_ids_by_name(self) -> None:
        old = renamed(
            MANIFEST_LIST,
            {
                "added_files_count": "added_data_files_count",
                "existing_files_count": "existing_data_files_count",
                "deleted_files_count": "deleted_data_files_count",
            },
        )
        record = list_record("s3://b/m.avro", 7, 0, (5, 6, 7))
        for name in ("existing", "added", "deleted"):
            record[f"{name}_data_files_count"] = record.pop(f"{name}_files_count")
        for schema in (old, without_ids(old)):
            entry = listed([record], schema=schema).entries[0]
            assert (entry.existing_files_count, entry.added_files_count, entry.deleted_files_count) == (5, 6, 7)

    def test_what_format_version_1_leaves_out_is_none_and_never_zero(self) -> None:
        needed = {"manifest_path", "manifest_length", "partition_spec_id", "added_snapshot_id"}
        schema = MANIFEST_LIST | {"fields": [f for f in MANIFEST_LIST["fields"] if f["name"] in needed]}
        entry = listed([list_record("s3://b/m.avro", 7)], schema=schema).entries[0]
        assert (entry.content, entry.sequence_number, entry.added_files_count, entry.live_files_count) == (
            0,
            0,
            None,
            None,
        )

    def test_an_empty_list_is_a_list(self) -> None:
        assert listed([], snapshot(total_data_files="0")).entries == ()

    def test_a_list_cut_at_any_block_is_refused_by_the_snapshots_totals(self) -> None:
        records = [list_record(f"s3://b/m{n}.avro", 100, n % 2, (1, 1, 5)) for n in range(20)]
        data = avro_file(MANIFEST_LIST, records, block_bytes=100)
        whole = snapshot(total_data_files="20", total_delete_files="20")
        assert len(manifest_lists.read_manifest_list(shelf(listed=data), L, expected=whole).entries) == 20
        ends = block_ends(data)
        assert len(ends) > 5
        for end in ends[:-1]:
            with pytest.raises(UnreadableMetadata, match="is cut: it lists"):
                manifest_lists.read_manifest_list(shelf(listed=data[:end]), L, expected=whole)

    def test_a_list_cut_anywhere_else_is_refused_by_itself(self) -> None:
        data = avro_file(MANIFEST_LIST, [list_record(f"s3://b/m{n}.avro", 100) for n in range(9)], block_bytes=100)
        for length in set(range(len(data))) - set(block_ends(data)):
            with pytest.raises(UnreadableMetadata):
                manifest_lists.read_manifest_list(shelf(listed=data[:length]), L)

    def test_more_files_than_the_summary_counts_are_accepted(self) -> None:
        listed([list_record("s3://b/m.avro", 7, 0, (5, 5, 0))], snapshot(total_data_files="9", total_delete_files="0"))

    def test_totals_that_cannot_be_compared_are_not(self) -> None:
        listed([list_record("s3://b/m.avro", 7, 0, (None, 5, 0))], snapshot(total_data_files="9"))
        listed([list_record("s3://b/m.avro", 7, 0, (0, 5, 0))], snapshot(total_data_files="unknown"))

    @pytest.mark.parametrize("field", ["manifest_path", "manifest_length", "partition_spec_id"])
    def test_an_entry_without_a_required_field_is_refused(self, field: str) -> None:
        optional = json.loads(json.dumps(MANIFEST_LIST))
        for item in optional["fields"]:
            if item["name"] == field:
                item["type"] = ["null", item["type"]]
        with pytest.raises(UnreadableMetadata, match=f"no {field}"):
            listed([list_record("s3://b/m.avro", 7) | {field: None}], schema=optional)

    def test_a_content_that_is_not_known_is_refused(self) -> None:
        with pytest.raises(UnreadableMetadata, match=r"content of s3://b/m\.avro 3"):
            listed([list_record("s3://b/m.avro", 7, 3)])

    def test_an_encrypted_manifest_is_refused(self) -> None:
        with pytest.raises(EncryptedTable):
            listed([list_record("s3://b/m.avro", 7, key_metadata=b"k")])

    def test_an_encrypted_list_is_refused_unread(self) -> None:
        with pytest.raises(EncryptedTable):
            manifest_lists.manifests_of(shelf(), Snapshot(1, None, 1, 1, L, key_id="k1"))

    def test_a_missing_list_is_unreadable(self) -> None:
        with pytest.raises(UnreadableMetadata, match="cannot be read"):
            manifest_lists.manifests_of(cast(Stores, Shelf({})), snapshot())

    def test_inline_manifests_come_without_lengths(self) -> None:
        found = manifest_lists.manifests_of(shelf(), Snapshot(1, None, 0, 1, None, ("s3://b/a.avro", "s3://b/b.avro")))
        assert (found.path, found.size_in_bytes) == (None, 0)
        assert [(entry.manifest_path, entry.manifest_length) for entry in found.entries] == [
            ("s3://b/a.avro", UNKNOWN_LENGTH),
            ("s3://b/b.avro", UNKNOWN_LENGTH),
        ]


def manifest(records: list[Any], schema: Schema | None = None, **options: Any) -> bytes:
    return avro_file(schema or manifest_schema(), records, **options)


class TestManifests:
    records = tuple(file_record(n, status=n % 3) for n in range(30))
    counts = (10, 10, 10)

    @pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
    def test_every_entry_is_read_from_every_block(self, codec: str) -> None:
        data = manifest(list(self.records), codec=codec, block_bytes=500)
        entry = entry_for(M, data, counts=self.counts)
        whole = whole_entries(shelf(manifest=data), entry)
        assert [item.status for item in whole] == [EntryStatus(n % 3) for n in range(30)]
        first = whole[0].data_file
        assert (first.file_path, first.file_format, first.kind) == (
            "s3://bucket/t/data/00000.parquet",
            "parquet",
            "data",
        )
        live = manifests.live_entries(shelf(manifest=data), entry)
        assert live.column("file_path").to_pylist() == [
            item.data_file.file_path for item in whole if item.status != EntryStatus.DELETED
        ]
        assert live.column("file_format").to_pylist() == ["parquet"] * 20
        assert live.column("file_size_in_bytes").to_pylist() == [1000 + n for n in range(30) if n % 3 != 2]

    @pytest.mark.parametrize("reader", READERS)
    def test_a_manifest_cut_anywhere_is_refused(self, reader: Callable[..., Any]) -> None:
        data = manifest(list(self.records), block_bytes=500)
        entry = entry_for(M, data, counts=self.counts)
        unknown = ManifestListEntry(M, UNKNOWN_LENGTH, 0, 0, 0, 0, None, 10, 10, 10)
        assert len(block_ends(data)) > 5
        for length in [*range(0, len(data), 7), *block_ends(data)[:-1]]:
            for known in (entry, unknown):
                with pytest.raises(UnreadableMetadata) as caught:
                    reader(shelf(manifest=data[:length]), known)
                assert caught.value.path == M

    @pytest.mark.parametrize("reader", READERS)
    @pytest.mark.parametrize("wrong", [(9, 10, 10), (10, 11, 10), (10, 10, 0), (20, 0, 10)])
    def test_counts_that_are_not_the_lists_are_refused(
        self, reader: Callable[..., Any], wrong: tuple[int, int, int]
    ) -> None:
        data = manifest(list(self.records))
        with pytest.raises(UnreadableMetadata, match="entries, and its manifest list records"):
            reader(shelf(manifest=data), entry_for(M, data, counts=wrong))
        reader(shelf(manifest=data), entry_for(M, data, counts=(None, 10, None)))

    @pytest.mark.parametrize("reader", READERS)
    def test_a_delete_manifest_in_the_place_of_a_data_manifest_is_refused(self, reader: Callable[..., Any]) -> None:
        data = manifest([file_record(1, content=1)])
        with pytest.raises(UnreadableMetadata, match="entries of content"):
            reader(shelf(manifest=data), entry_for(M, data, counts=(0, 1, 0)))
        data = manifest([file_record(1)], header={"content": "deletes"})
        with pytest.raises(UnreadableMetadata, match="header says deletes"):
            reader(shelf(manifest=data), entry_for(M, data, counts=(0, 1, 0)))

    @pytest.mark.parametrize("reader", READERS)
    def test_an_encrypted_file_is_refused(self, reader: Callable[..., Any]) -> None:
        data = manifest([file_record(1), file_record(2, key_metadata=b"k")])
        with pytest.raises(EncryptedTable):
            reader(shelf(manifest=data), entry_for(M, data, counts=(0, 2, 0)))

    @pytest.mark.parametrize("reader", READERS)
    @pytest.mark.parametrize("status", [-1, 3])
    def test_a_status_that_is_not_known_is_refused(self, reader: Callable[..., Any], status: int) -> None:
        data = manifest([file_record(1), file_record(2, status=status)])
        with pytest.raises(UnreadableMetadata, match="status"):
            reader(shelf(manifest=data), entry_for(M, data, counts=(None, None, None)))

    @pytest.mark.parametrize("reader", READERS)
    def test_an_empty_manifest_is_a_manifest(self, reader: Callable[..., Any]) -> None:
        data = manifest([])
        reader(shelf(manifest=data), entry_for(M, data))

    def test_deletes_of_each_kind(self) -> None:
        vector: dict[str, Any] = {
            "file_format": "PUFFIN",
            "referenced_data_file": "s3://bucket/t/data/00001.parquet",
            "content_offset": 4,
            "content_size_in_bytes": 40,
        }
        records = [file_record(1, content=1), file_record(2, content=2, equality_ids=[1, 2])]
        records.append(file_record(3, content=1, **vector))
        data = manifest(records, header={"content": "deletes"})
        entry = entry_for(M, data, 1, (0, 3, 0))
        files = [item.data_file for item in whole_entries(shelf(manifest=data), entry)]
        assert [file.kind for file in files] == ["position_deletes", "equality_deletes", "deletion_vectors"]
        assert files[1].equality_ids == (1, 2)
        assert (files[2].content_offset, files[2].content_size_in_bytes) == (4, 40)
        live = manifests.live_entries(shelf(manifest=data), entry)
        assert live.column("referenced_data_file").to_pylist() == [None, None, vector["referenced_data_file"]]

    def test_format_version_1_has_no_content_and_all_is_data(self) -> None:
        schema = manifest_schema()
        fields = schema["fields"][4]["type"][1]["fields"] if isinstance(schema["fields"][4]["type"], list) else None
        fields = fields if fields is not None else schema["fields"][4]["type"]["fields"]
        fields[:] = [field for field in fields if field["name"] != "content"]
        data = manifest([file_record(1)], schema)
        entry = entry_for(M, data, counts=(0, 1, 0))
        assert manifests.live_entries(shelf(manifest=data), entry).column("content").to_pylist() == [0]
        assert whole_entries(shelf(manifest=data), entry)[0].data_file.content == 0

    def test_a_writer_without_field_ids_is_read_by_names(self) -> None:
        data = manifest([file_record(1)], without_ids(manifest_schema()))
        entry = entry_for(M, data, counts=(0, 1, 0))
        assert manifests.live_entries(shelf(manifest=data), entry).num_rows == 1
        assert whole_entries(shelf(manifest=data), entry)[0].snapshot_id == 1

    @pytest.mark.parametrize("reader", READERS)
    def test_a_manifest_whose_files_another_snapshot_added_is_refused(self, reader: Callable[..., Any]) -> None:
        def written(*ids: tuple[int, int | None]) -> bytes:
            schema = manifest_schema()
            (field,) = (field for field in schema["fields"] if field["name"] == "snapshot_id")
            field["type"] = ["null", "long"]
            return manifest(
                [{**file_record(n, status), "snapshot_id": id_} for n, (status, id_) in enumerate(ids)], schema
            )

        # What was there before keeps the snapshot that added it; pyiceberg names that one for deleted files too.
        fine = written((1, 1), (1, None), (0, 7), (2, 8))
        reader(shelf(manifest=fine), entry_for(M, fine, counts=(1, 2, 1)))
        for other in (0, 2, -1, 2**63 - 1):
            foreign = written((1, 1), (1, other), (0, 7), (2, 8))
            with pytest.raises(UnreadableMetadata, match=f"snapshot {other} added.* says that snapshot 1 added it"):
                reader(shelf(manifest=foreign), entry_for(M, foreign, counts=(1, 2, 1)))
            reader(shelf(manifest=foreign), replace(entry_for(M, foreign, counts=(1, 2, 1)), added_snapshot_id=None))

    def test_a_schema_of_another_kind_of_file_is_refused(self) -> None:
        data = avro_file(MANIFEST_LIST, [list_record("s3://b/m.avro", 7)])
        for reader in READERS:
            with pytest.raises(UnreadableMetadata, match="schema lacks data_file, status"):
                reader(shelf(manifest=data), entry_for(M, data))


class TestContainers:
    data = avro_file(MANIFEST_LIST, [list_record(f"s3://b/m{n}.avro", 7) for n in range(9)], block_bytes=100)

    def test_a_sync_marker_that_differs_is_refused(self) -> None:
        broken = bytearray(self.data)
        broken[block_ends(self.data)[2] - 1] ^= 1
        with pytest.raises(UnreadableMetadata, match="sync marker"):
            open_container(bytes(broken), L)

    def test_a_codec_that_is_not_known_is_refused(self) -> None:
        with pytest.raises(UnreadableMetadata, match="codec 'bzip2'"):
            open_container(avro_file(MANIFEST_LIST, [list_record("s3://b/m.avro", 7)], codec="bzip2"), L)

    @given(position=st.integers(0, 10_000), flip=st.integers(1, 255))
    def test_a_flipped_byte_never_makes_another_error_than_ours(self, position: int, flip: int) -> None:
        broken = bytearray(self.data)
        broken[position % len(broken)] ^= flip
        with contextlib.suppress(UnreadableMetadata, EncryptedTable):
            manifest_lists.read_manifest_list(shelf(listed=bytes(broken)), L)

    @given(position=st.integers(0, 10_000), flip=st.integers(1, 255))
    def test_nor_in_a_manifest(self, position: int, flip: int) -> None:
        data = manifest([file_record(n) for n in range(5)], codec="null")
        broken = bytearray(data)
        broken[position % len(broken)] ^= flip
        for reader in READERS:
            with contextlib.suppress(UnreadableMetadata, EncryptedTable):
                reader(shelf(manifest=bytes(broken)), entry_for(M, data, counts=(0, 5, 0)))


_ODD_TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "flag": ("boolean", st.booleans()),
    "number": ("int", st.integers(-(2**31), 2**31 - 1)),
    "big": ("long", st.integers(-(2**63), 2**63 - 1)),
    "real": ("float", st.floats(width=32, allow_nan=False)),
    "double": ("double", st.floats(allow_nan=False)),
    "day": ({"type": "int", "logicalType": "date"}, st.just(None)),
    "uuid": ({"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}, st.just(None)),
    "price": (
        {"type": "fixed", "name": "price_fixed", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
        st.just(None),
    ),
    "raw": ("bytes", st.binary(max_size=5)),
    "fixed": ({"type": "fixed", "name": "fixed_5", "size": 5}, st.binary(min_size=5, max_size=5)),
    "text": ("string", st.text(max_size=5)),
}


@st.composite
def partitioned(draw: st.DrawFn) -> tuple[Schema, list[Any]]:
    names = draw(st.lists(st.sampled_from(sorted(_ODD_TYPES)), unique=True))
    fields = [
        {"name": name, "type": ["null", _ODD_TYPES[name][0]], "default": None, "field-id": 1000 + n}
        for n, name in enumerate(names)
    ]
    records = draw(
        st.lists(
            st.builds(
                file_record,
                st.integers(0, 9999),
                status=st.integers(0, 2),
                content=st.sampled_from([0, 1, 2]),
                file_path=st.text(),
                file_format=st.sampled_from(["PARQUET", "parquet", "Avro", "ORC", "PUFFIN"]),
                file_size_in_bytes=st.integers(0, 2**63 - 1),
                referenced_data_file=st.none() | st.text(),
                content_offset=st.none() | st.integers(0, 2**40),
                split_offsets=st.none() | st.lists(st.integers(0, 2**40), max_size=3),
                lower_bounds=st.none() | st.just([{"key": 1, "value": b""}]),
                partition=st.fixed_dictionaries({name: st.none() | _ODD_TYPES[name][1] for name in names}),
            ),
            max_size=8,
        )
    )
    return manifest_schema(fields), records


@pytest.mark.seconds
@given(
    made=partitioned(),
    codec=st.sampled_from(["null", "deflate", "snappy", "zstandard"]),
    block=st.sampled_from([50, 16_000]),
)
def test_entries_are_those_that_were_written(made: tuple[Schema, list[Any]], codec: str, block: int) -> None:
    schema, records = made
    data = avro_file(schema, records, codec=codec, block_bytes=block)
    files = [record["data_file"] for record in records]
    assert manifests.decode_entries(data, M).to_pylist() == [
        {
            "status": record["status"],
            "content": file["content"],
            "file_path": file["file_path"],
            "file_format": file["file_format"].lower(),
            "file_size_in_bytes": file["file_size_in_bytes"],
            "record_count": file["record_count"],
            "referenced_data_file": file.get("referenced_data_file"),
            "snapshot_id": record["snapshot_id"],
        }
        for record, file in zip(records, files, strict=True)
    ]


# A type that holds itself is Avro that no Iceberg writer makes.
CHAIN = {"type": "record", "name": "link", "fields": [{"name": "next", "type": ["null", "link"]}]}


def test_sort_orders_are_those_of_live_files() -> None:
    schema = manifest_schema()

    def orders(*records: Any, schema: Schema = schema) -> frozenset[int]:
        data = manifest(list(records), schema)
        counts = tuple(sum(record["status"] == status for record in records) for status in range(3))
        return manifests.live_sort_orders(shelf(manifest=data), entry_for(M, data, counts=cast(Any, counts)))

    gone = file_record(9, status=2, sort_order_id=4)
    ordered = [file_record(n, sort_order_id=n, status=n % 2) for n in (1, 2)]
    assert orders(*ordered, gone) == {1, 2}
    assert orders(*ordered, file_record(3)) == {0, 1, 2}
    assert orders(gone) == frozenset()
    text = json.loads(
        json.dumps(schema).replace('"int"], "default": null, "field-id": 140', '"string"], "field-id": 140')
    )
    assert text != schema
    with pytest.raises(UnreadableMetadata, match="sort_order_id"):
        orders(file_record(1, sort_order_id="1"), schema=text)


def test_a_schema_that_the_scan_cannot_follow_is_refused() -> None:
    schema = manifest_schema([{"name": "x", "type": ["null", CHAIN], "field-id": 1000}])
    data = manifest([file_record(1, partition={"x": {"next": {"next": None}}}), file_record(2)], schema)
    for reader in (*READERS, manifests.live_sort_orders, whole_entries):
        with pytest.raises(UnreadableMetadata, match="no"):
            reader(shelf(manifest=data), entry_for(M, data, counts=(0, 2, 0)))
