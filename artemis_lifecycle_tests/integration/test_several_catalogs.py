"""Several live catalogs in one deployment: each has its own keys, and the readers of all of them protect files."""

from __future__ import annotations

import csv
import itertools
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.doctor.diagnosis import diagnose
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.errors import BadInput, NoSuchTable, OperationsUnavailable
from artemis_lifecycle.session.resources import Folder
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests import conftest, core_tables
from artemis_lifecycle_tests.conftest import MakeConfig

LATER = datetime.now(UTC) + timedelta(days=60)
POLICY = {"retention": {"window": "1d"}, "deletion": {"grace": "0s"}, "orphans": {"max_share": 1}}

_numbers = itertools.count(1)


@pytest.fixture(params=["one database", "two databases"])
def config(
    request: pytest.FixtureRequest, make_config: MakeConfig, postgres: EmbeddedPostgres, tmp_path: Path
) -> Iterator[LifecycleConfig]:
    """`catalogs.live`, and a catalog with the name in `finance(config)`."""
    name, database = f"finance_{next(_numbers)}", f"finance_{next(_numbers)}"
    said: dict[str, Any] = {"type": "sql", "warehouse": f"file://{tmp_path}/finance"}
    if request.param == "two databases":
        conftest._execute(postgres, f"CREATE DATABASE {database}")
        said["uri"] = postgres.uri(database)
    else:
        said["uri"] = request.getfixturevalue("postgres_uri")
    config = make_config(catalogs={name: said}, defaults=POLICY, tables={"*": {}})
    yield config
    conftest._forget(request.getfixturevalue("spark"), name)
    conftest._clear_rows(str(said["uri"]), [name])
    if request.param == "two databases":
        conftest._execute(postgres, f"DROP DATABASE {database} WITH (FORCE)")


