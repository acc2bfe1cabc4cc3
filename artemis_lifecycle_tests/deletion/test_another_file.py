"""A path is not a file: what stands at a doomed path may be another file than the one that expired."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.deletion import identities
from artemis_lifecycle.deletion.identities import Identities, look
from artemis_lifecycle.errors import ExistingFile
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import NO_TAG, NO_TIME
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import killed_at, lapse
from artemis_lifecycle_tests.deletion.world import local, outcomes
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import AT_ONCE, WITHOUT_COLD
from artemis_lifecycle_tests.storage import s3_server

Open = Callable[..., Lifecycle]


@pytest.fixture
def opened(make_config: MakeConfig, spark: SparkSession) -> Iterator[Open]:
    found: list[Lifecycle] = []

    def open_one(policy: dict[str, Any], **sections: Any) -> Lifecycle:
        found.append(Lifecycle.open(make_config(defaults=policy, **sections), spark=spark))
        return found[-1]

    yield open_one
    for each in found:
        each.resources.close()


def _committed(lifecycle: Lifecycle, table: str = "t", *, dies: bool = False) -> tuple[ExpirationPlan, Path, Any]:
    """A committed plan of a table whose first file only its first snapshot had: the file, and Iceberg's object for
    it. `dies`: right after its swap, and the next plan finds it."""
    make_table(lifecycle, table, 1)
    live, spark = lifecycle.config.catalogs.live.name, lifecycle.spark
    loaded = _java(lifecycle, table)
    file = next(iter(loaded.currentSnapshot().addedDataFiles(loaded.io())))
    spark.sql(f"INSERT OVERWRITE {live}.db.{table} SELECT /*+ COALESCE(1) */ 9 AS id")
    plan = lifecycle.plan_expiration(f"db.{table}")
    if lifecycle.config.policy(f"db.{table}").cold_tier.enabled:
        lifecycle.hand_off(plan)
    if not dies:
        lifecycle.commit_expiration(plan)
        return plan, local(str(file.location())), file

    with killed_at("commit:swapped"):
        lifecycle.commit_expiration(plan)
    lapse(lifecycle, "leases")
    lifecycle.plan_expiration(f"db.{table}")
    return plan, local(str(file.location())), file


def _java(lifecycle: Lifecycle, table: str) -> Any:
    jvm: Any = lifecycle.spark._jvm
    name = f"{lifecycle.config.catalogs.live.name}.db.{table}"
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(lifecycle.spark._jsparkSession, name)


def _same_size(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(b"x" * len(content))


def _other_size(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def _moved_in(path: Path) -> None:
    """Written elsewhere long before, and renamed in the grace: its time is older than the plan."""
    staged = path.with_name("staged")
    staged.write_bytes(b"x" * path.stat().st_size)
    at = datetime.now(UTC) - timedelta(days=1)
    os.utime(staged, (at.timestamp(), at.timestamp()))
    staged.rename(path)


@pytest.mark.parametrize("write", [_same_size, _other_size, _moved_in])
def test_a_file_written_again_in_the_grace_stays(opened: Open, write: Callable[[Path], None]) -> None:
    """Without an archive, nothing but metadata, the plan's time and the commit's look says what expired."""
    lifecycle = opened(WITHOUT_COLD)
    plan, path, _ = _committed(lifecycle)
    write(path)
    content = path.read_bytes()

    foreseen, report = lifecycle.delete_files(plan, dry_run=True), lifecycle.delete_files(plan)

    assert (foreseen.kept, foreseen.would_delete) == (report.kept, report.deleted) == (1, plan.summary.files - 1)
    assert outcomes(report)[path.name] == outcomes(foreseen)[path.name] == ("kept", "another_file")
    assert path.read_bytes() == content and report.pending == 0
    # It is nobody's until somebody commits it: an orphan scan's work.
    orphans = {local(row["path"]).name for row in lifecycle.scan_orphans("db.t").files().collect()}
    assert orphans == {path.name, f".{path.name}.crc"}


def test_the_look_at_a_commit_that_the_next_plan_found_comes_before_its_grace(opened: Open) -> None:
    lifecycle = opened(WITHOUT_COLD)
    plan, path, _ = _committed(lifecycle, dies=True)
    _moved_in(path)
    report = lifecycle.delete_files(plan)
    assert outcomes(report)[path.name] == ("kept", "another_file")


def test_a_file_written_and_committed_again_before_the_deletion_stays(opened: Open) -> None:
    lifecycle = opened(WITHOUT_COLD)
    plan, path, file = _committed(lifecycle)
    path.write_bytes(path.read_bytes())
    _java(lifecycle, "t").newAppend().appendFile(file).commit()

    assert outcomes(lifecycle.delete_files(plan))[path.name] == ("kept", "reachable")
    assert lifecycle.read("db.t").count() == 2


def test_an_archived_file_with_another_time_is_compared_by_its_content(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied back from a backup: time and inode are new, the content is not. One that was written again is another."""
    lifecycle = opened({**AT_ONCE, "cold_tier": {"enabled": True}})
    plan, path, _ = _committed(lifecycle)
    other, written, _ = _committed(lifecycle, "u")
    for doomed in plan.files().collect():
        copied_back = local(doomed["path"])
        shutil.copy(copied_back, copied_back.with_name("back"))
        copied_back.with_name("back").rename(copied_back)
    _same_size(written)

    # More than one run may read is left for the next.
    with monkeypatch.context() as patch:
        patch.setattr(identities, "_HASHED_FILES", 0)
        report = lifecycle.delete_files(plan)
        assert (report.deleted, report.pending) == (0, plan.summary.files)
        assert outcomes(report)[path.name] == ("kept", "identity_unproven")
    foreseen = lifecycle.delete_files(plan, dry_run=True)
    assert foreseen.would_delete == plan.summary.files
    assert lifecycle.delete_files(plan).deleted == plan.summary.files

    report = lifecycle.delete_files(other)
    assert outcomes(report)[written.name] == ("kept", "another_file") and written.exists()
    assert report.deleted == other.summary.files - 1


