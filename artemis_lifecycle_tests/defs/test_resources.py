"""Sessions start late, end with their run, and are refused when they lack the jars. Some in processes of their own: a
process has one session, and the tests' must live."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from dagster import DagsterRun, DagsterRunStatus, build_init_resource_context, build_resources
from dagster_aws.s3 import S3Resource

from artemis_lifecycle.defs.build import build_definitions
from artemis_lifecycle.defs.processes import SPARK_POOL, parallel_runs
from artemis_lifecycle.defs.resources import LifecycleResource, SparkSessionResource, ended_predecessors
from artemis_lifecycle.defs.tags import DRIVER_TAG, STEP_TAG, WINDOW_TAG
from artemis_lifecycle.errors import LeaseLost
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.defs.conftest import TABLE

if TYPE_CHECKING:
    from artemis_lifecycle_tests.defs.conftest import Project


def in_a_process_of_its_own(script: str, project: Project) -> str:
    environment = {**os.environ, "CONFIG": str(project.path), "ARTEMIS_JARS": str(REPOSITORY / ".artemis" / "jars")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


STARTS_AND_STOPS = """
import os
from pyspark import SparkContext
from dagster import DagsterRun, DagsterRunStatus, build_init_resource_context, build_resources
from artemis_lifecycle.defs.processes import SPARK_POOL, parallel_runs
from artemis_lifecycle.defs.resources import LifecycleResource, SparkSessionResource

path = os.environ["CONFIG"]
spark = SparkSessionResource(config_path=path, spark_config={"spark": {"app": {"name": "by-config"}}})
with build_resources({"lifecycle": LifecycleResource(config_path=path, spark=spark)}) as resources:
    lifecycle = resources.lifecycle.get()
    lifecycle.tables()
    print("late", SparkContext._active_spark_context is None)
    print("same", lifecycle is resources.lifecycle.get(), lifecycle.spark is lifecycle.spark)
    print("name", lifecycle.spark.conf.get("spark.app.name"))
    live = lifecycle.config.catalogs.live.name
    print("catalog", lifecycle.spark.sql(f"SHOW NAMESPACES IN {live}").count())
print("stopped", SparkContext._active_spark_context is None)
"""

REFUSES = """
import os
from pyspark.sql import SparkSession
from dagster import build_init_resource_context
from artemis_lifecycle.defs.processes import SPARK_POOL, parallel_runs
from artemis_lifecycle.defs.resources import SparkSessionResource
from artemis_lifecycle.errors import EnvironmentMissing

theirs = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
resource = SparkSessionResource(config_path=os.environ["CONFIG"])
try:
    resource.spark_session
except EnvironmentMissing as error:
    print("refused", "iceberg-spark-runtime" in str(error), "postgresql" in str(error))
