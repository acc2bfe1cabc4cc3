"""Death before and after every durable write of the whole walk, then the same command again: the same final state.

What is written is found out by recording an undisturbed run, and not listed by hand (`durable.Writes`). Between one
write and the next nothing may change, on the disk or in Postgres: so no write lacks a point. At every death each
snapshot of either tier reads its rows; what a deletion moves is at its path or in quarantine. One in two dies a second
time, somewhere on the way to its end.

`make test` takes a sample: every step, every kind of write, and some more; `$ARTEMIS_SEED`, which is printed, takes it
again. `make nightly` takes all.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.deletion.worker import DeletionSettings
from artemis_lifecycle.embedded.addresses import fill
from artemis_lifecycle.errors import NoSuchSnapshot
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.storage.local.store import LocalStore
from artemis_lifecycle.storage.stores import place_of
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import Killed
from artemis_lifecycle_tests.deletion.world import make_old
from artemis_lifecycle_tests.durable import When, Write, Writes
from artemis_lifecycle_tests.end_report import add_lines
from artemis_lifecycle_tests.integration.crash_world import (
    ARCHIVED,
    Disk,
    Saved,
    plain,
    rows_of,
    stamps,
    state_of,
    without_inodes,
)
from artemis_lifecycle_tests.people import approve_thaw
from artemis_lifecycle_tests.policies import AND_ARCHIVED

# Read before the fixture of the tests' conftest takes such variables away.
WHOLE = "ARTEMIS_SOAK" in os.environ
SEED = int(os.environ["ARTEMIS_SEED"])
MORE = 4
"""Deaths of the sample beyond one in each step and at each kind of write."""
WALKED_ON = 1
"""Deaths of the sample after which the whole rest of the walk is walked, too."""

CUT_SHORT = ("iceberg", "iceberg swap")
AN_HOUR = timedelta(hours=1)
POLICIES: dict[str, Any] = {
    "db.t": {},
    "db.q": {"cold_tier": {"enabled": False}, "deletion": {"grace": "0s", "mode": "quarantine"}},
}


@dataclass(frozen=True)
class Step:
    """A command of the lifecycle. `first` is what the world does before it; `over` is what the command may answer, run
    again, when all of it was done; `always` tells what must never be wrong, at the death itself."""

    name: str
    run: Callable[[Lifecycle], object]
    first: Callable[[Walk], object] = lambda walk: None
    over: tuple[type[Exception], ...] = ()
    always: Callable[[Walk], list[str]] = lambda walk: []


@dataclass(frozen=True)
class Recorded:
    """A step as it went undisturbed: the world before it, its writes, and the state after it."""

    step: Step
    before: Saved
    writes: list[Write]
    named: frozenset[str]
    rows: Mapping[str, set[str]]
    after: Mapping[str, Any]


Death = tuple[int, int, When]
"""Number of the step, number of its write, and when."""


@dataclass
class Walk:
    """The tables and their walk, step by step, each recorded."""

    config: LifecycleConfig
    spark: SparkSession
    disk: Disk
    known: set[int] = field(default_factory=set)
    recorded: list[Recorded] = field(default_factory=list)
    finally_read: dict[str, set[str]] = field(default_factory=dict)

    def opened(self) -> Lifecycle:
        return Lifecycle.open(self.config, spark=self.spark, owner="a worker")

    def folder(self, table: str) -> Path:
        return Path(plain(str(self.config.catalogs.live.warehouse)), *table.split("."))

    def prepare(self) -> None:
        """Table `t` of format 2 has deletes, another schema, a compaction, files that only its first snapshot has, and
        orphans; `q` goes to quarantine."""
        spark, live = self.spark, self.config.catalogs.live.name
        spark.sql(f"CREATE NAMESPACE {live}.db")
        rows = "SELECT /*+ COALESCE(1) */ id, 'p' || id % 2 FROM range"
        for name in ("t", "q"):
            spark.sql(
                f"CREATE TABLE {live}.db.{name} (id int, part string) USING iceberg PARTITIONED BY (part) "
                "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
            )
            spark.sql(f"INSERT INTO {live}.db.{name} {rows}(0, 4)")
            spark.sql(f"INSERT OVERWRITE {live}.db.{name} {rows}(4, 8)")
        table = f"{live}.db.t"
        spark.sql(f"INSERT INTO {table} {rows}(8, 10)")
        spark.sql(f"DELETE FROM {table} WHERE id = 5")
        spark.sql(f"ALTER TABLE {table} ADD COLUMN note string")
        spark.sql(f"INSERT INTO {table} VALUES (20, 'p0', 'new')")
        spark.sql(f"CALL {live}.system.rewrite_data_files(table => 'db.t', options => map('rewrite-all', 'true'))")
        self.know()
        for name in ("lost.parquet", "lost-too.parquet", ".lost.parquet.crc"):
            (self.folder("db.t") / "data" / name).write_bytes(b"nobody's")
        self.age()

    def know(self) -> None:
        with self.opened() as lifecycle:
            for table in POLICIES:
                self.known |= {each.snapshot_id for each in lifecycle.snapshot_history(table).snapshots}

    def age(self) -> None:
        """As after some hours in which nobody wrote."""
        for table in POLICIES:
            for path in self.folder(table).rglob("*"):
                if path.is_file():
                    make_old(path, AN_HOUR)

    def record(self, step: Step) -> None:
        step.first(self)
        before, rows = self.disk.save(), self.rows()
        with Writes(observe=self.disk.observe).watched() as seen, self.opened() as lifecycle:
            step.run(lifecycle)
        assert seen.stray == [], f"{step.name}: changes that no write explains"
        self.recorded.append(Recorded(step, before, seen.made, frozenset(seen.named), rows, self.state()))

    def state(self) -> dict[str, Any]:
        return state_of(self.disk, self.config, self.known)

    def rows(self) -> dict[str, set[str]]:
        return rows_of(self.disk, self.config, self.known)

    def die(self, death: Death, *, again: int | None = None, walk_on: bool = False) -> list[str]:
        """Die there and run the same command again; what is wrong then. `again` is the number of the write of the
        second run at which that dies, too, where it makes so many. With `walk_on` the rest of the walk follows."""
        place, number, when = death
        recorded = self.recorded[place]
        self.disk.put_back(recorded.before)
        writes = self._run_until(recorded.step, (number, when))
        # Files that are copied or thawed side by side come in any order: one of them it is.
        if not writes.dead or _kind(writes.made[number]) not in map(_kind, recorded.writes):
            return [f"it did not die at {recorded.writes[number]}, but at {writes.made[-1]}"]
        wrong = self._at_the_death(recorded)
        if when == "inside" and writes.made[number].kind == "iceberg swap":
            wrong += self._loose_metadata(recorded)
        if again is not None and self._run_until(recorded.step, (again, "before")).dead:
            wrong += self._at_the_death(recorded)
        with self.opened() as lifecycle, suppress(*recorded.step.over):
            recorded.step.run(lifecycle)
        wrong += differences(recorded.after, self.state())
        if walk_on and not wrong:
            for later in self.recorded[place + 1 :]:
                later.step.first(self)
                with self.opened() as lifecycle:
                    later.step.run(lifecycle)
            wrong = self._at_the_end()
        return wrong

    def _run_until(self, step: Step, die: tuple[int, When]) -> Writes:
        writes = Writes(die=die, undo_swap=self.disk.without_its_swap)
        with suppress(Killed, *step.over), writes.watched(), self.opened() as lifecycle:
            step.run(lifecycle)
        # What time does, or whoever sees that the process has ended.
        self.disk.execute("UPDATE lifecycle.leases SET expires_at = clock_timestamp() - interval '1 s'")
        return writes

    def _at_the_end(self) -> list[str]:
        """Of the whole walk, in which plans and new snapshots have other ids than in the recorded one."""
        wanted, found = self.recorded[-1].after, self.state()
        wrong = [key for key in wanted.keys() | found.keys() if len(wanted.get(key, ())) != len(found.get(key, ()))]
        wrong += [f"{key} is there {count} times" for key, count in found["rows of deletions"] if count > 1]
        wrong += [f"{plan} is not done" for plan in found["plans"] if plan[2] != "done"]
        wrong += [f"{job} is not finished" for job in found["jobs"] if job[-1] != "True"]
        rows = self.rows()
        wrong += [f"{key} reads {rows.get(key)}" for key, read in self.finally_read.items() if rows.get(key) != read]
        return [f"at the end of the walk: {each}" for each in wrong]

    def _at_the_death(self, recorded: Recorded) -> list[str]:
        """No snapshot is lost, and each reads its rows, in whichever tier it is."""
        now = self.rows()
        wrong = [
            f"at the death snapshot {snapshot} read {now.get(snapshot)}, and {read} before"
            for snapshot, read in recorded.rows.items()
            if not now.get(snapshot) or (ARCHIVED not in read and now[snapshot] - {ARCHIVED} - read)
        ]
        return wrong + recorded.step.always(self)

    def _loose_metadata(self, recorded: Recorded) -> list[str]:
        """The metadata file whose swap was cut short: an orphan scan names it, now, when its writer is over, or when
        the next commit shows that it never became the table's."""
        made = stamps(self.folder("db.t")).keys() - {
            os.path.relpath(self.disk.home / name, self.folder("db.t")) for name in recorded.before.stamps
        }
        with self.opened() as lifecycle:
            scan = lifecycle.scan_orphans("db.t")
            named = {
                os.path.relpath(plain(row["path"]), self.folder("db.t"))
                for row in scan.unreferenced().collect()
                if row["verdict"] in ("orphan", "in_flight", "commit_attempt")
            }
        self.disk.execute(f"DELETE FROM lifecycle.scans WHERE scan_id = '{scan.scan_id}'")
        loose = {name for name in made if "metadata.json" in name}
        return [] if loose and loose <= named else [f"no orphan scan names {loose - named or 'any'} of {sorted(made)}"]


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    said = []
    for key in sorted(wanted.keys() | found.keys()):
        one, other = wanted.get(key), found.get(key)
        if one != other and isinstance(one, list) and isinstance(other, list):
            lost, more = [each for each in one if each not in other], [each for each in other if each not in one]
            said.append(f"{key}: missing {lost[:3]}, too many {more[:3]}")
        elif one != other:
            said.append(f"{key}: {one} became {other}")
    return said


