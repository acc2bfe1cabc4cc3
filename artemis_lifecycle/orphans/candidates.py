"""Candidates: the listed files that a table does not reach. Belongs here: finding them. Does not belong here: which of
them may be deleted (`protection/`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.metadata import kinds
from artemis_lifecycle.orphans.listing import LISTED, Listing
from artemis_lifecycle.protection.ownership import sidecars, subject_array
from artemis_lifecycle.spark.runner import Rows, Runner, Spark
from artemis_lifecycle.storage.frames import arrow_schema, frame_batches, map_parts, read_frame
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.location_hash import distinct, hash_column
from artemis_lifecycle.storage.stores import Stores

CANDIDATE = f"{LISTED}, tag bigint, kind string"


@dataclass(frozen=True)
class Candidates:
    """The listed files that the table does not reach (columns: `CANDIDATE`). Each method reads them again."""

    rows: Rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self.rows.batches()

    def paths(self) -> Iterator[pa.Array]:
        return (batch.column("path") for batch in self.batches())

    def metadata_files(self) -> Iterator[str]:
        """Yield the paths of those that are metadata files by name."""
        for batch in self.batches():
            yield from batch.column("path").filter(pc.equal(batch.column("kind"), kinds.METADATA)).to_pylist()


@contextmanager
def candidates(
    spark: Spark, listing: Listing, stores: Stores, reached: Sequence[NDArray[np.bool_]]
) -> Iterator[Candidates]:
    """Yield the files of `listing` that are not `reached`, which has a mask for each part. They are readable until the
    block ends."""
    runner = Runner(spark)
    with runner.keeping() as keep:
        rows = read_frame(runner, listing.files_location, stores, [~mask for mask in reached])
        yield Candidates(keep(rows.map(_with_kinds, arrow_schema(CANDIDATE))))


def _with_kinds(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch.column(name) for name in arrow_schema(LISTED).names]
        # Only a listing that this project took has the store's tokens.
        tags = batch.column("tag") if "tag" in batch.schema.names else pa.nulls(batch.num_rows, pa.int64())
        columns += [tags, kinds.kinds_by_name(subject_array(batch.column("path")))]
        yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema(CANDIDATE))


@dataclass(frozen=True)
class ListedPart:
    """One part of a sealed listing: the location hash of the file to which each path belongs, and which paths are that
    file itself, not a checksum beside it."""

    hashes: NDArray[np.uint64]
    itself: NDArray[np.bool_]


def listed_parts(folder: str, stores: Stores, rules: LocationRules) -> list[ListedPart]:
    """Return the parts of a sealed listing, in order."""

    def hashed(batches: Iterator[pa.RecordBatch]) -> ListedPart:
        hashes, itself = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)]
        for batch in batches:
            hashes.append(hash_column(subject_array(batch.column("path")), rules))
            itself.append(~sidecars(batch.column("path")))
        return ListedPart(np.concatenate(hashes), np.concatenate(itself))

    return list(map_parts(folder, stores, hashed, ["path"]))


def files_themselves(parts: Sequence[ListedPart]) -> NDArray[np.uint64]:
    """Return the sorted location hashes of the listed files, without those of which only a checksum file is listed."""
    return distinct(np.concatenate([np.empty(0, np.uint64), *(part.hashes[part.itself] for part in parts)]))


def metadata_files(listing: Listing, stores: Stores) -> Iterator[str]:
    """Yield the paths of the listed files that are metadata files by name."""
    for batch in frame_batches(listing.files_location, stores):
        paths = batch.column("path")
        yield from paths.filter(pc.equal(kinds.kinds_by_name(subject_array(paths)), kinds.METADATA)).to_pylist()
