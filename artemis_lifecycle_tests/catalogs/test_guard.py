"""The cold catalog refuses every writer but the handoff: Spark, pyiceberg, and plain SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from artemis_lifecycle.catalogs.cold import publish
from artemis_lifecycle.catalogs.guard import ensure_guard, lift_guard, publish_guarded
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.catalogs.tables import ensure_tables
from artemis_lifecycle.config import LifecycleConfig
from artemis_lifecycle.operations.database import connect, migrate
from artemis_lifecycle.operations.roles import ANALYST, INGEST, LIFECYCLE
from artemis_lifecycle_tests.catalogs.conftest import MakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = "is the cold tier, which only a handoff writes to"


@pytest.fixture
def engine(config: LifecycleConfig) -> Iterator[Engine]:
    """Of a database whose cold catalog is guarded."""
    catalogs = config.catalogs
    assert catalogs.cold.uri is not None
    opened = connect(catalogs.cold.uri)
    ensure_tables(opened)
    ensure_guard(opened, catalogs.cold.name, catalogs.live.name)
    yield opened
    with opened.begin() as connection:
        lift_guard(connection, catalogs.cold.name)
    opened.dispose()


@pytest.fixture
def published(config: LifecycleConfig, make_table: MakeTable, reader: CatalogReader, engine: Engine) -> tuple[str, str]:
    """The identifier of a table in the cold catalog, and its metadata location."""
    table = make_table("published", 2)
    location = reader.entry(table).metadata_location
    with engine.begin() as connection:
        publish_guarded(
            connection, config.catalogs.cold.name, table, plan_id="p1", expected_location=None, new_location=location
        )
    return table, location


def test_spark_reads_the_cold_table_and_cannot_change_it(
    spark: SparkSession, config: LifecycleConfig, published: tuple[str, str], engine: Engine
) -> None:
    cold, live = config.catalogs.cold.name, config.catalogs.live.name
    table, location = published
    assert spark.table(f"{cold}.{table}").count() == 2
    for statement in (
        f"INSERT INTO {cold}.{table} SELECT * FROM {cold}.{table}",
        f"ALTER TABLE {cold}.{table} CREATE TAG mine",
        f"ALTER TABLE {cold}.{table} ADD COLUMN note string",
        f"DROP TABLE {cold}.{table}",
        f"ALTER TABLE {cold}.{table} RENAME TO space.renamed",
        f"CREATE TABLE {cold}.space.another (id int) USING iceberg",
        f"CREATE NAMESPACE {cold}.mine",
    ):
        with pytest.raises(Exception, match=REFUSED) as refused:
            spark.sql(statement).collect()
        assert f"write to catalog {live}" in str(refused.value), statement
    with CatalogReader(config.catalogs.cold) as reader:
        assert reader.entry(table).metadata_location == location
        assert reader.namespaces() == ["space"]
    assert spark.table(f"{cold}.{table}").count() == 2
    # The live catalog's rows stand in the same table.
    spark.sql(f"INSERT INTO {live}.{table} SELECT * FROM {live}.{table}")
    assert spark.table(f"{live}.{table}").count() == 4


def test_pyiceberg_and_plain_sql_cannot_change_it(
    config: LifecycleConfig, published: tuple[str, str], engine: Engine
) -> None:
    cold = config.catalogs.cold.name
    table, location = published
    catalog = load_catalog(cold, **pyiceberg_properties(config.catalogs.cold))
    try:
        with pytest.raises(DBAPIError, match=REFUSED):
            catalog.drop_table(table)
        with pytest.raises(DBAPIError, match=REFUSED):
            catalog.create_table("space.more", Schema(NestedField(1, "id", LongType())))
        with pytest.raises(DBAPIError, match=REFUSED):
            catalog.create_namespace("more")
    finally:
        catalog.engine.dispose()  # type: ignore[attr-defined]
    for statement in (
        "UPDATE iceberg_tables SET metadata_location = 'file:/other'",
        "UPDATE iceberg_tables SET catalog_name = 'mine'",
        "DELETE FROM iceberg_tables",
        "TRUNCATE iceberg_tables",
        "DELETE FROM iceberg_namespace_properties",
        "TRUNCATE iceberg_namespace_properties",
    ):
        with pytest.raises(ProgrammingError, match=REFUSED), engine.begin() as connection:
            connection.execute(
                text(f"{statement} " + ("" if "TRUNC" in statement else f"WHERE catalog_name = '{cold}'"))
            )
    with CatalogReader(config.catalogs.cold) as reader:
        assert reader.entry(table).metadata_location == location


def test_a_publication_opens_the_way_for_its_own_transaction_and_location_alone(
    config: LifecycleConfig, published: tuple[str, str], engine: Engine
) -> None:
    cold = config.catalogs.cold.name
    table, location = published
    second = {"expected_location": location, "new_location": "file:/2"}
    with pytest.raises(ProgrammingError, match=REFUSED), engine.begin() as connection:
        publish(connection, cold, table, **second)
    with engine.begin() as connection:
        publish_guarded(connection, cold, table, plan_id="p2", **second)
    # Another transaction that names the location of an earlier publication.
    with engine.begin() as connection:
        publish_guarded(connection, cold, table, plan_id="p3", expected_location="file:/2", new_location="file:/3")
    with pytest.raises(ProgrammingError, match=REFUSED), engine.begin() as connection:
        publish(connection, cold, table, expected_location="file:/3", new_location="file:/2")
    with engine.connect() as connection:
        publish_guarded(connection, cold, table, plan_id="p4", expected_location="file:/3", new_location="file:/4")
        with pytest.raises(ProgrammingError, match=REFUSED):
            publish(connection, cold, "space.other", expected_location=None, new_location="file:/4")
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT plan_id, new_location FROM artemis_cold.publications WHERE catalog_name = :c ORDER BY 1"),
            {"c": cold},
        )
        assert [tuple(row) for row in rows] == [("p1", location), ("p2", "file:/2"), ("p3", "file:/3")]


def test_a_guard_is_made_once_and_needs_no_right_to_make_one_after_that(
    config: LifecycleConfig, postgres_uri: str, published: tuple[str, str], engine: Engine
) -> None:
    cold, live = config.catalogs.cold.name, config.catalogs.live.name
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE looks_only"))
        connection.execute(text("GRANT USAGE ON SCHEMA artemis_cold TO looks_only"))
        connection.execute(text("GRANT SELECT ON artemis_cold.catalogs TO looks_only"))
    try:
        limited = connect(f"{postgres_uri}?options=-crole%3Dlooks_only")
        try:
            ensure_guard(limited, cold, live)
        finally:
            limited.dispose()
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP OWNED BY looks_only"))
            connection.execute(text("DROP ROLE looks_only"))


@pytest.fixture
def as_role(config: LifecycleConfig, engine: Engine) -> Iterator[Callable[[str], Engine]]:
    """An engine of somebody who can log in, and has one of the group roles and no other right."""
    migrate(engine)
    made: list[tuple[str, Engine]] = []

    def make(role: str) -> Engine:
        login = f"{role}_{config.catalogs.live.name}"
        with engine.begin() as connection:
            connection.execute(text(f"CREATE ROLE {login} LOGIN PASSWORD 'secret' IN ROLE {role}"))
        opened = create_engine(engine.url.set(username=login, password="secret"))
        made.append((login, opened))
        return opened

    yield make
    for login, opened in made:
        opened.dispose()
        with engine.begin() as connection:
            connection.execute(text(f"DROP ROLE {login}"))


def test_each_role_may_do_its_own_work_and_no_more(
    config: LifecycleConfig, published: tuple[str, str], as_role: Callable[[str], Engine]
) -> None:
    table, location = published
    live, cold = config.catalogs.live.name, config.catalogs.cold.name
    name = table.rpartition(".")[2]
    move = (
        "UPDATE iceberg_tables SET previous_metadata_location = metadata_location "
        "WHERE catalog_name = '{catalog}' AND table_name = '" + name + "'"
    )
    beat = (
        "INSERT INTO lifecycle.heartbeats "
        "(table_uuid, table_name, writer_id, host, pid, started_at, last_beat_at, expires_at) "
        "VALUES ('u', 't', 'w', 'h', 1, now(), now(), now())"
    )
    publication = (
        "INSERT INTO artemis_cold.publications (catalog_name, table_identifier, plan_id, new_location) "
        f"VALUES ('{cold}', '{table}', 'p2', '{location}')"
    )
    ours = [move.format(catalog=live), beat, "SELECT * FROM lifecycle.holds"]
    theirs = [publication, "UPDATE lifecycle.plans SET status = 'done'", "DELETE FROM lifecycle.batches"]
    reads = ["SELECT * FROM iceberg_tables", "SELECT * FROM iceberg_namespace_properties"]
    for role, may, may_not in (
        (INGEST, [*ours, *reads], [*theirs, move.format(catalog=cold)]),
        (LIFECYCLE, [*ours, *theirs, *reads], [move.format(catalog=cold)]),
        (ANALYST, reads, [*ours, *theirs]),
    ):
        somebody = as_role(role)
        for statement in may:
            with somebody.connect() as connection:
                connection.execute(text(statement))
                connection.rollback()
        for statement in may_not:
            with pytest.raises(ProgrammingError, match=f"permission denied|{REFUSED}"), somebody.begin() as connection:
                connection.execute(text(statement))
