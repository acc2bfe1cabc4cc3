"""Result tables: Iceberg tables of namespace `lifecycle` in the live catalog, for people. No decision uses them."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.catalogs.identifier import NAMESPACE as NAMESPACE
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.spark.sql import name as sql_name
from artemis_lifecycle.storage.columnar import parquet_bytes
from artemis_lifecycle.storage.frames import pieces
from artemis_lifecycle.storage.instants import microseconds
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.table import DataScan
    from pyspark.sql import SparkSession


RESULT_TABLES = frozenset(
    f"{NAMESPACE}.{name}" for name in ("plan_files", "deletions", "lineage_ledger", "lineage_edges")
)
"""The names of the project's own tables there, which read no files of other tables. Somebody else's may have one."""

_RESULT_TABLE = "artemis.result-table"
"""A property that the project gives its own tables when it makes them: their names."""


def is_result_table(table: str, properties: Mapping[str, str]) -> bool:
    """Return True for a table that the project made for its results."""
    return table in RESULT_TABLES and properties.get(_RESULT_TABLE) == table


def ensure_table(spark: SparkSession, table: str, columns: str, partition: str, **properties: str) -> str:
    """Create `table` (catalog.namespace.name) and its namespace at first use. Return its name in Spark SQL."""
    full = parse(table)
    if spark.catalog.tableExists(full.sql()):
        return full.sql()
    # The jobs of all tables append here, several at the same time.
    own = {_RESULT_TABLE: f"{full.namespace[-1]}.{full.name}", "commit.retry.num-retries": "20", **properties}
    settings = [f"'{key}' = '{value}'" for key, value in own.items()]
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {sql_name(*full.namespace)}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {full.sql()} ({columns}) USING iceberg PARTITIONED BY ({partition}) "
        f"TBLPROPERTIES ({', '.join(settings)})"
    )
    return full.sql()


@dataclass(frozen=True)
class ResultTable:
    """A table partitioned by the month of its column `instant`. `key` is the column with the job of a row."""

    name: str
    columns: str
    key: str
    instant: str


@dataclass(frozen=True)
class ResultRows:
    """All rows of a job, which have one instant. `earlier_since`: the table may have other rows of the job, none with
    an earlier instant; they are replaced. None: it has none."""

    job: str
    instant: datetime
    tables: Iterable[pa.Table]
    earlier_since: datetime | None


def publish(spark: SparkSession, stores: Stores, catalog: str, table: ResultTable, jobs: Sequence[ResultRows]) -> None:
    """Append the rows of `jobs` to `<catalog>.lifecycle.<table.name>` in one commit. Creates the table at first use.

    This process writes the Parquet files and Iceberg's core appends them. It uses no Spark job, whose planning and
    tasks take seconds for a few rows. Earlier rows are deleted first, in a separate commit. If the process dies between
    the two commits, the rows are missing, and a caller that runs again writes them again. Raises ConfigError if a
    person changed the table's columns, or removed its partitioning by month.
    """
    full = f"{catalog}.{NAMESPACE}.{table.name}"
    ensure_table(
        spark,
        full,
        table.columns,
        f"months({table.instant})",
        # A deletion of earlier rows must not fail because of other appends.
        **{"write.delete.isolation-level": "snapshot"},
    )
    jvm: Any = spark._jvm
    # Iceberg uses the thread's active session, which a thread created by Python may lack.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    found = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, parse(full).sql())
    found.refresh()
    spec = _by_month(found, table.instant)
    if spec is None:
        raise _changed(full, f"is not partitioned by months({table.instant})")
    for rows in jobs:
        if rows.earlier_since is not None and _may_have(jvm, found, table, rows.job, rows.earlier_since):
            sql = f"DELETE FROM {parse(full).sql()} WHERE {table.key} = :job"
            spark.sql(sql, args={"job": rows.job})
            found.refresh()
    append = found.newAppend()
    for (year, month), those in groupby(sorted(jobs, key=_month), key=_month):
        partition = jvm.org.apache.iceberg.PartitionData(spec.partitionType())
        # As Iceberg counts months: since January 1970.
        partition.set(0, (year - 1970) * 12 + month - 1)
        for part in pieces(each for rows in those for each in rows.tables):
            append.appendFile(_written(jvm, stores, found, spec, partition, _with_field_ids(part, found, full)))
    append.commit()


def _month(rows: ResultRows) -> tuple[int, int]:
    return rows.instant.year, rows.instant.month


def _written(jvm: Any, stores: Stores, table: Any, spec: Any, partition: Any, rows: pa.Table) -> Any:
    """Return a new data file with these rows."""
    place = table.locationProvider().newDataLocation(spec, partition, f"{uuid.uuid4().hex}.parquet")
    data = parquet_bytes(rows)
    with around("results.part"):
        stores.write(place, data)
    config = jvm.org.apache.iceberg.MetricsConfig.forTable(table)
    metrics = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(table.io().newInputFile(place), config)
    file = jvm.org.apache.iceberg.DataFiles.builder(spec).withPath(place).withFormat("PARQUET")
    file = file.withFileSizeInBytes(len(data)).withPartition(partition).withMetrics(metrics)
    return file.build()


def _by_month(table: Any, column: str) -> Any | None:
    """Return the table's newest partition spec with only that column's month, because a person may have added another.
    None if there is none."""
    source = table.schema().findField(column)
    for spec in sorted(table.specs().values(), key=lambda spec: -spec.specId()):
        fields = spec.fields()
        if source is None or fields.size() != 1 or fields.get(0).sourceId() != source.fieldId():
            continue
        if str(fields.get(0).transform()) == "month":
            return spec
    return None


def _may_have(jvm: Any, table: Any, wanted: ResultTable, job: str, since: datetime) -> bool:
    """Return True if any file's bounds allow a row of the job with an instant not before `since`."""
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    # The bounds of a compacted file allow every job; its times exclude it.
    scan = table.newScan().filter(expressions.equal(wanted.key, job))
    tasks = scan.filter(expressions.greaterThanOrEqual(wanted.instant, microseconds(since))).planFiles()
    try:
        return bool(tasks.iterator().hasNext())
    finally:
        tasks.close()


