from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
import traceback
from contextlib import ExitStack
from datetime import UTC

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, event, make_url, text

from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.errors import ConfigError, OperationsUnavailable, Refused
from artemis_lifecycle.operations.database import Operations, connect, connected, migrate, schema_state
from artemis_lifecycle.operations.migrations import HEAD
from artemis_lifecycle.operations.tables import SCHEMA, metadata

EMPTY_DATABASE = True

SECRET = "s3" + "cr3t"  # not as one word in a line that a traceback shows


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_the_migrations_make_what_the_tables_say(operations: Operations) -> None:
    with operations.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "version_table_schema": SCHEMA,
                "compare_server_default": False,
                "include_name": lambda name, kind, _: kind != "schema" or name == SCHEMA,
            },
        )
        assert compare_metadata(context, metadata) == []


def test_starters_at_the_same_time_do_not_collide(postgres_uri: str) -> None:
    engine = connect(postgres_uri)
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"))
    raised: list[BaseException] = []

    def start() -> None:
        try:
            Operations.open(postgres_uri).close()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.dispose()
    assert raised == []


def test_the_error_of_a_role_without_rights_to_the_schema_names_them(operations: Operations, postgres_uri: str) -> None:
    with operations.engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS nobody_here"))
        connection.execute(text("CREATE ROLE nobody_here LOGIN PASSWORD 'p'"))
    try:
        uri = make_url(postgres_uri).set(username="nobody_here", password="p").render_as_string(hide_password=False)
        with pytest.raises(Refused, match=r"no rights to schema lifecycle.*GRANT artemis_lifecycle"):
            Operations.open(uri)
    finally:
        with operations.engine.begin() as connection:
            connection.execute(text("DROP ROLE nobody_here"))


def test_a_role_that_may_not_create_tables_can_open_an_up_to_date_schema(
    operations: Operations, postgres_uri: str
) -> None:
    with operations.engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS plain"))
        connection.execute(text("CREATE ROLE plain LOGIN PASSWORD 'p'"))
        connection.execute(text(f"GRANT USAGE ON SCHEMA {SCHEMA} TO plain"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO plain"))
    try:
        uri = make_url(postgres_uri).set(username="plain", password="p").render_as_string(hide_password=False)
        with Operations.open(uri) as opened:
            assert opened.plans.holding() == ()
    finally:
        with operations.engine.begin() as connection:
            connection.execute(text("DROP OWNED BY plain"))
            connection.execute(text("DROP ROLE plain"))


def test_the_newest_revision_is_the_one_that_an_up_to_date_schema_is_compared_with(operations: Operations) -> None:
    config = Config()
    config.set_main_option("script_location", "artemis_lifecycle.operations:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD == schema_state(operations.engine)[0]


def test_opening_an_up_to_date_schema_loads_no_alembic(operations: Operations) -> None:
    code = (
        "import sys; from artemis_lifecycle.operations.database import Operations; "
        "Operations.open(sys.argv[1]).close(); sys.exit('alembic' in sys.modules)"
    )
    uri = operations.engine.url.render_as_string(hide_password=False)
    assert subprocess.run([sys.executable, "-c", code, uri], check=False).returncode == 0


def test_a_schema_of_an_unknown_revision_is_refused_and_stays(operations: Operations, postgres_uri: str) -> None:
    def set_revision(engine: Engine, revision: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE {SCHEMA}.alembic_version SET version_num = :r"), {"r": revision})

    with operations.engine.connect() as connection:
        before = connection.execute(text(f"SELECT version_num FROM {SCHEMA}.alembic_version")).scalar_one()
    try:
        for unknown in ("9999", "0015"):
            set_revision(operations.engine, unknown)
            with pytest.raises(OperationsUnavailable, match=unknown):
                migrate(operations.engine)
            assert schema_state(operations.engine) == (unknown, False, before)
    finally:
        set_revision(operations.engine, before)


def test_an_unreachable_postgres_is_named_without_its_password() -> None:
    uri = f"postgresql+psycopg2://me:{SECRET}@127.0.0.1:{_free_port()}/db"
    with pytest.raises(OperationsUnavailable) as raised:
        connect(uri)
    assert "127.0.0.1" in str(raised.value)
    assert SECRET not in str(raised.value)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert SECRET not in str(pickle.loads(pickle.dumps(raised.value)))


def test_a_wrong_password_is_not_repeated(postgres_uri: str) -> None:
    uri = make_url(postgres_uri).set(database="no_such_database", password=SECRET)
    with pytest.raises(OperationsUnavailable) as raised:
        connect(uri.render_as_string(hide_password=False))
    assert "no_such_database" in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("uri", ["sqlite:///x.db", "postgresql+psycopg2:me:s3cr3t@", "nonsense://u:s3cr3t@h/d"])
def test_an_address_that_is_not_postgres_is_a_configuration_error(uri: str) -> None:
    with pytest.raises(ConfigError) as raised:
        connect(uri)
    assert SECRET not in str(raised.value)


def test_a_connection_that_breaks_later_is_named_as_unavailable(postgres: EmbeddedPostgres, postgres_uri: str) -> None:
    engine = connect(postgres_uri)
    with pytest.raises(OperationsUnavailable), engine.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    # The next caller gets a new connection.
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    engine.dispose()


def test_lifecycle_and_ingest_have_pools_of_their_own(postgres_uri: str) -> None:
    lifecycle, ingest = connect(postgres_uri), connect(postgres_uri, purpose="ingest")
    seen = {}
    for purpose, engine in (("lifecycle", lifecycle), ("ingest", ingest)):
        with engine.connect() as connection:
            seen[purpose] = connection.execute(text("SHOW application_name")).scalar_one()
    assert seen == {"lifecycle": "artemis-lifecycle", "ingest": "artemis-ingest"}
    assert lifecycle.pool is not ingest.pool
    lifecycle.dispose()
    ingest.dispose()


def test_the_clock_runs_inside_a_transaction_too(operations: Operations) -> None:
    first = operations.clock.now()
    assert first.tzinfo is UTC
    assert operations.clock.now() > first


def test_a_restarted_server_fails_no_step_whose_connection_was_idle(postgres_uri: str) -> None:
    engine = connect(postgres_uri)
    others = connect(postgres_uri)
    with ExitStack() as several:
        idle = [several.enter_context(engine.connect()) for _ in range(3)]
        pids = [each.execute(text("SELECT pg_backend_pid()")).scalar_one() for each in idle]
    with others.begin() as connection:
        for pid in pids:
            connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    with ExitStack() as several:
        for _ in pids:
            assert several.enter_context(engine.connect()).execute(text("SELECT 1")).scalar() == 1
    engine.dispose()
    others.dispose()


def test_an_interrupt_stays_one_while_postgres_is_waited_for(postgres_uri: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with connected(postgres_uri) as engine:
        event.listen(engine, "do_execute", interrupt)
        with engine.connect() as connection, pytest.raises(KeyboardInterrupt):
            connection.execute(text("SELECT 1"))
