"""A catalog comes back from a backup while the archive is ahead, and is then written to: what was archived and what is
written since never share a number, no row comes twice or with another's values, and every instant has one answer."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Connection, text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.sql import publish
from artemis_lifecycle.cold_tier.cold_metadata import line_of
from artemis_lifecycle.cold_tier.evolution import clashing_fields
from artemis_lifecycle.errors import HandoffFailed, LifecycleError, NoSuchSnapshot, RestoreFailed, UnreadableMetadata
from artemis_lifecycle.metadata.lines import Line, Relation, relate
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import killed_at, lapse
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.foreign import expire_in_metadata
from artemis_lifecycle_tests.upkeep.equality_deletes import delete_by_equality

Rows = list[tuple[Any, ...]]


@dataclass
class Place:
    """One table. `at` has, for each of its states, an instant at which it was current and its snapshot."""

    lifecycle: Lifecycle
    name: str
    at: list[tuple[datetime, int]] = field(default_factory=list)

    @property
    def table(self) -> str:
        return f"db.{self.name}"

    @property
    def qualified(self) -> str:
        return f"{self.lifecycle.config.catalogs.live.name}.{self.table}"

    @property
    def metadata(self) -> TableMetadata:
        return self.lifecycle.steps.table_state(self.table).metadata

    @property
    def relation(self) -> Relation:
        cold = self.lifecycle.cold_tables(self.metadata.table_uuid)
        assert cold is not None
        return relate(Line.of(self.metadata), line_of(cold.newest.metadata))

    def run(self, *statements: str) -> int:
        for statement in statements:
            core_tables.sql(self.lifecycle.spark, statement.format(t=self.qualified))
        snapshot_id = self.metadata.current_snapshot_id
        assert snapshot_id is not None
        self.at.append((datetime.now(UTC), snapshot_id))
        return snapshot_id

    def rows(self, what: str = "*", of: str = "") -> Rows:
        version = f"VERSION AS OF '{of}'" if of else ""
        self.refresh()
        return sorted(
            tuple(row) for row in self.lifecycle.spark.sql(f"SELECT {what} FROM {self.qualified} {version}").collect()
        )

    def refresh(self) -> None:
        self.lifecycle.spark.catalog.refreshTable(self.qualified)

    def archive(self) -> None:
        """All but the current snapshot, which stay on the disk for now."""
        plan = self.lifecycle.plan_expiration(self.table)
        self.lifecycle.hand_off(plan)
        self.lifecycle.commit_expiration(plan)
        self.refresh()

    def put_back(self, location: str) -> None:
        # Nobody knows how long the last state of the lost line was current.
        self.at = [(instant, snapshot_id) for instant, snapshot_id in self.at if snapshot_id != self.at[-1][1]]
        put_back(self.lifecycle, self.table, location)
        self.refresh()

    def delete_by_equality(self, column: str, *values: int, branch: str | None = None) -> None:
        spark: Any = self.lifecycle.spark
        table = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, self.qualified)
        table.refresh()
        delete_by_equality(spark, table, column, values)
        self.refresh()

    def require_one_answer(self) -> None:
        """`snapshot_at` and reads never differ, and what they answer for a recorded instant was current then."""
        moments = {entry.timestamp_ms for entry in self.metadata.snapshot_log}
        cold = self.lifecycle.cold_tables(self.metadata.table_uuid)
        moments |= set() if cold is None else {entry.timestamp_ms for entry in cold.newest.metadata.snapshot_log}
        instants = [datetime.fromtimestamp((each + by) / 1000, UTC) for each in moments for by in (-1, 0, 1)]
        for instant in [*instants, *(instant for instant, _ in self.at), datetime.now(UTC)]:
            assert_one_answer(self.lifecycle, self.table, instant)
        for instant, snapshot_id in self.at:
            assert self.lifecycle.snapshot_at(self.table, instant) == snapshot_id


@contextmanager
def unguarded(connection: Connection) -> Iterator[None]:
    """As a superuser's restore writes the cold catalog's rows."""
    connection.execute(text("ALTER TABLE iceberg_tables DISABLE TRIGGER artemis_cold"))
    yield
    connection.execute(text("ALTER TABLE iceberg_tables ENABLE ALWAYS TRIGGER artemis_cold"))


def put_back(lifecycle: Lifecycle, table: str, location: str) -> None:
    """The catalog has an older metadata file of the table, as from a backup."""
    entry = lifecycle.resources.live_catalog.entry(table)
    with lifecycle.operations.engine.begin() as connection:
        publish(
            connection,
            entry.catalog,
            entry.identifier,
            expected_location=entry.metadata_location,
            new_location=location,
        )


def assert_one_answer(lifecycle: Lifecycle, table: str, instant: datetime) -> None:
    try:
        said: int | None = lifecycle.snapshot_at(table, instant)
    except NoSuchSnapshot:
        said = None
    try:
        found = lifecycle.route(table, as_of=instant).snapshot_id
    except NoSuchSnapshot as error:
        named = re.search(r"snapshot (\d+) was current then", error.what)
        found = None if named is None else int(named[1])
    assert found == said, instant


@pytest.fixture(scope="module")
def opened(module_configs: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    patient = {**AT_ONCE, "deletion": {"grace": "7d"}}
    with open_lifecycle(module_configs(defaults=patient, tables={"db.*": {}}), spark=spark) as lifecycle:
        core_tables.sql(spark, f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.db")
        yield lifecycle


@pytest.fixture
def make(opened: Lifecycle) -> Callable[..., Place]:
    def made(name: str, version: int, columns: str = "id int, a int") -> Place:
        place = Place(opened, name)
        core_tables.sql(
            opened.spark,
            f"CREATE TABLE {place.qualified} ({columns}) USING iceberg TBLPROPERTIES ('format-version'='{version}', "
            "'write.delete.mode'='merge-on-read')",
        )
        return place

    return made


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_restore_into_a_table_that_was_put_back_goes_on_above_all_that_the_archive_used(
    make: Callable[..., Place], version: int
) -> None:
    place = make(f"behind_{version}", version)
    first = place.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 1), (2, 2), (3, 3)")
    backup = place.metadata.metadata_location
    place.run("ALTER TABLE {t} ADD COLUMN lost int", "INSERT INTO {t} VALUES (4, 4, 44), (5, 5, 55)")
    deleted = place.run("DELETE FROM {t} WHERE id = 1")
    expected = place.rows()
    place.run("INSERT INTO {t} VALUES (6, 6, 66)")
    place.archive()
    lost = place.metadata
    place.put_back(backup)
    assert place.relation is Relation.BEHIND
    # No number is given out by this.
    assert place.run("ALTER TABLE {t} SET TBLPROPERTIES ('note' = 'x')") == first
    assert place.relation is Relation.BEHIND
    place.require_one_answer()
    assert [tuple(row) for row in place.lifecycle.read(place.table, as_of=datetime.now(UTC)).collect()] == place.rows()

    done = place.lifecycle.restore(place.table, branch="back", as_of=place.at[2][0])
    assert done.source_snapshot_id == deleted and done.numbered_anew is not None
    assert place.rows("id, a", of="back") == [row[:2] for row in expected]
    named = place.lifecycle.spark.read.option("versionAsOf", done.snapshot_id).table(place.qualified)
    assert sorted(tuple(row) for row in named.collect()) == expected
    now = place.metadata
    assert now.last_sequence_number > lost.last_sequence_number and now.last_column_id >= lost.last_column_id
    assert (now.next_row_id or 0) >= (lost.next_row_id or 0)
    assert max(now.schemas) >= max(lost.schemas)
    # Deletes of both kinds apply to what was restored, and a new column has no lost one's values.
    place.run("ALTER TABLE {t} ADD COLUMN fresh int", "DELETE FROM {t}.branch_back WHERE id = 5")
    assert place.rows("id, fresh", of="back") == [(2, None), (3, None), (4, None)]
    place.run("INSERT INTO {t} VALUES (7, 7, 77), (8, 8, 88)")
    if version == 3:
        main, back = place.rows("_row_id, id"), place.rows("_row_id, id", of="back")
        owners: dict[int, int] = {}
        for row_id, row in main + back:
            assert owners.setdefault(row_id, row) == row
    # Its commits are archived like any others, and the archive still has the lost ones.
    assert place.relation is Relation.AHEAD
    place.run("INSERT INTO {t} VALUES (9, 9, 99)")
    place.archive()
    place.run("INSERT INTO {t} VALUES (10, 10, 110)")
    place.archive()
    place.require_one_answer()
    assert sorted(tuple(row) for row in place.lifecycle.read(place.table, snapshot_id=deleted).collect()) == expected


def test_an_equality_delete_on_a_restored_branch_applies_to_its_rows(make: Callable[..., Place]) -> None:
    place = make("equality", 2)
    place.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 1)")
    backup = place.metadata.metadata_location
    for number in (2, 3):
        wanted = place.run(f"INSERT INTO {{t}} VALUES ({number}, {number})")
    place.run("INSERT INTO {t} VALUES (4, 4)")
    place.archive()
    place.put_back(backup)
    place.lifecycle.restore(place.table, wanted, "back")
    live = place.lifecycle.config.catalogs.live.name
    place.run(f"CALL {live}.system.set_current_snapshot(table => '{place.table}', ref => 'back')")
    assert place.rows("id") == [(1,), (2,), (3,)]
    place.delete_by_equality("id", 3)
    assert place.rows("id") == [(1,), (2,)]
    place.at.append((datetime.now(UTC), place.metadata.current_snapshot_id or 0))
    # What was made current has no parent, and nothing is missing before it.
    for _ in range(2):
        place.require_one_answer()
        place.archive()
        place.run("INSERT INTO {t} VALUES (5, 5)")


def test_no_instant_of_a_lost_line_is_answered_with_an_older_snapshot(make: Callable[..., Place]) -> None:
    place = make("seen", 2)
    place.run("INSERT INTO {t} VALUES (1, 1)")
    backup = place.metadata.metadata_location
    place.run("INSERT INTO {t} VALUES (2, 2)")
    last = place.run("INSERT INTO {t} VALUES (3, 3)")
    time.sleep(0.05)
    seen = datetime.now(UTC)
    place.archive()
    place.put_back(backup)
    lost = datetime.now(UTC)
    history = Path(place.lifecycle.resources.root.removeprefix("file://")) / "history" / place.metadata.table_uuid
    for _ in range(2):  # Then by the archive alone.
        with pytest.raises(NoSuchSnapshot, match=f"snapshot {last} was current then"):
            place.lifecycle.route(place.table, as_of=seen)
        shutil.rmtree(history, ignore_errors=True)
    place.require_one_answer()
    place.run("INSERT INTO {t} VALUES (4, 4)")
    for ask in (place.lifecycle.read, place.lifecycle.snapshot_at):
        with pytest.raises(NoSuchSnapshot, match=f"Nobody saw .* last saw snapshot {last}"):
            ask(place.table, lost)
    place.require_one_answer()


@pytest.mark.parametrize("look", ["nothing to expire", "a plan", "a handoff"])
def test_a_plan_is_a_look_at_what_was_current(make: Callable[..., Place], look: str) -> None:
    place = make(f"look_{look.replace(' ', '_')}", 2)
    place.run("INSERT INTO {t} VALUES (1, 1)", "INSERT INTO {t} VALUES (2, 2)")
    backup = place.metadata.metadata_location
    place.run("INSERT INTO {t} VALUES (3, 3)")
    place.archive()
    place.run("INSERT INTO {t} VALUES (4, 4)")
    if look == "nothing to expire":
        ids = [snapshot.snapshot_id for snapshot in place.metadata.snapshots]
        place.lifecycle.hold(place.table, "ada", "a case", ids)
    time.sleep(0.05)
    seen = datetime.now(UTC)
    plan = place.lifecycle.plan_expiration(place.table)
    assert bool(plan.expired_snapshots) == (look != "nothing to expire")
    if look == "a handoff":
        place.lifecycle.hand_off(plan)
    put_back(place.lifecycle, place.table, backup)
    place.refresh()
    with pytest.raises(NoSuchSnapshot):  # Never snapshot 2: the lost one was current.
        place.lifecycle.read(place.table, as_of=seen)
    assert_one_answer(place.lifecycle, place.table, seen)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_lines_that_diverged_are_never_mixed(make: Callable[..., Place], version: int) -> None:
    place = make(f"apart_{version}", version)
    shared = place.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 1), (2, 2)")
    backup = place.metadata.metadata_location
    without = place.run("INSERT INTO {t} VALUES (3, 3)")
    priced = place.run("ALTER TABLE {t} ADD COLUMN price int", "INSERT INTO {t} VALUES (4, 4, 999)")
    place.run("INSERT INTO {t} VALUES (5, 5, 5)")
    place.archive()
    place.put_back(backup)
    place.run("ALTER TABLE {t} ADD COLUMN weight int", "INSERT INTO {t} VALUES (30, 30, 3), (31, 31, 3)")
    mine = place.run("INSERT INTO {t} VALUES (40, 40, 4)")
    expected, location = place.rows(), place.metadata.metadata_location
    assert place.relation is Relation.DIVERGED
    place.require_one_answer()
    with pytest.raises(RestoreFailed, match=r"column ids|row ids"):
        place.lifecycle.restore(place.table, priced, "priced")
    assert place.metadata.metadata_location == location
    if version >= 3:
        with pytest.raises(RestoreFailed, match="row ids"):
            place.lifecycle.restore(place.table, without, "without")
    else:
        assert place.lifecycle.restore(place.table, without, "without").numbered_anew is not None
        assert place.rows("id, weight", of="without") == [(1, None), (2, None), (3, None)]
        place.run("DELETE FROM {t}.branch_without WHERE id = 3")
        assert place.rows("id", of="without") == [(1,), (2,)]
    place.lifecycle.restore(place.table, shared, "shared")
    assert place.rows("id", of="shared") == [(1,), (2,)]

    place.run("INSERT INTO {t} VALUES (50, 50, 5)")
    plan = place.lifecycle.plan_expiration(place.table)
    assert mine in plan.expired_snapshots
    for dry_run in (True, False):
        with pytest.raises(HandoffFailed, match="put back"):
            place.lifecycle.hand_off(plan, dry_run=dry_run)
    assert place.rows() == sorted([*expected, (50, 50, 5)])
    place.require_one_answer()
    for snapshot_id in (without, priced):
        assert place.lifecycle.read(place.table, snapshot_id=snapshot_id).count() in (3, 4)


def forget(place: Place, *, looks: bool = False) -> None:
    """The table commits until its metadata log no longer reaches back, and any engine's maintenance takes the snapshots
    whose numbers the archive has used. `looks`: the sensor looks at the catalog once, as each hour."""
    place.run("ALTER TABLE {t} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='2')")
    for number in range(5):
        place.run(f"INSERT INTO {{t}} (id) VALUES ({number})")
        if looks and number == 0:
            place.lifecycle.steps.observe()
    catalog = place.qualified.partition(".")[0]
    place.run(
        f"CALL {catalog}.system.expire_snapshots(table => '{place.table}', retain_last => 1, "
        "older_than => TIMESTAMP '2100-01-01 00:00:00')"
    )


def require_no_handoff(place: Place) -> None:
    place.run("INSERT INTO {t} (id) VALUES (90)")
    with pytest.raises(HandoffFailed, match="put back"):
        place.lifecycle.hand_off(place.lifecycle.plan_expiration(place.table))


@pytest.mark.parametrize("version", [1, 2])
def test_a_lost_lines_column_is_never_read_as_another_once_the_metadata_log_is_cut(
    make: Callable[..., Place], version: int
) -> None:
    place = make(f"silent_{version}", version)
    place.run("INSERT INTO {t} VALUES (1, 1)")
    backup = place.metadata.metadata_location
    lost = place.run("ALTER TABLE {t} ADD COLUMN salary int", "INSERT INTO {t} VALUES (2, 2, 5000)")
    place.run("INSERT INTO {t} VALUES (3, 3, 6000)")
    place.archive()
    place.put_back(backup)
    place.run("ALTER TABLE {t} ADD COLUMN badge int", "INSERT INTO {t} VALUES (4, 4, 7)")
    forget(place)
    location = place.metadata.metadata_location
    with pytest.raises(RestoreFailed, match="column ids"):
        place.lifecycle.restore(place.table, lost, "back")
    assert place.metadata.metadata_location == location
    require_no_handoff(place)


def test_a_line_that_was_left_stays_left_once_the_metadata_log_is_cut(make: Callable[..., Place]) -> None:
    place = make("left_once", 3)
    place.run("INSERT INTO {t} VALUES (1, 1)")
    backup = place.metadata.metadata_location
    lost = place.run("INSERT INTO {t} VALUES (2, 2)")
    place.run("INSERT INTO {t} VALUES (3, 3)")
    place.archive()
    place.put_back(backup)
    forget(place, looks=True)
    # Nothing of the table says so any more.
    assert place.relation is Relation.AHEAD
    with pytest.raises(RestoreFailed, match="row ids"):
        place.lifecycle.restore(place.table, lost, "back")
    require_no_handoff(place)


def test_row_ids_are_not_given_twice_where_nobody_saw_that_the_catalog_was_put_back(
    make: Callable[..., Place],
) -> None:
    place = make("unseen", 3)
    place.run("INSERT INTO {t} VALUES (1, 1)")
    backup = place.metadata.metadata_location
    lost = place.run("INSERT INTO {t} VALUES (2, 2)")
    place.run("INSERT INTO {t} VALUES (3, 3)")
    place.archive()
    place.put_back(backup)
    forget(place)
    assert place.relation is Relation.AHEAD
    with pytest.raises(RestoreFailed, match="row ids may be of other rows"):
        place.lifecycle.restore(place.table, lost, "back")


@pytest.mark.parametrize("version", [2, 3])
def test_a_table_whose_metadata_log_is_always_cut_is_archived_and_restored(
    make: Callable[..., Place], version: int
) -> None:
    place = make(f"busy_{version}", version)
    set_to = "ALTER TABLE {t} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='1')"
    place.run("INSERT INTO {t} VALUES (0, 0)", set_to)
    for night in range(3):
        for number in range(3):
            wanted = place.run(f"INSERT OVERWRITE {{t}} VALUES ({night}, {number})")
        rows = place.rows()
        place.run(f"ALTER TABLE {{t}} RENAME COLUMN {'a' if night == 0 else f'a{night - 1}'} TO a{night}")
        place.run("INSERT OVERWRITE {t} VALUES (90, 90)", "INSERT INTO {t} VALUES (91, 91)")
        place.archive()
        place.run("INSERT INTO {t} VALUES (92, 92)", "INSERT INTO {t} VALUES (93, 93)")
        place.lifecycle.restore(place.table, wanted, f"back_{night}")
        assert place.rows(of=f"back_{night}") == rows
    if version == 2:
        forget(place)
        place.run("INSERT INTO {t} VALUES (94, 94)")
        place.lifecycle.restore(place.table, wanted, "back")
        place.archive()


def test_a_dropped_column_of_an_equality_delete_comes_back_with_the_snapshot(
    make_config: MakeConfig, spark: SparkSession
) -> None:
    cleaning = {**AT_ONCE, "retention": {"window": "1ms", "clean_metadata": True}}
    with open_lifecycle(make_config(defaults=cleaning, tables={"db.*": {}}), spark=spark) as lifecycle:
        place = Place(lifecycle, "cleaned")
        core_tables.sql(spark, f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.db")
        core_tables.sql(
            place.lifecycle.spark,
            f"CREATE TABLE {place.qualified} (id int, k int) USING iceberg TBLPROPERTIES ('format-version'='2')",
        )
        place.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 1), (2, 2)")
        place.delete_by_equality("k", 2)
        place.run("ALTER TABLE {t} DROP COLUMN k", "INSERT INTO {t} VALUES (3)")
        wanted = place.metadata.current_snapshot_id
        assert wanted is not None and place.rows() == [(1,), (3,)]
        place.run("ALTER TABLE {t} ADD COLUMN b int", "INSERT OVERWRITE {t} VALUES (9, 9)")
        for number in (10, 11):
            lifecycle.expire(place.table)
            place.refresh()
            place.run(f"INSERT INTO {{t}} VALUES ({number}, {number})")
        assert 0 not in place.metadata.schemas
        lifecycle.restore(place.table, wanted, "back")
        assert place.rows("id", of="back") == [(1,), (3,)]
        lifecycle.expire(place.table)
        place.refresh()
        assert place.rows("id", of="back") == [(1,), (3,)]


def test_a_partition_spec_that_was_lost_comes_back_or_is_refused(make: Callable[..., Place]) -> None:
    place = make("specs", 2)
    place.run("INSERT INTO {t} VALUES (1, 1)")
    backup = place.metadata.metadata_location
    wanted = place.run("ALTER TABLE {t} ADD PARTITION FIELD a", "INSERT INTO {t} VALUES (2, 2), (3, 3)")
    place.run("INSERT INTO {t} VALUES (4, 4)")
    place.archive()
    place.put_back(backup)
    place.lifecycle.restore(place.table, wanted, "back")
    assert place.rows("id", of="back") == [(1,), (2,), (3,)]
    place.run("ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)", "INSERT INTO {t} VALUES (7, 7)")
    specs = map(json.loads, place.metadata.partition_specs.values())
    fields = {each["field-id"] for spec in specs for each in spec["fields"]}
    assert len(fields) == 2 and place.rows("id") == [(1,), (7,)]
    assert place.lifecycle.spark.sql(f"SELECT * FROM {place.qualified}.partitions").count() > 0

    other = make("specs_apart", 2)
    other.run("INSERT INTO {t} VALUES (1, 1)")
    backup = other.metadata.metadata_location
    wanted = other.run("ALTER TABLE {t} ADD PARTITION FIELD a", "INSERT INTO {t} VALUES (2, 2), (3, 3)")
    other.run("INSERT INTO {t} VALUES (4, 4)")
    other.archive()
    other.put_back(backup)
    other.run("ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)", "INSERT INTO {t} VALUES (7, 7)")
    with pytest.raises(RestoreFailed, match="partition spec"):
        other.lifecycle.restore(other.table, wanted, "back")
    assert other.rows("id") == [(1,), (7,)]


def test_a_column_id_that_two_lines_gave_out_is_found_and_a_renamed_column_is_not() -> None:
    def schemas(*columns: dict[int, str]) -> list[str]:
        fields = ([{"id": n, "name": name, "type": "int"} for n, name in each.items()] for each in columns)
        return [json.dumps({"type": "struct", "schema-id": n, "fields": each}) for n, each in enumerate(fields)]

    archive = schemas({1: "a"}, {1: "a", 2: "price"})
    assert clashing_fields(schemas({1: "a"}, {1: "a", 2: "weight"}), archive) == {2}
    assert clashing_fields(schemas({1: "a"}, {1: "b"}), archive) == set()
    assert clashing_fields(schemas({1: "a", 2: "price"}, {1: "a", 2: "cost"}), archive) == set()


@pytest.fixture
def at_once(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    """Its deletions do not wait. db.n has no archive."""
    tables: dict[str, Any] = {"db.*": {}, "db.n": {"cold_tier": {"enabled": False}}}
    with open_lifecycle(make_config(defaults=AT_ONCE, tables=tables), spark=spark) as lifecycle:
        core_tables.sql(spark, f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.db")
        yield lifecycle


@pytest.mark.parametrize("lost", ["row", "database", "both databases", "both databases and the root"])
def test_nothing_is_published_over_a_cold_catalog_that_was_put_back(
    at_once: Lifecycle, lost: str, tmp_path: Path
) -> None:
    place, lifecycle, cold = Place(at_once, "t"), at_once, at_once.config.catalogs.cold.name
    expected: dict[int, Rows] = {}
    row = {"catalog": cold, "name": place.name}
    at_row = "WHERE catalog_name = :catalog AND table_name = :name"

    def write(number: int) -> None:
        snapshot_id = place.run(f"INSERT OVERWRITE {{t}} VALUES ({number}, {number})")
        expected[snapshot_id] = place.rows()

    def pointer(to: str | None = None) -> str:
        """As a superuser's restore sets it."""
        with lifecycle.operations.engine.begin() as connection:
            if to is not None:
                with unguarded(connection):
                    set_to = f"UPDATE iceberg_tables SET metadata_location = :to {at_row}"
                    connection.execute(text(set_to), {**row, "to": to})
                if lost != "row":
                    of_table = (
                        "DELETE FROM artemis_cold.publications WHERE new_location <> :to AND table_identifier = :t"
                    )
                    connection.execute(text(of_table), {"to": to, "t": place.table})
            return str(connection.execute(text(f"SELECT metadata_location FROM iceberg_tables {at_row}"), row).scalar())

    place.run("CREATE TABLE {t} (id int, a int) USING iceberg", "INSERT INTO {t} VALUES (0, 0)")
    write(1)
    write(2)
    place.archive()
    backup = pointer()
    root = Path(str(lifecycle.config.operations.root).removeprefix("file://"))
    shutil.copytree(root / "cold", tmp_path / "cold")
    write(3)
    handed_off = lifecycle.plan_expiration(place.table)
    lifecycle.hand_off(handed_off)
    newer = pointer()
    pointer(backup)
    with pytest.raises(HandoffFailed, match="no longer have all its snapshots"):
        lifecycle.commit_expiration(handed_off)
    lifecycle.hand_off(handed_off)
    assert pointer() == newer
    lifecycle.commit_expiration(handed_off)
    place.refresh()
    pointer(backup)
    write(4)
    plan = lifecycle.plan_expiration(place.table)
    before = place.metadata.metadata_location
    recorded = text("UPDATE lifecycle.plans SET cold_metadata_location = :to WHERE cold_metadata_location = :at")
    if lost.endswith("root"):
        shutil.rmtree(root / "cold")
        shutil.move(tmp_path / "cold", root / "cold")
    if lost.startswith("both databases"):
        with lifecycle.operations.engine.begin() as connection:
            connection.execute(recorded, {"at": newer, "to": backup})
    said = rf"put back in time.* published {re.escape(newer)} \(snapshots only there: 1\)"
    for step in (
        lambda: lifecycle.hand_off(plan, dry_run=True),
        lambda: lifecycle.hand_off(plan),
        lambda: lifecycle.scrub_cold(place.table),
        lambda: lifecycle.deep_archive(place.table),
    ):
        with pytest.raises(HandoffFailed, match=said) as refused:
            step()
    with lifecycle.operations.engine.begin() as connection:
        connection.execute(recorded, {"at": backup, "to": newer})
    with pytest.raises(HandoffFailed, match="no longer have all its snapshots"):
        lifecycle.delete_files(handed_off)
    assert (pointer(), place.metadata.metadata_location) == (backup, before)

    assert "artemis recover-archive" in (refused.value.hint or "")
    done = lifecycle.recover_archive(place.table, who="ann", why="a backup")
    assert (done.cold_table, done.published) == (place.table, (newer,))
    assert pointer() == newer and lifecycle.recover_archive(place.table, who="ann", why="again").published == ()
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    for each in (handed_off, plan):
        lifecycle.delete_files(each)
    lifecycle.scrub_cold(place.table)
    for snapshot_id, rows in expected.items():
        read = lifecycle.read(place.table, snapshot_id=snapshot_id).collect()
        assert sorted(tuple(each) for each in read) == rows


