"""A metadata file that the store does not give (no right, a refused key, an archived class) may say anything."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import LifecycleError, StorageError
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.protection.foreign import append, files_below, place, set_pointer, warehouse
from artemis_lifecycle_tests.protection.test_finding_10 import create
from artemis_lifecycle_tests.protection.test_finding_14 import age_files, pointers

Refuse = Callable[[str], None]


@pytest.fixture(params=["given", "refused"])
def refuse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """The store does not give a file of that name to anybody, while it lists and deletes it."""
    names: set[str] = set()

    def of(name: str) -> Callable[..., bytes]:
        original = getattr(Stores, name)

        def read(self: Stores, path: str, *given: object) -> bytes:
            if path.rpartition("/")[2] in names:
                raise StorageError("The store refuses it: 403", path=path, hint="ask its owner")
            return original(self, path, *given)  # type: ignore[no-any-return]

        return read

    if request.param == "refused":
        for name in ("read", "read_range"):
            monkeypatch.setattr(Stores, name, of(name))
    return names.add


def collect(lifecycle: Lifecycle, table: str) -> None:
    age_files(lifecycle)
    with suppress(LifecycleError):
        lifecycle.delete_orphans(lifecycle.scan_orphans(table))


def test_a_lost_commit_whose_metadata_is_not_given(at_once: Lifecycle, refuse: Refuse) -> None:
    """The catalog was restored from a backup."""
    table = make_table(at_once, "t", 4)
    *_, before, last = pointers(at_once, table)
    data = {path for path in files_below(warehouse(at_once, "live")) if path.endswith(".parquet")}
    set_pointer(at_once, table, before)
    refuse(local(last).name)
    collect(at_once, table)
    assert data <= files_below(warehouse(at_once, "live")), "the newest metadata, registered again, names them"
    assert local(last).exists()


def test_a_table_that_was_here_before_and_whose_metadata_is_not_given(at_once: Lifecycle, refuse: Refuse) -> None:
    """Dropped and made again in its place, before the lifecycle ever looked; written by another account."""
    old = create(at_once, "db.t")
    append(at_once, "db.t", 2)
    last = at_once.resources.live_catalog.entry("db.t").metadata_location
    data = set((old / "data").glob("*.parquet"))
    with at_once.operations.engine.begin() as connection:
        where = {"catalog": at_once.config.catalogs.live.name}
        connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = :catalog AND table_name = 't'"), where)
    create(at_once, "db.t", old)
    append(at_once, "db.t", 3)
    assert place(at_once, "db.t") == old
    for path in (old / "metadata").glob("*.metadata.json"):
        if path.stat().st_mtime <= Path(local(last)).stat().st_mtime:
            refuse(path.name)
    collect(at_once, "db.t")
    assert all(path.exists() for path in data), "the dropped table, registered again, names them"


@pytest.mark.parametrize("how", ["a view"])
def test_a_view_that_no_catalog_lists_and_whose_metadata_is_not_given(
    at_once: Lifecycle, refuse: Refuse, how: str
) -> None:
    table = create(at_once, "db.t")
    at = table / "data" / "v"
    properties = f"TBLPROPERTIES ('location'='file://{at}')"
    at_once.spark.sql(f"CREATE VIEW {at_once.config.catalogs.live.name}.db.v {properties} AS SELECT 1 AS one")
    with at_once.operations.engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables WHERE table_name = 'v'"))
    [kept] = at.rglob("*.metadata.json")
    refuse(kept.name)
    with suppress(LifecycleError):
        collect(at_once, "db.t")
    assert kept.exists()
