"""A catalog of many tables for `artemis assess`, made by copying one: `python -m bench.assess URI FOLDER`.

pyiceberg writes one table. The others are its metadata with another name, which has as many letters, so that no length
in it changes; their data files are the first one's. Prints the seconds that `artemis assess` and `--quick` take.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine, text

from artemis_lifecycle.config.loading import config_of
from artemis_lifecycle.fleet.assess import assess


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.assess", description=__doc__)
    parser.add_argument("uri", help="a SQLAlchemy address of an empty Postgres database")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--snapshots", type=int, default=100)
    given = parser.parse_args()
    if not given.folder.exists():
        generate(given.uri, given.folder.resolve(), given.tables, given.snapshots)
    live = {"type": "sql", "name": "bench", "uri": given.uri, "warehouse": f"file://{given.folder.resolve()}"}
    config = config_of({"catalogs": {"live": live}, "defaults": {"retention": {"window": "1s"}}}, "bench")
    for quick in (True, False):
        began, worked = time.monotonic(), time.process_time()
        found = assess(config, quick=quick)
        figures = {
            name: found.total(name) for name in ("snapshots", "snapshots_past_window", "files_freeable", "files")
        }
        seconds, cpu = round(time.monotonic() - began, 1), round(time.process_time() - worked, 1)
        print(json.dumps({"quick": quick, "tables": len(found.tables), "seconds": seconds, "cpu": cpu, **figures}))


def generate(uri: str, folder: Path, tables: int, snapshots: int) -> None:
    """Make the tables `fleet.t00000`, …, each with so many snapshots, of which every tenth overwrites all."""
    catalog = SqlCatalog("bench", uri=uri, warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists("fleet")
    rows = pa.table({"id": pa.array(range(10), pa.int64())})
    plain = {"write.avro.compression-codec": "null"}
    table = catalog.create_table("fleet.t00000", rows.schema, properties=plain)
    for number in range(snapshots):
        (table.overwrite if number % 10 == 9 else table.append)(rows)
    first = folder / "fleet" / "t00000" / "metadata"
    newest = Path(table.metadata_location.removeprefix("file://"))
    own = str(table.metadata.table_uuid)
    named = [path for path in first.iterdir() if path.suffix == ".avro"] + [newest]
    content = {path.name: _plain(path) for path in named}
    engine = create_engine(uri)
    for number in range(1, tables):
        name = f"t{number:05}"
        place = first.parent.parent / name / "metadata"
        place.mkdir(parents=True)
        for file, data in content.items():
            copy = data.replace(b"/t00000/metadata", f"/{name}/metadata".encode())
            if file == newest.name:
                copy = copy.replace(b"/t00000", f"/{name}".encode()).replace(own.encode(), str(uuid.uuid4()).encode())
            (place / file).write_bytes(copy)
        with engine.begin() as connection:
            row: dict[str, Any] = {"name": name, "at": f"file://{place}/{newest.name}"}
            connection.execute(
                text(
                    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) "
                    "VALUES ('bench', 'fleet', :name, :at)"
                ),
                row,
            )
    engine.dispose()


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".avro" and b"/t00000/" not in data.partition(b"avro.codec")[2]:
        raise SystemExit(f"{path} is compressed: its paths cannot be replaced")
    return data


if __name__ == "__main__":
    main()
