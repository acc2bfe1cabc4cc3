"""The promise of the archive, asked as questions: whatever a snapshot answered while it was live, it answers from cold,
after the next nights too, and on the branch where it is restored.

The oracle is a table in memory of the rows that the live snapshot had, on which Spark evaluates the same questions:
nothing of Iceberg's pruning, binding or projecting is in it. Histories are drawn from one number each, which a failure
names; `ARTEMIS_SOAK` asks for more of them, `ARTEMIS_HISTORY` for one again.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle.cold_tier.evolution import NAME_MAPPING
from artemis_lifecycle.errors import RestoreFailed
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.cold_tier.world import World
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.policies import AT_ONCE

NIGHTS, COMMITS, ASKED = 3, 5, 3
TABLE, OTHER = "ns.t", "ns.u"

Answer = list[tuple[Any, ...]]

VALUES: dict[str, tuple[str, ...]] = {
    "int": ("0", "1", "7", "-3"),
    "long": ("0", "1", "7", "3000000000"),
    "double": ("0.5", "-1.25", "double('NaN')", "7.0"),
    "float": ("float(0.5)", "float('NaN')"),
    "string": ("'a'", "'abc'", "'b c'", "''", "'ü'"),
    "date": ("DATE '2024-01-31'", "DATE '1969-12-31'", "DATE '2024-02-01'"),
    "struct": ("named_struct('x', 1, 'y', 'p')", "named_struct('x', 2, 'y', 'q')", "named_struct('x', NULL, 'y', 'p')"),
}
"""What columns of each type get; NULL besides."""

FILTERS: dict[str, tuple[str, ...]] = {
    "int": ("{c} = 7", "{c} > 0", "{c} IN (0, 1)", "{c} IS NULL"),
    "long": ("{c} = 7", "{c} >= 7", "{c} NOT IN (0, 1)", "{c} IS NOT NULL"),
    "double": ("isnan({c})", "{c} < 1", "{c} = 7.0 OR {c} IS NULL", "NOT isnan({c})"),
    "float": ("isnan({c})", "{c} < 1"),
    "string": ("{c} = 'abc'", "{c} LIKE 'a%'", "{c} < 'b'", "{c} IS NULL"),
    "date": ("{c} = DATE '2024-01-31'", "year({c}) = 2024", "{c} > DATE '1970-01-01'"),
    "struct": ("{c}.x = 1", "{c}.y = 'p'", "{c} IS NULL"),
}
"""What is asked of them: on partition columns it prunes files."""

PARTITIONS: dict[str, tuple[str, ...]] = {
    "int": ("{c}", "bucket(3, {c})", "truncate(2, {c})"),
    "long": ("bucket(3, {c})",),
    "string": ("{c}", "truncate(1, {c})", "bucket(2, {c})"),
    "date": ("days({c})", "months({c})"),
}

SQL_TYPES = {"int": "INT", "long": "BIGINT", "double": "DOUBLE", "float": "FLOAT", "string": "STRING", "date": "DATE"}


def _seeds() -> list[int]:
    if "ARTEMIS_HISTORY" in os.environ:
        return [int(os.environ["ARTEMIS_HISTORY"])]
    first = int(os.environ["ARTEMIS_SEED"])
    return [first + number for number in range(int(os.environ.get("ARTEMIS_SOAK", "1")))]


@dataclass
class Past:
    """A table that changes at random, and the rows of each of its snapshots, as they were last read while live."""

    world: World
    lifecycle: Lifecycle
    chance: random.Random
    done: list[str] = field(default_factory=list)
    known: dict[int, tuple[T.StructType, list[Any]]] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    given: int = 0

    @property
    def table(self) -> str:
        return f"{self.world.live}.{TABLE}"

    def sql(self, statement: str) -> None:
        self.done.append(statement)
        self.world.spark.sql(statement.replace("{t}", self.table).replace("{live}", self.world.live))

    def schema(self) -> list[tuple[int, str, str]]:
        """The columns of now: id, name, type."""
        metadata = self.world.metadata(TABLE)
        fields = json.loads(metadata.schemas[metadata.current_schema_id])["fields"]
        return [
            (each["id"], each["name"], each["type"] if isinstance(each["type"], str) else "struct") for each in fields
        ]

    def create(self) -> None:
        version = self.chance.choice((1, 2, 2, 3, 4))
        by = self.chance.choice(("", "PARTITIONED BY (k)", "PARTITIONED BY (bucket(2, id), truncate(1, k))"))
        modes = ", ".join(f"'write.{what}.mode'='merge-on-read'" for what in ("delete", "update", "merge"))
        self.sql(
            f"CREATE TABLE {{t}} (id INT, k STRING, v DOUBLE, s STRUCT<x: INT, y: STRING>) USING iceberg {by} "
            f"TBLPROPERTIES ('format-version'='{version}'" + (f", {modes})" if version > 1 else ")")
        )
        self.insert()

    def changes(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            (6, self.insert),
            (3, self.overwrite),
            (3, self.delete),
            (3, self.rename),
            (2, self.swap),
            (3, self.drop),
            (3, self.add),
            (2, self.promote),
            (4, self.respec),
            (2, self.take_in),
            (2, self.remap),
            (3, self.tag),
            (1, self.upgrade),
            (1, self.compact),
            (2, self.clean),
        ]

    def change(self) -> None:
        works = self.changes()
        try:
            self.chance.choices([work for _, work in works], [weight for weight, _ in works])[0]()
        except (PySparkException, Py4JJavaError) as refused:
            # Iceberg does not take every change of every table.
            self.done.append(f"-- refused: {str(refused).splitlines()[0][:120]}")

    def _rows(self) -> str:
        rows = []
        for _ in range(self.chance.randint(1, 6)):
            row = [
                self.chance.choice((*VALUES[kind], "NULL")) if self.chance.random() < 0.9 else "NULL"
                for _, _, kind in self.schema()
            ]
            rows.append(f"({', '.join(row)})")
        return ", ".join(rows)

    def insert(self) -> None:
        self.sql(f"INSERT INTO {{t}} VALUES {self._rows()}")

    def overwrite(self) -> None:
        self.sql(f"INSERT OVERWRITE {{t}} VALUES {self._rows()}")

    def delete(self) -> None:
        _, name, kind = self.chance.choice(self.schema())
        self.sql(f"DELETE FROM {{t}} WHERE {self.chance.choice(FILTERS[kind]).format(c=f'`{name}`')}")

    def _renamable(self) -> list[tuple[int, str, str]]:
        return [each for each in self.schema() if each[2] != "struct"]

    def rename(self) -> None:
        _, name, _ = self.chance.choice(self._renamable())
        names = {each[1] for each in self.schema()}
        # A name that was another column's once, too.
        new = self.chance.choice([each for each in ("id", "k", "v", "a", "b") if each not in names] or ["z"])
        self.sql(f"ALTER TABLE {{t}} RENAME COLUMN `{name}` TO `{new}`")

    def swap(self) -> None:
        columns = self._renamable()
        if len(columns) > 1:
            (_, one, _), (_, other, _) = self.chance.sample(columns, 2)
            for before, after in ((one, "swapping"), (other, one), ("swapping", other)):
                self.sql(f"ALTER TABLE {{t}} RENAME COLUMN `{before}` TO `{after}`")

    def _partitioned(self) -> set[int]:
        metadata = self.world.metadata(TABLE)
        return {each["source-id"] for each in json.loads(metadata.partition_specs[metadata.default_spec_id])["fields"]}

    def drop(self) -> None:
        free = [each for each in self._renamable() if each[0] not in self._partitioned()]
        if len(self.schema()) > 2 and free:
            self.sql(f"ALTER TABLE {{t}} DROP COLUMN `{self.chance.choice(free)[1]}`")

    def add(self) -> None:
        names = {each[1] for each in self.schema()}
        free = [each for each in ("id", "k", "v", "a", "b", "c") if each not in names]
        if free:
            kind = self.chance.choice(tuple(SQL_TYPES.values()))
            self.sql(f"ALTER TABLE {{t}} ADD COLUMN `{self.chance.choice(free)}` {kind}")

    def promote(self) -> None:
        promotable = [
            (name, {"int": "BIGINT", "float": "DOUBLE"}[kind])
            for _, name, kind in self.schema()
            if kind in ("int", "float")
        ]
        if promotable:
            name, kind = self.chance.choice(promotable)
            self.sql(f"ALTER TABLE {{t}} ALTER COLUMN `{name}` TYPE {kind}")

    def respec(self) -> None:
        metadata = self.world.metadata(TABLE)
        fields = json.loads(metadata.partition_specs[metadata.default_spec_id])["fields"]
        fields = [each for each in fields if each["transform"] != "void"]
        if fields and self.chance.random() < 0.5:
            self.sql(f"ALTER TABLE {{t}} DROP PARTITION FIELD `{self.chance.choice(fields)['name']}`")
            return
        columns = [each for each in self.schema() if each[2] in PARTITIONS and each[0] not in self._partitioned()]
        if columns:
            _, name, kind = self.chance.choice(columns)
            by = self.chance.choice(PARTITIONS[kind]).format(c=f"`{name}`")
            self.given += 1
            self.sql(f"ALTER TABLE {{t}} ADD PARTITION FIELD {by} AS p{self.given}")

    def take_in(self) -> None:
        """A file without field ids, its columns in another order than the table's."""
        if self._partitioned():
            return
        kinds = {"int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "string": pa.string()}
        values: dict[str, list[Any]] = {"int": [1, 7], "long": [7, None], "double": [0.5, 7.0], "string": ["a", "abc"]}
        columns = [(name, kind) for _, name, kind in self.schema() if kind in kinds][::-1]
        if not columns:
            return
        self.given += 1
        folder = self.world.live_root / "given" / str(self.given)
        folder.mkdir(parents=True)
        table = pa.table({name: pa.array(values[kind], kinds[kind]) for name, kind in columns})
        pq.write_table(table, folder / "x.parquet")
        self.sql(f"CALL {{live}}.system.add_files(table => '{TABLE}', source_table => '`parquet`.`{folder}`')")

    def remap(self) -> None:
        """The name mapping, which add_files made, is set by hand, or taken away."""
        text = self.world.metadata(TABLE).properties.get(NAME_MAPPING)
        if text is None:
            return
        fields = json.loads(text)
        numbers = [each["field-id"] for each in fields if not each.get("fields")]
        kinds = {number: kind for number, _, kind in self.schema()}
        pairs = [
            (one, other) for one in numbers for other in numbers if one < other and kinds.get(one) == kinds.get(other)
        ]
        if self.chance.random() < 0.3 or not pairs:
            self.sql(f"ALTER TABLE {{t}} UNSET TBLPROPERTIES ('{NAME_MAPPING}')")
            return
        one, other = self.chance.choice(pairs)
        swapped = [
            {**each, "field-id": {one: other, other: one}.get(each["field-id"], each["field-id"])} for each in fields
        ]
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{NAME_MAPPING}'='{json.dumps(swapped)}')")

    def tag(self) -> None:
        name = self.chance.choice(("one", "two"))
        if name in self.tags and self.chance.random() < 0.3:
            self.sql(f"ALTER TABLE {{t}} DROP TAG IF EXISTS {name}")
            return
        snapshot = self.chance.choice(self.world.ids(TABLE))
        self.sql(f"ALTER TABLE {{t}} CREATE OR REPLACE TAG {name} AS OF VERSION {snapshot}")
        self.tags[name] = snapshot

    def upgrade(self) -> None:
        version = self.world.metadata(TABLE).format_version
        if version < 4:
            self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('format-version'='{version + 1}')")

    def compact(self) -> None:
        self.sql(f"CALL {{live}}.system.rewrite_data_files(table => '{TABLE}', options => map('rewrite-all', 'true'))")

    def clean(self) -> None:
        """What no snapshot needs goes, and its ids are given away again."""
        self.sql(
            f"CALL {{live}}.system.expire_snapshots(table => '{TABLE}', older_than => TIMESTAMP '1970-01-02 00:00:00', "
            "clean_expired_metadata => true)"
        )

    def record(self) -> None:
        """Read every snapshot, as it is while it is live."""
        for snapshot in self.world.metadata(TABLE).snapshots:
            rows = self.world.rows("live", snapshot.snapshot_id, TABLE)
            try:
                self.known[snapshot.snapshot_id] = rows.schema, rows.collect()
            except (PySparkException, Py4JJavaError) as unread:
                # What no engine reads in live has no answer to keep.
                self.done.append(f"-- {snapshot.snapshot_id} cannot be read: {str(unread).splitlines()[0][:120]}")
                self.known.pop(snapshot.snapshot_id, None)
            self.at[snapshot.snapshot_id] = snapshot.timestamp_ms

    # --- questions --------------------------------------------------------------------------------------------------

    def questions(self, schema: T.StructType) -> Iterator[str]:
        """Statements on `{x}`: each is one row, of what it finds."""
        columns = [(each.name, _kind(each.dataType)) for each in schema]
        every = ", ".join(f"`{name}`" for name, _ in columns)
        hashed = f"sum(CAST(xxhash64({every}) AS DECIMAL(38, 0)))"
        joined = "sum(CAST(xxhash64(" + ", ".join(f"a.`{name}`" for name, _ in columns) + ") AS DECIMAL(38, 0)))"
        yield f"SELECT 'all' AS q, count(*) AS n, {hashed} AS h FROM {{x}}"
        for name, kind in columns:
            said = self.chance.choice(FILTERS[kind]).format(c=f"`{name}`")
            quoted = said.replace("'", "\\'")
            yield f"SELECT '{quoted}' AS q, count(*) AS n, {hashed} AS h FROM {{x}} WHERE {said}"
        for name, kind in columns:
            where = self.chance.choice(FILTERS[kind]).format(c=f"`{name}`")
            other = self.chance.choice(columns)[0]
            quoted = f"{other} where {where}".replace("'", "\\'")
            ends = f"CAST(xxhash64(min(`{other}`), max(`{other}`)) AS DECIMAL(38, 0))"
            yield f"SELECT '{quoted}' AS q, count(`{other}`) AS n, {ends} AS h FROM {{x}} WHERE {where}"
        name, kind = self.chance.choice([each for each in columns if each[1] != "struct"] or columns)
        if kind != "struct":
            yield (
                f"SELECT 'join' AS q, count(*) AS n, {joined} AS h FROM {{x}} AS a "
                f"JOIN {{u}} AS b ON CAST(a.`{name}` AS STRING) = b.w WHERE b.w IS NOT NULL"
            )


def _kind(of: T.DataType) -> str:
    return {
        T.IntegerType: "int",
        T.LongType: "long",
        T.DoubleType: "double",
        T.FloatType: "float",
        T.StringType: "string",
        T.DateType: "date",
    }.get(type(of), "struct")


def _rows(frame: DataFrame) -> Answer:
    return sorted((tuple(row) for row in frame.collect()), key=str)


@dataclass
class Asked:
    """A snapshot's questions with their answers."""

    past: Past
    snapshot_id: int
    statement: str
    answers: Answer

    @classmethod
    def of(cls, past: Past, snapshot_id: int) -> Asked:
        schema, rows = past.known[snapshot_id]
        statement = " UNION ALL ".join(past.questions(schema))
        spark = past.world.spark
        spark.createDataFrame(rows, schema).createOrReplaceTempView("oracle")
        others = spark.table(f"{past.world.live}.{OTHER}").collect()
        spark.createDataFrame(others, "w string").createOrReplaceTempView("oracle_u")
        answers = _rows(spark.sql(statement.replace("{x}", "oracle").replace("{u}", "oracle_u")))
        return cls(past, snapshot_id, statement, answers)

    def on(self, table: str, other: str) -> str:
        return self.statement.replace("{x}", table).replace("{u}", other)

    def require(self) -> None:
        """The same answers by every way to the archive."""
        past, lifecycle, number = self.past, self.past.lifecycle, self.snapshot_id
        spark, live = past.world.spark, past.world.live
        holder = lifecycle.route(TABLE, snapshot_id=number).cold_table
        assert holder is not None
        cold = f"{past.world.cold}.{holder} VERSION AS OF {number}"
        ways: dict[str, Callable[[], DataFrame]] = {
            "query": lambda: lifecycle.query(self.on(f"{TABLE} FOR VERSION AS OF {number}", OTHER)),  # type: ignore[dict-item, return-value]
            "Spark": lambda: spark.sql(self.on(cold, f"{live}.{OTHER}")),
            "read": self._read,
        }
        if list(past.at.values()).count(past.at[number]) == 1:
            then = datetime.fromtimestamp(past.at[number] / 1000, UTC)
            ways["as_of"] = lambda: lifecycle.query(  # type: ignore[assignment, return-value]
                self.on(TABLE, f"{OTHER} FOR VERSION AS OF {past.world.ids(OTHER)[-1]}"), as_of=then
            )
        for name, tagged in past.tags.items():
            if tagged == number:
                ways[f"tag {name}"] = lambda name=name: lifecycle.query(self.on(f"{TABLE} FOR TAG '{name}'", OTHER))  # type: ignore[misc]
        for way, ask in ways.items():
            assert _rows(ask()) == self.answers, f"{way} of {number}: {self.statement}"
        self._by_pyiceberg(holder)

    def _read(self) -> DataFrame:
        rows = self.past.lifecycle.read(TABLE, snapshot_id=self.snapshot_id)
        rows.createOrReplaceTempView("read_rows")
        return self.past.world.spark.sql(self.on("read_rows", f"{self.past.world.live}.{OTHER}"))

    def _by_pyiceberg(self, holder: str) -> None:
        cold = self.past.lifecycle.config.catalogs.cold
        schema, rows = self.past.known[self.snapshot_id]
        with load_catalog(cold.name, **pyiceberg_properties(cold)) as catalog:
            table = catalog.load_table(holder)
            try:
                found = table.scan(snapshot_id=self.snapshot_id).to_arrow()
            except ValueError as error:
                # pyiceberg cannot read these in live either: files without ids and mapping, and deletion vectors.
                if "field-ids" in str(error) or "PUFFIN" in str(error).upper():
                    return
                raise
        assert found.column_names == schema.names
        mine = self.past.world.spark.createDataFrame(found.to_pylist(), schema) if found.num_rows else None
        theirs = [] if mine is None else [str(row) for row in mine.collect()]
        assert sorted(theirs) == sorted(map(str, rows)), f"pyiceberg of {self.snapshot_id}"

    def require_restored(self, branch: str) -> None:
        """The columns that are there still, under the names that they have now."""
        past, number = self.past, self.snapshot_id
        cold = past.lifecycle.cold_metadata(TABLE)
        assert cold is not None
        snapshot = cold.snapshot(number)
        assert snapshot is not None and snapshot.schema_id is not None
        then = {each["id"]: each["name"] for each in json.loads(cold.schemas[snapshot.schema_id])["fields"]}
        now = {number: name for number, name, _ in past.schema() if number in then}
        schema, rows = past.known[number]
        truth = past.world.spark.createDataFrame(rows, schema)
        columns = [truth[then[each]].alias(name) for each, name in now.items()]
        found = past.world.spark.sql(f"SELECT * FROM {past.table} VERSION AS OF '{branch}'")
        wanted = [found[name].cast(found.schema[name].dataType) for name in now.values()]
        expected = truth.select(
            [each.cast(found.schema[name].dataType) for each, name in zip(columns, now.values(), strict=True)]
        )
        assert sorted(map(str, _rows(found.select(wanted)))) == sorted(map(str, _rows(expected))), f"restored {number}"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", _seeds())
def test_archived_snapshots_answer_what_they_answered(make_config: MakeConfig, spark: SparkSession, seed: int) -> None:
    config = make_config(defaults=AT_ONCE, tables={"ns.*": {}})
    world, lifecycle = World(spark, config), Lifecycle.open(config, spark=spark)
    core_tables.sql(spark, f"CREATE NAMESPACE {world.live}.ns")
    core_tables.sql(spark, f"CREATE TABLE {world.live}.{OTHER} (w STRING) USING iceberg")
    core_tables.sql(
        spark, f"INSERT INTO {world.live}.{OTHER} VALUES ('7'), ('a'), ('abc'), ('0.5'), ('2024-01-31'), (NULL)"
    )
    past = Past(world, lifecycle, random.Random(seed))
    print(f"ARTEMIS_HISTORY={seed}")
    past.create()
    for night in range(NIGHTS):
        for _ in range(COMMITS):
            past.change()
        past.insert()
        past.record()
        print("\n".join(past.done))
        plan = lifecycle.plan_expiration(TABLE)
        assert set(lifecycle.hand_off(plan).archived) == set(plan.expired_snapshots)
        lifecycle.commit_expiration(plan)
        assert lifecycle.delete_files(plan).failed == 0
        gone = sorted(set(past.known) - set(world.ids(TABLE)))
        # Those of tonight, and some of earlier nights.
        for number in past.chance.sample(gone, min(ASKED, len(gone))):
            Asked.of(past, number).require()
        if night == NIGHTS - 2 and gone:
            number = past.chance.choice(gone)
            try:
                lifecycle.restore(TABLE, number, f"back-{night}")
            except RestoreFailed as refused:
                print(f"not restored: {refused.what}")
            else:
                Asked.of(past, number).require_restored(f"back-{night}")
