"""Sealed frames hold the same rows, however they were written; rows have one digest, however they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage import frames, location
from artemis_lifecycle.storage.frames import (
    SealedFrame,
    frame_of,
    map_parts,
    read_frame,
    rows_digest,
    write_batches,
    write_frame,
)
from artemis_lifecycle.storage.location import (
    DEFAULT_RULES,
    LocationRules,
    distinct,
    hash_column,
    hash_location,
    normalize,
)
from artemis_lifecycle.storage.stores import Stores


@pytest.mark.usefixtures("anywhere")
def test_rows_are_read_as_they_were_written_wherever_that_was(spark: SparkSession, tmp_path: Path) -> None:
    table = _rows()
    in_process = _write(table, f"file://{tmp_path}/here")
    runner = Runner(spark)
    frame = spark.createDataFrame(table).repartition(3)
    on_executors = write_frame(runner.rows(frame, table.schema), f"file://{tmp_path}/there", Stores())
    assert (in_process.rows, in_process.schema) == (on_executors.rows, on_executors.schema)
    more = frame.unionByName(frame.select(F.lit("dropped").alias("path"), "kind", "size_in_bytes", "seen"))
    rows = runner.rows(more, table.schema)
    kept = write_frame(rows, f"file://{tmp_path}/kept", Stores(), through=_without_dropped)
    assert (in_process.rows, in_process.schema) == (kept.rows, kept.schema)
    for stored in (in_process, on_executors, kept):
        again = read_frame(runner, stored.folder, Stores()).table()
        assert again.schema == table.schema
        assert again.sort_by("path").equals(table.sort_by("path"))
        # A plan has one id, wherever its files were put together.
        assert rows_digest(again) == rows_digest(table)
        shown = frame_of(spark, stored.folder, Stores()).sort("path").toArrow().cast(table.schema)
        assert shown.equals(table.sort_by("path"))


def test_a_local_session_reads_verified_parts_without_python(spark: SparkSession, tmp_path: Path) -> None:
    table = _rows()
    for name in ("plain", "odd name: é%20[1]{a,b}*"):
        sealed = _write(table, f"file://{tmp_path}/{name}")
        frame = frame_of(spark, sealed.folder, Stores())
        assert bool(frame.inputFiles()) == (name == "plain")
        assert frame.sort("path").toArrow().cast(table.schema).equals(table.sort_by("path"))
    part = next((tmp_path / "plain").glob("part-*"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(StorageError, match="differs from its checksum"):
        frame_of(spark, f"file://{tmp_path}/plain", Stores())


def _rows() -> pa.Table:
    paths = [f"s3://b/{'x' * (number % 70)}/é{number}" for number in range(500)]
    return pa.table(
        {
            "path": paths,
            "kind": [None if number % 7 == 0 else "data" for number in range(500)],
            "size_in_bytes": pa.array([None if number % 5 == 0 else number - 250 for number in range(500)], pa.int64()),
            "seen": pa.array(
                [None if number % 3 == 0 else datetime(1969, 12, 31, 23, 59, 59, number, UTC) for number in range(500)],
                pa.timestamp("us", "UTC"),
            ),
        }
    )


def _write(table: pa.Table, folder: str) -> SealedFrame:
    return write_batches(table.to_batches(), table.schema, folder, Stores())


def _without_dropped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.not_equal(batch.column("path"), "dropped"))


@pytest.mark.usefixtures("anywhere")
def test_masks_select_rows_of_each_part(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_GROUP_ROWS", 100)
    monkeypatch.setattr(frames, "_PART_ROWS", 200)
    table = _rows()
    stored = write_batches(table.to_batches(max_chunksize=50), table.schema, f"file://{tmp_path}/parts", Stores())
    assert [part.rows for part in stored.parts].count(200) == 2

    def chosen(batches: Iterator[pa.RecordBatch]) -> list[str]:
        return [path for batch in batches for path in batch.column("path").to_pylist()]

    parts = list(map_parts(stored.folder, Stores(), chosen, ["path"]))
    masks = [np.array([path.endswith("7") for path in paths], np.bool_) for paths in parts]
    masks[0][:] = False
    found = read_frame(Runner(spark), stored.folder, Stores(), masks)
    expected = sorted(path for paths in parts[1:] for path in paths if path.endswith("7"))
    assert sorted(found.table().column("path").to_pylist()) == expected


def test_a_digest_depends_on_the_rows_and_not_on_their_order() -> None:
    table = _rows()
    pieces = [table.slice(300), table.slice(0, 7), table.slice(7, 293)]
    assert rows_digest(pa.concat_tables(pieces)) == rows_digest(table)
    others = [
        table.slice(1),
        pa.concat_tables([table, table.slice(0, 1)]),
        pa.concat_tables([table.slice(1), table.slice(1, 1)]),
        table.set_column(2, "size_in_bytes", pc.add(table.column("size_in_bytes"), 1)),
    ]
    assert len({rows_digest(other) for other in (table, *others)}) == 1 + len(others)


def test_an_empty_table_is_sealed_too(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"path": pa.array([], pa.string()), "size_in_bytes": pa.array([], pa.int64())})
    in_process = _write(table, f"file://{tmp_path}/here")
    frame = spark.createDataFrame([], "path string, size_in_bytes bigint")
    on_executors = write_frame(Runner(spark).rows(frame, table.schema), f"file://{tmp_path}/there", Stores())
    assert (in_process.rows, in_process.schema) == (on_executors.rows, on_executors.schema)
    assert read_frame(Runner(spark), in_process.folder, Stores()).frame().count() == 0


PLACES = st.sampled_from(
    ["s3://b", "S3a://b", "s3n://o", "s3://", "file:", "file://", "file://host", "", "hdfs://n:8020"]
)
NAMES = st.text("ab/.é %?#", max_size=12)
PATHS = st.one_of(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=40) | st.tuples(PLACES, NAMES).map("/".join), max_size=30),
    # As most tables have them: one place, and few that need a second look.
    st.tuples(PLACES, st.lists(NAMES, max_size=30)).map(lambda drawn: [f"{drawn[0]}/{name}" for name in drawn[1]]),
)


@given(paths=PATHS, equal_schemes=st.sampled_from([{}, {"hdfs": "file"}, {"file": "hdfs"}]), at_once=st.integers(1, 9))
@example(paths=["file:///a//b", "s3://b/c"], equal_schemes={}, at_once=9)  # as many pairs of slashes as two plain paths
@example(paths=["s3://b/a/", "s3://b/c"], equal_schemes={}, at_once=9)
@example(paths=["/a/", "/b", "//c"], equal_schemes={}, at_once=9)
def test_paths_have_the_hash_of_their_location(paths: list[str], equal_schemes: dict[str, str], at_once: int) -> None:
    rules = LocationRules({**DEFAULT_RULES.equal_schemes, **equal_schemes})
    every = pa.array(["s3://b//", *paths, "/"], pa.string()).slice(1, len(paths))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(location, "_AT_ONCE", at_once)
        found = hash_column(every, rules)
    assert found.tolist() == [hash_location(normalize(path, rules)) for path in paths]


def test_a_path_that_is_no_text_has_a_hash() -> None:
    torn = pa.array([b"s3://b/\xed\xa0\x80", b"s3://b//\xed\xa0\x80"]).view(pa.string())
    expected = [hash_location(normalize(path)) for path in ("s3://b/\ud800", "s3://b//\ud800")]
    assert hash_column(torn, DEFAULT_RULES).tolist() == expected


def test_the_hash_is_the_one_that_spark_sql_computes(spark: SparkSession) -> None:
    locations = [f"s3://b/{'y' * number}" for number in range(80)]
    frame = spark.createDataFrame([(location,) for location in locations], "location string")
    for row in frame.selectExpr("location", "xxhash64(location) AS hash").collect():
        assert row["hash"] % 2**64 == hash_location(row["location"])


@given(numbers=st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1]), max_size=50))
def test_each_number_occurs_once_in_order(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, np.uint64)).tolist() == sorted(set(numbers))
