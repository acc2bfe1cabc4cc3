"""`artemis doctor`: everything that is wrong in one pass, how to fix it, and nothing changed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from sqlalchemy import Engine, create_engine, text

from artemis_lifecycle import Lifecycle, cli
from artemis_lifecycle.catalogs.guard import ensure_guard
from artemis_lifecycle.catalogs.sql import ensure_tables
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.doctor import services
from artemis_lifecycle.doctor.diagnosis import diagnose
from artemis_lifecycle.doctor.services import Check
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.storage.stores import Stores

EMPTY_DATABASE = True

Write = Callable[..., Path]


@pytest.fixture
def write(postgres_uri: str, tmp_path: Path) -> Write:
    """`write(**sections)`: a lifecycle.yaml with every address, and these sections in the place of its own."""

    def make(**sections: Any) -> Path:
        tiers = {
            tier: {"name": tier, "uri": postgres_uri, "warehouse": str(tmp_path / tier)} for tier in ("live", "cold")
        }
        operations = {"uri": postgres_uri, "root": str(tmp_path / "state")}
        file = tmp_path / "lifecycle.yaml"
        file.write_text(yaml.safe_dump({"catalogs": tiers, "operations": operations, "home": ".artemis", **sections}))
        return file

    return make


@pytest.fixture
def engine(postgres_uri: str) -> Any:
    engine = create_engine(postgres_uri)
    yield engine
    engine.dispose()


def _by_name(checks: tuple[Check, ...]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def _relations(engine: Engine) -> set[str]:
    own = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace::regnamespace::text !~ '^pg_|^information'"
    with engine.connect() as connection:
        return set(connection.execute(text(own)).scalars())


@pytest.mark.seconds
def test_doctor_changes_nothing_and_is_green_where_all_is_well(
    write: Write, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, before = write(), _relations(engine)
    written: list[str] = []
    for each in ("write", "copy", "duplicate", "delete", "remove", "remove_empty"):
        monkeypatch.setattr(Stores, each, lambda *_, name=each, **__: written.append(name))
    monkeypatch.setattr("sys.argv", ["artemis", "doctor", "--json", "-c", str(file)])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    named = {"java", "versions", "configuration", "free space", "catalogs.live", "catalogs.cold", "operations", "roles"}
    named |= {"compiled loops", "cold guard", "lineage gate", "deployment", "roots", "clocks", "executors' Python"}
    named |= {"catalogs.live.warehouse", "catalogs.cold.warehouse", "operations.root", "quarantine.root"}
    assert named == set(checks)
    assert {each["status"] for each in checks.values()} <= {"ok", "warning"}, checks
    # An empty live catalog is a warning: it may be the wrong one.
    assert checks["catalogs.live"]["status"] in ("ok", "warning")
    assert _relations(engine) == before
    assert list(tmp_path.iterdir()) == [file] and not written
    monkeypatch.undo()
    probed = _by_name(diagnose(file, write_probe=True))
    assert probed["catalogs.cold.warehouse"].detail.endswith("writes, reads, deletes")
    assert "stores agree" in probed["clocks"].detail
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != file]
    with Lifecycle.open(file) as lifecycle:
        lifecycle.tables()
    assert _by_name(diagnose(file))["deployment"].status == "ok"
    row = "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) VALUES "
    ensure_tables(engine)
    with engine.begin() as connection:
        connection.execute(text(row + "('live', 'db', 't', 'file:///other/v1.metadata.json')"))
    assert "elsewhere" not in str(_by_name(diagnose(file))["catalogs.live.warehouse"])
    (tmp_path / "live").rmdir()
    assert "elsewhere" in _by_name(diagnose(file))["catalogs.live.warehouse"].detail
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables"))


def test_every_problem_of_a_configuration_and_of_what_it_names_is_reported_in_one_pass(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], postgres_uri: str
) -> None:
    dead = "postgresql+psycopg2://me:topsecret%40one@127.0.0.1:1/db"
    keys = {"s3.access-key-id": "AKIATOPSECRET", "s3.secret-access-key": "topsecret2"}
    there = {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "r"}
    file = write(
        catalogs={
            "live": {"uri": dead, "warehouse": "s3://bucket/live", "properties": keys | there},
            "cold": {"uri": postgres_uri, "warehouse": str(tmp_path / "a-file" / "cold")},
        },
        defaults={"retention": {"window": 30}, "deletion": {"grace": "0s"}},
        nonsense=1,
        spark={"python": "/nowhere/python"},
    )
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(services, "version", lambda name: "0.0.1" if name == "pyspark" else machine_version(name))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**29))
    monkeypatch.setattr("artemis_lifecycle.session.resources.host_now", lambda: datetime.now(UTC) + timedelta(hours=1))
    monkeypatch.setattr("sys.argv", ["artemis", "doctor", "-c", str(file)])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    output = capsys.readouterr()
    checks = diagnose(file)
    lines = file.read_text().splitlines()
    for key in ("window: 30", "nonsense: 1"):
        number = next(index for index, line in enumerate(lines, 1) if line.strip() == key)
        assert f"line {number}: " in output.out
    red = {check.name for check in checks if check.status == "failed"}
    assert red >= {"configuration", "java", "versions", "free space", "catalogs.live", "catalogs.live.warehouse"}
    assert red >= {"catalogs.cold.warehouse", "clocks", "executors' Python"}
    assert all(check.fix for check in checks if check.status == "failed")
    found = _by_name(checks)
    assert found["delays"].detail.startswith("defaults.deletion.grace is 0")
    assert "pyspark 0.0.1" in found["versions"].detail and "bin/java" in found["java"].detail
    assert "clocks.max_difference" in found["clocks"].detail
    assert found["operations"].status == found["catalogs.cold"].status == "ok"
    for shown in (output.out, output.err, repr(checks)):
        assert "topsecret" not in shown.lower()


def test_rights_that_a_disk_lacks_are_found_without_writing(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    found = _by_name(diagnose(write()))
    assert found["operations.root"].status == "failed" and "may not read and write" in found["operations.root"].detail


class Usage(NamedTuple):
    """What a nearly full disk has."""

    free: int


machine_version = services.version


@pytest.mark.seconds
def test_a_cold_guard_that_is_lost_a_foreign_deployment_and_a_strange_schema_are_red(
    write: Write, engine: Engine, postgres_uri: str
) -> None:
    file = write(tables={"db.*": {}})
    ensure_tables(engine)
    with engine.begin() as connection:
        row = "VALUES ('cold', 'db', 't', 'file:///m.json', NULL, 'TABLE')"
        connection.execute(text(f"INSERT INTO iceberg_tables {row}"))
    ensure_guard(engine, "cold", "live")
    Operations.open(postgres_uri).close()
    found = _by_name(diagnose(file))
    assert found["cold guard"].status == found["operations"].status == found["roles"].status == "ok"
    with Lifecycle.open(load_config(file)) as lifecycle:
        lifecycle.resources.require_deployment()
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE iceberg_tables DISABLE TRIGGER artemis_cold"))
        connection.execute(text("UPDATE artemis_live.deployments SET operations_id = 'another'"))
    found = _by_name(diagnose(file))
    assert found["cold guard"].status == "failed" and "artemis_cold" in found["cold guard"].detail
    assert found["deployment"].status == "failed" and "take-over" in found["deployment"].fix
    with engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.alembic_version SET version_num = '9999'"))
    assert _by_name(diagnose(file))["operations"].status == "failed"


def test_doctor_without_a_lifecycle_yaml_starts_no_postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = _by_name(diagnose())
    assert found["configuration"].status == "failed" and f"{tmp_path}/lifecycle.yaml" in found["configuration"].detail
    assert found["catalogs.live"].status == found["clocks"].status == "skipped"
    assert found["executors' Python"].detail.startswith(sys.executable)
    assert not list(tmp_path.iterdir())


def test_entries_without_a_table_near_misses_and_patterns_that_tie_are_listed(
    write: Write, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ensure_tables(engine)
    with engine.begin() as connection:
        for name in ("legal", "orders", "axb"):
            row = f"VALUES ('live', 'db', '{name}', 'file:///m.json', NULL, 'TABLE')"
            connection.execute(text(f"INSERT INTO iceberg_tables {row}"))
    entries = ["db.Legal", "db.orders ", "live.db.orders", "db.ordres", "gone.*", "db.a*", "db.*b", "db.legal"]
    file = write(tables={key: {} for key in entries})
    found = [check for check in diagnose(file) if check.name == "tables"]
    warned = {check.detail.partition("'")[2].partition("'")[0]: check for check in found if check.status == "warning"}
    assert set(warned) == {"db.Legal", "db.orders ", "live.db.orders", "db.ordres", "gone.*"}
    assert {entry: check.fix for entry, check in warned.items() if entry != "gone.*"} == {
        "db.Legal": "write db.legal",
        "db.orders ": "write db.orders",
        "live.db.orders": "write db.orders",
        "db.ordres": "write db.orders",
    }
    (red,) = (check for check in found if check.status == "failed")
    assert "db.axb" in red.detail and "db.*b, db.a*" in red.detail and red.fix
    monkeypatch.setattr("sys.argv", ["artemis", "tables", "--json", "-c", str(file)])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert json.loads(capsys.readouterr().out) == {"db.axb": "db.*b = db.a*", "db.legal": "db.legal", "db.orders": None}
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = 'live'"))


@pytest.mark.parametrize(("operations", "status"), [(["overwrite"], "warning"), (None, "ok")])
def test_doctor_says_whether_deletes_count_as_overwrites(operations: list[str] | None, status: str) -> None:
    overwrite: dict[str, Any] = {"writers": ["airflow"], **({"operations": operations} if operations else {})}
    config = LifecycleConfig.model_validate({"tables": {"db.t": {"lineage": {"overwrite": overwrite}}, "db.u": {}}})
    (row,) = services.overwrites(config)
    assert row.status == status and "db.t" in row.detail and "db.u" not in row.detail
