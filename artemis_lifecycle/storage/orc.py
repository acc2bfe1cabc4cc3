"""ORC files within the limits of `bounded`. Arrow's ORC library trusts what a file claims, and crashes on some damaged
ones, so it runs in a separate process with a memory limit."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artemis_lifecycle.spark.isolated import isolated
from artemis_lifecycle.storage.bounded import Allowance, ReadLimits, within_memory
from artemis_lifecycle.storage.columnar import ROWS, VALUE, naming, require_text_names

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class OrcFile:
    """The rows of an ORC file and its codec, by Arrow's name. The attributes of its types (Iceberg's column ids) are
    metadata of the fields."""

    table: pa.Table
    compression: str


def read_orc(data: bytes, path: str, limits: ReadLimits) -> OrcFile:
    """Read an ORC file within `limits`.

    Raises TooLarge, and StorageError for a file that is broken, uses LZO, or needs more memory than is available.
    """
    limits.require(len(data), path)
    return isolated(_read, path, data, path, limits, memory=limits.max_bytes)


def _read(data: bytes, path: str, limits: ReadLimits) -> OrcFile:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow import orc

    # Decoded data has no ratio limit: a position delete file repeats its data file's path in every row.
    decoded = Allowance(limits, path, limits.max_bytes)
    batches = []
    with naming("ORC", path), within_memory(path):
        file = orc.ORCFile(io.BytesIO(data))
        # Field by field: the table has the types, but not the attributes.
        schema = pa.schema(list(file.schema))
        require_text_names(schema)
        # A run of nulls takes no bytes, and time for each row.
        decoded.take(VALUE * max(1, len(schema)) * file.nrows)
        scanner = ds.OrcFileFormat().make_fragment(pa.BufferReader(data)).scanner(batch_size=ROWS, use_threads=False)
        for batch in scanner.to_batches():
            decoded.take(batch.nbytes)
            batches.append(batch)
        table = pa.Table.from_batches(batches, schema.remove_metadata())
        if table.num_rows != file.nrows:
            raise ValueError(f"it has {table.num_rows} rows, but its footer says {file.nrows}")
        return OrcFile(pa.Table.from_arrays(table.columns, schema=schema), file.compression.lower())
