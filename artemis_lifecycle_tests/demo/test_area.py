"""The demo wipes what it made, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import insert, select

from artemis_lifecycle.catalogs.sql import ensure_tables, iceberg_tables
from artemis_lifecycle.errors import Busy, Refused
from artemis_lifecycle.operations.database import connect
from examples.mission.area import COLD, LIVE, SET_ASIDE, demo_area, demo_environment


@pytest.fixture
def environment(postgres_uri: str) -> dict[str, str]:
    return {"ARTEMIS_POSTGRES_URI": postgres_uri}


def _row(uri: str, catalog: str, location: str, table: str = "t") -> None:
    engine = connect(uri)
    ensure_tables(engine)
    with engine.begin() as connection:
        values = {"catalog_name": catalog, "table_namespace": "ns", "table_name": table, "metadata_location": location}
        connection.execute(insert(iceberg_tables).values(**values))
    engine.dispose()


def _catalogs(uri: str) -> list[str]:
    engine = connect(uri)
    with engine.connect() as connection:
        names = sorted(connection.execute(select(iceberg_tables.c.catalog_name)).scalars())
    engine.dispose()
    return names


def test_a_second_demo_begins_with_an_empty_place_and_leaves_others_alone(
    tmp_path: Path, postgres_uri: str, environment: dict[str, str]
) -> None:
    neighbor = tmp_path / "warehouse" / "live" / "file"
    neighbor.parent.mkdir(parents=True)
    neighbor.touch()
    with demo_area(tmp_path, environment) as area:
        assert area.config.catalogs.live.warehouse == f"file://{tmp_path}/demo/warehouse/live"
        assert area.config.home == tmp_path
        assert area.config.policy("artemis.ground_station_telemetry").retention.window.days == 7
        left = area.folder / "warehouse" / "live" / "left"
        left.parent.mkdir(parents=True)
        left.touch()
    for catalog in (LIVE, COLD):
        _row(postgres_uri, catalog, f"file:{tmp_path}/demo/warehouse/x/metadata/1.metadata.json")
    _row(postgres_uri, "live", f"file://{tmp_path}/demo/warehouse/x/metadata/1.metadata.json")
    with demo_area(tmp_path, environment):
        assert not left.exists()
    assert _catalogs(postgres_uri) == ["live"]
    assert neighbor.exists()


def test_a_folder_that_the_demo_did_not_make_is_refused(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.txt").touch()
    with pytest.raises(Refused, match="did not make"), demo_area(tmp_path, environment):
        pass
    assert (tmp_path / "demo" / "thesis.txt").exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "demo").symlink_to(elsewhere)
    with pytest.raises(Refused), demo_area(tmp_path / "other", environment):
        pass


def test_tables_of_another_demos_folder_are_refused(
    tmp_path: Path, postgres_uri: str, environment: dict[str, str]
) -> None:
    home = tmp_path / "second"
    _row(postgres_uri, LIVE, "file:///somewhere/else/metadata/1.metadata.json", table="stranger")
    with pytest.raises(Refused, match="outside this demo's folder"), demo_area(home, environment):
        pass
    assert LIVE in _catalogs(postgres_uri)


def test_two_demos_at_once_are_one_too_many(tmp_path: Path, environment: dict[str, str]) -> None:
    home = tmp_path / "third"
    with pytest.raises((Busy, Refused)), demo_area(home, environment), demo_area(home, environment):
        pass


def test_warehouses_of_the_environment_are_set_aside() -> None:
    given = dict.fromkeys(SET_ASIDE, "s3://theirs") | {"ARTEMIS_POSTGRES_URI": "postgresql://x"}
    assert demo_environment(given) == {"ARTEMIS_POSTGRES_URI": "postgresql://x"}
