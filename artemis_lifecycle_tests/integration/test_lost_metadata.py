"""A metadata file that is gone or unreadable: every step says the same of it, once, and works again when it is back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import HandoffFailed, MissingFile, UnreadableMetadata
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deletion.world import local
from artemis_lifecycle_tests.policies import AT_ONCE

TABLE = "db.t"
PROMISE = (
    "Left untouched: the table and all its files. Next: restore the file; nothing of this table is planned, copied, "
)


@dataclass
class Stage:
    """A table whose snapshots but the last five have expired, and the plan for those."""

    lifecycle: Lifecycle
    plan: ExpirationPlan

    @property
    def name(self) -> str:
        return f"{self.lifecycle.config.catalogs.live.name}.{TABLE}"

    def append(self, number: int) -> None:
        core_tables.sql(self.lifecycle.spark, f"INSERT INTO {self.name} VALUES ({number})")

    def document(self) -> dict[str, Any]:
        location = self.lifecycle.snapshot_history(TABLE).metadata_location
        found: dict[str, Any] = json.loads(self.lifecycle.live_stores.read(location))
        return found

    def manifests(self, snapshot_id: int) -> list[str]:
        rows = self.lifecycle.spark.sql(f"SELECT path FROM {self.name}.manifests VERSION AS OF {snapshot_id}").collect()
        return [row[0] for row in rows]

    def victim(self, what: str) -> str:
        document = self.document()
        current, kept = document["current-snapshot-id"], document["snapshots"][-3]["snapshot-id"]
        if what == "current manifest":
            return self.manifests(current)[0]
        if what == "current manifest list":
            return str(document["snapshots"][-1]["manifest-list"])
        if what == "kept manifest list":
            return str(document["snapshots"][-3]["manifest-list"])
        if what == "manifest of an older kept snapshot":
            return next(path for path in self.manifests(kept) if path not in self.manifests(current))
        if what == "expired manifest list":
            return str(document["snapshots"][0]["manifest-list"])
        raise AssertionError(what)

    def steps(self) -> dict[str, Callable[[], object]]:
        """What reads or changes the table by its manifests."""
        lifecycle, plan = self.lifecycle, self.plan
        return {
            "reachable_set": lambda: lifecycle.reachable_set(TABLE),
            "retention_curve": lambda: lifecycle.retention_curve(TABLE),
            "costs": lambda: lifecycle.costs(TABLE),
            "table_health": lambda: lifecycle.table_health(TABLE),
            "plan_expiration": lambda: lifecycle.plan_expiration(TABLE, retain_last=2),
            "dry hand_off": lambda: lifecycle.hand_off(plan, dry_run=True),
            "hand_off": lambda: lifecycle.hand_off(plan),
            "dry commit_expiration": lambda: lifecycle.commit_expiration(plan, dry_run=True),
            "scan_orphans": lambda: lifecycle.scan_orphans(TABLE),
            "compact_manifests": lambda: lifecycle.compact_manifests(TABLE),
            "compact_data_files": lambda: lifecycle.compact_data_files(TABLE),
        }

    def require_one_verdict(self, path: str, steps: dict[str, Callable[[], object]]) -> None:
        reported = set()
        for name, step in steps.items():
            with pytest.raises(UnreadableMetadata) as caught:
                step()
            assert (caught.value.table, caught.value.path) == (TABLE, path), name
            assert PROMISE in str(caught.value), name
            reported.add(str(caught.value))
        assert len(reported) == 1, reported


@contextmanager
def damaged(path: str, how: str) -> Iterator[None]:
    """The file `path` is gone or damaged inside the block, and back after it."""
    file = local(path)
    good, checksums = file.read_bytes(), file.parent / f".{file.name}.crc"
    # Hadoop's own checksum would notice what no object store does.
    checksums.unlink(missing_ok=True)
    try:
        if how.startswith("lost"):
            file.unlink()
        else:
            file.write_bytes({"cut": good[:-20], "garbage": b"no Avro", "overwritten": b"x" * len(good)}[how])
        yield
    finally:
        file.write_bytes(good)


def build(lifecycle: Lifecycle) -> None:
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    core_tables.sql(spark, f"CREATE NAMESPACE {live}.db")
    core_tables.sql(
        spark,
        f"CREATE TABLE {live}.{TABLE} (id int) USING iceberg "
        "TBLPROPERTIES ('commit.manifest.min-count-to-merge' = '100')",
    )
    for number in range(3):
        core_tables.sql(spark, f"INSERT INTO {live}.{TABLE} VALUES ({number})")
    for number in range(3):
        core_tables.sql(spark, f"INSERT OVERWRITE {live}.{TABLE} VALUES ({number})")
    for number in range(2):
        core_tables.sql(spark, f"INSERT INTO {live}.{TABLE} VALUES ({number})")


@pytest.fixture
def stage(make_config: MakeConfig, spark: SparkSession) -> Iterator[Stage]:
    policy = {**AT_ONCE, "retention": {"window": "1ms", "min_snapshots": 5}}
    with open_lifecycle(make_config(defaults=policy, tables={"db.*": {}}), spark=spark) as lifecycle:
        build(lifecycle)
        yield Stage(lifecycle, lifecycle.plan_expiration(TABLE))


def _snapshots(stage: Stage) -> tuple[int, list[str]]:
    """What no refused step may change: the table's pointer and its plans."""
    lifecycle = stage.lifecycle
    return (
        len(lifecycle.snapshot_history(TABLE).snapshots),
        [lifecycle.snapshot_history(TABLE).metadata_location, *(each.status for each in lifecycle.plans(TABLE))],
    )


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("current manifest", "lost"),
        pytest.param("current manifest", "cut", marks=pytest.mark.nightly),
        pytest.param("current manifest", "garbage", marks=pytest.mark.nightly),
        pytest.param("current manifest list", "lost", marks=pytest.mark.nightly),
        ("current manifest", "lost and never read"),
        pytest.param("current manifest list", "lost and never read", marks=pytest.mark.nightly),
        ("current manifest list", "cut"),
        pytest.param("kept manifest list", "lost", marks=pytest.mark.nightly),
        ("manifest of an older kept snapshot", "lost"),
    ],
)
def test_every_step_says_the_same_and_works_when_the_file_is_back(stage: Stage, what: str, how: str) -> None:
    path, before = stage.victim(what), _snapshots(stage)
    if how == "lost and never read":
        shutil.rmtree(local(stage.lifecycle.root) / "index")
    with damaged(path, how):
        stage.require_one_verdict(path, stage.steps())
        assert _snapshots(stage) == before
        # The catalog's own metadata is whole, and people have to see it.
        assert stage.lifecycle.snapshot_history(TABLE).snapshots
        assert not any(local(stage.lifecycle.root).glob("handoffs/*"))

    assert stage.lifecycle.hand_off(stage.plan).archived
    with damaged(path, how):
        commit = {
            "dry commit_expiration": lambda: stage.lifecycle.commit_expiration(stage.plan, dry_run=True),
            "commit_expiration": lambda: stage.lifecycle.commit_expiration(stage.plan),
        }
        stage.require_one_verdict(path, commit)
    assert stage.lifecycle.commit_expiration(stage.plan).snapshots_removed == len(stage.plan.expired_snapshots)
    scan = stage.lifecycle.scan_orphans(TABLE)
    with damaged(path, how):
        deletion = {
            "delete_files": lambda: stage.lifecycle.delete_files(stage.plan),
            "delete_orphans": lambda: stage.lifecycle.delete_orphans(scan),
        }
        stage.require_one_verdict(path, deletion if scan.summary.orphan_files else dict([*deletion.items()][:1]))
    assert stage.lifecycle.delete_files(stage.plan).deleted == stage.plan.summary.files
    stage.append(9)
    for name in ("reachable_set", "retention_curve", "costs", "table_health", "plan_expiration", "scan_orphans"):
        stage.steps()[name]()
    stage.lifecycle.compact_data_files(TABLE)


