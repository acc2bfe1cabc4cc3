"""Reading the cold tier again: does what was copied still stand as it was verified. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.ledger import VERIFIED, Ledger
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Verification:
    """What a second look at cold files found. `damaged` are (cold path, reason), at most 1,000 of them."""

    checked_files: int
    checked_bytes: int
    damaged: tuple[tuple[str, str], ...]

    @property
    def passed(self) -> bool:
        return not self.damaged


def verify_copies(
    spark: SparkSession,
    root_stores: Stores,
    cold_stores: Stores,
    root: str,
    table_uuid: str,
    *,
    plan_id: str | None = None,
    share: float = 1.0,
) -> Verification:
    """Read the cold files of a table (or of one plan; or a `share` of them, 0 to 1, the same ones each time) and
    compare size and checksum with what was recorded when they were verified. `root_stores` reach `operations.root`."""
    from pyspark.sql import functions as sf

    ledger = Ledger(root_stores, root, table_uuid)
    files = ledger.verified(spark) if plan_id is None else ledger.files(spark, plan_id)
    chosen = files.filter(files.action.isin(*VERIFIED)).dropDuplicates(["destination"])
    if share < 1:
        chosen = chosen.filter(sf.pmod(sf.xxhash64(sf.lit(11), "destination"), sf.lit(10_000)) < int(share * 10_000))
    wanted = chosen.select("destination", "size_in_bytes", "checksum")
    with worker_errors():
        looked = _looked_at(wanted, cold_stores).persist()
        try:
            totals = looked.agg(sf.count("*").alias("files"), sf.sum("size_in_bytes").alias("bytes")).collect()[0]
            damaged = looked.filter("reason is not null").orderBy("destination").limit(1_000).collect()
        finally:
            looked.unpersist()
    return Verification(
        totals["files"], totals["bytes"] or 0, tuple((row["destination"], row["reason"]) for row in damaged)
    )


def _looked_at(wanted: DataFrame, cold_stores: Stores) -> DataFrame:
    return wanted.mapInArrow(_Looker(cold_stores), "destination string, size_in_bytes bigint, reason string")


class _Looker:
    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for row in batch.to_pylist():
                reason = self._reason(row["destination"], row["size_in_bytes"], row["checksum"])
                yield pa.RecordBatch.from_pydict(
                    {
                        "destination": [row["destination"]],
                        "size_in_bytes": pa.array([row["size_in_bytes"]], pa.int64()),
                        "reason": pa.array([reason], pa.string()),
                    }
                )

    def _reason(self, path: str, size: int, checksum: str) -> str | None:
        try:
            found = self._stores.head(path)
            if found is None:
                return "the file is gone"
            if found.size_in_bytes != size:
                return f"the file has {found.size_in_bytes} bytes, and had {size}"
            now = self._stores.checksum(path)
            return None if now == checksum else f"the file is {now}, and was {checksum}"
        except StorageError as error:
            return error.what
