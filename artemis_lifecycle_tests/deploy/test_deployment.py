"""What `artemis deployment` prints is what Dagster, Docker Compose and Kubernetes take, and all of it says the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from click import Group
from dagster import DagsterInstance, DagsterRun
from dagster._core.instance.config import dagster_instance_config
from sqlalchemy import text
from typer.testing import CliRunner

from artemis_lifecycle.cli import app
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs.build import build_definitions
from artemis_lifecycle.defs.tags import DRIVER_TAG, resource_tags
from artemis_lifecycle.errors import ConfigError
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle.spark.session import session_conf

pytestmark = pytest.mark.seconds

REPOSITORY = Path(__file__).parents[2]
CHART = "https://dagster-io.github.io/helm"
FOLDER = os.environ.get("ARTEMIS_DAGSTER_CHART")
"""The chart, where that address cannot be reached; without its schema, which refers to Kubernetes' own by address."""

KUBERNETES = ("1.31.0", "1.37.0")
GIB = 1024**3


def printed(what: str, *options: str) -> str:
    done = CliRunner().invoke(app, ["deployment", what, *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def snake(value: Any) -> Any:
    """Return a value with keys in snake case, at each depth."""
    if isinstance(value, dict):
        return {re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", key): snake(each) for key, each in value.items()}
    return [snake(each) for each in value] if isinstance(value, list) else value


def test_the_instance_file_starts_an_instance(
    postgres_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dagster.yaml").write_text(printed("dagster.yaml"))
    engine = connect(postgres_uri)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE DATABASE printed_dagster"))
    monkeypatch.setenv("ARTEMIS_DAGSTER_POSTGRES", postgres_uri.rpartition("/")[0] + "/printed_dagster")
    try:
        with DagsterInstance.from_config(str(tmp_path)) as instance:
            assert type(instance.run_storage).__name__ == "PostgresRunStorage" and not instance.telemetry_enabled
            assert instance.get_runs() == [] and instance.run_retries_max_retries == 2
    finally:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("DROP DATABASE IF EXISTS printed_dagster WITH (FORCE)"))
        engine.dispose()


def test_each_service_of_the_compose_file_runs_a_command_that_the_wheel_has() -> None:
    compose = yaml.safe_load(printed("compose"))
    command = typer.main.get_command(app)
    assert isinstance(command, Group)
    for name, service in compose["services"].items():
        assert service["image"] == f"${{ARTEMIS_IMAGE:-artemis-lifecycle:{version('artemis-lifecycle')}}}"
        first, second, *_ = service["command"]
        if first == "artemis":
            assert second in command.commands
        elif name != "net":
            assert Path(sys.executable).with_name(first).exists()
    (server,) = yaml.safe_load(printed("workspace.yaml"))["load_from"]
    assert f"-p {server['grpc_server']['port']} " in " ".join(compose["services"]["code"]["command"])
    assert server["grpc_server"]["location_name"] == LifecycleConfig().dagster.code_location


def test_dagster_s_chart_is_told_what_the_instance_file_says() -> None:
    values, instance = yaml.safe_load(printed("helm-values")), yaml.safe_load(printed("dagster.yaml"))
    daemon = values["dagsterDaemon"]
    told = {
        **{key: daemon[key] for key in ("runMonitoring", "runRetries", "sensors", "schedules", "backfills")},
        **{key: {**values[key]} for key in ("concurrency", "retention", "telemetry")},
        **values["additionalInstanceConfig"],
    }
    assert (told["concurrency"].pop("enabled"), told["retention"].pop("enabled")) == (True, True)
    # The chart has Postgres' address apart, and the password by the name of its secret.
    assert snake(told) == snake({key: value for key, value in instance.items() if key != "storage"})
    assert "postgresqlPassword" not in values["postgresql"] and not values["generatePostgresqlPasswordSecret"]
    (code,) = values["dagster-user-deployments"]["deployments"]
    assert code["image"] == values["dagsterWebserver"]["image"] == daemon["image"]
    assert code["image"]["tag"] == version("artemis-lifecycle")


def test_logs_of_runs_go_to_s3_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    said = {
        what: yaml.safe_load(printed(what, "--logs", "s3://logs/of/runs")) for what in ("dagster.yaml", "helm-values")
    }
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({"compute_logs": said["dagster.yaml"].pop("compute_logs")}))
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        manager = instance.compute_log_manager
        assert type(manager).__name__ == "S3ComputeLogManager"
        assert manager._s3_bucket == "logs" and manager._s3_prefix == "of/runs"
    chart = said["helm-values"].pop("computeLogManager")
    assert chart["type"] == "S3ComputeLogManager" and chart["config"]["s3ComputeLogManager"]["bucket"] == "logs"
    assert said == {what: yaml.safe_load(printed(what)) for what in said}
    for wrong in (["compose", "--logs", "s3://logs"], ["dagster.yaml", "--logs", "gs://logs"]):
        assert CliRunner().invoke(app, ["deployment", *wrong]).exit_code != 0


def job_of_a_run(
    launcher: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tags: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the job that dagster-k8s makes for a run with these tags."""
    from dagster_k8s.container_context import K8sContainerContext
    from dagster_k8s.job import construct_dagster_k8s_job
    from dagster_k8s.launcher import K8sRunLauncher
    from kubernetes import client, config

    monkeypatch.setattr(config, "load_incluster_config", lambda: None)
    made = K8sRunLauncher(**launcher)
    context = K8sContainerContext.create_for_run(
        DagsterRun(job_name="plan", tags=dict(tags or {})), made, include_run_tags=True
    )
    job = construct_dagster_k8s_job(
        context.get_k8s_job_config("artemis", made),
        args=["dagster", "api", "execute_run"],
        job_name="run",
        user_defined_k8s_config=context.run_k8s_config,
    )
    found: dict[str, Any] = client.ApiClient().sanitize_for_serialization(job)
    return found


def launcher_of(values: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration that the chart makes of these values for the launcher of runs."""
    given = values["runLauncher"]["config"]["k8sRunLauncher"]
    launcher = {re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", key): value for key, value in given.items()}
    launcher["run_k8s_config"] = snake(launcher.pop("run_k8s_config"))
    launcher["run_k8s_config"]["pod_spec_config"] = given["runK8sConfig"]["podSpecConfig"]
    chart = {"service_account_name": "dagster", "instance_config_map": "dagster-instance"}
    secret = {"postgres_password_secret": values["global"]["postgresqlSecretName"]}
    home = {"dagster_home": values["global"]["dagsterHome"]}
    return {**launcher, **chart, **secret, **home}


def has_no_rights(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["runAsNonRoot"] and pod["runAsUser"] > 0 and pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.slow
def test_a_run_on_kubernetes_has_no_rights_its_configuration_and_the_memory_of_its_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("dagster_k8s")
    values = yaml.safe_load(printed("helm-values"))
    pod = job_of_a_run(launcher_of(values), monkeypatch)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    has_no_rights(pod["securityContext"], container["securityContext"])
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    kinds = {each["name"]: next(key for key in each if key != "name") for each in pod["volumes"]}
    assert kinds[mounted["/tmp"]] == "emptyDir"
    assert kinds[mounted["/etc/artemis"]] == "configMap" and kinds[mounted["/etc/artemis-secrets"]] == "secret"
    assert {"name": "ARTEMIS_CONFIG", "value": "/etc/artemis/lifecycle.yaml"} in container["env"]
    driver = int(session_conf(LifecycleConfig(), {})["spark.driver.memory"].removesuffix("g")) * GIB
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * GIB
    assert limit >= driver + GIB
    for part in (
        values["dagsterWebserver"],
        values["dagsterDaemon"],
        *values["dagster-user-deployments"]["deployments"],
    ):
        has_no_rights(part["podSecurityContext"], part["securityContext"])
        assert "/tmp" in {each["mountPath"] for each in part["volumeMounts"]} and part["resources"]["limits"]


@pytest.mark.slow
def test_a_table_s_resources_are_those_of_its_runs_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dagster_k8s")
    big = {"memory": "16Gi", "cpu": 4, "kubernetes": {"pod_spec_config": {"node_selector": {"pool": "large"}}}}
    tables = {"db.big": {"run": big}, "db.small": {"run": {"memory": "5Gi", "driver_memory": "4Gi"}}, "db.*": {}}
    config = LifecycleConfig.model_validate({"tables": tables})
    launcher = launcher_of(yaml.safe_load(printed("helm-values")))

    def pod(*tables: str) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
        tags = resource_tags(config.run(*tables))
        spec = job_of_a_run(launcher, monkeypatch, tags)["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        has_no_rights(spec["securityContext"], container["securityContext"])
        assert {each["mountPath"] for each in container["volumeMounts"]} >= {"/tmp", "/etc/artemis"}
        return tags.get(DRIVER_TAG), container["resources"], spec.get("nodeSelector", {})

    large = {"requests": {"cpu": "4", "memory": "16384Mi"}, "limits": {"memory": "16384Mi"}}
    small = {"requests": {"cpu": "1", "memory": "5120Mi"}, "limits": {"memory": "5120Mi"}}
    assert pod("db.big") == pod("db.small", "db.big") == ("8192m", large, {"pool": "large"})
    assert pod("db.small") == ("4096m", small, {})
    assert pod("db.other") == pod() == (None, launcher["resources"], {})


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [{"pod_spec": {}}, {"pod_spec_config": {"nodeSelectr": {}}}])
def test_what_dagster_k8s_does_not_take_ends_the_load_of_the_code_location(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("dagster_k8s")
    path = tmp_path / "lifecycle.yaml"
    path.write_text(yaml.safe_dump({"tables": {"db.big": {"run": {"kubernetes": wrong}}}}))
    with pytest.raises(ConfigError, match=r"run\.kubernetes of db\.big .*(pod_spec|nodeSelectr)"):
        build_definitions(path)


@pytest.mark.nightly
def test_dagster_s_chart_renders_what_two_versions_of_kubernetes_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("no helm on the path")
    chart = ["dagster", "--repo", CHART, "--version", version("dagster")]
    (tmp_path / "values.yaml").write_text(printed("helm-values"))
    command = [helm, "template", "dagster", *([FOLDER, "--skip-schema-validation"] if FOLDER else chart)]
    done = subprocess.run([*command, "-f", str(tmp_path / "values.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    (written,) = (each["data"]["dagster.yaml"] for each in found if each["metadata"]["name"] == "dagster-instance")
    (tmp_path / "dagster.yaml").write_text(written)
    rendered, _ = dagster_instance_config(str(tmp_path))
    for key, value in yaml.safe_load(printed("dagster.yaml")).items():
        assert key == "storage" or is_within(value, rendered[key]), key

    job = job_of_a_run(rendered["run_launcher"]["config"], monkeypatch)
    (tmp_path / "all.yaml").write_text(done.stdout + "\n---\n" + yaml.safe_dump(job))
    uv = Path(sys.executable).with_name("uv")
    for kubernetes in KUBERNETES:
        validate = [uv, "tool", "run", "kubernetes-validate", "--strict", "-k", kubernetes, tmp_path / "all.yaml"]
        said = subprocess.run(validate, capture_output=True, text=True)
        assert said.returncode == 0, said.stdout + said.stderr
        assert (said.stdout + said.stderr).count("passed for resource deployment/") == 3
        assert "passed for resource job/run" in said.stdout + said.stderr


def is_within(value: object, of: object) -> bool:
    if isinstance(value, dict) and isinstance(of, dict):
        return all(key in of and is_within(each, of[key]) for key, each in value.items())
    return value == of
