"""A night of a fleet through Dagster's own daemon: sensor, queue, launcher. `python -m bench.walk WORK HOME` prints
JSON.

`--tables` tables, of which `--busy` have a day of commits that leaves the window. The rest have nothing to expire. Each
table but one in ten of the busy ones has had its orphan scans; those are due. The sensor `maintenance_window` starts
the walk for real. `--launcher warm` has `artemis workers`; `--launcher process` is Dagster's default, a process and a
JVM per run. `--launcher both` walks equal fleets with each, one after the other, and reports the ratios. The time is
from the start of the sensor until no table of this window needs anything.

`--simulate N` reports, after the measured night, how long N tables take: the project's own rules (`due_step`,
`priority`, the limits of a tick) with the measured times of a run, without Dagster.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import yaml
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from pyiceberg.catalog import load_catalog
from sqlalchemy import create_engine, text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import window_of
from artemis_lifecycle.defs import sensors
from artemis_lifecycle.defs.processes import PROCESS_TAG
from artemis_lifecycle.defs.progress import table_windows
from artemis_lifecycle.embedded.jars import needed, resolve
from artemis_lifecycle.embedded.postgres import CATALOGS, EmbeddedPostgres
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.scheduling.maintenance_window import Progress, Step, due_step, priority
from bench.configuration import config_in
from bench.sampling import Sampler

REPOSITORY = Path(__file__).resolve().parent.parent
TICK = 60.0
"""Seconds between two ticks of the sensor."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.walk", description=__doc__)
    parser.add_argument("work")
    parser.add_argument("home", help="the folder that has Spark's jars")
    parser.add_argument("--tables", type=int, default=1_000)
    parser.add_argument("--busy", type=int, default=100)
    parser.add_argument("--commits", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--launcher", choices=["warm", "process", "both"], default="warm")
    parser.add_argument("--runs", choices=["one_per_table", "one_per_step"], default="one_per_table")
    parser.add_argument("--simulate", type=int, default=5_000)
    chosen = parser.parse_args()
    if chosen.launcher != "both":
        print(json.dumps(_walked(chosen, chosen.launcher), indent=2))
        return
    process, warm = (_walked(chosen, launcher) for launcher in ("process", "warm"))
    figures = ("seconds", "processes_with_a_jvm", "peak_memory_mb")
    ratios = {figure: round(process[figure] / warm[figure], 2) for figure in figures}
    ratios["median_run"] = round(process["seconds_per_run"]["median"] / warm["seconds_per_run"]["median"], 2)
    print(json.dumps({"process": process, "warm": warm, "process_over_warm": ratios}, indent=2))


def _walked(chosen: argparse.Namespace, launcher: str) -> dict[str, Any]:
    folder = Path(chosen.work).resolve() / f"walk-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    if not (home / "jars").exists():
        (home / "jars").symlink_to(Path(chosen.home).resolve() / "jars")
    admin = create_engine(EmbeddedPostgres(home).uri(CATALOGS), isolation_level="AUTOCOMMIT")
    name = folder.name.replace("-", "_")
    uris = []
    for database in (name, f"{name}_dagster"):
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {database}"))
        uris.append(admin.url.set(database=database).render_as_string(hide_password=False))
    try:
        return _night(folder, *uris, home, chosen, launcher)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _night(
    folder: Path, uri: str, dagster_uri: str, home: Path, chosen: argparse.Namespace, launcher: str
) -> dict[str, Any]:
    opens = datetime.now(UTC) - timedelta(minutes=5)
    quiet = {"from": f"{opens:%H:%M}", "to": f"{opens - timedelta(minutes=1):%H:%M}", "runs": chosen.runs}
    config = config_in(folder, uri, home, defaults={"quiet_window": quiet, "retention": {"window": "1h"}})
    config = LifecycleConfig.model_validate(
        config.model_dump(mode="json", by_alias=True)
        | {"tables": {"bench.*": {}, "bench.busy*": {"retention": {"window": "1s"}}}}
    )
    resolve(config.home, needed(config))
    path = folder / "lifecycle.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True, exclude_none=True)))
    began = time.monotonic()
    busy = [f"bench.busy{number:05}" for number in range(chosen.busy)]
    # The busy tables are in the middle of the alphabet: nothing is first by its name alone.
    idle = [f"bench.{'a' if number % 2 else 'z'}{number:05}" for number in range(chosen.tables - chosen.busy)]
    _generate(config, busy, idle, chosen.commits)
    generated = time.monotonic() - began
    _seed_scans(config, [*idle, *(table for number, table in enumerate(busy) if number % 10)])
    os.environ |= {
        "DAGSTER_HOME": str(_dagster_home(folder, warm=launcher == "warm")),
        "ARTEMIS_DAGSTER_POSTGRES": dagster_uri,
        "ARTEMIS_CONFIG": str(path),
        "PYTHONPATH": str(REPOSITORY),
    }
    with DagsterInstance.get() as instance, Lifecycle.open(path) as lifecycle:
        instance.add_dynamic_partitions("table", [*busy, *idle])
        instance.event_log_storage.set_concurrency_slots("artemis_spark", chosen.workers)
        sampler = Sampler(os.getpid(), 1.0)
        with _processes(folder, launcher, chosen.workers):
            sampler.start()
            started = time.monotonic()
            _sensor(folder)
            ended = _until_done(lifecycle, instance, [*busy, *idle], busy)
            seconds = time.monotonic() - started
            samples = sampler.stop()
        runs = list(instance.get_run_records(RunsFilter()))
        taken = [run.end_time - run.start_time for run in runs if run.end_time and run.start_time]
        with create_engine(dagster_uri).connect() as connection:
            rows = connection.execute(text("SELECT count(*) FROM event_logs")).scalar_one()
        tick = time.monotonic()
        table_windows(lifecycle, instance, datetime.now(UTC))
        tick = time.monotonic() - tick
        finished = sorted(run.end_time or 0.0 for run in runs)
        return {
            "tables": chosen.tables,
            "busy": chosen.busy,
            "launcher": launcher,
            "runs_mode": chosen.runs,
            "seconds": round(seconds, 1),
            "load_average": round(os.getloadavg()[2], 1),
            "generated_seconds": round(generated, 1),
            "complete": ended,
            "runs": len(runs),
            "failed_runs": sum(run.dagster_run.status is not DagsterRunStatus.SUCCESS for run in runs),
            "processes_with_a_jvm": len({run.dagster_run.tags.get(PROCESS_TAG) for run in runs}),
            "failures": sorted({_failure(instance, run.dagster_run.run_id) for run in runs} - {""})[:5],
            "seconds_per_run": {"median": round(median(taken), 2), "max": round(max(taken), 2)} if taken else {},
            "last_run_ended_after": round(finished[-1] - (time.time() - (time.monotonic() - started)), 1),
            "peak_memory_mb": round(max(each.jvm + each.python for each in samples) / 1e6),
            "peak_jvm_mb": round(max(each.jvm for each in samples) / 1e6),
            "event_log_rows": rows,
            "tick_seconds": round(tick, 2),
            "simulated": simulate(
                chosen.simulate, chosen.simulate // 10, median(taken) if taken else 1.0, chosen.workers
            ),
        }


def _failure(instance: DagsterInstance, run_id: str) -> str:
    events = (entry.dagster_event for entry in instance.all_logs(run_id))
    failed = (event.step_failure_data.user_failure_data for event in events if event and event.is_step_failure)
    return next((each.description or "" for each in failed if each), "")[:300]


def _generate(config: LifecycleConfig, busy: Sequence[str], idle: Sequence[str], commits: int) -> None:
    catalog = load_catalog(config.catalogs.live.name, **pyiceberg_properties(config.catalogs.live))
    catalog.create_namespace("bench")
    rows = pa.table({"id": pa.array(range(100), pa.int64())})
    for table in idle:
        catalog.create_table(table, rows.schema).append(rows)
    for table in busy:
        made = catalog.create_table(table, rows.schema)
        for number in range(commits):
            # Every fourth commit overwrites, so that an expiration frees data files, too.
            (made.append if number % 4 else made.overwrite)(rows)


def _seed_scans(config: LifecycleConfig, tables: Sequence[str]) -> None:
    """Two clean scans per table, as in a fleet that has been maintained for a while: those of one table, under the
    names of all."""
    with Lifecycle.open(config) as lifecycle:
        scans, now = lifecycle.operations.scans, lifecycle.operations.clock.now()
        scanned = lifecycle.scan_orphans(tables[0])
        (real,) = (scan for scan in scans.recent()[tables[0]] if scan.scan_id == scanned.scan_id)
        for table in tables:
            history = lifecycle.snapshot_history(table)
            for days in (2, 1):
                at = now - timedelta(days=days)
                scans.store(
                    replace(
                        real,
                        scan_id=uuid.uuid4().hex,
                        table_uuid=history.table_uuid,
                        table=table,
                        listed_at=at,
                        listing_finished_at=at,
                        metadata_location=history.metadata_location,
                        metadata_read_at=at,
                        state=ScanState.DONE,
                        created_at=None,
                    )
                )


def _dagster_home(folder: Path, *, warm: bool) -> Path:
    home = folder / "dagster"
    for name in ("runs", "control", "taken", "results"):
        (home / "workers" / name).mkdir(parents=True)
    launcher = (REPOSITORY / "deploy" / "warm-workers.yaml").read_text().replace("@HOME@", str(home)) if warm else ""
    (home / "dagster.yaml").write_text((REPOSITORY / "dagster.yaml").read_text() + launcher)
    return home


@contextmanager
def _processes(folder: Path, launcher: str, workers: int) -> Iterator[None]:
    daemon = [str(Path(sys.executable).with_name("dagster-daemon")), "run"]
    commands = [[*daemon, "--workspace", str(REPOSITORY / "workspace.yaml")]]
    if launcher == "warm":
        commands.append([sys.executable, "-m", "artemis_lifecycle.cli", "workers", "--count", str(workers)])
    with (folder.parent / "walk.log").open("wb") as log:
        started = [subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT) for command in commands]
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(timeout=120)


