"""An operations schema that is not as this version makes it is an error in words, and a red row of doctor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from sqlalchemy import text

from artemis_lifecycle import Lifecycle
from artemis_lifecycle.doctor.diagnosis import diagnose
from artemis_lifecycle.errors import OperationsUnavailable
from artemis_lifecycle.operations.database import Operations, connect, migrate, schema_state

EMPTY_DATABASE = True


@pytest.fixture
def file(postgres_uri: str, tmp_path: Path) -> Iterator[Path]:
    tiers = {each: {"uri": postgres_uri, "warehouse": str(tmp_path / each)} for each in ("live", "cold")}
    operations = {"uri": postgres_uri, "root": str(tmp_path / "state")}
    written = tmp_path / "lifecycle.yaml"
    written.write_text(yaml.safe_dump({"catalogs": tiers, "operations": operations}))
    yield written
    engine = connect(postgres_uri)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA IF EXISTS lifecycle CASCADE")
    engine.dispose()


OTHERS = {
    "a column of another name": ("ALTER TABLE lifecycle.plans RENAME rule TO rules", r"plans differs in .*rule"),
    "a column too many": ("ALTER TABLE lifecycle.holds ADD COLUMN more TEXT", "holds differs in more text"),
    "a column of another type": ("ALTER TABLE lifecycle.plans ALTER files TYPE INTEGER", "plans differs in .*integer"),
    "a column that may be null": ("ALTER TABLE lifecycle.holds ALTER owner DROP NOT NULL", "holds differs in owner"),
    "a missing table": ("DROP TABLE lifecycle.pauses", "table pauses is missing"),
    "somebody else's": (
        "DROP SCHEMA lifecycle CASCADE; CREATE SCHEMA lifecycle; CREATE TABLE lifecycle.stages (id INT)",
        "no alembic_version of this project, but stages",
    ),
    "somebody else's with alembic": (
        "DROP SCHEMA lifecycle CASCADE; CREATE SCHEMA lifecycle; CREATE TABLE lifecycle.alembic_version (v INT)",
        "no alembic_version of this project",
    ),
}


@pytest.mark.seconds
@pytest.mark.parametrize("how", OTHERS)
def test_a_schema_that_differs_is_named_before_anything_is_asked_of_it(how: str, file: Path, postgres_uri: str) -> None:
    statements, says = OTHERS[how]
    with Operations.open(postgres_uri) as operations, operations.engine.begin() as connection:
        connection.exec_driver_sql(statements)
    with pytest.raises(OperationsUnavailable, match=says):
        Operations.open(postgres_uri)
    with Lifecycle.open(file) as lifecycle, pytest.raises(OperationsUnavailable, match=says):
        lifecycle.holds("db.t")
    (check,) = (each for each in diagnose(file) if each.name == "operations")
    assert check.status == "failed" and "lifecycle" in check.detail and check.fix


def test_a_schema_that_an_administrator_made_ahead_is_filled_and_what_others_add_beside_it_stays(
    file: Path, postgres_uri: str
) -> None:
    engine = connect(postgres_uri)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA lifecycle")
    migrate(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE VIEW lifecycle.ours AS SELECT 1 AS one")
    began = time.perf_counter()
    for _ in range(10):
        assert schema_state(engine)[1]
    assert (time.perf_counter() - began) / 10 < 0.25
    with engine.connect() as connection:
        assert connection.execute(text("SELECT one FROM lifecycle.ours")).scalar_one() == 1
    engine.dispose()
