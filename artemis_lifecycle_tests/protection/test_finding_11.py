"""Finding 11: two deployments on one catalog with different operations databases do not see each other's holds,
heartbeats, pauses or open plans. One catalog belongs to one deployment."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from inspect import isfunction
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
import yaml
from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, make_url, text
from typer.testing import CliRunner

from artemis_lifecycle import api, cli
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.deployments import (
    PROPERTY,
    DeploymentsInFiles,
    ensure_records,
    require_deployment,
    take_over,
)
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.catalogs.sql import ensure_tables
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.doctor import services
from artemis_lifecycle.errors import BadInput, OtherDeployment, Refused, UnreadableMetadata
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.database import Deployment, Operations, connect, connected, read_deployment
from artemis_lifecycle.operations.roles import INGEST, LIFECYCLE
from artemis_lifecycle.session import resources
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import REPOSITORY, MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table
from artemis_lifecycle_tests.policies import AND_ARCHIVED
from artemis_lifecycle_tests.protection.databases import Databases, with_operations
from artemis_lifecycle_tests.rest import homes
from artemis_lifecycle_tests.simulated_time import set_modified
from examples.mission import rest as rest_server

NOW = {**AND_ARCHIVED, "lineage": {"mode": "report"}}


@pytest.fixture
def first(make_config: MakeConfig) -> LifecycleConfig:
    return make_config(defaults=NOW)


@pytest.fixture
def second(first: LifecycleConfig, databases: Databases) -> LifecycleConfig:
    """Another deployment on the catalog of the first."""
    return with_operations(first, uri=databases.make())


def _files(config: LifecycleConfig) -> set[Path]:
    warehouse = Path((config.catalogs.live.warehouse or "").removeprefix("file://"))
    return {path for path in warehouse.rglob("*") if path.is_file()}


CHANGES: dict[str, Callable[[Lifecycle, str], object]] = {
    "plan": lambda lifecycle, table: lifecycle.plan_expiration(table),
    "expire": lambda lifecycle, table: lifecycle.expire(table),
    "list": lambda lifecycle, table: lifecycle.list_objects(table),
    "scan": lambda lifecycle, table: lifecycle.scan_orphans(table),
    "scan the cold table": lambda lifecycle, table: lifecycle.scan_cold(table),
    "scan what was dropped": lambda lifecycle, table: lifecycle.clear_dropped(),
    "hold": lambda lifecycle, table: lifecycle.hold(table, "legal", "case", snapshot_ids=ids_of(lifecycle, table)[:1]),
    "tag": lambda lifecycle, table: lifecycle.tag(table, "kept", ids_of(lifecycle, table)[0]),
    "heartbeat": lambda lifecycle, table: lifecycle.writing(table, "w").__enter__(),
    "pause": lambda lifecycle, table: lifecycle.pause(who="w", why="y"),
    "purge": lambda lifecycle, table: lifecycle.purge_quarantine(table),
    "deep archive": lambda lifecycle, table: lifecycle.deep_archive(table),
    "compact": lambda lifecycle, table: lifecycle.compact_manifests(table),
    "lineage": lambda lifecycle, table: lifecycle.record_lineage(table),
    "forget records": lambda lifecycle, table: lifecycle.forget_records(),
}


def test_who_looked_before_the_first_step_is_of_its_deployment(
    make_config: MakeConfig, databases: Databases, spark: SparkSession
) -> None:
    config = make_config(operations={"uri": databases.make()}, defaults=NOW)
    with open_lifecycle(config, spark=spark) as looked, open_lifecycle(config, spark=spark) as walks:
        table = make_table(walks, "t", 3)
        assert not looked.plans(table)
        walks.plan_expiration(table)
        assert len(looked.plans(table)) == 1
        looked.hold(table, "legal", "case", snapshot_ids=ids_of(looked, table)[:1])


def test_another_operations_database_is_refused_before_anything_changes_and_may_read(
    first: LifecycleConfig, second: LifecycleConfig, spark: SparkSession
) -> None:
    with open_lifecycle(first, spark=spark) as theirs:
        table = make_table(theirs, "t", 3)
        plan = theirs.plan_expiration(table)
        theirs.hold(table, "legal", "case", snapshot_ids=ids_of(theirs, table)[:1])
        theirs.publish_results()
        pointer, files = theirs.snapshot_history(table).metadata_location, _files(first)
    with open_lifecycle(second, spark=spark) as ours:
        for name, change in CHANGES.items():
            with pytest.raises(OtherDeployment) as refused:
                change(ours, table)
            said = str(refused.value)
            assert first.catalogs.live.name in said and str(first.operations.root) in said, name
            assert f"{make_url(str(first.operations.uri)).database}" in said and "take-over" in said, name
            assert make_url(str(first.operations.uri)).password not in said, name
        assert ours.tables() == [table]
        assert ours.snapshot_history(table).metadata_location == pointer
        assert ours.read(table).count() == 3
        assert ours.read(table, snapshot_id=ids_of(ours, table)[0]).count() == 1
    assert _files(first) == files
    with open_lifecycle(first, spark=spark) as theirs:
        assert theirs.plans(table)[0].plan_id == plan.plan_id


def test_after_a_take_over_whatever_changes_something_is_refused_however_recently_it_was_asked(
    first: LifecycleConfig, second: LifecycleConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = {name for name, verb in vars(Lifecycle).items() if isfunction(verb) and not name.startswith("_")}
    changing -= api._NOT_ASKED
    assert changing >= {"request_thaw", "approve_thaw", "follow_thaw", "refuse_thaw", "close_plan", "forget_records"}
    assert changing.isdisjoint({"tables", "read", "plans"})
    with open_lifecycle(first, spark=spark) as theirs, open_lifecycle(second, spark=spark) as ours:
        table = make_table(theirs, "t", 2)
        plan = theirs.plan_expiration(table)
        ours.take_over(who="ann", why="they ended")
        monkeypatch.setattr(resources, "elapsed", lambda: theirs.resources._deployment_seen_at)
        for name in sorted(changing):
            with pytest.raises(OtherDeployment):
                getattr(theirs, name)()
        with pytest.raises(OtherDeployment):
            theirs.close_plan(plan, who="bob", why="not wanted")
        assert theirs.read(table).count() == 2


def test_one_operations_database_with_another_root_is_refused(
    first: LifecycleConfig, spark: SparkSession, tmp_path: Path
) -> None:
    with open_lifecycle(first, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        lifecycle.plan_expiration(table)
    with (
        open_lifecycle(with_operations(first, root=f"file://{tmp_path}/elsewhere"), spark=spark) as elsewhere,
        pytest.raises(OtherDeployment, match="root differs"),
    ):
        elsewhere.plan_expiration(table)
    spelled = with_operations(first, root=str(first.operations.root).replace("file:///", "file:/"))
    with open_lifecycle(spelled, spark=spark) as same:
        same.plan_expiration(table)


@pytest.mark.parametrize("own", [False, True], ids=["no table", "a table of the same name"])
def test_an_operations_database_takes_no_other_catalog_of_the_name_for_the_one_that_it_knows(
    first: LifecycleConfig, databases: Databases, make_config: MakeConfig, spark: SparkSession, own: bool
) -> None:
    """An address that was mistyped, or a catalog that was made anew: the known tables are not dropped."""
    with open_lifecycle(first, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        lifecycle.observe_catalog()
        files = _files(first)
    uri, live = databases.make(), first.catalogs.live.name
    catalogs = {tier: {"name": getattr(first.catalogs, tier).name, "uri": uri} for tier in ("live", "cold")}
    catalogs["live"]["warehouse"] = str(first.catalogs.live.warehouse)
    there = {"uri": str(first.operations.uri), "root": str(first.operations.root)}
    other = make_config(defaults=NOW, catalogs=catalogs, operations=there)
    with open_lifecycle(other, spark=spark) as elsewhere:
        if own:
            with connected(uri) as engine:
                ensure_tables(engine)
            catalog = load_catalog(live, **pyiceberg_properties(other.catalogs.live))
            with catalog:
                catalog.create_namespace("db")
                catalog.create_table(
                    table, pa.schema([("n", pa.int64())]), location=f"{first.catalogs.live.warehouse}/own"
                )
        for step in (elsewhere.observe_catalog, elsewhere.dropped_tables, elsewhere.clear_dropped):
            with pytest.raises(OtherDeployment, match=r"not the one that this operations database knows.*db\.t"):
                step()
        # A person may say that it was begun anew.
        elsewhere.take_over(who="ann", why="the lake begins anew")
        elsewhere.observe_catalog()
    assert _files(first) >= files


def test_a_copy_of_the_operations_database_is_another_deployment(
    first: LifecycleConfig, databases: Databases, spark: SparkSession
) -> None:
    own = with_operations(first, uri=databases.make())
    with open_lifecycle(own, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        lifecycle.plan_expiration(table)
    copied = with_operations(own, uri=databases.make(copy_of=own.operations.uri))
    with open_lifecycle(copied, spark=spark) as lifecycle, pytest.raises(OtherDeployment, match="restored backup"):
        lifecycle.plan_expiration(table)
    with open_lifecycle(own, spark=spark) as lifecycle:
        lifecycle.plan_expiration(table)


def test_a_backup_restored_to_another_server_is_another_deployment() -> None:
    """All oids may be the same there; the server's own identifier is not."""
    made = Deployment("id", "1", "5/7", "a:1/d", "file:///r")
    assert made.difference(Deployment("id", "2", "5/7", "a:1/d", "file:///r")) is not None
    assert made.difference(Deployment("id", "1", "5/8", "a:1/d", "file:///r")) is not None
    # Who may not read the identifier goes by the rest; an address is a name that may change.
    assert made.difference(Deployment("id", None, "5/7", "b:2/d", "file:///r")) is None


