"""The consequences of lost files: which snapshots cannot be read without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.demand import (
    FILES,
    MANIFESTS,
    Demand,
    distinct_manifests,
    named_manifests,
    read_lists,
    read_manifests,
    readers,
)
from artemis_lifecycle.cold_tier.ledger import CopiedFile
from artemis_lifecycle.cold_tier.work import Problem
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.stores import Stores


@dataclass(frozen=True)
class Losses:
    """The consequences of lost files: problems, and destinations of manifests and lists that must not be written
    without them."""

    problems: tuple[Problem, ...] = ()
    excluded: frozenset[str] = frozenset()

    @property
    def snapshot_ids(self) -> frozenset[int]:
        return frozenset(snapshot for problem in self.problems for snapshot in problem.snapshot_ids)


def losses_of(runner: Runner, source: Stores, demand: Demand, lost: Sequence[CopiedFile]) -> Losses:
    """Find the snapshots of the demand that cannot be read without the `lost` files. Reads all its manifests, but files
    are rarely lost."""
    if not lost:
        return Losses()
    paths = {file.destination for file in lost}
    with runner.keeping() as keep:
        lists = keep(read_lists(runner, source, demand))
        named = lists.map(named_manifests, MANIFESTS)
        manifests = keep(runner.meet([named], "destination", distinct_manifests, MANIFESTS))
        files = read_manifests(source, demand, manifests)
        hits = files.map(partial(_hits, pa.array(sorted(paths), pa.string())), FILES).table()
        naming = set(hits.column("manifest").to_pylist())
        users = readers(lists, paths | naming)
    read_by = {path: users[path] for path in paths}
    for path, manifest in zip(hits.column("destination").to_pylist(), hits.column("manifest").to_pylist(), strict=True):
        read_by[path] = read_by[path] | users[manifest]
    wanted = set(demand.snapshot_ids)
    for file in demand.metadata.statistics:
        if file.snapshot_id in wanted and (destination := demand.mapping.used(file.path, file.snapshot_id)) in read_by:
            read_by[destination] = read_by[destination] | {file.snapshot_id}
    gone = {snapshot_id for ids in read_by.values() for snapshot_id in ids}
    lists_of_gone = {
        demand.mapping.used(snapshot.manifest_list, snapshot.snapshot_id)
        for snapshot in demand.snapshots()
        if snapshot.snapshot_id in gone and snapshot.manifest_list is not None
    }
    return Losses(
        tuple(Problem(file.source, file.error or "", tuple(sorted(read_by[file.destination]))) for file in lost),
        frozenset(naming | lists_of_gone),
    )


def _hits(paths: pa.Array, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.is_in(batch.column("destination"), paths))
