"""What an expired snapshot answered, it answers the same: questions asked of the live table before the expiration, and
of the archive after it, by every way that there is. A test for each finding of issue 22."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.cold_tier.evolution import SCHEMAS, content
from artemis_lifecycle.cold_tier.queries import TRAVELLING
from artemis_lifecycle.errors import BadInput, HandoffFailed, NoSuchSnapshot, RestoreFailed
from artemis_lifecycle.metadata.types import MANIFEST
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.session.contexts import cold_copies
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.upkeep.equality_deletes import delete_by_equality

Rows = list[tuple[Any, ...]]


@dataclass
class Place:
    """A table of its own in one deployment. `{t}` in statements is the live one, `{c}` the cold one."""

    lifecycle: Lifecycle
    name: str

    @property
    def table(self) -> str:
        return f"db.{self.name}"

    @property
    def spark(self) -> SparkSession:
        return self.lifecycle.spark

    def sql(self, statement: str) -> Rows:
        catalogs = self.lifecycle.config.catalogs
        live, cold = f"{catalogs.live.name}.{self.table}", f"{catalogs.cold.name}.{self.table}"
        text = statement
        for name, value in {
            "{t}": live,
            "{c}": cold,
            "{catalog}": catalogs.live.name,
            "{cold}": catalogs.cold.name,
        }.items():
            text = text.replace(name, value)
        return sorted((tuple(row) for row in core_tables.answer(self.spark, text)), key=str)

    def current(self) -> int:
        found = self.lifecycle.snapshot_history(self.table).current_snapshot_id
        assert found is not None
        return found

    def asked(self, snapshot_id: int, where: str) -> Rows:
        """The rows of a snapshot, before it expires."""
        return self.sql(f"SELECT * FROM {{t}} VERSION AS OF {snapshot_id} WHERE {where}")

    def answers(self, snapshot_id: int, where: str) -> dict[str, Rows]:
        """The rows of an archived snapshot, by every way to it."""
        lifecycle = self.lifecycle
        query = lifecycle.query(f"SELECT * FROM {self.table} FOR VERSION AS OF {snapshot_id} WHERE {where}")
        read = lifecycle.read(self.table, snapshot_id=snapshot_id).filter(where)
        ways = {
            "query": [tuple(row) for row in query.collect()],
            "read": [tuple(row) for row in read.collect()],
            "Spark": self.asked_of_cold(snapshot_id, where),
        }
        by_pyiceberg = self.asked_by_pyiceberg(snapshot_id, where)
        if by_pyiceberg is not None:
            ways["pyiceberg"] = by_pyiceberg
        return {way: sorted(rows, key=str) for way, rows in ways.items()}

    def asked_by_pyiceberg(self, snapshot_id: int, where: str) -> Rows | None:
        """None for what it cannot read in live either: a filter where the table's schema is another than the
        snapshot's, and files without field ids where the table has no name mapping."""
        cold = self.lifecycle.config.catalogs.cold
        with load_catalog(cold.name, **pyiceberg_properties(cold)) as catalog:
            table = catalog.load_table(self.holder(snapshot_id))
            asked = table.scan(row_filter=where, snapshot_id=snapshot_id)
            if where != "true" and asked.projection().as_struct() != table.schema().as_struct():
                return None
            try:
                return [tuple(row.values()) for row in asked.to_arrow().to_pylist()]
            except ValueError as error:
                if "does not have field-ids" in str(error):
                    return None
                raise

    def asked_of_cold(self, snapshot_id: int, where: str) -> Rows:
        return self.sql(f"SELECT * FROM {{cold}}.{self.holder(snapshot_id)} VERSION AS OF {snapshot_id} WHERE {where}")

    def holder(self, snapshot_id: int) -> str:
        """The cold table that has the snapshot."""
        found = self.lifecycle.route(self.table, snapshot_id=snapshot_id).cold_table
        assert found is not None, snapshot_id
        return found

    def same(self, snapshot_id: int, truth: dict[str, Rows]) -> None:
        for where, rows in truth.items():
            for way, found in self.answers(snapshot_id, where).items():
                assert found == rows, f"{where} of {snapshot_id} by {way}"


@pytest.fixture(scope="module")
def make_place(module_configs: MakeConfig, spark: SparkSession) -> Callable[[str], Place]:
    lifecycle = Lifecycle.open(module_configs(defaults=AT_ONCE, tables={"db.*": {}}), spark=spark)
    core_tables.sql(spark, f"CREATE NAMESPACE {lifecycle.config.catalogs.live.name}.db")
    return lambda name: Place(lifecycle, name)


