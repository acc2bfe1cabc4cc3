"""kill -9 in the middle of every step of the walk, and the same command again: it ends as if nothing had been.

Each case starts from one and the same history of the demo, on the embedded Postgres and Spark of a home of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from artemis_lifecycle.embedded.postgres import CATALOGS, EmbeddedPostgres
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.holds import Writing
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.end_report import add_row
from artemis_lifecycle_tests.soak import machine
from artemis_lifecycle_tests.soak.dying import kill_all
from artemis_lifecycle_tests.soak.machine import alone
from examples.mission.schedule import ARCHIVE, REGISTRY, TABLES, TELEMETRY

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kills process trees as Linux has them"),
]

_FRESH = 3 * 3600
"""Seconds; less than what `walker.steady` allows for."""

TITLE = "kill -9, and the same command again"
HEAD = ("table", "step", "died", "who", "at the re-run", "waited", "state")


DEATHS = [
    (ARCHIVE, "all orphan_deletion gone */live/artemis/* 4"),
    (ARCHIVE, "all physical_deletion gone */live/artemis/* 5"),
    (ARCHIVE, "all expiration_commit point catalog.commit:after 1"),
    (ARCHIVE, "all cold_tier_snapshots point handoff.publish:after 1"),
    (ARCHIVE, "all compacted_data_files file */live/artemis/*/data/*.parquet 1"),
    (ARCHIVE, "python lineage_ledger file */lineage_ledger/data/*.parquet 1"),
    (ARCHIVE, "python lineage_ledger file */plan_files/data/*.parquet 1"),
    (TELEMETRY, "python lineage_ledger file */lifecycle/deletions/data/*.parquet 1"),
    (ARCHIVE, "python expiration_plan file */state/plans/*/files/*.parquet 1"),
    (TELEMETRY, "python physical_deletion point deletion.write_outcomes:after 1"),
    (TELEMETRY, "all orphan_scan point orphans.seal_scan:after 1"),
    (ARCHIVE, "all object_listing point orphans.seal_listing:before 1"),
    (ARCHIVE, "all snapshot_history after 0.05"),
    (ARCHIVE, "all reachable_set after 0.05"),
    (ARCHIVE, "all schema_history after 0.002"),
    (TELEMETRY, "all table_health after 0.5"),
    (ARCHIVE, "python compacted_manifests file */live/artemis/*/metadata/*.avro 1"),
    (TELEMETRY, "all cold_tier_snapshots file */warehouse/cold/*.parquet 20"),
    (REGISTRY, "all expiration_plan point plans.seal:after 1"),
    (REGISTRY, "all cold_tier_snapshots point handoff.batch:before 2"),
    (ARCHIVE, "all cold_tier_snapshots point handoff.publish:before 1"),
    (ARCHIVE, "python expiration_commit file */live/artemis/*.metadata.json 1"),
    (TELEMETRY, "all physical_deletion point deletion.delete_files:after 1"),
    (ARCHIVE, "all orphan_deletion point scans.mark.deleting:after 1"),
    (ARCHIVE, "all orphan_scan point scans.store:after 1"),
    (TELEMETRY, "python compacted_data_files file */live/artemis/*/metadata/*.metadata.json 1"),
]
"""What dies, in which step, and when (see `dying`): each step at least once, where it writes at several places."""


@dataclass(frozen=True)
class Ran:
    """How a child ended, and what it said."""

    code: int
    said: str
    seconds: float

    @property
    def refused(self) -> bool:
        return "LeaseTaken" in self.said or "holds the table for step" in self.said


class World:
    """The home of the cases: one server, one history, put back before each case."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / "walker.log"
        self.server = EmbeddedPostgres(home, {"fsync": "off"})
        self.address = ""
        self.reference: dict[str, Any] = {}

    def take_up(self) -> None:
        """What an earlier run prepared here, if it is whole and fresh; else prepare it."""
        whole = self.home / "reference.json"
        if whole.exists() and time.time() - (self.home / "prepared.json").stat().st_mtime < _FRESH:
            self.address = self.server.start()
            self.reference = json.loads(whole.read_text())
        else:
            self.server.remove()
            shutil.rmtree(self.home, ignore_errors=True)
            self.prepare()

    def prepare(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o755)
        self.address = self.server.start()
        ran = self.child("prepare")
        assert ran.code == 0, ran.said
        # A copy under another oid would be taken for another deployment's database.
        oid = self._execute(f"SELECT oid FROM pg_database WHERE datname = '{CATALOGS}'")
        (self.home / "oid").write_text(str(oid))
        self._execute(f"CREATE DATABASE saved TEMPLATE {CATALOGS}")
        for name in ("warehouse", "state"):
            if (self.home / "demo" / name).exists():
                shutil.copytree(self.home / "demo" / name, self.home / "saved" / name)
        self.put_back()
        state = self.home / "state.json"
        ran = self.walk(TABLES, state=state)
        assert ran.code == 0, ran.said
        self.reference = json.loads(state.read_text())
        for table, found in self.reference.items():
            assert found["failures"] == found["failed_checks"] == found["wrong"] == [], (table, found)
        state.rename(self.home / "reference.json")

    def put_back(self) -> None:
        """The beginning: the tables, their files with their times, and all that Postgres knows of them."""
        oid = (self.home / "oid").read_text()
        self._execute(
            f"DROP DATABASE IF EXISTS {CATALOGS} WITH (FORCE)", f"CREATE DATABASE {CATALOGS} TEMPLATE saved OID {oid}"
        )
        for name in ("warehouse", "state"):
            shutil.rmtree(self.home / "demo" / name, ignore_errors=True)
            if (self.home / "saved" / name).exists():
                shutil.copytree(self.home / "saved" / name, self.home / "demo" / name)

    def walk(
        self, tables: tuple[str, ...], *, die: str | None = None, note: Path | None = None, state: Path | None = None
    ) -> Ran:
        with self.in_flight(tables):
            options = [
                *(["--die", die, "--note", str(note)] if die else []),
                *(["--state", str(state)] if state else []),
            ]
            return self.child("walk", ",".join(tables), *options)

    def child(self, what: str, *arguments: str) -> Ran:
        began = time.monotonic()
        process = self.start(what, *arguments)
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                kill_all(process.pid)
                process.wait()
        return Ran(code, self.log.read_text(), time.monotonic() - began)

    def start(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "artemis_lifecycle_tests.soak.walker", what, str(self.home), *arguments]
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("ARTEMIS_", "DAGSTER_"))},
            "ARTEMIS_JARS": os.environ.get("ARTEMIS_JARS") or str(REPOSITORY / ".artemis" / "jars"),
            "PYTHONPATH": str(REPOSITORY),
        }
        # Into a file: what outlives a killed child must not keep a pipe open, and the test waiting.
        with self.log.open("w") as log:
            return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=subprocess.STDOUT)

    @contextmanager
    def in_flight(self, tables: tuple[str, ...]) -> Iterator[None]:
        """The writer in flight of another process, which lives on when the walk is killed."""
        known = json.loads((self.home / "prepared.json").read_text())["tables"]
        with ExitStack() as stack:
            operations = stack.enter_context(Operations.open(f"{self.address}/{CATALOGS}"))
            for table in tables:
                writer = known[table].get("in_flight")
                if writer is not None:
                    ttl = timedelta(minutes=10)
                    stack.enter_context(
                        Writing(
                            operations.heartbeats,
                            known[table]["uuid"],
                            table,
                            writer["writer_id"],
                            writer["prefix"],
                            ttl,
                        )
                    )
            yield

    def _execute(self, *statements: str) -> object:
        """What the last statement answers, if it is a query for one value."""
        # By the address: asked for a database of its own that is not there, the server would make it anew.
        connection = psycopg2.connect(f"{self.address.replace('postgresql+psycopg2', 'postgresql')}/postgres")
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                row = cursor.fetchone() if cursor.description else None
                return row and row[0]
        finally:
            connection.close()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    if machine.HOME is not None:
        kept = World(Path(machine.HOME))
        with alone():
            kept.take_up()
        yield kept
        return
    # Not under pytest's own folder, which root's Postgres user could not reach.
    made = World(Path(tempfile.mkdtemp(prefix="artemis-soak-")))
    try:
        with alone():
            made.prepare()
        yield made
    finally:
        made.server.remove()
        shutil.rmtree(made.home, ignore_errors=True)


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What differs, by its name, with the first items of either side alone."""
    said = []
    for key in sorted(wanted.keys() | found.keys()):
        one, other = wanted.get(key), found.get(key)
        if one == other:
            continue
        if isinstance(one, list) and isinstance(other, list):
            lost = [item for item in one if item not in other]
            more = [item for item in other if item not in one]
            said.append(f"{key}: {len(lost)} missing {lost[:3]}, {len(more)} too many {more[:3]}")
        else:
            said.append(f"{key}: {one} became {other}")
    return said


def again(world: World, tables: Sequence[str], died: tuple[str, str, str]) -> None:
    """The same command once more: it waits for nobody, succeeds, and leaves what an unkilled one leaves."""
    state = world.home / "state.json"
    state.unlink(missing_ok=True)
    ran = world.walk(tuple(tables), state=state)
    outcome: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
    wrong: dict[str, list[str]] = {}
    for table in tables:
        found = outcome.get(table)
        if found is None:
            wrong[table] = [f"the re-run exited with {ran.code}"]
        else:
            changed = differences(world.reference[table]["state"], found["state"])
            wrong[table] = [*found["failures"], *found["failed_checks"], *found["wrong"], *changed]
        noted = "" if found is None else f"{found['noted']}"
        ended = "succeeded" if found is not None and not found["failures"] else "failed"
        seen = "equal" if not wrong[table] else "; ".join(wrong[table])[:300]
        waited = "LeaseTaken" if ran.refused else "no"
        add_row(TITLE, HEAD, (table.rpartition(".")[2], *died, ended, waited, f"{seen} {noted}"))
    assert not any(wrong.values()), (wrong, ran.said[-4000:])
    assert not ran.refused, ran.said[-4000:]


@pytest.mark.parametrize(
    ("table", "death"), DEATHS, ids=[f"{table.rpartition('.')[2]}-{death}" for table, death in DEATHS]
)
def test_a_walk_that_was_killed_in_a_step_ends_the_same_when_it_is_run_again(
    world: World, table: str, death: str
) -> None:
    with alone():
        world.put_back()
        note = world.home / "note"
        note.unlink(missing_ok=True)
        ran = world.walk((table,), die=death, note=note)
        assert ran.code == -signal.SIGKILL, ran.said[-4000:]
        assert note.exists(), f"it did not die as asked: {ran.said[-4000:]}"
        who, asset = death.split()[:2]
        again(world, (table,), (asset, note.read_text(), who))


@pytest.mark.parametrize("seed", range(3))
def test_a_walk_that_was_killed_at_any_time_ends_the_same_when_it_is_run_again(world: World, seed: int) -> None:
    dice = random.Random(seed)
    table = TABLES[seed % len(TABLES)]
    with alone():
        world.put_back()
        deaths = []
        # One in two is killed again while it goes on from the first death.
        for _ in range(1 + seed % 2):
            lasts = dice.uniform(0.1, 1) * float(world.reference[table]["seconds"])
            with world.in_flight((table,)):
                process = world.start("walk", table)
                try:
                    while "started" not in world.log.read_text() and process.poll() is None:
                        time.sleep(0.05)
                    time.sleep(lasts)
                finally:
                    if process.poll() is None:
                        kill_all(process.pid)
                    process.wait()
            events = world.log.read_text().splitlines()
            last = next((line.split()[1] for line in reversed(events) if " started " in line), "none")
            deaths.append(f"{lasts:.1f} s, in {last}")
        again(world, (table,), ("any", ", then ".join(deaths), "all"))
