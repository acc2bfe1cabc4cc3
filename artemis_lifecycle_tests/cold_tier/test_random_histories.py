"""The promise of the cold tier, on random pasts of real tables: after every handoff, with the live warehouse renamed
away, each archived snapshot has the rows that it had, under the schema that it had, by id and by instant.

The model is the live table itself: what Spark read of a snapshot while it was live. Each history is drawn from one
number, which a failure names; `ARTEMIS_SOAK` asks for more of them, `ARTEMIS_HISTORY` for one again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import InDeepArchive, NoSuchSnapshot
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.cold_tier.world import Print, World, fingerprint
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.people import approve_thaw
from artemis_lifecycle_tests.policies import AND_ARCHIVED

NIGHTS, COMMITS = 3, 5


def _seeds() -> list[int]:
    if "ARTEMIS_HISTORY" in os.environ:
        return [int(os.environ["ARTEMIS_HISTORY"])]
    # Not the same ones every time; the number of a failure repeats it.
    first = int(os.environ["ARTEMIS_SEED"])
    return [first + number for number in range(int(os.environ.get("ARTEMIS_SOAK", "1")))]


@dataclass
class History:
    """A table that changes at random, and what each of its snapshots read."""

    world: World
    lifecycle: Lifecycle
    chance: random.Random
    name: str
    columns: list[str] = field(default_factory=lambda: ["id", "kind", "note"])
    known: dict[int, Print] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    next_id: int = 0
    partitioned_by: str | None = None

    @property
    def table(self) -> str:
        return f"{self.world.live}.{self.name}"

    def create(self) -> None:
        version = self.chance.choice((1, 2, 2, 3, 4))
        kind = self.chance.choice(("parquet", "parquet", "orc", "avro"))
        mode = self.chance.choice(("merge-on-read", "copy-on-write")) if version > 1 else "copy-on-write"
        grain = self.chance.choice(("file", "partition"))
        by = self.chance.choice(("", "PARTITIONED BY (kind)", "PARTITIONED BY (bucket(2, id), kind)"))
        modes = ", ".join(f"'write.{what}.mode'='{mode}'" for what in ("delete", "update", "merge"))
        self.sql(
            f"CREATE TABLE {{t}} (id BIGINT, kind STRING, note STRING) USING iceberg {by} TBLPROPERTIES ("
            f"'format-version'='{version}', 'write.format.default'='{kind}', 'write.delete.granularity'='{grain}', "
            f"'write.distribution-mode'='none', {modes})"
        )
        self.insert()

    def sql(self, statement: str) -> None:
        self.done.append(statement)
        self.world.spark.sql(statement.format(t=self.table, live=self.world.live, name=self.name))

    def change(self) -> None:
        """One thing that people do to tables."""
        changes: list[tuple[int, Callable[[], None]]] = [
            (5, self.insert),
            (4, self.delete),
            (3, self.update),
            (2, self.replace),
            (2, self.evolve),
            (1, self.respec),
            (1, self.move_data),
            (1, self.compact),
            (1, self.rewrite_manifests),
            (1, self.roll_back),
            (1, self.upgrade),
            (2, self.name_it),
            (1, self.unname),
        ]
        self.chance.choices([work for _, work in changes], [weight for weight, _ in changes])[0]()

    def insert(self) -> None:
        start, number = self.next_id, self.chance.randint(1, 9)
        self.next_id += number
        odd = ("plain", "with space", "a/b", "ü–ß", "50%", "q?x=1#y", "../up")
        # A value that looks like one of the table's own paths is a value.
        path_like = f"{self.world.config.catalogs.live.warehouse}/{self.name}/data/x"
        rows = [
            f"({start + each}, '{self.chance.choice(odd)}', '{self.chance.choice((path_like, 'note', 'ö'))} {each}'"
            + ", NULL" * (len(self.columns) - 3)
            + ")"
            for each in range(number)
        ]
        self.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ * FROM VALUES {', '.join(rows)}")

    def delete(self) -> None:
        self.sql(f"DELETE FROM {{t}} WHERE id % {self.chance.randint(2, 5)} = {self.chance.randint(0, 1)}")

    def update(self) -> None:
        self.sql(f"UPDATE {{t}} SET {self.columns[2]} = 'changed' WHERE id % {self.chance.randint(2, 4)} = 0")

    def replace(self) -> None:
        values = ", ".join(["id + 1000", *self.columns[1:]])
        self.sql(f"INSERT OVERWRITE {{t}} SELECT /*+ COALESCE(1) */ {values} FROM {{t}} WHERE id % 2 = 1")

    def evolve(self) -> None:
        what = self.chance.choice(("add", "rename", "drop"))
        if what == "add" or len(self.columns) == 3:
            name = f"extra_{len(self.done)}"
            self.columns.append(name)
            self.sql(f"ALTER TABLE {{t}} ADD COLUMN {name} DOUBLE")
        elif what == "rename":
            before, after = self.columns[2], f"note_{len(self.done)}"
            self.columns[2] = after
            self.sql(f"ALTER TABLE {{t}} RENAME COLUMN {before} TO {after}")
        else:
            self.sql(f"ALTER TABLE {{t}} DROP COLUMN {self.columns.pop()}")

    def respec(self) -> None:
        if self.partitioned_by is None:
            self.partitioned_by = "truncate(3, kind)"
            self.sql(f"ALTER TABLE {{t}} ADD PARTITION FIELD {self.partitioned_by}")
        else:
            self.sql(f"ALTER TABLE {{t}} DROP PARTITION FIELD {self.partitioned_by}")
            self.partitioned_by = None

    def move_data(self) -> None:
        where = self.chance.choice(("/elsewhere", f"/{self.name.replace('.', '/')}/data two"))
        place = f"{self.world.config.catalogs.live.warehouse}{where}"
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.data.path'='{place}')")

    def compact(self) -> None:
        self.sql("CALL {live}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")

    def rewrite_manifests(self) -> None:
        self.sql("CALL {live}.system.rewrite_manifests(table => '{name}')")

    def roll_back(self) -> None:
        metadata = self.world.metadata(self.name)
        current = metadata.current_snapshot
        if current is not None and current.parent_snapshot_id in {s.snapshot_id for s in metadata.snapshots}:
            self.sql(f"CALL {{live}}.system.rollback_to_snapshot('{{name}}', {current.parent_snapshot_id})")

    def upgrade(self) -> None:
        version = self.world.metadata(self.name).format_version
        if version < 4:
            self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('format-version'='{version + 1}')")

    def name_it(self) -> None:
        self.sql(f"ALTER TABLE {{t}} CREATE TAG `tag {len(self.done)}`")

    def unname(self) -> None:
        """What only a tag kept expires late, and takes its place in the middle of the cold history."""
        tags = sorted(name for name, ref in self.world.metadata(self.name).refs.items() if not ref.is_branch)
        if tags:
            self.sql(f"ALTER TABLE {{t}} DROP TAG `{self.chance.choice(tags)}`")

    def record(self) -> None:
        """Read what is new, as it is while it is live."""
        for snapshot in self.world.metadata(self.name).snapshots:
            if snapshot.snapshot_id not in self.known:
                self.known[snapshot.snapshot_id] = fingerprint(self.world.rows("live", snapshot.snapshot_id, self.name))
                self.at[snapshot.snapshot_id] = snapshot.timestamp_ms


@pytest.mark.parametrize("seed", _seeds())
def test_every_archived_snapshot_has_its_rows(make_config: MakeConfig, spark: SparkSession, seed: int) -> None:
    config = make_config(defaults=AND_ARCHIVED, tables={"ns.*": {}})
    world, lifecycle = World(spark, config), Lifecycle.open(config, spark=spark)
    core_tables.sql(spark, f"CREATE NAMESPACE {world.live}.ns")
    history = History(world, lifecycle, random.Random(seed), "ns.t")
    print(f"ARTEMIS_HISTORY={seed}")
    history.create()
    for _ in range(NIGHTS):
        for _ in range(COMMITS):
            history.change()
            history.record()
        print("\n".join(history.done))
        plan = lifecycle.plan_expiration("ns.t")
        handed_off = lifecycle.hand_off(plan)
        assert handed_off.lost == () and set(handed_off.archived) == set(plan.expired_snapshots)
        lifecycle.commit_expiration(plan)
        assert lifecycle.delete_files(plan).failed == 0
        assert lifecycle.scan_orphans("ns.t").summary.orphan_files == 0
        archived = {snapshot.snapshot_id for snapshot in world.metadata("ns.t", tier="cold").snapshots}
        assert archived | set(world.ids("ns.t")) == set(history.known)
        with world.without_live():
            for snapshot_id in sorted(archived):
                assert fingerprint(world.rows("cold", snapshot_id, "ns.t")) == history.known[snapshot_id], snapshot_id
        _by_instant(history)
    # Past its retention, what only old snapshots read is in the archive; all others read on.
    lifecycle.deep_archive("ns.t")
    waiting: list[int] = []
    for snapshot_id in history.known:
        try:
            assert fingerprint(lifecycle.read("ns.t", snapshot_id=snapshot_id)) == history.known[snapshot_id]
        except InDeepArchive:
            waiting.append(snapshot_id)
    if waiting:
        thaw = lifecycle.request_thaw("ns.t", waiting, case_id="C", requester="Ann", reason="a test")
        approve_thaw(lifecycle, thaw.thaw_id)
        lifecycle.follow_thaw(thaw.thaw_id)
    for snapshot_id in waiting:
        assert fingerprint(lifecycle.read("ns.t", snapshot_id=snapshot_id)) == history.known[snapshot_id]
    assert lifecycle.scan_cold("ns.t").unknown_files == 0


def _by_instant(history: History) -> None:
    """The instant of a commit is answered by that commit, in whichever tier it is, rollbacks or not."""
    times = list(history.at.values())
    for snapshot_id, at in history.at.items():
        if times.count(at) > 1:
            continue
        try:
            route = history.lifecycle.route(history.name, as_of=datetime.fromtimestamp(at / 1000, UTC))
        except NoSuchSnapshot as error:
            raise AssertionError(f"{snapshot_id}, committed at {at}, is not found by its instant") from error
        assert route.snapshot_id == snapshot_id
