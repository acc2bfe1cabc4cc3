"""Every address that is left out is filled; every one that is given is used, and nothing is started for it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from artemis_lifecycle import Lifecycle, cli
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded import addresses
from artemis_lifecycle.embedded.__main__ import main
from artemis_lifecycle.embedded.addresses import dagster_postgres_url, embedded_postgres, fill
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.errors import ConfigError, OperationsUnavailable
from artemis_lifecycle_tests.conftest import REPOSITORY
from examples.mission.area import demo_area

OWN = "postgresql+psycopg2://someone:secret@127.0.0.1:1/theirs"


def config(home: Path, **sections: Any) -> LifecycleConfig:
    return LifecycleConfig.model_validate({"home": home, **sections})


def all_uris(uri: str = OWN) -> dict[str, Any]:
    return {
        "catalogs": {tier: {"name": tier, "uri": uri} for tier in ("live", "cold")},
        "operations": {"uri": uri},
    }


@pytest.mark.slow
def test_the_first_run_has_nothing_to_configure(place: Path) -> None:
    filled = fill(config(place / "home"))
    assert filled.catalogs.live.uri == filled.catalogs.cold.uri == filled.operations.uri
    assert filled.operations.uri is not None
    with create_engine(filled.operations.uri).connect() as connection:
        assert connection.execute(text("SELECT current_database()")).scalar_one() == "artemis"
    home = f"file://{place}/home"
    assert filled.catalogs.live.warehouse == f"{home}/warehouse/live"
    assert filled.catalogs.cold.warehouse == f"{home}/warehouse/cold"
    assert filled.operations.root == f"{home}/state"
    assert filled.quarantine.root == f"{home}/quarantine"
    assert dagster_postgres_url(filled).endswith("/dagster")
    assert dagster_postgres_url(filled) == dagster_postgres_url(config(place / "home"))


def test_addresses_that_are_given_start_nothing(tmp_path: Path) -> None:
    filled = fill(config(tmp_path / "home", **all_uris()))
    assert filled.operations.uri == OWN
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("written", [None, "", "# nothing\n", "{}\n"])
def test_without_a_lifecycle_yaml_that_says_something_no_postgres_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    if written is not None:
        Path("lifecycle.yaml").write_text(written)
    with pytest.raises(ConfigError, match=f"{tmp_path}/lifecycle.yaml.*--config or ARTEMIS_CONFIG"):
        Lifecycle.open()
    with pytest.raises(ConfigError, match=f"{tmp_path}/lifecycle.yaml"):
        dagster_postgres_url(load_config())
    monkeypatch.setattr("sys.argv", ["artemis", "tables"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert not Path(".artemis").exists()


@pytest.mark.slow
def test_setup_and_an_explicit_home_start_postgres_without_a_lifecycle_yaml(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("ARTEMIS_JARS", str(REPOSITORY / ".artemis" / "jars"))
    assert main(["start"]) == 2
    assert main(["setup"]) == 0
    assert EmbeddedPostgres(place / ".artemis").status().running
    monkeypatch.setenv("ARTEMIS_HOME", "elsewhere")
    assert embedded_postgres(load_config()).home == place / "elsewhere"


def test_a_lifecycle_yaml_that_names_no_address_uses_the_embedded_postgres(tmp_path: Path) -> None:
    file = tmp_path / "lifecycle.yaml"
    file.write_text("defaults: {retention: {window: 7d}}\n")
    assert embedded_postgres(load_config(file, {})).home == tmp_path / ".artemis"


def test_artemis_embedded_never_forbids_the_embedded_postgres_to_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARTEMIS_EMBEDDED", "never")
    for start in (lambda: fill(config(tmp_path)), lambda: fill(load_config(), set_up=True)):
        with pytest.raises(ConfigError, match=r"ARTEMIS_EMBEDDED=never.*ARTEMIS_POSTGRES_URI"):
            start()
    with pytest.raises(ConfigError, match="ARTEMIS_EMBEDDED=never"), demo_area(tmp_path):
        pass
    assert main(["setup"]) == 2 and not (tmp_path / ".artemis").exists()
    assert fill(config(tmp_path / "home", **all_uris())).operations.uri == OWN
    monkeypatch.setenv("ARTEMIS_EMBEDDED", "nevr")
    with pytest.raises(ConfigError, match="set it to never, or unset it"):
        fill(config(tmp_path))


def test_every_section_comes_through(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "spark": {"master": "local[3]"},
        "reachability": {"threads": 3, "cache": "redis://127.0.0.1/0"},
        "deep_archive": {"days": 3},
        "quarantine": {"root": "file:///somewhere/else", "retain": "3d"},
        "records": {"keep": "3d"},
        "reading": {"max_ratio": 3},
        "clocks": {"max_difference": "3m"},
        "alerts": {"webhook": "https://hooks.example/T0"},
        "dagster": {"owners": ["team:lake"]},
        "lineage_events": {"url": "https://lineage.example/api"},
        "prices": {"classes": {"STANDARD": {"gb_month": 0.5}}},
        "defaults": {"retention": {"window": "3d"}},
        "tables": {"a.b": {"retention": {"window": "9d"}}},
    }
    given = config(tmp_path, **all_uris(), **said)
    filled = fill(given)
    assert said.keys() | {"catalogs", "operations", "home"} == set(LifecycleConfig.model_fields)
    for section in said:
        assert getattr(filled, section) == getattr(given, section) != getattr(config(tmp_path), section)
    assert filled.policy("a.b").retention.window == timedelta(days=9)
    assert filled.policy("a.c").retention.window == timedelta(days=3)
    assert filled.explicit_window("a.b") == timedelta(days=9)
    assert filled.explicit_window("a.c") is None


def test_cold_and_state_are_next_to_a_configured_warehouse(tmp_path: Path) -> None:
    own = all_uris()
    own["catalogs"]["live"]["warehouse"] = "s3://bucket/warehouse/"
    filled = fill(config(tmp_path, **own))
    assert filled.catalogs.cold.warehouse == "s3://bucket/warehouse-cold"
    assert filled.operations.root == "s3://bucket/warehouse-lifecycle"
    assert filled.quarantine.root == "s3://bucket/warehouse-quarantine"


def test_nothing_can_be_next_to_a_whole_bucket(tmp_path: Path) -> None:
    own = all_uris()
    own["catalogs"]["live"]["warehouse"] = "s3://bucket"
    with pytest.raises(ConfigError, match="whole bucket"):
        fill(config(tmp_path, **own))


def test_a_default_inside_a_given_root_is_refused(tmp_path: Path) -> None:
    own = all_uris()
    own["operations"]["root"] = f"file://{tmp_path}"
    with pytest.raises(ConfigError, match="nested"):
        fill(config(tmp_path, **own))


def test_dagster_gets_a_schema_of_its_own_in_a_postgres_that_was_given(postgres_uri: str, tmp_path: Path) -> None:
    url = dagster_postgres_url(config(tmp_path, **all_uris(postgres_uri)))
    with create_engine(url).begin() as connection:
        connection.execute(text("CREATE TABLE runs (id int)"))
        found = connection.execute(text("SELECT schemaname FROM pg_tables WHERE tablename = 'runs'")).scalar_one()
    assert found == "dagster"
    assert not (tmp_path / "postgres").exists()


def test_a_postgres_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(OperationsUnavailable) as refused:
        dagster_postgres_url(config(tmp_path, **all_uris()))
    assert "127.0.0.1:1/theirs" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_variable_beats_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(addresses.DAGSTER_VARIABLE, "postgresql://elsewhere/dagster")
    assert dagster_postgres_url(config(tmp_path)) == "postgresql+psycopg2://elsewhere/dagster"
