from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text

from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.sql import ensure_tables, publish
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import BadInput, CommitConflict
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle_tests.catalogs.conftest import MakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def engine(config: LifecycleConfig) -> Iterator[Engine]:
    assert config.catalogs.cold.uri is not None
    opened = connect(config.catalogs.cold.uri)
    ensure_tables(opened)
    yield opened
    opened.dispose()


def test_a_published_table_is_a_table_to_spark_and_to_the_reader(
    spark: SparkSession, config: LifecycleConfig, make_table: MakeTable, reader: CatalogReader, engine: Engine
) -> None:
    table = make_table("published", 2)
    cold = config.catalogs.cold.name
    location = reader.entry(table).metadata_location
    with engine.begin() as connection:
        entry = publish(connection, cold, table, expected_location=None, new_location=location)
    with CatalogReader(config.catalogs.cold) as cold_reader:
        assert cold_reader.entry(table) == entry
        assert cold_reader.namespaces() == ["space"]
    assert spark.table(f"{cold}.{table}").count() == 2
    assert [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {cold}.space").collect()] == ["published"]


def test_a_publication_compares_and_swaps(config: LifecycleConfig, engine: Engine) -> None:
    cold = config.catalogs.cold.name
    with engine.begin() as connection:
        publish(connection, cold, "a.t", expected_location=None, new_location="file:/1")
        second = publish(connection, cold, "a.t", expected_location="file:/1", new_location="file:/2")
        assert second.previous_metadata_location == "file:/1"
    for expected in (None, "file:/1", "file:/3"):
        with pytest.raises(CommitConflict, match="file:/2"), engine.begin() as connection:
            publish(connection, cold, "a.t", expected_location=expected, new_location="file:/4")
    with pytest.raises(CommitConflict, match="no such table"), engine.begin() as connection:
        publish(connection, cold, "a.u", expected_location="file:/1", new_location="file:/2")
    with CatalogReader(config.catalogs.cold) as reader:
        assert reader.entry("a.t") == second


def test_a_publication_goes_with_the_transaction_it_is_in(config: LifecycleConfig, engine: Engine) -> None:
    cold = config.catalogs.cold.name

    def failing() -> None:
        with engine.begin() as connection:
            publish(connection, cold, "gone.t", expected_location=None, new_location="file:/1")
            connection.execute(text("SELECT 1"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    with CatalogReader(config.catalogs.cold) as reader:
        assert not reader.exists("gone.t")
        assert "gone" not in reader.namespaces()


@pytest.mark.parametrize("expected", [None, "file:/0"])
def test_of_publications_at_once_one_wins(config: LifecycleConfig, engine: Engine, expected: str | None) -> None:
    cold = config.catalogs.cold.name
    if expected:
        with engine.begin() as connection:
            publish(connection, cold, "a.race", expected_location=None, new_location=expected)
    barrier = threading.Barrier(4)
    won: list[int] = []
    lost: list[CommitConflict] = []

    def race(number: int) -> None:
        barrier.wait()
        try:
            with engine.begin() as connection:
                publish(connection, cold, "a.race", expected_location=expected, new_location=f"file:/n{number}")
            won.append(number)
        except CommitConflict as error:
            lost.append(error)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 3)
    with CatalogReader(config.catalogs.cold) as reader:
        assert reader.entry("a.race").metadata_location == f"file:/n{won[0]}"


def test_what_no_row_can_hold_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        with pytest.raises(BadInput, match="1001 characters"):
            publish(connection, "cold", "a.t", expected_location=None, new_location="x" * 1001)
        with pytest.raises(BadInput):
            publish(connection, "cold", "t", expected_location=None, new_location="file:/1")
