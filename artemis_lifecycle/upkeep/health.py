"""A table's health in numbers, from the manifests of the current snapshot. Reads only."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.commits.actions import unanalyzed_records
from artemis_lifecycle.config.policies import Checks, ScoreLimits
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import live_partitions
from artemis_lifecycle.metadata.types import UNKNOWN_LENGTH, ManifestListEntry, Ref, TableMetadata
from artemis_lifecycle.metadata.values import mixed_manifests
from artemis_lifecycle.operations.fleet import HealthRecord
from artemis_lifecycle.spark.runner import Cost, Runner, Spark
from artemis_lifecycle.storage.frames import arrow_schema
from artemis_lifecycle.storage.instants import milliseconds
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.tabular import Shown
from artemis_lifecycle.upkeep.costs import CommitCosts

if TYPE_CHECKING:
    import pandas as pd


TARGET_FILE_SIZE = "write.target-file-size-bytes"
TARGET_FILE_SIZE_DEFAULT = 512 * 1024 * 1024
MIN_INPUT_FILES = 5
"""Iceberg's own `min-input-files`: fewer small files of a partition are not worth a rewrite."""

TARGET_MANIFEST_SIZE = "commit.manifest.target-size-bytes"
TARGET_MANIFEST_SIZE_DEFAULT = 8 * 1024 * 1024

SMALL = 0.75
"""Iceberg's own `min-file-size-bytes`, as a share of the target."""

_COUNTED = ["files", "bytes", "records", "small", "small_bytes"]
_NOTHING = dict.fromkeys([*_COUNTED, "rewritable", "rewritten"], 0)
_PARTITIONS = "content bigint, partition string, " + ", ".join(f"{name} bigint" for name in _COUNTED)
_TOTALS = "content bigint, " + ", ".join(f"{name} bigint" for name in _NOTHING)
_WORK = (
    "partition string, files bigint, bytes bigint, rewritable bigint, rewritable_bytes bigint, rewritten bigint, "
    "delete_files bigint, delete_bytes bigint"
)


@dataclass(frozen=True)
class HealthPart:
    """One part of a table's health: a figure, and what it costs.

    `score` is 100 times what the part's work costs a fit table, by what it costs this one; None if it is unknown.
    `seconds` is how much longer one connection plans or reads the whole table; None if the part costs no time.
    `per_read` is the price of the requests behind them, `per_month` that of the storage; None without a price.
    `wasted_bytes` are stored for nothing; None if the part is not about that.
    `gain` is how many points the table's score gains once the part is fit. `next_step` is the command that makes it
    fit; None while it is not due.
    """

    name: str
    score: float | None
    figure: float | None
    unit: str
    why: str
    seconds: float | None = None
    per_read: float | None = None
    per_month: float | None = None
    gain: float = 0.0
    next_step: str | None = None
    wasted_bytes: int | None = None


