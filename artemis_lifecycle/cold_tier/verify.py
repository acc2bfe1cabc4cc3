"""Reading the cold tier again: does what was copied still stand as it was verified. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.ledger import VERIFIED, CopiedFile, Ledger, handoff_ledger
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.walk import indexed
from artemis_lifecycle.spark.worker_errors import worker_errors
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.location_hash import begun_with
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


_SEED, _DRAWS = 11, 10_000
_FILES_HERE = 512
_BYTES_HERE = 256 << 20
_DAMAGED_SHOWN = 1_000


@dataclass(frozen=True)
class Verification:
    """What a second look at cold files found. `damaged` are (cold path, reason), at most 1,000 of them."""

    checked_files: int
    checked_bytes: int
    damaged: tuple[tuple[str, str], ...]

    @property
    def passed(self) -> bool:
        return not self.damaged


def cold_index(
    spark: SparkSession,
    cold_stores: Stores,
    root_stores: Stores,
    metadata: TableMetadata,
    rules: LocationRules,
    root: str,
) -> IndexView:
    """What the cold table reaches, by a manifest index in a folder of its own: the cold table has the live one's uuid,
    and other files. Raises UnreadableMetadata."""
    return indexed(spark, cold_stores, metadata, rules, f"{root}/cold", files=root_stores)


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
    ledger = handoff_ledger(root_stores, root, table_uuid)
    look = _Looker(cold_stores)
    small = ledger.verified_here(plan_id)
    if small is not None:
        chosen = [file for file in small if share >= 1 or _drawn(file.destination) < int(share * _DRAWS)]
        if len(chosen) <= _FILES_HERE and sum(file.size_in_bytes for file in chosen) <= _BYTES_HERE:
            return _verified_here(chosen, look)
    return _verified_on_spark(spark, ledger, plan_id, share, look)


def _verified_here(files: Sequence[CopiedFile], look: _Looker) -> Verification:
    found = list(threaded(look.reason, [(file.destination, file.size_in_bytes, file.checksum) for file in files], 8))
    damaged = sorted((file.destination, why) for file, why in zip(files, found, strict=True) if why is not None)
    return Verification(len(files), sum(file.size_in_bytes for file in files), tuple(damaged[:_DAMAGED_SHOWN]))


def _verified_on_spark(
    spark: SparkSession, ledger: Ledger, plan_id: str | None, share: float, look: _Looker
) -> Verification:
    from pyspark.sql import functions as sf

    files = ledger.verified(spark) if plan_id is None else ledger.files(spark, plan_id)
    chosen = files.filter(files.action.isin(*VERIFIED)).dropDuplicates(["destination"])
    if share < 1:
        drawn = sf.pmod(sf.xxhash64(sf.lit(_SEED), "destination"), sf.lit(_DRAWS))
        chosen = chosen.filter(drawn < int(share * _DRAWS))
    wanted = chosen.select("destination", "size_in_bytes", "checksum")
    with worker_errors():
        looked = wanted.mapInArrow(look, "destination string, size_in_bytes bigint, reason string").persist()
        try:
            totals = looked.agg(sf.count("*").alias("files"), sf.sum("size_in_bytes").alias("bytes")).collect()[0]
            damaged = looked.filter("reason is not null").orderBy("destination").limit(_DAMAGED_SHOWN).collect()
        finally:
            looked.unpersist()
    return Verification(
        totals["files"], totals["bytes"] or 0, tuple((row["destination"], row["reason"]) for row in damaged)
    )


def _drawn(destination: str) -> int:
    """Spark's `pmod(xxhash64(_SEED, destination), _DRAWS)`."""
    import xxhash

    hashed = xxhash.xxh64_intdigest(destination.encode("utf-8"), begun_with(_SEED))
    return (hashed - (1 << 64) if hashed >= 1 << 63 else hashed) % _DRAWS


class _Looker:
    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for row in batch.to_pylist():
                reason = self.reason((row["destination"], row["size_in_bytes"], row["checksum"]))
                yield pa.RecordBatch.from_pydict(
                    {
                        "destination": [row["destination"]],
                        "size_in_bytes": pa.array([row["size_in_bytes"]], pa.int64()),
                        "reason": pa.array([reason], pa.string()),
                    }
                )

    def reason(self, copy: tuple[str, int, str | None]) -> str | None:
        """Why the copy, of which path, size and checksum were recorded, is damaged; None when it is whole."""
        path, size, checksum = copy
        try:
            found = self._stores.head(path)
            if found is None:
                return "the file is gone"
            if found.size_in_bytes != size:
                return f"the file has {found.size_in_bytes} bytes, and had {size}"
            state = self._stores.archive_state(path)
            if state is not None and not state.readable:
                # Whole, as far as can be seen without a thaw.
                return None
            now = self._stores.checksum(path)
            return None if now == checksum else f"the file is {now}, and was {checksum}"
        except StorageError as error:
            return error.what
