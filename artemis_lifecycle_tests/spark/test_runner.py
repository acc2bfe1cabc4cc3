"""A stage gives the same rows in this process and on executors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.spark import runner as module
from artemis_lifecycle.spark.runner import IN_PROCESS, Cost, Rows, Runner

NUMBERS = pa.schema([("number", pa.int64())])
PAIRS = pa.schema([("path", pa.string()), ("size", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def _numbers(count: int) -> pa.Table:
    return pa.table({"number": pa.array(range(count), pa.int64())})


def _found(rows: Rows) -> list[int]:
    return sorted(rows.table().column("number").to_pylist())


def _every_third(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One batch a row, and an empty one for most rows: as manifests without a live entry give."""
    for batch in batches:
        for number in batch.column("number").to_pylist():
            yield pa.RecordBatch.from_pydict({"number": pa.array([number] if number % 3 == 0 else [], pa.int64())})


def _as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _process(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"number": pa.array([os.getpid()] * batch.num_rows, pa.int64())})


def _failing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise StorageError("The store does not answer", path="s3://bucket/a", hint="try again")
    yield from ()


def _no_session() -> SparkSession:
    raise AssertionError("a small stage starts no session")


def test_empty_batches_between_full_ones_lose_no_rows(spark: SparkSession, anywhere: str) -> None:
    rows = Runner(spark).map(_numbers(50), _every_third, NUMBERS, Cost(files=50))
    expected = [number for number in range(50) if number % 3 == 0]
    assert isinstance(rows.data, pa.Table) == (anywhere == "in_process")
    assert _found(rows) == expected
    assert sorted(row["number"] for row in rows.frame().collect()) == expected
    assert sorted(value for batch in rows.batches() for value in batch.column("number").to_pylist()) == expected
    assert _found(rows.between("number", 3, 9)) == [3, 6, 9]


@pytest.mark.parametrize(
    ("cost", "in_process"),
    [
        (IN_PROCESS, True),
        (Cost(files=IN_PROCESS.files + 1), False),
        (Cost(rows=IN_PROCESS.rows + 1), False),
        (Cost(size_in_bytes=IN_PROCESS.size_in_bytes + 1), False),
    ],
)
def test_a_stage_beyond_any_bound_runs_on_executors(spark: SparkSession, cost: Cost, in_process: bool) -> None:
    rows = Runner(spark if not in_process else _no_session).map(_numbers(3), _process, NUMBERS, cost)
    assert all((process == os.getpid()) == in_process for process in _found(rows))


def test_small_work_starts_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(_no_session)
    rows = runner.map(_numbers(1_000), _every_third, NUMBERS, Cost(files=10), threads=3)
    met = runner.meet([rows, _numbers(10)], "number", _only_left, NUMBERS)
    assert _found(met) == [number for number in range(10, 1_000) if number % 3 == 0]
    monkeypatch.setattr(module, "force_executors", True)
    assert _found(runner.map(_numbers(0), _failing, NUMBERS)) == []


def _only_left(left: pa.Table, right: pa.Table) -> pa.Table:
    return left.filter(pc.invert(pc.is_in(left.column("number"), right.column("number").combine_chunks())))


