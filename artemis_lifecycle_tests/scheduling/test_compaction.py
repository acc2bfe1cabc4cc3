"""A compaction runs where the recorded health asks for it, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from artemis_lifecycle.config.policies import Compaction, MaintenanceWindow
from artemis_lifecycle.operations.fleet import HealthRecord
from artemis_lifecycle.scheduling.maintenance_window import due_compaction

MIDNIGHT = datetime(2026, 2, 1, tzinfo=UTC)
"""A Sunday."""
WINDOW = MaintenanceWindow(date(2026, 2, 1), MIDNIGHT, MIDNIGHT + timedelta(hours=8))
NOON = MIDNIGHT + timedelta(hours=12)
NIGHT = MIDNIGHT + timedelta(hours=2)
HEALTHY = HealthRecord(
    table_uuid="u",
    table="db.t",
    metadata_location="file:/t/1.metadata.json",
    measured_at=MIDNIGHT + timedelta(hours=9),
    scored_at=MIDNIGHT + timedelta(hours=9),
    score=100.0,
    data_files=100,
    rewritable_files=0,
    delete_files=0,
    manifests=4,
    manifest_bytes=4_000,
    fewest_manifests=2,
    target_manifest_bytes=8 << 20,
    figures={},
)
SMALL_FILES = replace(HEALTHY, rewritable_files=30)
MANIFESTS = replace(HEALTHY, manifests=40)


def job(
    health: HealthRecord | None, now: datetime = NOON, thresholds: Compaction | None = None, **done: datetime
) -> str | None:
    return due_compaction(now, WINDOW, health, thresholds or Compaction(), done).job


def test_manifests_are_rewritten_in_the_window_on_their_days_in_its_zone() -> None:
    monday = replace(WINDOW, opens=WINDOW.opens + timedelta(days=1), closes=WINDOW.closes + timedelta(days=1))
    early = monday.opens + timedelta(hours=2)
    for window, now, on, expected in (
        (WINDOW, NIGHT, "sunday", "manifest_compaction"),
        (WINDOW, WINDOW.closes, "sunday", None),
        (WINDOW, NOON, "sunday", None),
        (monday, early, "sunday", None),
        (monday, early, "monday", "manifest_compaction"),
    ):
        assert due_compaction(now, window, MANIFESTS, Compaction(manifests_on=(on,)), {}).job == expected
    assert due_compaction(early, monday, MANIFESTS, Compaction(), {}, "America/New_York").job == "manifest_compaction"
    assert job(replace(MANIFESTS, rewritable_files=30), NOON + timedelta(days=1)) == "data_compaction"


def test_manifests_of_mixed_partitions_and_old_statistics_ask_as_well() -> None:
    mixed = replace(HEALTHY, manifests=20, fewest_manifests=20)
    assert job(mixed) is None
    assert job(replace(mixed, figures={"mixed_manifests": 5}), NIGHT) == "manifest_compaction"
    assert job(replace(mixed, figures={"mixed_manifests": 4}), NIGHT) is None
    stale = replace(HEALTHY, figures={"unanalyzed_records": 100, "records": 1000})
    assert job(stale) is None, "statistics are optional"
    assert job(stale, thresholds=Compaction(statistics_after=0.1)) == "data_compaction"
    assert job(stale, thresholds=Compaction(statistics_after=0.11)) is None


def test_the_recorded_health_decides() -> None:
    assert job(None) is None
    assert job(HEALTHY) is None
    assert job(SMALL_FILES) == "data_compaction"
    assert job(replace(HEALTHY, delete_files=60)) == "data_compaction"
    assert job(MANIFESTS, NIGHT) == "manifest_compaction"
    assert job(replace(SMALL_FILES, manifests=40)) == "data_compaction"


def test_the_thresholds_are_those_of_lifecycle_yaml() -> None:
    assert job(SMALL_FILES, thresholds=Compaction(min_rewritable_share=0.31)) is None
    assert job(replace(HEALTHY, delete_files=60), thresholds=Compaction(min_delete_file_ratio=0.7)) is None
    assert job(MANIFESTS, NIGHT, Compaction(min_manifests=41)) is None


def test_the_window_belongs_to_the_walk() -> None:
    assert job(SMALL_FILES, MIDNIGHT + timedelta(hours=7, minutes=59)) is None
    assert job(SMALL_FILES, MIDNIGHT + timedelta(hours=8)) == "data_compaction"
    whole_day = replace(WINDOW, closes=MIDNIGHT + timedelta(days=1))
    assert due_compaction(NOON, whole_day, SMALL_FILES, Compaction(), {}).job == "data_compaction"


def test_a_table_is_not_compacted_again_before_it_is_measured_again() -> None:
    after = SMALL_FILES.measured_at + timedelta(minutes=5)
    assert job(SMALL_FILES, compaction=after) is None
    assert job(SMALL_FILES, manifest_compaction=after) is None
    assert job(replace(SMALL_FILES, measured_at=after + timedelta(seconds=1)), compaction=after) == "data_compaction"
    assert job(SMALL_FILES, plan=after) == "data_compaction"