def test_the_servers_identifier_is_read_where_the_login_may(first: LifecycleConfig) -> None:
    with Operations.open(first.operations.uri or "") as operations, operations.engine.connect() as connection:
        own = connection.execute(text("SELECT system_identifier FROM pg_control_system()")).scalar_one()
        assert read_deployment(operations.engine, "file:///r").server == str(own)


def test_a_catalog_cloned_with_its_record_refuses_the_test_environment(
    make_config: MakeConfig, databases: Databases, spark: SparkSession
) -> None:
    catalogs = databases.make()
    production = make_config(catalogs={"live": {"uri": catalogs}, "cold": {"uri": catalogs}}, defaults=NOW)
    with open_lifecycle(production, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        lifecycle.plan_expiration(table)
    spark.sql(f"DROP NAMESPACE IF EXISTS {production.catalogs.cold.name}.none")
    engine = connect(databases.make())
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # Spark's own sessions stand in the way of a copy.
        database = make_url(catalogs).database
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"))
    engine.dispose()
    clone = databases.make(copy_of=catalogs)
    test_environment = production.model_copy(
        update={
            "catalogs": production.catalogs.model_copy(
                update={
                    "live": production.catalogs.live.model_copy(update={"uri": clone}),
                    "cold": production.catalogs.cold.model_copy(update={"uri": clone}),
                }
            ),
            "operations": production.operations.model_copy(update={"uri": clone}),
        }
    )
    with open_lifecycle(test_environment, spark=spark) as lifecycle:
        assert lifecycle.tables() == [table]
        with pytest.raises(OtherDeployment):
            lifecycle.scan_orphans(table)


def test_of_deployments_that_race_at_first_use_one_wins(
    make_config: MakeConfig, databases: Databases, spark: SparkSession
) -> None:
    catalogs = databases.make()
    base = make_config(catalogs={"live": {"uri": catalogs}, "cold": {"uri": catalogs}}, defaults=NOW)
    racing = [Lifecycle.open(with_operations(base, uri=databases.make()), spark=spark) for _ in range(3)]
    for lifecycle in racing:
        assert (
            lifecycle.tables() == [] and lifecycle.resources.deployment
        )  # Both databases are open: the race is for the record.
    outcomes: list[str] = []
    start = threading.Barrier(len(racing))

    def use(lifecycle: Lifecycle) -> None:
        start.wait()
        try:
            lifecycle.resources.require_deployment()
            outcomes.append("won")
        except OtherDeployment:
            outcomes.append("refused")

    threads = [threading.Thread(target=use, args=(lifecycle,)) for lifecycle in racing]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for lifecycle in racing:
        lifecycle.close()
    assert sorted(outcomes) == ["refused", "refused", "won"]


def test_taking_over_is_on_record_and_refuses_the_other_one_from_then_on(
    first: LifecycleConfig, second: LifecycleConfig, spark: SparkSession
) -> None:
    with open_lifecycle(first, spark=spark) as theirs, Lifecycle.open(second, spark=spark) as ours:
        table = make_table(theirs, "t", 2)
        plan = theirs.plan_expiration(table)
        with pytest.raises(BadInput):
            ours.take_over(who="ada", why=" ")
        with theirs.writing(table, "w") as writing:
            found = ours.take_over(who="ada", why="the old server is gone")
            assert [(each.who, each.why) for each in found] == [("ada", "the old server is gone")]
            assert ours.take_over(who="eve", why="again") == found
            with pytest.raises(OtherDeployment, match="ada"):
                writing.check()
        ours.plan_expiration(table)
        with pytest.raises(OtherDeployment, match="the old server is gone"):
            theirs.hand_off(plan)
    assert [row["who"] for row in _records(first)][1:] == ["ada"]


def _records(config: LifecycleConfig) -> list[dict[str, object]]:
    engine = connect(str(config.catalogs.live.uri))
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT * FROM artemis_live.deployments WHERE catalog_name = :name ORDER BY record_id"),
            {"name": config.catalogs.live.name},
        ).mappings()
        found = [dict(row) for row in rows]
    engine.dispose()
    return found


