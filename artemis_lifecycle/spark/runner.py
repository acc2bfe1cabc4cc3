"""Run one function over Arrow rows: in this process if the work is small, on Spark's executors if it is large. There is
one threshold, and rows of two sides meet by hash bucket.

A step is a picklable function from record batches to record batches, or from tables to a table for rows that must meet.
Its result must not depend on how the input is split into batches or buckets; the order of rows is not defined. A stage
whose result outgrows this process runs again on executors.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.spark.executors import SameCode, local_cores
from artemis_lifecycle.spark.isolated import spread
from artemis_lifecycle.spark.java_errors import worker_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

Spark: TypeAlias = "SparkSession | Callable[[], SparkSession]"
"""A session, or a function that starts one when work is large or a DataFrame is requested."""


@dataclass(frozen=True)
class Starter:
    """A function that starts a session of `master`."""

    master: str | None
    start: Callable[[], SparkSession]

    def __call__(self) -> SparkSession:
        return self.start()


Input = TypeVar("Input")
Output = TypeVar("Output")

BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Cost:
    """The expected input of a stage. `files` counts files that it opens, one for each input row."""

    files: int = 0
    rows: int = 0
    size_in_bytes: int = 0

    def parts(self, most: Cost) -> int:
        """Return the number of parts, at least one, of at most `most` each."""
        return max(
            1, -(-self.files // most.files), -(-self.rows // most.rows), -(-self.size_in_bytes // most.size_in_bytes)
        )


IN_PROCESS = Cost(files=512, rows=500_000, size_in_bytes=256 << 20)
"""A stage beyond any of these runs on executors. Below, starting Python workers costs more than the work."""

force_executors = False
"""For tests: run every stage on executors, however small."""

_PER_TASK = Cost(files=64, rows=200_000, size_in_bytes=256 << 20)
_TASKS_PER_CORE = 4
_THREADS = 8
_PIECES_PER_THREAD = 4
_BUCKET = "_bucket"
_PATTERN = re.compile(r"[\[\]{}*?\\]")


@dataclass(frozen=True)
class Rows:
    """Rows of `schema`: an Arrow table in this process, or a lazy DataFrame on executors."""

    schema: pa.Schema
    data: pa.Table | DataFrame
    _runner: Runner

    def table(self) -> pa.Table:
        """Return all rows in the memory of this process. Raises what the functions raise."""
        if isinstance(self.data, pa.Table):
            return self.data
        with worker_errors():
            return self.data.toArrow().cast(self.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with one partition at a time in this process. Raises what the functions raise."""
        if isinstance(self.data, pa.Table):
            yield from self.data.to_batches()
            return
        with worker_errors():
            for row in self.data.mapInArrow(_packed, "batch binary").toLocalIterator(prefetchPartitions=True):
                with pa.ipc.open_stream(row["batch"]) as stream:
                    yield from _cast(stream, self.schema)

    def frame(self) -> DataFrame:
        """Return the rows as a DataFrame."""
        if not isinstance(self.data, pa.Table):
            return self.data
        if not self.data.num_rows:
            return self._runner.session.createDataFrame([], _spark_schema(self.schema))
        # One chunk: PySpark 4.1 drops the rows behind an empty batch of an Arrow table.
        return self._runner.session.createDataFrame(self.data.combine_chunks(), _spark_schema(self.schema))

    def map(self, function: BatchFunction, schema: pa.Schema, cost: Cost | None = None) -> Rows:
        """Apply `function`, as `Runner.map` does."""
        return self._runner.map(self, function, schema, cost)

    def select(self, *columns: str) -> Rows:
        """Return the rows with these columns only."""
        schema = pa.schema([self.schema.field(column) for column in columns])
        return replace(self, schema=schema, data=self.data.select(list(columns)))

    def between(self, column: str, first: int | str, last: int | str) -> Rows:
        """Return the rows whose `column` is between `first` and `last`, both included."""
        if isinstance(self.data, pa.Table):
            field = pc.field(column)
            return replace(self, data=self.data.filter((field >= first) & (field <= last)))
        return replace(self, data=self.data.filter(self.data[column].between(first, last)))

    def ordered(self, *columns: str) -> Rows:
        """Return the rows sorted by `columns`; `batches` and `table` keep the order."""
        if isinstance(self.data, pa.Table):
            return replace(self, data=self.data.sort_by([(column, "ascending") for column in columns]))
        return replace(self, data=self.data.orderBy(*columns))

    def sums(self, *columns: str) -> tuple[int, ...]:
        """Return the number of rows, and the sum of each of `columns`. Raises what the functions raise."""
        if isinstance(self.data, pa.Table):
            return self.data.num_rows, *(pc.sum(self.data.column(column)).as_py() or 0 for column in columns)
        from pyspark.sql import functions as sf

        with worker_errors():
            row = self.data.agg(sf.count("*"), *(sf.sum(column) for column in columns)).collect()[0]
        return tuple(value or 0 for value in row)


