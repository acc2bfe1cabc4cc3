"""The rows of a snapshot, put together from its files without Iceberg: the oracle's quick eye.

Each file is read once, by pyarrow, as long as the store says the same of it. Deletion vectors, and whatever else is not
here, Iceberg's core reads; it also reads everything once more at the end of each seed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from artemis_lifecycle_tests.foreign.core import Entry, Row, as_rows
from artemis_lifecycle_tests.guardian import on_disk

_FIELD = b"PARQUET:field_id"
_PATH, _POSITION = 2147483546, 2147483545
Columns = Mapping[int, list[object]]
"""Values by field id."""


class BeyondError(Exception):
    """Iceberg's core is asked."""


class Plain:
    def __init__(self) -> None:
        self._read: dict[tuple[str, int, int, int], tuple[Columns, int]] = {}

    def rows(self, schema: Mapping[int, str] | None, entries: Sequence[Entry]) -> tuple[Row, ...]:
        """Raises BeyondError for what only the core reads."""
        if schema is None:
            raise BeyondError("no schema")
        gone: dict[str, list[tuple[int, object]]] = defaultdict(list)
        equal: list[tuple[int, set[object]]] = []
        for each in entries:
            if each.content == "DATA":
                continue
            columns, _ = self._columns(each.path, each.size)
            if each.content == "EQUALITY_DELETES":
                equal.append((each.sequence, set(columns[1])))
            else:
                for path, position in zip(columns[_PATH], columns[_POSITION], strict=True):
                    gone[str(path)].append((each.sequence, position))
        found = []
        for each in entries:
            if each.content != "DATA":
                continue
            columns, records = self._columns(each.path, each.size)
            positions = {position for sequence, position in gone.get(each.path, ()) if sequence >= each.sequence}
            ids = [values for sequence, values in equal if sequence > each.sequence]
            for number in range(records):
                row = {name: columns[field_id][number] for field_id, name in schema.items() if field_id in columns}
                if number not in positions and not any(row.get(schema[1]) in values for values in ids):
                    found.append(row)
        return as_rows(found)

    def _columns(self, path: str, size: int) -> tuple[Columns, int]:
        if not path.endswith(".parquet"):
            raise BeyondError(path)
        place = on_disk(path)
        try:
            stat = os.stat(place)
            if stat.st_size != size:
                # Others wrote another file there: Iceberg reads none whose size is not the recorded one.
                raise BeyondError(path)
            at = (path, stat.st_size, stat.st_mtime_ns, stat.st_ino)
            if at not in self._read:
                table = pq.ParquetFile(place).read()
                by_id = {int((field.metadata or {}).get(_FIELD, -1)): field.name for field in table.schema}
                self._read[at] = ({key: table.column(name).to_pylist() for key, name in by_id.items()}, table.num_rows)
        except (OSError, pa.ArrowException) as error:
            raise BeyondError(path) from error
        return self._read[at]