@pytest.mark.parametrize("renames", [("a TO x", "b TO a", "x TO b"), ("a TO c",)], ids=["swapped", "renamed"])
def test_finding_1_filters_on_the_newest_archived_snapshot(
    make_place: Callable[[str], Place], renames: tuple[str, ...]
) -> None:
    place = make_place(f"f1_{len(renames)}")
    place.sql("CREATE TABLE {t} (a int, b int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    place.sql("INSERT INTO {t} VALUES (5, 6), (7, 8)")
    first = place.current()
    for rename in renames:
        place.sql(f"ALTER TABLE {{t}} RENAME COLUMN {rename}")
    place.sql("INSERT OVERWRITE {t} VALUES (1, 2)")
    truth = {where: place.asked(first, where) for where in ("a = 5", "b = 6", "a > 5 and b < 9")}
    place.lifecycle.expire(place.table)

    assert truth["a = 5"] == [(5, 6)]
    place.same(first, truth)
    # And without a word of the version: it is the cold table's present.
    assert place.sql("SELECT * FROM {c} WHERE a = 5") == [(5, 6)]


def test_finding_1_a_column_that_was_dropped_with_its_partition_field(make_place: Callable[[str], Place]) -> None:
    place = make_place("f1_dropped")
    place.sql(
        "CREATE TABLE {t} (a int, k string) USING iceberg PARTITIONED BY (k) TBLPROPERTIES ('format-version'='2')"
    )
    place.sql("INSERT INTO {t} VALUES (5, 'x'), (7, 'y')")
    first = place.current()
    place.sql("ALTER TABLE {t} DROP PARTITION FIELD k")
    place.sql("ALTER TABLE {t} ADD COLUMN z int")
    place.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(4, z)")
    place.sql("ALTER TABLE {t} WRITE ORDERED BY z")
    place.sql("INSERT OVERWRITE {t} VALUES (1, 'q', 3)")
    truth = {where: place.asked(first, where) for where in ("k = 'x'", "a = 7 and k > 'a'")}
    place.lifecycle.expire(place.table)

    place.same(first, truth)
    assert place.sql("SELECT * FROM {c} WHERE k = 'x'") == [(5, "x")]


def _with_reused_ids(place: Place) -> tuple[int, dict[str, Rows]]:
    """A table whose spec 1 and schema 1 are archived, and mean something else in live since; the archived snapshot, and
    what it answered."""
    place.sql(
        "CREATE TABLE {t} (id int, k string) USING iceberg PARTITIONED BY (k) TBLPROPERTIES ('format-version'='2')"
    )
    place.sql("INSERT INTO {t} VALUES (1, 'x')")
    place.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)")
    place.sql("ALTER TABLE {t} ADD COLUMN more int")
    place.sql("INSERT INTO {t} VALUES (2, 'y', 20), (3, 'z', 30)")
    archived = place.current()
    place.sql("ALTER TABLE {t} DROP PARTITION FIELD bucket(4, id)")
    place.sql("ALTER TABLE {t} DROP COLUMN more")
    # The first of two still names what it took away, by spec 1.
    place.sql("INSERT OVERWRITE {t} VALUES (4, 'w')")
    truth = {where: place.asked(archived, where) for where in ("k = 'y'", "id = 3", "more = 20", "id < 9")}
    place.sql("INSERT OVERWRITE {t} VALUES (4, 'w')")
    place.lifecycle.expire(place.table)
    place.sql("CALL {catalog}.system.expire_snapshots(table => '" + place.table + "', clean_expired_metadata => true)")
    place.sql("ALTER TABLE {t} DROP PARTITION FIELD k")
    place.sql("ALTER TABLE {t} ADD PARTITION FIELD truncate(1, k)")
    place.sql("ALTER TABLE {t} ADD COLUMN other string")
    return archived, truth


def test_finding_2_a_restore_goes_by_what_a_spec_says(make_place: Callable[[str], Place]) -> None:
    place = make_place("f2")
    archived, truth = _with_reused_ids(place)
    first = place.lifecycle.cold_history(place.table).snapshots[0].snapshot_id
    # Its spec and schema come back under ids of their own, because theirs mean something else by now.
    done = place.lifecycle.restore(place.table, archived, "archived")
    for where, rows in truth.items():
        assert place.asked(done.snapshot_id, where) == rows, where
    assert len(place.sql("SELECT DISTINCT spec_id FROM {t}.all_files")) > 1
    # One whose spec is there as it was comes back, and so does its partition.
    place.lifecycle.restore(place.table, first, "back")
    for where in ("k = 'x'", "id = 1"):
        assert place.sql(f"SELECT id, k FROM {{t}} VERSION AS OF 'back' WHERE {where}") == [(1, "x")], where


def test_a_lost_manifest_comes_back_with_the_archives_own_ids(make_place: Callable[[str], Place]) -> None:
    place = make_place("repaired")
    lifecycle = place.lifecycle
    _with_reused_ids(place)
    place.sql("ALTER TABLE {t} DROP PARTITION FIELD truncate(1, k)")
    place.sql("INSERT INTO {t} VALUES (7, 'vv', 'o'), (8, 'vu', 'p')")
    later = place.current()
    wheres = ("k = 'vv'", "id = 8", "other = 'o'", "id < 9")
    after = {where: place.asked(later, where) for where in wheres}
    place.sql("INSERT OVERWRITE {t} VALUES (9, 'u', 'q')")
    plan = lifecycle.plan_expiration(place.table)
    lifecycle.hand_off(plan)
    copies = cold_copies(lifecycle.resources, place.table, plan.table_uuid)
    assert copies is not None
    paths = [row["path"] for row in plan.files().collect() if row["kind"] == MANIFEST]
    lost = [copy for several in copies.recorded(paths).values() for copy in several]
    files = [Path(copy.destination.removeprefix("file://")) for copy in lost]
    before = {file: file.read_bytes() for file in files}
    for file in files:
        file.unlink()
    lifecycle.commit_expiration(plan)
    assert {file: file.read_bytes() for file in files} == before
    place.same(later, after)