def _sensor(folder: Path) -> None:
    dagster = str(Path(sys.executable).with_name("dagster"))
    workspace = ["--workspace", str(REPOSITORY / "workspace.yaml")]
    command = [dagster, "sensor", "start", "maintenance_window", *workspace]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def _until_done(lifecycle: Lifecycle, instance: DagsterInstance, tables: Sequence[str], busy: Sequence[str]) -> bool:
    """Wait until no table of this window needs anything. Return False after an hour."""
    end = time.monotonic() + 3_600
    while time.monotonic() < end:
        time.sleep(2)
        now = datetime.now(UTC)
        left = [
            each.table
            for each in table_windows(lifecycle, instance, now)
            if not each.progress.planned or each.progress.plan_needs or each.progress.under_way
        ]
        print(f"{now:%H:%M:%S} {len(left)} tables to go", file=sys.stderr, flush=True)
        if not left:
            return True
    return False


def simulate(tables: int, busy: int, seconds_per_run: float, workers: int) -> Mapping[str, float]:
    """Return how long a night of `tables` takes, and the longest wait of a run in the queue, in seconds."""
    opens = datetime(2026, 1, 5, tzinfo=UTC)
    policy = LifecycleConfig().defaults.quiet_window
    window, now = window_of(opens, policy), opens
    waiting = {number: Progress(orphans_due=False) for number in range(tables)}
    queue: list[tuple[int, datetime, int]] = []
    free = [opens] * workers
    heapq.heapify(free)
    longest, last, reads = timedelta(0), opens, max(1, int(sensors.IDLE_FOR / 0.012))
    while waiting or queue:
        asked = 0
        for number in list(waiting)[:reads]:
            if number % (tables // busy):
                del waiting[number]  # idle: the tick records it
            elif asked < sensors.AT_ONCE and due_step(now, window, waiting[number], frozenset(Step)).step:
                heapq.heappush(queue, (-priority(timedelta(hours=24 + number % 7), 1 << 20), now, number))
                del waiting[number]
                asked += 1
        now += timedelta(seconds=TICK)
        while queue and free[0] <= now:
            _, requested, _ = heapq.heappop(queue)
            start = max(heapq.heappop(free), requested)
            last = start + timedelta(seconds=seconds_per_run)
            heapq.heappush(free, last)
            longest = max(longest, start - requested)
        if now > opens + timedelta(days=2):
            break
    return {
        "tables": tables,
        "busy": busy,
        "seconds": round((max(free) - opens).total_seconds()),
        "longest_wait_seconds": round(longest.total_seconds()),
        "left": len(waiting) + len(queue),
    }


if __name__ == "__main__":
    main()
