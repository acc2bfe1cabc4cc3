"""The rotation through the cold files: each is read once in its time, a killed run goes on, a lost file is copied again
while live has it and reported as lost from then on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.cold_tier import ledger
from artemis_lifecycle.cold_tier import scrub as scrubbing
from artemis_lifecycle.cold_tier.copy import each_file
from artemis_lifecycle.cold_tier.ledger import RING, place_of
from artemis_lifecycle.cold_tier.scrub import rotation, verify_copies
from artemis_lifecycle.config.policies import ColdTier
from artemis_lifecycle.errors import NoSuchTable, Paused, StorageError
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.cold_tier import ScrubRecord
from artemis_lifecycle.session.contexts import cold_copies
from artemis_lifecycle.storage.location import hash_strings
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import Killed
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.foreign import files_below, make_history, warehouse

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def opened(make_config: MakeConfig, spark: SparkSession) -> Iterator[Callable[[str], Lifecycle]]:
    made: list[Lifecycle] = []

    def make(every: str) -> Lifecycle:
        made.append(Lifecycle.open(make_config(defaults=AT_ONCE | {"cold_tier": {"scrub_every": every}}), spark=spark))
        return made[-1]

    yield make
    for lifecycle in made:
        lifecycle.resources.close()


def copied(lifecycle: Lifecycle) -> set[str]:
    """Cold files that a handoff copied: all but the metadata files and the records of the place."""
    written = (".metadata.json", "/_outside/table.json", "/_outside/published.json")
    return {path for path in files_below(warehouse(lifecycle, "cold")) if not path.endswith(written)}


def read_by(lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cold paths, as the scrub reads them from now on."""
    read: list[str] = []

    def recorded(*arguments: Any) -> list[tuple[Any, ...]]:
        read.extend(path.removeprefix("file://") for path in arguments[-1])
        return each_file(*arguments)

    monkeypatch.setattr(scrubbing, "each_file", recorded)
    return read


