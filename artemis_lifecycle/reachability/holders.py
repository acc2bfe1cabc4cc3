"""Who holds one file: the snapshots that reach it, and the refs on those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artemis_lifecycle.metadata import avro
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.walk import manifest_rows, unpacked
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.location import LocationRules, normalise
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Holder:
    """A snapshot that reaches the file, with the refs on it; or, with no id, the metadata file that names it."""

    snapshot_id: int | None
    refs: tuple[str, ...] = ()
    what: str | None = None

    def __str__(self) -> str:
        if self.snapshot_id is None:
            return self.what or "the table's metadata"
        return f"snapshot {self.snapshot_id}" + (f" ({', '.join(self.refs)})" if self.refs else "")


def holders_of(
    spark: SparkSession, stores: Stores, metadata: TableMetadata, location: str, rules: LocationRules
) -> tuple[Holder, ...]:
    """Every snapshot of `metadata` that reaches the file at `location`, in the order of the history.

    Walks the whole table when the file is a data or delete file. Raises UnreadableMetadata.
    """
    from pyspark.sql import functions as F

    if location in {normalise(metadata.metadata_location, rules)} | {
        normalise(entry.metadata_file, rules) for entry in metadata.metadata_log
    }:
        return (Holder(None, what="the table's metadata log"),)
    refs: dict[int, list[str]] = {}
    for name, ref in sorted(metadata.refs.items()):
        refs.setdefault(ref.snapshot_id, []).append(f"{ref.type} {name}")
    found = {file.snapshot_id for file in metadata.statistics if normalise(file.path, rules) == location}
    found |= {
        snapshot.snapshot_id
        for snapshot in metadata.snapshots
        if snapshot.manifest_list is not None and normalise(snapshot.manifest_list, rules) == location
    }
    if not found and metadata.snapshots:
        rows = manifest_rows(spark, stores, metadata, list(metadata.snapshots), rules)
        manifests = rows.filter("manifest_location is not null")
        named = manifests.filter(F.col("manifest_location") == location)
        reaching = named.select("manifest_location").distinct()
        with worker_errors():
            if not named.take(1):
                distinct = manifests.groupBy("manifest_location").agg(F.first("entry").alias("entry"))
                reaching = _manifests_with(distinct, stores, location, rules)
            positions = (
                manifests.join(reaching, "manifest_location", "left_semi").select("position").distinct().collect()
            )
        found = {metadata.snapshots[row["position"]].snapshot_id for row in positions}
    return tuple(
        Holder(snapshot.snapshot_id, tuple(refs.get(snapshot.snapshot_id, ())))
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id in found
    )


def _manifests_with(manifests: DataFrame, stores: Stores, location: str, rules: LocationRules) -> DataFrame:
    def search(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            hits = []
            rows = zip(*(batch.column(name).to_pylist() for name in ("manifest_location", "entry")), strict=True)
            for manifest, packed in rows:
                live = avro.live_entries(stores, unpacked(packed))
                if any(normalise(path, rules) == location for path in live.column("file_path").to_pylist()):
                    hits.append(manifest)
            yield pa.RecordBatch.from_pydict({"manifest_location": pa.array(hits, pa.string())})

    return manifests.mapInArrow(search, "manifest_location string")
