"""Looking changes nothing: a question takes a foreign catalog as it is, and needs no right but to read."""

from __future__ import annotations

import json
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyspark.sql import SparkSession
from sqlalchemy import Engine, create_engine, text

from artemis_lifecycle import Lifecycle, cli
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.doctor.diagnosis import diagnose
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.errors import OtherDeployment

pytestmark = pytest.mark.seconds

EMPTY_DATABASE = True

V0 = """
CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
    PRIMARY KEY (catalog_name, table_namespace, table_name));
CREATE TABLE iceberg_namespace_properties (catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,
    property_key VARCHAR(255), property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key));
"""
EVERYTHING = """
SELECT 'relation ' || c.oid::regclass || ' ' || coalesce(c.relacl::text, '')
    || coalesce((SELECT string_agg(a.attname, ',')
    FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0), '') FROM pg_class AS c
    WHERE c.relnamespace::regnamespace::text !~ '^pg_|^information'
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger UNION ALL SELECT 'schema ' || nspname FROM pg_namespace
    WHERE nspname !~ '^pg_' UNION ALL SELECT 'rows ' || count(*) FROM iceberg_tables
UNION ALL SELECT 'rows ' || md5(string_agg(t::text, '')) FROM iceberg_tables AS t
"""


@pytest.fixture
def uri(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database of Iceberg's schema version V0, and nothing else."""
    name, server = f"looking_{uuid.uuid4().hex[:8]}", create_engine(postgres.uri("postgres"))
    with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    with _engine(postgres.uri(name)) as engine, engine.begin() as connection:
        connection.exec_driver_sql(V0)
    yield postgres.uri(name)
    with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    server.dispose()


@contextmanager
def _engine(uri: str) -> Iterator[Engine]:
    engine = create_engine(uri)
    yield engine
    engine.dispose()


@pytest.fixture
def write(uri: str, tmp_path: Path) -> Callable[[str], Path]:
    """`write(uri)`: a lifecycle.yaml on the catalog, which has one table of two snapshots."""
    from pyiceberg.catalog.sql import SqlCatalog

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        catalog = SqlCatalog("live", uri=uri, warehouse=f"file://{tmp_path}/live")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64())]))
    for number in range(2):
        table.append(pa.table({"id": [number]}))
    catalog.close()

    def written(uri: str) -> Path:
        tiers = {each: {"uri": uri, "warehouse": str(tmp_path / each)} for each in ("live", "cold")}
        operations = {"uri": uri, "root": str(tmp_path / "state")}
        file = tmp_path / "lifecycle.yaml"
        file.write_text(yaml.safe_dump({"catalogs": tiers, "operations": operations, "tables": {"db.*": {}}}))
        return file

    return written


def _everything(uri: str) -> set[str]:
    with _engine(uri) as engine, engine.connect() as connection:
        return set(connection.execute(text(EVERYTHING)).scalars())


def _login(uri: str, rights: str = "") -> str:
    """The address of a new login with these rights; `{}` in them is its name."""
    name = f"looker_{uuid.uuid4().hex[:8]}"
    with _engine(uri) as engine:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'; " + rights.replace("{}", name))
        return engine.url.set(username=name, password="secret").render_as_string(hide_password=False)


def _ask_all(lifecycle: Lifecycle) -> None:
    assert lifecycle.tables() == ["db.t"]
    history = lifecycle.snapshot_history("db.t")
    assert len(history.snapshots) == 2
    assert len(lifecycle.reachable_set("db.t").snapshot_ids) == 2
    assert lifecycle.explain("db.t", history.metadata_location).verdict
    assert lifecycle.health("db.t").score > 0
    assert lifecycle.plans("db.t") == lifecycle.dropped_tables() == []
    assert [each.table for each in lifecycle.fleet().tables] == ["db.t"]


@pytest.mark.parametrize("rights", [None, "GRANT SELECT ON iceberg_tables, iceberg_namespace_properties TO {}"])
def test_no_question_changes_a_catalog_of_v0_or_needs_more_than_to_read(
    rights: str | None, uri: str, write: Callable[[str], Path]
) -> None:
    file = write(uri if rights is None else _login(uri, rights))
    before = _everything(uri)
    with Lifecycle.open(file) as lifecycle:
        _ask_all(lifecycle)
        assert lifecycle.holds("db.t") == []
    assert _everything(uri) == before


