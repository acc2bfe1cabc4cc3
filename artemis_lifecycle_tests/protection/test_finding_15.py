"""Finding 15: Postgres' clock was 30 days ahead, and everything was judged by it alone. Nothing is judged by age unless
the clocks of Postgres, this host and the store agree."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import make_url, text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import BadInput, ClocksDisagree, PlanStateError, StorageError
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle.session import resources
from artemis_lifecycle.storage import instants
from artemis_lifecycle.storage.local.store import LocalStore
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import StoredFile
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table
from artemis_lifecycle_tests.policies import AND_ARCHIVED
from artemis_lifecycle_tests.protection.databases import Databases
from artemis_lifecycle_tests.simulated_time import set_modified

MONTH = timedelta(days=30)
DUE = {**AND_ARCHIVED, "lineage": {"mode": "report"}, "dropped": {"keep": "0s", "approval": "guards"}}


@pytest.fixture
def config(make_config: MakeConfig, databases: Databases) -> LifecycleConfig:
    """Of a database of its own, whose clock may be set."""
    uri = databases.make()
    catalogs = {"live": {"uri": uri}, "cold": {"uri": uri}}
    return make_config(catalogs=catalogs, operations={"uri": uri}, defaults=DUE, tables={"*": {}})


def _set_postgres_clock(uri: str, ahead: timedelta) -> None:
    """All statements of new sessions find another clock first, as if the server's had been set."""
    engine = connect(uri)
    seconds = int(ahead.total_seconds())
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS skewed"))
        connection.execute(
            text(
                "CREATE OR REPLACE FUNCTION skewed.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
                f"$$ SELECT pg_catalog.clock_timestamp() + interval '{seconds} seconds' $$"
            )
        )
        database = make_url(uri).database
        connection.execute(text(f"ALTER DATABASE {database} SET search_path = skewed, pg_catalog, public"))
    engine.dispose()


def _files(config: LifecycleConfig) -> set[Path]:
    warehouse = Path((config.catalogs.live.warehouse or "").removeprefix("file://"))
    return {path for path in warehouse.rglob("*") if path.is_file()}


def _live(lifecycle: Lifecycle) -> str:
    return lifecycle.config.catalogs.live.name


JUDGED: dict[str, Callable[[Lifecycle, str], object]] = {
    "plan": lambda lifecycle, table: lifecycle.plan_expiration(table),
    "plan as of now": lambda lifecycle, table: lifecycle.plan_expiration(table, now=resources.host_now()),
    "plan by a limit": lambda lifecycle, table: lifecycle.plan_expiration(table, older_than=resources.host_now()),
    "expire": lambda lifecycle, table: lifecycle.expire(table, now=resources.host_now()),
    "list": lambda lifecycle, table: lifecycle.list_objects(table),
    "scan": lambda lifecycle, table: lifecycle.scan_orphans(table, now=resources.host_now()),
    "scan the cold table": lambda lifecycle, table: lifecycle.scan_cold(table),
    "notice what was dropped": lambda lifecycle, table: lifecycle.observe_catalog(),
    "delete what was dropped": lambda lifecycle, table: lifecycle.clear_dropped(),
    "purge": lambda lifecycle, table: lifecycle.purge_quarantine(table),
    "purge dry": lambda lifecycle, table: lifecycle.purge_quarantine(table, dry_run=True),
    "mark by a duration": lambda lifecycle, table: lifecycle.mark(_live(lifecycle), {"*": "30d"}),
    "deep archive": lambda lifecycle, table: lifecycle.deep_archive(table),
    "deep archive dry": lambda lifecycle, table: lifecycle.deep_archive(table, dry_run=True),
}


