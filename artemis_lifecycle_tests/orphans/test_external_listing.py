"""Listings that another system made: DataFrames, and Parquet files however these were written."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from artemis_lifecycle.errors import BadInput, NaiveDatetime, StorageError
from artemis_lifecycle.orphans.external_listing import Below, given_listing, read_parquet_listing
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.orphans.scan import ListedPart, reached_parts
from artemis_lifecycle.storage.location import DEFAULT_RULES, is_under, normalize
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.deletion.world import World, listed_files

OLD = datetime(2024, 1, 1, 2, 3, 4, 567_891, tzinfo=UTC)


def _given(world: World, ddl: str, rows: list[tuple[object, ...]], taken_at: datetime) -> Listing:
    return given_listing(
        world.spark,
        world.stores,
        world.spark.createDataFrame(rows, ddl),
        ["file:///warehouse/t"],
        taken_at=taken_at,
        root=world.root,
        clock=world.operations.clock.now,
        rules=DEFAULT_RULES,
    )


def test_a_given_listing_keeps_what_is_under_the_table_and_each_path_once(world: World) -> None:
    taken_at = world.operations.clock.now() - timedelta(hours=3)
    old, young = datetime(2024, 1, 1), datetime(2024, 2, 1)
    listing = _given(
        world,
        "path string, last_modified timestamp, size_in_bytes bigint, etag string",
        [
            ("file:/warehouse/t/data/a", old, 1, "e"),
            ("file:/warehouse/t/data/a", young, 2, "e"),
            ("/warehouse/t/data/b", old, 3, "e"),
            ("/warehouse/t/data/b", None, 3, "e"),
            ("file:///warehouse/t2/data/c", old, 4, "e"),
            ("file:///warehouse/t/../t2/d", old, 5, "e"),
        ],
        taken_at,
    )
    rows = {row["path"]: row for row in listed_files(world.spark, world.stores, listing).collect()}
    assert set(rows) == {"file:/warehouse/t/data/a", "/warehouse/t/data/b"}
    assert rows["file:/warehouse/t/data/a"]["last_modified"] == young
    assert rows["/warehouse/t/data/b"]["last_modified"] is None
    assert listing.started_at == taken_at
    # Metadata must be newer than the moment at which the rows were really read.
    assert listing.finished_at > taken_at + timedelta(hours=2)


def test_a_given_listing_without_a_path_twice_is_sealed_as_it_is(world: World) -> None:
    at = datetime(2024, 1, 1)
    paths = ["file:/warehouse/t/data/a", "file:///warehouse/t/data/b", "file:///warehouse/t//c", "/warehouse/t/.d"]
    rows = [(path, at, number) for number, path in enumerate([*paths, "file:///warehouse/t2/e", "s3://b/t/f"])]
    listing = _given(
        world,
        "path string, last_modified timestamp, size_in_bytes int",
        rows,
        world.operations.clock.now() - timedelta(hours=3),
    )
    found = listed_files(world.spark, world.stores, listing).collect()
    assert sorted(tuple(row) for row in found) == sorted(rows[:4])
    assert (listing.files, listing.bytes) == (4, 6)


@given(
    folder=st.sampled_from(["file:///w/t", "file:/w/t", "/w/t", "file:///w/.h/t", "s3://b//t", "s3://b/w/..t"]),
    paths=st.lists(
        st.tuples(
            st.sampled_from(
                ["", "file:///w/t", "file:/w/t", "/w/t", "file:///w/.h/t", "s3://b//t", "s3://b/w/..t", "/w/./t", "/w"]
            ),
            st.lists(st.sampled_from(["/", "a", ".", "..", "t", "é", "x.parquet", "/.", "//"]), max_size=6).map(
                "".join
            ),
        ).map("".join),
        min_size=1,
        max_size=40,
    ),
)
def test_what_is_below_a_folder_is_decided_by_the_normal_form(folder: str, paths: list[str]) -> None:
    root = normalize(folder, DEFAULT_RULES)
    batch = pa.RecordBatch.from_pydict({"path": pa.array(paths, pa.string())})
    (found,) = Below([folder], DEFAULT_RULES)([batch])
    kept = found.column("path").to_pylist()
    assert kept == [path for path in paths if is_under(path, root, DEFAULT_RULES)]


@given(sizes=st.lists(st.integers(0, 3), max_size=20))
def test_many_parts_are_asked_about_at_once_and_each_has_its_own_answer(sizes: list[int]) -> None:
    class Odd:
        questions = 0

        def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
            self.questions += 1
            return hashes % 2 == 1

    ends = np.cumsum(sizes)
    parts = [
        ListedPart(np.arange(end - size, end, dtype=np.uint64), np.ones(size, np.bool_))
        for end, size in zip(ends.tolist(), sizes, strict=True)
    ]
    files: Any = Odd()
    found = reached_parts(files, parts)
    assert [each.tolist() for each in found] == [(part.hashes % 2 == 1).tolist() for part in parts]
    assert files.questions == -(-len(parts) // 8)


def test_a_given_listing_of_another_shape_is_refused(world: World) -> None:
    now = world.operations.clock.now()
    with pytest.raises(BadInput, match="last_modified is bigint"):
        _given(world, "path string, last_modified bigint, size_in_bytes bigint", [("a", 1, 1)], now)
    with pytest.raises(BadInput, match="size_in_bytes is nothing"):
        _given(world, "path string, last_modified timestamp", [("a", None)], now)
    columns = "path string, last_modified timestamp, size_in_bytes bigint"
    with pytest.raises(BadInput, match="without a path"):
        _given(world, columns, [(None, None, 1)], now)
    with pytest.raises(BadInput, match="was taken at"):
        _given(world, columns, [], now + timedelta(hours=1))
    with pytest.raises(NaiveDatetime):
        _given(world, columns, [], datetime(2024, 1, 1))


# --- in Parquet files -------------------------------------------------------------------------------------------------


def _of_files(world: World, location: str) -> Listing:
    return given_listing(
        world.spark,
        world.stores,
        read_parquet_listing(world.stores, location),
        ["file:///warehouse/t"],
        taken_at=world.operations.clock.now(),
        root=world.root,
        clock=world.operations.clock.now,
        rules=DEFAULT_RULES,
    )


def _rows(world: World, listing: Listing) -> set[tuple[Any, ...]]:
    found = listed_files(world.spark, world.stores, listing)
    rows = found.selectExpr("path", "unix_micros(last_modified) AS at", "size_in_bytes").collect()
    assert len(rows) == listing.files
    assert sum(row["size_in_bytes"] or 0 for row in rows) == listing.bytes
    return {tuple(row) for row in rows}


@pytest.mark.usefixtures("anywhere")
def test_the_parquet_files_of_a_dataframe_are_the_listing_that_the_dataframe_is(world: World, tmp_path: Path) -> None:
    frame = world.spark.range(200, numPartitions=3).selectExpr(
        "concat('file:/warehouse/t/data/', CASE WHEN id < 190 THEN string(id) ELSE 'twice' END, '.parquet') AS path",
        "CASE WHEN id % 7 > 0 THEN timestamp_micros(1704074584567891 + id) END AS last_modified",
        "CAST(id AS int) AS size_in_bytes",
        "'e' AS etag",
    )
    frame = frame.unionByName(frame.limit(5).selectExpr("'file:/warehouse/t2/x' AS path", *frame.columns[1:]))
    listings = [
        given_listing(
            world.spark,
            world.stores,
            frame,
            ["file:///warehouse/t"],
            taken_at=world.operations.clock.now(),
            root=world.root,
            clock=world.operations.clock.now,
            rules=DEFAULT_RULES,
        )
    ]
    for kind in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        world.spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
        try:
            frame.write.parquet(f"file://{tmp_path}/{kind}")
        finally:
            world.spark.conf.unset("spark.sql.parquet.outputTimestampType")
        listings.append(_of_files(world, f"file://{tmp_path}/{kind}/"))
    whole, *of_files = (_rows(world, listing) for listing in listings)
    assert len(whole) == 191
    assert of_files[0] == of_files[1] == whole
    # What was written in milliseconds has no more; a path of which one row has no time has none.
    assert of_files[2] == {(path, at and at // 1000 * 1000, size) for path, at, size in whole}


def test_columns_of_other_writers_are_read_as_what_they_say(world: World, tmp_path: Path) -> None:
    spelled = ["file:/warehouse/t/a", "/warehouse/t/ü", "file:///warehouse/t//b"]
    second = int(OLD.timestamp())
    nanos = pa.array([second * 10**9 + 567_891_999, None, 0], pa.timestamp("ns"))
    far = pa.array([datetime(9999, 12, 31), None, datetime(1, 1, 1)], pa.timestamp("us", "Europe/Berlin"))
    columns = [
        (pa.array(spelled, pa.string()), pa.array([1, None, 3], pa.uint64()), nanos, second * 10**6 + 567_891),
        (pa.array(spelled, pa.large_string()), pa.array([1, None, 3], pa.uint8()), far, 253402214400 * 10**6),
        (pa.array(spelled).dictionary_encode(), pa.array([1, None, 3]), nanos, second * 10**6 + 567_891),
    ]
    for number, (path, size, times, at) in enumerate(columns):
        file = tmp_path / f"{number}.parquet"
        table = pa.table({"size_in_bytes": size, "other": ["x"] * 3, "last_modified": times, "path": path})
        pq.write_table(table, file, row_group_size=2)
        found = {row[0]: row[1:] for row in _rows(world, _of_files(world, f"file://{file}"))}
        assert set(found) == set(spelled)
        assert found[spelled[0]] == (at, 1)
        assert found[spelled[1]] == (None, None)


def test_when_it_was_taken_is_when_the_first_of_its_files_was_written(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"path": ["x"]}), tmp_path / f"{number}.parquet")
        os.utime(tmp_path / f"{number}.parquet", (OLD.timestamp() + 3 - number,) * 2)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".0.parquet.crc").touch()
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "_temporary" / "half").touch()
    found = read_parquet_listing(Stores(), f"file://{tmp_path}")
    assert {file.path.rpartition("/")[2] for file in found.files} == {"0.parquet", "1.parquet", "2.parquet"}
    assert abs(found.begun_at - (OLD + timedelta(seconds=1))) < timedelta(milliseconds=1)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    ("columns", "said", "kind"),
    [
        ({"path": None}, "path is not one column", BadInput),
        ({"path": pa.array([b"x"])}, "path is binary", BadInput),
        ({"path": pa.array([None], pa.string())}, "a row without a path", BadInput),
        ({"path": pa.array([b"/warehouse/t/\xff"]).view(pa.string())}, "not UTF-8", BadInput),
        ({"last_modified": pa.array([1])}, "last_modified is int64", BadInput),
        ({"last_modified": pa.array([2**60], pa.timestamp("ms", "UTC"))}, "cannot be read", StorageError),
        ({"size_in_bytes": pa.array(["1"])}, "size_in_bytes is string", BadInput),
        ({"size_in_bytes": pa.array([2**64 - 1], pa.uint64())}, "cannot be read", StorageError),
    ],
)
def test_files_of_another_shape_are_refused(
    world: World, tmp_path: Path, columns: dict[str, Any], said: str, kind: type[Exception]
) -> None:
    right = {"path": ["/warehouse/t/x"], "last_modified": pa.array([OLD]), "size_in_bytes": pa.array([1])}
    given = {name: column for name, column in {**right, **columns}.items() if column is not None}
    pq.write_table(pa.table(given), tmp_path / "x.parquet", store_schema=True)
    before = _seals(world)
    with pytest.raises(kind, match=said):
        _of_files(world, f"file://{tmp_path}")
    assert _seals(world) == before


@pytest.mark.usefixtures("anywhere")
def test_a_file_that_is_cut_is_an_error_and_no_shorter_listing(world: World, tmp_path: Path) -> None:
    rows = {"path": [f"/warehouse/t/{row}" for row in range(5000)], "last_modified": [OLD] * 5000}
    table = pa.table({**rows, "size_in_bytes": [1] * 5000})
    for name in ("a", "b"):
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1000)
    whole = (tmp_path / "b.parquet").read_bytes()
    before = _seals(world)
    torn = bytearray(whole)
    torn[len(whole) // 2 : len(whole) // 2 + 2000] = bytes(2000)
    for damaged in (whole[:-9], whole[: len(whole) // 2], b"", b"PAR1", bytes(torn)):
        (tmp_path / "b.parquet").write_bytes(damaged)
        with pytest.raises(StorageError, match=r"cannot be read.*b\.parquet"):
            _of_files(world, f"file://{tmp_path}")
    assert _seals(world) == before


def test_a_location_without_a_listing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there are none"):
        read_parquet_listing(Stores(), f"file://{tmp_path}/nowhere")
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(BadInput, match="there are none"):
        read_parquet_listing(Stores(), f"file://{tmp_path}")
    (tmp_path / "listing.csv").touch()
    with pytest.raises(BadInput, match=r"something else is among them.*listing\.csv"):
        read_parquet_listing(Stores(), f"file://{tmp_path}")


def _seals(world: World) -> set[Path]:
    return set(Path(world.root.removeprefix("file://")).glob("listings/*/*/_sealed.json"))