def expired_and_named_again(lifecycle: Lifecycle, name: str) -> tuple[Place, int, Rows]:
    """A table whose metadata from a backup names a snapshot that was expired since, and whose files are gone."""
    place = Place(lifecycle, name)
    first = place.run("CREATE TABLE {t} (id int) USING iceberg", "INSERT INTO {t} VALUES (1), (2)")
    expected, backup = place.rows(), place.metadata.metadata_location
    place.run("INSERT OVERWRITE {t} VALUES (3)")
    lifecycle.expire(place.table)
    put_back(lifecycle, place.table, backup)
    place.refresh()
    return place, first, expected


def test_a_snapshot_whose_files_are_gone_is_restored_from_the_archive_though_the_metadata_names_it(
    at_once: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, first, expected = expired_and_named_again(at_once, "t")
    before = set(place.metadata.refs)
    with monkeypatch.context() as patch:
        patch.setattr("artemis_lifecycle.cold_tier.restore._read_back", _cannot_be_read)
        with pytest.raises(RestoreFailed, match="cannot be read"):
            at_once.restore(place.table, first, "back")
    assert set(place.metadata.refs) == before  # No broken branch is left.
    assert at_once.route(place.table, snapshot_id=first).tier == "cold"
    assert at_once.read(place.table, snapshot_id=first).count() == len(expected)

    done = at_once.restore(place.table, first, "back")
    assert done.copied_files and done.snapshot_id != first
    assert place.rows(of="back") == expected


def _cannot_be_read(*_: object) -> None:
    raise RestoreFailed("The restored branch cannot be read")


def test_a_snapshot_whose_files_are_gone_from_both_tiers_is_refused(at_once: Lifecycle) -> None:
    place, first, _ = expired_and_named_again(at_once, "n")
    with pytest.raises(RestoreFailed, match="gone, and the cold tier does not have the snapshot"):
        at_once.restore(place.table, first, "back")
    assert set(place.metadata.refs) == {"main"}


def test_what_settles_a_table_that_names_archived_snapshots_again_is_said_and_works(at_once: Lifecycle) -> None:
    place = Place(at_once, "named")
    first = place.run("CREATE TABLE {t} (id int) USING iceberg", "INSERT INTO {t} VALUES (1)")
    second = place.run("INSERT OVERWRITE {t} VALUES (2)")
    backup, kept = place.metadata.metadata_location, at_once.hold(place.table, "ann", "in use", [second])
    place.run("INSERT OVERWRITE {t} VALUES (3)")
    at_once.expire(place.table)
    at_once.release(kept.hold_id)
    put_back(at_once, place.table, backup)
    place.refresh()
    with pytest.raises(UnreadableMetadata, match=rf"archived: {first}\. .*by_ids\(\[{first}\]\)"):
        at_once.plan_expiration(place.table)
    path = place.metadata.current_snapshot.manifest_list if place.metadata.current_snapshot else ""
    asked: list[Callable[[], object]] = [
        lambda: at_once.explain(place.table, path or ""),
        lambda: at_once.table_health(place.table),
        lambda: at_once.scan_orphans(place.table),
        lambda: at_once.query(f"SELECT * FROM {place.table} VERSION AS OF {first}").collect(),
    ]
    for ask in asked:
        with suppress(LifecycleError):  # Anything else is not for people.
            ask()
    expire_in_metadata(at_once, place.table, [first])
    place.refresh()
    place.run("INSERT OVERWRITE {t} VALUES (4)")
    assert second in at_once.plan_expiration(place.table).expired_snapshots
    assert at_once.read(place.table, snapshot_id=first).count() == 1


def test_every_step_names_what_settles_a_table_that_names_archived_snapshots_again(at_once: Lifecycle) -> None:
    place = Place(at_once, "each")
    place.run("CREATE TABLE {t} (id int) USING iceberg", "INSERT INTO {t} VALUES (1)")
    place.run("INSERT OVERWRITE {t} VALUES (2)")
    backup = place.metadata.metadata_location
    at_once.expire(place.table)
    place.refresh()
    place.run("INSERT OVERWRITE {t} VALUES (3)")
    plan = at_once.plan_expiration(place.table)
    steps: list[Callable[[], object]] = [
        lambda: at_once.hand_off(plan),
        lambda: at_once.commit_expiration(plan),
        lambda: at_once.delete_files(plan),
    ]
    for step in steps:
        newest = place.metadata.metadata_location
        put_back(at_once, place.table, backup)
        for refused in (step, lambda: at_once.scan_orphans(place.table)):
            with pytest.raises(UnreadableMetadata, match="register the newest metadata file again; or remove"):
                refused()
        assert "register the newest" in str(at_once.operations.steps.history(place.metadata.table_uuid)[0].error)
        put_back(at_once, place.table, newest)
        step()


def test_an_archive_that_its_database_has_forgotten_is_found_again(at_once: Lifecycle) -> None:
    """The whole database came back from before the first handoff: the catalog names snapshots whose files are gone."""
    place, lifecycle, cold = Place(at_once, "forgotten"), at_once, at_once.config.catalogs.cold.name
    first = place.run("CREATE TABLE {t} (id int, a int) USING iceberg", "INSERT OVERWRITE {t} VALUES (1, 1)")
    rows = place.rows()
    place.run("INSERT OVERWRITE {t} VALUES (2, 2)")
    backup = place.metadata.metadata_location
    lifecycle.expire(place.table)
    with lifecycle.operations.engine.begin() as connection:
        with unguarded(connection):
            connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = :cold"), {"cold": cold})
        set_to = "UPDATE iceberg_tables SET metadata_location = :to WHERE table_name = :name"
        connection.execute(text(set_to), {"to": backup, "name": place.name})
    place.refresh()
    with pytest.raises(HandoffFailed, match=r"put back in time.*artemis recover-archive"):
        lifecycle.plan_expiration(place.table)
    with pytest.raises(HandoffFailed, match=r"put back in time.*artemis recover-archive"):
        lifecycle.read(place.table, snapshot_id=first)
    lifecycle.recover_archive(place.table, who="ann", why="a backup")
    assert lifecycle.read(place.table, snapshot_id=first).collect() == rows
    assert lifecycle.spark.sql(f"SELECT * FROM {cold}.{place.table} VERSION AS OF {first}").collect() == rows


def test_a_plan_of_a_line_that_the_catalog_has_left_is_not_archived(at_once: Lifecycle) -> None:
    place, lifecycle = Place(at_once, "left"), at_once
    place.run("CREATE TABLE {t} (id int, a int) USING iceberg", "INSERT OVERWRITE {t} VALUES (1, 1)")
    place.run("INSERT OVERWRITE {t} VALUES (2, 2)")
    place.archive()
    backup = place.metadata.metadata_location
    kept = place.run("INSERT OVERWRITE {t} VALUES (3, 3)")
    right = place.metadata.metadata_location
    place.put_back(backup)
    place.run("INSERT OVERWRITE {t} VALUES (4, 4)", "INSERT OVERWRITE {t} VALUES (5, 5)")
    plan = lifecycle.plan_expiration(place.table)
    place.put_back(right)
    with pytest.raises(HandoffFailed, match="another line of the table's history") as refused:
        lifecycle.hand_off(plan)
    assert f"artemis close {plan.plan_id}" in (refused.value.hint or "")
    lifecycle.close_plan(plan, who="ann", why="of a line that is gone")
    place.run("INSERT OVERWRITE {t} VALUES (6, 6)")
    lifecycle.expire(place.table)
    assert [tuple(row) for row in lifecycle.read(place.table, snapshot_id=kept).collect()] == [(3, 3)]


def test_what_recovers_an_archive_names_the_snapshots_whose_lists_rotted(at_once: Lifecycle) -> None:
    place, lifecycle, cold = Place(at_once, "rotted"), at_once, at_once.config.catalogs.cold.name
    first = place.run("CREATE TABLE {t} (id int) USING iceberg", "INSERT OVERWRITE {t} VALUES (1)")
    second = place.run("INSERT OVERWRITE {t} VALUES (2)")
    rows = place.rows()
    lifecycle.expire(place.table)
    row = {"catalog": cold, "name": place.name}
    at_row = "WHERE catalog_name = :catalog AND table_name = :name"

    def pointer(to: str | None = None) -> str:
        with lifecycle.operations.engine.begin() as connection, unguarded(connection):
            if to is not None:
                set_to = text(f"UPDATE iceberg_tables SET metadata_location = :to {at_row}")
                connection.execute(set_to, {**row, "to": to})
            return str(connection.execute(text(f"SELECT metadata_location FROM iceberg_tables {at_row}"), row).scalar())

    backup = pointer()
    place.refresh()
    place.run("INSERT OVERWRITE {t} VALUES (3)")
    lifecycle.expire(place.table)
    newest = pointer()
    pointer(backup)
    root = Path(str(lifecycle.config.catalogs.cold.warehouse).removeprefix("file://"))
    (rotten,) = root.rglob(f"snap-{first}-*.avro")
    rotten.write_bytes(b"x" + rotten.read_bytes()[1:])
    shutil.rmtree(Path(str(lifecycle.config.operations.root).removeprefix("file://")) / "cold" / "index", True)

    done = lifecycle.recover_archive(place.table, who="ann", why="a backup")
    assert (done.published, done.unreadable, pointer()) == ((newest,), (first,), newest)
    done = lifecycle.recover_archive(place.table, who="ann", why="again")
    assert (done.published, done.unreadable) == ((), (first,))
    assert lifecycle.read(place.table, snapshot_id=second).collect() == rows


@pytest.mark.parametrize("renamed", [False, True])
def test_an_archive_of_which_only_the_copies_are_left_is_found_again(at_once: Lifecycle, renamed: bool) -> None:
    """One backup of a machine, from before the first handoff, took back all that names it but the live catalog."""
    place, lifecycle, cold = Place(at_once, "unnamed"), at_once, at_once.config.catalogs.cold.name
    first = place.run("CREATE TABLE {t} (id int, a int) USING iceberg", "INSERT OVERWRITE {t} VALUES (1, 1)")
    rows, table_uuid = place.rows(), place.metadata.table_uuid
    place.run("INSERT OVERWRITE {t} VALUES (2, 2)")
    lifecycle.expire(place.table)
    if renamed:  # The archive keeps the name that it had.
        core_tables.sql(lifecycle.spark, f"ALTER TABLE {place.qualified} RENAME TO db.present")
        place = Place(lifecycle, "present")
        place.run("INSERT OVERWRITE {t} VALUES (22, 22)")
        lifecycle.expire(place.table)
    root = Path(str(lifecycle.config.operations.root).removeprefix("file://"))
    shutil.rmtree(root / "cold" / table_uuid)
    with lifecycle.operations.engine.begin() as connection:
        with unguarded(connection):
            connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = :cold"), {"cold": cold})
        connection.execute(text("TRUNCATE artemis_cold.publications"))
        connection.execute(text("TRUNCATE lifecycle.plans CASCADE"))
    place.refresh()
    second = place.run("INSERT OVERWRITE {t} VALUES (3, 3)")
    place.run("INSERT OVERWRITE {t} VALUES (4, 4)")
    plan = lifecycle.plan_expiration(place.table)
    with pytest.raises(HandoffFailed, match="put back in time") as refused:
        lifecycle.hand_off(plan)
    assert "artemis recover-archive" in (refused.value.hint or "")
    assert len(lifecycle.recover_archive(place.table, who="ann", why="a backup").published) == 1
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    lifecycle.delete_files(plan)
    assert lifecycle.read(place.table, snapshot_id=first).collect() == rows
    assert lifecycle.read(place.table, snapshot_id=second).count() == 1
    assert lifecycle.scan_cold(place.table).unknown_files == 0


def test_an_archive_whose_name_was_given_away_is_published_under_another(at_once: Lifecycle) -> None:
    """The database was put back to before the table was made, a new one took its names, and the lost one returned."""
    place, lifecycle, cold = Place(at_once, "given"), at_once, at_once.config.catalogs.cold.name
    live = lifecycle.config.catalogs.live.name
    first = place.run("CREATE TABLE {t} (id int) USING iceberg", "INSERT INTO {t} VALUES (1)")
    rows, table_uuid = place.rows(), place.metadata.table_uuid
    place.run("INSERT OVERWRITE {t} VALUES (2)")
    lifecycle.expire(place.table)
    place.refresh()
    lost = place.metadata.metadata_location
    with lifecycle.operations.engine.begin() as connection:
        with unguarded(connection):
            connection.execute(text("DELETE FROM iceberg_tables WHERE table_name = :name"), {"name": place.name})
        connection.execute(text("TRUNCATE artemis_cold.publications"))
    folder = f"{lost.rpartition('/metadata/')[0]}_anew"
    other = place.run(f"CREATE TABLE {{t}} (id int) USING iceberg LOCATION '{folder}'", "INSERT INTO {t} VALUES (11)")
    of_another = place.rows()
    place.run("INSERT OVERWRITE {t} VALUES (12)")
    lifecycle.expire(place.table)
    place.run(f"CALL {live}.system.register_table('db.found', '{lost}')")
    for _ in range(2):
        core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {live}.db.found VALUES (3)")
    asked: list[Callable[[], object]] = [
        lambda: lifecycle.expire("db.found"),
        lambda: lifecycle.scan_cold("db.found"),
        lambda: lifecycle.read("db.found", snapshot_id=first),
    ]
    for ask in asked:
        with pytest.raises(LifecycleError) as refused:
            ask()
        assert "artemis recover-archive" in (refused.value.hint or "")
    done = lifecycle.recover_archive("db.found", who="ann", why="a backup")
    assert done.cold_table == f"{place.table}__{table_uuid[:8]}" and len(done.published) == 1
    lifecycle.expire("db.found")
    for name, snapshot, expected in ((done.cold_table, first, rows), (place.table, other, of_another)):
        assert lifecycle.spark.sql(f"SELECT * FROM {cold}.{name} VERSION AS OF {snapshot}").collect() == expected
    assert lifecycle.read("db.found", snapshot_id=first).collect() == rows
    assert lifecycle.scan_cold("db.found").unknown_files == lifecycle.scan_cold(place.table).unknown_files == 0


def test_a_recovered_archive_leaves_a_name_to_the_table_that_settled_on_it(at_once: Lifecycle) -> None:
    place, lifecycle, cold = Place(at_once, "settled"), at_once, at_once.config.catalogs.cold.name
    first = place.run("CREATE TABLE {t} (id int) USING iceberg", "INSERT INTO {t} VALUES (1)")
    rows, table_uuid = place.rows(), place.metadata.table_uuid
    place.run("INSERT OVERWRITE {t} VALUES (2)")
    lifecycle.expire(place.table)
    with lifecycle.operations.engine.begin() as connection, unguarded(connection):
        connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = :cold"), {"cold": cold})
    core_tables.sql(lifecycle.spark, f"DROP TABLE {place.qualified}")
    other = place.run("CREATE TABLE {t} (id int) USING iceberg", "INSERT INTO {t} VALUES (11)")
    of_another = place.rows()
    place.run("INSERT OVERWRITE {t} VALUES (12)")
    plan = lifecycle.plan_expiration(place.table)

    with killed_at("handoff.metadata:before"):
        lifecycle.hand_off(plan)
    lapse(lifecycle, "leases")
    done = lifecycle.recover_archive(table_uuid, who="ann", why="a backup")
    assert done.cold_table == f"{place.table}__{table_uuid[:8]}" and len(done.published) == 1
    assert lifecycle.hand_off(plan).cold_table == place.table
    assert lifecycle.recover_archive(table_uuid, who="ann", why="again").published == ()
    for name, snapshot, expected in ((done.cold_table, first, rows), (place.table, other, of_another)):
        assert lifecycle.spark.sql(f"SELECT * FROM {cold}.{name} VERSION AS OF {snapshot}").collect() == expected


@pytest.mark.parametrize("recorded", [True, False])
def test_a_past_period_of_an_archive_comes_back_though_its_handoff_died_before_the_record(
    at_once: Lifecycle, recorded: bool
) -> None:
    place, lifecycle, cold = Place(at_once, "t"), at_once, at_once.config.catalogs.cold.name
    row = {"catalog": cold}

    def rows_of_catalog() -> dict[str, str]:
        of_table = text("SELECT table_name, metadata_location FROM iceberg_tables WHERE catalog_name = :catalog")
        with lifecycle.operations.engine.connect() as connection:
            return {str(name): str(location) for name, location in connection.execute(of_table, row)}

    def write(number: int) -> int:
        return place.run(f"INSERT OVERWRITE {{t}} VALUES ({number}, {number})")

    place.run("CREATE TABLE {t} (a int, b int) USING iceberg", "INSERT INTO {t} VALUES (0, 0)")
    first = write(1)
    expected = place.rows()
    write(2)
    lifecycle.expire(place.table)
    place.refresh()
    backup = rows_of_catalog()
    # Files without field ids would be read otherwise from now on: what is archived gets a table of its own.
    mapping = json.dumps([{"field-id": 1, "names": ["b"]}, {"field-id": 2, "names": ["a"]}])
    quoted = mapping.replace("{", "{{").replace("}", "}}")
    place.run(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('schema.name-mapping.default'='{quoted}')")
    second = write(3)
    write(4)
    plan = lifecycle.plan_expiration(place.table)
    with killed_at("handoff.published:before"):
        lifecycle.hand_off(plan)
    lapse(lifecycle, "leases")
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    lifecycle.delete_files(plan)
    published = rows_of_catalog()
    assert len(published) > len(backup)
    if not recorded:  # As by an earlier release.
        root, warehouse = lifecycle.config.operations.root, lifecycle.config.catalogs.cold.warehouse
        for folder in (root, warehouse):
            for path in Path(str(folder).removeprefix("file://")).rglob("published.json"):
                path.write_text(json.dumps({place.table: json.loads(path.read_text())[place.table]}))

    with lifecycle.operations.engine.begin() as connection:
        with unguarded(connection):
            connection.execute(text("DELETE FROM iceberg_tables WHERE catalog_name = :catalog"), row)
            for name, location in backup.items():
                again = (
                    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
                    "iceberg_type) VALUES (:catalog, 'db', :name, :location, 'TABLE')"
                )
                connection.execute(text(again), {**row, "name": name, "location": location})
        connection.execute(text("TRUNCATE artemis_cold.publications"))
        connection.execute(text("UPDATE lifecycle.plans SET cold_metadata_location = NULL"))
    done = lifecycle.recover_archive(place.table, who="ann", why="a backup")
    assert set(done.published) == set(published.values()) and rows_of_catalog() == published
    assert lifecycle.read(place.table, snapshot_id=second).count() == 1
    assert sorted(tuple(each) for each in lifecycle.read(place.table, snapshot_id=first).collect()) == expected
