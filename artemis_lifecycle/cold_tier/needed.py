"""The files to copy: everything that the wanted snapshots read, except what the ledger already has.

The list is sealed before the first copy, so that a killed handoff or restore continues with the same batches. A
manifest that was copied before is not read again, because the ledger has all its files. The cost depends on the new
manifests.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.demand import (
    FILES,
    MANIFESTS,
    Demand,
    distinct_manifests,
    list_problems,
    manifest_problems,
    named_manifests,
    read_lists,
    read_manifests,
)
from artemis_lifecycle.cold_tier.ledger import Ledger
from artemis_lifecycle.cold_tier.paths import Placing
from artemis_lifecycle.cold_tier.work import (
    BUCKETS,
    COPY,
    DELETE,
    NAMED,
    PHASES,
    REUSED,
    SEALED,
    Problem,
    Work,
    frame_folder,
    pack,
    store_work,
)
from artemis_lifecycle.metadata.kinds import (
    CONTENT_KINDS,
    DATA,
    DELETION_VECTORS,
    EQUALITY_DELETES,
    MANIFEST,
    MANIFEST_LIST,
    PARTITION_STATISTICS,
    POSITION_DELETES,
    STATISTICS,
)
from artemis_lifecycle.spark.runner import Rows, Runner, first_of_each
from artemis_lifecycle.storage.frames import arrow_schema, write_frame
from artemis_lifecycle.storage.location_hash import hash_strings
from artemis_lifecycle.storage.stores import Stores

_OF_USE = ("kind", "source", "destination", "size_in_bytes", "added_by", "manifest")
_PLAIN = pa.array([DATA, EQUALITY_DELETES, STATISTICS, PARTITION_STATISTICS])
"""Kinds whose copies have the same bytes."""

Occupied = Callable[[pa.Table], pa.Table]

_SIZES = arrow_schema("phase bigint, bucket bigint, files bigint, size_in_bytes bigint")


def seal_work(
    runner: Runner,
    source: Stores,
    records: Stores,
    demand: Demand,
    ledger: Ledger,
    folder: str,
    *,
    files_per_batch: int,
    bytes_per_batch: int,
    problems: tuple[Problem, ...] = (),
    occupied: Occupied | None = None,
) -> Work | pa.Table | tuple[Problem, ...]:
    """Find what is needed in `source` and seal it in `folder`, which `records` can access. If metadata cannot be read,
    return the problems and seal nothing; if uses of paths must be decided first, return these."""
    with find_needed(runner, source, demand, ledger, occupied) as rows:
        if not isinstance(rows, Rows):
            return rows
        # A unique name: of two concurrent runs, or after a kill, one frame is sealed and the other is garbage.
        frame = frame_folder(folder, uuid.uuid4().hex)
        sizes = rows.map(_sizes, _SIZES).table().group_by(["phase", "bucket"])
        summed = sizes.aggregate([("files", "sum"), ("size_in_bytes", "sum")])
        batches = pack(
            zip(*(column.to_pylist() for column in summed.columns), strict=True), files_per_batch, bytes_per_batch
        )
        write_frame(rows, frame, records)
        return store_work(records, folder, Work(frame, demand.snapshot_ids, batches, problems))


@dataclass(frozen=True)
class Needed:
    """How much there is to copy; or, in `problems`, the metadata that cannot be read; or uses to decide first."""

    files: int = 0
    size_in_bytes: int = 0
    problems: tuple[Problem, ...] = ()
    reused: pa.Table | None = None


def count_needed(
    runner: Runner, source: Stores, demand: Demand, ledger: Ledger, occupied: Occupied | None = None
) -> Needed:
    """Count what is needed in `source`, without sealing it."""
    with find_needed(runner, source, demand, ledger, occupied) as rows:
        if isinstance(rows, tuple):
            return Needed(problems=rows)
        if not isinstance(rows, Rows):
            return Needed(reused=rows)
        sizes = rows.map(_sizes, _SIZES).table()
        return Needed(pc.sum(sizes["files"]).as_py() or 0, pc.sum(sizes["size_in_bytes"]).as_py() or 0)


@contextmanager
def find_needed(
    runner: Runner, source: Stores, demand: Demand, ledger: Ledger, occupied: Occupied | None = None
) -> Iterator[Rows | pa.Table | tuple[Problem, ...]]:
    """Yield what is needed (SEALED), which is valid inside the block; or the metadata that cannot be read; or uses of
    paths that may mean several files (role REUSED), which must be decided first. `occupied` returns which of these
    files, placed where other tables archive, too, have another one there."""
    with runner.keeping() as keep:
        lists = keep(read_lists(runner, source, demand))
        problems = list_problems(lists)
        if problems:
            yield problems
            return
        known = keep(ledger.rows(runner, ("destination", "added_by")))
        named = lists.map(named_manifests, MANIFESTS)
        find_reused = partial(_reused, pa.array([_key(*use) for use in demand.same], pa.string()))
        # A restore copies one snapshot, from a tier where each file has its own path.
        if demand.origin is None:
            metadata = runner.concat(named.map(_manifests_to_copy, FILES), lists.map(_lists_to_copy, FILES))
            reused = runner.match(metadata, known, "destination", find_reused, SEALED).table()
            if reused.num_rows:
                yield reused
                return
        manifests = keep(runner.match(named, known, "destination", _new_manifests, MANIFESTS))
        files = keep(read_manifests(source, demand, manifests))
        problems = manifest_problems(files, lists)
        if problems:
            yield problems
            return
        candidates = runner.concat(
            files,
            _statistics(demand),
            manifests.map(_manifests_to_copy, FILES),
            lists.map(_lists_to_copy, FILES),
        )
        needed = keep(runner.match(candidates, known, "destination", partial(_needed, find_reused), SEALED))
        reused = needed.between("role", REUSED, REUSED).table() if demand.origin is None else pa.table({})
        if occupied is not None and not reused.num_rows:
            reused = occupied(needed.map(partial(_beside_others, demand.mapping), SEALED).table())
        if reused.num_rows:
            yield reused
            return
        if demand.origin is not None:
            recorded = demand.origin.rows(runner, ("destination", "checksum"))
            renamed = pa.schema([("source", pa.string()), ("checksum", pa.string())])
            origin = recorded.map(_as_sources, renamed)
            needed = runner.match(needed, origin, "source", _with_checksums, SEALED)
        yield keep(needed)


def _beside_others(mapping: Placing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the files that are copied as they are to places outside the table's own location."""
    for batch in batches:
        copied = batch.filter(
            pc.and_kleene(pc.equal(batch.column("role"), COPY), pc.is_in(batch.column("kind"), _PLAIN))
        )
        foreign = [not mapping.owns(path) for path in copied.column("destination").to_pylist()]
        yield copied.filter(pa.array(foreign, pa.bool_()))