_TYPES = {"string": "string", "long": "int64", "timestamptz": "timestamp[us, tz=UTC]"}


def _with_field_ids(rows: pa.Table, table: Any, name: str) -> pa.Table:
    """Return `rows` with the field ids by which Iceberg identifies columns. Raises ConfigError if the columns
    differ."""
    fields, schema = [], table.schema()
    for field in rows.schema:
        column = schema.findField(field.name)
        if column is None or _TYPES.get(str(column.type())) != str(field.type):
            raise _changed(name, f"has no column {field.name} of type {field.type}")
        fields.append(field.with_metadata({b"PARQUET:field_id": str(column.fieldId()).encode()}))
    more = [column.name() for column in schema.columns() if column.isRequired()]
    if unknown := set(more) - set(rows.column_names):
        raise _changed(name, f"requires columns {', '.join(sorted(unknown))}")
    return rows.cast(pa.schema(fields))


def _changed(table: str, what: str) -> ConfigError:
    return ConfigError(
        f"The result table {what}: it was changed manually",
        table=table,
        untouched="the table; pending rows stay recorded",
        hint="rename the table; the next publication creates a new one",
    )


# --- result rows ------------------------------------------------------------------------------------------------------
# Reads the project's own result tables in this process: for a few rows, Spark would take longer to start than to read
# them.


class Where(NamedTuple):
    """A condition on a column; `in` takes a tuple of values. A null only matches `null`, which takes no value."""

    column: str
    compares: Literal["=", ">=", "<", "in", "null", "not null"]
    value: str | int | datetime | tuple[str | int, ...] = ()

    def matches(self, rows: pa.Table) -> pa.Table:
        """Return the rows of an Arrow table that match."""
        column = rows[self.column]
        if self.compares in ("null", "not null"):
            mask = column.is_null() if self.compares == "null" else column.is_valid()
        elif self.compares == "in":
            mask = pc.is_in(column, value_set=pa.array(self.value, column.type))
        else:
            compare = {"=": pc.equal, ">=": pc.greater_equal, "<": pc.less}[self.compares]
            mask = compare(column, pa.scalar(self.value, column.type))
        return rows.filter(mask)


@dataclass(frozen=True)
class ResultReader:
    """The result tables of a live catalog."""

    catalog: CatalogReader
    stores: Stores

    def rows(self, table: str, columns: Sequence[str], where: Sequence[Where] = ()) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the rows that match all conditions, in bounded memory; nothing if the result table
        does not exist, because a reader must not create it. Files and row groups that cannot match are not read. Raises
        StorageError."""
        scan = self._scan(table, columns, where)
        for batch in scan.to_arrow_batch_reader() if scan is not None else ():
            yield batch.select(list(columns))

    def all_rows(self, table: str, columns: Sequence[str], where: Sequence[Where] = ()) -> pa.Table | None:
        """`rows` at once: faster, with all of them in memory."""
        scan = self._scan(table, columns, where)
        return None if scan is None else scan.to_arrow().select(list(columns))

    def _scan(self, table: str, columns: Sequence[str], where: Sequence[Where]) -> DataScan | None:
        name = f"{NAMESPACE}.{table}"
        if not self.catalog.exists(name):
            return None
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.serializers import FromInputFile
        from pyiceberg.table import StaticTable

        files, pointer = _through(self.stores), self.catalog.entry(name).metadata_location
        metadata = FromInputFile.table_metadata(files.new_input(pointer))
        found = StaticTable((NAMESPACE, table), metadata, pointer, files, NoopCatalog(NAMESPACE))
        return found.scan(row_filter=_expression(where), selected_fields=tuple(columns))


def _expression(where: Sequence[Where]) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, And, EqualTo, GreaterThanOrEqual, In, IsNull, LessThan, NotNull

    kinds: dict[str, Any] = {
        "=": EqualTo,
        ">=": GreaterThanOrEqual,
        "<": LessThan,
        "in": In,
        "null": IsNull,
        "not null": NotNull,
    }
    expression: BooleanExpression = AlwaysTrue()
    for column, compares, value in where:
        literal = value.isoformat() if isinstance(value, datetime) else value
        operands = () if compares in ("null", "not null") else (literal,)
        expression = And(expression, kinds[compares](column, *operands))
    return expression


def _through(stores: Stores) -> FileIO:
    """Return `stores` as pyiceberg's interface for reading."""
    from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile

    class StoredInput(InputFile):
        def __len__(self) -> int:
            found = stores.head(self.location)
            return 0 if found is None else found.size_in_bytes

        def exists(self) -> bool:
            return stores.head(self.location) is not None

        def open(self, seekable: bool = True) -> InputStream:
            return io.BytesIO(stores.read(self.location))

    class ReadOnly(FileIO):
        def new_input(self, location: str) -> InputFile:
            return StoredInput(location)

        def new_output(self, location: str) -> OutputFile:
            raise NotImplementedError

        def delete(self, location: Any) -> None:
            raise NotImplementedError

    return ReadOnly()
