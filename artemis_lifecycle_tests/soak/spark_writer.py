"""A writer of the storm that uses Spark SQL: `python -m artemis_lifecycle_tests.soak.spark_writer HOME NAME SEED`."""

from __future__ import annotations

import random
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from artemis_lifecycle.catalogs.settings import spark_conf
from artemis_lifecycle.embedded.jars import needed, resolve
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle_tests.soak import place, rows
from artemis_lifecycle_tests.soak.journal import Journal

_REFS = 6


class SparkWriter:
    def __init__(self, where: place.Place, name: str, seed: int) -> None:
        self.place = where
        self.name = name
        self.dice = random.Random(seed)
        self.journal = Journal(where.journal(name))
        self.config = where.config
        self.live = self.config.catalogs.live.name
        self.operations = Operations.open(str(self.config.operations.uri))
        catalogs = spark_conf(self.config.catalogs)
        # By this the guard on the catalog's rows knows who commits.
        catalogs[f"spark.sql.catalog.{self.live}.jdbc.options"] = f"-c soak.writer={name}"
        jars = resolve(self.config.home, needed(self.config))
        self.spark = open_session(session_conf(self.config, catalogs, jars))
        self.did: dict[str, Any] = {}

    def run(self) -> None:
        while not self.place.stopping:
            table = self.dice.choice(self.place.tables)
            try:
                self._attempt(table)
            except Exception as error:
                self.journal.write(
                    "error", table=table, op=self.did.get("op"), kind=type(error).__name__, said=str(error)[:300]
                )
                time.sleep(0.5)

    def _attempt(self, name: str) -> None:
        self.did = {"table": name, "op": "look", "token": uuid.uuid4().hex}
        choices = self._choices(name)
        op = self.dice.choices(list(choices), [weight for weight, _ in choices.values()])[0]
        self.did["op"] = op
        conf = {"token": self.did["token"], "op": op, "engine": "spark"}
        for key, value in conf.items():
            self.spark.conf.set(f"spark.sql.iceberg.snapshot-property.soak.{key}", value)
        uuid_of_table = self._uuid(name)
        with place.attempt(self.place, self.operations, self.name, name, uuid_of_table):
            changed = choices[op][1](name)
        if changed:
            snapshots = self.spark.table(f"{self.live}.{name}.refs").where("name = 'main'").select("snapshot_id")
            self.did["snapshot"] = snapshots.collect()[0][0]
        self.journal.write("commit", **self.did)

    def _uuid(self, name: str) -> str:
        table = self.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(  # type: ignore[union-attr]
            self.spark._jsparkSession, f"{self.live}.{name}"
        )
        return str(table.uuid())

    def _choices(self, name: str) -> Mapping[str, tuple[float, Callable[[str], bool]]]:
        full = f"{self.live}.{name}"
        refs = [
            (row["name"], row["type"]) for row in self.spark.table(f"{full}.refs").collect() if row["name"] != "main"
        ]
        snapshots = [row[0] for row in self.spark.table(f"{full}.snapshots").select("snapshot_id").collect()]
        if not snapshots:
            return {"append": (1, self._append)}
        branches = [ref for ref, kind in refs if kind == "BRANCH"]
        found: dict[str, tuple[float, Callable[[str], bool]]] = {
            "append": (4, self._append),
            "delete": (3, self._delete),
            "update": (2, self._update),
            "merge": (2, self._merge),
            "overwrite": (1, self._overwrite),
            "rewrite data files": (2, self._rewrite),
            "rewrite manifests": (1, self._manifests),
            "rewrite deletes": (1, self._deletes),
            "rollback": (1, lambda name: self._rollback(name)),
        }
        if len(refs) < _REFS:
            found["tag"] = (1, lambda name: self._tag(name, self.dice.choice(snapshots)))
            found["branch"] = (1, lambda name: self._branch(name, self.dice.choice(snapshots)))
        if branches:
            found["append to branch"] = (1, lambda name: self._append(name, self.dice.choice(branches)))
        if refs:
            found["drop ref"] = (1, lambda name: self._drop(name, *self.dice.choice(refs)))
        return found

    def _sql(self, statement: str) -> None:
        self.spark.sql(statement.replace("{live}", self.live)).collect()

    def _new(self, number: int) -> None:
        new = rows.make(self.dice, number)
        self.journal.write("intent", op=self.did["op"], token=self.did["token"], added=rows.total(new))
        self.spark.createDataFrame(new.to_pandas(), "id bigint, mark bigint, part string, said string").coalesce(
            1
        ).createOrReplaceTempView("fresh")

    def _append(self, name: str, branch: str | None = None) -> bool:
        self._new(self.dice.randrange(1, 60))
        at = "" if branch is None else f".`branch_{branch}`"
        self._sql(f"INSERT INTO {{live}}.{name}{at} SELECT * FROM fresh")
        return branch is None

    def _delete(self, name: str) -> bool:
        self._sql(f"DELETE FROM {{live}}.{name} WHERE id % 11 = {self.dice.randrange(11)}")
        return True

    def _update(self, name: str) -> bool:
        changed = f"SET mark = pmod(mark * 31 + 7, {2**rows.BITS})"
        self._sql(f"UPDATE {{live}}.{name} {changed} WHERE id % 13 = {self.dice.randrange(13)}")
        return True

    def _merge(self, name: str) -> bool:
        self._new(20)
        self._sql(
            f"MERGE INTO {{live}}.{name} t USING (SELECT * FROM fresh UNION ALL (SELECT id, 1 AS mark, part, 'merged' "
            f"FROM {{live}}.{name} WHERE id % 17 = {self.dice.randrange(17)} LIMIT 5)) s "
            "ON t.id = s.id AND t.part = s.part WHEN MATCHED THEN UPDATE SET t.mark = t.mark + 1, t.said = s.said "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        return True

    def _overwrite(self, name: str) -> bool:
        self._new(self.dice.randrange(1, 60))
        self._sql(f"INSERT OVERWRITE {{live}}.{name} SELECT * FROM fresh")
        return True

    def _rewrite(self, name: str) -> bool:
        options = "map('min-input-files', '2', 'delete-file-threshold', '1')"
        self._sql(f"CALL {{live}}.system.rewrite_data_files(table => '{name}', options => {options})")
        return True

    def _manifests(self, name: str) -> bool:
        self._sql(f"CALL {{live}}.system.rewrite_manifests(table => '{name}', use_caching => false)")
        return True

    def _deletes(self, name: str) -> bool:
        self._sql(f"CALL {{live}}.system.rewrite_position_delete_files(table => '{name}')")
        return True

    def _rollback(self, name: str) -> bool:
        ancestors = self.spark.sql(f"CALL {self.live}.system.ancestors_of('{name}')").collect()
        older = [row["snapshot_id"] for row in sorted(ancestors, key=lambda row: -row["timestamp"])][1:6]
        if older:
            self._sql(f"CALL {{live}}.system.rollback_to_snapshot('{name}', {self.dice.choice(older)})")
        return bool(older)

    def _tag(self, name: str, snapshot: int) -> bool:
        retain = self.dice.choice(["", " RETAIN 1 MINUTES", " RETAIN 1 DAYS"])
        self._sql(
            f"ALTER TABLE {{live}}.{name} CREATE TAG `t-{self.did['token'][:6]}` AS OF VERSION {snapshot}{retain}"
        )
        return False

    def _branch(self, name: str, snapshot: int) -> bool:
        self._sql(f"ALTER TABLE {{live}}.{name} CREATE BRANCH `b-{self.did['token'][:6]}` AS OF VERSION {snapshot}")
        return False

    def _drop(self, name: str, ref: str, kind: str) -> bool:
        self._sql(f"ALTER TABLE {{live}}.{name} DROP {kind} `{ref}`")
        return False


def main() -> int:
    home, name, seed = sys.argv[1:]
    SparkWriter(place.load(home), name, int(seed)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
