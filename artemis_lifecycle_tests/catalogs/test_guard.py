"""The cold catalog refuses every writer but the handoff: Spark, pyiceberg, and plain SQL."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.guard import (
    VERSION,
    GuardState,
    ensure_guard,
    guard_state,
    lift_guard,
    publish_guarded,
)
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.catalogs.sql import ensure_tables, publish
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs.checks import judge_guard
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres, binaries
from artemis_lifecycle.errors import ConfigError, Refused
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
        assert "Unknown failure" not in str(refused.value).partition(REFUSED)[0], statement
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
    """An engine of a login that has one of the group roles and no other right."""
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
        login = as_role(role)
        for statement in may:
            with login.connect() as connection:
                connection.execute(text(statement))
                connection.rollback()
        for statement in may_not:
            with pytest.raises(ProgrammingError, match=f"permission denied|{REFUSED}"), login.begin() as connection:
                connection.execute(text(statement))


# --- the guard is verified, and restored ------------------------------------------------------------------------------

NO_OP = (
    "CREATE OR REPLACE FUNCTION artemis_cold.{name} RETURNS {returns} LANGUAGE plpgsql SECURITY DEFINER "
    "SET search_path = artemis_cold, pg_temp AS $$ BEGIN RETURN {value}; END $$"
)
BROKEN: dict[str, tuple[str, str, str]] = {
    "every trigger is disabled": (
        "ALTER TABLE iceberg_tables DISABLE TRIGGER ALL",
        "disabled",
        "trigger artemis_cold on iceberg_tables is disabled; trigger artemis_cold_all on iceberg_tables is disabled",
    ),
    "enabled again, and so for ordinary sessions only": (
        "ALTER TABLE iceberg_tables DISABLE TRIGGER ALL; ALTER TABLE iceberg_tables ENABLE TRIGGER ALL",
        "altered",
        "trigger artemis_cold on iceberg_tables is altered (it does not fire where session_replication_role is",
    ),
    "fires only in sessions that replicate": (
        "ALTER TABLE iceberg_namespace_properties ENABLE REPLICA TRIGGER artemis_cold",
        "disabled",
        "trigger artemis_cold on iceberg_namespace_properties is disabled",
    ),
    "TRUNCATE is let through": (
        "DROP TRIGGER artemis_cold_all ON iceberg_tables",
        "missing",
        "trigger artemis_cold_all on iceberg_tables is missing",
    ),
    "a restore left the schema out": (
        "DROP SCHEMA artemis_cold CASCADE",
        "missing",
        "table artemis_cold.catalogs is missing",
    ),
    "nothing is named as guarded": (
        "DELETE FROM artemis_cold.catalogs",
        "missing",
        "the row of {cold} in artemis_cold",
    ),
    "a function does nothing": (
        NO_OP.format(name="refuse(refused TEXT, what TEXT)", returns="void", value=""),
        "altered",
        "function artemis_cold.refuse is altered",
    ),
    "another function has the name": (
        NO_OP.format(name="refuse(refused VARCHAR, what TEXT)", returns="void", value=""),
        "altered",
        "function artemis_cold.refuse(character varying,text) is altered (not the guard's)",
    ),
    "a function runs as who is to be refused": (
        "ALTER FUNCTION artemis_cold.guard_tables() SECURITY INVOKER",
        "altered",
        "function artemis_cold.guard_tables is altered",
    ),
    "a trigger has a condition": (
        "CREATE OR REPLACE TRIGGER artemis_cold BEFORE INSERT OR UPDATE OR DELETE ON iceberg_tables FOR EACH ROW "
        "WHEN (pg_trigger_depth() > 9) EXECUTE FUNCTION artemis_cold.guard_tables(); "
        "ALTER TABLE iceberg_tables ENABLE ALWAYS TRIGGER artemis_cold",
        "altered",
        "trigger artemis_cold on iceberg_tables is altered",
    ),
    "everybody may publish": (
        "GRANT USAGE ON SCHEMA artemis_cold TO PUBLIC; GRANT INSERT ON artemis_cold.publications TO PUBLIC",
        "altered",
        "the right to publish is altered (open to PUBLIC)",
    ),
    "made by an older version": (
        "UPDATE artemis_cold.catalogs SET version = 2; "
        "ALTER TABLE iceberg_tables ENABLE TRIGGER artemis_cold; "
        + NO_OP.format(name="guard_tables()", returns="trigger", value="NEW"),
        "altered",
        f"version is altered (2, and now {VERSION})",
    ),
}


def _cold_at(config: LifecycleConfig, uri: str) -> LifecycleConfig:
    cold = config.catalogs.cold.model_copy(update={"uri": uri})
    return config.model_copy(update={"catalogs": config.catalogs.model_copy(update={"cold": cold})})


def _state(engine: Engine, catalog: str) -> GuardState:
    with engine.connect() as connection:
        return guard_state(connection, catalog)


def _run(engine: Engine, statements: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(statements)


def _all_refused(engine: Engine, cold: str) -> None:
    """Also in a session that says that it replicates, as pg_restore and replication tools do."""
    for statement in (
        f"DELETE FROM iceberg_tables WHERE catalog_name = '{cold}'",
        f"UPDATE iceberg_tables SET metadata_location = 'file:/other' WHERE catalog_name = '{cold}'",
        "TRUNCATE iceberg_tables",
        "TRUNCATE iceberg_namespace_properties",
        f"INSERT INTO iceberg_namespace_properties VALUES ('{cold}', 'mine', 'exists', 'true')",
    ):
        for role in ("origin", "replica"):
            with pytest.raises(ProgrammingError, match=REFUSED), engine.begin() as connection:
                connection.exec_driver_sql(f"SET LOCAL session_replication_role = {role}; {statement}")


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_guard_is_reported_and_restored_at_the_next_open(
    how: str, config: LifecycleConfig, published: tuple[str, str], engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    cold = config.catalogs.cold.name
    statements, condition, found = BROKEN[how]
    whole = _state(engine, cold)
    assert (whole.condition, whole.in_use, str(whole)) == ("present", True, "present")
    _all_refused(engine, cold)
    _run(engine, statements)
    broken = _state(engine, cold)
    assert broken.condition == condition and broken.in_use and found.format(cold=cold) in str(broken)
    assert _state(engine, cold) == broken, "telling of it changes nothing"
    red = judge_guard(broken, datetime.now(UTC))
    assert not red.passed and condition in str(red.description)
    with caplog.at_level(logging.WARNING), Lifecycle.open(config) as lifecycle:
        restored = lifecycle.cold_guard()
    assert restored is not None and restored.condition == "present"
    assert found.format(cold=cold) in caplog.text
    _all_refused(engine, cold)
    now = datetime.now(UTC)
    if "older version" in how:
        assert not restored.restorations and judge_guard(restored, now).passed
    else:
        assert found.format(cold=cold) in restored.restorations[0].found
        warned = judge_guard(restored, now)
        assert not warned.passed and warned.severity.value == "WARN"
        assert judge_guard(restored, now + timedelta(days=2)).passed


def test_a_drop_from_spark_is_refused_again_after_the_guard_was_disabled(
    spark: SparkSession, config: LifecycleConfig, published: tuple[str, str], engine: Engine
) -> None:
    table, location = published
    _run(engine, "ALTER TABLE iceberg_tables DISABLE TRIGGER ALL")
    with Lifecycle.open(config, spark=spark), pytest.raises(Exception, match=REFUSED):
        spark.sql(f"DROP TABLE {config.catalogs.cold.name}.{table}")
    with CatalogReader(config.catalogs.cold) as reader:
        assert reader.entry(table).metadata_location == location


def test_before_the_first_handoff_there_is_nothing_to_guard(config: LifecycleConfig, make_table: MakeTable) -> None:
    make_table("alone", 1)
    with Lifecycle.open(config) as lifecycle:
        found = lifecycle.cold_guard()
    assert found is not None and not found.in_use and not found.restorations
    assert judge_guard(found, datetime.now(UTC)).passed


def test_a_live_catalog_is_never_guarded_though_a_configuration_calls_it_cold(
    config: LifecycleConfig, make_table: MakeTable, published: tuple[str, str], spark: SparkSession
) -> None:
    """Live and cold were swapped once: every writer of the live catalog would be refused from then on."""
    with Lifecycle.open(config, spark=spark) as lifecycle:
        lifecycle.observe_catalog()
    live, cold = config.catalogs.live, config.catalogs.cold
    names = {"live": {"name": cold.name}, "cold": {"name": live.name}}
    swapped = {tier: getattr(config.catalogs, tier).model_copy(update=names[tier]) for tier in names}
    catalogs = config.catalogs.model_copy(update=swapped)
    with pytest.raises(ConfigError, match="deployment's live catalog"):
        Lifecycle.open(config.model_copy(update={"catalogs": catalogs}), spark=spark)
    make_table("written_after")


def test_a_dump_of_the_catalogs_tables_alone_is_guarded_again_at_the_next_open(
    config: LifecycleConfig,
    published: tuple[str, str],
    engine: Engine,
    postgres: EmbeddedPostgres,
) -> None:
    cold = config.catalogs.cold
    data = postgres.status().data
    assert data is not None and engine.url.database is not None
    tools = binaries(data.parent)

    def run(tool: str, database: str, *arguments: str, given: bytes = b"") -> bytes:
        uri = engine.url.set(database=database, drivername="postgresql").render_as_string(hide_password=False)
        command = [tools / tool, *arguments, "--dbname", uri]
        return subprocess.run(command, input=given, capture_output=True, check=True).stdout

    for number, (what, condition) in enumerate(((["-t", "iceberg_*"], "missing"), ([], "present"))):
        database = f"restored_{engine.url.database}_{number}"
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {database}")
        uri = engine.url.set(database=database).render_as_string(hide_password=False)
        try:
            run("psql", database, "-q", given=run("pg_dump", engine.url.database, *what))
            restored = connect(uri)
            assert _state(restored, cold.name).condition == condition
            with Lifecycle.open(_cold_at(config, uri)):
                pass
            assert _state(restored, cold.name).condition == "present"
            _all_refused(restored, cold.name)
            restored.dispose()
        finally:
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql(f"DROP DATABASE {database} WITH (FORCE)")


def test_a_publication_verifies_the_guard_in_its_own_transaction(
    config: LifecycleConfig, published: tuple[str, str], engine: Engine
) -> None:
    cold = config.catalogs.cold.name
    table, location = published
    swap = {"plan_id": "p2", "expected_location": location, "new_location": "file:/2"}
    _run(engine, "ALTER TABLE iceberg_tables DISABLE TRIGGER artemis_cold")
    with pytest.raises(Refused, match="is disabled"), engine.begin() as connection:
        publish_guarded(connection, cold, table, **swap)
    with CatalogReader(config.catalogs.cold) as reader:
        assert reader.entry(table).metadata_location == location
    ensure_guard(engine, cold, config.catalogs.live.name)
    with engine.begin() as connection:
        publish_guarded(connection, cold, table, **swap)
        # Nobody takes the guard away between its verification and the swap's commit.
        for statement in (
            "ALTER TABLE iceberg_tables DISABLE TRIGGER artemis_cold",
            "DROP TRIGGER artemis_cold_all ON iceberg_namespace_properties",
        ):
            with pytest.raises(DBAPIError, match="lock timeout"), engine.begin() as other:
                other.exec_driver_sql(f"SET LOCAL lock_timeout = '100ms'; {statement}")
    with CatalogReader(config.catalogs.cold) as reader:
        assert reader.entry(table).metadata_location == "file:/2"


def test_a_role_that_may_not_restore_the_guard_is_refused_and_an_analyst_is_warned(
    config: LifecycleConfig,
    published: tuple[str, str],
    engine: Engine,
    as_role: Callable[[str], Engine],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cold = config.catalogs.cold

    lifecycle, analyst = (
        _cold_at(config, as_role(role).url.render_as_string(hide_password=False)) for role in (LIFECYCLE, ANALYST)
    )
    for limited in (lifecycle, analyst):
        with Lifecycle.open(limited) as opened:
            found = opened.cold_guard()
            assert found is not None and found.condition == "present"
    _run(engine, "ALTER TABLE iceberg_tables DISABLE TRIGGER ALL")
    with pytest.raises(Refused) as refused:
        Lifecycle.open(lifecycle)
    assert "is disabled, and this role may not restore it: trigger artemis_cold on iceberg_tables is disabled" in str(
        refused.value
    )
    assert "as artemis, who owns iceberg_tables" in str(refused.value)
    with caplog.at_level(logging.WARNING), Lifecycle.open(analyst) as opened:
        found = opened.cold_guard()
        assert found is not None and found.condition == "disabled"
    assert "may not restore it" in caplog.text
    with Lifecycle.open(config):
        pass
    assert _state(engine, cold.name).condition == "present"


def test_no_login_spoofs_a_publication(
    config: LifecycleConfig, published: tuple[str, str], as_role: Callable[[str], Engine], engine: Engine
) -> None:
    cold = config.catalogs.cold.name
    table, location = published
    move = f"UPDATE iceberg_tables SET metadata_location = '{location}x' WHERE catalog_name = '{cold}'"
    columns = "(catalog_name, table_identifier, plan_id, new_location, transaction)"
    row = f"'{cold}', '{table}', 'p', '{location}x'"
    ingest, lifecycle = as_role(INGEST), as_role(LIFECYCLE)
    for prelude in (
        "SET artemis.publishing = 'true'; SET session_authorization = DEFAULT",
        "SET search_path = pg_temp, public",
        # Its own tables and functions come after the guard's in the functions' own search path.
        "CREATE TEMP TABLE catalogs (catalog_name text, live_catalog text, version int)",
        f"CREATE TEMP TABLE publications AS SELECT '{cold}' AS catalog_name, '{table}' AS table_identifier, "
        f"'{location}x' AS new_location, pg_current_xact_id() AS transaction",
        "CREATE FUNCTION pg_temp.refuse(a varchar, b text) RETURNS void LANGUAGE sql AS 'SELECT'",
    ):
        with pytest.raises(ProgrammingError, match=REFUSED), ingest.begin() as connection:
            connection.exec_driver_sql(f"{prelude}; {move}")
    # A row that names a transaction in which it was not written: one still to come.
    with lifecycle.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO artemis_cold.publications {columns} SELECT {row}, "
            "(pg_current_xact_id()::text::bigint + ahead)::text::xid8 FROM generate_series(1, 50) AS ahead"
        )
    for _ in range(5):
        with pytest.raises(ProgrammingError, match=REFUSED), ingest.begin() as connection:
            connection.exec_driver_sql(move)
    with CatalogReader(config.catalogs.cold) as reader:
        assert reader.entry(table).metadata_location == location
