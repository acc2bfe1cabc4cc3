"""The difference of two sealed plans: what only the second removes, and what only the first removes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.reachability.index.files import DELETABLE
from artemis_lifecycle.spark.java_errors import worker_errors
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.storage.location import LocationRules, with_locations
from artemis_lifecycle.tabular import Shown, frame_of

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SnapshotChange:
    """A snapshot that only one of the plans expires. `why` are the other plan's reasons to keep it; empty if its table
    did not have the snapshot."""

    snapshot_id: int
    change: Literal["added", "removed"]
    why: tuple[str, ...]


@dataclass(frozen=True)
class KindChange:
    """Files of one kind that only one of the plans deletes; sizes in bytes."""

    kind: str
    added_files: int
    added_bytes: int
    removed_files: int
    removed_bytes: int


@dataclass(frozen=True)
class PlanDifference(Shown):
    """The change from plan `before` to plan `after` of one table: what is added to the removal, and what is dropped
    from it."""

    table: str
    before: str
    after: str
    snapshots: tuple[SnapshotChange, ...]
    refs_added: tuple[str, ...]
    refs_removed: tuple[str, ...]
    by_kind: tuple[KindChange, ...]
    _frame: DataFrame = field(repr=False, compare=False)

    @property
    def snapshots_added(self) -> tuple[int, ...]:
        """Ids that `after` expires and `before` does not."""
        return tuple(change.snapshot_id for change in self.snapshots if change.change == "added")

    @property
    def snapshots_removed(self) -> tuple[int, ...]:
        """Ids that `before` expires and `after` does not."""
        return tuple(change.snapshot_id for change in self.snapshots if change.change == "removed")

    def files(self) -> DataFrame:
        """Return DataFrame[path, kind, size_in_bytes, change, reason], one row per file that only one of the plans
        deletes; `change` is added or removed."""
        return self._frame

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per kind of file.

        Columns: kind object; added_files, added_bytes, removed_files, removed_bytes int64.
        """
        return frame_of(KindChange, self.by_kind)


def plan_difference(before: ExpirationPlan, after: ExpirationPlan, rules: LocationRules) -> PlanDifference:
    """Compare two plans of one table. Raises BadInput for plans of different tables."""
    from pyspark.sql import functions as F

    if before.table_uuid != after.table_uuid:
        raise BadInput(
            f"Plan {before.plan_id} belongs to {before.table} and plan {after.plan_id} to {after.table}",
            untouched="both plans",
            hint="choose two plans of one table: artemis plans TABLE",
        )
    frames = [_located(plan.files(), rules) for plan in (before, after)]
    columns = ("path", "kind", "size_in_bytes", F.lit("removed").alias("change"), "reason")
    removed = frames[0].join(frames[1], "location", "left_anti").select(*columns)
    columns = ("path", "kind", "size_in_bytes", F.lit("added").alias("change"), "reason")
    frame = frames[1].join(frames[0], "location", "left_anti").select(*columns).unionByName(removed)
    with worker_errors():
        counted = frame.groupBy("kind", "change").agg(
            F.count("*").alias("files"), F.sum("size_in_bytes").alias("size_in_bytes")
        )
        totals = {(row["kind"], row["change"]): (row["files"], row["size_in_bytes"]) for row in counted.collect()}
    return PlanDifference(
        table=after.table,
        before=before.plan_id,
        after=after.plan_id,
        snapshots=_snapshots(before, after),
        refs_added=_without(after.expired_refs, before.expired_refs),
        refs_removed=_without(before.expired_refs, after.expired_refs),
        by_kind=tuple(
            KindChange(kind, *totals.get((kind, "added"), (0, 0)), *totals.get((kind, "removed"), (0, 0)))
            for kind in sorted({kind for kind, _ in totals})
        ),
        _frame=frame,
    )


def _located(files: DataFrame, rules: LocationRules) -> DataFrame:
    rows = Runner(files.sparkSession).rows(files, DELETABLE)
    return rows.map(partial(with_locations, rules), DELETABLE.append(pa.field("location", pa.string()))).frame()


def _without(refs: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    left_out = frozenset(others)
    return tuple(ref for ref in refs if ref not in left_out)


def _snapshots(before: ExpirationPlan, after: ExpirationPlan) -> tuple[SnapshotChange, ...]:
    def only(one: ExpirationPlan, other: ExpirationPlan, change: Literal["added", "removed"]) -> list[SnapshotChange]:
        kept: Mapping[int, tuple[str, ...]] = other.kept
        both = set(other.expired_snapshots)
        return [
            SnapshotChange(snapshot, change, kept.get(snapshot, ()))
            for snapshot in one.expired_snapshots
            if snapshot not in both
        ]

    return (*only(after, before, "added"), *only(before, after, "removed"))
