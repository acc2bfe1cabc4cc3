"""A session has what this project needs, or is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.spark.executors import local_cores
from artemis_lifecycle.spark.session import (
    EXTENSIONS,
    add_catalogs,
    live_session,
    open_session,
    session_conf,
)
from artemis_lifecycle_tests.conftest import MakeConfig


def config(**spark: object) -> LifecycleConfig:
    return LifecycleConfig.model_validate({"spark": {"master": "local[2]", **spark}})


def test_the_users_settings_win_and_required_ones_stay() -> None:
    own = {
        "spark.ui.enabled": "true",
        "spark.sql.extensions": f"org.example.Theirs,{EXTENSIONS}",
        "spark.jars": "theirs.jar",
        "spark.sql.catalog.live.clients": "7",
    }
    conf = session_conf(config(conf=own), {"spark.sql.catalog.live.clients": "2"}, [Path("ours.jar")])
    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.sql.extensions"] == f"{EXTENSIONS},org.example.Theirs"
    assert conf["spark.jars"] == "ours.jar,theirs.jar"
    assert conf["spark.sql.catalog.live.clients"] == "7"


def test_a_cluster_keeps_its_own_parallelism_memory_and_addresses() -> None:
    conf = session_conf(config(master="spark://somewhere:7077"), {})
    for key in ("spark.sql.shuffle.partitions", "spark.driver.memory", "spark.driver.host", "spark.jars"):
        assert key not in conf


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[4,2]", 4), ("local[*]", os.cpu_count()), ("yarn", None), ("k8s://x", None)],
)
def test_a_local_master_is_distinguished_from_a_cluster(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores


def test_workers_are_this_environments(spark: SparkSession) -> None:
    executable = udf(lambda _: sys.executable)
    assert spark.range(1).select(executable("id")).first()[0] == sys.executable


def test_a_live_session_is_used_and_given_the_catalogs_alone(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    conf = {"spark.sql.catalog.another": "org.example.Catalog", "spark.sql.session.timeZone": "Asia/Tokyo"}
    assert open_session(conf) is spark
    assert spark.conf.get("spark.sql.catalog.another") == "org.example.Catalog"
    assert spark.conf.get("spark.sql.session.timeZone") == before
    spark.conf.unset("spark.sql.catalog.another")


def test_what_a_test_writes_is_an_iceberg_table_that_no_other_test_sees(
    config: LifecycleConfig, spark: SparkSession
) -> None:
    live, cold = config.catalogs.live.name, config.catalogs.cold.name
    for catalog in (live, cold):
        spark.sql(f"CREATE NAMESPACE {catalog}.ns")
        assert spark.sql(f"SHOW NAMESPACES IN {catalog}").count() == 1
    spark.sql(f"CREATE TABLE {live}.ns.t USING iceberg AS SELECT 1 AS x")
    assert spark.table(f"{live}.ns.t.snapshots").count() == 1
    assert spark.sql(f"SHOW TABLES IN {cold}.ns").count() == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_a_session_without_the_jars_is_refused_by_their_names() -> None:
    code = """
from pyspark.sql import SparkSession
from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.spark.session import open_session
bare = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    open_session({"spark.jars": "too-late.jar"})
except EnvironmentMissing as refused:
    print(refused)
bare.stop()
"""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=180)
    assert "lacks org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0" in done.stdout, done.stderr
    assert "org.postgresql:postgresql:" in done.stdout


def test_catalogs_of_a_refused_session_are_not_set(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("artemis_lifecycle.spark.session._CLASSES", {"org.example.Missing": _jar()})
    with pytest.raises(Exception, match=r"org\.example:missing:1"):
        add_catalogs(spark, {"spark.sql.catalog.never": "x"})
    assert spark.conf.get("spark.sql.catalog.never", None) is None


def test_a_session_without_the_paced_clients_opens_its_catalogs_all_the_same(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("artemis_lifecycle.spark.session.PACED_CLIENTS", "artemis.lifecycle.Nowhere")
    factory, other = "spark.sql.catalog.unpaced.s3.client-factory-impl", "spark.sql.catalog.unpaced.type"
    add_catalogs(spark, {factory: "artemis.lifecycle.Nowhere", other: "rest"})
    assert spark.conf.get(factory, None) is None and spark.conf.get(other) == "rest"
    assert "does not keep to the budget" in caplog.text
    spark.conf.unset(other)


def _jar() -> object:
    from artemis_lifecycle.embedded.jars import Jar

    return Jar("org.example", "missing", "1", "0" * 64)


def test_another_threads_session_is_seen_and_left_running(spark: SparkSession, make_config: MakeConfig) -> None:
    def work() -> tuple[SparkSession | None, int]:
        with Lifecycle.open(make_config()) as lifecycle:
            found = lifecycle.spark.range(3).count()
        return live_session(), found

    with ThreadPoolExecutor(1) as pool:
        seen, found = pool.submit(work).result()
    assert seen is spark and found == 3
    assert spark.range(3).count() == 3


_WITH_SECRETS = """
import logging, os, subprocess, sys
from pathlib import Path
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.spark.session import add_catalogs, open_session

logging.basicConfig(level=logging.DEBUG, filename=sys.argv[2])
jars = ",".join(map(str, resolve(Path(sys.argv[1]))))
odd = "p=a:s#s !w\\\\\u00f6\U0001f600 topsecret1"
given = {"spark.sql.catalog.c.jdbc.password": odd, "spark.hadoop.fs.s3a.secret.key": "topsecret2"}
own = {"spark.master": "local[1]", "spark.driver.memory": "1g", "spark.ui.enabled": "false", "spark.jars": jars}
spark = open_session({**own, **given, "spark.sql.catalog.c": "org.apache.iceberg.spark.SparkCatalog"})
# Who runs as root asks as another user of the machine.
asking = {"user": "nobody"} if os.getuid() == 0 else {}
seen = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True, **asking).stdout
assert any("SparkSubmit" in line for line in seen.splitlines()) and "topsecret" not in seen, seen
assert not [path for path in Path(os.environ["TMPDIR"]).glob("artemis-spark-*")]
add_catalogs(spark, {"spark.sql.catalog.d.jdbc.password": "topsecret3"})
logged = Path(sys.argv[2]).read_text()
assert "py4j" in logged and "topsecret" not in logged
assert spark.conf.get("spark.sql.catalog.c.jdbc.password") == odd
assert spark.conf.get("spark.sql.catalog.d.jdbc.password") == "topsecret3"
assert spark.sparkContext.getConf().get("spark.hadoop.fs.s3a.secret.key") == "topsecret2"
spark.stop()
"""


def test_no_secret_is_on_sparks_command_line_nor_in_a_log(spark: SparkSession, tmp_path: Path) -> None:
    jars = Path(str(spark.conf.get("spark.jars")).partition(",")[0]).parent.parent
    (tmp_path / "script.py").write_text(_WITH_SECRETS)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(jars), str(tmp_path / "log")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
