"""A person's word keeps a dropped table's quarantine, whatever its name was when the files were moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import overwrite, sql
from artemis_lifecycle_tests.protection.test_two_names_of_one_uuid import (
    Opened,
    goes_on,
    make_original,
    opened,
    replica_of,
)

__all__ = ["opened"]


@pytest.mark.parametrize("renamed", [False, True], ids=["own-name", "renamed"])
def test_a_word_keeps_the_quarantine_of_a_dropped_replica(opened: Opened, tmp_path: Path, renamed: bool) -> None:
    lifecycle = opened({**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}, "dropped": {"keep": "30d"}})
    table = make_original(lifecycle)
    replica_of(lifecycle, table, tmp_path)
    lifecycle.observe_catalog()
    goes_on(lifecycle, table)
    overwrite(lifecycle, "db.replica", 9)
    report = lifecycle.expire("db.replica")
    folder = Path(str(report.quarantine).removeprefix("file://")) / "files"
    moved = sorted(path for path in folder.iterdir())
    assert moved
    name = "db.replica"
    if renamed:
        name = "db.kept"
        sql(lifecycle, "ALTER TABLE {live}.db.replica RENAME TO db.kept")
        lifecycle.observe_catalog()
    sql(lifecycle, f"DROP TABLE {{live}}.{name}")
    assert lifecycle.keep_dropped(name, who="bob", why="a case").state == "kept"
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 day'"))

    # The schedule runs it for the name that the uuid has now.
    lifecycle.purge_quarantine(table)

    assert sorted(path for path in folder.iterdir()) == moved


def test_a_word_about_a_replica_keeps_nothing_of_the_original(opened: Opened, tmp_path: Path) -> None:
    lifecycle = opened({**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}, "dropped": {"keep": "30d"}})
    table = make_original(lifecycle)
    replica_of(lifecycle, table, tmp_path)
    lifecycle.observe_catalog()
    goes_on(lifecycle, table)
    overwrite(lifecycle, table, 9)
    assert lifecycle.expire(table).deleted
    sql(lifecycle, "DROP TABLE {live}.db.replica")
    assert lifecycle.keep_dropped("db.replica", who="bob", why="a case").state == "kept"
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 day'"))

    assert sum(each.deleted for each in lifecycle.purge_quarantine(table)) > 0
