"""What a storm left: the walk comes to rest, and then everything is held against what was recorded outside of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import text

from artemis_lifecycle import errors
from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.plans import HOLDING, PlanStatus
from artemis_lifecycle.protection.places import IN_FLIGHT, RECEIPT
from artemis_lifecycle.protection.protection import OPEN_PLAN, OPEN_SCAN, TOO_YOUNG
from artemis_lifecycle_tests.soak import journal, place, rows

_PATIENCE = 1200
"""Seconds in which a table comes to rest: holds, heartbeats of the dead and the window are over by then."""

_AT_ONCE = 12
"""Snapshots that one Spark job reads."""

_THREADS = 3


@dataclass
class Verdict:
    """`wrong` must be empty; `counted` is reported."""

    wrong: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)

    def never(self, what: str, found: Collection[object]) -> None:
        if found:
            self.wrong.append(f"{what}: {len(found)}, e.g. {sorted(map(str, found))[:4]}")


# --- to rest ----------------------------------------------------------------------------------------------------------


def wake(lifecycle: Lifecycle) -> None:
    """Have the session's catalogs drop their connections from before the last restart of Postgres: Iceberg learns of
    each only by its next use, which fails."""
    catalogs = [lifecycle.config.catalogs.live.name, lifecycle.config.catalogs.cold.name]

    def use(catalog: str) -> None:
        with suppress(Exception):
            lifecycle.spark.sql(f"SHOW TABLES IN {catalog}.{place.NAMESPACE}").collect()

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="wake") as pool:
        list(pool.map(use, catalogs * 8))


def come_to_rest(lifecycle: Lifecycle, table: str) -> None:
    """Finish what was begun, and walk until nothing expires and nobody's file is left. Nothing may fail any more."""
    end = time.monotonic() + _PATIENCE
    # Of a step that ended while Postgres was restarted nobody could give the lease back: it lapses.
    while lifecycle.operations.leases.live(lifecycle.snapshot_history(table).table_uuid):
        assert time.monotonic() < end, f"the lease of {table} does not lapse"
        time.sleep(0.5)
    while True:
        for interrupted in lifecycle.interrupted_scans(table):
            lifecycle.delete_orphans(interrupted.scan_id)
        plan = lifecycle.plan_expiration(table)
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        for record in reversed(lifecycle.plans(table)):
            if record.status in (PlanStatus.COMMITTED, PlanStatus.DELETING):
                assert record.due_at is not None
                time.sleep(max(0.0, (record.due_at - lifecycle.operations.clock.now()).total_seconds() + 0.1))
                report = lifecycle.delete_files(record.plan_id)
                assert not report.failed and not report.pending, report
        scan = lifecycle.scan_orphans(table)
        report = lifecycle.delete_orphans(scan)
        assert not report.failed and not report.pending, report
        passing = [scan.summary.files_by_reason.get(why, 0) for why in (TOO_YOUNG, IN_FLIGHT, OPEN_PLAN, OPEN_SCAN)]
        if not plan.expired_snapshots and not scan.summary.orphan_files and not any(passing):
            return
        assert time.monotonic() < end, f"{table} does not come to rest: {scan.summary}"
        time.sleep(1)


# --- and judged -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """What the observer and the writers wrote down of one table."""

    totals: Mapping[int, rows.Total]
    parents: Mapping[int, int | None]
    operations: Mapping[int, str]
    tokens: Mapping[int, str]
    claimed: frozenset[int]
    intents: Mapping[str, rows.Total]


def judge(lifecycle: Lifecycle, where: place.Place, spoken: Mapping[str, list[dict[str, Any]]]) -> Verdict:
    """`spoken`: the lines of every process' journal, by its name."""
    verdict = Verdict()
    _what_was_said(verdict, spoken)
    deleted: set[str] = set()
    for table in where.tables:
        record = record_of(table, spoken)
        _snapshots(verdict, lifecycle, table, record)
        _sums(verdict, table, record)
        deleted |= _deletions(verdict, lifecycle, table)
        _operations(verdict, lifecycle, table)
        _files(verdict, lifecycle, table)
    _requests(verdict, lifecycle, where, deleted)
    return verdict


def spoken_in(where: place.Place) -> dict[str, list[dict[str, Any]]]:
    return {path.stem: journal.read(path) for path in sorted(where.journal("x").parent.glob("*.jsonl"))}