def test_a_takeover_in_the_middle_of_a_deletion_stops_it_before_the_next_files_go(
    first: LifecycleConfig, second: LifecycleConfig, spark: SparkSession
) -> None:
    with open_lifecycle(first, spark=spark) as theirs, Lifecycle.open(second, spark=spark) as ours:
        table = make_table(theirs, "t", 2)
        folder = theirs.snapshot_history(table).metadata_location.rpartition("/metadata/")[0]
        stray = f"{folder}/data/stray.parquet"
        theirs.live_stores.write(stray, b"x")
        set_modified(stray, theirs.operations.clock.now() - timedelta(days=30))
        scan = theirs.scan_orphans(table)
        assert scan.summary.orphan_files == 1

        def taken(point: str) -> None:
            if point == "deletion.seal_batches:after":
                ours.take_over(who="ada", why="meanwhile")

        with crash_points.installed(taken), pytest.raises(OtherDeployment, match="meanwhile"):
            theirs.delete_orphans(scan)
        assert theirs.live_stores.head(stray) is not None


def test_the_command_takes_over(
    first: LifecycleConfig,
    second: LifecycleConfig,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    with open_lifecycle(first, spark=spark) as theirs:
        make_table(theirs, "t", 1)
        theirs.resources.require_deployment()
    written = tmp_path / "lifecycle.yaml"
    written.write_text(second.model_dump_json(by_alias=True))

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["artemis", *arguments, "-c", str(written)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    assert run("holds", "db.t") == 3
    assert "take-over" in " ".join(capsys.readouterr().err.split())
    assert run("take-over", "--who", "ada", "--why", "moved", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["why"] == "moved"
    assert run("holds", "db.t") == 0


# --- roles ------------------------------------------------------------------------------------------------------------


def _login(uri: str, role: str) -> str:
    """The address of a new login on that database that has `role` and no other right."""
    name = f"only_{role}_{make_url(uri).database}"
    engine = connect(uri)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'hush' IN ROLE {role}"))
        for table in ("iceberg_tables", "iceberg_namespace_properties"):
            connection.execute(text(f"GRANT ALL ON {table} TO {name}"))
    engine.dispose()
    return make_url(uri).set(username=name, password="hush").render_as_string(hide_password=False)


def _as_login(config: LifecycleConfig, uri: str) -> LifecycleConfig:
    live = config.catalogs.live.model_copy(update={"uri": uri})
    catalogs = config.catalogs.model_copy(update={"live": live})
    return with_operations(config.model_copy(update={"catalogs": catalogs}), uri=uri)


@pytest.fixture
def apart(make_config: MakeConfig, databases: Databases, spark: SparkSession) -> tuple[LifecycleConfig, str]:
    """A deployment whose database is its own, and a table of it; nobody has used the catalog yet."""
    uri = databases.make()
    config = make_config(catalogs={"live": {"uri": uri}, "cold": {"uri": uri}}, operations={"uri": uri}, defaults=NOW)
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 1)
        assert lifecycle.resources.deployment.place
    return config, table


def test_the_error_of_a_role_that_may_not_make_the_record_names_the_grant(
    apart: tuple[LifecycleConfig, str], spark: SparkSession
) -> None:
    config, table = apart
    limited = _as_login(config, _login(str(config.operations.uri), LIFECYCLE))
    with open_lifecycle(limited, spark=spark) as lifecycle:
        assert lifecycle.tables() == [table]
        with pytest.raises(Refused, match="GRANT it CREATE ON DATABASE") as refused:
            lifecycle.scan_orphans(table)
        assert "hush" not in str(refused.value)
    with open_lifecycle(config, spark=spark) as owner:
        owner.resources.require_deployment()
    with open_lifecycle(limited, spark=spark) as lifecycle:
        lifecycle.scan_orphans(table)


def test_a_role_for_ingest_claims_no_catalog_and_beats_only_where_it_is_seen(
    apart: tuple[LifecycleConfig, str], databases: Databases, spark: SparkSession
) -> None:
    config, table = apart
    ingest = _as_login(config, _login(str(config.operations.uri), INGEST))
    with open_lifecycle(ingest, spark=spark) as writer, writer.writing(table, "w") as writing:
        writing.check()
    with open_lifecycle(config, spark=spark) as owner:
        assert owner.resources.live_catalog.deployments(owner.live_stores).newest() == []
        owner.resources.require_deployment()
    with open_lifecycle(ingest, spark=spark) as writer, writer.writing(table, "w") as writing:
        writing.check()
        elsewhere = with_operations(ingest, uri=databases.make())
        with open_lifecycle(elsewhere, spark=spark) as lost, pytest.raises(OtherDeployment):
            lost.writing(table, "w2")


# --- several ways to one catalog --------------------------------------------------------------------------------------

WITHOUT_COLD = {**NOW, "deletion": {"grace": "1ms"}, "cold_tier": {"enabled": False}}


@dataclass(frozen=True)
class Ways:
    """A SQL catalog with a table, and a REST server over its database."""

    sql: LifecycleConfig
    rest: LifecycleConfig
    table: str

    def property(self, removed: bool = False) -> list[dict[str, object]]:
        """The records in the namespace's property; `removed`: as a version that did not know it left them."""
        change = "DELETE FROM" if removed else "SELECT property_value FROM"
        rows = f"{change} iceberg_namespace_properties WHERE catalog_name = :name AND property_key = :key"
        of = {"name": self.sql.catalogs.live.name, "key": PROPERTY}
        with connected(str(self.sql.catalogs.live.uri)) as engine, engine.begin() as connection:
            found = connection.execute(text(rows), of)
            return [] if removed else json.loads(found.scalar_one_or_none() or "[]")


@pytest.fixture
def ways(make_config: MakeConfig, databases: Databases, spark: SparkSession, tmp_path: Path) -> Iterator[Ways]:
    uri = databases.make()
    sql = make_config(catalogs={"live": {"uri": uri}, "cold": {"uri": uri}}, defaults=WITHOUT_COLD)
    with open_lifecycle(sql, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 3)
    live = sql.catalogs.live
    with rest_server.server(sql.model_copy(update={"home": REPOSITORY / ".artemis"}), tmp_path / "rest.log") as address:
        over = Catalog(name=live.name, type="rest", uri=address, warehouse=live.warehouse)
        rest = sql.model_copy(update={"catalogs": sql.catalogs.model_copy(update={"live": over})})
        yield Ways(sql, with_operations(rest, uri=databases.make(), root=f"file://{tmp_path}/other"), table)


def _asked(config: LifecycleConfig) -> services.Check:
    return services.checked("deployment", partial(services.deployment, "deployment", config, config.catalogs.live.name))


@pytest.mark.parametrize("sql_first", [True, False], ids=["sql first", "rest first"])
def test_a_sql_catalog_and_a_rest_server_over_it_have_one_deployment(
    ways: Ways, spark: SparkSession, sql_first: bool
) -> None:
    first, second = (ways.sql, ways.rest) if sql_first else (ways.rest, ways.sql)
    table, changes = ways.table, {name: CHANGES[name] for name in ("plan", "list", "scan", "hold", "heartbeat")}
    with open_lifecycle(first, spark=spark) as theirs, open_lifecycle(second, spark=spark) as ours:
        plan = theirs.plan_expiration(table)
        theirs.hold(table, "legal", "case", snapshot_ids=ids_of(theirs, table)[:1])
        files = _files(ways.sql)
        for change in (*changes.values(), lambda lifecycle, _: lifecycle.mark(ways.sql.catalogs.live.name)):
            with pytest.raises(OtherDeployment, match="belongs to another deployment"):
                change(ours, table)
        assert ours.tables() == [table] and _files(ways.sql) == files
        row = _asked(second)
        assert row.status == "failed" and str(first.operations.root) in row.detail
        (taken,) = ours.take_over(who="ada", why="the first one is gone")
        assert taken.who == "ada"
        ours.plan_expiration(table)
        with pytest.raises(OtherDeployment, match="ada"):
            theirs.commit_expiration(plan)
        # A JDBC catalog's column takes few records: the oldest go.
        for number in range(4):
            (theirs, ours)[number % 2].take_over(who="ada", why=f"number {number} " + "x" * 200)
        with pytest.raises(OtherDeployment, match="number 3"):
            theirs.scan_orphans(table)
        ours.scan_orphans(table)


def test_a_record_of_an_earlier_version_gets_its_property_with_the_next_step(ways: Ways, spark: SparkSession) -> None:
    with open_lifecycle(ways.sql, spark=spark) as theirs, open_lifecycle(ways.rest, spark=spark) as ours:
        theirs.plan_expiration(ways.table)
        ways.property(removed=True)
        theirs.holds(ways.table)
        assert _asked(ways.sql).status == "ok"
        to_make = [each.state for each in theirs.prepare(dry_run=True) if "record of its deployment" in each.what]
        assert to_make == ["to make"] and ways.property() == []
        theirs.scan_orphans(ways.table)
        assert len(_records(ways.sql)) == len(ways.property()) == 1
        with pytest.raises(OtherDeployment):
            ours.plan_expiration(ways.table)
        # What both had recorded before either saw the other: each place has another one, until a person decides.
        ways.property(removed=True)
        ours.plan_expiration(ways.table)
        with pytest.raises(OtherDeployment):
            theirs.plan_expiration(ways.table)
        theirs.take_over(who="ada", why="the other one is a test")
        theirs.plan_expiration(ways.table)
        with pytest.raises(OtherDeployment):
            ours.plan_expiration(ways.table)


def test_a_login_without_the_right_to_the_property_works_and_still_sees_another_deployment_there(
    ways: Ways, databases: Databases, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    uri, elsewhere = str(ways.sql.catalogs.live.uri), databases.make()
    limited = _login(uri, LIFECYCLE)
    with connected(uri) as engine, engine.begin() as connection:
        ensure_records(connection)
        connection.execute(text(f"REVOKE ALL ON iceberg_namespace_properties FROM {make_url(limited).username}"))
    with open_lifecycle(with_operations(_as_login(ways.sql, limited), uri=elsewhere), spark=spark) as lifecycle:
        for _ in range(2):
            lifecycle.scan_orphans(ways.table)
        assert len(_records(ways.sql)) == 1 and ways.property() == []
        assert sum("cannot be set" in each for each in caplog.messages) == 1
        assert sum("cannot be read" in each for each in caplog.messages) == 1
        with connected(uri) as engine, engine.begin() as connection:
            connection.execute(text(f"GRANT SELECT ON iceberg_namespace_properties TO {make_url(limited).username}"))
        lifecycle.scan_orphans(ways.table)
        with open_lifecycle(ways.rest, spark=spark) as ours:
            ours.plan_expiration(ways.table)
        with pytest.raises(OtherDeployment):
            lifecycle.scan_orphans(ways.table)


def _denied(self: object) -> None:
    raise JsonRESTError("AccessDeniedException", "not with this login")


def test_a_catalog_of_glue_has_one_deployment_however_it_names_the_warehouse(
    make_config: MakeConfig, databases: Databases, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with homes.glue() as home:
        first = make_config(catalogs={"live": home.live}, operations={"root": home.root})
        other = {**home.live, "warehouse": f"{home.live['warehouse']}-other"}
        uri = databases.make()
        second = make_config(catalogs={"live": other}, operations={"uri": uri, "root": f"{home.root}-other"})
        with open_lifecycle(first, spark=spark) as theirs, open_lifecycle(second, spark=spark) as ours:
            for verbs, said in ((("create_database", "update_database"), "set"), (("get_database",), "read")):
                with ExitStack() as stack:
                    for verb in verbs:
                        stack.enter_context(patch.object(GlueResponse, verb, _denied))
                    theirs.resources.require_deployment()
                assert sum(f"cannot be {said}" in each for each in caplog.messages) == 1
            catalog = load_catalog("glue", **pyiceberg_properties(first.catalogs.live))
            catalog.create_namespace("db")
            catalog.create_table("db.t", pa.schema([("id", pa.int64())])).append(pa.table({"id": [1]}))
            theirs.list_objects("db.t")
            mark = lambda: ours.mark(second.catalogs.live.name)  # noqa: E731
            for step in (lambda: ours.list_objects("db.t"), ours.observe_catalog, mark, ours.forget_records):
                with pytest.raises(OtherDeployment, match="belongs to another deployment"):
                    step()
            ours.take_over(who="ada", why="moved")
            ours.observe_catalog()
            with pytest.raises(OtherDeployment, match="ada"):
                theirs.observe_catalog()


# --- catalogs that are not in SQL -------------------------------------------------------------------------------------


def _deployment(name: str) -> Deployment:
    return Deployment(name, "1", "5/7", f"{name}:5432/d", "file:///state")


def _in_files(folder: Path, catalog: str = "live", key: str = "rest host:8181") -> DeploymentsInFiles:
    return DeploymentsInFiles(Stores(), f"file://{folder}/warehouse", catalog, key)


def test_beside_a_rest_catalog_the_first_deployment_is_on_record_and_another_refused(tmp_path: Path) -> None:
    records = _in_files(tmp_path)
    require_deployment(records, "live", _deployment("a"), who="me", record=False)
    assert not (tmp_path / "warehouse").exists()
    for _ in range(2):
        require_deployment(records, "live", _deployment("a"), who="me")
    with pytest.raises(OtherDeployment, match=r"a:5432/d .*first use"):
        require_deployment(records, "live", _deployment("b"), who="you")
    # The same catalog under another name of another configuration; then another catalog beside the same warehouse.
    with pytest.raises(OtherDeployment):
        require_deployment(_in_files(tmp_path, "prod"), "prod", _deployment("b"), who="you")
    require_deployment(_in_files(tmp_path, "other", "rest else:1"), "other", _deployment("b"), who="you")
    assert sorted(path.name for path in (tmp_path / "warehouse/.artemis-lifecycle").iterdir()) == [
        "live.json",
        "other.json",
    ]


def test_beside_a_rest_catalog_takeovers_are_added_and_none_is_overwritten(tmp_path: Path) -> None:
    records = _in_files(tmp_path)
    require_deployment(records, "live", _deployment("a"), who="me")
    for number in range(2, 12):
        ours = _deployment("ab"[number % 2 == 0])
        assert take_over(_in_files(tmp_path, "prod"), ours, who="ada", why=f"number {number}")[0].deployment == ours
        require_deployment(records, "live", ours, who="me")
        with pytest.raises(OtherDeployment, match=f"number {number}"):
            require_deployment(records, "live", _deployment("ba"[number % 2 == 0]), who="me")
    written = {path.name for path in (tmp_path / "warehouse/.artemis-lifecycle").iterdir()}
    assert written == {"live.json", *(f"live.{number}.json" for number in range(2, 12))}


def test_beside_a_rest_catalog_one_of_many_at_first_use_wins(tmp_path: Path) -> None:
    won: list[str] = []
    start = threading.Barrier(4)

    def use(name: str) -> None:
        start.wait()
        try:
            require_deployment(_in_files(tmp_path), "live", _deployment(name), who=name)
            won.append(name)
        except OtherDeployment:
            pass

    threads = [threading.Thread(target=use, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_a_record_that_cannot_be_read_refuses_everybody(tmp_path: Path) -> None:
    require_deployment(_in_files(tmp_path), "live", _deployment("a"), who="me")
    (tmp_path / "warehouse/.artemis-lifecycle/live.json").write_text('{"catalog": "live"')
    with pytest.raises(UnreadableMetadata):
        require_deployment(_in_files(tmp_path), "live", _deployment("a"), who="me")


def test_the_identity_is_made_once(databases: Databases) -> None:
    uri = databases.make()
    found = set()
    for _ in range(2):
        with Operations.open(uri) as operations, operations.engine.connect() as connection:
            found.add(connection.execute(text("SELECT operations_id FROM lifecycle.identity")).scalar_one())
    assert len(found) == 1
    engine = create_engine(uri)
    with pytest.raises(Exception, match="identity_once"), engine.begin() as connection:
        connection.execute(text("INSERT INTO lifecycle.identity (operations_id) VALUES ('another')"))
    engine.dispose()


# --- the same in every part: a server's backup, and a copy of a server ------------------------------------------------


def _put_back(config: LifecycleConfig, token: int, decision: int | None = None) -> None:
    """As a server's own backup of that moment has it: oids and identifiers are the same, and a sequence is ahead of its
    rows where the server was copied while it ran."""
    engine = connect(str(config.operations.uri))
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text("DELETE FROM lifecycle.holds WHERE released_at IS NULL"))
        connection.execute(text("DELETE FROM lifecycle.pauses"))
        connection.execute(text(f"DELETE FROM lifecycle.leases WHERE token > {token}"))
        connection.execute(text(f"SELECT setval('lifecycle.lease_token', {token + 32})"))
        if decision is not None:
            connection.execute(text(f"DELETE FROM lifecycle.decisions WHERE decision_id > {decision}"))
            name = "pg_get_serial_sequence('lifecycle.decisions', 'decision_id')"
            connection.execute(text(f"SELECT setval({name}, {max(decision, 1)}, {decision > 0})"))
    engine.dispose()


def _newest(config: LifecycleConfig) -> int:
    engine = connect(str(config.operations.uri))
    with engine.connect() as connection:
        found = connection.execute(text("SELECT last_value FROM lifecycle.lease_token")).scalar_one()
    engine.dispose()
    return int(found)


@pytest.mark.parametrize(
    "decided", ["a hold", "a hold, and another one since", "a consumer", "a pause, by the command line"]
)
@pytest.mark.parametrize("before", [0, 1])
def test_a_database_that_was_put_back_to_before_a_decision_alone_stops(
    make_config: MakeConfig, databases: Databases, spark: SparkSession, tmp_path: Path, decided: str, before: int
) -> None:
    """People decide between two nights, and take no lease."""
    config = make_config(operations={"uri": databases.make()}, defaults=NOW)
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 3)
        for _ in range(before):
            lifecycle.release(lifecycle.hold(table, "legal", "an old case").hold_id, who="ada", why="it is over")
        lifecycle.plan_expiration(table)
        backup, decision = _newest(config), len(lifecycle.decisions())
        if "hold" in decided:
            lifecycle.hold(table, "legal", "case")
        elif decided == "a consumer":
            lifecycle.hold(table, "etl", "reads increments", ids_of(lifecycle, table)[:1], kind="consumer")
        else:
            file = tmp_path / "lifecycle.yaml"
            file.write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True, exclude_none=True)))
            said = ["--config", str(file), "pause", table, "--who", "ada", "--why", "an audit"]
            assert CliRunner().invoke(cli.app, said).exit_code == 0
    _put_back(config, backup, decision)
    with open_lifecycle(config, spark=spark) as lifecycle:
        if "another" in decided:
            lifecycle.hold(table, "legal", "another case")
        with pytest.raises(OtherDeployment, match=r"it lacks (decisions|holds) of which the newest was made at"):
            lifecycle.expire(table)
        assert len(ids_of(lifecycle, table)) == 3
        lifecycle.take_over(who="ada", why="restored")
        if "another" not in decided:
            lifecycle.expire(table)
            assert len(ids_of(lifecycle, table)) == 1


def test_an_operations_database_put_back_in_time_stops_until_a_person_takes_over(
    make_config: MakeConfig, databases: Databases, spark: SparkSession
) -> None:
    config = make_config(operations={"uri": databases.make()}, defaults=NOW)
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 3)
        lifecycle.plan_expiration(table)
        backup = _newest(config)
        lifecycle.hold(table, "legal", "case", snapshot_ids=ids_of(lifecycle, table)[:1])
        lifecycle.plan_expiration(table)
    _put_back(config, backup)
    with open_lifecycle(config, spark=spark) as lifecycle:
        with pytest.raises(OtherDeployment, match="restored from a backup"):
            lifecycle.plan_expiration(table)
        with pytest.raises(OtherDeployment, match="restored from a backup"):
            lifecycle.deep_archive(table, dry_run=True)
        assert lifecycle.read(table).count() == 3
        lifecycle.hold(table, "legal", "case", snapshot_ids=ids_of(lifecycle, table)[:1])
        assert [each.why for each in lifecycle.take_over(who="ada", why="restored")] == ["restored"]
        lifecycle.plan_expiration(table)


