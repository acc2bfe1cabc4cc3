"""The whole walk over REST: the same results as in a SQL catalog, whoever makes a tag at the wrong moment, and nothing
but files of tables in a managed store."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.deployments import PROPERTY
from artemis_lifecycle.catalogs.identifier import NAMESPACE
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.config.policies import Report
from artemis_lifecycle.errors import CommitStateUnknown, OtherDeployment, Refused, StorageError
from artemis_lifecycle.expiration.commit import ExpirationCommit
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.operations.rest_commits import RestState
from artemis_lifecycle.walk.reporting import PREFIX
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.rest.servers import Proxy, Server

LATER = datetime.now(UTC) + timedelta(days=60)
ORPHANS = {"min_age": "0s", "min_age_floor": "0s", "max_share": 1}
POLICY = {"retention": {"window": "1d"}, "deletion": {"grace": "1ms"}, "orphans": ORPHANS}
Rows = list[tuple[object, ...]]
Open = Callable[..., Lifecycle]


@pytest.fixture
def opened(make_config: MakeConfig, spark: SparkSession, server: Server, tmp_path: Any) -> Open:
    """`opened(type, uri=None, **sections)`: a lifecycle on a catalog of that type, which belongs to no deployment."""
    catalog = load_catalog("other", **pyiceberg_properties(server.catalog()))
    catalog.create_namespace_if_not_exists(NAMESPACE)
    catalog.update_namespace_properties(NAMESPACE, removals={PROPERTY})

    def make(kind: str = "rest", uri: str | None = None, **sections: Any) -> Lifecycle:
        live: dict[str, Any] = {}
        if kind == "rest":
            keys = {"type", "uri", "warehouse", "properties"}
            live = server.catalog(uri=uri).model_dump(include=keys) | {"managed": server.warehouse.startswith("s3:")}
        defaults = {**POLICY, **sections.pop("defaults", {})}
        return Lifecycle.open(make_config(catalogs={"live": live}, defaults=defaults, **sections), spark=spark)

    return make


def table_of(lifecycle: Lifecycle, name: str = "t", version: int = 2) -> str:
    """Five commits, with deletes and a compaction; a tag on the second."""
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    namespace = f"db{id(lifecycle)}"
    table = f"{live}.{namespace}.{name}"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.{namespace}")
    spark.sql(
        f"CREATE TABLE {table} (id int, part string) USING iceberg PARTITIONED BY (part) "
        f"TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='merge-on-read')"
    )
    spark.sql(f"INSERT INTO {table} SELECT id, 'p' || id % 2 FROM range(0, 8)")
    spark.sql(f"INSERT INTO {table} SELECT id, 'p' || id % 2 FROM range(8, 16)")
    # SeaweedFS refuses Puffin files, so tables of version 3 have no deletion vectors here.
    spark.sql(f"DELETE FROM {table} WHERE id IN (3, 12)" if version < 3 else f"INSERT INTO {table} VALUES (3, 'p0')")
    second = ids_of(lifecycle, f"{namespace}.{name}")[1]
    spark.sql(f"ALTER TABLE {table} CREATE TAG audit AS OF VERSION {second}")
    lifecycle.compact_data_files(f"{namespace}.{name}")
    spark.sql(f"INSERT OVERWRITE {table} VALUES (20, 'p0'), (21, 'p1')")
    return f"{namespace}.{name}"


def ids_of(lifecycle: Lifecycle, table: str) -> list[int]:
    return [each.snapshot_id for each in lifecycle.snapshot_history(table).snapshots]


def rows(lifecycle: Lifecycle, table: str, snapshot_id: int) -> Rows:
    return sorted(tuple(row) for row in lifecycle.read(table, snapshot_id=snapshot_id).collect())


@pytest.mark.parametrize("version", [2, 3])
def test_a_tag_made_while_it_commits_is_put_back_and_its_files_stay(opened: Open, version: int) -> None:
    lifecycle = opened()
    table = table_of(lifecycle, version=version)
    ids, live = ids_of(lifecycle, table), lifecycle.config.catalogs.live.name
    before = [rows(lifecycle, table, each) for each in ids]
    plan = lifecycle.plan_expiration(table, now=LATER)
    lifecycle.hand_off(plan)

    def tag(name: str) -> None:
        if name == "catalog.commit:before":
            lifecycle.spark.sql(f"ALTER TABLE {live}.{table} CREATE TAG late AS OF VERSION {ids[2]} RETAIN 30 DAYS")

    with crash_points.installed(tag):
        done = lifecycle.commit_expiration(plan)
    assert [(each.ref, each.snapshot_id) for each in done.put_back] == [("late", ids[2])]
    assert done.snapshots_removed == len(plan.expired_snapshots) - 1
    report = lifecycle.delete_files(plan)
    assert report.deleted and report.kept and report.failed == 0
    assert lifecycle.plans(table)[0].status is PlanStatus.DONE
    state = lifecycle.snapshot_history(table)
    assert state.refs["late"].snapshot_id == ids[2] and state.refs["late"].max_ref_age_ms == 30 * 86_400_000
    spark_rows = lifecycle.spark.sql(f"SELECT * FROM {live}.{table} VERSION AS OF 'late'").collect()
    assert sorted(tuple(row) for row in spark_rows) == before[2]
    assert [rows(lifecycle, table, each) for each in ids] == before
    # It expires like any other, and the archive takes it for the snapshot that it has already.
    lifecycle.untag(table, "late")
    second = lifecycle.plan_expiration(table, now=LATER)
    assert second.expired_snapshots == (ids[2],)
    lifecycle.hand_off(second)
    assert lifecycle.commit_expiration(second).put_back == ()
    assert lifecycle.delete_files(second).failed == 0
    assert [rows(lifecycle, table, each) for each in ids] == before


@pytest.mark.parametrize("how", ["prolonged", "made anew", "of the table"])
def test_a_lapsed_tag_that_somebody_prolongs_while_it_commits_is_put_back(opened: Open, how: str) -> None:
    """The server compares only its snapshot, which is the same."""
    lifecycle = opened(defaults={"cold_tier": {"enabled": False}})
    table, live = table_of(lifecycle), lifecycle.config.catalogs.live.name
    ids, full = ids_of(lifecycle, table), f"{live}.{table}"
    lifecycle.spark.sql(f"ALTER TABLE {full} CREATE TAG old AS OF VERSION {ids[2]} RETAIN 1 DAYS")
    if how == "of the table":
        lifecycle.spark.sql(f"ALTER TABLE {full} SET TBLPROPERTIES ('history.expire.max-ref-age-ms'='1')")
        lifecycle.spark.sql(f"ALTER TABLE {full} REPLACE TAG old AS OF VERSION {ids[2]}")
    before = rows(lifecycle, table, ids[2])
    plan = lifecycle.plan_expiration(table, now=LATER)
    assert ids[2] in plan.expired_snapshots and "old" in plan.expired_refs
    tag = f"TAG old AS OF VERSION {ids[2]} RETAIN 3650 DAYS"
    said = {
        "prolonged": [f"REPLACE {tag}"],
        "made anew": ["DROP TAG old", f"CREATE {tag}"],
        "of the table": ["SET TBLPROPERTIES ('history.expire.max-ref-age-ms'='315360000000')"],
    }

    def act(name: str) -> None:
        if name == "catalog.commit:before":
            for each in said[how]:
                lifecycle.spark.sql(f"ALTER TABLE {full} {each}")

    with crash_points.installed(act):
        done = lifecycle.commit_expiration(plan)
    again = {(each.ref, each.snapshot_id) for each in done.put_back if each.ref}
    assert again == {("old", ids[2]), *([("audit", ids[1])] if how == "of the table" else [])}
    lifecycle.delete_files(plan)
    assert lifecycle.snapshot_history(table).refs["old"].snapshot_id == ids[2]
    assert rows(lifecycle, table, ids[2]) == before


@pytest.mark.parametrize("how", ["its name is used", "main keeps more"])
def test_what_is_kept_anew_while_it_commits_stays_readable(opened: Open, how: str) -> None:
    lifecycle = opened(defaults={"cold_tier": {"enabled": False}})
    table, live = table_of(lifecycle), lifecycle.config.catalogs.live.name
    ids, full = ids_of(lifecycle, table), f"{live}.{table}"
    before = {each: rows(lifecycle, table, each) for each in ids}
    plan = lifecycle.plan_expiration(table, now=LATER)
    at = {
        "its name is used": {
            "catalog.commit:before": f"CREATE TAG late AS OF VERSION {ids[2]}",
            "catalog.put_back:before": f"CREATE TAG late AS OF VERSION {ids[-1]}",
        },
        "main keeps more": {
            "catalog.commit:before": f"REPLACE BRANCH main AS OF VERSION {ids[-1]} "
            "WITH SNAPSHOT RETENTION 100 SNAPSHOTS"
        },
    }[how]

    def act(name: str) -> None:
        if name in at:
            lifecycle.spark.sql(f"ALTER TABLE {full} {at.pop(name)}")

    with crash_points.installed(act):
        done = lifecycle.commit_expiration(plan)
    lifecycle.delete_files(plan)
    stay = set(plan.expired_snapshots) if how == "main keeps more" else {ids[2]}
    assert {each.snapshot_id for each in done.put_back} == stay
    assert {each: rows(lifecycle, table, each) for each in stay} == {each: before[each] for each in stay}
    refs = lifecycle.snapshot_history(table).refs
    if how == "its name is used":
        assert refs["late"].snapshot_id == ids[-1] and refs[f"late-{ids[2]}"].snapshot_id == ids[2]
    else:
        assert not stay & set(lifecycle.plan_expiration(table, now=LATER).expired_snapshots)


def test_a_plan_that_is_not_proven_deletes_nothing_until_it_is(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("artemis_lifecycle.catalogs.rest_commit._PUT_BACKS", 3)  # Each settlement tries for 12 s.
    proxy = Proxy(server.uri)
    with proxy.serving() as uri:
        lifecycle = opened(uri=uri, defaults={"cold_tier": {"enabled": False}})
        table = table_of(lifecycle)
        ids, live = ids_of(lifecycle, table), lifecycle.config.catalogs.live.name
        before = rows(lifecycle, table, ids[2])
        plan = lifecycle.plan_expiration(table, now=LATER)

        def act(name: str) -> None:
            if name == "catalog.commit:before":
                lifecycle.spark.sql(f"ALTER TABLE {live}.{table} CREATE TAG late AS OF VERSION {ids[2]}")
            if name == "rest:answered":
                proxy.fault = lambda method, path: "refuse" if method == "POST" and "/tables/" in path else None

        with crash_points.installed(act), pytest.raises(CommitStateUnknown, match="late"):
            lifecycle.commit_expiration(plan)
        uuid = plan.table_uuid
        assert [each.state for each in lifecycle.operations.rest_commits.of_table(uuid)] == [RestState.UNPROVEN]
        for step in (lifecycle.commit_expiration, lambda plan: lifecycle.plan_expiration(table, now=LATER)):
            with pytest.raises(CommitStateUnknown, match="late"):
                step(plan)
        with pytest.raises(Exception, match="not committed"):
            lifecycle.delete_files(plan)
        proxy.fault = lambda method, path: None
        done = lifecycle.commit_expiration(plan)
        assert [each.ref for each in done.put_back] == ["late"]
        lifecycle.delete_files(plan)
        assert rows(lifecycle, table, ids[2]) == before


def test_a_plan_that_was_closed_before_it_was_proven_loses_no_ref(opened: Open) -> None:
    lifecycle = opened(defaults={"cold_tier": {"enabled": False}})
    table, live = table_of(lifecycle), lifecycle.config.catalogs.live.name
    ids = ids_of(lifecycle, table)
    before, plan = rows(lifecycle, table, ids[2]), lifecycle.plan_expiration(table, now=LATER)

    def act(name: str) -> None:
        if name == "catalog.commit:before":
            lifecycle.spark.sql(f"ALTER TABLE {live}.{table} CREATE TAG late AS OF VERSION {ids[2]}")
        if name == "rest:answered":
            raise Killed(name)

    with crash_points.installed(act), pytest.raises(Killed):
        lifecycle.commit_expiration(plan)
    lapse(lifecycle, "leases")
    lifecycle.close_plan(plan.plan_id, who="ada", why="not now")
    lifecycle.plan_expiration(table, now=LATER)
    assert "late" in lifecycle.snapshot_history(table).refs
    assert rows(lifecycle, table, ids[2]) == before


def test_what_could_not_be_proven_is_refused_at_the_plan(opened: Open) -> None:
    lifecycle = opened(defaults={"cold_tier": {"enabled": False}})
    table, live = table_of(lifecycle), lifecycle.config.catalogs.live.name
    lifecycle.spark.sql(
        f"ALTER TABLE {live}.{table} SET TBLPROPERTIES "
        "('write.metadata.delete-after-commit.enabled'='true', 'write.metadata.previous-versions-max'='3')"
    )
    with pytest.raises(Refused, match="keeps 3 previous metadata files"):
        lifecycle.plan_expiration(table, now=LATER)
    lifecycle.spark.sql(f"ALTER TABLE {live}.{table} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='10')")
    no_grace = opened(operations={"root": lifecycle.config.operations.root}, defaults={"deletion": {"grace": "0s"}})
    with pytest.raises(Refused, match="has no grace"):
        no_grace.plan_expiration(table, now=LATER)


def test_another_deployment_on_the_catalog_is_refused(opened: Open) -> None:
    first = opened(defaults={"cold_tier": {"enabled": False}})
    table = table_of(first)
    assert first.plan_expiration(table, now=LATER).expired_snapshots
    second = opened(operations={"root": f"{first.config.operations.root}-other"})
    with pytest.raises(OtherDeployment, match="belongs to another deployment"):
        second.plan_expiration(table, now=LATER)
    second.take_over(who="ada", why="the first one is gone")
    assert second.plan_expiration(table, now=LATER).expired_snapshots
    with pytest.raises(OtherDeployment):
        first.plan_expiration(table, now=LATER)


def test_a_server_without_properties_of_namespaces_has_the_record_on_each_table(opened: Open, server: Server) -> None:
    proxy, lacking = Proxy(server.uri), ["/properties"]
    proxy.fault = lambda method, path: "lack" if method == "POST" and any(each in path for each in lacking) else None
    with proxy.serving() as uri:
        first = opened(uri=uri, defaults={"cold_tier": {"enabled": False}})
        table = table_of(first)
        lacking.append("/tables/")
        head = first.snapshot_history(table).refs["main"].snapshot_id

        def properties() -> dict[str, str]:
            rest = first.resources.rest_of(table)
            assert rest is not None
            return dict(rest.load(table).properties)

        plan = first.plan_expiration(table, now=LATER)
        before = first.snapshot_history(table).metadata_location
        with pytest.raises(Refused, match=r"keeps no properties.*sole_deployment"):
            first.commit_expiration(plan)
        assert first.snapshot_history(table).metadata_location == before
        # It keeps those of tables. A question does not set them.
        lacking.remove("/tables/")
        first.commit_expiration(plan, dry_run=True)
        assert PROPERTY not in properties()
        first.commit_expiration(plan)
        assert PROPERTY in properties()
        assert first.snapshot_history(table).refs["main"].snapshot_id == head
        second = opened(uri=uri, operations={"root": f"{first.config.operations.root}-other"})
        with pytest.raises(OtherDeployment, match="belongs to another deployment"):
            second.commit_expiration(second.plan_expiration(table, now=LATER))
        first.delete_files(plan)
        second.take_over(who="ada", why="the first one is gone")
        second.plan_expiration(table, now=LATER)
        with pytest.raises(OtherDeployment, match="ada"):
            first.scan_orphans(table)


def test_unused_schemas_and_specs_leave_but_none_that_an_alter_takes_up_meanwhile(opened: Open, server: Server) -> None:
    proxy, cleaning = Proxy(server.uri), {"window": "1d", "clean_metadata": True}
    defaults = {"cold_tier": {"enabled": False}, "retention": cleaning, "orphans": {**ORPHANS, "min_age": "1ms"}}
    with proxy.serving() as uri:
        lifecycle = opened(uri=uri, defaults=defaults)
        namespace = f"{lifecycle.config.catalogs.live.name}.db{id(lifecycle)}"
        spark, table, key = lifecycle.spark, f"{namespace}.t", f"db{id(lifecycle)}.t"
        statements = (
            f"CREATE NAMESPACE {namespace}",
            f"CREATE TABLE {table} (id int) USING iceberg",
            f"INSERT INTO {table} VALUES (1)",
            f"ALTER TABLE {table} CREATE TAG keep",
            f"ALTER TABLE {table} ADD COLUMN a int",
            f"ALTER TABLE {table} ADD PARTITION FIELD id",
            f"INSERT INTO {table} VALUES (2, 2)",
            f"ALTER TABLE {table} ADD COLUMN b int",
            f"ALTER TABLE {table} ADD PARTITION FIELD bucket(2, a)",
            f"ALTER TABLE {table} ADD COLUMN c int",
            f"INSERT OVERWRITE {table} VALUES (4, 4, 4, 4)",
            f"DELETE FROM {table} WHERE id < 4",
            f"INSERT INTO {table} VALUES (5, 5, 5, 5)",
        )
        for statement in statements:
            spark.sql(statement)

        def known() -> tuple[set[int], set[int]]:
            metadata = lifecycle.steps.table_state(key).metadata
            return set(metadata.schemas), set(metadata.partition_specs)

        def expire() -> ExpirationCommit:
            spark.sql(f"INSERT INTO {table} VALUES (6, 6, 6, 6)")
            return lifecycle.commit_expiration(lifecycle.plan_expiration(key, now=LATER))

        assert known() == ({0, 1, 2, 3}, {0, 1, 2})
        # A writer that began while one was the current or the default one may still commit.
        first = expire()
        assert first.snapshots_removed and (first.schemas_removed, first.specs_removed) == (0, 0)
        proxy.fault = lambda method, path: (
            "lack" if method == "POST" and "/tables/" in path and b"remove-schemas" in proxy.commits[-1][1] else None
        )
        with pytest.raises(Refused, match=r"refuses the commit: status 406.*clean_metadata: false"):
            expire()
        proxy.fault = lambda *_: None
        assert known() == ({0, 1, 2, 3}, {0, 1, 2})
        other = load_catalog("other", **pyiceberg_properties(server.catalog()))

        def alter(name: str) -> None:
            if name == "catalog.commit:before" and other.load_table(key).schema().schema_id == 3:
                spark.sql(f"ALTER TABLE {table} DROP COLUMN c")

        with crash_points.installed(alter):
            done = lifecycle.commit_expiration(lifecycle.plan_expiration(key, now=LATER))
        assert (done.schemas_removed, done.specs_removed) == (1, 1)
        assert known() == ({0, 2, 3}, {0, 2})
        assert other.load_table(key).schema().schema_id == 2
        assert sorted(row["id"] for row in lifecycle.read(key).collect()) == [4, 5, 6, 6]
        tagged = lifecycle.read(key, tag="keep")
        assert tagged.columns == ["id"] and [tuple(row) for row in tagged.collect()] == [(1,)]


def _reported(lifecycle: Lifecycle, table: str) -> dict[str, Any]:
    at = lifecycle.snapshot_history(table).metadata_location
    found = read_table_metadata(lifecycle.live_stores, at).properties
    return {key.removeprefix(PREFIX): json.loads(value) for key, value in found.items() if key.startswith(PREFIX)}


@pytest.mark.parametrize("kind", ["sql", "rest"])
def test_outcomes_are_reported_back_and_only_a_quiet_table_gets_a_commit_for_them(opened: Open, kind: str) -> None:
    report = {"cold_tier": {"enabled": False}, "report": {"properties": True, "quiet": "0s"}}
    lifecycle = opened(kind, defaults=report)
    table, live = table_of(lifecycle), lifecycle.config.catalogs.live.name
    head = lifecycle.snapshot_history(table).refs["main"].snapshot_id
    assert _reported(lifecycle, table) == {}
    plan = lifecycle.plan_expiration(table, now=LATER)
    lifecycle.commit_expiration(plan)
    said, at = _reported(lifecycle, table), lifecycle.snapshot_history(table).metadata_location
    assert said["snapshot-expiry"]["job"] == plan.plan_id
    assert said["snapshot-expiry"]["snapshots_removed"] == len(plan.expired_snapshots)
    # It went with the expiration's own commit, as what the compaction before it did.
    assert said["data-compaction"]["files_rewritten"] > 0 and "file-deletion" not in said
    assert read_table_metadata(lifecycle.live_stores, at).metadata_log[-1].metadata_file == plan.base_metadata_location
    deleted = lifecycle.delete_files(plan)
    done = _reported(lifecycle, table)["file-deletion"]
    assert (done["job"], done["files_deleted"], done["bytes_deleted"]) == (plan.plan_id, deleted.deleted, deleted.bytes)
    assert lifecycle.snapshot_history(table).refs["main"].snapshot_id == head

    def another() -> ExpirationPlan:
        lifecycle.spark.sql(f"INSERT OVERWRITE {live}.{table} VALUES (20, 'p0'), (21, 'p1')")
        found = lifecycle.plan_expiration(table, now=LATER)
        lifecycle.commit_expiration(found)
        return found

    def fail(name: str) -> None:
        if name == "catalog.commit:before":
            raise StorageError("the store is full", table=table)

    # A report that fails does not fail the step.
    second = another()
    with crash_points.installed(fail):
        lifecycle.delete_files(second)
    assert lifecycle.plans(table)[0].status is PlanStatus.DONE
    assert _reported(lifecycle, table)["file-deletion"]["job"] == plan.plan_id
    if kind == "sql":
        # A managed store takes no strays.
        lifecycle.live_stores.write(f"{at.partition('/metadata/')[0]}/data/stray.parquet", b"stray")
        scan = lifecycle.scan_orphans(table)
        assert lifecycle.delete_orphans(scan).deleted == 1
        removed = _reported(lifecycle, table)["orphan-file-removal"]
        assert (removed["job"], removed["files_deleted"], removed["bytes_deleted"]) == (scan.scan_id, 1, 5)
        assert _reported(lifecycle, table)["file-deletion"]["job"] == second.plan_id
    # Somebody committed a moment ago: only the next expiration's own commit says what this deletion did.
    defaults = lifecycle.config.defaults.model_copy(update={"report": Report(properties=True)})
    config = lifecycle.config.model_copy(update={"defaults": defaults})
    lifecycle = Lifecycle.open(config, spark=lifecycle.spark)
    third = another()
    assert _reported(lifecycle, table)["file-deletion"]["job"] == second.plan_id
    at = lifecycle.snapshot_history(table).metadata_location
    lifecycle.delete_files(third)
    assert lifecycle.plans(table)[0].status is PlanStatus.DONE
    assert lifecycle.snapshot_history(table).metadata_location == at


def test_the_base_of_a_commit_reads_as_metadata(opened: Open) -> None:
    """The loaded answer and the file behind it are one."""
    lifecycle = opened()
    table = table_of(lifecycle)
    rest = lifecycle.resources.rest_of(table)
    assert rest is not None
    base = rest.load(table)
    assert read_table_metadata(lifecycle.live_stores, base.location).refs["audit"].snapshot_id == base.heads["audit"]
