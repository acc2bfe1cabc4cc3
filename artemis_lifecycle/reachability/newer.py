"""Tables of a format version that this release does not know: what one reaches, by Iceberg's own metadata tables in
Spark, so that other tables' deletions can go on. Nothing else is done with one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle import format_versions
from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index.lookups import Meant
from artemis_lifecycle.spark.java_errors import brief
from artemis_lifecycle.spark.jvm import java_map, jvm_of
from artemis_lifecycle.spark.runner import Rows, Runner, Spark
from artemis_lifecycle.storage.location import ByFolder, LocationRules, among, distinct, hash_column

_PATH = pa.schema([("path", pa.string())])


@dataclass(frozen=True)
class NewerFiles:
    """Implements `reachability.files.ReachedFiles`. `metadata` has no snapshots: only Iceberg can read them."""

    metadata: TableMetadata
    hashes: NDArray[np.uint64]
    places: frozenset[str]
    rows: Rows

    def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return among(self.hashes, hashes)

    def folders(self) -> Iterable[str]:
        return self.places

    def visit(self, each: Callable[[pa.Array], None]) -> None:
        for batch in self.rows.batches():
            each(batch.column("path"))

    def outside(self, before_ms: int, hashes: NDArray[np.uint64], is_meant: Meant, *, at_most: int) -> list[str]:
        return []


def newer_files(spark: Spark, catalog: str, rules: LocationRules, metadata_location: str) -> NewerFiles:
    """Return everything that any snapshot of a metadata file reaches. `catalog` names the Spark catalog whose settings
    say how files are read. Raises UnreadableMetadata if Iceberg cannot read the table either."""
    try:
        metadata, rows = _read(Runner(spark), catalog, metadata_location)
        hashes, places = [np.empty(0, np.uint64)], set[str]()
        for batch in rows.batches():
            paths = batch.column("path")
            hashes.append(hash_column(paths, rules))
            places |= {path.rpartition("/")[0] for path in paths.take(ByFolder.of(paths).starts).to_pylist()}
    except Exception as error:
        # Whatever went wrong in the JVM, the table's files are unknown.
        raise UnreadableMetadata(
            f"The table's format version is newer than this release, and Iceberg cannot read it either: {brief(error)}",
            path=metadata_location,
            untouched="the table and all its files",
            hint="check that Spark can read the table, or use a release of artemis-lifecycle that reads its version",
        ) from error
    return NewerFiles(metadata, distinct(np.concatenate(hashes)), frozenset(places), rows)


def _read(runner: Runner, catalog: str, metadata_location: str) -> tuple[TableMetadata, Rows]:
    from pyspark.sql import DataFrame

    session: Any = runner.session
    iceberg, prefix = jvm_of(session).org.apache.iceberg, f"spark.sql.catalog.{catalog}."
    settings = {key.removeprefix(prefix): each for key, each in session.conf.getAll.items() if key.startswith(prefix)}
    jvm_of(session).org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    io = iceberg.CatalogUtil.loadFileIO(
        settings.get("io-impl", "org.apache.iceberg.hadoop.HadoopFileIO"),
        java_map(jvm_of(session), settings),
        session._jsparkSession.sessionState().newHadoopConf(),
    )
    operations = iceberg.StaticTableOperations(metadata_location, io)
    # As Iceberg describes it, without what needs the newer version.
    said = json.loads(str(iceberg.TableMetadataParser.toJson(operations.current())))
    if said["format-version"] <= format_versions.NEWEST:
        raise ValueError("it steps over what only a later draft of the version has")
    table, kinds = iceberg.BaseTable(operations, metadata_location), iceberg.MetadataTableType
    named = {"file_path": kinds.ALL_FILES, "path": kinds.ALL_MANIFESTS, "manifest_list": kinds.SNAPSHOTS}
    every = []
    for column, kind in named.items():
        found = iceberg.spark.SparkTableUtil.loadMetadataTable(session._jsparkSession, table, kind)
        every.append(DataFrame(found, session).selectExpr(f"{column} AS path").where("path IS NOT NULL"))
    rows = runner.rows(every[0].union(every[1]).union(every[2]), _PATH)
    known = {**said, "format-version": format_versions.NEWEST, "current-snapshot-id": -1}
    known |= {"snapshots": [], "refs": {}, "snapshot-log": []}
    metadata = parse_table_metadata(json.dumps(known).encode(), metadata_location.removesuffix(".gz"))
    return replace(metadata, metadata_location=metadata_location, format_version=said["format-version"]), rows