@dataclass(frozen=True)
class TableHealth(Shown):
    """The current snapshot's files, and the metadata around it. Sizes in bytes, ages in seconds.

    `score`, from 0 to 100, is the product of the scores of `parts`; `maintenance.score` has the formula. Both are
    empty in a measurement that was not scored.

    A data file is small under three quarters of the table's target size. `rewritable_files` counts the small files in
    partitions that have at least MIN_INPUT_FILES of them: what a compaction would take, for `rewritten_files` of the
    target size. `delete_file_ratio` is delete
    files (deletion vectors too) per data file. `fewest_manifests` is how many of `target_manifest_bytes` would do.
    `metadata_bytes` is what planning reads: metadata file, manifest list,
    manifests. `mixed_manifests` of several partitions are read, on average, by a query of one value of the first
    partition field. `unanalyzed_records` changed since the newest NDV statistics. All is 0 for a table without a
    snapshot.
    """

    table: str
    metadata_location: str
    snapshots: int
    refs: int
    snapshot_age_seconds: float
    oldest_snapshot_age_seconds: float
    metadata_age_seconds: float
    data_files: int
    data_bytes: int
    records: int
    small_files: int
    rewritable_files: int
    rewritten_files: int
    delete_files: int
    delete_bytes: int
    deleted_records: int
    manifests: int
    manifest_bytes: int
    manifest_list_bytes: int
    metadata_file_bytes: int
    target_file_bytes: int
    target_manifest_bytes: int
    fewest_manifests: int
    unanalyzed_records: int = 0
    mixed_manifests: int = 0
    score: float | None = None
    parts: tuple[HealthPart, ...] = ()

    @property
    def small_files_share(self) -> float:
        """Small files among the data files, from 0 to 1."""
        return self.small_files / self.data_files if self.data_files else 0.0

    @property
    def rewritable_share(self) -> float:
        """Files that a compaction would take among the data files, from 0 to 1."""
        return self.rewritable_files / self.data_files if self.data_files else 0.0

    @property
    def delete_file_ratio(self) -> float:
        return self.delete_files / self.data_files if self.data_files else 0.0

    @property
    def average_manifest_bytes(self) -> float:
        return self.manifest_bytes / self.manifests if self.manifests else 0.0

    @property
    def metadata_bytes(self) -> int:
        return self.metadata_file_bytes + self.manifest_list_bytes + self.manifest_bytes

    @property
    def next_part(self) -> HealthPart | None:
        """The part to work on next: that of the greatest gain among those that are due. None if nothing is due."""
        due = [part for part in self.parts if part.next_step is not None]
        return max(due, key=lambda part: part.gain, default=None)

    def figures(self) -> dict[str, object]:
        """Every figure and ratio above, by name."""
        return {name: value for name, value in asdict(self).items() if name != "parts"} | {
            "small_files_share": self.small_files_share,
            "rewritable_share": self.rewritable_share,
            "delete_file_ratio": self.delete_file_ratio,
            "average_manifest_bytes": self.average_manifest_bytes,
            "metadata_bytes": self.metadata_bytes,
        }

    def to_pandas(self) -> pd.DataFrame:
        """Two columns, `figure` object and `value` object: every figure and ratio above, one row each."""
        import pandas as pd

        return pd.DataFrame(list(self.figures().items()), columns=["figure", "value"]).astype("object")


def figure(health: TableHealth | HealthRecord, name: str) -> int:
    """Return a count of a health, or of its record; 0 if an earlier version recorded it without."""
    found = health.figures.get(name, 0) if isinstance(health, HealthRecord) else getattr(health, name)
    return int(found)


def target_file_size(metadata: TableMetadata) -> int:
    """The size in bytes that the table's writers aim at."""
    return int(metadata.properties.get(TARGET_FILE_SIZE, TARGET_FILE_SIZE_DEFAULT))


def small_file_size(metadata: TableMetadata) -> int:
    """The size in bytes below which a data file is small."""
    return int(target_file_size(metadata) * SMALL)


def target_manifest_size(metadata: TableMetadata) -> int:
    """The size in bytes that the table's manifests are merged up to."""
    return int(metadata.properties.get(TARGET_MANIFEST_SIZE, TARGET_MANIFEST_SIZE_DEFAULT))


def table_health(
    spark: Spark | None, stores: Stores, table: str, metadata: TableMetadata, now: datetime
) -> TableHealth:
    """Measure `table` as `metadata` has it; `now` is what ages count to. Without `spark`, all is read in this process.
    Raises UnreadableMetadata."""
    current = metadata.current_snapshot
    target = target_file_size(metadata)
    target_manifest = target_manifest_size(metadata)
    listed: Sequence[ManifestListEntry] = ()
    data = deletes = _NOTHING
    if current is not None:
        listed = manifests_of(stores, current).entries
        for row in _by_content(Runner(spark), stores, listed, target):
            found = {name: row[name] for name in _NOTHING}
            if row["content"] == 0:
                data = found
            else:
                deletes = {name: deletes[name] + found[name] for name in _NOTHING}
    manifest_bytes = sum(_length(stores, each) for each in listed)
    return TableHealth(
        table=table,
        metadata_location=metadata.metadata_location,
        data_files=data["files"],
        data_bytes=data["bytes"],
        records=data["records"],
        small_files=data["small"],
        rewritable_files=data["rewritable"],
        rewritten_files=data["rewritten"],
        delete_files=deletes["files"],
        delete_bytes=deletes["bytes"],
        deleted_records=deletes["records"],
        manifests=len(listed),
        manifest_bytes=manifest_bytes,
        manifest_list_bytes=0 if current is None else _size(stores, current.manifest_list),
        metadata_file_bytes=_size(stores, metadata.metadata_location),
        target_file_bytes=target,
        target_manifest_bytes=target_manifest,
        # Data and delete manifests are never merged with each other, nor are those of two partition specs.
        fewest_manifests=math.ceil(manifest_bytes / target_manifest) + len(metadata.partition_specs),
        unanalyzed_records=unanalyzed_records(metadata),
        mixed_manifests=mixed_manifests(listed, metadata),
        **_ages(metadata, now),
    )