def _plan_of(lifecycle: Lifecycle, table: str) -> str:
    return lifecycle.plans(table)[0].plan_id


def _scan_of(lifecycle: Lifecycle) -> str:
    [newest, *_] = lifecycle.operations.scans.of_table(lifecycle.snapshot_history("db.t").table_uuid)
    return newest.scan_id


def _restore(lifecycle: Lifecycle) -> object:
    cold = lifecycle.cold_metadata("db.t")
    assert cold is not None
    return lifecycle.restore("db.t", cold.snapshots[-1].snapshot_id, "back", who="ann", why="case 7")


def _alive_again(walk: Walk) -> None:
    """A writer commits a doomed file again: it is kept."""
    live = walk.config.catalogs.live.name
    with walk.opened() as lifecycle:
        doomed = lifecycle.plan(_plan_of(lifecycle, "db.t")).files().where("kind = 'data'").collect()
    file = max(doomed, key=lambda row: Path(plain(row["path"])).name)
    jvm: Any = walk.spark._jvm
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(walk.spark._jsparkSession, f"{live}.db.t")  # type: ignore[attr-defined]
    again = (
        jvm.org.apache.iceberg.DataFiles.builder(table.spec())
        .withPath(file["path"])
        .withFormat("parquet")
        .withFileSizeInBytes(file["size_in_bytes"])
        .withRecordCount(1)
        .withPartitionPath(Path(file["path"]).parent.name)
        .build()
    )
    table.newAppend().appendFile(again).commit()
    walk.age()


