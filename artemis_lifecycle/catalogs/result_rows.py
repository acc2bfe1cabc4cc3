"""Reads the project's own result tables in this process: for a few rows, Spark would take longer to start than to read
them. Does not belong here: writing them (`results`)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.results import NAMESPACE
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


@dataclass(frozen=True)
class ResultReader:
    """The result tables of a live catalog."""

    catalog: CatalogReader
    stores: Stores

    def rows(self, table: str, columns: Sequence[str], *, table_uuid: str) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the rows about one table, in bounded memory; nothing if the result table does not
        exist, because a reader must not create it. Raises StorageError."""
        name = f"{NAMESPACE}.{table}"
        if not self.catalog.exists(name):
            return
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.expressions import EqualTo
        from pyiceberg.serializers import FromInputFile
        from pyiceberg.table import StaticTable

        files, pointer = _through(self.stores), self.catalog.entry(name).metadata_location
        metadata = FromInputFile.table_metadata(files.new_input(pointer))
        found = StaticTable((NAMESPACE, table), metadata, pointer, files, NoopCatalog(NAMESPACE))
        about = EqualTo("table_uuid", table_uuid)  # type: ignore[call-arg, arg-type]  # typed by pydantic, called by hand
        scan = found.scan(row_filter=about, selected_fields=tuple(columns))
        for batch in scan.to_arrow_batch_reader():
            yield batch.select(list(columns))


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
