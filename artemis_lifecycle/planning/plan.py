"""One query's scan, planned: the three passes with their counts and bytes, and the files.

The story: the manifest list alone decides which manifests are read (pass one). Their entries decide which files are
read (pass two), and which deletes apply to them. The footers of some of those files show which row groups are read
(pass three), only if the caller asks: it is the one pass that reads data files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.errors import BadInput, NoSuchSnapshot
from artemis_lifecycle.metadata.summaries import SummarizedManifests, summarized_manifests
from artemis_lifecycle.metadata.types import MAIN_BRANCH, Snapshot, TableMetadata
from artemis_lifecycle.metadata.values import table_schema
from artemis_lifecycle.planning.advice import Found, Targets, advice
from artemis_lifecycle.planning.deletes import (
    DELETE_PATH,
    DataFiles,
    DeleteFiles,
    applicable,
    concatenated,
    delete_files,
    equality_columns,
    joined_metrics,
    joined_texts,
    partition_groups,
)
from artemis_lifecycle.planning.passes import Pass
from artemis_lifecycle.planning.predicates import bind_predicate, node_of, parse_predicate, text_of, without_not
from artemis_lifecycle.planning.pruning import Entries, Filter, filter_specs, matching_entries, matching_manifests
from artemis_lifecycle.planning.query_plan import FILES, QueryPlan
from artemis_lifecycle.planning.residuals import residual
from artemis_lifecycle.planning.row_groups import RowGroups, read_row_groups
from artemis_lifecycle.spark.runner import Spark
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.types import IcebergType, NestedField


@dataclass(frozen=True)
class Query:
    """What to plan. `ref` is a branch or a tag; without it and `snapshot_id`, the current snapshot. `footers`: how many
    data files' footers pass three may read; 0 leaves it out."""

    predicate: str | BooleanExpression = "true"
    snapshot_id: int | None = None
    ref: str | None = None
    case_sensitive: bool = True
    footers: int = 0


def plan_query(
    stores: Stores, table: str, metadata: TableMetadata, query: Query, targets: Targets, spark: Spark | None = None
) -> QueryPlan:
    """Plan a query of `table` as `metadata` has it. Changes nothing and starts no Spark.

    Raises BadInput (a predicate or ref that cannot be used, before anything is read), NoSuchSnapshot,
    UnreadableMetadata, EncryptedTable.
    """
    from pyiceberg.expressions import AlwaysTrue

    began = time.monotonic()
    if query.footers < 0:
        raise BadInput(f"footers={query.footers} is negative", table=table, hint="0 reads none")
    parsed = parse_predicate(query.predicate)
    snapshot, schema_id = _snapshot(table, metadata, query)
    schema = table_schema(metadata, schema_id)
    bound = bind_predicate(parsed, schema, table, case_sensitive=query.case_sensitive)
    condition = Filter(
        pruning=node_of(without_not(bound)),
        residual=node_of(bound),
        specs=filter_specs(metadata, schema),
        reads_all=isinstance(parsed, AlwaysTrue),
    )
    return _Planning(stores, table, metadata, snapshot, condition, targets, query.footers, spark, began).plan()


def _snapshot(table: str, metadata: TableMetadata, query: Query) -> tuple[Snapshot | None, int]:
    """Return the snapshot, and the schema that Iceberg scans it with: the table's for the current snapshot and for
    branches, else the snapshot's own."""
    if query.ref is not None and query.snapshot_id is not None:
        raise BadInput("A query has a snapshot and a ref", table=table, hint="pass one of them")
    if query.snapshot_id is not None:
        snapshot = metadata.snapshot(query.snapshot_id)
        if snapshot is None:
            raise NoSuchSnapshot(
                f"The table has no snapshot {query.snapshot_id}",
                table=table,
                hint=f"artemis history {table} lists them",
            )
        return snapshot, _schema_id(metadata, snapshot)
    if query.ref is None or query.ref == MAIN_BRANCH:
        return metadata.current_snapshot, metadata.current_schema_id
    ref = metadata.refs.get(query.ref)
    if ref is None or metadata.snapshot(ref.snapshot_id) is None:
        names = ", ".join(sorted(metadata.refs)[:10])
        raise NoSuchSnapshot(f"The table has no ref {query.ref!r}", table=table, hint=f"it has {names or 'none'}")
    found = metadata.snapshot(ref.snapshot_id)
    assert found is not None
    return found, metadata.current_schema_id if ref.is_branch else _schema_id(metadata, found)


