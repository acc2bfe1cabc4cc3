"""A lifecycle.yaml on disk for the definitions to read, tables to walk, and an instance of Dagster per test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    RetryPolicy,
    instance_for_test,
)
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs.build import build_definitions
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import PARTITIONS_NAME
from artemis_lifecycle_tests import core_tables, lookups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from artemis_lifecycle_tests.conftest import MakeConfig

_SQLITE = "dagster._core.storage"
lookups.keep_engines(
    f"{_SQLITE}.event_log.sqlite.sqlite_event_log",
    f"{_SQLITE}.runs.sqlite.sqlite_run_storage",
    f"{_SQLITE}.schedules.sqlite.sqlite_schedule_storage",
)
lookups.keep_dagsters_schema()
lookups.copy_empty_logs()
lookups.follow_no_output()
lookups.keep_revisions()

TABLE, OTHER = "artemis.passes", "artemis.telemetry"

DAGSTERS_OWN = (
    # Dagster asks its own deprecated property when a resource has resources.
    "ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in DAGSTERS_OWN:
                item.add_marker(pytest.mark.filterwarnings(warning))


def written(config: LifecycleConfig, folder: Path) -> Path:
    """`config` as a lifecycle.yaml in `folder`."""
    path = folder / "lifecycle.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True, exclude_none=True)))
    return path


class Project:
    """Definitions on a configuration of their own, and an instance that knows its tables."""

    def __init__(self, config: LifecycleConfig, path: Path, instance: DagsterInstance, spark: SparkSession) -> None:
        self.config, self.path, self.instance, self.spark = config, path, instance, spark
        self.definitions: Definitions = build_definitions(path)

    def create(self, *tables: str, commits: int = 3) -> None:
        """Make tables with `commits` snapshots, and a partition of each."""
        live = self.config.catalogs.live.name
        for table in tables:
            core_tables.sql(self.spark, f"CREATE NAMESPACE IF NOT EXISTS {live}.{table.split('.')[0]}")
            self.spark.sql(f"CREATE TABLE {live}.{table} (id bigint, name string) USING iceberg")
            for number in range(commits):
                self.append(table, number)
        self.instance.add_dynamic_partitions(PARTITIONS_NAME, list(tables))

    def register(self, *tables: str, partition: bool = True) -> None:
        """Make empty tables without Spark: enough for what only asks the catalog."""
        catalog = load_catalog(self.config.catalogs.live.name, **pyiceberg_properties(self.config.catalogs.live))
        for table in tables:
            catalog.create_namespace_if_not_exists(table.split(".")[0])
            catalog.create_table(table, Schema(NestedField(1, "id", LongType())))
        catalog.engine.dispose()  # type: ignore[attr-defined]
        if partition:
            self.instance.add_dynamic_partitions(PARTITIONS_NAME, list(tables))

    def resource(self) -> LifecycleResource:
        """What the definitions hand to schedules and sensors."""
        resource = self.definitions.resources["lifecycle"]  # type: ignore[index]
        assert isinstance(resource, LifecycleResource)
        return resource

    def append(self, table: str, number: int) -> None:
        """One more commit."""
        core_tables.append(self.spark, f"{self.config.catalogs.live.name}.{table}", [(number, f"pass {number}")])

    def run(self, job: str, table: str, *, dry_run: bool | None = None, **options: Any) -> ExecuteInProcessResult:
        """Run a job for one table, in this process and its session."""
        from artemis_lifecycle.defs.jobs import for_real

        return self.definitions.resolve_job_def(job).execute_in_process(
            instance=self.instance,
            partition_key=table,
            raise_on_error=False,
            run_config=for_real(job, dry_run=dry_run) if dry_run is not None else None,
            **options,
        )

    def check(self, asset: str, name: str, table: str) -> AssetCheckEvaluation:
        """Run one check alone, as a person does in the UI."""
        job = self.definitions.resolve_job_def("whole_walk")
        chosen = {AssetCheckKey(AssetKey(asset), name)}
        result = job.get_subset(asset_selection=set(), asset_check_selection=chosen).execute_in_process(
            instance=self.instance, partition_key=table, raise_on_error=False
        )
        (evaluation,) = result.get_asset_check_evaluations()
        return evaluation

    def lifecycle(self) -> Lifecycle:
        """The same tables without Dagster."""
        return Lifecycle.open(self.config, spark=self.spark)


@contextmanager
def no_checksum_files(spark: SparkSession) -> Iterator[None]:
    """Hadoop writes a `.crc` beside each local file. Nothing references those, so each would be an orphan."""
    jvm: Any = spark._jvm
    files = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), spark._jsc.hadoopConfiguration())
    files.setWriteChecksum(False)
    yield
    files.setWriteChecksum(True)


def said(result: ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    """The plain metadata values of the asset's materialisation in a run."""
    (materialization,) = result.asset_materializations_for_node(asset)
    return {key: value.value for key, value in materialization.metadata.items()}


def with_tables(config: LifecycleConfig, tables: dict[str, Any]) -> LifecycleConfig:
    """The same addresses with other policies."""
    return LifecycleConfig.model_validate({**config.model_dump(mode="json", by_alias=True), "tables": tables})


@pytest.fixture(scope="session")
def empty_instance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an instance in which nothing happened yet: its databases are migrated once, and copied."""
    folder = tmp_path_factory.mktemp("empty-instance")
    with instance_for_test(temp_dir=str(folder)):
        return folder


@pytest.fixture
def instance(empty_instance: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    """On disk: schedules and sensors are handed a reference to it, as the daemon does it. Retries come at once."""
    monkeypatch.setattr(RetryPolicy, "calculate_delay", lambda policy, attempt: 0)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        shutil.copytree(empty_instance, folder, dirs_exist_ok=True)
        with instance_for_test(temp_dir=folder) as found:
            yield found


@pytest.fixture
def make_project(
    make_config: MakeConfig, tmp_path: Path, instance: DagsterInstance, spark: SparkSession
) -> Callable[..., Project]:
    def make(**sections: Any) -> Project:
        config = make_config(**sections)
        return Project(config, written(config, tmp_path), instance, spark)

    return make


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    return make_project(tables={"artemis.*": {}})
