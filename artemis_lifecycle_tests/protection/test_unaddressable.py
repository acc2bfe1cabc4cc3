"""A table that no engine can address is a neighbor in its own place, and nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.protection.foreign import (
    append,
    files_below,
    ids,
    make_all_old,
    overwrite,
    place,
    sql,
    stray,
    take_up,
    warehouse,
)

OWNER = "db.owner"
BESIDE = "beside"

NAMES = [
    ("db", ".."),
    ("db", "."),
    ("db", ""),
    ("", "t"),
    ("", ""),
    ("..", "t"),
    ("a..b", "t"),
    ("db", "a/b"),
    ("db", "../../etc"),
    ("db", "x\ny"),
    ("db", "\x01\x1b[2J"),
    ("db", "`/`:/"),
    ("d/b", "x" * 255),
]

NO_PATHS = ["", " ", "..", "s3://", "s3:///k", "http://[::1", "file://host/x\x01", "file:///dev/zero", "x" * 999]


@pytest.fixture
def lifecycle(all_of_db: Lifecycle) -> Iterator[Lifecycle]:
    sql(all_of_db, "CREATE NAMESPACE {live}.db")
    sql(all_of_db, "CREATE TABLE {live}.db.owner (id int) USING iceberg")
    append(all_of_db, OWNER, 1)
    overwrite(all_of_db, OWNER, 2)
    yield all_of_db
    with all_of_db.operations.engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = :catalog"), {"catalog": BESIDE})


def register(
    lifecycle: Lifecycle, namespace: str, name: str, metadata_location: str | None, catalog: str | None = None
) -> None:
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO iceberg_tables "
                "(catalog_name, table_namespace, table_name, metadata_location, iceberg_type) VALUES ("
                ":catalog, :namespace, :name, :location, 'TABLE')"
            ),
            {
                "catalog": catalog or lifecycle.config.catalogs.live.name,
                "namespace": namespace,
                "name": name,
                "location": metadata_location,
            },
        )


def unlist(lifecycle: Lifecycle, namespace: str, name: str) -> Path:
    """Take away a table's metadata file; the catalog still lists it."""
    with lifecycle.operations.engine.begin() as connection:
        found = connection.execute(
            text(
                "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = :namespace AND table_name = :name"
            ),
            {"namespace": namespace, "name": name},
        ).scalar_one()
    path = local(found)
    path.unlink()
    return path.parent.parent


def clean(lifecycle: Lifecycle) -> None:
    """Expire and scan the owner; what it has left goes, and all that it needs stays."""
    left = stray(place(lifecycle, OWNER))
    make_all_old(warehouse(lifecycle, "live"))
    lifecycle.expire(OWNER)
    lifecycle.delete_orphans(lifecycle.scan_orphans(OWNER))
    assert not left.exists()
    assert ids(lifecycle, OWNER) == [2]


def test_tables_whose_names_cannot_be_addressed_stop_no_other(lifecycle: Lifecycle) -> None:
    """Readable or not, with a pointer, with none, with one that is not a path: the catalog takes any row."""
    sql(lifecycle, "CREATE TABLE {live}.db.other (id int) USING iceberg")
    append(lifecycle, "db.other", 5)
    gone = f"file://{warehouse(lifecycle, 'live')}/gone/metadata/1.metadata.json"
    places = itertools.cycle([gone, lifecycle.steps.table_state("db.other").entry.metadata_location, None, *NO_PATHS])
    for catalog in (lifecycle.config.catalogs.live.name, BESIDE):
        for namespace, name in NAMES:
            register(lifecycle, namespace, name, next(places), catalog)

    assert OWNER in lifecycle.tables()
    clean(lifecycle)


def test_a_table_named_two_dots_that_lost_its_metadata_stops_no_other_and_keeps_its_files(lifecycle: Lifecycle) -> None:
    """Spark puts it where its name leads: around all tables of the warehouse."""
    sql(lifecycle, "CREATE TABLE {live}.db.`..` (id int) USING iceberg")
    append(lifecycle, "db.`..`", 7)
    lifecycle.scan_orphans(OWNER)
    folder = unlist(lifecycle, "db", "..")
    assert place(lifecycle, OWNER).is_relative_to(folder)
    its = files_below(folder / "data") | files_below(folder / "metadata")
    assert its

    clean(lifecycle)
    assert its <= files_below(folder)


def test_in_its_own_place_it_counts_as_a_table_that_cannot_be_read(
    lifecycle: Lifecycle,
) -> None:
    register(lifecycle, "db", "..", f"file://{place(lifecycle, OWNER)}/data/inside/metadata/1.metadata.json")
    left = stray(place(lifecycle, OWNER))
    make_all_old(warehouse(lifecycle, "live"))

    with pytest.raises(UnreadableMetadata, match=r"db\.`\.\.`"):
        lifecycle.scan_orphans(OWNER)
    assert left.exists()


def test_where_it_was_last_known_to_read_nothing_is_deleted(lifecycle: Lifecycle) -> None:
    sql(lifecycle, "CREATE TABLE {live}.db.`a/b` (id int) USING iceberg")
    take_up(lifecycle, "db.`a/b`", place(lifecycle, OWNER) / "data")
    lifecycle.scan_orphans(OWNER)
    unlist(lifecycle, "db", "a/b")
    before = files_below(place(lifecycle, OWNER))
    make_all_old(warehouse(lifecycle, "live"))

    with pytest.raises(UnreadableMetadata, match=r"db\.a/b"):
        lifecycle.expire(OWNER)
    with pytest.raises(UnreadableMetadata, match=r"db\.a/b"):
        lifecycle.scan_orphans(OWNER)
    assert before <= files_below(place(lifecycle, OWNER))
    # The row may come back as it was.
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("UPDATE iceberg_tables SET metadata_location = NULL WHERE table_name = 'a/b'"))
    with pytest.raises(UnreadableMetadata, match=r"db\.a/b"):
        lifecycle.scan_orphans(OWNER)
