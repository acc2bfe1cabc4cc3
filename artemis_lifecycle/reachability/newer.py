"""Tables of a format version that this release does not know, read through Iceberg's own metadata tables in Spark.
Belongs here: what such a table reaches, so that other tables' deletions can go on. Nothing else is done with one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.errors import LifecycleError, UnreadableMetadata
from artemis_lifecycle.metadata import kinds
from artemis_lifecycle.metadata.types import MetadataLogEntry, StatisticsFile, TableMetadata
from artemis_lifecycle.spark.java_errors import brief
from artemis_lifecycle.spark.jvm import java_map, jvm_of
from artemis_lifecycle.spark.runner import Rows, Runner, Spark
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.location_hash import among, distinct, hash_column
from artemis_lifecycle.storage.many_files import ByFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATH = pa.schema([("path", pa.string())])
_DEFAULT_IO = "org.apache.iceberg.hadoop.HadoopFileIO"


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

    def outside(self, before_ms: int, hashes: NDArray[np.uint64], *, at_most: int) -> list[str]:
        return []


class NewerTables:
    """Reads each metadata file once. `catalog` names the Spark catalog whose settings say how files are read."""

    def __init__(self, spark: Spark | None, catalog: str, rules: LocationRules) -> None:
        self._spark = spark
        self._catalog = catalog
        self._rules = rules
        self._read: dict[str, NewerFiles] = {}

    def read(self, metadata_location: str) -> NewerFiles:
        """Return everything that any snapshot of a metadata file reaches. Raises UnreadableMetadata if Iceberg cannot
        read it either."""
        if metadata_location not in self._read:
            try:
                self._read[metadata_location] = self._files(metadata_location)
            except LifecycleError as error:
                raise _unread(metadata_location, error.what) from error
            except Exception as error:
                # Whatever goes wrong in the JVM, the table's files are unknown.
                raise _unread(metadata_location, brief(error)) from error
        return self._read[metadata_location]

    def _files(self, metadata_location: str) -> NewerFiles:
        if self._spark is None:
            raise _unread(metadata_location, "no Spark session")
        runner = Runner(self._spark)
        session, jvm = runner.session, jvm_of(runner.session)
        prefix = f"spark.sql.catalog.{self._catalog}."
        settings = {key[len(prefix) :]: value for key, value in session.conf.getAll.items() if key.startswith(prefix)}
        hadoop = session._jsparkSession.sessionState().newHadoopConf()
        io = jvm.org.apache.iceberg.CatalogUtil.loadFileIO(
            settings.get("io-impl", _DEFAULT_IO), java_map(jvm, settings), hadoop
        )
        operations = jvm.org.apache.iceberg.StaticTableOperations(metadata_location, io)
        metadata = _metadata(operations.current(), metadata_location)
        rows = runner.rows(_paths(session, jvm.org.apache.iceberg.BaseTable(operations, metadata_location)), _PATH)
        hashes, places = [np.empty(0, np.uint64)], set[str]()
        for batch in rows.batches():
            paths = batch.column("path")
            hashes.append(hash_column(paths, self._rules))
            firsts = paths.take(ByFolder.of(paths).starts)
            places |= {path.rpartition("/")[0] for path in firsts.to_pylist()}
        return NewerFiles(metadata, distinct(np.concatenate(hashes)), frozenset(places), rows)


def _paths(session: SparkSession, table: Any) -> DataFrame:
    from pyspark.sql import DataFrame

    jvm = jvm_of(session)
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)

    def column(name: str, kind: Any) -> DataFrame:
        load = jvm.org.apache.iceberg.spark.SparkTableUtil.loadMetadataTable
        found = DataFrame(load(session._jsparkSession, table, kind), session)
        return found.selectExpr(f"{name} AS path").where("path IS NOT NULL")

    every = jvm.org.apache.iceberg.MetadataTableType
    return (
        column("file_path", every.ALL_FILES)
        .union(column("path", every.ALL_MANIFESTS))
        .union(column("manifest_list", every.SNAPSHOTS))
    )


def _metadata(read: Any, metadata_location: str) -> TableMetadata:
    """Return what Iceberg says of the table, as far as protection asks for it."""
    statistics = [str(each.path()) for each in (*read.statisticsFiles(), *read.partitionStatisticsFiles())]
    return TableMetadata(
        metadata_location=metadata_location,
        location=str(read.location()).rstrip("/"),
        table_uuid=str(read.uuid()),
        format_version=int(read.formatVersion()),
        last_updated_ms=int(read.lastUpdatedMillis()),
        last_sequence_number=int(read.lastSequenceNumber()),
        current_snapshot_id=None,
        snapshots=(),
        refs={},
        snapshot_log=(),
        metadata_log=tuple(
            MetadataLogEntry(int(each.timestampMillis()), str(each.file())) for each in read.previousFiles()
        ),
        statistics=tuple(StatisticsFile(0, path, 0, kinds.STATISTICS) for path in statistics),
        properties={str(key): str(value) for key, value in dict(read.properties()).items()},
        current_schema_id=0,
        schemas={},
        default_spec_id=0,
        partition_specs={},
    )


def _unread(metadata_location: str, why: str) -> UnreadableMetadata:
    return UnreadableMetadata(
        f"The table's format version is newer than this release, and Iceberg cannot read it either: {why}",
        path=metadata_location,
        untouched="the table and all its files",
        hint="check that Spark can read the table, or use a release of artemis-lifecycle that reads its version",
    )
