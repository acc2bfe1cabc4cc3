"""Which tier answers: by the stored log, never by an older snapshot than the one that was current."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.cold_tier.cold_metadata import COMPLETE_UNTIL
from artemis_lifecycle.cold_tier.cold_tables import ColdTable, ColdTables
from artemis_lifecycle.cold_tier.reads import Route, Selector, read, route
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import BadInput, NaiveDatetime, NoSuchSnapshot
from artemis_lifecycle.metadata.types import LogEntry, Ref, Snapshot, TableMetadata
from artemis_lifecycle_tests.cold_tier import histories
from artemis_lifecycle_tests.cold_tier.world import World, fingerprint


def metadata(
    ids: list[int], log: list[tuple[int, int]], refs: dict[str, int] | None = None, known_until: int = 0
) -> TableMetadata:
    return TableMetadata(
        metadata_location="m",
        location="t",
        table_uuid="u",
        format_version=2,
        last_updated_ms=0,
        last_sequence_number=9,
        current_snapshot_id=ids[-1],
        snapshots=tuple(Snapshot(n, n - 1 or None, n, n * 10, f"l{n}") for n in ids),
        refs={name: Ref(name, snapshot_id, "tag") for name, snapshot_id in (refs or {}).items()},
        snapshot_log=tuple(LogEntry(at, snapshot_id) for at, snapshot_id in log),
        metadata_log=(),
        statistics=(),
        properties={COMPLETE_UNTIL: str(known_until)},
        current_schema_id=0,
        schemas={},
        default_spec_id=0,
        partition_specs={},
    )


def one_cold_table(found: TableMetadata) -> ColdTables:
    def read(name: str) -> tuple[str, bytes]:
        raise AssertionError("there is no closed table to read")

    return ColdTables(ColdTable("ns.t", found), read)


def at(milliseconds: int) -> Selector:
    return Selector(as_of=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds))


# Snapshot 3 expired without a handoff; 2 is kept by a tag; 1 and 4 are archived; 5 was rolled back to 2, then came 6.
LIVE = metadata([2, 6], [(60, 2), (70, 6)], {"kept": 2})
COLD = one_cold_table(
    metadata([1, 4], [(10, 1), (20, 2), (30, 3), (40, 4), (50, 5), (60, 2)], {"gone": 1, "kept": 4}, 65)
)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (at(15), Route("cold", 1)),
        (at(20), Route("live", 2)),
        (at(49), Route("cold", 4)),
        (at(65), Route("live", 2)),
        (at(10_000), Route("live", 6)),
        (Selector(snapshot_id=4), Route("cold", 4)),
        (Selector(snapshot_id=6), Route("live", 6)),
        (Selector(tag="kept"), Route("live", 2)),
        (Selector(tag="gone"), Route("cold", 1)),
        (Selector(), Route("live", 6)),
    ],
)
def test_the_tier_that_has_the_snapshot_answers(selector: Selector, expected: Route) -> None:
    assert route("ns.t", LIVE, COLD, selector) == expected


@pytest.mark.parametrize("selector", [at(5), at(30), at(39), at(55), Selector(snapshot_id=3), Selector(tag="none")])
def test_what_neither_tier_has_fails(selector: Selector) -> None:
    with pytest.raises(NoSuchSnapshot):
        route("ns.t", LIVE, COLD, selector)


def test_an_instant_between_what_the_two_logs_know_fails() -> None:
    minute = 60_000
    live = metadata([9], [(90 * minute, 9)])
    cold = one_cold_table(metadata([1, 2], [(10 * minute, 1), (20 * minute, 2)], known_until=65 * minute))
    assert route("ns.t", live, cold, at(64 * minute)) == Route("cold", 2)
    # Iceberg takes a commit by a clock that is a minute behind.
    for instant in (64 * minute + 1, 66 * minute, 90 * minute - 1):
        with pytest.raises(NoSuchSnapshot):
            route("ns.t", live, cold, at(instant))
    assert route("ns.t", live, cold, at(90 * minute)) == Route("live", 9)


def test_without_a_cold_table_the_live_one_answers_alone() -> None:
    assert route("ns.t", LIVE, None, at(60)) == Route("live", 2)
    with pytest.raises(NoSuchSnapshot):
        route("ns.t", LIVE, None, at(59))


def test_two_selectors_and_naive_instants_are_errors() -> None:
    with pytest.raises(BadInput, match="snapshot_id and tag"):
        Selector(snapshot_id=1, tag="x")
    with pytest.raises(BadInput, match="as_of and snapshot_id"):
        Selector(as_of=datetime(2024, 1, 1, tzinfo=UTC), snapshot_id=1)
    with pytest.raises(NaiveDatetime):
        Selector(as_of=datetime(2024, 1, 1))


def test_rows_come_from_either_tier(config: LifecycleConfig, spark: SparkSession) -> None:
    world = World(spark, config)
    world.sql("CREATE NAMESPACE {live}.ns")
    histories.version_1(world)
    plan = world.plan()
    before = world.prints("live", world.ids())
    assert world.cold_tables(plan.table_uuid) is None
    world.hand_off(plan)
    expired = ", ".join(map(str, plan.snapshot_ids))
    world.sql(
        f"CALL {{live}}.system.expire_snapshots(table => 'ns.t', snapshot_ids => array({expired}), "
        "older_than => timestamp_millis(0))"
    )
    live, cold = world.metadata(), world.cold_tables(plan.table_uuid)
    assert len(live.snapshots) == 1
    assert cold is not None
    for entry in cold.newest.metadata.snapshot_log:
        found = route("ns.t", live, cold, at(entry.timestamp_ms))
        assert found.snapshot_id == entry.snapshot_id
        assert found.tier == ("live" if entry.snapshot_id == live.current_snapshot_id else "cold")
        assert found.cold_table == ("ns.t" if found.tier == "cold" else None)
        rows = read(spark, world.live if found.tier == "live" else world.cold, "ns.t", found)
        assert fingerprint(rows) == before[entry.snapshot_id]