def _schema_id(metadata: TableMetadata, snapshot: Snapshot) -> int:
    # Iceberg prunes the current snapshot by the table's schema, even if it was asked for by its id.
    is_current = snapshot.snapshot_id == metadata.current_snapshot_id
    return metadata.current_schema_id if is_current or snapshot.schema_id is None else snapshot.schema_id


@dataclass(frozen=True)
class _Planning:
    stores: Stores
    table: str
    metadata: TableMetadata
    snapshot: Snapshot | None
    condition: Filter
    targets: Targets
    footers: int
    spark: Spark | None
    began: float

    def plan(self) -> QueryPlan:
        started = time.monotonic()
        found = None
        if self.snapshot is not None:
            found = summarized_manifests(self.stores, self.snapshot, self.metadata)
        selected = np.zeros(0, np.bool_) if found is None else matching_manifests(found, self.condition)
        first = self._first_pass(found, selected, time.monotonic() - started)
        started = time.monotonic()
        data, deletes, fields = self._entries(found, selected)
        groups = partition_groups([*data, *deletes])
        erased = delete_files(deletes, groups[len(data) :], fields)
        files = DataFiles(
            joined_texts(part.texts("file_path") for part in data),
            concatenated(part.sequence_numbers for part in data),
            concatenated(groups[: len(data)]),
            {each: joined_metrics([part.metrics[each] for part in data]) for each in fields} if data else {},
        )
        of_data, of_delete = applicable(erased, files, fields)
        residuals = _distinct_residuals(self.condition, data)
        rows = self._rows(data, files, erased, of_data, of_delete, residuals)
        second = self._second_pass(found, selected, data, rows, time.monotonic() - started)
        started = time.monotonic()
        third = None
        if self.footers:
            third = read_row_groups(self.stores, rows, residuals, self.footers)
        return self._result(
            found, selected, first, second, third, time.monotonic() - started, data, rows, erased, files, of_delete
        )

    def _first_pass(self, found: SummarizedManifests | None, selected: NDArray[np.bool_], seconds: float) -> Pass:
        if found is None:
            return Pass("manifests", 0, 0, 0, 0, 0, 0, seconds)
        lengths = np.maximum(found.listed.lengths, 0)
        return Pass(
            "manifests",
            len(found),
            int(selected.sum()),
            int(lengths.sum()),
            int(lengths[selected].sum()),
            int(found.listed.path is not None),
            found.listed.size_in_bytes,
            seconds,
        )

    def _entries(
        self, found: SummarizedManifests | None, selected: NDArray[np.bool_]
    ) -> tuple[list[Entries], list[Entries], dict[int, NestedField]]:
        """Return data entries, delete entries, and the columns that equality deletes compare."""
        if found is None:
            return [], [], {}
        contents = found.listed.contents
        erasing = np.flatnonzero(selected & (contents == 1))
        from pyiceberg.types import StringType

        paths: dict[int, IcebergType] = {DELETE_PATH: StringType()}
        deletes = list(matching_entries(self.stores, found, erasing, self.condition, paths))
        deletes = [part for part in deletes if len(part)]
        ids = equality_columns(deletes)
        fields = _fields(self.metadata, ids)
        kinds = {each: fields[each].field_type for each in fields}
        if ids:
            again = matching_entries(self.stores, found, erasing, self.condition, {**paths, **kinds})
            deletes = [part for part in again if len(part)]
        reading = np.flatnonzero(selected & (contents == 0))
        return list(matching_entries(self.stores, found, reading, self.condition, kinds)), deletes, fields

    def _rows(
        self,
        data: Sequence[Entries],
        files: DataFiles,
        erased: DeleteFiles,
        of_data: NDArray[np.int64],
        of_delete: NDArray[np.int64],
        residuals: tuple[list, NDArray[np.int64]],  # type: ignore[type-arg]
    ) -> pa.Table:
        bounds = np.searchsorted(of_data, np.arange(len(files) + 1))
        paths = erased.paths.take(pa.array(of_delete))
        sizes = np.concatenate([[0], np.cumsum(erased.sizes[of_delete])])
        texts, codes = residuals
        columns = {
            "path": files.paths,
            "size_in_bytes": concatenated(part.live.sizes[part.rows] for part in data),
            "record_count": concatenated(part.live.record_counts[part.rows] for part in data),
            "spec_id": concatenated(np.full(len(part), part.spec_id) for part in data),
            "sequence_number": files.sequence_numbers,
            "residual": pa.array([text_of(each) for each in texts], pa.large_string()).take(pa.array(codes)),
            "deletes": pa.LargeListArray.from_arrays(pa.array(bounds, pa.int64()), paths),
            "delete_bytes": sizes[bounds[1:]] - sizes[bounds[:-1]],
        }
        return pa.table(columns, schema=FILES)

    def _second_pass(
        self,
        found: SummarizedManifests | None,
        selected: NDArray[np.bool_],
        data: Sequence[Entries],
        rows: pa.Table,
        seconds: float,
    ) -> Pass:
        lengths = np.zeros(0, np.int64) if found is None else np.maximum(found.listed.lengths[selected], 0)
        return Pass(
            "data files",
            sum(part.seen.files for part in data),
            rows.num_rows,
            sum(part.seen.size_in_bytes for part in data),
            pc.sum(rows.column("size_in_bytes")).as_py() or 0,
            int(selected.sum()),
            int(lengths.sum()),
            seconds,
        )

    def _result(
        self,
        found: SummarizedManifests | None,
        selected: NDArray[np.bool_],
        first: Pass,
        second: Pass,
        third: RowGroups | None,
        third_seconds: float,
        data: Sequence[Entries],
        rows: pa.Table,
        erased: DeleteFiles,
        files: DataFiles,
        of_delete: NDArray[np.int64],
    ) -> QueryPlan:
        used = np.unique(of_delete)
        contents = np.zeros(0, np.int64) if found is None else found.listed.contents
        residuals = rows.column("residual")
        known = Found(
            manifests=found,
            selected=selected,
            in_partition=sum(part.seen.in_partition for part in data),
            sizes=rows.column("size_in_bytes").to_numpy(),
            groups=files.groups,
            delete_bytes=int(erased.sizes[used].sum()),
            delete_files=len(used),
            delete_opens=len(of_delete),
            opened_delete_bytes=int(erased.sizes[of_delete].sum()),
            files_with_deletes=int((rows.column("delete_bytes").to_numpy() > 0).sum()),
        )
        kinds: dict[str, int] = {}
        for row in used.tolist():
            kinds[erased.kinds[row]] = kinds.get(erased.kinds[row], 0) + 1
        return QueryPlan(
            table=self.table,
            metadata_location=self.metadata.metadata_location,
            snapshot_id=None if self.snapshot is None else self.snapshot.snapshot_id,
            predicate=text_of(self.condition.residual),
            manifests=first,
            files_pass=second,
            row_groups=None
            if third is None
            else Pass(
                "row groups",
                third.total,
                third.selected,
                third.bytes_total,
                third.bytes_selected,
                third.files,
                third.footer_bytes,
                third_seconds,
            ),
            manifests_total=len(contents),
            manifests_selected=int(selected.sum()),
            delete_manifests_total=int((contents == 1).sum()),
            delete_manifests_selected=int((selected & (contents == 1)).sum()),
            files_total=_live_files(found),
            files_read=second.total,
            files_in_partition=known.in_partition,
            files_selected=rows.num_rows,
            files_without_residual=pc.sum(pc.equal(residuals, "true")).as_py() or 0,
            bytes_selected=second.bytes_selected,
            records_selected=pc.sum(rows.column("record_count")).as_py() or 0,
            delete_files=dict(sorted(kinds.items())),
            delete_bytes=known.delete_bytes,
            delete_opens=known.delete_opens,
            footers_read=0 if third is None else third.files,
            footers_skipped={} if third is None else third.skipped,
            advice=advice(known, self.targets),
            seconds=time.monotonic() - self.began,
            _files=rows,
            _spark=self.spark,
        )


def _fields(metadata: TableMetadata, ids: set[int]) -> dict[int, NestedField]:
    """Return the newest field of each id, of all schemas. Ids that no schema has are left out."""
    found: dict[int, NestedField] = {}
    for schema_id in sorted(metadata.schemas) if ids else ():
        schema = table_schema(metadata, schema_id)
        for each in ids:
            try:
                found[each] = schema.find_field(each)
            except ValueError:
                continue
    return found


def _distinct_residuals(condition: Filter, data: Sequence[Entries]) -> tuple[list, NDArray[np.int64]]:  # type: ignore[type-arg]
    """Return the distinct residuals, and the number of the one of each file."""
    if not any(len(part) for part in data):
        return [], np.zeros(0, np.int64)
    states = np.concatenate([part.states for part in data])
    distinct, codes = np.unique(states, axis=0, return_inverse=True)
    return [residual(condition.residual, each) for each in distinct.tolist()], codes.ravel().astype(np.int64)


def _live_files(found: SummarizedManifests | None) -> int | None:
    if found is None:
        return 0
    data = found.listed.contents == 0
    added, existing = found.listed.added[data], found.listed.existing[data]
    return None if (added < 0).any() or (existing < 0).any() else int(added.sum() + existing.sum())
