"""The demo's REST server and the gate before it, on a gated table: refused without lineage, also past the gate."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle_tests.conftest import REPOSITORY, MakeConfig
from artemis_lifecycle_tests.contracts.test_requirements import COMPLETE
from examples.mission import rest

TABLE = "ns.t"
LINEAGE = {key: value for key, value in COMPLETE.items() if key != "operation"}


def _with_jars_of_the_repository(config: LifecycleConfig) -> LifecycleConfig:
    return config.model_copy(update={"home": REPOSITORY / ".artemis"})


def test_rest_passes_both_gates_with_lineage_and_neither_without(
    make_config: MakeConfig, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tables={TABLE: {}})
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    path = tmp_path / "lifecycle.yaml"
    addresses = config.model_dump(mode="json", include={"catalogs", "operations"})
    path.write_text(json.dumps({**addresses, "tables": {TABLE: {}}}))
    live = config.catalogs.live
    spark.sql(f"CREATE NAMESPACE {live.name}.ns")
    spark.sql(f"CREATE TABLE {live.name}.{TABLE} USING iceberg PARTITIONED BY (id) AS SELECT 1 AS id")
    with Lifecycle.open(config, spark=spark) as lifecycle:
        lifecycle.enable_gate()

        def writers() -> list[str | None]:
            found = load_catalog("rest", type="rest", uri=upstream).load_table(TABLE).metadata.snapshots
            return [each.summary and each.summary.additional_properties.get("writer.id") for each in found]

        with (
            rest.server(_with_jars_of_the_repository(config), tmp_path / "server.log") as upstream,
            rest.proxy(upstream, path, tmp_path) as address,
        ):
            assert "required key writer.id is missing" in rest.refusal(address, TABLE)
            # Past the gate the database refuses. Iceberg's server makes a 500 of that, which leaves a client in doubt.
            with pytest.raises(CommitStateUnknownException, match="LineageRejectedException"):
                rest.append(upstream, TABLE, {})
            assert writers() == [None]
            rest.append(address, TABLE, LINEAGE)
            assert writers() == [None, LINEAGE["writer.id"]]
        (attempt,) = lifecycle.operations.gate_attempts.of(TABLE)
        assert attempt.refused and "PyIceberg" in attempt.who
    for ended in (upstream, address):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{ended}/v1/config")
    password = make_url(live.uri or "").password
    assert isinstance(password, str)
    assert all(password not in log.read_text() for log in tmp_path.glob("*.log"))
    assert spark.table(f"{live.name}.{TABLE}").count() == 2


def test_without_its_jars_it_says_which_is_missing(
    config: LifecycleConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTEMIS_JARS", str(tmp_path))
    with (
        pytest.raises(EnvironmentMissing, match=r"without iceberg-core-1\.10\.0\.jar"),
        rest.rest_gate(config, tmp_path / "lifecycle.yaml", tmp_path),
    ):
        pass
