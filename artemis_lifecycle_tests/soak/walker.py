"""The processes that are killed: what the demo does, cut in two, each a program of its own.

    python -m artemis_lifecycle_tests.soak.walker prepare HOME
    python -m artemis_lifecycle_tests.soak.walker walk HOME TABLES [--die DEATH --note FILE] [--state FILE]

`prepare` writes the demo's history and reads every snapshot of it. `walk` runs the walk through Dagster as `artemis
demo` does; then, with `--state`, it reads what the walk left and puts it into a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.commits.actions import jvm_table
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.defs.run import Walk, WalkEvent, materialize_walk
from artemis_lifecycle.embedded.addresses import fill
from artemis_lifecycle.metadata.types import SnapshotHistory
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle_tests.soak.dying import Death
from artemis_lifecycle_tests.soak.state import read_state
from examples.mission import history, proofs
from examples.mission.area import Area, demo_area
from examples.mission.history import InFlight, TableHistory, commit_in_flight, write_histories
from examples.mission.proofs import Fingerprint, fingerprint, fingerprints
from examples.mission.run import STAYS
from examples.mission.run import _environment as point_dagster_at
from examples.mission.schedule import ARCHIVE, REGISTRY, TABLES, TELEMETRY, Action, Event, events

_WINDOWS = {
    REGISTRY: timedelta(days=30),
    TELEMETRY: timedelta(days=7),
    ARCHIVE: timedelta(days=365),
}
_LASTS = timedelta(hours=4)
"""No case comes later than this after the history was written."""


def area_of(home: Path) -> Area:
    """The demo's place as it stands; nothing is wiped."""
    path = home / "demo" / "lifecycle.yaml"
    return Area(home / "demo", path, fill(load_config(path)))


def prepared(home: Path) -> Path:
    """What `prepare` tells `walk`."""
    return home / "prepared.json"


def steady(table: str, now: datetime) -> tuple[Event, ...]:
    """The demo's events, without every other daily ingest of the days before the last twenty, and in such a way that
    none leaves the table's window while cases run: every case, however late, has the same snapshots to expire."""
    edge = now - _WINDOWS[table]
    moved = [
        replace(event, at=event.at - _LASTS) if edge - timedelta(minutes=5) <= event.at <= edge + _LASTS else event
        for event in events(table, now)
    ]
    # What is rolled back, or only another writer's, came later in the day.
    daily = [event for event in moved if event.action is Action.APPEND and event.at.hour < 5 and not event.sections]
    left_out = set([event.at for event in daily if event.at < now - timedelta(days=20)][1::2])
    moved = [event for event in moved if event.action is not Action.APPEND or event.at not in left_out]
    settled: list[Event] = []
    for event in sorted(moved, key=lambda each: each.at):
        at = max(event.at, settled[-1].at + timedelta(minutes=1)) if settled else event.at
        settled.append(replace(event, at=at))
    return tuple(settled)


def prepare(home: Path) -> None:
    history.events = steady  # type: ignore[attr-defined]
    with demo_area(home) as area:
        point_dagster_at(area)
        with Lifecycle.open(area.config, owner="soak") as lifecycle:
            now = lifecycle.operations.clock.now()
            histories = write_histories(lifecycle.spark, lifecycle.config, now)
            for written in histories:
                for name, snapshot_id in written.marks.items():
                    lifecycle.tag(written.table, name, snapshot_id, why="kept for the investigation")
            known = {table: lifecycle.snapshot_history(table) for table in TABLES}
            rows = _read(lifecycle, {table: _ids(found) for table, found in known.items()})
            prepared(home).write_text(
                json.dumps(
                    {
                        "rows": {
                            table: {str(key): asdict(value) for key, value in found.items()}
                            for table, found in rows.items()
                        },
                        "tables": {written.table: _facts_of(lifecycle, written) for written in histories},
                    }
                )
            )


def _ids(found: SnapshotHistory) -> list[int]:
    return [snapshot.snapshot_id for snapshot in found.snapshots]


def _read(lifecycle: Lifecycle, wanted: Mapping[str, Iterable[int]]) -> dict[str, dict[int, Fingerprint]]:
    catalog = lifecycle.config.catalogs.live.name
    keys = [(f"{catalog}.{table}", snapshot) for table, ids in wanted.items() for snapshot in ids]
    found = fingerprints(lifecycle.spark, keys)
    return {
        table: {snapshot: found[f"{catalog}.{table}", snapshot] for snapshot in ids} for table, ids in wanted.items()
    }


def _facts_of(lifecycle: Lifecycle, written: TableHistory) -> dict[str, Any]:
    files = sorted(str(path) for path in _folder(lifecycle, written.table).rglob("*") if path.is_file())
    debris = [[each.origin.value, list(each.paths)] for each in written.debris]
    facts: dict[str, Any] = {"uuid": written.table_uuid, "debris": debris, "files": files}
    if written.in_flight is not None:
        facts["in_flight"] = _in_flight(lifecycle, written.in_flight)
    return facts


def _folder(lifecycle: Lifecycle, table: str) -> Path:
    warehouse = str(lifecycle.config.catalogs.live.warehouse).removeprefix("file://")
    return Path(warehouse) / table.replace(".", "/")