def _committed(walk: Walk) -> None:
    with walk.opened() as lifecycle:
        plan = lifecycle.plan_expiration("db.q")
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)


def _moved(walk: Walk) -> list[str]:
    """What is deleted is at its path or in quarantine, whole."""
    wrong = []
    with walk.opened() as lifecycle:
        plan = lifecycle.plan(_plan_of(lifecycle, "db.q"))
        folder = f"{walk.config.quarantine.root}/{plan.table_uuid}/{plan.plan_id}"
        for row in plan.files().collect():
            places = [Path(plain(path)) for path in (row["path"], place_of(folder, row["path"]))]
            if {path.stat().st_size for path in places if path.exists()} != {row["size_in_bytes"]}:
                wrong.append(f"{row['path']} is neither at its path nor in quarantine, or not whole")
    return wrong


def _retained(walk: Walk) -> None:
    walk.disk.execute("UPDATE lifecycle.quarantines SET purge_after = clock_timestamp() - interval '1 s'")


def _requested(walk: Walk) -> None:
    with walk.opened() as lifecycle:
        uuid = lifecycle.snapshot_history("db.t").table_uuid
        deep = lifecycle.operations.deep_moves.snapshots(uuid)
        lifecycle.request_thaw("db.t", sorted(deep), case_id="9", requester="ann", reason="the audit")


