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
from artemis_lifecycle.protection.ownership import subject_array
from artemis_lifecycle.spark.runner import Rows, Runner, Spark
from artemis_lifecycle.storage.frames import arrow_schema, frame_batches, map_parts, read_frame
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.location_hash import hash_column
from artemis_lifecycle.storage.stores import Stores

CANDIDATE = f"{LISTED}, kind string"


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
        columns = [*batch.columns, kinds.kinds_by_name(subject_array(batch.column("path")))]
        yield pa.RecordBatch.from_arrays(columns, [*batch.schema.names, "kind"])


def listed_hashes(folder: str, stores: Stores, rules: LocationRules) -> list[NDArray[np.uint64]]:
    """Return the location hashes of the files to which each part of a sealed listing belongs, in order."""

    def hashed(batches: Iterator[pa.RecordBatch]) -> NDArray[np.uint64]:
        found = [hash_column(subject_array(batch.column("path")), rules) for batch in batches]
        return np.concatenate([np.empty(0, np.uint64), *found])

    return list(map_parts(folder, stores, hashed, ["path"]))


def metadata_files(listing: Listing, stores: Stores) -> Iterator[str]:
    """Yield the paths of the listed files that are metadata files by name."""
    for batch in frame_batches(listing.files_location, stores):
        paths = batch.column("path")
        yield from paths.filter(pc.equal(kinds.kinds_by_name(subject_array(paths)), kinds.METADATA)).to_pylist()
