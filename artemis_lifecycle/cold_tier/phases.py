"""The sealed rows of a work, phase by phase, with what each phase needs from earlier phases."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.copy import DELETES, WANTED, Copier, copy_files
from artemis_lifecycle.cold_tier.ledger import CopiedFile, Ledger
from artemis_lifecycle.cold_tier.work import DELETE, NAMED, SEALED, Batch
from artemis_lifecycle.metadata.kinds import MANIFEST
from artemis_lifecycle.spark.runner import Cost, Rows, Runner
from artemis_lifecycle.storage.frames import arrow_schema

_BUCKETED = pa.schema([*WANTED, SEALED.field("bucket")])
_DESCRIBED = arrow_schema("destination string, rewritten string")
_REWRITTEN = arrow_schema("destination string, file string, rewritten string")
_SIZED = arrow_schema("destination string, size_in_bytes bigint")


@dataclass(frozen=True)
class PhaseRows:
    """The rows of one phase, and their copier."""

    runner: Runner
    rows: Rows
    copier: Copier

    def copy(self, batch: Batch, excluded: Collection[str]) -> list[CopiedFile]:
        """Copy the files of a batch except those to `excluded` destinations. Return one result per file, by
        destination."""
        rows = self.rows.between("bucket", batch.first_bucket, batch.last_bucket)
        cost = Cost(batch.files, batch.files, batch.size_in_bytes)
        return copy_files(self.runner, rows, replace(self.copier, excluded=excluded), cost)


@contextmanager
def open_phase(runner: Runner, sealed: Rows, ledger: Ledger, phase: int, copier: Copier) -> Iterator[PhaseRows]:
    """Yield the rows of a phase, which are valid inside the block. The phase before must be in the ledger."""
    rows = sealed.between("phase", phase, phase)
    with runner.keeping() as keep:
        if phase == 1:
            named = sealed.between("role", DELETE, DELETE)
            described = ledger.rows(runner, _DESCRIBED.names).map(_described, _DESCRIBED)
            deletes = runner.match(named, described, "destination", _rewritten_deletes, _REWRITTEN)
            rows = keep(runner.match(rows, deletes, "destination", _with_deletes, _BUCKETED))
        elif phase == 2:
            sizes = ledger.rows(runner, ("kind", *_SIZED.names)).map(_manifests, _SIZED)
            found = runner.match(sealed.between("role", NAMED, NAMED), sizes, "destination", _sizes_of, _SIZED).table()
            lengths = dict(zip(*(column.to_pylist() for column in found.columns), strict=True))
            copier = replace(copier, lengths=lengths)
        yield PhaseRows(runner, rows, copier)


def _described(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(batch.column("rewritten").is_valid())


def _manifests(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.equal(batch.column("kind"), MANIFEST)).select(_SIZED.names)


def _rewritten_deletes(named: pa.Table, described: pa.Table) -> pa.Table:
    """Return how the delete files of a manifest were rewritten, by the manifest's destination."""
    places = pc.index_in(named.column("destination"), described.column("destination").combine_chunks())
    found = [named.column("manifest"), named.column("destination"), described.column("rewritten").take(places)]
    return pa.Table.from_arrays(found, schema=_REWRITTEN).filter(pc.field("rewritten").is_valid())


def _with_deletes(rows: pa.Table, deletes: pa.Table) -> pa.Table:
    by_manifest: dict[str, list[dict[str, str]]] = {}
    for manifest, file, rewritten in zip(*(column.to_pylist() for column in deletes.columns), strict=True):
        by_manifest.setdefault(manifest, []).append({"destination": file, "rewritten": rewritten})
    found = [by_manifest.get(path) for path in rows.column("destination").to_pylist()]
    return rows.append_column(DELETES, pa.array(found, DELETES.type))


def _sizes_of(named: pa.Table, recorded: pa.Table) -> pa.Table:
    return recorded.filter(pc.is_in(recorded.column("destination"), named.column("destination").combine_chunks()))