def record_of(table: str, spoken: Mapping[str, list[dict[str, Any]]]) -> Record:
    seen = [line for line in spoken["observer"] if line["what"] == "snapshot" and line["table"] == table]
    lines = [line for name, said in spoken.items() if "writer" in name for line in said]
    return Record(
        totals={line["snapshot"]: tuple(line["total"]) for line in seen},
        parents={line["snapshot"]: line["parent"] for line in seen},
        operations={line["snapshot"]: line["operation"] for line in seen},
        tokens={line["snapshot"]: line["by"].get("soak.token", "") for line in seen},
        claimed=frozenset(
            line["snapshot"]
            for line in lines
            if line["what"] == "commit" and line["table"] == table and line.get("snapshot") is not None
        ),
        intents={
            line["token"]: tuple(line["added"])
            for line in lines
            if line["what"] == "intent" and line.get("op") in ("append", "append to branch")
        },
    )


def _what_was_said(verdict: Verdict, spoken: Mapping[str, list[dict[str, Any]]]) -> None:
    known = {name for name in dir(errors) if isinstance(getattr(errors, name), type)}
    for name, lines in spoken.items():
        kind = name.rpartition("-")[0] or name
        for line in lines:
            if line["what"] == "error":
                verdict.counted[f"{kind} met {line['kind']}"] += 1
                if kind == "worker" and line["kind"] not in known:
                    verdict.wrong.append(f"{name}: {line}")
            elif line["what"] in ("unexpected", "broken"):
                verdict.wrong.append(f"{name}: {line}")
            elif line["what"] == "commit":
                verdict.counted[f"{kind}: {line['op']}"] += 1
            elif line["what"] == "done":
                verdict.counted[f"{kind} did {line['step']}"] += 1
            elif line["what"] == "missed":
                verdict.counted["snapshots that expired before they were read"] += 1
        # Whoever got nothing done has proven nothing.
        if kind in ("writer", "spark_writer") and not any(line["what"] == "commit" for line in lines):
            verdict.wrong.append(f"{name} has not committed once")
        if kind == "worker" and not any(line["what"] == "done" for line in lines):
            verdict.wrong.append(f"{name} has not ended one step")


def _snapshots(verdict: Verdict, lifecycle: Lifecycle, table: str, record: Record) -> None:
    """Every snapshot that ever was is in one of the tiers, and reads as it did."""
    live = {snapshot.snapshot_id for snapshot in lifecycle.steps.table_state(table).metadata.snapshots}
    plans = [plan for plan in lifecycle.plans(table) if plan.status == PlanStatus.DONE and plan.expired_snapshots]
    expired = [snapshot for plan in plans for snapshot in lifecycle.plan(plan.plan_id).expired_snapshots]
    verdict.never(f"{table}: snapshots that two plans expired", [key for key, n in Counter(expired).items() if n > 1])
    ever = set(record.totals) | record.claimed | set(expired) | live
    uuid = lifecycle.steps.table_state(table).metadata.table_uuid
    cold = lifecycle.cold_tables(uuid)
    archived = set() if cold is None else {each for each in ever if cold.holding(each) is not None}
    verdict.never(f"{table}: snapshots in neither tier", ever - live - archived)
    verdict.never(f"{table}: expired snapshots that are alive", set(expired) & live)
    read = _read(lifecycle, table, sorted(ever & (live | archived)))
    wrong = [each for each, total in read.items() if each in record.totals and record.totals[each] != total]
    verdict.never(f"{table}: snapshots with other rows", [(each, record.totals[each], read[each]) for each in wrong])
    verdict.counted["snapshots read from live"] += len(live)
    verdict.counted["snapshots read from cold"] += len(set(read) - live)
    verdict.counted["snapshots read that nobody had recorded"] += len(set(read) - set(record.totals))


def _read(lifecycle: Lifecycle, table: str, ids: Sequence[int]) -> dict[int, rows.Total]:
    def some(part: Sequence[int]) -> list[Any]:
        frames = [
            rows.totaled(lifecycle.read(table, snapshot_id=each)).withColumn("snapshot", F.lit(each)) for each in part
        ]
        return list(reduce(DataFrame.union, frames).collect())

    parts = [ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="judge") as pool:
        found = [row for part in pool.map(some, parts) for row in part]
    return {row["snapshot"]: (row["rows"], row["ids"], row["marks"], row["said"]) for row in found}