def test_a_deletion_whose_operations_database_is_put_back_meanwhile_says_so(
    make_config: MakeConfig, databases: Databases, spark: SparkSession
) -> None:
    config = make_config(operations={"uri": databases.make()}, defaults=NOW)
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 3)
        plan, backup = lifecycle.plan_expiration(table), _newest(config)
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        before = _files(config)

        def restored(point: str) -> None:
            if point == "deletion.seal_batches:before":
                _put_back(config, backup)
                with connected(str(config.operations.uri)) as engine, engine.begin() as connection:
                    connection.execute(text("TRUNCATE lifecycle.steps CASCADE"))

        with crash_points.installed(restored), pytest.raises(OtherDeployment, match=r"restored.*artemis take-over"):
            lifecycle.delete_files(plan)
        assert _files(config) == before


def test_of_two_copies_of_a_server_the_one_behind_is_stopped(
    make_config: MakeConfig, databases: Databases, spark: SparkSession
) -> None:
    config = make_config(operations={"uri": databases.make()}, defaults=NOW)
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        lifecycle.plan_expiration(table)
        both = _newest(config)
        # The copy goes on first, and both hold the same until now.
        lifecycle.plan_expiration(table)
        _put_back(config, both)
        with pytest.raises(OtherDeployment, match="a copy of a server"):
            lifecycle.plan_expiration(table)