def _thaw(lifecycle: Lifecycle) -> str:
    [asked] = lifecycle.thaws("db.t")
    return asked.thaw_id


def _tag(lifecycle: Lifecycle) -> object:
    return lifecycle.tag("db.t", "audit", lifecycle.snapshot_history("db.t").snapshots[2].snapshot_id, who="ann")


STEPS = [
    Step("tag", _tag),
    Step("lineage", lambda it: it.record_lineage("db.t")),
    Step("plan", lambda it: it.plan_expiration("db.t")),
    Step("handoff", lambda it: it.hand_off(_plan_of(it, "db.t"))),
    Step("commit", lambda it: it.commit_expiration(_plan_of(it, "db.t"))),
    Step("deletion", lambda it: it.delete_files(_plan_of(it, "db.t")), _alive_again),
    Step("orphan scan", lambda it: it.scan_orphans("db.t")),
    Step("orphan deletion", lambda it: it.delete_orphans(_scan_of(it))),
    Step("restore", _restore),
    Step("untag", lambda it: it.untag("db.t", "audit", who="ann", why="done"), over=(NoSuchSnapshot,)),
    Step("deep archive", lambda it: it.deep_archive("db.t")),
    Step("thaw approval", lambda it: approve_thaw(it, _thaw(it)), _requested),
    Step("thaw", lambda it: it.follow_thaw(_thaw(it))),
    Step("quarantine", lambda it: it.delete_files(_plan_of(it, "db.q")), _committed, always=_moved),
    Step("undelete", lambda it: it.undelete(_plan_of(it, "db.q"), who="ann", why="case 8"), always=_moved),
    Step("close", lambda it: it.close_plan(_plan_of(it, "db.q"), who="ann", why="seen")),
    Step("purge", lambda it: it.purge_quarantine("db.q"), _retained),
]


def _kind(write: Write) -> tuple[str, str]:
    return write.kind, write.where


@pytest.fixture(scope="module")
def walk(
    module_configs: MakeConfig, spark: SparkSession, postgres_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Walk]:
    config = fill(module_configs(defaults=AND_ARCHIVED, tables=POLICIES))
    uri = postgres_uri.replace("postgresql+psycopg2", "postgresql")
    Operations.open(postgres_uri).close()  # A death is put back row by row, into tables that exist.
    made = Walk(config, spark, Disk(config.home, uri, tmp_path_factory.mktemp("saved")))
    with pytest.MonkeyPatch.context() as patch:
        # A deletion of more than one batch.
        settings = partial(DeletionSettings, files_per_batch=5)
        patch.setattr("artemis_lifecycle.walk.deletion.DeletionSettings", settings)
        without_inodes(patch)
        made.prepare()
        yield made


