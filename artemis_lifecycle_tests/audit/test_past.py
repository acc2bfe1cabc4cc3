"""Which snapshot was current at an instant is answered for all of a real table's past, whatever has expired since."""

from __future__ import annotations

import os
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import HandoffFailed, NaiveDatetime, NoSuchSnapshot
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.session.contexts import cold_tables
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.cold_tier.test_put_back import assert_one_answer, put_back
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.expiration.aged import make_table, set_ages


@pytest.fixture(params=[True, False], ids=["with a cold tier", "without"])
def config(request: pytest.FixtureRequest, make_config: MakeConfig) -> LifecycleConfig:
    return make_config(defaults={"cold_tier": {"enabled": request.param}, "deletion": {"grace": "0s"}})


def _answers(lifecycle: Lifecycle, instants: list[datetime]) -> list[int | None]:
    found: list[int | None] = []
    for instant in instants:
        try:
            found.append(lifecycle.snapshot_at("db.t", instant))
        except NoSuchSnapshot:
            found.append(None)
    return found


def test_every_answer_stays_while_snapshots_expire_and_history_is_compacted(
    lifecycle: Lifecycle, spark: SparkSession
) -> None:
    make_table(lifecycle, "t", 6)
    live = lifecycle.config.catalogs.live.name
    spark.sql(f"ALTER TABLE {live}.db.t ADD COLUMN more int")
    core_tables.sql(spark, f"INSERT INTO {live}.db.t VALUES (6, 1)")
    days = [90, 80, 60, 40, 20, 2, 1]
    now = set_ages(lifecycle, "db.t", [timedelta(days=each) for each in days])
    log = lifecycle.snapshot_history("db.t").log
    instants = [now - timedelta(days=each, minutes=minute) for each in range(95) for minute in (0, 1)]

    def whole(instant: datetime) -> int | None:
        past = [entry for entry in log if entry.timestamp_ms <= instant.timestamp() * 1000]
        return past[-1].snapshot_id if past else None

    expected = [whole(instant) for instant in instants]
    assert _answers(lifecycle, instants) == expected
    first = lifecycle.compact_history("db.t", now=now)
    # The first four are before the window of 30 days. A commit within a minute may still come before the newest one.
    assert (first.ranges, first.entries) == (3, 6)
    assert _answers(lifecycle, instants) == expected
    assert first.to_pandas()["entries"].tolist() == [4, 1, 1]

    plan = lifecycle.plan_expiration("db.t", now=now)
    if lifecycle.config.policy("db.t").cold_tier.enabled:
        lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    lifecycle.delete_files(plan)
    assert len(lifecycle.snapshot_history("db.t").snapshots) < len(days)
    assert _answers(lifecycle, instants) == expected
    core_tables.sql(spark, f"INSERT INTO {live}.db.t VALUES (7, 2)")
    # Two months later, the window has passed all of them but the newest.
    later = lifecycle.compact_history("db.t", now=now + timedelta(days=60))
    assert later.entries == 7 and later.ranges == 2  # Another schema begins with the seventh.
    assert _answers(lifecycle, instants) == expected
    newest = lifecycle.current_at("db.t", datetime.now(UTC))
    assert newest.snapshot_id == lifecycle.snapshot_history("db.t").current_snapshot_id
    assert newest.schema_id == lifecycle.schema_history("db.t").versions[-1].schema_id
    with pytest.raises(NaiveDatetime, match="time zone"):
        lifecycle.snapshot_at("db.t", datetime(2026, 1, 1))
    with pytest.raises(NoSuchSnapshot, match="No tier knows"):
        lifecycle.snapshot_at("db.t", now - timedelta(days=1000))