def _new_manifests(named: pa.Table, known: pa.Table) -> pa.Table:
    return distinct_manifests(named.filter(pc.invert(_among(named, known))))


def _statistics(demand: Demand) -> pa.Table:
    names = ("phase", "kind", "source", "destination", "size_in_bytes", "added_by", "role")
    rows = [
        dict(zip(names, (0, kind, source, place, size, snapshot_id, COPY), strict=True))
        for (place, snapshot_id), (kind, source, size) in demand.statistics().items()
    ]
    return pa.Table.from_pylist(rows, FILES)


def _key(destination: str, added_by: int | None) -> str:
    return f"{destination}\0{'' if added_by is None else added_by}"


def use_keys(rows: pa.Table) -> pa.ChunkedArray:
    """Return `_key` of each row."""
    added_by = pc.fill_null(rows.column("added_by").cast(pa.string()), "")
    return pc.binary_join_element_wise(rows.column("destination"), added_by, "\0")


def _reused(same: pa.Array, candidates: pa.Table, known: pa.Table) -> pa.Table:
    """Return the uses of paths for which the ledger has only other uses, or which the candidates use several times. Not
    those in `same`."""
    copy = candidates.filter(pc.field("role") == COPY)
    known = known.filter(_among(known, copy))
    uses = copy.group_by(["destination", "added_by"]).aggregate([]).group_by("destination")
    counted = uses.aggregate([([], "count_all")])
    several = counted.filter(pc.field("count_all") > 1).column("destination")
    known_key, doubtful = pc.is_in(use_keys(copy), use_keys(known).combine_chunks()), _among(copy, known)
    doubtful = pc.or_(doubtful, pc.is_in(copy.column("destination"), several.combine_chunks()))
    rows = copy.filter(pc.and_not(doubtful, known_key))
    rows = rows.filter(pc.invert(pc.is_in(use_keys(rows), same)))
    return pa.Table.from_arrays(
        [rows.column(field.name) if field.name in _OF_USE else pa.nulls(rows.num_rows, field.type) for field in SEALED],
        schema=SEALED,
    ).set_column(SEALED.get_field_index("role"), "role", pa.array([REUSED] * rows.num_rows, pa.string()))