@pytest.mark.parametrize("verb", [["tables"], ["history", "db.t"], ["reachable", "db.t"], ["plan", "db.t"]])
def test_a_missing_right_is_one_line_with_the_statement_for_the_owner(
    verb: list[str],
    uri: str,
    write: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = "GRANT SELECT ON iceberg_tables, iceberg_namespace_properties TO {}"
    file = write(_login(uri, reads if verb[0] == "plan" else ""))
    before = _everything(uri)
    monkeypatch.setattr("sys.argv", ["artemis", *verb, "-c", str(file)])
    with pytest.raises(SystemExit, match="3"):
        cli.main()
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and "GRANT" in said and "Traceback" not in said
    assert _everything(uri) == before
    found = {check.name: check for check in diagnose(file)}
    assert "GRANT" in found["catalogs.live"].fix and found["catalogs.live"].status in ("failed", "warning")
    assert "artemis init" in found["operations"].fix


def test_the_first_step_that_writes_makes_the_products_own_and_says_so(
    uri: str, write: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with Lifecycle.open(write(uri)) as lifecycle:
        lifecycle.tables()
        assert not caplog.text.count("Schema lifecycle was made")
        hold = lifecycle.hold("db.t", owner="ada", reason="an audit")
        assert caplog.text.count("Schema lifecycle was made") == 1
        assert [each.hold_id for each in lifecycle.holds("db.t")] == [hold.hold_id]
        assert lifecycle.resources.live_catalog.deployments(lifecycle.live_stores).newest()
    made = _everything(uri)
    assert "schema lifecycle" in made and "schema artemis_live" in made
    assert not any("iceberg_type" in each for each in made)
    with Lifecycle.open(write(uri)) as lifecycle:
        _ask_all(lifecycle)


def test_a_question_of_another_deployment_is_refused_before_it_has_a_schema(
    uri: str, write: Callable[[str], Path], postgres_uri: str
) -> None:
    file = write(uri)
    with Lifecycle.open(file) as lifecycle:
        lifecycle.hold("db.t", owner="ada", reason="an audit")
    config = load_config(file)
    operations = config.operations.model_copy(update={"uri": postgres_uri})
    with Lifecycle.open(config.model_copy(update={"operations": operations})) as other:
        for ask in (lambda: other.holds("db.t"), lambda: other.hold("db.t", owner="bob", reason="none")):
            with pytest.raises(OtherDeployment):
                ask()


def test_init_makes_all_ahead_and_lists_it_and_changes_nothing_again(
    uri: str, write: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(*more: str) -> list[dict[str, str]]:
        monkeypatch.setattr("sys.argv", ["artemis", "init", "--json", "-c", str(file), *more])
        with pytest.raises(SystemExit, match="0"):
            cli.main()
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    file, before = write(uri), _everything(uri)
    planned = init("--dry-run")
    assert _everything(uri) == before
    done = init()
    assert [each["what"] for each in done] == [each["what"] for each in planned]
    assert {each["state"] for each in done if "roles" not in each["what"]} == {"made"} | {
        each["state"] for each in planned if each["state"] == "there"
    }
    listed = " ".join(each["what"] for each in done)
    assert all(
        word in listed for word in ("lifecycle", "artemis_live", "artemis_cold", "iceberg_type", "artemis_approver")
    )
    made = _everything(uri)
    assert any("iceberg_type" in each for each in made) and "trigger artemis_cold" in made
    assert {each["state"] for each in init()} == {"there"} and _everything(uri) == made
    user = _login(uri, "GRANT artemis_lifecycle TO {}")
    with Lifecycle.open(write(user)) as lifecycle:
        assert lifecycle.plan_expiration("db.t").plan_id
    found = {check.name: check for check in diagnose(file)}
    assert {found[name].status for name in ("catalogs.live", "operations", "roles", "cold guard", "tables")} == {"ok"}


def test_a_reader_that_was_first_sees_what_another_process_records_later(
    uri: str, write: Callable[[str], Path]
) -> None:
    file = write(uri)
    with Lifecycle.open(file) as reader, Lifecycle.open(file) as writer:
        assert reader.holds("db.t") == []
        hold = writer.hold("db.t", owner="ada", reason="an audit")
        assert [each.hold_id for each in reader.holds("db.t")] == [hold.hold_id]


def test_spark_reads_a_catalog_of_v0_and_leaves_it_so(
    uri: str, write: Callable[[str], Path], spark: SparkSession
) -> None:
    config, name = load_config(write(uri)), f"looked_{uuid.uuid4().hex[:8]}"
    with _engine(uri) as engine, engine.begin() as connection:
        for table in ("iceberg_tables", "iceberg_namespace_properties"):
            connection.exec_driver_sql(f"UPDATE {table} SET catalog_name = '{name}'")
    before = _everything(uri)
    tiers = {
        tier: getattr(config.catalogs, tier).model_copy(update={"name": f"{name}{suffix}"})
        for tier, suffix in (("live", ""), ("cold", "_cold"))
    }
    config = config.model_copy(update={"catalogs": config.catalogs.model_copy(update=tiers)})
    with Lifecycle.open(config, spark=spark) as lifecycle:
        assert lifecycle.read("db.t").count() == 2
        assert len(lifecycle.reachable_set("db.t").data_file_paths.collect()) == 2
    assert _everything(uri) == before
