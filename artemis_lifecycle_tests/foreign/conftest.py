"""Two databases of operations, and the lab in which seeds are lived through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle_tests.foreign.machine import Lab
from artemis_lifecycle_tests.foreign.world import libpq, prepare_clock


@pytest.fixture(scope="module")
def second_uri(postgres: EmbeddedPostgres, postgres_uri: str) -> Iterator[str]:
    name = postgres_uri.rpartition("/")[2] + "_second"
    with _autocommit(libpq(postgres.uri("postgres"))) as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    yield postgres.uri(name)
    with _autocommit(libpq(postgres.uri("postgres"))) as cursor:
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def _autocommit(uri: str) -> Iterator[Any]:
    connection = psycopg2.connect(uri)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


@pytest.fixture(scope="module")
def lab(spark: SparkSession, postgres_uri: str, second_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    prepare_clock(postgres_uri)
    for uri in (postgres_uri, second_uri):
        Operations.open(uri).close()  # The model reads its tables before the first step writes.
    return Lab(spark, (postgres_uri, second_uri), tmp_path_factory.mktemp("foreign"))
