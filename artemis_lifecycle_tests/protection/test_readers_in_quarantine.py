"""A dropped table whose files are in quarantine can come back (`undrop`), until it is purged: what it reads of other
tables stays as long."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.policies import TableOverrides
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.operations.quarantines import QuarantineState
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import killed_at, lapse
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.foreign import make_all_old, overwrite, sql, stray, take_up, warehouse
from artemis_lifecycle_tests.protection.test_finding_10 import bring_back, collect, create, drop

Opened = Callable[..., Lifecycle]


@pytest.fixture
def opened(make_config: MakeConfig, spark: SparkSession) -> Iterator[Opened]:
    """Opens a lifecycle in which db.reader is deleted into quarantine."""
    with ExitStack() as stack:

        def opening(keep: str = "0s") -> Lifecycle:
            defaults = {**WITHOUT_COLD, "dropped": {"keep": keep}}
            tables = {"db.*": {}, "db.reader": {"deletion": {"grace": "0s", "mode": "quarantine"}}}
            return stack.enter_context(open_lifecycle(make_config(defaults=defaults, tables=tables), spark=spark))

        yield opening


def make(lifecycle: Lifecycle) -> tuple[Path, Path]:
    """Make db.owner and db.reader. Return the file that the reader takes up, and the reader's place."""
    owner, reader = create(lifecycle, "db.owner"), create(lifecycle, "db.reader")
    [shared] = (owner / "data").glob("*.parquet")
    return shared, reader


def approved(lifecycle: Lifecycle, table: str) -> str:
    scan = lifecycle.scan_dropped(table)
    lifecycle.approve(scan, who="ada", why="nobody needs it")
    return scan.scan_id


def expire(lifecycle: Lifecycle) -> None:
    overwrite(lifecycle, "db.owner", 9)
    with suppress(LifecycleError):
        lifecycle.expire("db.owner")


def require_back(lifecycle: Lifecycle, uuid: str) -> None:
    assert lifecycle.undrop(uuid, who="bob", why="we need it back").missing == 0
    assert sorted(row["id"] for row in lifecycle.read("db.reader").collect()) == [1, 1]


@pytest.mark.parametrize("said", ["only-dropped", "in-quarantine", "and-kept", "and-held"])
def test_what_a_dropped_table_in_quarantine_reads_stays(opened: Opened, said: str) -> None:
    lifecycle = opened("30d" if said == "only-dropped" else "0s")
    shared, reader = make(lifecycle)
    take_up(lifecycle, "db.reader", shared.parent)
    uuid = drop(lifecycle, "db.reader")
    if said != "only-dropped":
        assert lifecycle.delete_dropped(approved(lifecycle, uuid)).deleted > 0
        assert not list((reader / "data").glob("*.parquet"))
    if said == "and-kept":
        assert lifecycle.keep_dropped(uuid, who="bob", why="we need it back").state == "kept"
    if said == "and-held":
        lifecycle.hold(uuid, "legal", "case 7")

    expire(lifecycle)

    assert shared.exists()
    require_back(lifecycle, uuid)


def test_what_it_reads_is_read_in_quarantine_while_its_deletion_is_interrupted(opened: Opened) -> None:
    lifecycle = opened()
    shared, reader = make(lifecycle)
    take_up(lifecycle, "db.reader", shared.parent)
    uuid = drop(lifecycle, "db.reader")
    scan = approved(lifecycle, uuid)
    with killed_at("deletion.write_outcomes:before"):
        lifecycle.delete_dropped(scan)
    lapse(lifecycle, "leases")
    assert not list(reader.rglob("snap-*.avro"))
    for cache in ("reached", "index"):
        shutil.rmtree(local(f"{lifecycle.resources.root}/{cache}"))

    expire(lifecycle)

    assert shared.exists()
    lifecycle.delete_dropped(scan)
    require_back(lifecycle, uuid)


def test_what_its_unseen_commit_took_up_stays(opened: Opened) -> None:
    lifecycle = opened()
    shared, _ = make(lifecycle)
    lifecycle.observe_catalog()
    take_up(lifecycle, "db.reader", shared.parent)
    last = lifecycle.get_current("db.reader").metadata_location
    sql(lifecycle, "DROP TABLE {live}.db.reader")
    lifecycle.observe_catalog()
    make_all_old(warehouse(lifecycle, "live"))
    scan = approved(lifecycle, "db.reader")
    lifecycle.delete_dropped(scan)

    expire(lifecycle)

    assert shared.exists()
    lifecycle.undelete(scan, who="bob", why="we need it back")
    assert bring_back(lifecycle, "db.reader", last) == [1, 1]


def test_a_purge_ends_it(opened: Opened) -> None:
    lifecycle = opened()
    shared, reader = make(lifecycle)
    take_up(lifecycle, "db.reader", shared.parent)
    uuid = drop(lifecycle, "db.reader")
    scan = approved(lifecycle, uuid)
    lifecycle.delete_dropped(scan)
    expire(lifecycle)
    # A table that is made in its place has the place for itself.
    create(lifecycle, "db.again", reader)
    orphan = stray(reader)
    make_all_old(warehouse(lifecycle, "live"))
    assert collect(lifecycle, "db.again") == {str(orphan)}
    [known] = lifecycle.operations.known_tables.of_uuid(uuid)
    of_dropped, [record] = lifecycle.operations.quarantines.of_dropped, lifecycle.quarantined(uuid)
    assert of_dropped()(known) == (record.folder,)
    assert of_dropped()(replace(known, table="db.second")) == of_dropped(scan)(known) == ()
    assert collect(lifecycle, "db.owner") == set() and shared.exists()
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 day'"))

    assert [each.kept for each in lifecycle.purge_quarantine(uuid)] == [0]

    assert lifecycle.quarantined(uuid)[0].state is QuarantineState.PURGED
    assert str(shared) in collect(lifecycle, "db.owner")


def test_what_came_back_once_can_come_back_again_and_is_a_reader_until_the_purge(
    opened: Opened, spark: SparkSession
) -> None:
    before = opened()
    shared, _ = make(before)
    take_up(before, "db.reader", shared.parent)
    uuid = drop(before, "db.reader")
    before.delete_dropped(approved(before, uuid))
    require_back(before, uuid)
    said = TableOverrides.model_validate({"deletion": {"grace": "0s", "mode": "delete"}})
    config = before.config.model_copy(update={"tables": {**before.config.tables, "db.reader": said}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        drop(lifecycle, "db.reader")
        assert lifecycle.delete_dropped(approved(lifecycle, uuid)).deleted > 0

        expire(lifecycle)

        assert shared.exists()
        require_back(lifecycle, uuid)
