"""The files to copy: everything that the wanted snapshots read, except what the ledger already has.

The list is sealed before the first copy, so that a killed handoff or restore continues with the same batches. A
manifest that was copied before is not read again, because the ledger has all its files. The cost depends on the new
manifests.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.cold_tier.demand import (
    BUCKETS,
    COPY,
    DELETE,
    FILES,
    MANIFESTS,
    NAMED,
    PHASES,
    REUSED,
    SEALED,
    Demand,
    Problem,
    Work,
    distinct_manifests,
    frame_folder,
    list_problems,
    manifest_problems,
    named_manifests,
    pack,
    read_lists,
    read_manifests,
    readers,
    store_work,
)
from artemis_lifecycle.cold_tier.evolution import SAME_IDS
from artemis_lifecycle.cold_tier.ledger import PRESENT, CopiedFile, Ledger, is_still
from artemis_lifecycle.cold_tier.paths import PathMapping, is_restored
from artemis_lifecycle.metadata.types import (
    CONTENT_KINDS,
    DELETION_VECTORS,
    MANIFEST,
    MANIFEST_LIST,
    POSITION_DELETES,
    UNKNOWN_LENGTH,
    Snapshot,
    TableMetadata,
)
from artemis_lifecycle.spark.runner import Rows, Runner, first_of_each
from artemis_lifecycle.storage.frames import arrow_schema, write_frame
from artemis_lifecycle.storage.instants import of_microseconds
from artemis_lifecycle.storage.location import LocationRules, hash_strings, normalize
from artemis_lifecycle.storage.stores import Stores, is_local
from artemis_lifecycle.storage.types import NO_TIME

# --- reuse ------------------------------------------------------------------------------------------------------------
# Paths that a table used for several files. A use is a path and the snapshot that added the file there.
#
# Only one file is at a path. If it was written after a use was committed, and a later use is known, then the earlier
# use's file was overwritten. What cannot be decided counts as lost, so that a person decides.

_USES = arrow_schema("destination string, added_by bigint")
_DISK_GRAIN, _STORE_GRAIN = 10_000, 1_000_000
"""Microseconds by which a file may be newer than its modification time."""
_PICKED_FROM = "source-snapshot-id"
"""In the summary of a snapshot: it added the files of that snapshot again (a cherry-pick, as after an audit)."""

Uses = Mapping[str, tuple[int, ...]]
"""The snapshots that added a file at a location, for locations with several."""


def uses_of(runner: Runner, source: Stores, metadata: TableMetadata, rules: LocationRules) -> Uses:
    """Return the locations that the table's snapshots used several times. Reads all manifests, but it is rarely needed.
    Those that cannot be read are omitted."""
    demand = Demand(metadata, tuple(snapshot.snapshot_id for snapshot in metadata.snapshots), _Located(rules))
    with runner.keeping() as keep:
        lists = keep(read_lists(runner, source, demand))
        named = lists.map(named_manifests, MANIFESTS)
        manifests = keep(runner.meet([named], "destination", _distinct_uses, MANIFESTS))
        files = read_manifests(source, demand, manifests).map(_used, _USES)
        both = runner.concat(files, named.map(_used, _USES), lists.map(_lists_used, _USES))
        rows = runner.meet([both], "destination", _several, _USES).table().to_pylist()
    found: dict[str, set[int]] = {}
    for row in rows:
        found.setdefault(row["destination"], set()).add(row["added_by"])
    return {location: tuple(sorted(ids)) for location, ids in found.items()}


def _distinct_uses(named: pa.Table) -> pa.Table:
    return first_of_each(named.append_column("use", use_keys(named)), "use")


def _used(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.is_valid(batch.column("destination"))).select(_USES.names)


def _lists_used(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch.column("list_destination"), batch.column("snapshot_id")]
        yield pa.RecordBatch.from_arrays(columns, schema=_USES).filter(pc.is_valid(columns[0]))


def _several(uses: pa.Table) -> pa.Table:
    uses = uses.filter(pc.field("added_by").is_valid()).group_by(["destination", "added_by"]).aggregate([])
    counted = uses.group_by("destination").aggregate([([], "count_all")])
    several = counted.filter(pc.field("count_all") > 1).column("destination").combine_chunks()
    return uses.filter(pc.is_in(uses.column("destination"), several))


@dataclass(frozen=True)
class _Located:
    """Maps each path to its location."""

    rules: LocationRules
    ids = SAME_IDS

    def __call__(self, path: str) -> str:
        return normalize(path, self.rules)

    def used(self, path: str, added_by: int | None) -> str:
        return self(path)

    meant = used


ARCHIVED_BEFORE = "it was overwritten: snapshot {} added another file there, which was archived before it"

Decided = tuple[Demand, list[tuple[str, int, int]], list[CopiedFile], tuple[Problem, ...]]
"""The demand with the decisions; the uses of other files than the ledger has, as `ColdIdentity.reused`; records of uses
of the same files; and problems: uses of files that are gone or cannot be told apart."""


class Reuse:
    """Decides for one table. `current` is its metadata as of now, if it is newer than the demand's. `committed` and
    `archived` are when each snapshot of the live table and of the archive was committed, in microseconds since 1970."""

    def __init__(
        self,
        runner: Runner,
        source: Stores,
        target: Stores,
        metadata: TableMetadata,
        current: TableMetadata | None,
        archived: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        known = {snapshot.snapshot_id: snapshot for each in (current, metadata) if each for snapshot in each.snapshots}
        self._runner, self._source, self._target = runner, source, target
        self._metadata = replace(metadata, snapshots=tuple(known.values()))
        self._known: Mapping[int, Snapshot] = known
        self._uses: Uses | None = None
        self._archived = archived
        self.committed = {each.snapshot_id: each.timestamp_ms * 1000 for each in known.values()}

    def overwritten(self, path: str, use: int | None, rules: LocationRules) -> int | None:
        """Return a snapshot that added another file at `path` after `use` did; None if none is known."""
        if is_restored(path):
            return None
        if self._uses is None:
            self._uses = uses_of(self._runner, self._source, self._metadata, rules)
        return self._later(use, self._uses.get(normalize(path, rules), ()))

    def _is_aside(self, copy: str) -> bool:
        """Return True if the copy is in the deep archive, even if it is readable for a while: it stands for no other
        snapshot's file."""
        state = self._target.archive_state(copy)
        return state is not None and state.archived

    def decide(self, demand: Demand, ledger: Ledger, rows: pa.Table) -> Decided:
        """Decide for these uses (SEALED rows)."""
        mapping = demand.mapping
        assert isinstance(mapping, PathMapping)
        uses: dict[str, dict[int | None, list[dict[str, Any]]]] = {}
        for row in rows.to_pylist():
            uses.setdefault(row["source"], {}).setdefault(row["added_by"], []).append(row)
        firsts = [next(iter(by.values()))[0] for by in uses.values()]
        heads = self._source.heads([row["source"] for row in firsts])
        places = {row["source"]: (row["destination"], *mapping.places(row["source"])) for row in firsts}
        records = ledger.of_locations(self._runner, mapping, places)
        same = set(demand.same)
        reused: list[tuple[str, int, int]] = []
        aliases: list[CopiedFile] = []
        lost: list[tuple[str, int | None, list[dict[str, Any]]]] = []
        for (path, by), head in zip(uses.items(), heads, strict=True):
            copies = records.get(path, [])
            own = {copy.destination: copy for copy in copies}
            held = next((own[place] for place in reversed(places[path]) if place in own), None)
            if held is not None and head is not None and self._is_aside(held.destination):
                held = replace(held, source_checksum=None, added_by=None)
            for use in sorted(by, key=self._order):
                place, size = by[use][0]["destination"], by[use][0]["size_in_bytes"]
                here = held is not None and held.destination == place
                why = None
                if held is not None and here and self._origin(use) == held.added_by:
                    aliases.append(replace(held, added_by=use, action=PRESENT))
                elif head is None:
                    why = "it is gone, and another file was archived from its path"
                elif (later := self._successor(path, use, by, head.since, mapping.rules)) is not None:
                    when = of_microseconds(head.since).isoformat()
                    # A file that was only touched since looks the same.
                    why = (
                        f"it was overwritten, or touched, after snapshot {later} added a file at its path, too (the "
                        f"one there changed at {when})"
                    )
                elif (other := self.archived_before(copies, use, head.since, path)) is not None:
                    why = ARCHIVED_BEFORE.format(other)
                elif held is None:
                    if size not in (head.size_in_bytes, UNKNOWN_LENGTH):
                        why = f"the file at its path has {head.size_in_bytes} bytes, but the metadata records {size}"
                elif (
                    here
                    and size in (held.source_size, UNKNOWN_LENGTH)
                    # A rewrite in place may keep all that a disk says of a file, so only the content counts.
                    and is_still(None, held.source_checksum, head, self._source)
                ):
                    aliases.append(replace(held, added_by=use, action=PRESENT).of(head.identity, held.source_checksum))
                elif use is None or use not in self._known:
                    why = f"several files were at its path, and snapshot {use}, which added it, is unknown"
                else:
                    reused.append((path, use, self._order(use)[0]))
                    continue
                if why is None:
                    same.add((place, use))
                else:
                    lost.append((why, use, by[use]))
        grown = replace(mapping.identity, reused=(*mapping.identity.reused, *reused))
        decided = replace(demand, mapping=PathMapping(grown, mapping.ids, mapping.sequences), same=frozenset(same))
        return decided, reused, aliases, self._problems(demand, lost)

    def _order(self, use: int | None) -> tuple[int, int]:
        snapshot = None if use is None else self._known.get(use)
        return (-1, -1) if snapshot is None else (snapshot.sequence_number, snapshot.timestamp_ms)

    def _origin(self, use: int | None) -> int | None:
        snapshot = None if use is None else self._known.get(use)
        return use if snapshot is None else snapshot.summary.count(_PICKED_FROM) or use

    def _later(self, use: int | None, others: Iterable[int | None]) -> int | None:
        later = (
            each
            for each in others
            if each is not None and self._origin(each) != self._origin(use) and self._order(each) >= self._order(use)
        )
        return max(later, key=self._order, default=None)

    def _successor(
        self, path: str, use: int | None, others: Iterable[int | None], since: int, rules: LocationRules
    ) -> int | None:
        """Return the snapshot to which the file at `path` (`StoredFile.since`) belongs now, if that is another than
        `use`."""
        if self._is_older(path, use, since):
            return None
        return self._later(use, others) or self.overwritten(path, use, rules)

    def _is_older(self, path: str, use: int | None, since: int) -> bool:
        """Return True if the file has been at its path since before `use` was committed."""
        committed = None if use is None else self.committed.get(use)
        grain = _DISK_GRAIN if is_local(path) else _STORE_GRAIN
        return is_restored(path) or (since != NO_TIME and committed is not None and since + grain <= committed)

    def archived_before(self, copies: Sequence[CopiedFile], use: int | None, since: int, path: str) -> int | None:
        """Return a later snapshot whose file the one at `path` may be: it was archived first, and the live table no
        longer has the snapshot."""
        committed = None if use is None else self.committed.get(use)
        if committed is None or self._is_older(path, use, since):
            return None
        gone = (each.added_by for each in copies if each.added_by not in self._known)
        return next((each for each in gone if each and self._archived.get(each, committed) >= committed), None)

    def _problems(
        self, demand: Demand, lost: Sequence[tuple[str, int | None, list[dict[str, Any]]]]
    ) -> tuple[Problem, ...]:
        named = {row["manifest"] or row["destination"] for _, _, rows in lost for row in rows}
        users = readers(read_lists(self._runner, self._source, demand), named) if lost else {}
        problems = []
        for why, use, rows in lost:
            ids = set[int]()
            for row in rows:
                # Lists and statistics belong to the snapshot itself.
                read_by = set() if row["kind"] == MANIFEST_LIST else users[row["manifest"] or row["destination"]]
                ids |= read_by or {use or 0}
            wanted = ids.intersection(demand.snapshot_ids) or demand.snapshot_ids
            problems.append(Problem(rows[0]["source"], why, tuple(sorted(wanted))))
        return tuple(problems)


