"""What a database that was put back in time has forgotten of the tables, and of holds, is under `operations.root`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import OtherDeployment, UnreadableMetadata
from artemis_lifecycle.operations.database import connected
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import killed_at
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.expiration.aged import ids_of
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.databases import Databases
from artemis_lifecycle_tests.protection.foreign import ids, make_all_old, outcomes, overwrite, sql, take_up
from artemis_lifecycle_tests.protection.test_finding_10 import bring_back, create, drop

OPERATIONS, CATALOG = ("lifecycle",), ("public", "artemis_live")
POLICY: dict[str, Any] = {**WITHOUT_COLD, "dropped": {"keep": "0s", "approval": "guards"}}


class Server:
    """A database whose rows come back as they were: oids and identifiers are the same, as in a server's own backup."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def back_up(self) -> None:
        with connected(self._uri) as engine, engine.begin() as connection:
            connection.execute(text("DROP SCHEMA IF EXISTS backup CASCADE"))
            connection.execute(text("CREATE SCHEMA backup"))
            for schema, table in self._tables(connection, OPERATIONS + CATALOG):
                connection.execute(text(f'CREATE TABLE backup."{schema}.{table}" AS TABLE {schema}.{table}'))

    def put_back(self, *schemas: str) -> None:
        with connected(self._uri) as engine, engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            for schema, table in self._tables(connection, schemas):
                connection.execute(text(f"DELETE FROM {schema}.{table}"))
                rows = f'OVERRIDING SYSTEM VALUE SELECT * FROM backup."{schema}.{table}"'
                connection.execute(text(f"INSERT INTO {schema}.{table} {rows}"))

    @staticmethod
    def _tables(connection: Any, schemas: tuple[str, ...]) -> list[tuple[str, str]]:
        query = text("SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY(:schemas)")
        return [tuple(row) for row in connection.execute(query, {"schemas": list(schemas)})]


@pytest.fixture
def config(make_config: MakeConfig, databases: Databases) -> LifecycleConfig:
    uri = databases.make()
    places = {tier: {"uri": uri} for tier in ("live", "cold")}
    return make_config(operations={"uri": uri}, catalogs=places, defaults=POLICY)


@pytest.fixture
def server(config: LifecycleConfig) -> Server:
    return Server(str(config.operations.uri))


