"""Random histories that Iceberg's core writes, of format versions 1 to 4 with upgrades in the middle: the index reaches
what Iceberg's core reads, for each snapshot. `ARTEMIS_HISTORIES` says how many; no job of Spark runs."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import live_entries, read_manifest
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.reachability.index import IndexSettings, ManifestIndex
from artemis_lifecycle.reachability.index.files import reachable
from artemis_lifecycle.reachability.index.refresh import refresh
from artemis_lifecycle.spark.jvm import java_map
from artemis_lifecycle.storage.location import LocationRules, normalize
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.foreign.core import Core

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORIES = int(os.environ.get("ARTEMIS_HISTORIES", "12"))
RULES = LocationRules()


@pytest.fixture(scope="module")
def core(spark: SparkSession) -> Core:
    return Core(spark)


class History:
    def __init__(self, spark: SparkSession, core: Core, folder: Path, seed: int) -> None:
        self.core, self.dice, self.files, self.vectors = core.java, random.Random(seed), 0, set[str]()
        jvm: Any = spark._jvm
        self.location, self.data = f"file:{folder}/t", list[str]()
        kind = jvm.org.apache.spark.sql.types.StructType.fromDDL("id bigint, name string")
        schema = jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(kind)
        self.version = self.dice.choice((1, 2, 3, 4))
        properties = {"format-version": str(self.version), "commit.manifest.min-count-to-merge": "3"}
        self.table = jvm.org.apache.iceberg.hadoop.HadoopTables(
            spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
        ).create(schema, jvm.org.apache.iceberg.PartitionSpec.unpartitioned(), java_map(jvm, properties), self.location)

    def line(self) -> str:
        self.files += 1
        return f"{self.location}/data/{self.files}.parquet\t{100 + self.files}\t{1 + self.files % 5}"

    def step(self) -> str:
        steps = [self.append, self.append, self.overwrite, self.delete, self.vector, self.rewrite, self.upgrade]
        chosen = self.dice.choice(steps)
        try:
            chosen()
        except Exception as error:
            if "IllegalArgument" not in str(error) and "Validation" not in str(error):
                raise
        self.table.refresh()
        return f"{chosen.__name__} at v{self.version}"

    def append(self) -> None:
        lines = [self.line() for _ in range(self.dice.randint(1, 3))]
        self.data += [line.split("\t")[0] for line in lines]
        self.core.append(self.table, "main", "\n".join(lines))

    def overwrite(self) -> None:
        line = self.line()
        self.core.overwrite(self.table, line)
        self.data = [line.split("\t")[0]]

    def delete(self) -> None:
        if self.version > 1 and self.data:
            self.core.deleteRows(self.table, "main", self.line(), self.version > 2 or self.dice.random() < 0.5)

    def vector(self) -> None:
        free = [path for path in self.data if path not in self.vectors]
        if self.version > 2 and free:
            self.vectors.add(path := self.dice.choice(free))
            self.core.deleteByVector(self.table, "main", path, 1)

    def rewrite(self) -> None:
        if self.data:
            self.core.rewriteManifests(self.table)

    def upgrade(self) -> None:
        if self.version < 4:
            self.version += 1
            self.core.setProperty(self.table, "format-version", str(self.version))

    @property
    def metadata(self) -> str:
        return str(self.table.operations().current().metadataFileLocation())


def test_each_snapshot_reaches_what_icebergs_core_reads(spark: SparkSession, core: Core, tmp_path: Path) -> None:
    first = int(os.environ.get("ARTEMIS_SEED", "1"))
    done, encodings = Counter[str](), Counter[tuple[str, ...]]()
    for seed in range(first, first + HISTORIES):
        folder = tmp_path / str(seed)
        history = History(spark, core, folder, seed)
        done.update(history.step() for _ in range(history.dice.randint(4, 14)))
        stores, described = Stores(), core.describe(history.metadata)
        metadata = read_table_metadata(stores, history.metadata)
        index = ManifestIndex.open(stores, f"{folder}/index", metadata.table_uuid, RULES, IndexSettings(threads=1))
        view = refresh(index, metadata)
        for snapshot in metadata.snapshots:
            expected = described.reads[snapshot.snapshot_id]
            assert expected, f"seed {seed}: Iceberg cannot read snapshot {snapshot.snapshot_id}"
            found = reachable(view, (snapshot.snapshot_id,)).column("path").to_pylist()
            assert len(found) == len(expected), f"seed {seed}"
            assert {normalize(path, RULES) for path in found} == {normalize(path, RULES) for path in expected}
            listed = manifests_of(stores, snapshot).entries
            encodings[tuple(sorted({entry.manifest_path.rpartition(".")[2] for entry in listed}))] += 1
            for entry in listed:
                whole = [each.path for each in read_manifest(stores, entry) if each.status != 2]
                assert live_entries(stores, entry).column("file_path").to_pylist() == whole
        core.forget()
    if HISTORIES >= 12:
        assert {"vector at v4", "delete at v4", "rewrite at v4", "upgrade at v4"} <= set(done)
        assert {("avro",), ("parquet",), ("avro", "parquet")} <= set(encodings)