@pytest.fixture
def lifecycle(config: LifecycleConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    with conftest.open_lifecycle(config, spark) as lifecycle:
        yield lifecycle


def finance(lifecycle: Lifecycle) -> str:
    return next(iter(lifecycle.config.catalogs.named))


def made(spark: SparkSession, catalog: str, first: int, location: str | None = None) -> None:
    core_tables.sql(spark, f"CREATE NAMESPACE IF NOT EXISTS {catalog}.db")
    where = "" if location is None else f" LOCATION '{location}'"
    core_tables.sql(spark, f"CREATE TABLE {catalog}.db.t (id int) USING iceberg{where}")
    for number in range(first, first + 3):
        core_tables.sql(spark, f"INSERT OVERWRITE {catalog}.db.t VALUES ({number})")


def test_each_catalog_s_table_walks_under_its_own_key(lifecycle: Lifecycle, spark: SparkSession) -> None:
    live, other = lifecycle.config.catalogs.live.name, finance(lifecycle)
    made(spark, live, 0)
    made(spark, other, 10)
    keys = {"db.t": 0, f"{other}:db.t": 10}
    assert lifecycle.tables() == list(keys)
    plans = {key: lifecycle.plan_expiration(key, now=LATER) for key in keys}
    assert {key: plan.table for key, plan in plans.items()} == {key: key for key in keys}
    hold = lifecycle.hold(f"{other}:db.t", "lawyer", "case 1", snapshot_ids=plans[f"{other}:db.t"].expired_snapshots)
    assert hold.table == f"{other}:db.t" and not lifecycle.holds("db.t")
    lifecycle.release(hold.hold_id)
    for key, first in keys.items():
        plan = plans[key]
        oldest = plan.expired_snapshots[0]
        assert lifecycle.hand_off(plan).archived
        lifecycle.commit_expiration(plan)
        doomed = [row["path"] for row in plan.files().collect()]
        report = lifecycle.delete_files(plan)
        assert (report.deleted, report.kept, report.failed) == (len(doomed), 0, 0)
        assert not any(Path(path.removeprefix("file:")).exists() for path in doomed)
        assert [row["id"] for row in lifecycle.read(key).collect()] == [first + 2]
        assert lifecycle.route(key, snapshot_id=oldest).tier == "cold"
        assert [row["id"] for row in lifecycle.read(key, snapshot_id=oldest).collect()] == [first]
        restored = lifecycle.restore(key, oldest, "back")
        assert restored.branch == "back"
        lifecycle.tag(key, "kept", lifecycle.snapshot_history(key).refs["main"].snapshot_id)
        assert lifecycle.scan_orphans(key).summary.orphan_files == 0
        assert lifecycle.health(key).score >= 0
    # In SQL, a catalog is named as in Spark; without one, the table is in `catalogs.live`.
    rows = lifecycle.query(f"SELECT id FROM {other}.db.t UNION ALL SELECT id FROM db.t")
    assert sorted(row["id"] for row in rows.collect()) == [2, 12]  # type: ignore[union-attr]


def test_a_named_catalog_is_marked_swept_and_taken_over_by_its_own_keys(
    lifecycle: Lifecycle, spark: SparkSession
) -> None:
    live, other = lifecycle.config.catalogs.live.name, finance(lifecycle)
    made(spark, live, 0)
    made(spark, other, 10)
    key = f"{other}:db.t"
    data = Path(lifecycle.get_current(key).metadata_location.removeprefix("file:").partition("/metadata/")[0]) / "data"
    (data / "stray.parquet").write_bytes(b"stray")
    os.utime(data / "stray.parquet", (0, 0))
    marked = lifecycle.mark(other)
    found = lifecycle.live_set(marked.live_set_id)
    assert [each.table for each in found.contents] == [key] and found.contents[0].versions == 3
    [swept] = lifecycle.sweep(marked.live_set_id, deferred=False).tables
    assert (swept.table, swept.files, swept.deleted) == (key, 1, 1)
    assert not (data / "stray.parquet").exists()
    assert [row["id"] for row in lifecycle.read(key).collect()] == [12]
    with pytest.raises(BadInput, match="neither a live catalog nor"):
        lifecycle.mark("nobody")
    assert {each.catalog for each in lifecycle.take_over(who="ada", why="a test")} == {live, other}


def test_doctor_looks_at_each_catalog_and_no_probe_goes_to_a_managed_store(
    lifecycle: Lifecycle, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, config = finance(lifecycle), lifecycle.config
    made(spark, other, 10)
    keys = {"name", "type", "uri", "warehouse"}
    tiers = {"live": config.catalogs.live, "cold": config.catalogs.cold, other: config.catalogs.named[other]}
    document = {
        "catalogs": {tier: of.model_dump(include=keys) for tier, of in tiers.items()},
        "operations": config.operations.model_dump(),
        "home": str(config.home),
    }
    (tmp_path / "lifecycle.yaml").write_text(yaml.safe_dump(document))
    checks = {each.name: each for each in diagnose(tmp_path / "lifecycle.yaml")}
    assert checks[f"catalogs.{other}"].status == "ok"
    assert checks[f"deployment of catalog {other}"].status == "ok"

    managed = config.catalogs.named[other].model_copy(update={"managed": True})
    catalogs = config.catalogs.model_copy(update={"named": {other: managed}})
    probed: list[str] = []

    def folder(path: str, stores: Stores) -> Folder:
        probed.append(path)
        return Folder(path, stores)

    monkeypatch.setattr("artemis_lifecycle.session.resources.Folder", folder)
    with conftest.open_lifecycle(config.model_copy(update={"catalogs": catalogs}), spark) as opened:
        opened.plan_expiration(f"{other}:db.t", now=LATER)
    assert probed and not any(str(managed.warehouse) in each for each in probed)


def test_a_uuid_in_two_catalogs_is_two_readers_of_shared_files(lifecycle: Lifecycle, spark: SparkSession) -> None:
    live, other = lifecycle.config.catalogs.live.name, finance(lifecycle)
    made(spark, live, 0)
    core_tables.sql(spark, f"CREATE NAMESPACE {other}.db")
    at = lifecycle.get_current("db.t").metadata_location
    spark.sql(f"CALL {other}.system.register_table(table => 'db.t', metadata_file => '{at}')")
    key = f"{other}:db.t"
    assert lifecycle.steps.table_uuid(key) == lifecycle.steps.table_uuid("db.t")
    history = [each.snapshot_id for each in lifecycle.snapshot_history("db.t").snapshots]

    def rows(table: str, ids: list[int]) -> Mapping[int, list[int]]:
        read = {each: spark.read.option("versionAsOf", each).table(table).collect() for each in ids}
        return {each: [row["id"] for row in found] for each, found in read.items()}

    before = rows(f"{other}.db.t", history)
    # The live catalog's line goes on, and expires what the other one still has.
    core_tables.sql(spark, f"INSERT OVERWRITE {live}.db.t VALUES (3)")
    plan = lifecycle.plan_expiration("db.t", now=LATER)
    assert set(plan.expired_snapshots) == set(history)
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    report = lifecycle.delete_files(plan)
    assert report.deleted == 0 and report.kept > 0
    assert rows(f"{other}.db.t", history) == before


def test_a_catalog_that_hangs_stops_only_deletions_where_roots_overlap(
    lifecycle: Lifecycle, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, other = lifecycle.config.catalogs.live.name, finance(lifecycle)
    made(spark, live, 0)
    made(spark, other, 10)
    # A table of the other catalog that lies in the live warehouse, where no root of its own is.
    inside = f"{lifecycle.config.catalogs.live.warehouse}/inside"
    spark.sql(f"CREATE TABLE {other}.db.inside (id int) USING iceberg LOCATION '{inside}'")
    core_tables.sql(spark, f"INSERT INTO {other}.db.inside VALUES (1)")
    lifecycle.observe_catalog()
    monkeypatch.setattr("artemis_lifecycle.session.live_catalogs.ANSWERS_WITHIN", 0.3)
    monkeypatch.setattr("artemis_lifecycle.session.live_catalogs._SURVEY_WITHIN", 0.3)
    with monkeypatch.context() as hung:
        _answers(hung, lifecycle, other, lambda *_: time.sleep(5))
        found, errors = lifecycle.answering_tables()
        assert found == ["db.t"] and list(errors) == [other]
        with pytest.raises(OperationsUnavailable):
            lifecycle.tables()
        assert lifecycle.observe_catalog() == {f"catalog {other}": errors[other].what}
        assert [each.table for each in lifecycle.fleet().tables] == ["db.t"]
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        assert lifecycle.delete_files(plan).deleted == plan.summary.files
    key = f"{other}:db.t"
    plan = lifecycle.plan_expiration(key, now=LATER)
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    with monkeypatch.context() as silent:
        _answers(silent, lifecycle, other, _refused)
        with pytest.raises(OperationsUnavailable, match="does not answer"):  # It is the table's own.
            lifecycle.delete_files(plan)
    assert lifecycle.delete_files(plan).deleted == plan.summary.files


def _answers(patch: pytest.MonkeyPatch, lifecycle: Lifecycle, catalog: str, answer: Any) -> None:
    for name in ("tables", "pointers", "entry", "others", "beside"):
        patch.setattr(lifecycle.resources.catalogs.reader(catalog)._source, name, answer)


def _refused(*_: object) -> Any:
    raise OperationsUnavailable("Catalog finance does not answer", hint="start it")


def test_where_roots_overlap_a_silent_catalog_stops_deletions(
    make_config: MakeConfig, spark: SparkSession, postgres_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_config()
    name = f"finance_{next(_numbers)}"
    warehouse = base.catalogs.live.warehouse
    config = make_config(
        catalogs={
            "live": {"warehouse": warehouse},
            name: {"type": "sql", "uri": postgres_uri, "warehouse": f"{warehouse}/finance"},
        },
        defaults=POLICY | {"cold_tier": {"enabled": False}},
        tables={"*": {}},
    )
    with conftest.open_lifecycle(config, spark) as lifecycle:
        live = config.catalogs.live.name
        core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
        spark.sql(f"CREATE TABLE {live}.db.t (id int) USING iceberg LOCATION '{warehouse}/finance/t'")
        for number in range(3):
            core_tables.sql(spark, f"INSERT OVERWRITE {live}.db.t VALUES ({number})")
        plan = lifecycle.plan_expiration("db.t", now=LATER)
        lifecycle.commit_expiration(plan)
        with monkeypatch.context() as silent:
            _answers(silent, lifecycle, name, _refused)
            with pytest.raises(OperationsUnavailable, match="their roots overlap"):
                lifecycle.delete_files(plan)
        lifecycle.resources._readers.clear()
        assert lifecycle.delete_files(plan).deleted == plan.summary.files
    conftest._forget(spark, name)


def test_a_dropped_table_goes_only_when_every_catalog_says_that_it_lacks_it(
    lifecycle: Lifecycle, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, other = lifecycle.config.catalogs.live.name, finance(lifecycle)
    made(spark, live, 0)
    core_tables.sql(spark, f"CREATE NAMESPACE {other}.db")
    at = lifecycle.get_current("db.t").metadata_location
    lifecycle.observe_catalog()
    spark.sql(f"DROP TABLE {live}.db.t")
    lifecycle.observe_catalog()
    with monkeypatch.context() as silent:
        _answers(silent, lifecycle, other, _refused)
        with pytest.raises(OperationsUnavailable):
            lifecycle.scan_dropped("db.t")
    spark.sql(f"CALL {other}.system.register_table(table => 'db.moved', metadata_file => '{at}')")
    with pytest.raises(NoSuchTable):  # It moved.
        lifecycle.scan_dropped("db.t")


def _moved(lifecycle: Lifecycle, spark: SparkSession, *, looked: bool = False) -> str:
    live, other = lifecycle.config.catalogs.live.name, finance(lifecycle)
    core_tables.sql(spark, f"CREATE NAMESPACE IF NOT EXISTS {other}.db")
    lifecycle.observe_catalog()
    at = lifecycle.get_current("db.t").metadata_location
    spark.sql(f"CALL {other}.system.register_table(table => 'db.t', metadata_file => '{at}')")
    if looked:
        lifecycle.observe_catalog()
    spark.sql(f"DROP TABLE {live}.db.t")
    return f"{other}:db.t"


@pytest.mark.parametrize("looked", [False, True], ids=["between-looks", "seen-in-both"])
def test_a_table_that_moves_to_another_catalog_is_no_dropped_one(
    lifecycle: Lifecycle, spark: SparkSession, looked: bool
) -> None:
    made(spark, lifecycle.config.catalogs.live.name, 0)
    old = lifecycle.plan_expiration("db.t", now=LATER)
    held = lifecycle.hold("db.t", "lawyer", "case 1", snapshot_ids=old.expired_snapshots[:1])
    key = _moved(lifecycle, spark, looked=looked)
    assert lifecycle.dropped_tables() == []
    for step in (lifecycle.commit_expiration, lifecycle.hand_off):
        with pytest.raises(NoSuchTable, match="moved there") as raised:
            step(old)
        assert f"artemis close {old.plan_id}, then artemis plan {key}" in str(raised.value)
    lifecycle.close_plan(old, who="ada", why="it moved")
    # The table's holds and its expirations go on under the new name.
    assert lifecycle.plan_expiration(key, now=LATER).expired_snapshots == old.expired_snapshots[1:]
    lifecycle.release(held.hold_id)
    core_tables.sql(spark, f"INSERT OVERWRITE {finance(lifecycle)}.db.t VALUES (3)")
    plan = lifecycle.plan_expiration(key, now=LATER)
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    report = lifecycle.delete_files(plan)
    assert (report.deleted, report.kept) == (plan.summary.files, 0) and plan.summary.files > 8
    assert [row["id"] for row in lifecycle.read(key).collect()] == [3]


@pytest.mark.parametrize("why", ["its own commit", "one that no look saw", "kept", "a second name", "a replica"])
def test_a_dropped_table_is_not_moved_by_its_uuid_alone(
    lifecycle: Lifecycle, spark: SparkSession, tmp_path: Path, why: str
) -> None:
    live, other = lifecycle.config.catalogs.live.name, finance(lifecycle)
    made(spark, live, 0, f"file:{tmp_path}/own/t")
    lifecycle.observe_catalog()
    core_tables.sql(spark, f"CREATE NAMESPACE {other}.db")
    at = lifecycle.get_current("db.t").metadata_location
    if why == "a replica":
        source = at.rpartition("/metadata/")[0]
        target = f"file:{tmp_path}/copy/t"
        rewrite = f"table => 'db.t', source_prefix => '{source}', target_prefix => '{target}'"
        [row] = spark.sql(
            f"CALL {live}.system.rewrite_table_path({rewrite}, staging_location => 'file:{tmp_path}/staging')"
        ).collect()
        listed = Path(row["file_list_location"].removeprefix("file:")).read_text().splitlines()
        for one, to in csv.reader(listed):
            Path(to.removeprefix("file:")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(one.removeprefix("file:"), to.removeprefix("file:"))
        at = f"{target}/metadata/{row['latest_version']}"
    spark.sql(f"CALL {other}.system.register_table(table => 'db.t', metadata_file => '{at}')")
    if why in ("its own commit", "one that no look saw"):
        core_tables.sql(spark, f"INSERT OVERWRITE {live}.db.t VALUES (7)")
    if why in ("its own commit", "a second name"):
        lifecycle.observe_catalog()
    if why == "a second name":
        with lifecycle.operations.engine.begin() as connection:
            ago = "UPDATE lifecycle.known_tables SET first_seen = first_seen - interval '1 day'"
            connection.execute(text(f"{ago} WHERE catalog = '{other}'"))
    table_uuid = lifecycle.steps.table_uuid("db.t")
    spark.sql(f"DROP TABLE {live}.db.t")
    if why == "kept":
        # Before the other catalog was asked.
        with pytest.MonkeyPatch.context() as silent:
            _answers(silent, lifecycle, other, _refused)
            lifecycle.keep_dropped("db.t", who="ada", why="needed")
    [dropped] = lifecycle.dropped_tables()
    assert (dropped.table, dropped.table_uuid) == ("db.t", table_uuid)
    assert dropped.state == ("kept" if why == "kept" else "waiting")
    if why in ("kept", "a second name"):
        # Once that is over, it is one that moved.
        if why == "kept":
            lifecycle.unkeep_dropped("db.t")
        else:
            with lifecycle.operations.engine.begin() as connection:
                connection.execute(
                    text(
                        "UPDATE lifecycle.known_tables SET missing_since = '2020-01-01' WHERE missing_since IS NOT NULL"
                    )
                )
        assert lifecycle.dropped_tables() == []


def test_a_dropped_table_of_a_named_catalog_is_found_and_registered_again(
    lifecycle: Lifecycle, spark: SparkSession
) -> None:
    other = finance(lifecycle)
    key = f"{other}:db.t"
    made(spark, other, 0)
    table_uuid = lifecycle.steps.table_uuid(key)
    lifecycle.observe_catalog()
    spark.sql(f"DROP TABLE {other}.db.t")
    lifecycle.observe_catalog()
    (dropped,) = [each for each in lifecycle.dropped_tables() if each.table_uuid == table_uuid]
    assert dropped.table == key
    assert lifecycle.undrop(key).table == key
    assert lifecycle.steps.table_uuid(key) == table_uuid
    with CatalogReader(lifecycle.config.catalogs.live) as live:
        assert not live.exists("db.t")