def handed_off(lifecycle: Lifecycle, snapshots: int = 4) -> None:
    make_history(lifecycle, snapshots=snapshots)
    lifecycle.hand_off(lifecycle.plan_expiration("db.t"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_each_file_is_read_once_in_the_configured_time(
    opened: Callable[[str], Lifecycle], monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle = opened("8d")
    handed_off(lifecycle, snapshots=8)
    read = read_by(lifecycle, monkeypatch)
    runs = [lifecycle.scrub_cold("db.t", NOON + day * DAY) for day in range(8)]
    assert sorted(read) == sorted(copied(lifecycle))
    assert sum(run.checked_files for run in runs) == len(read)
    assert sum(run.checked_bytes for run in runs) == sum(Path(path).stat().st_size for path in read)
    assert max(run.checked_files for run in runs) < len(read) / 2
    assert [round(run.share_done, 3) for run in runs] == [day / 8 for day in range(1, 9)]
    assert lifecycle.scrub_cold("db.t", NOON + 7 * DAY).checked_files == 0
    # The next rotation, after some days in which nothing ran.
    lifecycle.scrub_cold("db.t", NOON + 12 * DAY)
    lifecycle.scrub_cold("db.t", NOON + 15 * DAY)
    assert sorted(read) == sorted(2 * list(copied(lifecycle)))


def test_a_killed_run_goes_on_where_its_last_batch_ended(
    opened: Callable[[str], Lifecycle], monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle = opened("1d")
    handed_off(lifecycle)
    monkeypatch.setattr(scrubbing, "_FILES_PER_BATCH", 3)
    read = read_by(lifecycle, monkeypatch)
    points = 0

    def die(point: str) -> None:
        nonlocal points
        points += point == "scrubs.moved:after"
        if points == 2:
            raise Killed

    with pytest.raises(Killed), crash_points.installed(die):
        lifecycle.scrub_cold("db.t", NOON)
    assert len(read) == 6
    lifecycle.scrub_cold("db.t", NOON)
    assert sorted(read) == sorted(copied(lifecycle))


def test_a_limit_bounds_a_run_and_the_next_one_goes_on(
    opened: Callable[[str], Lifecycle], monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle = opened("1d")
    handed_off(lifecycle)
    read = read_by(lifecycle, monkeypatch)
    while lifecycle.scrub_cold("db.t", NOON, limit=5).checked_files:
        assert len(read) % 5 == 0 or len(read) == len(copied(lifecycle))
    assert sorted(read) == sorted(copied(lifecycle))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    "harm",
    [pytest.param(Path.unlink, marks=pytest.mark.nightly), flip, pytest.param(cut, marks=pytest.mark.nightly)],
)
def test_a_bad_copy_is_made_again_while_live_has_the_file(
    opened: Callable[[str], Lifecycle],
    harm: Callable[[Path], object],
) -> None:
    lifecycle = opened("1d")
    handed_off(lifecycle)
    before = {path: Path(path).read_bytes() for path in copied(lifecycle)}
    victims = [next(path for path in sorted(before) if end in path) for end in (".parquet", "-m0.avro", "/snap-")]
    for victim in victims:
        harm(Path(victim))

    done = lifecycle.scrub_cold("db.t", NOON)

    assert (done.repaired, done.lost, done.open_losses) == (3, 0, 0)
    assert {problem.path.removeprefix("file://") for problem in done.problems} == set(victims)
    assert {path: Path(path).read_bytes() for path in copied(lifecycle)} == before


def test_a_copy_that_live_has_no_more_is_lost_until_it_is_restored(opened: Callable[[str], Lifecycle]) -> None:
    lifecycle = opened("1d")
    make_history(lifecycle)
    lifecycle.expire("db.t")
    [victim, *_] = sorted(path for path in copied(lifecycle) if path.endswith(".parquet"))
    good = Path(victim).read_bytes()
    flip(Path(victim))

    done = lifecycle.scrub_cold("db.t", NOON)

    assert (done.repaired, done.lost, done.open_losses) == (0, 1, 1)
    [loss] = lifecycle.cold_losses("db.t")
    assert loss.path.removeprefix("file://") == victim
    assert "cannot be made again" in loss.reason
    # Every run tells of it, also one for which nothing is due.
    assert lifecycle.scrub_cold("db.t", NOON).open_losses == 1
    Path(victim).write_bytes(good)
    assert lifecycle.scrub_cold("db.t", NOON).open_losses == 0
    assert lifecycle.cold_losses("db.t") == []


def test_a_scrub_reads_beside_a_step_that_has_the_table(opened: Callable[[str], Lifecycle]) -> None:
    lifecycle = opened("1d")
    handed_off(lifecycle)
    [victim, *_] = sorted(copied(lifecycle))
    Path(victim).unlink()
    table_uuid = lifecycle.plans("db.t")[0].table_uuid
    with lifecycle.operations.leases.hold(table_uuid, step="compaction", owner="another", table="db.t"):
        done = lifecycle.scrub_cold("db.t", NOON)
    assert (done.lost, done.repaired) == (1, 0)
    done = lifecycle.scrub_cold("db.t", NOON)
    assert (done.lost, done.repaired, done.open_losses) == (0, 1, 0)


def test_a_paused_table_is_not_read(opened: Callable[[str], Lifecycle]) -> None:
    lifecycle = opened("1d")
    handed_off(lifecycle)
    lifecycle.operations.pauses.begin("ann", "the disk is slow", lifecycle.plans("db.t")[0].table_uuid, "db.t")
    with pytest.raises(Paused):
        lifecycle.scrub_cold("db.t", NOON)


@pytest.mark.usefixtures("anywhere")
def test_a_copy_is_compared_with_its_newest_record(opened: Callable[[str], Lifecycle], spark: SparkSession) -> None:
    lifecycle = opened("1d")
    handed_off(lifecycle)
    table_uuid, resources = lifecycle.plans("db.t")[0].table_uuid, lifecycle.resources
    copies = cold_copies(resources, "db.t", table_uuid)
    assert copies is not None
    [path, *_] = sorted(f"file://{each}" for each in copied(lifecycle))
    record = copies.ledger.among(copies.runner, [path])[path]
    again = partial(verify_copies, spark, resources.live_stores, resources.cold_stores, resources.root, table_uuid)
    # In the order of their names, the newest record is first, then last.
    copies.ledger.write("z", 0, [replace(record, checksum="another")])
    assert [each for each, _ in again().damaged] == [path]
    copies.ledger.write("a", 0, [record])
    assert not again().damaged
    assert lifecycle.scrub_cold("db.t", NOON).problems == ()


def test_renewed_identities_are_those_of_files_with_the_same_content(opened: Callable[[str], Lifecycle]) -> None:
    lifecycle = opened("1d")
    handed_off(lifecycle)
    archived = {path.rpartition("/")[2] for path in copied(lifecycle) if path.endswith(".parquet")}
    live = sorted(files_below(warehouse(lifecycle, "live")))
    same, other, *_ = (path for path in live if path.rpartition("/")[2] in archived)
    os.utime(same, (1, 1))
    flip(Path(other))
    done = lifecycle.renew_identities("db.t", who="ann", why="moved")
    assert (done.renewed, [Path(path).name for path in done.others]) == (1, [Path(other).name])
    assert lifecycle.renew_identities("db.t", who="ann", why="moved").renewed == 0


@pytest.mark.parametrize("never", ["never", "0d"])
def test_a_policy_can_turn_the_scrub_off(opened: Callable[[str], Lifecycle], never: str) -> None:
    lifecycle = opened(never)
    handed_off(lifecycle)
    assert lifecycle.scrub_cold("db.t").checked_files == 0
    assert lifecycle.operations.scrubs.of_table(lifecycle.plans("db.t")[0].table_uuid) is None


def test_what_cannot_be_judged_is_an_error(opened: Callable[[str], Lifecycle]) -> None:
    lifecycle = opened("1d")
    make_history(lifecycle)
    with pytest.raises(NoSuchTable):
        lifecycle.scrub_cold("db.t")
    lifecycle.hand_off(lifecycle.plan_expiration("db.t"))
    copies = cold_copies(lifecycle.resources, "db.t", lifecycle.plans("db.t")[0].table_uuid)
    assert copies is not None
    folder = Path(copies.ledger.folder.removeprefix("file://"))
    folder.rename(folder.with_name("lost"))
    with pytest.raises(StorageError, match="no checksum"):
        lifecycle.scrub_cold("db.t")


def test_files_in_the_deep_archive_are_not_read(make_config: MakeConfig, spark: SparkSession) -> None:
    defaults = AT_ONCE | {"cold_tier": {"retain": "1ms", "scrub_every": "1d"}}
    with open_lifecycle(make_config(defaults=defaults), spark=spark) as lifecycle:
        make_history(lifecycle)
        lifecycle.expire("db.t")
        moved = lifecycle.deep_archive("db.t").moved_files
        done = lifecycle.scrub_cold("db.t", NOON)
        assert moved and done.archived_files == moved
        assert (done.repaired, done.lost) == (0, 0)


@pytest.mark.seconds
def test_a_place_is_the_same_for_one_path_and_for_a_column_of_paths() -> None:
    paths = ["file:///w/a", "s3://b/ä ö/%20", "x" * 200]
    places = hash_strings(pa.array(paths)) >> np.uint64(ledger._SHIFT)
    assert places.tolist() == [place_of(path) for path in paths]


def test_a_rotation_that_is_behind_is_finished_before_the_next_begins() -> None:
    record = ScrubRecord("u", "db.t", RING // 2, NOON, 10, 100, NOON)
    behind = rotation(record, 90 * DAY, NOON + 200 * DAY)
    assert (behind.position, behind.began_at) == (RING // 2, NOON)
    over = rotation(ScrubRecord("u", "db.t", RING, NOON, 10, 100, NOON), 90 * DAY, NOON + 200 * DAY)
    assert (over.position, over.began_at) == (0, NOON + 180 * DAY)


def test_the_shipped_rotation_takes_ninety_days() -> None:
    assert ColdTier().scrubs == timedelta(days=90)
