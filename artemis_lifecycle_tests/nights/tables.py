"""Tables that are a row of the catalog and a metadata file: enough for every rule about snapshots."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, delete, insert, select, update

from artemis_lifecycle.catalogs.sql import ensure_tables, iceberg_namespace_properties, iceberg_tables

_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
}


class Tables:
    """The tables of one catalog; commits by a writer, and the commit of an expiration."""

    def __init__(self, engine: Engine, catalog: str, warehouse: Path) -> None:
        self._engine, self._catalog, self._warehouse = engine, catalog, warehouse
        self._ids = itertools.count(1_000)
        ensure_tables(engine)

    def create(self, table: str, at: datetime) -> None:
        """A new, empty table."""
        namespace, name = table.split(".")
        folder = self._warehouse / namespace / f"{name}-{uuid.uuid4().hex[:8]}"
        (folder / "metadata").mkdir(parents=True)
        with self._engine.begin() as connection:
            known = select(iceberg_namespace_properties).where(iceberg_namespace_properties.c.namespace == namespace)
            if connection.execute(known).first() is None:
                row = {"catalog_name": self._catalog, "namespace": namespace, "property_key": "exists"}
                connection.execute(insert(iceberg_namespace_properties).values(row | {"property_value": "true"}))
            row = {"catalog_name": self._catalog, "table_namespace": namespace, "table_name": name}
            connection.execute(insert(iceberg_tables).values(row | {"iceberg_type": "TABLE"}))
        self._write(
            table,
            {
                "format-version": 2,
                "table-uuid": str(uuid.uuid4()),
                "location": f"file://{folder}",
                "last-sequence-number": 0,
                "last-updated-ms": _ms(at),
                "last-column-id": 1,
                "current-schema-id": 0,
                "schemas": [_SCHEMA],
                "default-spec-id": 0,
                "partition-specs": [{"spec-id": 0, "fields": []}],
                "last-partition-id": 999,
                "default-sort-order-id": 0,
                "sort-orders": [{"order-id": 0, "fields": []}],
                "properties": {},
                "current-snapshot-id": -1,
                "refs": {},
                "snapshots": [],
                "snapshot-log": [],
                "metadata-log": [],
            },
        )

    def drop(self, table: str) -> None:
        """Without purge: its files stay."""
        with self._engine.begin() as connection:
            connection.execute(delete(iceberg_tables).where(*self._row(table)))

    def commit(self, table: str, at: datetime) -> None:
        """An overwrite: the new snapshot shares no file with the one before."""
        found = self.metadata(table)
        snapshot, number = next(self._ids), found["last-sequence-number"] + 1
        found["snapshots"].append(
            {
                "snapshot-id": snapshot,
                "sequence-number": number,
                "timestamp-ms": _ms(at),
                "manifest-list": f"{found['location']}/metadata/snap-{snapshot}.avro",
                "summary": {"operation": "overwrite", "total-data-files": "2", "total-delete-files": "0"},
                "schema-id": 0,
            }
        )
        if found["current-snapshot-id"] != -1:
            found["snapshots"][-1]["parent-snapshot-id"] = found["current-snapshot-id"]
        found["snapshot-log"].append({"snapshot-id": snapshot, "timestamp-ms": _ms(at)})
        found["refs"] = {"main": {"snapshot-id": snapshot, "type": "branch"}}
        found |= {"last-sequence-number": number, "last-updated-ms": _ms(at), "current-snapshot-id": snapshot}
        self._write(table, found)

    def remove(self, table: str, snapshot_ids: Collection[int], at: datetime) -> str:
        """Return the location of the metadata file without these snapshots, which is now the current one."""
        found = self.metadata(table)
        for key in ("snapshots", "snapshot-log"):
            found[key] = [each for each in found[key] if each["snapshot-id"] not in snapshot_ids]
        found["last-updated-ms"] = _ms(at)
        return self._write(table, found)

    def snapshots(self, table: str) -> dict[int, int]:
        """The milliseconds of each snapshot."""
        return {each["snapshot-id"]: each["timestamp-ms"] for each in self.metadata(table)["snapshots"]}

    def metadata(self, table: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(self.location(table).removeprefix("file://")).read_text())
        return found

    def location(self, table: str) -> str:
        pointer = self._pointer(table)
        assert pointer is not None, table
        return pointer

    def _pointer(self, table: str) -> str | None:
        with self._engine.connect() as connection:
            query = select(iceberg_tables.c.metadata_location).where(*self._row(table))
            found = connection.execute(query).scalar_one()
        return None if found is None else str(found)

    def _write(self, table: str, content: dict[str, Any]) -> str:
        previous = self._pointer(table)
        if previous is not None:
            before = json.loads(Path(previous.removeprefix("file://")).read_text())
            content["metadata-log"].append({"metadata-file": previous, "timestamp-ms": before["last-updated-ms"]})
        name = f"{len(content['metadata-log']):05}-{uuid.uuid4()}.metadata.json"
        location = f"{content['location']}/metadata/{name}"
        Path(location.removeprefix("file://")).write_text(json.dumps(content))
        with self._engine.begin() as connection:
            swap = update(iceberg_tables).where(*self._row(table))
            connection.execute(swap.values(metadata_location=location, previous_metadata_location=previous))
        return location

    def _row(self, table: str) -> tuple[Any, ...]:
        namespace, name = table.split(".")
        columns = iceberg_tables.c
        return (
            columns.catalog_name == self._catalog,
            columns.table_namespace == namespace,
            columns.table_name == name,
        )


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def expected(snapshots: dict[int, int], planned_at: datetime, window: timedelta) -> set[int]:
    """What rule `as-of` keeps of a table that only `commit` wrote: AS OF any instant of the window answers as before.
    Written here again, because a judge shares no code with what it judges."""
    edge = _ms(planned_at) - window // timedelta(milliseconds=1)
    before = [each for each, at in snapshots.items() if at <= edge]
    inside = {each for each, at in snapshots.items() if at > edge}
    return inside | ({max(before, key=lambda each: snapshots[each])} if before else set())