@pytest.mark.parametrize("config", [True], indirect=True)
def test_a_history_that_begins_late_knows_cold_snapshots_and_points_to_where_they_are(
    lifecycle: Lifecycle, spark: SparkSession
) -> None:
    live = lifecycle.config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
    spark.sql(f"CREATE TABLE {live}.db.t (id int) USING iceberg")
    for number in range(4):
        rows = spark.sql(f"SELECT {number} id").coalesce(1).writeTo(f"{live}.db.t")
        rows.option("snapshot-property.writer.id", f"w{number}").option(
            "snapshot-property.trigger.type", "manual"
        ).append()
    lifecycle.observe_catalog()
    now = set_ages(lifecycle, "db.t", [timedelta(days=each) for each in (90, 80, 60, 1)])
    first, second, *_ = (each.snapshot_id for each in lifecycle.snapshot_history("db.t").snapshots)

    def expire(snapshot_id: int) -> None:
        plan = lifecycle.plan_expiration("db.t", now=now, retain_last=4, snapshot_ids=[snapshot_id])
        assert plan.expired_snapshots == (snapshot_id,)
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)

    expire(first)
    folder = Path(lifecycle.resources.root.removeprefix("file://")) / "history"
    # The history that the commit began is lost: the next one begins when the first snapshot is only cold.
    shutil.rmtree(folder)
    then = now - timedelta(days=85)
    before = lifecycle.current_at("db.t", then)
    frame = lifecycle.compact_history("db.t", now=now).to_pandas()
    assert lifecycle.current_at("db.t", then) == before
    assert (before.snapshot_id, before.writer, before.operation, before.trigger) == (first, "w0", "append", "manual")
    assert before.schema_id is not None
    cold = cold_tables(lifecycle.resources, lifecycle.steps.table_uuid("db.t"))
    assert cold is not None
    at_first = lifecycle.snapshot_history("db.t").metadata_location
    assert list(frame["metadata_location"])[:2] == [cold.newest.metadata.metadata_location, at_first]
    assert list(frame["writer"])[:3] == ["w0", "w1", "w2"]

    # The second leaves, too, and the metadata file that had it goes.
    expire(second)
    frame = lifecycle.compact_history("db.t", now=now).to_pandas()
    for snapshot_id, location in zip(frame["last_snapshot_id"], frame["metadata_location"], strict=True):
        is_cold = snapshot_id in (first, second)
        stores = lifecycle.resources.cold_stores if is_cold else lifecycle.live_stores
        assert read_table_metadata(stores, location).snapshot(snapshot_id) is not None
        current = lifecycle.snapshot_history("db.t").metadata_location
        assert ("/cold/" in location) if is_cold else (location == current)


def _require_one_answer(lifecycle: Lifecycle, truth: list[tuple[datetime, int]], *, whole: bool) -> None:
    """Around each entry of any log, reads and `snapshot_at` say the same: what was current, and nothing else."""
    moments = {entry.timestamp_ms for entry in lifecycle.snapshot_history("db.t").log}
    cold = cold_tables(lifecycle.resources, lifecycle.steps.table_uuid("db.t"))
    moments |= set() if cold is None else {entry.timestamp_ms for entry in cold.newest.metadata.snapshot_log}
    moments |= {round(instant.timestamp() * 1000) for instant, _ in truth}
    for moment in sorted(moments):
        for by in (-1, 0, 1):
            assert_one_answer(lifecycle, "db.t", datetime.fromtimestamp((moment + by) / 1000, UTC))
    answers = _answers(lifecycle, [instant for instant, _ in truth])
    for (instant, snapshot_id), answer in zip(truth, answers, strict=True):
        assert answer == snapshot_id or (answer is None and not whole), instant


def test_an_expiration_soon_after_a_commit_leaves_no_hole(lifecycle: Lifecycle, spark: SparkSession) -> None:
    """Its last snapshot was overtaken less than a minute before: a late clock could still commit in between."""
    make_table(lifecycle, "t", 4)
    live, log = lifecycle.config.catalogs.live.name, lifecycle.snapshot_history("db.t").log
    truth = [(datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC), entry.snapshot_id) for entry in log]
    for number in range(2):
        plan = lifecycle.plan_expiration("db.t", older_than=datetime.now(UTC), retain_last=1)
        if lifecycle.config.policy("db.t").cold_tier.enabled:
            lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        _require_one_answer(lifecycle, truth, whole=True)
        spark.catalog.refreshTable(f"{live}.db.t")
        core_tables.sql(spark, f"INSERT INTO {live}.db.t VALUES ({number + 9})")
        entry = lifecycle.snapshot_history("db.t").log[-1]
        truth.append((datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC), entry.snapshot_id))
        lifecycle.compact_history("db.t")
        _require_one_answer(lifecycle, truth, whole=True)
    assert lifecycle.current_at("db.t", truth[0][0]).operation == "append"


