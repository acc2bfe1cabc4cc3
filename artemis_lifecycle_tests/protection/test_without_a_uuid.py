"""A table of version 1 may have no uuid: where no catalog knows it, its places are somebody's."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle_tests.protection.foreign import append, sql
from artemis_lifecycle_tests.protection.test_finding_10 import create
from artemis_lifecycle_tests.protection.test_finding_14 import age_files


def unknown(lifecycle: Lifecycle, location: Path, *, has_uuid: bool) -> set[Path]:
    """A table of version 1 that no catalog has. Its data files."""
    properties = "TBLPROPERTIES ('format-version'='1')"
    sql(lifecycle, f"CREATE TABLE {{live}}.db.old (id int) USING iceberg LOCATION 'file://{location}' {properties}")
    append(lifecycle, "db.old", 1)
    with lifecycle.operations.engine.begin() as connection:
        where = {"catalog": lifecycle.config.catalogs.live.name}
        found = "DELETE FROM iceberg_tables WHERE catalog_name = :catalog AND table_name = 'old'"
        connection.execute(text(found), where)
    for path in (location / "metadata").glob("*.metadata.json"):
        node = json.loads(path.read_text())
        if not has_uuid:
            del node["table-uuid"]
        path.write_text(json.dumps(node))
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    return set((location / "data").glob("*.parquet"))


@pytest.mark.parametrize("where", ["inside", "here before"])
@pytest.mark.parametrize("has_uuid", [True, False], ids=["uuid", "no-uuid"])
def test_an_unknown_table_keeps_its_files(at_once: Lifecycle, where: str, has_uuid: bool, tmp_path: Path) -> None:
    if where == "inside":
        table = create(at_once, "db.t")
        data = unknown(at_once, table / "data" / "old", has_uuid=has_uuid)
    else:
        create(at_once, "db.first")
        table = Path(str(at_once.config.catalogs.live.warehouse).removeprefix("file://")) / "db" / "place"
        data = unknown(at_once, table, has_uuid=has_uuid)
        create(at_once, "db.t", table)
    age_files(at_once)
    with suppress(LifecycleError):
        at_once.delete_orphans(at_once.scan_orphans("db.t"))
    assert data and all(path.exists() for path in data)
