"""An expiration removes schemas, specs and sort orders that nothing uses, and none that anything still does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs import commit
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.expiration import commit as commit_module
from artemis_lifecycle.expiration.commit import ExpirationCommit
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.types import ManifestListEntry
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.walk.expiration import removed_parts
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import AT_ONCE

TABLE = "db.t"


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    cleaning = {**AT_ONCE, "retention": {"window": "1ms", "clean_metadata": True}}
    with open_lifecycle(make_config(defaults=cleaning, tables={"db.*": {}}), spark=spark) as opened:
        live = opened.config.catalogs.live.name
        core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
        core_tables.sql(spark, f"CREATE TABLE {live}.{TABLE} (id int) USING iceberg")
        yield opened


def _run(lifecycle: Lifecycle, *statements: str) -> None:
    for statement in statements:
        lifecycle.spark.sql(
            re.sub(r"\b(TABLE|FROM) t\b", rf"\1 {lifecycle.config.catalogs.live.name}.{TABLE}", statement)
        )


def _expire(lifecycle: Lifecycle) -> ExpirationCommit:
    plan = lifecycle.plan_expiration(TABLE)
    lifecycle.hand_off(plan)
    done = lifecycle.commit_expiration(plan)
    lifecycle.delete_files(plan)
    return done


def _known(lifecycle: Lifecycle) -> tuple[set[int], set[int]]:
    metadata = lifecycle.steps.table_state(TABLE).metadata
    return set(metadata.schemas), set(metadata.partition_specs)


def test_what_a_tag_or_a_manifest_uses_stays_and_the_past_keeps_its_columns(lifecycle: Lifecycle) -> None:
    _run(
        lifecycle,
        "INSERT INTO TABLE t VALUES (1)",
        "ALTER TABLE t ADD COLUMN a int",
        "INSERT INTO TABLE t VALUES (2, 2)",
        "ALTER TABLE t CREATE TAG keep",
        "ALTER TABLE t ADD PARTITION FIELD id",
        "ALTER TABLE t ADD COLUMN b int",
        "INSERT INTO TABLE t VALUES (3, 3, 3)",
    )
    between = datetime.now(UTC)
    _run(
        lifecycle,
        "ALTER TABLE t ADD PARTITION FIELD bucket(2, a)",
        "ALTER TABLE t ADD COLUMN c int",
        "INSERT OVERWRITE TABLE t VALUES (4, 4, 4, 4)",
        "DELETE FROM t WHERE id < 4",
        "INSERT INTO TABLE t VALUES (5, 5, 5, 5)",
    )
    first = lifecycle.snapshot_history(TABLE).snapshots[0].snapshot_id
    assert _known(lifecycle) == ({0, 1, 2, 3}, {0, 1, 2})
    would = lifecycle.commit_expiration(lifecycle.plan_expiration(TABLE), dry_run=True)
    assert (would.schemas_removed, would.specs_removed) == (2, 0)
    done = _expire(lifecycle)
    # The tag's snapshot has schema 1, and manifests of spec 0. Spec 1 is only now seen to be unused.
    assert (done.schemas_removed, done.specs_removed) == (2, 0)
    assert _known(lifecycle) == ({1, 3}, {0, 1, 2})
    _run(lifecycle, "INSERT INTO TABLE t VALUES (6, 6, 6, 6)")
    assert _expire(lifecycle).specs_removed == 1
    assert _known(lifecycle) == ({1, 3}, {0, 2})

    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.catalog.refreshTable(f"{live}.{TABLE}")
    rows = lifecycle.spark.table(f"{live}.{TABLE}").orderBy("id").collect()
    assert [row["c"] for row in rows][-2:] == [5, 6]
    tagged = lifecycle.spark.sql(f"SELECT * FROM {live}.{TABLE} VERSION AS OF 'keep'")
    assert tagged.columns == ["id", "a"] and tagged.count() == 2
    # The cold tier has its own, and the history too.
    assert lifecycle.read(TABLE, snapshot_id=first).columns == ["id"]
    past = lifecycle.current_at(TABLE, between)
    versions = {each.schema_id: [column.name for column in each.fields] for each in _versions(lifecycle)}
    assert versions == {0: ["id"], 1: ["id", "a"], 2: ["id", "a", "b"], 3: ["id", "a", "b", "c"]}
    assert past.schema_id is not None and versions[past.schema_id] == ["id", "a", "b"]


def _versions(lifecycle: Lifecycle) -> tuple[Any, ...]:
    return lifecycle.schema_history(TABLE).versions


def test_an_alter_that_wins_the_race_keeps_the_schema_that_it_took_up_again(
    lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(
        lifecycle,
        "INSERT INTO TABLE t VALUES (1)",
        "ALTER TABLE t ADD COLUMN a int",
        "ALTER TABLE t ADD COLUMN b int",
        "INSERT INTO TABLE t VALUES (2, 2, 2)",
    )
    original, attempts = commit._swap, []

    def racing(operations: Any, base: Any, updated: Any) -> None:
        attempts.append(sorted(updated.schemasById().keySet()))
        if len(attempts) == 1:
            # Iceberg finds the equal schema 0, and makes it the current one again.
            _run(lifecycle, "ALTER TABLE t DROP COLUMNS (a, b)")
        original(operations, base, updated)

    monkeypatch.setattr(commit, "_swap", racing)
    done = _expire(lifecycle)
    metadata = lifecycle.steps.table_state(TABLE).metadata
    assert attempts[0] == [2] and metadata.current_schema_id == 0
    assert set(metadata.schemas) == {0, 2} and done.schemas_removed == 1 and done.attempts == 2


def test_what_nothing_uses_leaves_also_where_no_snapshot_does(lifecycle: Lifecycle) -> None:
    _run(lifecycle, "INSERT INTO TABLE t VALUES (1)", *(f"ALTER TABLE t ADD COLUMN c{n} int" for n in range(5)))
    _run(
        lifecycle, "ALTER TABLE t ADD PARTITION FIELD bucket(2, c1)", "ALTER TABLE t ADD PARTITION FIELD bucket(2, c2)"
    )
    kept = lifecycle.snapshot_history(TABLE).snapshots
    assert not lifecycle.skip_if_idle(TABLE)
    plan = lifecycle.plan_expiration(TABLE)
    assert not plan.expired_snapshots
    assert lifecycle.commit_expiration(plan, dry_run=True).schemas_removed == 4
    lifecycle.hand_off(plan)
    done = lifecycle.commit_expiration(plan)
    assert (done.schemas_removed, done.snapshots_removed, done.attempts) == (4, 0, 1)
    # A spec waits for writers that began while it was the default one.
    assert done.specs_removed + _expire(lifecycle).specs_removed == 1
    assert _known(lifecycle) == ({0, 5}, {0, 2}) and lifecycle.snapshot_history(TABLE).snapshots == kept
    assert lifecycle.skip_if_idle(TABLE)
    again = _expire(lifecycle)
    assert again.attempts == again.schemas_removed == 0


def test_a_table_with_delete_files_keeps_its_schemas(lifecycle: Lifecycle) -> None:
    _run(
        lifecycle,
        "ALTER TABLE t SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        "ALTER TABLE t ADD COLUMN a int",
        "INSERT INTO TABLE t SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 1), (2, 2)",
        "ALTER TABLE t ADD COLUMN b int",
        "DELETE FROM t WHERE id = 1",
    )
    assert _expire(lifecycle).schemas_removed == 0
    assert _known(lifecycle)[0] == {0, 1, 2}


def _orders(lifecycle: Lifecycle) -> tuple[set[int], int]:
    metadata = lifecycle.steps.table_state(TABLE).metadata
    return set(metadata.sort_orders), metadata.default_sort_order_id


def _parts(lifecycle: Lifecycle) -> commit_module.RemovedParts:
    return removed_parts(lifecycle.resources, lifecycle.steps.table_state(TABLE).metadata.table_uuid)


@pytest.fixture
def manifests_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[str]]:
    """Returns the manifests whose sort orders were read since the last call, each of them once."""
    original, read = commit_module.live_sort_orders, list[str]()

    def noting(stores: Stores, entry: ManifestListEntry) -> frozenset[int]:
        read.append(entry.manifest_path)
        return original(stores, entry)

    def since() -> set[str]:
        found = set(read)
        assert len(found) == len(read)
        read.clear()
        return found

    monkeypatch.setattr(commit_module, "live_sort_orders", noting)
    return since


def test_a_sort_order_leaves_once_no_remaining_file_has_it(
    lifecycle: Lifecycle, manifests_read: Callable[[], set[str]]
) -> None:
    _run(
        lifecycle,
        "ALTER TABLE t ADD COLUMN a int",
        *(
            statement
            for order in ("id", "id DESC", "a", "a DESC")
            for statement in (f"ALTER TABLE t WRITE ORDERED BY {order}", "INSERT INTO TABLE t VALUES (1, 1), (2, 2)")
        ),
        "ALTER TABLE t WRITE ORDERED BY a",
        "INSERT INTO TABLE t VALUES (3, 3)",
    )
    before = lifecycle.snapshot_history(TABLE).snapshots[-1].snapshot_id
    assert _orders(lifecycle) == ({0, 1, 2, 3, 4}, 3)
    # Both in use, which two manifests prove; as long as these are listed, no manifest is read again.
    assert _expire(lifecycle).orders_removed == 0
    assert manifests_read() >= {*_parts(lifecycle).order_witnesses.values()}
    assert set(_parts(lifecycle).order_witnesses) == {1, 2} and _parts(lifecycle).orders == {}
    _run(lifecycle, "INSERT INTO TABLE t VALUES (4, 4)")
    assert _expire(lifecycle).orders_removed == 0 and not manifests_read()

    # The files are rewritten, but a tag keeps the snapshot before.
    _run(lifecycle, "ALTER TABLE t CREATE TAG keep", "INSERT OVERWRITE TABLE t SELECT id + 10, a FROM t")
    assert _expire(lifecycle).orders_removed == 0 and not manifests_read()
    _run(lifecycle, "ALTER TABLE t DROP TAG keep", "INSERT INTO TABLE t VALUES (5, 5)")
    assert _expire(lifecycle).orders_removed == 0
    assert manifests_read() and _parts(lifecycle).order_witnesses == {}
    assert set(_parts(lifecycle).orders) == set(_parts(lifecycle).orders_unused_since) == {1, 2}

    _run(lifecycle, "INSERT INTO TABLE t VALUES (6, 6)")
    plan = lifecycle.plan_expiration(TABLE)
    assert lifecycle.commit_expiration(plan, dry_run=True).orders_removed == 2
    lifecycle.enable_gate()
    try:
        lifecycle.hand_off(plan)
        done = lifecycle.commit_expiration(plan)
    finally:
        lifecycle.disable_gate()
    assert done.orders_removed == 2 and done.snapshots_removed == 1 and done.attempts == 1
    # The default order stays, and so does the highest id, so that the next order gets another one.
    assert _orders(lifecycle) == ({0, 3, 4}, 3)
    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.catalog.refreshTable(f"{live}.{TABLE}")
    _run(lifecycle, "ALTER TABLE t WRITE ORDERED BY id", "INSERT INTO TABLE t VALUES (7, 7)")
    assert _orders(lifecycle) == ({0, 3, 4, 5}, 5)
    files = lifecycle.spark.sql(f"SELECT DISTINCT sort_order_id FROM {live}.{TABLE}.files").collect()
    assert {row.sort_order_id for row in files} == {3, 5}
    # What expired can be restored: its files come back as unsorted.
    lifecycle.restore(TABLE, before, "past")
    past = lifecycle.spark.sql(f"SELECT * FROM {live}.{TABLE} VERSION AS OF 'past'")
    assert past.count() == 9


def test_a_sort_order_waits_for_writers_that_began_while_it_was_the_default(
    make_config: MakeConfig, spark: SparkSession, manifests_read: Callable[[], set[str]]
) -> None:
    patient = {
        **AT_ONCE,
        "retention": {"window": "1ms", "clean_metadata": True},
        "orphans": {"min_age": "7d", "max_share": 1},
    }
    with open_lifecycle(make_config(defaults=patient, tables={"db.*": {}}), spark=spark) as lifecycle:
        core_tables.sql(spark, f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.db")
        core_tables.sql(spark, f"CREATE TABLE {lifecycle.config.catalogs.live.name}.{TABLE} (id int) USING iceberg")
        _run(lifecycle, *(f"ALTER TABLE t WRITE ORDERED BY id{each}" for each in ("", " DESC", " NULLS LAST")))
        _run(lifecycle, "INSERT INTO TABLE t VALUES (9)")
        for number in range(4):
            _run(lifecycle, f"INSERT INTO TABLE t VALUES ({number})")
            assert _expire(lifecycle).orders_removed == 0
            # It cannot leave before the period is over, so nothing is read until then.
            assert bool(manifests_read()) == (number == 0)
        assert set(_parts(lifecycle).orders_unused_since) == {1, 2} and _orders(lifecycle) == ({0, 1, 2, 3}, 3)


@pytest.mark.parametrize(
    ("meanwhile", "kept"),
    [
        (("ALTER TABLE t WRITE ORDERED BY id",), {0, 1, 3}),
        (
            (
                "ALTER TABLE t WRITE ORDERED BY id DESC",
                "INSERT INTO TABLE t VALUES (9)",
                "ALTER TABLE t WRITE ORDERED BY id NULLS LAST",
            ),
            {0, 2, 3},
        ),
    ],
)
def test_a_writer_that_wins_the_race_keeps_the_sort_order_that_it_took_up_again(
    lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch, meanwhile: tuple[str, ...], kept: set[int]
) -> None:
    _run(lifecycle, *(f"ALTER TABLE t WRITE ORDERED BY id{each}" for each in ("", " DESC", " NULLS LAST")))
    _run(lifecycle, "INSERT INTO TABLE t VALUES (1)", "INSERT INTO TABLE t VALUES (2)")
    assert _expire(lifecycle).orders_removed == 0
    _run(lifecycle, "INSERT INTO TABLE t VALUES (3)")
    original, attempts = commit._swap, []

    def racing(operations: Any, base: Any, updated: Any) -> None:
        attempts.append(sorted(updated.sortOrdersById().keySet()))
        if len(attempts) == 1:
            _run(lifecycle, *meanwhile)
        original(operations, base, updated)

    monkeypatch.setattr(commit, "_swap", racing)
    done = _expire(lifecycle)
    assert attempts == [[0, 3], sorted(kept)]
    assert (done.orders_removed, done.attempts) == (1, 2) and _orders(lifecycle)[0] == kept


def test_an_unreadable_manifest_stops_the_removal(lifecycle: Lifecycle) -> None:
    _run(lifecycle, *(f"ALTER TABLE t WRITE ORDERED BY id{each}" for each in ("", " DESC")))
    _run(lifecycle, "INSERT INTO TABLE t VALUES (1)", "INSERT INTO TABLE t VALUES (2)")
    plan = lifecycle.plan_expiration(TABLE)
    lifecycle.hand_off(plan)
    state = lifecycle.steps.table_state(TABLE)
    current = state.metadata.current_snapshot
    assert current is not None
    path = next(iter(manifests_of(lifecycle.resources.live_stores, current).entries)).manifest_path
    data = lifecycle.resources.live_stores.read(path)
    lifecycle.resources.live_stores.write(path, data[:-1] + bytes([data[-1] ^ 1]), overwrite=True)
    with pytest.raises(UnreadableMetadata):
        lifecycle.commit_expiration(plan)
    after = lifecycle.steps.table_state(TABLE).metadata
    assert after.metadata_location == state.metadata.metadata_location and _orders(lifecycle)[0] == {0, 1, 2}