@pytest.fixture
def lifecycle(config: LifecycleConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    with open_lifecycle(config, spark=spark) as lifecycle:
        yield lifecycle


@pytest.mark.parametrize("made", ["before the backup", "since"])
def test_what_a_look_saw_counts_after_catalog_and_operations_were_put_back_together(
    lifecycle: Lifecycle, server: Server, made: str
) -> None:
    owner = create(lifecycle, "db.owner")
    [shared] = (owner / "data").glob("*.parquet")
    if made != "since":
        create(lifecycle, "db.reader")
    lifecycle.plan_expiration("db.owner")
    server.back_up()
    if made == "since":
        create(lifecycle, "db.reader")
    take_up(lifecycle, "db.reader", owner / "data")
    lifecycle.plan_expiration("db.reader")
    pointer = lifecycle.get_current("db.reader").metadata_location
    server.put_back(*OPERATIONS, *CATALOG)
    with pytest.raises(OtherDeployment, match="restored from a backup"):
        lifecycle.plan_expiration("db.owner")
    lifecycle.take_over(who="ada", why="restored")
    overwrite(lifecycle, "db.owner", 9)
    found = outcomes(lifecycle.expire("db.owner"))

    assert found[str(shared)][0] == "kept"
    assert local(str(shared)).exists()
    if made != "since":
        sql(lifecycle, "DROP TABLE {live}.db.reader")
    assert bring_back(lifecycle, "db.reader", pointer) == [1, 1]


def test_a_kept_dropped_table_is_known_again_with_who_keeps_it(lifecycle: Lifecycle, server: Server) -> None:
    owner = create(lifecycle, "db.owner")
    [shared] = (owner / "data").glob("*.parquet")
    lifecycle.plan_expiration("db.owner")
    server.back_up()
    create(lifecycle, "db.reader")
    take_up(lifecycle, "db.reader", owner / "data")
    lifecycle.plan_expiration("db.reader")
    pointer = lifecycle.get_current("db.reader").metadata_location
    table_uuid = lifecycle.steps.table_uuid("db.reader")
    sql(lifecycle, "DROP TABLE {live}.db.reader")
    lifecycle.observe_catalog()
    lifecycle.keep_dropped(table_uuid, who="ada", why="an audit")
    server.put_back(*OPERATIONS)
    with pytest.raises(OtherDeployment, match="restored from a backup"):
        lifecycle.plan_expiration("db.owner")
    [dropped] = lifecycle.dropped_tables()
    assert (dropped.table, dropped.state, dropped.kept_by) == ("db.reader", "kept", "ada")
    lifecycle.hold(table_uuid, "legal", "placed again")
    lifecycle.take_over(who="ada", why="restored")
    overwrite(lifecycle, "db.owner", 9)
    assert outcomes(lifecycle.expire("db.owner"))[str(shared)][0] == "kept"
    assert bring_back(lifecycle, "db.reader", pointer) == [1, 1]


@pytest.fixture
def quarantining(config: LifecycleConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    defaults = {**POLICY, "deletion": {"grace": "0s", "mode": "quarantine"}}
    said = config.model_dump(mode="json", by_alias=True) | {"defaults": defaults, "tables": {"db.*": {}}}
    with open_lifecycle(LifecycleConfig.model_validate(said), spark=spark) as lifecycle:
        yield lifecycle


@pytest.mark.parametrize("since", ["the drop", "the deletion"])
def test_what_a_table_in_quarantine_reads_stays_and_it_comes_back(
    quarantining: Lifecycle, server: Server, since: str
) -> None:
    lifecycle = quarantining
    owner = create(lifecycle, "db.owner")
    [shared] = (owner / "data").glob("*.parquet")
    create(lifecycle, "db.reader")
    take_up(lifecycle, "db.reader", owner / "data")
    lifecycle.plan_expiration("db.reader")
    lifecycle.plan_expiration("db.owner")
    if since == "the drop":
        server.back_up()
    table_uuid = drop(lifecycle, "db.reader")
    if since == "the deletion":
        server.back_up()
    [cleared] = lifecycle.clear_dropped()
    assert cleared.deleted > 0
    server.put_back(*OPERATIONS)
    lifecycle.take_over(who="ada", why="restored")
    overwrite(lifecycle, "db.owner", 9)
    assert outcomes(lifecycle.expire("db.owner"))[str(shared)][0] == "kept"
    lifecycle.undrop("db.reader", uuid=table_uuid, who="ada", why="an audit")
    assert ids(lifecycle, "db.reader") == [1, 1]


def test_what_was_undeleted_since_stays_until_it_is_closed(quarantining: Lifecycle, server: Server) -> None:
    lifecycle = quarantining
    place = create(lifecycle, "db.owner")
    orphan = place / "data" / "left.parquet"
    orphan.write_bytes(b"PAR1")
    make_all_old(place)
    scan = lifecycle.scan_orphans("db.owner")
    server.back_up()
    assert lifecycle.delete_orphans(scan).deleted == 1
    lifecycle.undelete(scan.scan_id, who="ada", why="it is needed")
    server.put_back(*OPERATIONS)
    lifecycle.take_over(who="ada", why="restored")
    make_all_old(place)
    lifecycle.delete_orphans(lifecycle.scan_orphans("db.owner"))
    assert orphan.exists()
    lifecycle.close_plan(scan.scan_id, who="ada", why="it was looked at")
    lifecycle.delete_orphans(lifecycle.scan_orphans("db.owner"))
    assert not orphan.exists()


def test_a_lease_that_was_renewed_since_holds_and_one_that_was_released_does_not(
    lifecycle: Lifecycle, server: Server
) -> None:
    create(lifecycle, "db.owner")
    [snapshot_id] = ids_of(lifecycle, "db.owner")
    lifecycle.plan_expiration("db.owner")
    ttl = timedelta(seconds=2)
    renewed, released = (
        lifecycle.hold("db.owner", "reader", "reads", [snapshot_id], kind="lease", ttl=ttl) for _ in range(2)
    )
    server.back_up()
    lifecycle.renew(renewed.hold_id, ttl=timedelta(days=1))
    lifecycle.release(released.hold_id, who="reader", why="done")
    server.put_back(*OPERATIONS)
    time.sleep(2.5)
    overwrite(lifecycle, "db.owner", 9)
    lifecycle.expire("db.owner")
    assert snapshot_id in ids_of(lifecycle, "db.owner")
    assert [each.hold_id for each in lifecycle.holds("db.owner")] == [renewed.hold_id]


def test_what_was_seen_since_is_read_back_before_a_look_writes_on(lifecycle: Lifecycle, server: Server) -> None:
    create(lifecycle, "db.owner")
    lifecycle.plan_expiration("db.owner")
    server.back_up()
    create(lifecycle, "db.reader")
    lifecycle.observe_catalog()
    table_uuid = lifecycle.steps.table_uuid("db.reader")
    server.put_back(*OPERATIONS)
    sql(lifecycle, "DROP TABLE {live}.db.reader")
    create(lifecycle, "db.another")
    # No step comes first: a look writes a newer file than those that are forgotten.
    lifecycle.observe_catalog()
    lifecycle.plan_expiration("db.owner")
    assert [each.table for each in lifecycle.operations.known_tables.of_uuid(table_uuid)] == ["db.reader"]


def test_a_table_that_was_renamed_since_has_one_name(lifecycle: Lifecycle, server: Server) -> None:
    create(lifecycle, "db.owner")
    lifecycle.plan_expiration("db.owner")
    server.back_up()
    create(lifecycle, "db.a")
    lifecycle.plan_expiration("db.a")
    sql(lifecycle, "ALTER TABLE {live}.db.a RENAME TO db.b")
    lifecycle.plan_expiration("db.b")
    server.put_back(*OPERATIONS)
    lifecycle.take_over(who="ada", why="restored")
    lifecycle.observe_catalog()
    assert not lifecycle.dropped_tables()
    [known] = lifecycle.operations.known_tables.of_uuid(lifecycle.steps.table_uuid("db.b"))
    assert known.table == "db.b"


def test_what_a_killed_step_saw_is_sent_by_the_next_one(lifecycle: Lifecycle, server: Server) -> None:
    create(lifecycle, "db.owner")
    lifecycle.plan_expiration("db.owner")
    server.back_up()
    create(lifecycle, "db.reader")
    with killed_at("outbox.send:before"):
        lifecycle.plan_expiration("db.reader")
    lifecycle.plan_expiration("db.owner")
    server.put_back(*OPERATIONS)
    lifecycle.take_over(who="ada", why="restored")
    assert {
        each.table for each in lifecycle.operations.known_tables.of_catalog(lifecycle.config.catalogs.live.name)
    } >= {"db.reader"}


@pytest.mark.parametrize("content", ["{", '[["known_tables", {"catalog": "live"}, null]]', '[["plans", {}, null]]'])
def test_a_file_of_it_that_cannot_be_read_stops_the_database_that_needs_it(
    lifecycle: Lifecycle, server: Server, content: str
) -> None:
    create(lifecycle, "db.owner")
    lifecycle.plan_expiration("db.owner")
    server.back_up()
    create(lifecycle, "db.reader")
    lifecycle.plan_expiration("db.reader")
    files = sorted((local(lifecycle.root) / "observed").rglob("*.json"))
    files[-1].write_text(content)
    lifecycle.plan_expiration("db.owner")
    server.put_back(*OPERATIONS)
    with pytest.raises(UnreadableMetadata, match="What was observed"):
        lifecycle.plan_expiration("db.owner")
    files[-1].unlink()
    lifecycle.take_over(who="ada", why="restored")
    lifecycle.plan_expiration("db.owner")