def test_what_only_expired_snapshots_need_stops_a_new_plan_and_the_handoff_until_a_person_approves(
    stage: Stage,
) -> None:
    lost = stage.victim("expired manifest list")
    with damaged(lost, "lost"):
        plan = {"plan_expiration": lambda: stage.lifecycle.plan_expiration(TABLE, retain_last=2)}
        stage.require_one_verdict(lost, plan)
        with pytest.raises(HandoffFailed, match=r"gone or damaged .*--lost"):
            stage.lifecycle.hand_off(stage.plan)
        stage.lifecycle.approve(stage.plan, who="bob", why="the disk is gone", what="lost")
        assert len(stage.lifecycle.hand_off(stage.plan).lost) == 1
        stage.lifecycle.commit_expiration(stage.plan)
        # The loss is approved, but nothing is deleted while a kept snapshot lacks a file.
        kept = stage.victim("current manifest")
        with damaged(kept, "lost"):
            stage.require_one_verdict(kept, {"delete_files": lambda: stage.lifecycle.delete_files(stage.plan)})
        assert stage.lifecycle.delete_files(stage.plan).deleted + 1 >= stage.plan.summary.files


@pytest.mark.parametrize("step", ["table_health", "compact_data_files"])
def test_an_unreadable_manifest_of_the_right_length_is_reported_by_its_path(stage: Stage, step: str) -> None:
    path = stage.victim("current manifest")
    with damaged(path, "overwritten"):
        stage.require_one_verdict(path, {step: stage.steps()[step]})
    stage.steps()[step]()


def test_compaction_names_the_path_of_a_missing_data_file(stage: Stage) -> None:
    for number in range(10):
        stage.append(number)
    found = stage.lifecycle.spark.sql(f"SELECT file_path FROM {stage.name}.files").collect()
    path = str(found[0][0])
    with damaged(path, "lost"), pytest.raises(MissingFile) as caught:
        stage.lifecycle.compact_data_files(TABLE)
    assert (caught.value.table, caught.value.path) == (TABLE, path)
    assert stage.lifecycle.compact_data_files(TABLE).rewritten_files