def test_a_resumed_deletion_compares_with_what_was_seen_first(opened: Open) -> None:
    lifecycle = opened(WITHOUT_COLD)
    plan, path, _ = _committed(lifecycle)

    with killed_at("deletion.delete_files:before"):
        lifecycle.delete_files(plan)
    lapse(lifecycle, "leases")
    _moved_in(path)

    assert outcomes(lifecycle.delete_files(plan))[path.name] == ("kept", "another_file")
    assert path.exists()


@pytest.mark.parametrize("write", [_same_size, _moved_in])
def test_quarantine_takes_the_judged_file_and_undelete_spares_the_new_one(
    opened: Open, write: Callable[[Path], None]
) -> None:
    lifecycle = opened({**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}})
    plan, path, _ = _committed(lifecycle)
    written = []

    def write_again(point: str) -> None:
        if point == "quarantine.set_aside:after" and not written:
            write(path)
            written.append(path.read_bytes())

    with crash_points.installed(write_again):
        report = lifecycle.delete_files(plan)

    assert outcomes(report)[path.name] == ("kept", "another_file")
    assert report.deleted == plan.summary.files - 1
    done = lifecycle.undelete(plan, who="ada", why="the audit asks")
    assert done.failed == 0 and done.restored == plan.summary.files - 1
    assert path.read_bytes() == written[0]


def test_a_file_that_quarantine_took_is_not_taken_for_the_one_that_came_after(opened: Open) -> None:
    """Moved, killed, and the path written again: the next attempt leaves the new file, and the moved one is kept."""
    lifecycle = opened({**WITHOUT_COLD, "deletion": {"grace": "0s", "mode": "quarantine"}})
    plan, path, _ = _committed(lifecycle)
    before = path.read_bytes()

    with killed_at("deletion.write_outcomes:before"):
        lifecycle.delete_files(plan)
    lapse(lifecycle, "leases")
    assert not path.exists()
    path.write_bytes(b"new")

    report = lifecycle.delete_files(plan)

    assert path.read_bytes() == b"new" and (report.failed, report.pending) == (0, 0)
    assert outcomes(report)[path.name] == ("kept", "another_file")
    done = lifecycle.undelete(plan, who="ada", why="the audit asks")
    assert (done.taken, done.failed) == (1, 0) and path.read_bytes() == b"new"
    assert before in [each.read_bytes() for each in local(str(report.quarantine)).rglob("*") if each.is_file()]


def test_an_undelete_never_replaces_a_file_that_comes_meanwhile(tmp_path: Path) -> None:
    place, path = tmp_path / "aside", tmp_path / "path"
    place.write_text("moved")
    path.write_text("new")
    with pytest.raises(ExistingFile):
        Stores().duplicate(f"file://{place}", f"file://{path}", overwrite=False)
    assert path.read_text() == "new"


@pytest.mark.seconds
def test_on_s3_a_file_written_again_in_the_second_of_the_plan_is_another_one() -> None:
    """S3 has times in seconds: the same size, the same second."""
    with s3_server.running_anywhere() as s3:
        stores, bucket = s3.stores(), s3.bucket()
        paths = pa.array([f"s3://{bucket}/t/{name}" for name in ("stays", "written")])
        for path in paths.to_pylist():
            stores.write(path, b"expired")
        time.sleep(1.1)
        plan = stores.write(f"s3://{bucket}/plans/plan.json", b"{}").path
        sealed = stores.head(plan)
        assert sealed is not None
        stores.write(paths[1].as_py(), b"another", overwrite=True)
        unknown = {"last_modified": pa.array([NO_TIME] * 2), "tag": pa.array([NO_TAG] * 2)}
        files = pa.table({"path": paths, "size_in_bytes": pa.array([7, 7]), **unknown})
        job: Any = SimpleNamespace(kind="expiration", sealed_at=sealed.identity.modified)
        context: Any = SimpleNamespace(archived_files=None, stores=stores)
        judged = Identities(context, job)

        now = look(stores, paths).now

        assert judged.others(files, now) == {1: "another_file"}
        assert set(now.etags) == {0, 1}