_OF_USE = ("kind", "source", "destination", "size_in_bytes", "added_by", "manifest")
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
) -> Work | pa.Table | tuple[Problem, ...]:
    """Find what is needed in `source` and seal it in `folder`, which `records` can access. If metadata cannot be read,
    return the problems and seal nothing; if uses of paths must be decided first, return these."""
    with find_needed(runner, source, demand, ledger) as rows:
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


def count_needed(runner: Runner, source: Stores, demand: Demand, ledger: Ledger) -> Needed:
    """Count what is needed in `source`, without sealing it."""
    with find_needed(runner, source, demand, ledger) as rows:
        if isinstance(rows, tuple):
            return Needed(problems=rows)
        if not isinstance(rows, Rows):
            return Needed(reused=rows)
        sizes = rows.map(_sizes, _SIZES).table()
        return Needed(pc.sum(sizes["files"]).as_py() or 0, pc.sum(sizes["size_in_bytes"]).as_py() or 0)


@contextmanager
def find_needed(
    runner: Runner, source: Stores, demand: Demand, ledger: Ledger
) -> Iterator[Rows | pa.Table | tuple[Problem, ...]]:
    """Yield what is needed (SEALED), which is valid inside the block; or the metadata that cannot be read; or uses of
    paths that may mean several files (role REUSED), which must be decided first."""
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
            files, _statistics(demand), manifests.map(_manifests_to_copy, FILES), lists.map(_lists_to_copy, FILES)
        )
        needed = keep(runner.match(candidates, known, "destination", partial(_needed, find_reused), SEALED))
        reused = needed.between("role", REUSED, REUSED).table() if demand.origin is None else pa.table({})
        if reused.num_rows:
            yield reused
            return
        if demand.origin is not None:
            recorded = demand.origin.rows(runner, ("destination", "checksum"))
            origin = recorded.map(_as_sources, pa.schema([("source", pa.string()), ("checksum", pa.string())]))
            needed = runner.match(needed, origin, "source", _with_checksums, SEALED)
        yield keep(needed)


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
    several = uses.aggregate([([], "count_all")]).filter(pc.field("count_all") > 1).column("destination")
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
        np.add.at(sizes, place, np.maximum(rows.column("size_in_bytes").fill_null(0).to_numpy(), 0))
    phases, buckets = files.nonzero()
    columns = (phases, buckets, files[phases, buckets], sizes[phases, buckets])
    yield pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=_SIZES)
