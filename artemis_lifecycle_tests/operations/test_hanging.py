"""A Postgres that accepts connections and never answers keeps nobody waiting for ever."""

from __future__ import annotations

import re
import socket
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text

import artemis_lifecycle
from artemis_lifecycle import postgres
from artemis_lifecycle.errors import OperationsUnavailable
from artemis_lifecycle.operations.database import Operations, connect
from artemis_lifecycle_tests.operations.hanging import relay


@pytest.mark.seconds
def test_a_server_that_accepts_and_never_answers_is_unavailable_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(OperationsUnavailable):
            connect(f"postgresql+psycopg2://u:p@127.0.0.1:{silent.getsockname()[1]}/d", purpose="gate")
        assert time.monotonic() - began < 10


@pytest.mark.seconds
def test_a_statement_of_a_server_that_hangs_ends_in_time_for_each_of_its_callers(postgres_uri: str) -> None:
    with relay(postgres_uri) as server, Operations.open(server.uri, purpose="gate") as operations:
        errors: list[Exception] = []

        def ask() -> None:
            try:
                operations.clock.now()
            except OperationsUnavailable as error:
                errors.append(error)

        ask()
        assert errors == []
        threads = [threading.Thread(target=ask) for _ in range(2)]
        server.hangs.set()
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(errors) == 2 and time.monotonic() - began < 15


def test_a_long_statement_is_ended_by_the_server_and_the_connection_goes_on(postgres_uri: str) -> None:
    engine = postgres.engine_for(postgres_uri, statement_seconds=0.2)
    with engine.connect() as connection:
        with pytest.raises(Exception, match="statement timeout"):
            connection.execute(text("SELECT pg_sleep(5)"))
        connection.rollback()
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    engine.dispose()
    engine = connect(postgres_uri)
    with engine.connect() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "5min"
    engine.dispose()


def test_only_one_module_connects_to_postgres() -> None:
    """Every connection of the product has its limits, because there is no other way to make one."""
    package = Path(artemis_lifecycle.__file__).parent
    made = re.compile(r"\bcreate_engine\(|psycopg2?\.connect\(")
    found = {str(each.relative_to(package)) for each in package.rglob("*.py") if made.search(each.read_text())}
    assert found == {"postgres.py"}
