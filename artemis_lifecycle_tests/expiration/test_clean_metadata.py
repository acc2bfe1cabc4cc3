"""An expiration removes schemas and partition specs that nothing uses, and none that anything still does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.catalogs import commit
from artemis_lifecycle.expiration.commit import ExpirationCommit
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.policies import AT_ONCE

TABLE = "db.t"


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    cleaning = {**AT_ONCE, "retention": {"window": "1ms", "clean_metadata": True}}
    with Lifecycle.open(make_config(defaults=cleaning, tables={"db.*": {}}), spark=spark) as opened:
        live = opened.config.catalogs.live.name
        spark.sql(f"CREATE NAMESPACE {live}.db")
        spark.sql(f"CREATE TABLE {live}.{TABLE} (id int) USING iceberg")
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
