"""Sealed frames hold the same rows, however they were written; rows have one digest, however they lie."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from artemis_lifecycle.storage.frames import (
    SEAL,
    describe_frame,
    read_frame,
    read_table,
    row_hashes,
    rows_digest,
    write_frame,
    write_table,
)
from artemis_lifecycle.storage.location import DEFAULT_RULES, LocationRules, normalise
from artemis_lifecycle.storage.location_hash import distinct, hash_location, hash_paths
from artemis_lifecycle.storage.stores import Stores


def test_a_table_written_here_reads_as_the_frame_that_spark_wrote(spark: SparkSession, tmp_path: Path) -> None:
    table = _rows()
    here = write_table(table, f"file://{tmp_path}/here", Stores())
    frame = spark.createDataFrame(table).repartition(3)
    there = write_frame(frame, f"file://{tmp_path}/there", Stores())
    assert (here.rows, here.schema) == (there.rows, there.schema)
    more = frame.unionByName(frame.select(F.lit("dropped").alias("path"), "kind", "size_in_bytes", "seen"))
    kept = write_frame(more, f"file://{tmp_path}/kept", Stores(), _Kept())
    assert (here.rows, here.schema) == (kept.rows, kept.schema)
    rows = {tuple(row) for row in read_frame(spark, here.folder, Stores()).collect()}
    assert len(rows) == 500
    for stored in (here, there, kept):
        again = read_table(stored.folder, Stores())
        assert again is not None
        assert again.schema == table.schema
        assert again.sort_by("path").equals(table.sort_by("path"))
        # A plan has one id, wherever its files were put together.
        assert rows_digest(again) == rows_digest(table)
    assert read_table(here.folder, Stores(), at_most=499) is None


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


class _Kept:
    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.not_equal(batch.column("path"), "dropped"))


def test_a_row_has_the_hash_that_spark_sql_computes(spark: SparkSession) -> None:
    table = _rows()
    frame = spark.createDataFrame(table).repartition(3)
    for seed in (1, 2):
        found = frame.select(F.xxhash64(F.lit(seed), *map(F.col, frame.columns)).alias("hash")).collect()
        (batch,) = table.to_batches()
        assert sorted(row["hash"] % 2**64 for row in found) == sorted(row_hashes(batch, seed).tolist())


def test_a_digest_tells_rows_apart_and_not_how_they_lie() -> None:
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


def test_a_seal_that_tells_a_digest_is_read(tmp_path: Path) -> None:
    here = write_table(_rows(), f"file://{tmp_path}/here", Stores())
    seal = tmp_path / "here" / SEAL
    seal.write_text(json.dumps({**json.loads(seal.read_text()), "digest": "0" * 64}))
    assert describe_frame(here.folder, Stores()) == here


def test_an_empty_table_is_sealed_too(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"path": pa.array([], pa.string()), "size_in_bytes": pa.array([], pa.int64())})
    here = write_table(table, f"file://{tmp_path}/here", Stores())
    there = write_frame(
        spark.createDataFrame([], "path string, size_in_bytes bigint"), f"file://{tmp_path}/there", Stores()
    )
    assert (here.rows, here.schema) == (there.rows, there.schema)
    assert read_frame(spark, here.folder, Stores()).count() == 0


PATHS = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8"), max_size=40),
        st.tuples(
            st.sampled_from(
                ["s3://b", "S3a://b", "s3n://other", "file:", "file://", "file://host", "", "hdfs://n:8020"]
            ),
            st.text("ab/.é %", max_size=60),
        ).map("/".join),
    ),
    max_size=30,
)


@given(paths=PATHS, equal_schemes=st.sampled_from([{}, {"hdfs": "file"}, {"file": "hdfs"}]))
def test_paths_hashed_where_they_lie_have_the_hash_of_their_location(
    paths: list[str], equal_schemes: dict[str, str]
) -> None:
    import numpy as np

    encoded = [path.encode() for path in paths]
    lengths = np.array([len(path) for path in encoded], np.int64)
    data = np.frombuffer(b"".join(encoded), np.uint8)
    rules = LocationRules({**DEFAULT_RULES.equal_schemes, **equal_schemes})
    found = hash_paths(data, np.cumsum(lengths) - lengths, lengths, rules)
    assert found.tolist() == [hash_location(normalise(path, rules)) for path in paths]


def test_the_hash_is_the_one_that_spark_sql_computes(spark: SparkSession) -> None:
    locations = [f"s3://b/{'y' * number}" for number in range(80)]
    frame = spark.createDataFrame([(location,) for location in locations], "location string")
    for row in frame.selectExpr("location", "xxhash64(location) AS hash").collect():
        assert row["hash"] % 2**64 == hash_location(row["location"])


@given(numbers=st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1]), max_size=50))
def test_each_number_is_there_once_in_order(numbers: list[int]) -> None:
    import numpy as np

    assert distinct(np.array(numbers, np.uint64)).tolist() == sorted(set(numbers))