def test_rows_of_one_value_meet(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PER_TASK", Cost(1, 100, 1))
    time = datetime(2026, 5, 4, tzinfo=UTC)
    paths = [f"s3://bucket/ä/{number:04d}" for number in range(1_500)]
    left = pa.Table.from_pydict({"path": paths, "size": range(1_500), "at": [time] * 1_500}, PAIRS)
    right = pa.Table.from_pydict({"path": [*paths[500:], "other"], "size": [1] * 1_001, "at": [None] * 1_001}, PAIRS)

    def totals(left: pa.Table, right: pa.Table) -> pa.Table:
        assert left.schema == right.schema == PAIRS
        sums = pa.concat_tables([left, right]).group_by("path").aggregate([("size", "sum"), ("at", "max")])
        return sums.rename_columns({"size_sum": "size", "at_max": "at"})

    def once(rows: pa.Table) -> pa.Table:
        return rows.group_by("path").aggregate([("size", "max"), ("at", "max")]).rename_columns(PAIRS.names)

    def results(runner: Runner) -> list[list[dict[str, object]]]:
        met = runner.meet([left, right], "path", totals, PAIRS)
        twice = runner.concat(met, left)
        single = runner.meet([twice], "path", once, PAIRS, Cost(rows=3_000))
        return [sorted(rows.table().to_pylist(), key=lambda row: row["path"]) for rows in (met, single)]

    expected = results(Runner(_no_session))
    assert len(expected[0]) == 1_501 and expected[0][-1] == {"path": paths[-1], "size": 1_500, "at": time}
    monkeypatch.setattr(module, "force_executors", True)
    assert results(Runner(spark)) == expected


def test_a_small_side_meets_a_large_one_without_moving_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, anywhere: str
) -> None:
    def common(left: pa.Table, right: pa.Table) -> pa.Table:
        return left.filter(pc.is_in(left.column("number"), right.column("number").combine_chunks()))

    def others(left: pa.Table, right: pa.Table) -> pa.Table:
        return left.filter(pc.invert(pc.is_in(left.column("number"), right.column("number").combine_chunks())))

    runner = Runner(spark)
    monkeypatch.setattr(module, "IN_PROCESS", Cost(files=10, rows=90, size_in_bytes=1))
    large = runner.map(_numbers(300), _every_third, NUMBERS)
    assert not isinstance(large.data, pa.Table)
    few = _numbers(20)
    met = runner.match(few, large, "number", common, NUMBERS)
    assert isinstance(met.data, pa.Table) == (anywhere == "in_process")
    assert _found(met) == [0, 3, 6, 9, 12, 15, 18]
    assert _found(runner.match(few, large, "number", others, NUMBERS)) == [each for each in range(20) if each % 3]
    assert _found(runner.match(_numbers(0), large, "number", others, NUMBERS)) == []


def test_a_result_that_outgrows_this_process_is_made_on_executors(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def many(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("number").to_pylist():
                yield from _numbers(number).to_batches()

    monkeypatch.setattr(module, "IN_PROCESS", Cost(files=10, rows=10, size_in_bytes=1))
    runner = Runner(spark)
    assert isinstance(runner.map(_numbers(5), many, NUMBERS, Cost(files=5)).data, pa.Table)
    outgrown = runner.map(_numbers(6), many, NUMBERS, Cost(files=6))
    assert not isinstance(outgrown.data, pa.Table)
    assert outgrown.sums("number") == (15, 20)
    # What is few again comes back.
    back = runner.map(outgrown, _every_third, NUMBERS, Cost(rows=10))
    assert isinstance(back.data, pa.Table) and _found(back) == [0, 0, 0, 0, 0, 3, 3]


def test_rows_come_in_order(spark: SparkSession, anywhere: str) -> None:
    runner = Runner(spark)
    rows = runner.map(_numbers(100).take(pa.array([*range(50, 100), *range(50)])), _as_they_are, NUMBERS).ordered(
        "number"
    )
    assert [value for batch in rows.batches() for value in batch.column("number").to_pylist()] == list(range(100))
    assert rows.sums("number") == (100, 4950)


@pytest.mark.usefixtures("anywhere")
def test_what_a_function_raises_is_raised(spark: SparkSession) -> None:
    with pytest.raises(StorageError, match="does not answer") as caught:
        Runner(spark).map(_numbers(3), _failing, NUMBERS).table()
    assert (caught.value.path, caught.value.hint) == ("s3://bucket/a", "try again")


def test_kept_rows_are_computed_once_and_released(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "force_executors", True)
    runner = Runner(lambda: spark)
    with runner.keeping() as keep:
        rows = keep(runner.map(_numbers(3), _process, NUMBERS))
        assert not isinstance(rows.data, pa.Table) and rows.data.is_cached
    assert not rows.data.is_cached