class Runner:
    """Runs stages on one Spark session, which the first large stage may start. Without a session, every stage runs in
    this process."""

    def __init__(self, session: Spark | None) -> None:
        self._session = session

    @property
    def session(self) -> SparkSession:
        assert self._session is not None
        if callable(self._session):
            self._session = self._session()
        return self._session

    @property
    def cores(self) -> int:
        """The number of concurrent tasks."""
        return self._local_cores or int(self.session.sparkContext.defaultParallelism)

    @property
    def _local_cores(self) -> int | None:
        """`local_cores` of the session, which this does not start if its starter knows."""
        known = self._session if isinstance(self._session, Starter) else self.session.sparkContext
        return local_cores(known.master)

    def _checked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as executors take it: a local session's have this process's code."""
        return function if self._local_cores is not None else SameCode(function)

    def rows(self, data: pa.Table | DataFrame, schema: pa.Schema | None = None) -> Rows:
        """Return an Arrow table, or a DataFrame of `schema`, as the input of a stage."""
        if isinstance(data, pa.Table):
            return Rows(data.schema, data, self)
        assert schema is not None
        return Rows(schema, data, self)

    def parquet(self, files: Sequence[str], schema: pa.Schema) -> DataFrame | None:
        """Return the rows of Parquet files on this machine, if its session reads these itself: a local one does, but
        not names that Spark takes for patterns."""
        if force_executors or not files or self._local_cores is None or _PATTERN.search("".join(files)):
            return None
        reader = self.session.read.schema(_spark_schema(schema)).option("datetimeRebaseMode", "CORRECTED")
        return reader.parquet(*(f"file://{file}" for file in files))

    def map(
        self,
        rows: Rows | pa.Table,
        function: BatchFunction,
        schema: pa.Schema,
        cost: Cost | None = None,
        threads: int = _THREADS,
    ) -> Rows:
        """Apply `function` to `rows`; the result has `schema`.

        `cost` is what the function reads. In this process the work runs immediately, in up to `threads` threads.
        Without a `cost`, the number of rows decides for rows in this process, and rows on executors stay there with
        their partitions.
        """
        source = self.rows(rows) if isinstance(rows, pa.Table) else rows
        data, expected = source.data, cost
        if isinstance(data, pa.Table):
            if not data.num_rows:
                return self.rows(schema.empty_table())
            expected = expected or Cost(rows=data.num_rows)
        if self._session is None or (expected is not None and fits_in_process(expected)):
            most = None if self._session is None else IN_PROCESS.rows
            try:
                return self.rows(_mapped(source.table(), function, schema, threads if cost else 1, most))
            except _Outgrown:
                expected = IN_PROCESS
        frame = source.frame() if expected is None else self._spread(source.frame(), expected.parts(_PER_TASK))
        done = frame.mapInArrow(partial(_typed, self._checked(function), source.schema, schema), _spark_schema(schema))
        return Rows(schema, done, self)

    def meet(
        self,
        sides: Sequence[Rows | pa.Table],
        on: str,
        function: Callable[..., pa.Table],
        schema: pa.Schema,
        cost: Cost | None = None,
    ) -> Rows:
        """Pass the rows of one or two `sides` to `function`, one table for each side; the result has `schema`.

        Rows with the same value of the column `on` are passed together, with other values in the same bucket. In this
        process all rows are one bucket. `cost` is the sum of both sides; by default they are counted, which computes
        them.
        """
        sources = [self.rows(side) if isinstance(side, pa.Table) else side for side in sides]
        expected = cost or Cost(rows=sum(source.sums()[0] for source in sources))
        if self._session is None or fits_in_process(expected) or expected == Cost():
            tables = [source.table() for source in sources]
            if not any(table.num_rows for table in tables):
                return self.rows(schema.empty_table())
            return self.rows(function(*tables).select(schema.names).cast(schema))
        buckets = expected.parts(_PER_TASK)
        grouped = [self._bucketed(source.frame(), on, buckets).groupBy(_BUCKET) for source in sources]
        meeting = _meeting(self._checked(function), [source.schema for source in sources], schema)
        if len(grouped) == 1:
            return Rows(schema, grouped[0].applyInArrow(meeting, _spark_schema(schema)), self)
        left, right = grouped
        return Rows(schema, left.cogroup(right).applyInArrow(meeting, _spark_schema(schema)), self)

    def match(
        self,
        left: Rows | pa.Table,
        right: Rows | pa.Table,
        on: str,
        function: Callable[..., pa.Table],
        schema: pa.Schema,
    ) -> Rows:
        """Like `meet`, but only rows of `right` with a value of `left` count; `right` may be much larger."""
        left, right = (self.rows(side) if isinstance(side, pa.Table) else side for side in (left, right))
        if isinstance(left.data, pa.Table) and not isinstance(right.data, pa.Table):
            if not left.data.num_rows:
                return self.rows(schema.empty_table())
            if fits_in_process(Cost(rows=left.data.num_rows)):
                # Broadcast the values of the small side.
                wanted = self.map(right, partial(_among, on, left.data.column(on).combine_chunks()), right.schema)
                right = self.rows(wanted.table())
        return self.meet([left, right], on, function, schema)

    def concat(self, *parts: Rows | pa.Table) -> Rows:
        """Return the rows of all `parts`, which have one schema."""
        sources = [self.rows(part) if isinstance(part, pa.Table) else part for part in parts]
        schema = sources[0].schema
        tables = [source.data for source in sources if isinstance(source.data, pa.Table)]
        if len(tables) == len(sources):
            return Rows(schema, pa.concat_tables(tables), self)
        first, *others = (source.frame() for source in sources)
        for other in others:
            first = first.unionByName(other)
        return Rows(schema, first, self)

    def tasks(
        self, function: Callable[[Input], Output], inputs: Sequence[Input], at_once: int | None = None
    ) -> list[Output]:
        """Return the result of `function` for each of `inputs`, from one task each or `at_once` tasks: in processes
        beside a local session, else on executors. For work for which `fits_in_process` is False."""
        if not force_executors and (cores := self._local_cores) is not None:
            return spread(function, inputs, min(at_once or cores, len(inputs)))
        with worker_errors():
            rows = self.session.sparkContext.parallelize(inputs, min(at_once or len(inputs), len(inputs)))
            return rows.map(self._checked(function)).collect()

    @contextmanager
    def keeping(self) -> Iterator[Callable[[Rows], Rows]]:
        """Yield a function that caches rows on the executors until the block ends, for rows that are read more than
        once."""
        kept: list[DataFrame] = []

        def keep(rows: Rows) -> Rows:
            if not isinstance(rows.data, pa.Table):
                kept.append(rows.data.persist())
            return rows

        try:
            yield keep
        finally:
            for frame in kept:
                frame.unpersist()

    def _spread(self, frame: DataFrame, tasks: int) -> DataFrame:
        if tasks <= self.cores:
            return frame.coalesce(tasks)
        return frame.repartition(min(tasks, _TASKS_PER_CORE * self.cores))

    def _bucketed(self, frame: DataFrame, on: str, buckets: int) -> DataFrame:
        partitions = min(buckets, _TASKS_PER_CORE * self.cores)
        return frame.withColumn(_BUCKET, _bucket(on, buckets)).repartition(partitions, _BUCKET)


def record_batch(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of these rows, each with its values in the order of `schema`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema
    )


def first_of_each(rows: pa.Table, column: str) -> pa.Table:
    """Return the first row of each value of `column`."""
    codes = rows.column(column).combine_chunks().dictionary_encode().indices.to_numpy()
    return rows.take(pa.array(np.sort(np.unique(codes, return_index=True)[1])))


def fits_in_process(cost: Cost) -> bool:
    """Return True if a stage of this `cost` runs in this process."""
    return not force_executors and cost.parts(IN_PROCESS) == 1


class _Outgrown(Exception):  # noqa: N818  (control flow inside `Runner.map`)
    """The result has more rows than this process should hold."""


def _mapped(
    rows: pa.Table, function: BatchFunction, schema: pa.Schema, threads: int, most_rows: int | None
) -> pa.Table:
    typed, lock, made = partial(_typed, function, rows.schema, schema), Lock(), 0
    most = sys.maxsize if most_rows is None else max(most_rows, rows.num_rows)
    size = -(-rows.num_rows // (1 if threads == 1 else threads * _PIECES_PER_THREAD))
    pieces = [rows.slice(start, size).to_batches() for start in range(0, rows.num_rows, size)]

    def run(piece: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        nonlocal made
        done = []
        for batch in typed(piece):
            with lock:
                made += batch.num_rows
            if made > most:
                raise _Outgrown
            done.append(batch)
        return done

    if len(pieces) == 1:
        return pa.Table.from_batches(run(pieces[0]), schema)
    with ThreadPoolExecutor(min(threads, len(pieces))) as pool:
        return pa.Table.from_batches(chain.from_iterable(pool.map(run, pieces)), schema)


def _among(column: str, values: pa.Array, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with one of these values in `column`."""
    # Arrow would rebuild its hash table for each batch.
    wanted = set(values.to_pylist())
    for batch in batches:
        yield batch.filter(pa.array([value in wanted for value in batch.column(column).to_pylist()], pa.bool_()))


def _typed(
    function: BatchFunction, of: pa.Schema, to: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Apply `function` to batches in Spark's types (a session's time zone); return batches in the types of `to`."""
    return _cast(function(_cast(batches, of)), to)


def _cast(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return (batch if batch.schema == schema else batch.cast(schema) for batch in batches)


def _meeting(
    function: Callable[..., pa.Table], schemas: Sequence[pa.Schema], schema: pa.Schema
) -> Callable[..., pa.Table]:
    def side(table: pa.Table, of: pa.Schema) -> pa.Table:
        # Spark passes a side without rows without columns.
        return table.select(of.names).cast(of) if table.num_rows else of.empty_table()

    def run(*tables: pa.Table) -> pa.Table:
        met = function(*(side(table, of) for table, of in zip(tables, schemas, strict=True)))
        return met.select(schema.names).cast(schema)

    # PySpark 4.1 counts the parameters and rejects type hints that it cannot resolve; lambdas have none.
    return (lambda rows: run(rows)) if len(schemas) == 1 else (lambda left, right: run(left, right))


def _bucket(on: str, buckets: int) -> Column:
    from pyspark.sql import functions as sf

    return sf.pmod(sf.xxhash64(on), sf.lit(buckets))


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["batch"])


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
