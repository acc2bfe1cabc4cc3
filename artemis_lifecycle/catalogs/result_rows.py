"""Reads the project's own result tables in this process: for a few rows, Spark would take longer to start than to read
them. Does not belong here: writing them (`results`)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.table import DataScan


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
