"""One query's scan, planned: the three passes with their counts and bytes, and the files.

The story: the manifest list alone decides which manifests are read (pass one). Their entries decide which files are
read (pass two), and which deletes apply to them. The footers of some of those files show which row groups are read
(pass three), only if the caller asks: it is the one pass that reads data files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

import pyarrow as pa

from artemis_lifecycle.errors import BadInput, NoSuchSnapshot
from artemis_lifecycle.expiration.curve import drawn, label, new_figure, size_unit
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.types import MAIN_BRANCH, ManifestList, ManifestListEntry, Snapshot, TableMetadata
from artemis_lifecycle.metadata.values import table_schema
from artemis_lifecycle.planning.advice import Advice, Found, Targets, advice
from artemis_lifecycle.planning.deletes import DELETE_PATH, DeleteFile, DeleteIndex, equality_ids
from artemis_lifecycle.planning.predicates import parse_predicate, text_of
from artemis_lifecycle.planning.pruning import Entries, Filter, Selected, manifest_matches, matching_entries
from artemis_lifecycle.planning.row_groups import Pass, read_row_groups
from artemis_lifecycle.spark.runner import Runner, Spark
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.tabular import Shown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.types import NestedField
    from pyspark.sql import DataFrame


# --- query plan -------------------------------------------------------------------------------------------------------
# The result of planning a query: passes, figures, files.

FILES = pa.schema(
    [
        ("path", pa.large_string()),
        ("size_in_bytes", pa.int64()),
        ("record_count", pa.int64()),
        ("spec_id", pa.int64()),
        ("sequence_number", pa.int64()),
        ("residual", pa.large_string()),
        ("deletes", pa.large_list(pa.large_string())),
        ("delete_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True)
class QueryPlan(Shown):
    """What a scan of one snapshot with one predicate reads: exactly the files that Iceberg's planner selects.

    Pass one counts data manifests and delete manifests together. `files_total` counts the live data files of the whole
    snapshot, from the manifest list, and None is what an old list does not say; `files_read` are the entries of the
    manifests that pass one left. `delete_files` are those that apply to a selected file; `delete_opens` counts one for
    each file they apply to, as readers open them. Row groups are None unless footers were read, of `footers_read`
    files.
    """

    table: str
    metadata_location: str
    snapshot_id: int | None
    predicate: str
    manifests: Pass
    files_pass: Pass
    row_groups: Pass | None
    manifests_total: int
    manifests_selected: int
    delete_manifests_total: int
    delete_manifests_selected: int
    files_total: int | None
    files_read: int
    files_in_partition: int
    files_selected: int
    files_without_residual: int
    bytes_selected: int
    records_selected: int
    delete_files: Mapping[str, int]
    delete_bytes: int
    delete_opens: int
    footers_read: int
    footers_skipped: Mapping[str, int]
    advice: tuple[Advice, ...]
    seconds: float
    _files: pa.Table = field(repr=False, compare=False)
    _spark: Spark | None = field(default=None, repr=False, compare=False)

    @property
    def row_groups_total(self) -> int | None:
        """The row groups of the files whose footers were read."""
        return None if self.row_groups is None else self.row_groups.total

    @property
    def row_groups_selected(self) -> int | None:
        return None if self.row_groups is None else self.row_groups.selected

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes that ran."""
        return tuple(each for each in (self.manifests, self.files_pass, self.row_groups) if each is not None)

    def figures(self) -> dict[str, object]:
        """Return the plan without its files, by name: the passes and the advice as dictionaries."""
        names = [each.name for each in fields(self) if not each.name.startswith("_")]
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        saved = ("requests_saved", "bytes_saved", "seconds_saved")
        found["advice"] = [asdict(each) | {name: getattr(each, name) for name in saved} for each in self.advice]
        return found

    def to_arrow(self) -> pa.Table:
        """Return the selected data files with the columns of FILES: `residual` is what remains of the predicate for the
        rows of the file, `deletes` the paths of the delete files that apply to it."""
        return self._files

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as pandas."""
        frame: pd.DataFrame = self._files.to_pandas()
        return frame

    def files(self) -> DataFrame:
        """Return `to_arrow` as a DataFrame of Spark, which this starts if necessary."""
        if self._spark is None:
            raise BadInput("The plan has no Spark session", table=self.table, hint="use to_arrow() or to_pandas()")
        kinds = {pa.large_string(): pa.string(), pa.large_list(pa.large_string()): pa.list_(pa.string())}
        schema = pa.schema([(each.name, kinds.get(each.type, each.type)) for each in FILES])
        return Runner(self._spark).rows(self._files.cast(schema)).frame()

    def plot(self, kind: str = "png") -> bytes:
        """Return the passes as a picture: what each gets and leaves, and what maintenance would spare."""
        return plan_picture(f"{self.table}: {self.predicate}", self.passes, self.advice, kind)


_LEFT, _PRUNED, _SPARED = "#1f6f8b", "#d5dde3", "#e59866"


# --- picture ----------------------------------------------------------------------------------------------------------
# A query's plan as a picture: what each pass leaves, and what maintenance would spare.


def plan_picture(title: str, passes: Sequence[Pass], advice: Sequence[Advice], kind: str) -> bytes:
    """Return the picture of a plan, as `png` or `svg`."""
    figure = new_figure(11, 3.6)
    figure.suptitle(label(title, 100), fontsize=10)
    panels = figure.subplots(1, 2 if advice else 1, squeeze=False)[0]
    _passes(panels[0], passes)
    if advice:
        _advice(panels[1], advice)
    return drawn(figure, kind)


def _passes(panel: Axes, every: Sequence[Pass]) -> None:
    """Shares of what each pass gets; counts and bytes beside them. The first pass is on top."""
    passes = every[::-1]
    names = [each.name for each in passes]
    left = [100 * each.selected / each.total if each.total else 0 for each in passes]
    panel.barh(names, left, color=_LEFT, label="read on")
    bars = panel.barh(names, [100 - each for each in left], left=left, color=_PRUNED, label="pruned")
    texts = []
    for each in passes:
        unit, name = size_unit(each.bytes_selected)
        texts.append(f" {each.selected:,} of {each.total:,}, {each.bytes_selected / unit:,.1f} {name}")
    panel.bar_label(bars, texts, padding=2, fontsize=8)
    panel.set(xlabel="% of what the pass gets", title="What each pass leaves", xlim=(0, 190))
    panel.set_xticks([0, 25, 50, 75, 100])
    panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=2)


def _advice(panel: Axes, advice: Sequence[Advice]) -> None:
    found = advice[::-1]
    bars = panel.barh([each.kind for each in found], [each.seconds_saved for each in found], color=_SPARED)
    panel.bar_label(bars, [f" {each.now:,} → {each.then:,} reads" for each in found], padding=2, fontsize=8)
    panel.margins(x=0.45)
    panel.set(xlabel="seconds, one request after another", title="What maintenance would spare")


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
    began = time.monotonic()
    if query.footers < 0:
        raise BadInput(f"footers={query.footers} is negative", table=table, hint="0 reads none")
    predicate = parse_predicate(query.predicate)
    snapshot, schema_id = _snapshot(table, metadata, query)
    condition = Filter.of(predicate, table, metadata, schema_id, case_sensitive=query.case_sensitive)
    first = _first_pass(stores, snapshot, condition)
    started = time.monotonic()
    read = _read_entries(stores, first.selected, condition)
    seconds, files = time.monotonic() - started, [file for part in read.data for file in part.selected]
    second = Pass(
        "data files",
        sum(part.files for part in read.data),
        len(files),
        sum(part.size_in_bytes for part in read.data),
        sum(file.live.size_in_bytes for file in files),
        len(first.selected),
        _bytes(first.selected),
        seconds,
    )
    paths = [(file.live.path, file.partition.residual) for file in files]
    third, skipped = read_row_groups(stores, paths, query.footers) if query.footers else (None, {})
    known = Found(
        manifests=first.listed.entries,
        selected=first.selected,
        in_partition=sum(part.in_partition for part in read.data),
        files=files,
        deletes=[[read.deletes[place].live.size_in_bytes for place in places] for places in read.applicable],
        delete_sizes=[read.deletes[place].live.size_in_bytes for place in read.used],
    )
    rows = _rows(files, read)
    counts = [each.live_files_count for each in first.listed.entries if each.content == 0]
    return QueryPlan(
        table=table,
        metadata_location=metadata.metadata_location,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        predicate=text_of(condition.residual),
        manifests=first.figures,
        files_pass=second,
        row_groups=third,
        manifests_total=first.figures.total,
        manifests_selected=first.figures.selected,
        delete_manifests_total=sum(each.content == 1 for each in first.listed.entries),
        delete_manifests_selected=sum(each.content == 1 for each in first.selected),
        files_total=None if None in counts else sum(each or 0 for each in counts),
        files_read=second.total,
        files_in_partition=known.in_partition,
        files_selected=len(files),
        files_without_residual=rows.column("residual").to_pylist().count("true"),
        bytes_selected=second.bytes_selected,
        records_selected=sum(file.live.record_count for file in files),
        delete_files=dict(sorted(Counter(read.deletes[place].live.kind for place in read.used).items())),
        delete_bytes=sum(known.delete_sizes),
        delete_opens=sum(map(len, read.applicable)),
        footers_read=0 if third is None else third.reads_requests,
        footers_skipped=skipped,
        advice=advice(known, targets),
        seconds=time.monotonic() - began,
        _files=rows,
        _spark=spark,
    )


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
class _FirstPass:
    listed: ManifestList
    selected: list[ManifestListEntry]
    figures: Pass


def _first_pass(stores: Stores, snapshot: Snapshot | None, condition: Filter) -> _FirstPass:
    started = time.monotonic()
    listed = ManifestList(None, 0, ()) if snapshot is None else manifests_of(stores, snapshot)
    selected = [each for each in listed.entries if manifest_matches(each, condition, listed.path or "")]
    figures = Pass(
        "manifests",
        len(listed.entries),
        len(selected),
        _bytes(listed.entries),
        _bytes(selected),
        int(listed.path is not None),
        listed.size_in_bytes,
        time.monotonic() - started,
    )
    return _FirstPass(listed, selected, figures)


def _bytes(manifests: Sequence[ManifestListEntry]) -> int:
    return sum(max(each.manifest_length, 0) for each in manifests)


@dataclass(frozen=True)
class _Read:
    """What the manifests of a scan have: data files; delete files; for each data file the places of those that apply to
    it; and the places of all that apply to any."""

    data: list[Entries]
    deletes: Sequence[DeleteFile]
    applicable: list[list[int]]
    used: list[int]


def _read_entries(stores: Stores, manifests: Sequence[ManifestListEntry], condition: Filter) -> _Read:
    deleting = [each for each in manifests if each.content == 1]

    def deletes(further: Iterable[int]) -> list[Selected]:
        parts = matching_entries(stores, deleting, condition, [DELETE_PATH, *further])
        return [each for part in parts for each in part.selected]

    found = deletes(())
    fields = _fields(condition.metadata, equality_ids(found))
    index = DeleteIndex([DeleteFile.of(each) for each in (deletes(fields) if fields else found)], fields)
    data = list(matching_entries(stores, [each for each in manifests if each.content == 0], condition, fields))
    applicable = [index.applicable(file) for part in data for file in part.selected]
    return _Read(data, index.deletes, applicable, sorted({place for places in applicable for place in places}))


def _rows(files: Sequence[Selected], read: _Read) -> pa.Table:
    residuals = {id(file.partition): file.partition for file in files}
    texts = {key: text_of(partition.residual) for key, partition in residuals.items()}
    deletes = [[read.deletes[place].live for place in places] for places in read.applicable]
    columns = {
        "path": [file.live.path for file in files],
        "size_in_bytes": [file.live.size_in_bytes for file in files],
        "record_count": [file.live.record_count for file in files],
        "spec_id": [file.partition.key[0] for file in files],
        "sequence_number": [file.live.sequence_number for file in files],
        "residual": [texts[id(file.partition)] for file in files],
        "deletes": [[each.path for each in lives] for lives in deletes],
        "delete_bytes": [sum(each.size_in_bytes for each in lives) for lives in deletes],
    }
    return pa.table(columns, schema=FILES)


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