@pytest.mark.parametrize("ahead", [MONTH, -MONTH], ids=["ahead", "behind"])
def test_while_postgres_clock_is_a_month_off_nothing_is_judged_by_age(
    config: LifecycleConfig, spark: SparkSession, ahead: timedelta
) -> None:
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 3)
        plan = lifecycle.plan_expiration(table, snapshot_ids=ids_of(lifecycle, table)[:1])
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        folder = lifecycle.snapshot_history(table).metadata_location.rpartition("/metadata/")[0]
        lifecycle.live_stores.write(f"{folder}/data/in-flight.parquet", b"written a moment ago")
        scan = lifecycle.scan_orphans(table)
    assert scan.summary.orphan_files >= 1
    files = _files(config)
    _set_postgres_clock(str(config.operations.uri), ahead)
    with open_lifecycle(config, spark=spark) as lifecycle:
        for name, judge in JUDGED.items():
            with pytest.raises(ClocksDisagree) as stopped:
                judge(lifecycle, table)
            said = str(stopped.value)
            assert all(each in said for each in ("Postgres says", "this host says", "the store of", "NTP")), name
        for dry_run in (True, False):
            with pytest.raises(ClocksDisagree):
                lifecycle.delete_orphans(scan.scan_id, dry_run=dry_run)
            if ahead > timedelta(0):
                with pytest.raises(ClocksDisagree):
                    lifecycle.delete_files(plan.plan_id, dry_run=dry_run)
        # What keeps and what brings back goes on, and so does reading.
        lifecycle.hold(table, "legal", "case", snapshot_ids=ids_of(lifecycle, table)[-1:])
        lifecycle.tag(table, "kept", ids_of(lifecycle, table)[-1])
        assert lifecycle.read(table).count() == 3
        # For as long as was said, whichever clock is right.
        begun, newest = resources.host_now(), ids_of(lifecycle, table)[-1:]
        lease = lifecycle.hold(table, "ana", "a long query", newest, kind="lease", ttl="1h")
        renewed = lifecycle.renew(lease.hold_id, "7d")
        tagged = lifecycle.tag(table, "a week", newest[0], "7d")
        assert lease.until is not None and lease.until >= begun + timedelta(hours=1)
        assert all(end is not None and end >= begun + timedelta(days=7) for end in (renewed.until, tagged.ends_at))
        marked = lifecycle.mark(_live(lifecycle), {"*": 1})
        _set_postgres_clock(str(config.operations.uri), timedelta(0))
    with open_lifecycle(config, spark=spark) as lifecycle:
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(text("UPDATE lifecycle.live_sets SET created_at = created_at + interval '1 day'"))
        with pytest.raises(PlanStateError, match="that clock was wrong"):
            lifecycle.sweep(marked, deferred=False)
        with pytest.raises(BadInput, match="the time by Postgres' clock"):
            lifecycle.mark(_live(lifecycle), {"*": "30d"}, now=resources.host_now() + MONTH)
        assert [each.hold_id for each in lifecycle.holds(table)][-1] == lease.hold_id
    assert _files(config) >= files
    assert not list(Path(str(config.home)).rglob(f"{resources.PROBE}*"))


def test_a_clock_that_steps_a_moment_after_it_was_right_is_noticed(
    config: LifecycleConfig, spark: SparkSession
) -> None:
    _set_postgres_clock(str(config.operations.uri), timedelta(0))
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        assert lifecycle.scan_orphans(table).summary.orphan_files == 0
        for ahead in (MONTH, -MONTH):
            _set_postgres_clock(str(config.operations.uri), ahead)
            with pytest.raises(ClocksDisagree, match="Postgres says"):
                lifecycle.scan_orphans(table)
        _set_postgres_clock(str(config.operations.uri), timedelta(0))
        lifecycle.scan_orphans(table)


