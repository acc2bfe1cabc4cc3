"""The `artemis` command: output, exit codes, errors that say what to do. The steps are tested by the rooms."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle import cli
from artemis_lifecycle.config import LifecycleConfig


@pytest.fixture
def file(config: LifecycleConfig, tmp_path: Path) -> Path:
    """A lifecycle.yaml of the test's own catalogs (JSON is YAML)."""
    written = tmp_path / "lifecycle.yaml"
    written.write_text(config.model_dump_json(by_alias=True))
    return written


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["artemis", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_tables_and_history_of_a_real_table(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: Path,
    config: LifecycleConfig,
    spark: SparkSession,
) -> None:
    live = config.catalogs.live.name
    spark.sql(f"CREATE NAMESPACE {live}.db")
    spark.sql(f"CREATE TABLE {live}.db.t (id int) USING iceberg")
    spark.sql(f"INSERT INTO {live}.db.t VALUES (1)")
    assert _run(monkeypatch, "tables", "--json", "-c", str(file)) == 0
    assert json.loads(capsys.readouterr().out) == {"db.t": None}
    assert _run(monkeypatch, "history", "db.t", "--json", "-c", str(file)) == 0
    history = json.loads(capsys.readouterr().out)
    assert history["table"] == "db.t" and len(history["snapshots"]) == 1
    assert _run(monkeypatch, "history", "db.t", "-c", str(file)) == 0
    assert str(history["snapshots"][0]["snapshot_id"]) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["history", "db.absent"], 2, "NoSuchTable"),
        (["history", "no_namespace"], 2, "BadInput"),
        (["plan", "db.t", "--now", "yesterday"], 2, "is no instant"),
        (["plan", "db.t", "--now", "2026-01-31T00:00:00"], 2, "has no time zone"),
        (["commit", "0" * 32], 2, "NoSuchPlan"),
        (["release", "hold-of-nobody"], 2, "NoSuchPlan"),
    ],
)
def test_bad_input_is_an_error_that_names_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: Path,
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    assert _run(monkeypatch, *arguments, "-c", str(file)) == code
    told = " ".join(capsys.readouterr().err.split())
    assert says in told and "Next:" in told
    assert _run(monkeypatch, *arguments, "--json", "-c", str(file)) == code
    assert json.loads(capsys.readouterr().out)["message"]


def test_an_unreadable_configuration_names_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "lifecycle.yaml"
    bad.write_text("defaults:\n  retention:\n    widnow: 30d\n")
    assert _run(monkeypatch, "tables", "-c", str(bad)) == 2
    assert "line 3" in " ".join(capsys.readouterr().err.split())
    assert _run(monkeypatch, "tables", "-c", str(tmp_path / "absent.yaml")) == 2


def test_an_unreachable_postgres_is_told_without_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    monkeypatch.setenv("ARTEMIS_POSTGRES_URI", "postgresql+psycopg2://artemis:hush-hush@127.0.0.1:1/artemis")
    assert _run(monkeypatch, "tables", "-c", str(file)) == 5
    told = capsys.readouterr().err
    assert "OperationsUnavailable" in told and "hush-hush" not in told
