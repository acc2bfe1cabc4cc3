"""A file under its second name stays, also where only a lost commit or an unknown table names it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle_tests.cold_tier.test_put_back import put_back
from artemis_lifecycle_tests.protection.foreign import (
    append,
    ids,
    make_all_old,
    overwrite,
    place,
    sql,
    take_up,
    warehouse,
)
from artemis_lifecycle_tests.protection.test_finding_10 import create


def second_name(lifecycle: Lifecycle, tmp_path: Path, is_linked: bool) -> Path:
    """The warehouse under its second name; or its own."""
    real = warehouse(lifecycle, "live")
    if not is_linked:
        return real
    link = tmp_path / "also"
    link.symlink_to(real)
    return link


@pytest.mark.parametrize("is_put_back", [False, True], ids=["stays", "put-back"])
@pytest.mark.parametrize("is_linked", [False, True], ids=["one-name", "two-names"])
def test_a_file_that_a_lost_commit_names_otherwise(
    all_of_db: Lifecycle, tmp_path: Path, is_linked: bool, is_put_back: bool
) -> None:
    owner = create(all_of_db, "db.owner")
    create(all_of_db, "db.reader")
    [shared] = (owner / "data").glob("*.parquet")
    root = second_name(all_of_db, tmp_path, is_linked)
    take_up(all_of_db, "db.reader", root / owner.relative_to(warehouse(all_of_db, "live")) / "data")
    entry = all_of_db.resources.live_catalog.entry("db.reader")
    all_of_db.observe_catalog()
    if is_put_back:
        put_back(all_of_db, "db.reader", str(entry.previous_metadata_location))
    overwrite(all_of_db, "db.owner", 2)
    with suppress(LifecycleError):
        all_of_db.expire("db.owner")
    assert shared.exists(), "the reader's newest metadata, registered again, names it"
    if is_put_back:
        put_back(all_of_db, "db.reader", entry.metadata_location)
    assert ids(all_of_db, "db.reader") == [1, 1]


@pytest.mark.parametrize("is_linked", [False, True], ids=["one-name", "two-names"])
def test_a_table_that_was_here_before_under_the_other_name(at_once: Lifecycle, tmp_path: Path, is_linked: bool) -> None:
    """Dropped and made again in its place, before the lifecycle ever looked."""
    lifecycle = at_once
    old = create(lifecycle, "db.t")
    append(lifecycle, "db.t", 2)
    data = set((old / "data").glob("*.parquet"))
    uuid = lifecycle.steps.table_state("db.t").metadata.table_uuid
    sql(lifecycle, "DROP TABLE {live}.db.t")
    with lifecycle.operations.engine.begin() as connection:
        for table in ("known_tables", "table_locations", "seen_pointers"):
            connection.execute(text(f"DELETE FROM lifecycle.{table} WHERE table_uuid = :uuid"), {"uuid": uuid})
    root = second_name(lifecycle, tmp_path, is_linked)
    create(lifecycle, "db.t", root / old.relative_to(warehouse(lifecycle, "live")))
    append(lifecycle, "db.t", 3)
    assert place(lifecycle, "db.t").samefile(old)
    make_all_old(warehouse(lifecycle, "live"))
    with suppress(LifecycleError):
        lifecycle.delete_orphans(lifecycle.scan_orphans("db.t"))
    assert all(path.exists() for path in data), "the dropped table, registered again, names them"