_SEED, _HISTORIES = os.environ.get("ARTEMIS_SEED", "0"), int(os.environ.get("ARTEMIS_SOAK", "2"))


@pytest.mark.parametrize("seed", range(_HISTORIES))
def test_in_random_histories_reads_and_the_history_never_differ(
    lifecycle: Lifecycle, spark: SparkSession, seed: int
) -> None:
    dice, table = (
        random.Random(f"{_SEED} {seed}"),
        f"{lifecycle.config.catalogs.live.name}.db.t",
    )
    make_table(lifecycle, "t", 2)
    truth: list[tuple[datetime, int]] = []
    whole, backups = True, [lifecycle.snapshot_history("db.t").metadata_location]
    for _ in range(12):
        spark.catalog.refreshTable(table)
        log = lifecycle.snapshot_history("db.t").log
        kind = dice.choice(["commit", "commit", "commit", "roll back", "expire", "compact", "another tool", "put back"])
        if kind == "commit":
            core_tables.sql(spark, f"INSERT INTO {table} VALUES ({dice.randint(0, 99)})")
        elif kind == "roll back":
            to = dice.choice(log).snapshot_id
            spark.sql(f"CALL {lifecycle.config.catalogs.live.name}.system.set_current_snapshot('db.t', {to})")
        elif kind == "expire":
            plan = lifecycle.plan_expiration("db.t", older_than=datetime.now(UTC), retain_last=dice.randint(1, 2))
            if lifecycle.config.policy("db.t").cold_tier.enabled:
                try:
                    lifecycle.hand_off(plan)
                except HandoffFailed:
                    assert not whole  # put back, and written to
                    continue
            lifecycle.commit_expiration(plan)
        elif kind == "compact":
            lifecycle.compact_history("db.t")
        elif kind == "another tool":
            whole = False
            catalog = lifecycle.config.catalogs.live.name
            spark.sql(f"CALL {catalog}.system.expire_snapshots(table => 'db.t', older_than => now(), retain_last => 1)")
            backups = []
        elif backups:
            whole = False
            put_back(lifecycle, "db.t", dice.choice(backups))
            # Nobody knows how long the lost states were current.
            truth = []
        metadata = lifecycle.steps.table_state("db.t").metadata
        backups.append(metadata.metadata_location)
        assert metadata.current_snapshot_id is not None
        truth.append((datetime.now(UTC), metadata.current_snapshot_id))
        _require_one_answer(lifecycle, truth, whole=whole)


def test_what_another_tool_expired_is_unknown_and_never_the_snapshot_before(
    lifecycle: Lifecycle, spark: SparkSession
) -> None:
    make_table(lifecycle, "t", 4)
    now = set_ages(lifecycle, "db.t", [timedelta(days=each) for each in (40, 30, 20, 10)])
    lifecycle.compact_history("db.t", now=now)
    live = lifecycle.config.catalogs.live.name
    for number in (5, 6):
        core_tables.sql(spark, f"INSERT INTO {live}.db.t VALUES ({number})")
    log = lifecycle.snapshot_history("db.t").log
    moments = [datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC) for entry in log]
    spark.sql(f"CALL {live}.system.expire_snapshots(table => 'db.t', older_than => now(), retain_last => 1)")
    # The answer is the same before the history has the gap, and after.
    before = _answers(lifecycle, [moments[2], moments[4], moments[5]])[1:]
    lifecycle.compact_history("db.t", now=now)
    kept = lifecycle.snapshot_history("db.t").current_snapshot_id
    assert before == _answers(lifecycle, [moments[2], moments[4], moments[5]])[1:] == [None, kept]