def _manifests_to_copy(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield _candidates(pa.Table.from_batches([batch]), phase=1, kind=MANIFEST, file_format="avro", role=COPY)


def _lists_to_copy(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the lists of LISTED rows, to be copied, and the manifests as named."""
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        lists = rows.select(["list_source", "list_destination", "list_size", "snapshot_id"]).filter(
            pc.field("list_destination").is_valid()
        )
        if lists.num_rows:
            lists = lists.rename_columns(["source", "destination", "size_in_bytes", "added_by"])
            lists = lists.group_by(lists.column_names).aggregate([])
            yield _candidates(lists, phase=2, kind=MANIFEST_LIST, file_format="avro", role=COPY)
        named = rows.select(["destination"]).filter(pc.field("destination").is_valid())
        if named.num_rows:
            yield _candidates(first_of_each(named, "destination"), role=NAMED)


def _candidates(rows: pa.Table, **values: int | str) -> pa.RecordBatch:
    """Return FILES rows with the columns of `rows`, and these constant values."""
    columns = {name: pa.array([value] * rows.num_rows) for name, value in values.items()}
    columns |= {name: rows.column(name).combine_chunks() for name in rows.column_names if name in FILES.names}
    absent = pa.nulls(rows.num_rows)
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, absent).cast(field.type) for field in FILES], schema=FILES
    )


def _needed(reused: Callable[..., pa.Table], candidates: pa.Table, known: pa.Table) -> pa.Table:
    """Return SEALED rows: each unknown file to copy, once; the delete files in manifests; the named manifests; and what
    is `reused`."""
    copy = candidates.filter(pc.field("role") == COPY)
    # One Puffin file may have both deletion vectors, which are rewritten, and statistics.
    is_content = pc.is_in(copy.column("kind"), pa.array([*CONTENT_KINDS, MANIFEST, MANIFEST_LIST]))
    contents = copy.filter(is_content).column("destination")
    copy = copy.filter(pc.or_(is_content, pc.invert(pc.is_in(copy.column("destination"), contents.combine_chunks()))))
    new = copy.filter(pc.invert(_among(copy, known)))
    # Take the smallest of each, so that the order of manifests does not matter.
    smallest = ("phase", "kind", "file_format", "source", "role")
    functions = [*((name, "min") for name in smallest), ("size_in_bytes", "max"), ("added_by", "max")]
    files = new.group_by("destination").aggregate(functions)
    files = files.rename_columns([name.removesuffix("_min").removesuffix("_max") for name in files.column_names])
    deletes = copy.filter(pc.field("kind").isin([POSITION_DELETES, DELETION_VECTORS]))
    deletes = deletes.group_by(["manifest", "destination"]).aggregate([])
    named = candidates.filter(pc.field("role") == NAMED).group_by("destination").aggregate([])
    rows = [files, _of_role(deletes, DELETE), _of_role(named, NAMED), reused(copy, known)]
    sealed = pa.concat_tables([SEALED.empty_table(), *rows], promote_options="default")
    buckets = hash_strings(sealed.column("destination").combine_chunks()) % np.uint64(BUCKETS)
    place = SEALED.get_field_index("bucket")
    return sealed.select(SEALED.names).set_column(place, "bucket", pa.array(buckets.astype(np.int64)))


def _of_role(rows: pa.Table, role: str) -> pa.Table:
    return rows.append_column("role", pa.array([role] * rows.num_rows, pa.string()))


def _as_sources(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.rename_columns(["source", "checksum"]) for batch in batches)


def _with_checksums(needed: pa.Table, origin: pa.Table) -> pa.Table:
    # Two concurrent handoffs may have recorded the same file; its content is the same.
    recorded = origin.group_by("source").aggregate([("checksum", "max")])
    places = pc.index_in(needed.column("source"), recorded.column("source").combine_chunks(), skip_nulls=True)
    checksums = recorded.column("checksum_max").take(places)
    return needed.set_column(SEALED.get_field_index("checksum"), "checksum", checksums)


def _among(rows: pa.Table, known: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(rows.column("destination"), known.column("destination").combine_chunks())


def _sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the number of files to copy, and their bytes, by phase and bucket."""
    files, sizes = np.zeros((PHASES, BUCKETS), np.int64), np.zeros((PHASES, BUCKETS), np.int64)
    for batch in batches:
        rows = batch.filter(batch.column("phase").is_valid())
        place = rows.column("phase").to_numpy(), rows.column("bucket").to_numpy()
        np.add.at(files, place, 1)
        known = rows.column("size_in_bytes").fill_null(0).to_numpy()
        np.add.at(sizes, place, np.maximum(known, 0))
    phases, buckets = files.nonzero()
    columns = (phases, buckets, files[phases, buckets], sizes[phases, buckets])
    yield pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=_SIZES)