_COLUMNS = [each.name for each in fields(HealthRecord) if each.name in TableHealth.__dataclass_fields__]


def record_of(health: TableHealth, table_uuid: str, measured_at: datetime, scored_at: datetime) -> HealthRecord:
    """Return what to record of a scored health."""
    counted = {name: value for name, value in vars(health).items() if type(value) is int and name not in _COLUMNS}
    columns = {name: getattr(health, name) for name in _COLUMNS}
    return HealthRecord(table_uuid=table_uuid, measured_at=measured_at, scored_at=scored_at, figures=counted, **columns)


def of_record(record: HealthRecord, table: str, metadata: TableMetadata, now: datetime) -> TableHealth:
    """Return the recorded figures of `metadata`, with the ages of `now` and without a score."""
    columns = {name: getattr(record, name) for name in _COLUMNS} | {"table": table, "score": None}
    return TableHealth(**columns | dict(record.figures) | _ages(metadata, now))


def _ages(metadata: TableMetadata, now: datetime) -> dict[str, Any]:
    current = metadata.current_snapshot
    times = [snapshot.timestamp_ms for snapshot in metadata.snapshots]
    return {
        "snapshots": len(metadata.snapshots),
        "refs": len(metadata.refs),
        "snapshot_age_seconds": _age(now, current.timestamp_ms if current is not None else None),
        "oldest_snapshot_age_seconds": _age(now, min(times, default=None)),
        "metadata_age_seconds": _age(now, metadata.last_updated_ms),
    }


def _by_content(
    runner: Runner, stores: Stores, listed: Sequence[ManifestListEntry], target: int
) -> list[dict[str, int]]:
    """Return the totals of these manifests' files, by content (columns: `_TOTALS`)."""
    totals = _met(runner, stores, listed, target, partial(_summed, target), _TOTALS)
    found: list[dict[str, int]] = _sums(totals, ["content"], list(_NOTHING)).to_pylist()
    return found


def partitions_with_work(spark: Spark, stores: Stores, metadata: TableMetadata) -> pa.Table:
    """Return the partitions of the current snapshot that have delete files, or small files in company: `partition`
    string as in `live_partitions`, and counts (int64) `files`, `bytes`, `rewritable`, `rewritable_bytes`, `rewritten`,
    `delete_files`, `delete_bytes`. Raises UnreadableMetadata."""
    current, target = metadata.current_snapshot, target_file_size(metadata)
    listed = () if current is None else manifests_of(stores, current).entries
    return _met(Runner(spark), stores, listed, target, partial(_with_work, target), _WORK)


def _met(
    runner: Runner,
    stores: Stores,
    listed: Sequence[ManifestListEntry],
    target: int,
    reduce: Callable[[pa.Table], pa.Table],
    columns: str,
) -> pa.Table:
    """Count the manifests' files by partition, and return what `reduce` makes of all counts of a partition."""
    rows = sum((each.added_files_count or 0) + (each.existing_files_count or 0) for each in listed)
    cost = Cost(len(listed), rows, sum(max(each.manifest_length, 0) for each in listed))
    manifests = pa.table({"manifest": pa.array([pickle.dumps(each) for each in listed], pa.binary())})
    parts = runner.map(manifests, partial(_by_partition, stores, int(target * SMALL)), arrow_schema(_PARTITIONS), cost)
    return runner.meet([parts], "partition", reduce, arrow_schema(columns), Cost(rows=rows)).table()