def _sums(verdict: Verdict, table: str, record: Record) -> None:
    """The record itself: appends add what their writer meant to add, and a rewrite changes no row."""
    for snapshot, total in record.totals.items():
        parent = record.parents[snapshot]
        before = rows.NOTHING if parent is None else record.totals.get(parent)
        if before is None:
            continue
        intent = record.intents.get(record.tokens[snapshot])
        if record.operations[snapshot] == "replace" and before != total:
            verdict.wrong.append(f"{table}: rewrite {snapshot} changed rows: {before} to {total}")
        if intent is not None and record.operations[snapshot] == "append" and rows.add(before, intent) != total:
            verdict.wrong.append(f"{table}: append {snapshot} added other rows: {before} and {intent} made {total}")
        verdict.counted["appends and rewrites whose sums were checked"] += (
            intent is not None or record.operations[snapshot] == "replace"
        )


def _deletions(verdict: Verdict, lifecycle: Lifecycle, table: str) -> set[str]:
    """The table for people has every file of every job once, and says of none that it went twice. Paths that went."""
    lifecycle.publish_results()
    full = f"{lifecycle.config.catalogs.live.name}.lifecycle.deletions"
    found = lifecycle.spark.table(full).where(F.col("table_name") == table).collect()
    once = Counter((row["job_id"], row["path"]) for row in found)
    verdict.never(f"{table}: files that a job has twice", [key for key, count in once.items() if count > 1])
    gone = Counter(row["path"] for row in found if row["outcome"] == "deleted")
    verdict.never(f"{table}: files that were deleted twice", [key for key, count in gone.items() if count > 1])
    odd = [row for row in found if row["outcome"] not in ("deleted", "absent", "kept")]
    verdict.never(f"{table}: files that were not deleted", odd)
    last: dict[str, Any] = {}
    for row in sorted(found, key=lambda row: row["recorded_at"]):
        if row["outcome"] == "kept" and last.get(row["path"]) == "deleted":
            verdict.wrong.append(f"{table}: {row['path']} was kept after it was deleted")
        last[row["path"]] = row["outcome"]
    jobs = Counter(row["job_id"] for row in found)
    with lifecycle.operations.engine.connect() as connection:
        query = text("SELECT job_id, files FROM lifecycle.jobs WHERE table_name = :t")
        stored = {row.job_id: row.files for row in connection.execute(query, {"t": table})}
    differing = {key: (jobs[key], files) for key, files in stored.items() if jobs[key] != files}
    verdict.never(f"{table}: jobs whose files are not all recorded", sorted(differing.items()))
    verdict.never(f"{table}: recorded jobs that the journal does not know", set(jobs) - set(stored))
    for row in found:
        verdict.counted[f"{row['job_kind']}: files {row['outcome']}"] += 1
    return {row["path"] for row in found if row["outcome"] in ("deleted", "absent")}


def _operations(verdict: Verdict, lifecycle: Lifecycle, table: str) -> None:
    """Every row in Postgres is at an end."""
    table_uuid = lifecycle.steps.table_state(table).metadata.table_uuid
    plans = lifecycle.plans(table)
    verdict.never(f"{table}: plans that still hold files", [each.plan_id for each in plans if each.status in HOLDING])
    for each in plans:
        verdict.counted[f"plans {each.status}"] += 1
    queries = {
        "jobs that are not finished": "SELECT job_id FROM lifecycle.jobs WHERE table_uuid = :t AND finished_at IS NULL",
        "batches that are not done": "SELECT job_id, batch, state FROM lifecycle.batches JOIN lifecycle.jobs "
        "USING (job_id) WHERE table_uuid = :t AND state <> 'done'",
        "batches whose files are not all accounted for": "SELECT job_id, batch FROM lifecycle.batches b "
        "JOIN lifecycle.jobs j USING (job_id) WHERE j.table_uuid = :t AND b.files <> b.deleted + b.absent + b.kept",
        "handoff batches that are not done": "SELECT plan_id, batch, state FROM lifecycle.handoff_batches "
        "JOIN lifecycle.plans USING (plan_id) WHERE table_uuid = :t AND state <> 'done' AND status <> 'superseded'",
        "scans whose deletion is not over": "SELECT scan_id FROM lifecycle.scans WHERE table_uuid = :t "
        "AND state = 'deleting'",
        "steps that are said to run": "SELECT step, owner FROM lifecycle.steps WHERE table_uuid = :t "
        "AND state = 'running'",
        "leases that are held": "SELECT step, owner FROM lifecycle.leases WHERE table_uuid = :t "
        "AND released_at IS NULL AND taken_over_by IS NULL",
        "heartbeats that are alive": "SELECT writer_id FROM lifecycle.heartbeats WHERE table_uuid = :t "
        "AND expires_at > clock_timestamp()",
        "restores that are not over": "SELECT restore_id FROM lifecycle.restores WHERE table_uuid = :t "
        "AND finished_at IS NULL AND abandoned_at IS NULL",
    }
    with lifecycle.operations.engine.connect() as connection:
        for what, query in queries.items():
            found = [tuple(row) for row in connection.execute(text(query), {"t": table_uuid})]
            verdict.never(f"{table}: {what}", found)
        for name in ("jobs", "steps", "leases", "scans", "plans"):
            query = f"SELECT count(*) FROM lifecycle.{name} WHERE table_uuid = :t"
            verdict.counted[f"rows of {name}"] += connection.execute(text(query), {"t": table_uuid}).scalar_one()


