"""Two machines run everything at once on the same tables, while a writer commits: no work is done twice, nothing that
either meets needs a person, and every snapshot reads its rows.

Each machine is a process with a session of Spark of its own; what they share is one Postgres and the warehouse.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Operation
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import lifecycle_conf, pyiceberg_properties
from artemis_lifecycle.cold_tier.ledger import COPIED, REWRITTEN, handoff_ledger
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import ICEBERG, POSTGRES, resolve
from artemis_lifecycle.errors import Busy, PlanStateError, StalePlan
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle_tests.conftest import REPOSITORY, MakeConfig
from artemis_lifecycle_tests.end_report import add_lines
from artemis_lifecycle_tests.integration.crash_world import plain
from artemis_lifecycle_tests.policies import AT_ONCE

# Read before the fixture of the tests' conftest takes such variables away.
STEPS = 8 if "ARTEMIS_SOAK" not in os.environ else 300
"""How many steps each machine has to bring to a good end."""
# A machine loads this module as well, and gets its own.
SEED = int(os.environ.get("ARTEMIS_SEED", "0"))
TABLES = ("db.a", "db.b")

TRY_LATER = (Busy, PlanStateError, StalePlan)
"""What the other one's work is met with: its lease or lock (Busy, LeaseTaken, LeaseLost), its commit (CommitConflict);
a plan that it superseded, or took a step further (PlanStateError); a table that it changed since the plan (StalePlan).
The next round plans again, or finds the work done."""


# --- a machine -------------------------------------------------------------------------------------------------------


def _hand_off(lifecycle: Lifecycle, table: str) -> None:
    plan = lifecycle.uncommitted_plan(table)
    if plan is not None:
        lifecycle.hand_off(plan)


def _commit(lifecycle: Lifecycle, table: str) -> None:
    plan = lifecycle.uncommitted_plan(table)
    if plan is not None:
        lifecycle.commit_expiration(plan)


def _delete(lifecycle: Lifecycle, table: str) -> None:
    for record in lifecycle.due_plans(table):
        lifecycle.delete_files(record.plan_id)


def _delete_orphans(lifecycle: Lifecycle, table: str) -> None:
    scan = lifecycle.latest_scan(table)
    if scan is not None:
        lifecycle.delete_orphans(scan)


WORK: Mapping[str, Callable[[Lifecycle, str], object]] = {
    "plan": Lifecycle.plan_expiration,
    "handoff": _hand_off,
    "commit": _commit,
    "deletion": _delete,
    "expire": Lifecycle.expire,
    "orphan scan": Lifecycle.scan_orphans,
    "orphan deletion": _delete_orphans,
    "compaction": Lifecycle.compact_data_files,
    "manifests": Lifecycle.compact_manifests,
    "lineage": Lifecycle.record_lineage,
}


@dataclass
class Done:
    """What a machine did: steps that ended well, and what the others ended with."""

    steps: Counter[str] = field(default_factory=Counter)
    errors: list[tuple[str, str, str, bool]] = field(default_factory=list)
    """(step, kind, words, whether it is one of TRY_LATER)"""


def _machine(config: LifecycleConfig, name: str, seed: int, pipe: Connection, ended: Any) -> None:
    """Steps in a random order on random tables, until a line is read; then reports what was done. `ended` counts."""
    jars = resolve(REPOSITORY / ".artemis", (ICEBERG, POSTGRES))
    conf = session_conf(config, lifecycle_conf(config), jars)
    conf |= {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g", "spark.master": "local[1]"}
    conf["spark.driver.extraJavaOptions"] += " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    dice, done = random.Random(f"{seed} {name}"), Done()
    spark = open_session(conf)
    with Lifecycle.open(config, spark=spark, owner=name) as lifecycle:
        pipe.send("ready")
        pipe.recv()
        while not pipe.poll():
            step, table = dice.choice(list(WORK)), dice.choice(TABLES)
            try:
                WORK[step](lifecycle, table)
                done.steps[step] += 1
                ended.value += 1
            except Exception as error:
                done.errors.append((step, type(error).__name__, str(error), isinstance(error, TRY_LATER)))
    pipe.send(done)
    spark.stop()


@contextmanager
def _machines(config: LifecycleConfig) -> Iterator[tuple[Callable[[], bool], Callable[[], list[Done]]]]:
    """Two of them, at work until what the block is given is called: the first says whether both did their part, the
    second ends them."""
    context = multiprocessing.get_context("spawn")
    pipes, processes, counts = [], [], []
    try:
        for name in ("one", "two"):
            here, there = context.Pipe()
            counts.append(context.Value("i", 0))
            process = context.Process(target=_machine, args=(config, name, SEED, there, counts[-1]))
            process.start()
            pipes.append(here)
            processes.append(process)
        for pipe in pipes:
            assert pipe.poll(300) and pipe.recv() == "ready"
        for pipe in pipes:
            pipe.send("go")

        def end() -> list[Done]:
            for pipe in pipes:
                pipe.send("enough")
            found = []
            for pipe in pipes:
                assert pipe.poll(300), "a machine does not come to its end"
                found.append(pipe.recv())
            return found

        yield (lambda: min(count.value for count in counts) >= STEPS), end
    finally:
        for process in processes:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()


# --- the writer ------------------------------------------------------------------------------------------------------


@dataclass
class Writer:
    """Commits with pyiceberg, each time under a heartbeat, as writers do whose files an orphan scan must not take; what
    its snapshots read is on record. Now and then it leaves files that nobody has."""

    lifecycle: Lifecycle
    catalog: Catalog
    read: dict[int, list[int]] = field(default_factory=dict)
    rows: dict[str, set[int]] = field(default_factory=lambda: {table: set() for table in TABLES})
    lost_races: int = 0
    litter: list[Path] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))

    def write(self, name: str, dice: random.Random) -> None:
        new = {next(self._ids) for _ in range(3)}
        gone = (
            set(dice.sample(sorted(self.rows[name]), 2)) if len(self.rows[name]) > 8 and dice.random() < 0.3 else set()
        )
        with suppress(Busy), self.lifecycle.writing(name, "ingest"):
            while True:
                table = self.catalog.load_table(name)
                try:
                    if gone:
                        table.delete(f"id in ({', '.join(map(str, sorted(gone)))})")
                    else:
                        table.append(pa.table({"id": pa.array(sorted(new), pa.int32())}))
                    break
                except (CommitFailedException, ValidationException):
                    # A compaction's commit came first; of a delete pyiceberg says that its files are gone.
                    self.lost_races += 1
            self.rows[name] = self.rows[name] - gone if gone else self.rows[name] | new
            snapshot = table.current_snapshot()
            assert snapshot is not None
            self.read[snapshot.snapshot_id] = sorted(self.rows[name])
        if dice.random() < 0.2:
            path = Path(plain(table.location()), "data", f"lost-{len(self.litter)}.parquet")
            path.write_bytes(b"nobody's")
            self.litter.append(path)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_two_machines_do_everything_at_once(make_config: MakeConfig, spark: SparkSession) -> None:
    config = make_config(defaults=AT_ONCE, tables={"db.*": {}})
    live = config.catalogs.live
    spark.sql(f"CREATE NAMESPACE {live.name}.db")
    for table in TABLES:
        spark.sql(f"CREATE TABLE {live.name}.{table} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    dice = random.Random(SEED)
    with Lifecycle.open(config, spark=spark, owner="afterwards") as lifecycle:
        writer = Writer(lifecycle, load_catalog(live.name, **pyiceberg_properties(live)))
        for table in TABLES:
            writer.write(table, dice)
        with _machines(config) as (did_their_part, end):
            began = time.monotonic()
            while not did_their_part():
                writer.write(dice.choice(TABLES), dice)
                time.sleep(dice.random())
            seconds, done = time.monotonic() - began, end()
        met = [error for each in done for error in each.errors]
        steps = sum((each.steps for each in done), Counter[str]())
        add_lines(
            f"two machines, {seconds:.0f} s (ARTEMIS_SEED={SEED}), {len(writer.read)} commits of a writer",
            (
                f"done: {', '.join(f'{count} {step}' for step, count in sorted(steps.items()))}",
                f"met: {', '.join(f'{count} {kind}' for kind, count in Counter(each[1] for each in met).items())}",
            ),
        )
        assert [error for error in met if not error[3]] == []
        _nothing_twice(lifecycle)
        for table in TABLES:
            _come_to_rest(lifecycle, table)
        _nothing_twice(lifecycle)
        _nothing_open(lifecycle)
        _every_snapshot_reads(lifecycle, writer)
        assert not [path for path in writer.litter if path.exists()]


def _come_to_rest(lifecycle: Lifecycle, table: str) -> None:
    """What the next night does, without a person."""
    _delete(lifecycle, table)
    for scan in lifecycle.interrupted_scans(table):
        lifecycle.delete_orphans(scan.scan_id)
    assert lifecycle.expire(table).failed == 0
    assert lifecycle.delete_orphans(lifecycle.scan_orphans(table)).failed == 0


def _nothing_twice(lifecycle: Lifecycle) -> None:
    """Each file has one outcome, and went once; each batch was taken once; each file was copied once."""
    live = lifecycle.config.catalogs.live.name
    lifecycle.publish_results()
    outcomes = lifecycle.spark.table(f"{live}.lifecycle.deletions").select("job_id", "path", "outcome").collect()
    each = Counter((row["job_id"], plain(row["path"])) for row in outcomes)
    assert [key for key, count in each.items() if count > 1] == []
    gone = Counter(plain(row["path"]) for row in outcomes if row["outcome"] in ("deleted", "absent"))
    assert [path for path, count in gone.items() if count > 1] == []
    with lifecycle.operations.engine.connect() as connection:
        for batches in ("batches", "handoff_batches"):
            again = connection.execute(text(f"SELECT * FROM lifecycle.{batches} WHERE attempts > 1")).all()
            assert again == [], batches
    for table in TABLES:
        uuid = lifecycle.snapshot_history(table).table_uuid
        copies = handoff_ledger(lifecycle.live_stores, lifecycle.root, uuid).files(Runner(lifecycle.spark)).table()
        sent = Counter(row["destination"] for row in copies.to_pylist() if row["action"] in (COPIED, REWRITTEN))
        assert [path for path, count in sent.items() if count > 1] == []


def _nothing_open(lifecycle: Lifecycle) -> None:
    over = {PlanStatus.DONE, PlanStatus.SUPERSEDED}
    for table in TABLES:
        assert {record.status for record in lifecycle.plans(table)} <= over
        uuid = lifecycle.snapshot_history(table).table_uuid
        assert not lifecycle.operations.scans.of_table(uuid, [ScanState.DELETING])
        assert not lifecycle.operations.leases.live(uuid)
    with lifecycle.operations.engine.connect() as connection:
        assert connection.execute(text("SELECT * FROM lifecycle.steps WHERE state = 'running'")).all() == []
        assert connection.execute(text("SELECT * FROM lifecycle.jobs WHERE finished_at IS NULL")).all() == []
        assert connection.execute(text("SELECT * FROM lifecycle.batches WHERE state <> 'done'")).all() == []


def _every_snapshot_reads(lifecycle: Lifecycle, writer: Writer) -> None:
    """What the writer committed is in one tier or the other, with its rows; what compactions made of it has the rows of
    what they compacted."""
    read: dict[int, list[int]] = {}
    for table in TABLES:
        cold = lifecycle.cold_metadata(table)
        assert cold is not None
        for location in (lifecycle.snapshot_history(table).metadata_location, cold.metadata_location):
            loaded: Any = StaticTable.from_metadata(location)
            for each in loaded.metadata.snapshots:
                rows = sorted(loaded.scan(snapshot_id=each.snapshot_id).to_arrow().column("id").to_pylist())
                assert read.setdefault(each.snapshot_id, rows) == rows
                # A delete of pyiceberg's may be two snapshots, of which only the second is on record.
                compacted = each.summary is not None and each.summary.operation is Operation.REPLACE
                made = each.parent_snapshot_id if compacted else each.snapshot_id
                if made in writer.read:
                    assert rows == writer.read[made]
    assert writer.read.keys() <= read.keys()
