"""More databases than a test module's own, for what two deployments do to one catalog."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sqlalchemy import make_url, text

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.operations.database import connect

_numbers = itertools.count(1)


class Databases:
    """Makes databases on the tests' server, empty or as copies of another, and drops them at the end."""

    def __init__(self, postgres: EmbeddedPostgres) -> None:
        self._postgres = postgres
        self._names: list[str] = []

    def make(self, copy_of: str | None = None) -> str:
        """The address of a new database; `copy_of`, an address, must have no session."""
        name = f"protection_{next(_numbers)}"
        template = "" if copy_of is None else f" TEMPLATE {make_url(copy_of).database}"
        self._run(f"CREATE DATABASE {name}{template}")
        self._names.append(name)
        return self._postgres.uri(name)

    def drop_all(self) -> None:
        for name in self._names:
            with suppress(Exception):
                self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def _run(self, statement: str) -> None:
        engine = connect(self._postgres.uri("postgres"))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(statement))
        engine.dispose()


@pytest.fixture
def databases(postgres: EmbeddedPostgres) -> Iterator[Databases]:
    made = Databases(postgres)
    yield made
    made.drop_all()


def with_operations(config: LifecycleConfig, *, uri: str | None = None, root: str | None = None) -> LifecycleConfig:
    """The same catalogs for another deployment."""
    given = {key: value for key, value in (("uri", uri), ("root", root)) if value is not None}
    return config.model_copy(update={"operations": config.operations.model_copy(update=given)})
