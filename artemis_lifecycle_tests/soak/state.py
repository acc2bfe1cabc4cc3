"""What a walk left of one table, read with Iceberg's own metadata tables, from the disk and from Postgres.

`compared` must be the same after every walk from one beginning; `wrong` lists violations; `noted` is only reported.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.metadata.types import TableMetadata, kind_by_name
from artemis_lifecycle.operations.plans import HOLDING, PlanStatus
from artemis_lifecycle.protection.places import RECEIPTS
from examples.mission.proofs import Fingerprint, fingerprints

PASSING = {"orphan", "too_young", "in_flight"}
"""Verdicts of the scan under which an unreferenced file is gone in the end."""


@dataclass
class State:
    live: list[int] = field(default_factory=list)
    read: dict[int, Fingerprint] = field(default_factory=dict)
    compared: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    noted: dict[str, Any] = field(default_factory=dict)

    def never(self, what: str, found: Collection[object]) -> None:
        """Note it as wrong when there is any."""
        if found:
            self.wrong.append(f"{what}: {len(found)}, e.g. {sorted(map(str, found))[:3]}")


def read_state(lifecycle: Lifecycle, table: str, facts: Mapping[str, Any], before: Mapping[int, Fingerprint]) -> State:
    """`facts` and `before` are of the table as it was prepared: its files, and the rows of each of its snapshots."""
    state = State()
    _live(state, lifecycle, table, facts, before)
    _cold(state, lifecycle, table, before)
    _results(state, lifecycle, table, set(before))
    _operations(state, lifecycle, table)
    return state


def plain(path: str) -> str:
    """A local path, however its scheme is written."""
    return path.removeprefix("file:").replace("///", "/")


def _live(
    state: State,
    lifecycle: Lifecycle,
    table: str,
    facts: Mapping[str, Any],
    before: Mapping[int, Fingerprint],
) -> None:
    catalog = lifecycle.config.catalogs.live.name
    metadata = lifecycle.steps.table_state(table).metadata
    state.live = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    old = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in before]
    state.read = _rows(lifecycle, f"{catalog}.{table}", [snapshot.snapshot_id for snapshot in old])
    state.compared["snapshots"] = _snapshots(metadata, state.read)
    state.compared["commits of the walk"] = [
        [snapshot.summary.operation, snapshot.summary.properties.get("writer.id")]
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id not in before
    ]
    state.compared["refs"] = {
        name: [ref.type, ref.snapshot_id if ref.snapshot_id in before else "the walk's"]
        for name, ref in metadata.refs.items()
    }
    state.compared["log"] = [
        [entry.timestamp_ms, entry.snapshot_id] for entry in metadata.snapshot_log if entry.snapshot_id in before
    ]
    state.never("kept snapshots with other rows", [key for key, value in state.read.items() if before[key] != value])

    reached = _reached(lifecycle, f"{catalog}.{table}", metadata)
    there = _files(metadata.location)
    state.never("files that a snapshot reaches and that are gone", reached - there)
    state.compared["files of the history"] = sorted(there & set(facts["files"]))
    # Receipts are the lifecycle's own, and stay.
    loose = {path for path in there - reached if RECEIPTS not in path.split("/")}
    state.compared["loose files of the history"] = sorted(loose & set(facts["files"]))
    garbage = loose - set(facts["files"])
    state.noted["loose files of the walk"] = dict(Counter(kind_by_name(path) for path in garbage))
    verdicts = {plain(row["path"]): row["verdict"] for row in lifecycle.scan_orphans(table).unreferenced().collect()}
    state.never("loose files that a scan does not see", loose - set(verdicts))
    state.never("loose files that no scan will name", [path for path in loose if verdicts.get(path) not in PASSING])


def _cold(state: State, lifecycle: Lifecycle, table: str, before: Mapping[int, Fingerprint]) -> None:
    cold = lifecycle.cold_tables(lifecycle.steps.table_state(table).metadata.table_uuid)
    if cold is None:
        state.wrong.append("there is no cold table")
        return
    metadata = cold.newest.metadata
    full = f"{lifecycle.config.catalogs.cold.name}.{cold.newest.name}"
    rows = _rows(lifecycle, full, [snapshot.snapshot_id for snapshot in metadata.snapshots])
    state.compared["cold snapshots"] = _snapshots(metadata, rows)
    # The walk's own commits, too, are in the log that answers for both tiers.
    state.compared["cold log"] = [
        [entry.timestamp_ms, entry.snapshot_id] for entry in metadata.snapshot_log if entry.snapshot_id in before
    ]
    state.never("cold snapshots with other rows", [key for key, value in rows.items() if before.get(key) != value])
    lost = set(before) - set(state.live) - set(rows)
    state.never("snapshots in neither tier", lost)
    reached, there = _reached(lifecycle, full, metadata), _files(metadata.location)
    state.never("files that a cold snapshot reaches and that are gone", reached - there)
    state.compared["cold files"] = sorted(path for path in there & reached if not path.endswith(".metadata.json"))
    state.noted["loose files in cold"] = dict(Counter(kind_by_name(path) for path in there - reached))


def _results(state: State, lifecycle: Lifecycle, table: str, before: Collection[int]) -> None:
    """The tables for people: everything once."""
    spark, catalog = lifecycle.spark, lifecycle.config.catalogs.live.name
    lifecycle.publish_results()
    deletions = spark.table(f"{catalog}.lifecycle.deletions").where(f"table_name = '{table}'")
    rows = deletions.collect()
    gone = [(row["job_kind"], plain(row["path"]), row["outcome"]) for row in rows]
    once = Counter((kind, path) for kind, path, _ in gone)
    state.never("files with two outcomes", [key for key, count in once.items() if count > 1])
    kept = [
        (*each, row["reason"]) for each, row in zip(gone, rows, strict=True) if each[2] not in ("deleted", "absent")
    ]
    state.never("files that were not deleted", kept)
    state.compared["deleted"] = sorted(once)
    state.noted["outcomes"] = dict(Counter(outcome for _, _, outcome in gone))

    done = [record.plan_id for record in lifecycle.plans(table) if record.status == PlanStatus.DONE]
    planned = spark.table(f"{catalog}.lifecycle.plan_files").where(f"table_name = '{table}'")
    listed = Counter((row["plan_id"], plain(row["path"])) for row in planned.select("plan_id", "path").collect())
    state.never("planned files that are listed twice", [key for key, count in listed.items() if count > 1])
    state.compared["planned"] = sorted(path for plan, path in listed if plan in done)

    ledger = spark.table(f"{catalog}.lifecycle.lineage_ledger").where(f"table_name = '{table}'")
    recorded = Counter(map(tuple, ledger.select("snapshot_id", "operation", "plan_id").collect()))
    state.never("rows that the ledger has twice", [key for key, count in recorded.items() if count > 1])
    snapshots = {snapshot_id for snapshot_id, *_ in recorded}
    # A walk compacts after it has recorded: its own commits are in the ledger if a walk came after the killed one.
    own = set(state.live) - set(before)
    state.never("snapshots that the ledger lacks", set(before) - snapshots)
    state.never("snapshots in the ledger that never were", snapshots - set(before) - own - {None})
    state.compared["ledger"] = len(snapshots - own)


def _operations(state: State, lifecycle: Lifecycle, table: str) -> None:
    look = lifecycle.steps.table_state(table)
    table_uuid = look.metadata.table_uuid
    plans = lifecycle.plans(table)
    state.never("plans that still hold files", [each.plan_id for each in plans if each.status in HOLDING])
    effective = [each for each in plans if each.status == PlanStatus.DONE and each.expired_snapshots]
    expired = [snapshot for each in effective for snapshot in lifecycle.plan(each.plan_id).expired_snapshots]
    state.never("snapshots that two plans expired", [key for key, count in Counter(expired).items() if count > 1])
    state.compared["expired"] = sorted(expired)
    state.noted["plans"] = dict(Counter(str(each.status) for each in plans))
    queries = {
        "jobs that are not finished": "SELECT job_id FROM lifecycle.jobs WHERE table_uuid = :t AND finished_at IS NULL",
        "batches that are not done": "SELECT job_id, batch, state FROM lifecycle.batches JOIN lifecycle.jobs "
        "USING (job_id) WHERE table_uuid = :t AND state <> 'done'",
        "handoff batches that are not done": "SELECT plan_id, batch FROM lifecycle.handoff_batches "
        "JOIN lifecycle.plans USING (plan_id) WHERE table_uuid = :t AND state <> 'done' AND status <> 'superseded'",
        "scans that are not done": "SELECT scan_id, state FROM lifecycle.scans WHERE table_uuid = :t "
        "AND state = 'deleting'",
        "steps that are said to run": "SELECT step FROM lifecycle.steps WHERE table_uuid = :t AND state = 'running'",
        "leases that are held": "SELECT step, owner FROM lifecycle.leases WHERE table_uuid = :t "
        "AND released_at IS NULL AND taken_over_by IS NULL",
    }
    with lifecycle.operations.engine.connect() as connection:
        for what, query in queries.items():
            state.never(what, [tuple(row) for row in connection.execute(text(query), {"t": table_uuid})])


def _rows(lifecycle: Lifecycle, table: str, ids: Collection[int]) -> dict[int, Fingerprint]:
    found = fingerprints(lifecycle.spark, [(table, snapshot) for snapshot in ids])
    return {snapshot: value for (_, snapshot), value in found.items()}


def _snapshots(metadata: TableMetadata, rows: Mapping[int, Fingerprint]) -> list[list[Any]]:
    return [
        [
            snapshot.snapshot_id,
            snapshot.timestamp_ms,
            rows[snapshot.snapshot_id].rows,
            rows[snapshot.snapshot_id].checksum,
        ]
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id in rows
    ]


def _reached(lifecycle: Lifecycle, table: str, metadata: TableMetadata) -> set[str]:
    """Every file that a reader of the table can get to: of all its snapshots, and its metadata files."""
    spark = lifecycle.spark
    parts = (("all_files", "file_path"), ("all_manifests", "path"), ("snapshots", "manifest_list"))
    found = {plain(metadata.metadata_location)}
    for name, column in parts:
        found.update(plain(row[0]) for row in spark.table(f"{table}.{name}").select(column).distinct().collect())
    document = json.loads(Path(plain(metadata.metadata_location)).read_text())
    found.update(plain(entry["metadata-file"]) for entry in document.get("metadata-log", ()))
    for key in ("statistics", "partition-statistics"):
        found.update(plain(entry["statistics-path"]) for entry in document.get(key, ()))
    return found


def _files(location: str) -> set[str]:
    """The files below a location, without the checksum files that Hadoop leaves beside files that are there."""
    found = {str(path) for path in Path(plain(location)).rglob("*") if path.is_file()}
    return {path for path in found if not (path.endswith(".crc") and _beside(path) in found)}


def _beside(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.removeprefix('.').removesuffix('.crc')}"