def test_a_host_whose_clock_is_off_stops_and_within_the_bound_it_goes_on(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(defaults=DUE, clocks={"max_difference": "10m"})
    truth = resources.host_now
    with open_lifecycle(config, spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        monkeypatch.setattr(resources, "host_now", lambda: truth() - timedelta(minutes=9))
        lifecycle.plan_expiration(table)
    with open_lifecycle(config, spark=spark) as lifecycle:
        monkeypatch.setattr(resources, "host_now", lambda: truth() - timedelta(minutes=11))
        with pytest.raises(ClocksDisagree, match=r"more than 10m .*this host says"):
            lifecycle.plan_expiration(table)


@contextmanager
def _store_off(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> Iterator[None]:
    """What is written to disk gets its time from a file server whose clock is off."""
    write = LocalStore.write

    def off(self: LocalStore, path: str, data: bytes, *, overwrite: bool, storage_class: str | None) -> StoredFile:
        stored = write(self, path, data, overwrite=overwrite, storage_class=storage_class)
        when = (resources.host_now() + by).timestamp()
        os.utime(path.removeprefix("file://"), (when, when))
        return stored

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "write", off)
        yield


def test_a_store_whose_clock_is_off_stops(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_lifecycle(make_config(defaults=DUE), spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        for by in (timedelta(hours=1), -timedelta(hours=1)):
            with _store_off(monkeypatch, by), pytest.raises(ClocksDisagree, match="the store of file:"):
                lifecycle.scan_orphans(table)
        lifecycle.scan_orphans(table)


def test_a_disk_that_does_not_say_which_it_is_is_an_error_about_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = resources.Folder(str(tmp_path / "made" / "later"), Stores())
    assert folder.clock == f"device {tmp_path.stat().st_dev}"

    def broken(path: object, **_: object) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(os, "stat", broken)
    with pytest.raises(StorageError, match=r"made/later.*Input/output error|Input/output error.*made/later"):
        folder.clock  # noqa: B018


def test_stores_are_asked_once_a_minute_and_again_in_a_long_step(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    compare = resources.require_agreement

    def counted(now: Any, folders: Iterable[Any], most: timedelta) -> None:
        folders = list(folders)
        asked.extend(folders)
        compare(now, folders, most)

    monkeypatch.setattr(resources, "require_agreement", counted)
    passed = 0.0
    monkeypatch.setattr(resources, "elapsed", lambda: instants.elapsed() + passed)
    with open_lifecycle(make_config(defaults=DUE), spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        for _ in range(3):
            lifecycle.plan_expiration(table)
        assert len(asked) == 1
        with lifecycle.steps.run(lifecycle.steps.table_state(table), "listing") as step:
            step.check()
            assert len(asked) == 1
            passed = 61.0
            step.check()
            assert len(asked) == 2
            truth = resources.host_now
            monkeypatch.setattr(resources, "host_now", lambda: truth() + MONTH)
            with pytest.raises(ClocksDisagree):
                step.check()


def test_a_clock_set_in_the_middle_of_a_deletion_stops_it_before_the_next_files_go(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    monkeypatch.setattr(resources, "elapsed", lambda: instants.elapsed() + passed)
    truth = resources.host_now
    with open_lifecycle(make_config(defaults=DUE), spark=spark) as lifecycle:
        table = make_table(lifecycle, "t", 2)
        folder = lifecycle.snapshot_history(table).metadata_location.rpartition("/metadata/")[0]
        stray = f"{folder}/data/stray.parquet"
        lifecycle.live_stores.write(stray, b"x")
        set_modified(stray, truth() - MONTH)
        scan = lifecycle.scan_orphans(table)

        def set_clock(point: str) -> None:
            nonlocal passed
            if point == "deletion.seal_batches:after":
                passed = 61.0
                monkeypatch.setattr(resources, "host_now", lambda: truth() + MONTH)

        with crash_points.installed(set_clock), pytest.raises(ClocksDisagree):
            lifecycle.delete_orphans(scan)
        assert lifecycle.live_stores.head(stray) is not None


def test_a_suspended_machine_counts_as_time_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still in a suspend; what leases go by does not, where the system has such a clock."""
    monkeypatch.setattr(instants.time, "monotonic", lambda: 0.0)
    before = instants.elapsed()
    if instants._BOOTTIME is None:
        assert before == 0.0
    else:
        assert before > 0.0 and instants.elapsed() >= before
    monkeypatch.setattr(instants, "_BOOTTIME", None)
    assert instants.elapsed() == 0.0