def test_steps_side_by_side_do_not_stop_each_other(first: LifecycleConfig, spark: SparkSession) -> None:
    with open_lifecycle(first, spark=spark) as lifecycle:
        tables = [make_table(lifecycle, f"t{number}", 1) for number in range(4)]
        failed: list[BaseException] = []

        def list_often(table: str) -> None:
            try:
                for _ in range(5):
                    lifecycle.list_objects(table)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=list_often, args=(table,)) for table in tables]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []


def test_spark_and_python_find_a_catalog_in_the_schema_of_its_address(
    make_config: MakeConfig, databases: Databases, spark: SparkSession
) -> None:
    """`public` has another catalog of the name: its table is another one."""
    uri = databases.make()
    with connected(uri) as engine, engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA team_b")
    places = {tier: {"uri": f"{uri}?options=-csearch_path%3Dteam_b"} for tier in ("live", "cold")}
    config = make_config(catalogs=places, operations={"uri": uri})
    live = config.catalogs.live.name
    with open_lifecycle(config, spark=spark) as lifecycle:
        core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
        core_tables.sql(spark, f"CREATE TABLE {live}.db.t (id int) USING iceberg")
        assert lifecycle.tables() == ["db.t"]
        with connected(uri) as engine, engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT table_name FROM team_b.iceberg_tables").scalars().all() == ["t"]