@pytest.mark.parametrize("tier", ["cold", "live"])
def test_a_restore_is_refused_where_a_branch_would_read_another_default(
    make_place: Callable[[str], Place], tier: str
) -> None:
    """A table that was replaced keeps the ids of its columns by their names, and not their defaults (format v3)."""
    place = make_place(f"defaults_{tier}")
    place.sql("CREATE TABLE {t} (id INT) USING iceberg TBLPROPERTIES ('format-version'='3')")
    place.sql("INSERT INTO {t} VALUES (1)")
    jvm: Any = place.spark._jvm
    live = f"{place.lifecycle.config.catalogs.live.name}.{place.table}"
    literal = jvm.org.apache.iceberg.expressions.Literal
    change = core_tables.java_table(place.spark, live).updateSchema()
    change.addColumn("c", jvm.org.apache.iceberg.types.Types.IntegerType.get(), literal.of(42)).commit()
    place.spark.catalog.refreshTable(live)
    place.sql("INSERT INTO {t} VALUES (2, 5)")
    with_default, where = place.current(), "true"
    assert place.asked(with_default, where) == [(1, 42), (2, 5)]
    place.lifecycle.restore(place.table, with_default, "before")
    replaced = "CREATE OR REPLACE TABLE {t} USING iceberg TBLPROPERTIES ('format-version'='3') AS SELECT id, c FROM {t}"
    place.sql(replaced)
    place.sql("ALTER TABLE {t} DROP BRANCH IF EXISTS before")
    if tier == "cold":
        place.lifecycle.expire(place.table)
    with pytest.raises(RestoreFailed, match="another type or default"):
        place.lifecycle.restore(place.table, with_default, "back")
    assert "back" not in {each.name for each in place.lifecycle.tags(place.table).refs}
    if tier == "cold":
        assert set(map(str, place.answers(with_default, where).values())) == {"[(1, 42), (2, 5)]"}


@pytest.mark.nightly
def test_finding_4_an_id_that_means_something_else_by_now_stops_nothing(make_place: Callable[[str], Place]) -> None:
    place = make_place("f4")
    archived, truth = _with_reused_ids(place)
    place.sql("INSERT INTO {t} VALUES (7, 'vv', 'o'), (8, 'vu', 'p')")
    later = place.current()
    place.sql("INSERT OVERWRITE {t} VALUES (9, 'u', 'q')")
    after = {where: place.asked(later, where) for where in ("k = 'vv'", "id = 8", "other = 'o'", "id < 9")}
    place.lifecycle.expire(place.table)

    place.same(archived, truth)
    place.same(later, after)
    # A night later, too.
    place.sql("INSERT OVERWRITE {t} VALUES (10, 'u', 'q')")
    place.lifecycle.expire(place.table)
    place.same(archived, truth)
    place.same(later, after)