resource.teardown_after_execution(build_init_resource_context())
print("alive", theirs.range(3).count())
theirs.stop()
"""


def test_a_session_starts_when_a_step_needs_it_and_ends_with_the_run(project: Project) -> None:
    said = in_a_process_of_its_own(STARTS_AND_STOPS, project).splitlines()
    assert said[:3] == ["late True", "same True True", "name by-config"]
    assert said[-1] == "stopped True"


@pytest.mark.nightly
def test_a_live_session_without_the_jars_is_refused_and_left_alone(project: Project) -> None:
    assert in_a_process_of_its_own(REFUSES, project).splitlines() == ["refused True True", "alive 3"]


@pytest.mark.nightly
def test_a_live_session_with_the_jars_is_used_and_left_running(project: Project) -> None:
    resource = SparkSessionResource(config_path=str(project.path))
    assert resource.spark_session is project.spark
    resource.teardown_after_execution(build_init_resource_context())
    assert project.spark.range(2).count() == 2


def test_a_run_is_recorded_by_its_id(project: Project) -> None:
    project.create("artemis.one", commits=1)
    result = project.run("plan", "artemis.one")
    with project.lifecycle() as lifecycle:
        [record] = lifecycle.operations.steps.history(lifecycle.snapshot_history("artemis.one").table_uuid)
    assert (record.owner, record.run_id) == ("dagster", result.run_id)


def test_a_retry_does_not_wait_for_the_lease_of_the_run_that_died_before_it(project: Project) -> None:
    dead, alive = (str(uuid.uuid4()) for _ in range(2))
    retry = DagsterRun("plan", str(uuid.uuid4()), parent_run_id=dead, root_run_id=dead)
    project.instance.add_run(DagsterRun("plan", dead, status=DagsterRunStatus.FAILURE))
    project.instance.add_run(DagsterRun("plan", alive, status=DagsterRunStatus.STARTED))
    resource = project.resource()
    with project.lifecycle() as lifecycle:
        leases = lifecycle.operations.leases
        with (
            leases.hold("uuid-of-one", step="commit", owner="dagster", run_id=dead) as lost,
            leases.hold("uuid-of-two", step="commit", owner="dagster", run_id=alive) as kept,
            build_init_resource_context(instance=project.instance) as context,
        ):
            context._dagster_run = retry
            with resource.yield_for_execution(context) as opened:
                opened.get()
                with leases.hold("uuid-of-one", step="commit", owner="dagster", run_id=retry.run_id):
                    with pytest.raises(LeaseLost):
                        lost.check()
                    kept.check()


def test_a_run_that_still_goes_on_keeps_its_lease(project: Project) -> None:
    going = str(uuid.uuid4())
    project.instance.add_run(DagsterRun("plan", going, status=DagsterRunStatus.STARTED))
    retry = DagsterRun("plan", str(uuid.uuid4()), parent_run_id=going, root_run_id=going)
    assert ended_predecessors(retry, project.instance) == ()


def test_a_run_s_driver_has_the_memory_of_its_tag(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    conf: dict[str, str] = {}
    monkeypatch.setattr("artemis_lifecycle.defs.resources.open_session", lambda given: conf.update(given))
    spark = SparkSessionResource(config_path=str(project.path))
    for tags, memory in (({DRIVER_TAG: "8192m"}, "8192m"), ({}, "2g")):
        with build_init_resource_context(instance=project.instance) as context:
            context._dagster_run = DagsterRun("plan", tags=tags)
            spark.setup_for_execution(context)
            spark._init_session()
            assert conf["spark.driver.memory"] == memory


@pytest.fixture
def s3() -> Iterator[S3Resource]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    resource = S3Resource(
        endpoint_url=f"http://{host}:{port}",
        region_name="us-east-1",
        aws_access_key_id="by-dagster",
        aws_secret_access_key="by-dagster",
    )
    client: Any = resource.get_client()
    client.create_bucket(Bucket="warehouse")
    yield resource
    server.stop()


def test_the_s3_resource_makes_the_client_of_every_store(project: Project, s3: S3Resource) -> None:
    definitions = build_definitions(project.path, s3=s3)
    lifecycle_resource = (definitions.resources or {})["lifecycle"]
    assert isinstance(lifecycle_resource, LifecycleResource)
    with build_resources({"lifecycle": lifecycle_resource}) as resources:
        lifecycle = resources.lifecycle.get()
        for stores in (lifecycle.live_stores, lifecycle.cold_stores):
            stores.write("s3://warehouse/seen", b"by the resource's client", overwrite=True)
            assert stores.read("s3://warehouse/seen") == b"by the resource's client"


def test_where_tables_are_on_s3_other_assets_get_a_client_with_the_same_settings(tmp_path: Path) -> None:
    secret = {"s3.access-key-id": "by-lifecycle", "s3.secret-access-key": "hidden-from-the-ui"}
    properties = {**secret, "s3.endpoint": "http://127.0.0.1:9", "s3.region": "us-east-1"}
    uri = "postgresql+psycopg2://nobody@127.0.0.1:9/none"
    config: dict[str, Any] = {
        "catalogs": {
            "live": {"uri": uri, "warehouse": str(tmp_path / "live")},
            "cold": {"uri": uri, "warehouse": "s3://cold/warehouse", "properties": properties},
        },
        "operations": {"uri": uri, "root": str(tmp_path / "operations")},
    }
    path = tmp_path / "lifecycle.yaml"
    path.write_text(yaml.safe_dump(config))
    resource = (build_definitions(path).resources or {})["tables_s3"]
    assert isinstance(resource, S3Resource) and "hidden-from-the-ui" not in repr(resource)
    client = resource.get_client()
    assert client.meta.endpoint_url == "http://127.0.0.1:9"
    assert client._request_signer._credentials.secret_key == "hidden-from-the-ui"
    config["catalogs"]["cold"]["warehouse"] = str(tmp_path / "cold")
    path.write_text(yaml.safe_dump(config))
    assert "tables_s3" not in (build_definitions(path).resources or {})


def test_without_an_s3_resource_the_settings_of_the_catalog_hold(project: Project) -> None:
    with build_resources({"lifecycle": project.resource()}) as resources:
        assert resources.lifecycle.get().resources.s3_client_factory is None


def test_a_run_of_a_window_records_how_long_it_took(make_project: Callable[..., Project]) -> None:
    project = make_project(tables={"artemis.*": {"quiet_window": {"from": "00:00", "to": "00:00"}}})
    project.create(TABLE, commits=1)
    with project.lifecycle() as lifecycle:
        run_times, since = lifecycle.operations.run_times, lifecycle.operations.clock.now()
        assert project.run("plan", TABLE).success
        assert not run_times.means(since), "a person's run takes no place in a window"
        project.instance.event_log_storage.set_concurrency_slots(SPARK_POOL, 2)
        assert project.run("plan", TABLE, tags={WINDOW_TAG: "2026-01-31", STEP_TAG: "plan"}).success
        means = run_times.means(since)
        assert set(means) == {"plan"} and set(means["plan"]) == {TABLE}
        assert 0 < means["plan"][TABLE] < (lifecycle.operations.clock.now() - since).total_seconds()
        assert run_times.parallel_runs() == parallel_runs(project.instance) == 2
