"""What the score asks for makes the table cheaper to plan and to read, counted in files that a reader opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.integration.crash_world import Disk, Saved

TABLE = "ns.t"
OPENED: Counter[str] = Counter()


class CountingFileIO(PyArrowFileIO):
    """Counts what another reader opens: pyiceberg, which shares no code with this project or Spark."""

    def new_input(self, location: str) -> InputFile:
        OPENED["manifests" if location.endswith(".avro") else "data"] += 1
        return super().new_input(location)


def opened(lifecycle: Lifecycle) -> Counter[str]:
    """Read all rows of the table, and return how many manifests (with their list) and other files that opened."""
    reader = CatalogReader(lifecycle.config.catalogs.live)
    try:
        location = reader.entry(TABLE).metadata_location
    finally:
        reader.close()
    table = StaticTable.from_metadata(
        location, {"py-io-impl": f"{CountingFileIO.__module__}.{CountingFileIO.__qualname__}"}
    )
    OPENED.clear()
    planned = list(table.scan().plan_files())
    data = {task.file.file_path for task in planned}
    deletes = {file.file_path for task in planned for file in task.delete_files}
    return Counter(manifests=OPENED["manifests"], data=len(data), deletes=len(deletes))


@pytest.fixture(scope="module")
def written(
    module_configs: MakeConfig, spark: SparkSession, postgres_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LifecycleConfig, Disk, Saved]:
    config = module_configs(tables={"ns.*": {}})
    with open_lifecycle(config, spark=spark) as lifecycle:
        lifecycle.prepare()  # Before the first step that writes, a question records nothing.
        _make(lifecycle, spark)
    disk = Disk(config.home, postgres_uri.replace("+psycopg2", "", 1), tmp_path_factory.mktemp("saved"))
    return config, disk, disk.save()


@pytest.fixture
def unfit(written: tuple[LifecycleConfig, Disk, Saved], spark: SparkSession) -> Iterator[Lifecycle]:
    """A governed table of 24 small files, each in a manifest of its own, and 14 delete files."""
    config, disk, saved = written
    disk.put_back(saved)
    with open_lifecycle(config, spark=spark) as lifecycle:
        yield lifecycle


def _make(lifecycle: Lifecycle, spark: SparkSession) -> None:
    name = f"{lifecycle.config.catalogs.live.name}.{TABLE}"
    core_tables.sql(spark, f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.ns")
    core_tables.sql(
        spark,
        f"CREATE TABLE {name} (a int) USING iceberg TBLPROPERTIES ('format-version'='2', "
        "'write.delete.mode'='merge-on-read', 'write.distribution-mode'='none')",
    )
    for number in range(24):
        core_tables.append(spark, name, [(each,) for each in range(number * 10, number * 10 + 10)])
    for number in range(14):
        spark.sql(f"DELETE FROM {name} WHERE a = {number * 10}")


def test_each_step_that_the_score_names_raises_it_until_the_table_is_fit(unfit: Lifecycle) -> None:
    steps: dict[str, Callable[[], Any]] = {
        f"artemis compact {TABLE}": lambda: unfit.compact_data_files(TABLE),
        f"artemis compact {TABLE} --manifests": lambda: unfit.compact_manifests(TABLE),
        f"artemis scan-orphans {TABLE}": lambda: unfit.scan_orphans(TABLE),
    }
    rows = unfit.spark.table(f"{unfit.config.catalogs.live.name}.{TABLE}").count()
    health, before = unfit.health(TABLE), opened(unfit)
    assert health.score is not None and health.score < 10
    assert before["data"] == 24 and before["deletes"] == 14
    taken: list[str] = []
    while health.next_part is not None:
        command = health.next_part.next_step
        assert command is not None and len(taken) < 5
        steps[command]()
        taken.append(command)
        after, score = opened(unfit), health.score
        health = unfit.health(TABLE)
        assert health.score is not None and score is not None and health.score > score, (command, health.parts)
        if "compact" in command:
            assert sum(after.values()) < sum(before.values()), command
            before = after
    assert health.score == 100, health.parts
    assert f"artemis compact {TABLE}" in taken and f"artemis scan-orphans {TABLE}" in taken
    assert (before["data"], before["deletes"]) == (1, 0) and before["manifests"] <= 4
    assert unfit.spark.table(f"{unfit.config.catalogs.live.name}.{TABLE}").count() == rows
    # The history has every score, and its picture.
    history = unfit.health_history(TABLE)
    frame = history.to_pandas()
    assert len(frame) == len(taken) + 1 + 2 * sum("compact" in each for each in taken)
    assert frame["score"].is_monotonic_increasing and frame["orphan_share"].isna().any()
    assert history.plot("png").startswith(b"\x89PNG")
    (row,) = unfit.fleet().tables
    assert row.health_score == 100 and 'artemis_health_score{table="ns.t"} 100' in unfit.metrics()


def test_what_is_recorded_is_not_measured_again(unfit: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    first = unfit.table_health(TABLE)
    table_uuid = unfit.steps.table_uuid(TABLE)
    record = unfit.operations.health.of_table(table_uuid)
    assert record is not None

    def measured_again(*_: object) -> None:
        raise AssertionError("read the manifests again")

    monkeypatch.setattr("artemis_lifecycle.upkeep.maintenance.health_of", measured_again)
    again = unfit.health(TABLE)
    old = timedelta(seconds=first.metadata_age_seconds)
    assert timedelta(seconds=again.metadata_age_seconds) >= old
    unaged = {name: value for name, value in again.figures().items() if not name.endswith("age_seconds")}
    assert unaged == {name: value for name, value in first.figures().items() if name in unaged}
    # Checks read; but the score of a table that does not change is recorded from time to time, by its old figures.
    unfit.check_table(TABLE, "health_staleness")
    assert len(unfit.health_history(TABLE).points) == 2
    monkeypatch.setattr("artemis_lifecycle.upkeep.maintenance.SCORED_EVERY", timedelta(0))
    unfit.check_table(TABLE, "health_staleness")
    after = unfit.operations.health.of_table(table_uuid)
    assert after is not None and len(unfit.health_history(TABLE).points) == 3
    assert after.measured_at == record.measured_at and after.scored_at > record.scored_at
    core_tables.sql(unfit.spark, f"INSERT INTO {unfit.config.catalogs.live.name}.{TABLE} VALUES (-1)")
    with pytest.raises(AssertionError, match="again"):
        unfit.health(TABLE)