def deaths(walk: Walk) -> tuple[list[Death], set[Death]]:
    """Where to die; and after which of them to walk on.

    A death after a write finds what one before the next does, for nothing changes in between: the whole matrix dies
    once for both, and the sample at either.
    """
    every: list[Death] = []
    kinds: dict[tuple[int, str, bool], list[Death]] = {}
    for place, recorded in enumerate(walk.recorded):
        for number, write in enumerate(recorded.writes):
            last = number == len(recorded.writes) - 1
            # Inside Iceberg's write its files are there, and its swap is not.
            inside: tuple[When, ...] = ("inside",) if write.kind in CUT_SHORT else ()
            after: tuple[When, ...] = ("after",) if last or not WHOLE else ()
            for when in ("before", *inside, *after):
                every.append((place, number, when))
                kinds.setdefault((place, write.kind, when == "inside"), []).append((place, number, when))
    dice = random.Random(SEED)
    chosen = every if WHOLE else sorted(_sample(kinds, dice))
    further = [each for each in chosen if each[2] != "inside"]
    return chosen, set(dice.sample(further, len(STEPS) if WHOLE else WALKED_ON))


def _sample(kinds: Mapping[tuple[int, str, bool], list[Death]], dice: random.Random) -> set[Death]:
    """A death in each step, at each kind of write and inside those that can be cut short; `MORE` of the others."""
    seen: set[object] = set()
    rest, chosen = [], set()
    for place, kind, inside in dice.sample(sorted(kinds), len(kinds)):
        death = dice.choice(kinds[place, kind, inside])
        if {place, (kind, inside)} <= seen:
            rest.append(death)
        else:
            seen |= {place, (kind, inside)}
            chosen.add(death)
    return chosen | set(rest[:MORE])


def reported(walk: Walk, died: Counter[int], further: int, seconds: float) -> Iterator[str]:
    """The counts, by step."""
    all_points = all_writes = 0
    for place, recorded in enumerate(walk.recorded):
        kinds = Counter(write.kind for write in recorded.writes)
        points = sum(3 if write.kind in CUT_SHORT else 2 for write in recorded.writes)
        all_writes, all_points = all_writes + len(recorded.writes), all_points + points
        yield (
            f"{recorded.step.name:16} {len(recorded.writes):4} writes  {points:4} points  {died[place]:4} died at"
            f"  {len(recorded.named):3} named   {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}"
        )
    yield (
        f"{'all':16} {all_writes:4} writes  {all_points:4} points  {died.total():4} died at  "
        f"(after {further} of them the rest of the walk; {seconds:.0f} s; ARTEMIS_SEED={SEED})"
    )


@pytest.mark.timeout(0 if WHOLE else 1800)
def test_dying_at_any_durable_write_the_same_command_ends_in_the_same_state(walk: Walk) -> None:
    began = time.monotonic()
    for step in STEPS:
        walk.record(step)
    walk.finally_read = walk.rows()
    chosen, further = deaths(walk)
    dice, died = random.Random(SEED), Counter[int]()
    wrong: dict[str, list[str]] = {}
    for death in chosen:
        place, number, when = death
        recorded = walk.recorded[place]
        # One in two dies once more while it goes on.
        again = dice.randrange(len(recorded.writes)) if dice.random() < 0.5 else None
        found = walk.die(death, again=again, walk_on=death in further)
        died[place] += 1
        if found:
            wrong[f"{recorded.step.name}, {when} {number} (again at {again}): {recorded.writes[number]}"] = found
    title = f"death at the durable writes of the walk ({'all' if WHOLE else 'a sample'})"
    add_lines(title, reported(walk, died, len(further), time.monotonic() - began))
    assert not wrong, "\n".join(f"{where}\n    {'; '.join(each)[:2000]}" for where, each in wrong.items())


def test_a_change_that_no_write_explains_is_noticed(tmp_path: Path) -> None:
    store = LocalStore()
    with Writes(observe=lambda: stamps(tmp_path)).watched() as seen:
        store.write(f"{tmp_path}/a", b"1", overwrite=False, storage_class=None)
        (tmp_path / "b").write_bytes(b"2")
        store.write(f"{tmp_path}/c", b"3", overwrite=False, storage_class=None)
    assert [write.changed for write in seen.made] == [True, True]
    assert len(seen.stray) == 1 and f"{tmp_path}/a" in seen.stray[0] and f"{tmp_path}/c" in seen.stray[0]