def _in_flight(lifecycle: Lifecycle, writer: InFlight) -> dict[str, Any]:
    """The writer, and its files as Iceberg writes them down, so that another process can commit them."""
    jvm: Any = lifecycle.spark._jvm
    spec = jvm_table(lifecycle.spark, lifecycle.config.catalogs.live.name, writer.table).spec()
    return {
        "writer_id": writer.writer_id,
        "prefix": writer.prefix,
        "paths": list(writer.paths),
        "lineage": dict(writer.lineage),
        "files": [str(jvm.org.apache.iceberg.ContentFileParser.toJson(file, spec)) for file in writer.files],
        "expected": asdict(fingerprint(writer.expected)),
    }


# --- the walk ---------------------------------------------------------------------------------------------------------


def walk(home: Path, tables: list[str], death: Death | None, state: Path | None) -> None:
    area = area_of(home)
    point_dagster_at(area)

    def on_event(event: WalkEvent) -> None:
        if event.what == "started" and death is not None:
            death.began(event.asset)
        print(event.table, event.asset, event.what, event.check or "", event.passed, event.message, flush=True)

    with ExitStack() as stack:
        # Log every point: cases are chosen from the log of an undisturbed walk.
        def reached(point: str) -> None:
            if death is not None:
                death.reached(point)
            print("point", point, flush=True)

        stack.enter_context(crash_points.installed(reached))
        lifecycle = stack.enter_context(Lifecycle.open(area.config, owner="artemis-demo"))
        walks = materialize_walk(tables, config_path=area.config_path, on_event=on_event, spark=lifecycle.spark)
        if state is not None:
            before = json.loads(prepared(home).read_text())
            found = {each.table: _outcome(lifecycle, each, before) for each in walks}
            state.write_text(json.dumps(found, indent=1, sort_keys=True))


def _outcome(lifecycle: Lifecycle, done: Walk, before: Mapping[str, Any]) -> dict[str, Any]:
    table = done.table
    facts = before["tables"][table]
    rows = {int(key): Fingerprint(**value) for key, value in before["rows"][table].items()}
    if "in_flight" in facts:
        _delete_what_waited(lifecycle, table, facts)
    state = read_state(lifecycle, table, facts, rows)
    found = [
        proofs.prove_kept(table, state.live, rows, state.read, set(state.live) - set(rows)),
        *(
            proofs.prove_debris(
                table, origin, len(paths), sum(map(_is_there, paths)), should_stay=Action(origin) in STAYS
            )
            for origin, paths in facts["debris"]
        ),
    ]
    if "in_flight" in facts:
        found.append(_commit(lifecycle, table, facts["in_flight"]))
    return {
        "state": state.compared,
        "wrong": [*state.wrong, *(f"{proof.claim}: {proof.detail}" for proof in found if not proof.holds)],
        "noted": state.noted,
        "failures": list(done.failures) or ([] if done.succeeded else ["the run did not end well"]),
        "failed_checks": list(done.failed_checks),
        "seconds": done.seconds,
        "step_seconds": {event.asset: event.seconds for event in done.events if event.what == "materialised"},
    }


def _delete_what_waited(lifecycle: Lifecycle, table: str, facts: Mapping[str, Any]) -> None:
    """While a writer is in flight, a plan's manifests wait: the next night deletes them."""
    writer, heartbeats = facts["in_flight"], lifecycle.operations.heartbeats
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(text("DELETE FROM lifecycle.heartbeats WHERE table_uuid = :uuid"), {"uuid": facts["uuid"]})
    for record in lifecycle.operations.plans.of_table(facts["uuid"]):
        if record.status is PlanStatus.DELETING:
            lifecycle.delete_files(record.plan_id)
    heartbeats.beat(facts["uuid"], table, writer["writer_id"], writer["prefix"], timedelta(minutes=10))


def _is_there(path: str) -> bool:
    return Path(path.removeprefix("file://").removeprefix("file:")).is_file()


def _commit(lifecycle: Lifecycle, table: str, facts: Mapping[str, Any]) -> proofs.Proof:
    """The writer that was in flight all the while commits now."""
    from pyspark.sql import functions as F

    spark, catalog = lifecycle.spark, lifecycle.config.catalogs.live.name
    jvm: Any = spark._jvm
    spec = jvm_table(spark, catalog, table).spec()
    mapper = jvm.org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper()
    files = tuple(jvm.org.apache.iceberg.ContentFileParser.fromJson(mapper.readTree(f), spec) for f in facts["files"])
    paths = tuple(facts["paths"])
    present = sum(map(_is_there, paths))
    frame = spark.table(f"{catalog}.{table}")
    writer = InFlight(table, facts["writer_id"], facts["prefix"], paths, facts["lineage"], files, frame)
    snapshot_id = commit_in_flight(spark, catalog, writer)
    names = [path.rpartition("/")[2] for path in paths]
    frame = spark.table(f"{catalog}.{table}")
    read = frame.where(F.element_at(F.split("_file", "/"), -1).isin(names)).select(*frame.columns)
    return proofs.prove_in_flight(
        table, len(paths), present, Fingerprint(**facts["expected"]), fingerprint(read), snapshot_id
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["prepare", "walk"])
    parser.add_argument("home", type=Path)
    parser.add_argument("tables", nargs="?", default=",".join(TABLES))
    parser.add_argument("--die")
    parser.add_argument("--note", type=Path)
    parser.add_argument("--state", type=Path)
    asked = parser.parse_args()
    os.environ["ARTEMIS_HOME"] = str(asked.home)
    if asked.what == "prepare":
        prepare(asked.home)
        return 0
    death = None if asked.die is None else Death(asked.die, asked.note, asked.home / "demo")
    walk(asked.home, asked.tables.split(","), death, asked.state)
    return 0


if __name__ == "__main__":
    sys.exit(main())