def _by_partition(stores: Stores, small_below: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count each manifest's files by partition (columns: `_PARTITIONS`)."""
    for payload in (each for batch in batches for each in batch.column("manifest").to_pylist()):
        found = live_partitions(stores, pickle.loads(payload))
        sizes = found.column("file_size_in_bytes")
        is_small = pc.and_(pc.equal(found.column("content"), 0), pc.less(sizes, small_below))
        files = {
            "content": found.column("content").cast(pa.int64()),
            "partition": found.column("partition"),
            "files": pa.repeat(pa.scalar(1, pa.int64()), len(sizes)),
            "bytes": sizes,
            "records": found.column("record_count"),
            "small": is_small.cast(pa.int64()),
            "small_bytes": pc.if_else(is_small, sizes, 0),
        }
        yield from _sums(pa.table(files), ["content", "partition"], _COUNTED).to_batches()


def _summed(target: int, parts: pa.Table) -> pa.Table:
    return _sums(_counted(target, parts), ["content"], list(_NOTHING))


def _with_work(target: int, parts: pa.Table) -> pa.Table:
    whole = _counted(target, parts)
    is_data = pc.equal(whole.column("content"), 0)
    found = {"partition": whole.column("partition")}
    for name, column, counts in (
        ("files", "files", is_data),
        ("bytes", "bytes", is_data),
        ("rewritable", "rewritable", is_data),
        ("rewritable_bytes", "small_bytes", pc.greater(whole.column("rewritable"), 0)),
        ("rewritten", "rewritten", is_data),
        ("delete_files", "files", pc.invert(is_data)),
        ("delete_bytes", "bytes", pc.invert(is_data)),
    ):
        found[name] = pc.if_else(counts, whole.column(column), 0)
    summed = _sums(pa.table(found), ["partition"], [name for name in found if name != "partition"])
    return summed.filter(pc.greater(pc.add(summed.column("rewritable"), summed.column("delete_files")), 0))


def _counted(target: int, parts: pa.Table) -> pa.Table:
    """By content and partition, with how many files a compaction takes and leaves."""
    whole = _sums(parts, ["content", "partition"], _COUNTED)
    small, is_worth_it = whole.column("small"), pc.greater_equal(whole.column("small"), MIN_INPUT_FILES)
    rewritten = pc.max_element_wise(pc.divide(pc.add(whole.column("small_bytes"), target - 1), target), 1)
    for name, files in (("rewritable", small), ("rewritten", rewritten)):
        whole = whole.append_column(name, pc.if_else(is_worth_it, files, 0))
    return whole


def _sums(rows: pa.Table, by: list[str], names: list[str]) -> pa.Table:
    found = rows.group_by(by).aggregate([(name, "sum") for name in names])
    return found.select([*by, *(f"{name}_sum" for name in names)]).rename_columns([*by, *names])


def _length(stores: Stores, manifest: ManifestListEntry) -> int:
    known = manifest.manifest_length != UNKNOWN_LENGTH
    return manifest.manifest_length if known else _size(stores, manifest.manifest_path)


def _size(stores: Stores, path: str | None) -> int:
    stored = None if path is None else stores.head(path)
    return 0 if stored is None else stored.size_in_bytes


def _age(now: datetime, timestamp_ms: int | None) -> float:
    return 0.0 if timestamp_ms is None else (milliseconds(now) - timestamp_ms) / 1000


# --- fitness ----------------------------------------------------------------------------------------------------------
# What a compaction is for: what it costs to plan and read a table, before and after.


@dataclass(frozen=True)
class Fitness:
    """The files that planning and reading the whole table opens, the seconds that takes one connection which opens one
    after another, and the score of the table's health (None if it was not scored)."""

    score: float | None
    data_files: int
    small_files: int
    delete_files: int
    manifests: int
    planning_seconds: float
    reading_seconds: float

    @classmethod
    def of(cls, health: TableHealth, seconds: Callable[[int, int], float]) -> Fitness:
        """`seconds` is the time to read so many files with so many bytes."""
        return cls(
            score=health.score,
            data_files=health.data_files,
            small_files=health.small_files,
            delete_files=health.delete_files,
            manifests=health.manifests,
            planning_seconds=round(seconds(2 + health.manifests, health.metadata_bytes), 3),
            reading_seconds=round(
                seconds(health.data_files + health.delete_files, health.data_bytes + health.delete_bytes), 3
            ),
        )

    def __str__(self) -> str:
        score = "" if self.score is None else f"score {self.score:.3g}, "
        return (
            f"{score}{self.data_files:,} data files ({self.small_files:,} small), {self.delete_files:,} delete "
            f"files, {self.manifests:,} manifests; {self.planning_seconds:,.1f} s to plan, "
            f"{self.reading_seconds:,.1f} s to read"
        )


DATA_FILES_UNCHANGED, MANIFESTS_UNCHANGED = "data_compaction_changed_nothing", "manifest_compaction_changed_nothing"


# --- verdicts ---------------------------------------------------------------------------------------------------------
# Checks of a table's health, and of what a compaction left unchanged. Pure: the evidence comes as arguments.

COMMIT_COSTS = "commit_cost_follows_the_change"


def health_check(part: str) -> str:
    """The name of the check of a part of a table's health."""
    return f"health_{part}"


@dataclass(frozen=True)
class CompactionEffect(Shown):
    """A compaction's snapshot and the one before it, with the rows that each returns. `refs_before` and `refs_after`
    are those of the metadata files around its commit; None if one of them cannot be read any more."""

    snapshot_id: int
    rows_before: int
    rows_after: int
    refs_before: Mapping[str, Ref] | None
    refs_after: Mapping[str, Ref] | None


def judge_part(health: TableHealth, name: str, checks: Checks) -> Verdict:
    """Check that a part of the scored `health` is within its limits. An unknown part passes: the score counts it, and
    the staleness of its step has its own check."""
    part = next(part for part in health.parts if part.name == name)
    limits: ScoreLimits = getattr(checks.health, name)
    text = part.why[0].upper() + part.why[1:]
    next_step = "" if part.next_step is None else f" Next: {part.next_step}"
    if part.score is None:
        return Verdict(health_check(name), True, f"Unknown: {text}.{next_step}")
    if part.wasted_bytes is not None:
        is_felt = part.wasted_bytes >= checks.health.wasted_bytes
    else:
        is_felt = part.seconds is None or part.seconds >= checks.health.seconds
    return Verdict(
        health_check(name),
        part.score >= limits.warn or not is_felt,
        f"{part.score:g} of 100 (warns below {limits.warn:g}, fails below {limits.error:g}). {text}.{next_step}",
        figures={"score": part.score}
        | ({"figure": part.figure} if part.figure is not None else {})
        | ({"seconds": round(part.seconds, 3)} if part.seconds is not None else {}),
        warns=part.score >= limits.error,
    )


def judge_commit_costs(costs: CommitCosts) -> Verdict:
    """Check that what a commit writes for each changed file does not grow with the table."""
    growing = costs.warnings
    return Verdict(
        COMMIT_COSTS,
        not growing,
        f"What commits write for each changed file grows with the table: {len(growing)} of {len(costs.trends)} parts."
        if growing
        else "What commits write for each changed file does not grow with the table, or is too little to notice.",
        growing,
        {"commits": len(costs.rows), "unknown_metadata_files": costs.unknown},
        warns=True,
    )


def judge_compaction(check: str, effect: CompactionEffect | None, branch: str = "main") -> Verdict:
    """Check that a compaction left the table's rows, and all refs but its own `branch`, as they were. `effect` is None
    if there is none to compare."""
    if effect is None:
        text = "No compaction of the last two days has its previous snapshot still in the table."
        return Verdict(check, True, text, judged=False)
    broken = []
    if effect.rows_before != effect.rows_after:
        broken.append(f"the table had {effect.rows_before:,} rows before, and {effect.rows_after:,} after")
    if effect.refs_before is not None and effect.refs_after is not None:
        before = {name: ref for name, ref in effect.refs_before.items() if name != branch}
        after = {name: ref for name, ref in effect.refs_after.items() if name != branch}
        broken += [f"{ref.type} {name} is gone" for name, ref in before.items() if name not in after]
        broken += [f"{ref.type} {name} is new" for name, ref in after.items() if name not in before]
        broken += [
            f"{ref.type} {name} was at snapshot {ref.snapshot_id}, and is at {after[name].snapshot_id}"
            for name, ref in before.items()
            if name in after and after[name] != ref
        ]
        refs = f"{len(before)} other refs are"
    else:
        refs = "the metadata files around it cannot be read, so its refs were not"
    return Verdict(
        check,
        not broken,
        f"The compaction in snapshot {effect.snapshot_id} changed what it must not."
        if broken
        else f"The compaction in snapshot {effect.snapshot_id} kept all {effect.rows_after:,} rows; {refs} compared.",
        tuple(broken),
        {"compacted_snapshot": str(effect.snapshot_id), "rows": effect.rows_after},
    )