def _files(verdict: Verdict, lifecycle: Lifecycle, table: str) -> None:
    """On the store is what a snapshot reaches, by Iceberg's own metadata tables, and what a guard names; no more."""
    look = lifecycle.steps.table_state(table).metadata
    live = f"{lifecycle.config.catalogs.live.name}.{table}"
    reached = _reached(lifecycle, live, look)
    there = {file.path for file in lifecycle.live_stores.list(look.location)}
    verdict.never(f"{table}: files that a snapshot reaches and that are gone", reached - there)
    scan = lifecycle.scan_orphans(table)
    named = {row["path"]: row["verdict"] for row in scan.unreferenced().collect()}
    loose = there - reached
    unnamed = {path for path in loose if named.get(path) not in (RECEIPT,)}
    verdict.never(f"{table}: files that nothing reaches and no guard names", [(p, named.get(p)) for p in unnamed])
    verdict.counted["files that a live snapshot reaches"] += len(reached & there)
    for path in loose:
        verdict.counted[f"files that a guard names: {named.get(path)}"] += 1

    cold = lifecycle.cold_tables(look.table_uuid)
    if cold is None:
        return  # Nothing has expired; else its snapshots are in neither tier.
    metadata = cold.newest.metadata
    # A plan that a new tag made stale had copied them already; the next handoff of the snapshot takes them as they are.
    waiting = {f"{metadata.location}{path.removeprefix(look.location)}" for path in reached}
    reached = _reached(lifecycle, f"{lifecycle.config.catalogs.cold.name}.{cold.newest.name}", metadata)
    there = {file.path for file in lifecycle.cold_stores.list(metadata.location)}
    verdict.never(f"{table}: files that a cold snapshot reaches and that are gone", reached - there)
    unknown = {row["path"] for row in lifecycle.scan_cold(table).files().collect()}
    verdict.never(f"{table}: cold files that nothing explains", there - reached - unknown - waiting)
    saved = (there & waiting) - reached - unknown
    verdict.counted["files in cold of snapshots that a tag or branch saved"] += len(saved)
    verdict.counted["files in cold that a snapshot reaches"] += len(reached & there)
    verdict.counted["files in cold that killed handoffs left"] += len(there - reached - saved)


def _reached(lifecycle: Lifecycle, table: str, metadata: TableMetadata) -> set[str]:
    """Every file that a reader of the table can get to: of all its snapshots, and its metadata files."""
    parts = (("all_files", "file_path"), ("all_manifests", "path"), ("snapshots", "manifest_list"))
    found = {metadata.metadata_location}
    for name, column in parts:
        frame = lifecycle.spark.table(f"{table}.{name}").select(column).distinct()
        found.update(row[0] for row in frame.collect())
    document = json.loads(lifecycle.live_stores.read(metadata.metadata_location))
    found.update(entry["metadata-file"] for entry in document.get("metadata-log", ()))
    for key in ("statistics", "partition-statistics"):
        found.update(entry["statistics-path"] for entry in document.get(key, ()))
    return found


def _requests(verdict: Verdict, lifecycle: Lifecycle, where: place.Place, recorded: Collection[str]) -> None:
    """Every file of a table that this project's own client deleted is in the record of deletions."""
    begins = tuple(f"{lifecycle.steps.table_state(table).metadata.location}/" for table in where.tables)
    log = (Path(where.home) / "requests.log").read_text().splitlines()
    asked: set[str] = set()
    for line in log:
        _, who, method, status, _, key = line.split("\t")
        path = f"s3:/{key}"
        if path.startswith(begins):
            verdict.counted[f"requests, {method} by {who}"] += 1
            if method == "DELETE" and who == "Boto3" and status.startswith("2"):
                asked.add(path)
    # The product's own objects, with which it asks whether the store honors conditional deletes.
    probes = {path for path in asked if "/artemis-probe-" in path}
    verdict.never("files that were deleted and that no record names", asked - probes - set(recorded))


def reported(counted: Mapping[str, int]) -> Iterable[tuple[str, str]]:
    return [(what, f"{number:,}") for what, number in sorted(counted.items())]