@pytest.mark.nightly
def test_finding_6_a_query_as_of_reads_nothing_of_the_present(make_place: Callable[[str], Place]) -> None:
    place = make_place("f6")
    lifecycle, spark = place.lifecycle, place.spark
    place.sql("CREATE TABLE {t} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    place.sql("INSERT INTO {t} VALUES (1)")
    first = place.current()
    then = datetime.now(UTC)
    truth = {each: place.sql(f"SELECT count(*) FROM {{t}}.{each} VERSION AS OF {first}") for each in sorted(TRAVELLING)}
    place.sql("INSERT INTO {t} VALUES (2)")
    place.sql("ALTER TABLE {t} CREATE BRANCH b")
    place.sql("INSERT OVERWRITE {t} VALUES (3), (4)")
    for archived in (False, True):
        if archived:
            lifecycle.expire(place.table)
        tier = "cold" if archived else "live"
        for each in sorted(TRAVELLING):
            asked = lifecycle.translate(f"SELECT count(*) FROM {place.table}.{each}", as_of=then)
            assert [(found.table, found.tier) for found in asked.sources] == [(f"{place.table}.{each}", tier)]
            found = lifecycle.query(f"SELECT count(*) FROM {place.table}.{each}", as_of=then)
            assert [tuple(row) for row in found.collect()] == truth[each], each
            # Their own clause, too.
            found = lifecycle.query(f"SELECT count(*) FROM {place.table}.{each} FOR VERSION AS OF {first}")
            assert [tuple(row) for row in found.collect()] == truth[each], each
        common = f"WITH c AS (SELECT id FROM {place.table}) SELECT * FROM c"
        assert lifecycle.query(common, as_of=then).collect() == [(1,)]
    catalogs = lifecycle.config.catalogs
    spark.sql(f"SELECT * FROM {catalogs.live.name}.{place.table}").createOrReplaceTempView("f6_view")
    spark.sql(f"SELECT * FROM {catalogs.live.name}.{place.table}").createOrReplaceGlobalTempView("f6_global")
    for spelled in (
        "f6_view",
        "f6",
        "global_temp.f6_global",
        f"{place.table}.branch_b",
        f"{place.table}.snapshots",
        f"{catalogs.live.name}.{place.table}.all_data_files",
        f"{place.table}.snapshot_id_{first}",
        f"{catalogs.cold.name}.{place.table}",
        "parquet.`/nowhere`",
    ):
        with pytest.raises(BadInput, match="cannot be read as of") as refused:
            lifecycle.query(f"SELECT * FROM {place.table} JOIN {spelled}", as_of=then)
        assert spelled in refused.value.what
    shadowed = f"SELECT * FROM (WITH f6_view AS (SELECT 1) SELECT * FROM f6_view) JOIN {place.table}"
    with pytest.raises(BadInput, match="f6_view cannot be read"):
        lifecycle.query(f"{shadowed} JOIN f6_view", as_of=then)


def test_finding_8_what_a_string_says_stays(make_place: Callable[[str], Place]) -> None:
    place = make_place("f8")
    place.sql("CREATE TABLE {t} (id int) USING iceberg")
    place.sql("INSERT INTO {t} VALUES (1)")
    place.sql("ALTER TABLE {t} CREATE TAG `5`")
    odd = "'/*for tag*/', '/*for tag 0*/', '/*for tag 1*/ FOR TAG', \"x FOR TAG 'y'\""
    (row,) = place.lifecycle.query(f"SELECT {odd} FROM {place.table} FOR TAG '5' /*for tag*/").collect()
    assert tuple(row) == ("/*for tag*/", "/*for tag 0*/", "/*for tag 1*/ FOR TAG", "x FOR TAG 'y'")


def _taken_in(place: Place, *columns: str) -> None:
    """The table takes in a file that has these columns, in this order, and no field ids."""
    folder = Path(str(place.lifecycle.config.catalogs.live.warehouse).removeprefix("file://")) / "given" / place.name
    folder.mkdir(parents=True)
    values = {"a": [1, 2], "b": [10, 20]}
    pq.write_table(pa.table({name: pa.array(values[name], pa.int32()) for name in columns}), folder / "x.parquet")
    place.sql(
        "CALL {catalog}.system.add_files(table => '" + place.table + f"', source_table => '`parquet`.`{folder}`')"
    )


_MAPPING = "schema.name-mapping.default"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "change", ["swap", *(pytest.param(change, marks=pytest.mark.nightly) for change in ("unset", "set"))]
)
def test_finding_3_files_without_ids_are_read_as_they_were(make_place: Callable[[str], Place], change: str) -> None:
    place = make_place(f"f3_{change}")
    place.sql("CREATE TABLE {t} (a int, b int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    # The file's columns are in another order than the table's: without a mapping they are read by their order.
    _taken_in(place, "b", "a")
    first = place.current()
    if change == "set":
        place.sql(f"ALTER TABLE {{t}} UNSET TBLPROPERTIES ('{_MAPPING}')")
    truth = {where: place.asked(first, where) for where in ("a < 3", "b >= 10", "a = 10", "true")}
    place.sql("INSERT INTO {t} VALUES (5, 6)")
    second = place.current()
    before = {where: place.asked(second, where) for where in ("a < 6", "b = 20", "true")}
    place.sql("INSERT INTO {t} VALUES (7, 8)")
    place.lifecycle.expire(place.table)
    place.same(first, truth)
    place.same(second, before)

    # The file is still in live, and is read otherwise from now on.
    swapped = json.dumps([{"field-id": 1, "names": ["b"]}, {"field-id": 2, "names": ["a"]}])
    plain = json.dumps([{"field-id": 1, "names": ["a"]}, {"field-id": 2, "names": ["b"]}])
    if change == "unset":
        place.sql(f"ALTER TABLE {{t}} UNSET TBLPROPERTIES ('{_MAPPING}')")
    else:
        place.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{_MAPPING}'='{swapped if change == 'swap' else plain}')")
    third = place.current()
    after = {where: place.asked(third, where) for where in ("a < 8", "b = 20", "true")}
    assert after["true"] != before["true"] + [(7, 8)]
    place.sql("INSERT OVERWRITE {t} VALUES (9, 9)")
    place.lifecycle.expire(place.table)
    for _ in range(2):
        place.same(first, truth)
        place.same(second, before)
        place.same(third, after)
        place.sql("INSERT OVERWRITE {t} VALUES (9, 9)")
        place.lifecycle.expire(place.table)
    assert {found.cold_table for found in place.lifecycle.cold_history(place.table).snapshots} == {
        place.table,
        f"{place.table}_mapping_1",
    }
    # It comes back only where live reads it as it was read.
    with pytest.raises(RestoreFailed, match="have no field ids"):
        place.lifecycle.restore(place.table, first, "back")
    place.lifecycle.restore(place.table, third, "back")
    assert place.sql("SELECT * FROM {t} VERSION AS OF 'back'") == after["true"]


def test_finding_3_a_mapping_that_grows_by_new_columns_is_one(make_place: Callable[[str], Place]) -> None:
    place = make_place("f3_grows")
    place.sql("CREATE TABLE {t} (a int, b int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    _taken_in(place, "b", "a")
    first = place.current()
    place.sql("ALTER TABLE {t} ADD COLUMN c int")
    place.sql("INSERT INTO {t} VALUES (5, 6, 7)")
    truth = {where: place.asked(first, where) for where in ("a < 3", "true")}
    place.lifecycle.expire(place.table)
    second = place.current()
    place.sql("ALTER TABLE {t} ADD COLUMN d int")
    place.sql("INSERT OVERWRITE {t} VALUES (5, 6, 7, 8)")
    after = {where: place.asked(second, where) for where in ("c = 7", "b = 10", "true")}
    place.lifecycle.expire(place.table)
    place.same(first, truth)
    place.same(second, after)
    assert {found.cold_table for found in place.lifecycle.cold_history(place.table).snapshots} == {place.table}


@pytest.mark.nightly
def test_finding_7_a_tag_answers_its_last_meaning_and_the_one_of_then(make_place: Callable[[str], Place]) -> None:
    place = make_place("f7")
    lifecycle = place.lifecycle
    place.sql("CREATE TABLE {t} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    ids: list[int] = []
    instants: dict[str, datetime] = {}

    def commit() -> int:
        place.sql(f"INSERT OVERWRITE {{t}} VALUES ({len(ids) + 1})")
        ids.append(place.current())
        return ids[-1]

    def change(statement: str, name: str) -> None:
        place.sql(f"ALTER TABLE {{t}} {statement}")
        time.sleep(0.01)
        instants[name] = datetime.now(UTC)
        time.sleep(0.01)

    def meant(tag: str, name: str | None = None) -> Rows:
        found = lifecycle.read(place.table, tag=tag, as_of=None if name is None else instants[name])
        return [tuple(row) for row in found.collect()]

    # `a` is dropped on one snapshot and set on another, between two nights; `b` moves while its first snapshot is in
    # both tiers; `c` lives between two nights only.
    change(f"CREATE TAG a AS OF VERSION {commit()}", "a on 1")
    change(f"CREATE TAG b AS OF VERSION {ids[0]}", "b on 1")
    commit()
    change("DROP TAG a", "no a")
    lifecycle.expire(place.table)  # The first stays: b holds it.
    change(f"CREATE OR REPLACE TAG b AS OF VERSION {commit()}", "b on 3")
    change(f"CREATE TAG a AS OF VERSION {ids[2]}", "a on 3")
    change(f"CREATE TAG c AS OF VERSION {ids[2]}", "c on 3")
    change("DROP TAG c", "no c")
    commit()
    lifecycle.expire(place.table)
    change(f"CREATE OR REPLACE TAG b AS OF VERSION {ids[3]}", "b on 4")
    change("DROP TAG a", "no a again")
    commit()
    for _ in range(2):
        assert (meant("a"), meant("b"), meant("c")) == ([(3,)], [(4,)], [(3,)])
        change("DROP TAG IF EXISTS b", "no b")
        commit()
        lifecycle.expire(place.table)
    for tag, name, row in (
        ("a", "a on 1", 1),
        ("b", "b on 1", 1),
        ("b", "no a", 1),
        ("b", "b on 3", 3),
        ("b", "no c", 3),
        ("b", "b on 4", 4),
        ("a", "a on 3", 3),
        ("c", "c on 3", 3),
    ):
        assert meant(tag, name) == [(row,)], (tag, name)
    for tag, name in (("a", "no a"), ("c", "no c"), ("a", "no a again"), ("b", "no b"), ("c", "b on 1")):
        with pytest.raises(NoSuchSnapshot):
            meant(tag, name)
    # Engines on the cold catalog see the last meaning, or none.
    assert place.sql("SELECT * FROM {c} VERSION AS OF 'a'") == [(3,)]
    assert place.sql("SELECT * FROM {c} VERSION AS OF 'b'") == [(4,)]
    rows = place.lifecycle.query(f"SELECT * FROM {place.table} FOR TAG 'b'").collect()
    assert [tuple(row) for row in rows] == [(4,)]


def test_finding_5_of_two_names_that_went_apart_each_answers_for_itself(make_place: Callable[[str], Place]) -> None:
    one = make_place("f5")
    lifecycle = one.lifecycle
    other = Place(lifecycle, "f5_other")
    one.sql("CREATE TABLE {t} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    one.sql("INSERT INTO {t} VALUES (1)")
    shared = one.current()
    location = lifecycle.snapshot_history(one.table).metadata_location
    one.sql(f"CALL {{catalog}}.system.register_table(table => '{other.table}', metadata_file => '{location}')")
    at: list[datetime] = [datetime.now(UTC)]
    for number in (2, 3):
        one.sql(f"INSERT OVERWRITE {{t}} VALUES ({number})")
        other.sql(f"INSERT OVERWRITE {{t}} VALUES ({number * 10})")
        at.append(datetime.now(UTC))
    one.sql("INSERT OVERWRITE {t} VALUES (4)")

    def rows(place: Place, as_of: datetime) -> Rows:
        return [tuple(row) for row in lifecycle.read(place.table, as_of=as_of).collect()]

    expected = {one.name: [[(1,)], [(2,)], [(3,)]], other.name: [[(1,)], [(20,)], [(30,)]]}
    for step in (lambda: None, lambda: lifecycle.expire(one.table)):
        step()
        for place in (one, other):
            assert [rows(place, instant) for instant in at] == expected[place.name], place.name
    # The second one's history cannot go into the first one's archive.
    other.sql("INSERT OVERWRITE {t} VALUES (40)")
    with pytest.raises(HandoffFailed, match="under two names") as refused:
        lifecycle.expire(other.table)
    assert "cold_tier.enabled" in str(refused.value)
    # A tool that cuts its log: what it says of itself is asked for, and never answered by the other's rows.
    one.sql(
        f"CALL {{catalog}}.system.expire_snapshots(table => '{other.table}', retain_last => 1, "
        f"older_than => TIMESTAMP '{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}')"
    )
    assert rows(other, datetime.now(UTC)) == [(40,)]
    assert rows(one, at[2]) == [(3,)] and rows(one, at[0]) == [(1,)]
    for instant in at[1:]:
        with pytest.raises(NoSuchSnapshot):
            rows(other, instant)
    assert one.asked_of_cold(shared, "true") == [(1,)]


# --- what an attack on the finished change found ----------------------------------------------------------------------


def test_a_restore_that_was_killed_begins_anew_where_spec_ids_moved_since(make_place: Callable[[str], Place]) -> None:
    place = make_place("resumed")
    place.sql(
        "CREATE TABLE {t} (id int, a string, b string) USING iceberg PARTITIONED BY (a, b) "
        "TBLPROPERTIES ('format-version'='2')"
    )
    place.sql("ALTER TABLE {t} DROP PARTITION FIELD b")
    place.sql("INSERT INTO {t} VALUES (1, 'x', 'q'), (2, 'y', 'q')")
    first = place.current()
    place.sql("ALTER TABLE {t} ADD PARTITION FIELD b")
    for number in (3, 4):
        place.sql(f"INSERT OVERWRITE {{t}} VALUES ({number}, 'z', 'r')")
    place.lifecycle.expire(place.table)

    def die(point: str) -> None:
        if point == "restore.commit:before":
            raise Killed(point)

    with crash_points.installed(die), pytest.raises(Killed):
        place.lifecycle.restore(place.table, first, "back")
    lapse(place.lifecycle, "leases")
    # Spec 1 goes, and becomes another; the snapshot's own comes back under another id, or not at all.
    place.sql("CALL {catalog}.system.expire_snapshots(table => '" + place.table + "', clean_expired_metadata => true)")
    place.sql("ALTER TABLE {t} DROP PARTITION FIELD a")
    place.sql("ALTER TABLE {t} ADD PARTITION FIELD a")
    place.sql("ALTER TABLE {t} DROP PARTITION FIELD b")
    try:
        place.lifecycle.restore(place.table, first, "back")
    except RestoreFailed:
        return
    for where, ids in (("b = 'q'", [1, 2]), ("a = 'x'", [1]), ("id = 2", [2])):
        assert place.sql(f"SELECT id FROM {{t}} VERSION AS OF 'back' WHERE {where}") == [(each,) for each in ids], where


@pytest.mark.parametrize("change", ["mapping", "type"])
def test_what_changes_while_a_restore_copies_is_seen_at_its_commit(
    make_place: Callable[[str], Place], change: str
) -> None:
    place = make_place(f"race_{change}")
    place.sql("CREATE TABLE {t} (a int, b int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    _taken_in(place, "b", "a")
    first = place.current()
    place.sql("INSERT OVERWRITE {t} VALUES (9, 9)")
    place.lifecycle.expire(place.table)
    swapped = json.dumps([{"field-id": 1, "names": ["b"]}, {"field-id": 2, "names": ["a"]}])

    def meanwhile(point: str) -> None:
        if point == "restore.commit:before":
            if change == "mapping":
                place.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{_MAPPING}'='{swapped}')")
            else:
                place.sql("CREATE OR REPLACE TABLE {t} (a string, b int) USING iceberg")

    expected = "have no field ids" if change == "mapping" else "another type|another table"
    with crash_points.installed(meanwhile), pytest.raises((RestoreFailed, NoSuchSnapshot), match=expected):
        place.lifecycle.restore(place.table, first, "back")


def test_nothing_of_a_fork_is_the_other_ones(make_place: Callable[[str], Place]) -> None:
    one = make_place("fork_one")
    lifecycle, other = one.lifecycle, Place(one.lifecycle, "fork_two")
    one.sql("CREATE TABLE {t} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    one.sql("INSERT INTO {t} VALUES (1)")
    location = lifecycle.snapshot_history(one.table).metadata_location
    one.sql(f"CALL {{catalog}}.system.register_table(table => '{other.table}', metadata_file => '{location}')")
    one.sql("ALTER TABLE {t} ADD COLUMN price int")
    other.sql("ALTER TABLE {t} ADD COLUMN weight int")
    one.sql("INSERT OVERWRITE {t} VALUES (2, 999)")
    mine = one.current()
    one.sql("ALTER TABLE {t} CREATE TAG y RETAIN 1 DAYS")
    other.sql("INSERT OVERWRITE {t} VALUES (20, 5)")
    one.sql("ALTER TABLE {t} DROP TAG y")
    one.sql("INSERT OVERWRITE {t} VALUES (3, 1)")
    lifecycle.expire(one.table)
    assert [tuple(row) for row in lifecycle.read(one.table, snapshot_id=mine).collect()] == [(2, 999)]
    for ask in (
        lambda: lifecycle.restore(other.table, mine, "back"),
        lambda: lifecycle.read(other.table, snapshot_id=mine),
        lambda: lifecycle.read(other.table, tag="y"),
        lambda: lifecycle.query(f"SELECT * FROM {other.table} FOR TAG 'y'"),
    ):
        with pytest.raises(NoSuchSnapshot):
            ask()
    other.sql("INSERT OVERWRITE {t} VALUES (30, 5)")
    for _ in range(2):
        with pytest.raises(HandoffFailed, match="under two names"):
            lifecycle.expire(other.table)
        # The rightful one goes on.
        one.sql("INSERT OVERWRITE {t} VALUES (4, 1)")
        assert lifecycle.expire(one.table).failed == 0


def test_a_log_that_pyiceberg_made_holes_in_stops_nothing(make_place: Callable[[str], Place]) -> None:
    place = make_place("holes")
    lifecycle, live = place.lifecycle, place.lifecycle.config.catalogs.live
    place.sql("CREATE TABLE {t} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    at: list[datetime] = []
    for number in range(1, 5):
        place.sql(f"INSERT OVERWRITE {{t}} VALUES ({number})")
        at.append(datetime.now(UTC))
        if number == 2:
            place.sql("ALTER TABLE {t} CREATE TAG keep")
    lifecycle.expire(place.table)
    place.sql("INSERT OVERWRITE {t} VALUES (5)")
    lifecycle.expire(place.table)
    with load_catalog(live.name, **pyiceberg_properties(live)) as catalog:
        table = catalog.load_table(place.table)
        table.maintenance.expire_snapshots().older_than(datetime.now()).commit()
    place.spark.sql(f"REFRESH TABLE {live.name}.{place.table}")
    place.sql("INSERT OVERWRITE {t} VALUES (6)")
    assert lifecycle.expire(place.table).failed == 0
    found = [lifecycle.read(place.table, as_of=each).collect() for each in at]
    assert [[tuple(row) for row in rows] for rows in found] == [[(1,)], [(2,)], [(3,)], [(4,)]]
    # One that no handoff had seen: nobody knows what was there, and nothing else is said for it.
    lost = []
    for number in range(7, 10):
        place.sql(f"INSERT OVERWRITE {{t}} VALUES ({number})")
        lost.append(datetime.now(UTC))
        if number == 7:
            place.sql("ALTER TABLE {t} CREATE TAG seven")
    with load_catalog(live.name, **pyiceberg_properties(live)) as catalog:
        catalog.load_table(place.table).maintenance.expire_snapshots().older_than(datetime.now()).commit()
    place.spark.sql(f"REFRESH TABLE {live.name}.{place.table}")
    for _ in range(2):
        for instant in lost[:2]:
            with pytest.raises(NoSuchSnapshot):
                lifecycle.read(place.table, as_of=instant)
        assert [tuple(row) for row in lifecycle.read(place.table, as_of=lost[2]).collect()] == [(9,)]
        lifecycle.expire(place.table)


def test_no_way_around_as_of(make_place: Callable[[str], Place]) -> None:
    place = make_place("around")
    lifecycle, spark = place.lifecycle, place.spark
    live = lifecycle.config.catalogs.live.name
    place.sql("CREATE TABLE {t} (id int) USING iceberg")
    place.sql("INSERT INTO {t} VALUES (1)")
    then = datetime.now(UTC)
    place.sql("INSERT INTO {t} VALUES (2)")
    full = f"{live}.{place.table}"
    spark.sql(f"CREATE TEMPORARY FUNCTION newest() RETURNS INT RETURN SELECT max(id) FROM {full}")
    spark.sql(f"CREATE TEMPORARY FUNCTION newests() RETURNS TABLE(id INT) RETURN SELECT id FROM {full}")
    before = spark.catalog.currentCatalog(), spark.catalog.currentDatabase()
    spark.sql(f"USE {live}.db")
    try:
        for sql in (
            f"SELECT id FROM IDENTIFIER('{full}')",
            f"SELECT (SELECT max(id) FROM IDENTIFIER('{full}'))",
            "WITH around AS (SELECT id FROM around) SELECT * FROM around",
            "WITH a AS (SELECT id FROM around), around AS (SELECT 1) SELECT * FROM a",
            f"SELECT newest() FROM {place.table}",
            "SELECT * FROM newests()",
            "SELECT * FROM around",
        ):
            with pytest.raises(BadInput, match="cannot be read as of"):
                lifecycle.query(sql, as_of=then)
        common = f"WITH c AS (SELECT max(abs(id)) AS id FROM {place.table}) SELECT * FROM c"
        assert [tuple(row) for row in lifecycle.query(common, as_of=then).collect()] == [(1,)]
    finally:
        spark.catalog.setCurrentCatalog(before[0])
        spark.catalog.setCurrentDatabase(before[1])
        spark.sql("DROP TEMPORARY FUNCTION newest")
        spark.sql("DROP TEMPORARY FUNCTION newests")


def test_a_name_with_a_blank_is_another_name() -> None:
    one = {"schema-id": 1, "type": "struct", "fields": [{"id": 1, "name": "a b", "type": "decimal(9, 2)"}]}
    blanks = {**one, "fields": [{"id": 1, "name": "a b", "type": "decimal(9,2)"}]}
    other = {**one, "fields": [{"id": 1, "name": "ab", "type": "decimal(9,2)"}]}
    assert content(one, SCHEMAS) == content(blanks, SCHEMAS) != content(other, SCHEMAS)


def test_a_branch_at_an_instant_and_a_log_that_cannot_be_read(make_place: Callable[[str], Place]) -> None:
    place = make_place("meant")
    lifecycle = place.lifecycle
    place.sql("CREATE TABLE {t} (id int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    place.sql("INSERT INTO {t} VALUES (1)")
    place.sql("ALTER TABLE {t} CREATE BRANCH b")
    then = datetime.now(UTC)
    place.sql("INSERT INTO {t}.branch_b VALUES (99)")
    with pytest.raises(BadInput, match="is a branch"):
        lifecycle.read(place.table, tag="b", as_of=then)
    place.sql("ALTER TABLE {t} CREATE TAG x")
    on_one = datetime.now(UTC)
    place.sql("INSERT OVERWRITE {t} VALUES (2)")
    lifecycle.expire(place.table)
    place.sql("ALTER TABLE {t} CREATE OR REPLACE TAG x")
    on_two = datetime.now(UTC)
    unread = lifecycle.snapshot_history(place.table).metadata_location
    time.sleep(0.01)
    place.sql("ALTER TABLE {t} DROP BRANCH b")
    place.sql("INSERT OVERWRITE {t} VALUES (3)")
    place.sql("ALTER TABLE {t} CREATE OR REPLACE TAG x")
    # A file of the log is damaged: what x meant by it is not known, and nothing older is said for it.
    Path(unread.removeprefix("file:").removeprefix("//")).write_bytes(b"")
    for _ in range(2):
        with pytest.raises(NoSuchSnapshot):
            lifecycle.read(place.table, tag="x", as_of=on_two)
        assert [tuple(row) for row in lifecycle.read(place.table, tag="x", as_of=on_one).collect()] == [(1,)]
        assert [tuple(row) for row in lifecycle.read(place.table, tag="x").collect()] == [(3,)]
        # What the branch had at its end.
        assert sorted(tuple(row) for row in lifecycle.read(place.table, tag="b").collect()) == [(1,), (99,)]
        place.sql("INSERT OVERWRITE {t} VALUES (4)")
        assert lifecycle.expire(place.table).failed == 0


def test_a_filter_on_a_name_that_was_another_columns_is_evaluated(make_place: Callable[[str], Place]) -> None:
    """The partitions alone decide `id IS NULL`, of the column that is called so now: Iceberg's Spark runtime left the
    filter to them, also where `id` was another column, and gave back rows that have an id."""
    place = make_place("names_exchanged")
    place.sql("CREATE TABLE {t} (id INT, k STRING) USING iceberg PARTITIONED BY (bucket(2, id))")
    place.sql("INSERT INTO {t} VALUES (1, 'a'), (1, NULL), (NULL, 'b'), (NULL, NULL)")
    first = place.current()
    filters = ("id IS NULL", "id IS NOT NULL", "k IS NULL", "k IS NOT NULL", "k = 'a' AND id IS NOT NULL")
    truths = {first: {where: place.asked(first, where) for where in (*filters, "true")}}
    for one, other in (("id", "x"), ("k", "id"), ("x", "k")):
        place.sql(f"ALTER TABLE {{t}} RENAME COLUMN {one} TO {other}")
    place.sql("INSERT INTO {t} VALUES (7, 'c'), (7, NULL)")
    second = place.current()
    truths[second] = {where: place.asked(second, where) for where in ("id IS NULL", "id IS NOT NULL", "true")}
    place.sql("INSERT INTO {t} VALUES (8, 'd')")
    place.lifecycle.expire(place.table)
    for snapshot_id, truth in truths.items():
        place.same(snapshot_id, truth)


def test_deletes_by_equality_apply_under_each_type_that_their_column_had(make_place: Callable[[str], Place]) -> None:
    """One session reads snapshots from before and after a promotion, in either order, and what a restore brought back.
    Iceberg's cache of deletes would show the deleted rows in all but the first."""
    place = make_place("promoted")
    place.sql("CREATE TABLE {t} (id int, k int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    place.sql("INSERT INTO {t} VALUES (0, 0), (1, 1), (2, 2), (3, 0), (4, 1)")
    live, spark = place.lifecycle.config.catalogs.live.name, place.spark
    jvm: Any = spark._jvm
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"{live}.{place.table}")
    delete_by_equality(spark, table, "k", [1])
    spark.catalog.refreshTable(f"{live}.{place.table}")
    snapshots = {place.current(): [(0, 0), (2, 2), (3, 0)]}
    spark.sql(f"ALTER TABLE {live}.{place.table} ALTER COLUMN k TYPE bigint")
    place.sql("INSERT INTO {t} VALUES (5, 1)")
    snapshots[place.current()] = [(0, 0), (2, 2), (3, 0), (5, 1)]
    place.sql("INSERT OVERWRITE {t} VALUES (9, 9)")
    place.lifecycle.expire(place.table)

    for snapshot_id in (*snapshots, *reversed(snapshots)):
        read = place.lifecycle.read(place.table, snapshot_id=snapshot_id).collect()
        asked = place.lifecycle.query(f"SELECT * FROM {place.table} FOR VERSION AS OF {snapshot_id}").collect()
        for rows in (read, asked):
            assert sorted(tuple(row) for row in rows) == snapshots[snapshot_id]
    for number, (snapshot_id, wanted) in enumerate(snapshots.items()):
        brought = place.lifecycle.restore(place.table, snapshot_id, f"back-{number}", why="a look", who="somebody")
        for version in (brought.snapshot_id, f"'back-{number}'", brought.snapshot_id):
            spark.catalog.refreshTable(f"{live}.{place.table}")
            found = spark.sql(f"SELECT * FROM {live}.{place.table} VERSION AS OF {version}").collect()
            assert sorted(tuple(row) for row in found) == wanted
