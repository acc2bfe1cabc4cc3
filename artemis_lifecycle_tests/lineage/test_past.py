"""Which snapshot was current at an instant is answered for all of a real table's past, whatever has expired since."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import NaiveDatetime, NoSuchSnapshot
from artemis_lifecycle.lifecycle import Lifecycle
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
    spark.sql(f"INSERT INTO {live}.db.t VALUES (6, 1)")
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
    spark.sql(f"INSERT INTO {live}.db.t VALUES (7, 2)")
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


def test_what_another_tool_expired_is_unknown_and_never_the_snapshot_before(
    lifecycle: Lifecycle, spark: SparkSession
) -> None:
    make_table(lifecycle, "t", 4)
    now = set_ages(lifecycle, "db.t", [timedelta(days=each) for each in (40, 30, 20, 10)])
    lifecycle.compact_history("db.t", now=now)
    live = lifecycle.config.catalogs.live.name
    for number in (5, 6):
        spark.sql(f"INSERT INTO {live}.db.t VALUES ({number})")
    log = lifecycle.snapshot_history("db.t").log
    moments = [datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC) for entry in log]
    spark.sql(f"CALL {live}.system.expire_snapshots(table => 'db.t', older_than => now(), retain_last => 1)")
    # The answer is the same before the history has the gap, and after.
    before = _answers(lifecycle, [moments[2], moments[4], moments[5]])[1:]
    lifecycle.compact_history("db.t", now=now)
    kept = lifecycle.snapshot_history("db.t").current_snapshot_id
    assert before == _answers(lifecycle, [moments[2], moments[4], moments[5]])[1:] == [None, kept]
