"""Who looks on: reads every snapshot soon after it was committed, past all faults, and keeps what it read.

    python -m artemis_lifecycle_tests.soak.observer HOME

This record is what the end is held against. A snapshot that the table has and that cannot be read is noted as `broken`.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, StaticTable
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from artemis_lifecycle_tests.soak import place, rows
from artemis_lifecycle_tests.soak.journal import Journal

_POINTERS = text(
    "SELECT table_name, metadata_location FROM iceberg_tables WHERE catalog_name = :c AND table_namespace = :n"
)


class Observer:
    def __init__(self, where: place.Place) -> None:
        self.place = where
        self.journal = Journal(where.journal("observer"))
        live = where.config.catalogs.live
        self.catalog = live.name
        self.properties = {**live.properties, "s3.endpoint": where.direct}
        self.engine: Engine = create_engine(str(live.uri), pool_pre_ping=True)
        self.seen: set[int] = set()
        self.cache: dict[tuple[Any, ...], rows.Total] = {}
        self.looked: dict[str, str] = {}

    def run(self) -> None:
        last = False
        while not last:
            # Once more after all have ended: nothing is committed any more.
            last = (self.place.stop_path.with_name("ended")).exists()
            for name, location in self._pointers().items():
                if self.looked.get(name) != location:
                    self._look(name, location)
                    self.looked[name] = location
            time.sleep(0.3)
        self.journal.write("end", snapshots=len(self.seen))

    def _pointers(self) -> dict[str, str]:
        try:
            with self.engine.connect() as connection:
                found = connection.execute(_POINTERS, {"c": self.catalog, "n": place.NAMESPACE}).all()
        except DBAPIError:
            return {}
        return {f"{place.NAMESPACE}.{name}": location for name, location in found}

    def _look(self, name: str, location: str) -> None:
        try:
            table = StaticTable.from_metadata(location, self.properties)
        except Exception as error:
            if self._pointers().get(name) == location:
                self.journal.write("broken", table=name, path=location, said=f"{type(error).__name__}: {error}"[:500])
            return
        for snapshot in table.snapshots():
            if snapshot.snapshot_id in self.seen:
                continue
            try:
                total = self._total(table, snapshot.snapshot_id)
            except Exception as error:
                self._failed(name, snapshot.snapshot_id, error)
                continue
            self.seen.add(snapshot.snapshot_id)
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            self.journal.write(
                "snapshot",
                table=name,
                snapshot=snapshot.snapshot_id,
                parent=snapshot.parent_snapshot_id,
                operation=None if snapshot.summary is None else snapshot.summary.operation.value,
                total=total,
                by={
                    key: value for key, value in summary.items() if key.startswith(("soak.", "writer.", "engine-name"))
                },
            )

    def _failed(self, name: str, snapshot_id: int, error: Exception) -> None:
        """It may have expired meanwhile; if it has not, a file that is alive is gone."""
        location = self._pointers().get(name)
        if location is None:
            return
        still = StaticTable.from_metadata(location, self.properties).snapshot_by_id(snapshot_id) is not None
        self.journal.write(
            "broken" if still else "missed",
            table=name,
            snapshot=snapshot_id,
            said=f"{type(error).__name__}: {error}"[:500],
        )
        self.seen.add(snapshot_id)

    def _total(self, table: StaticTable, snapshot_id: int) -> rows.Total:
        scan = table.scan(snapshot_id=snapshot_id)
        found = rows.NOTHING
        for task in scan.plan_files():
            # Files do not change, and a delete file only ever takes away the same rows of a data file.
            key = (task.file.file_path, *sorted(each.file_path for each in task.delete_files))
            if key not in self.cache:
                self.cache[key] = self._read(table, task)
            found = rows.add(found, self.cache[key])
        return found

    def _read(self, table: StaticTable, task: FileScanTask) -> rows.Total:
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        return rows.total(scan.to_table([task]))


def main() -> int:
    warnings.simplefilter("ignore")
    Observer(place.load(sys.argv[1])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
