"""The cold tier's snapshots of a table, and which of them are readable now. Plain values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from artemis_lifecycle.cold_tier.cold_tables import ColdTables
from artemis_lifecycle.metadata.types import MAIN_BRANCH
from artemis_lifecycle.storage.instants import in_calendar
from artemis_lifecycle.tabular import frame_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ColdSnapshot:
    """An archived snapshot. `tier` is deep-archive if one of its files must be thawed first. `tags` are the names that
    it had. `cold_table` is its table in the cold catalog. Counts are from its summary; None if the writer did not
    record them."""

    snapshot_id: int
    committed_at: datetime
    tier: Literal["cold", "deep-archive"]
    cold_table: str
    tags: tuple[str, ...]
    operation: str | None
    records: int | None
    data_files: int | None


@dataclass(frozen=True)
class ColdHistory:
    """The snapshots of the cold tables in commit order, pinned to the newest table's metadata file."""

    table: str
    metadata_location: str
    snapshots: tuple[ColdSnapshot, ...]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per snapshot: snapshot_id int64; committed_at datetime64[ms, UTC]; tier, cold_table, tags
        (joined by commas), operation object; records, data_files Int64 (NA if unknown)."""
        return frame_of(ColdSnapshot, self.snapshots)


def cold_history(table: str, cold: ColdTables, archived: Collection[int]) -> ColdHistory:
    """Return the history. `archived` are the snapshots in the deep archive."""
    found: list[ColdSnapshot] = []
    for each in reversed(list(cold)):
        tags: dict[int, list[str]] = {}
        named = {(name, ref.snapshot_id) for name, ref in each.metadata.refs.items() if name != MAIN_BRANCH}
        for name, snapshot_id in sorted(named | {(meaning.name, meaning.snapshot_id) for meaning in cold.tags}):
            tags.setdefault(snapshot_id, []).append(name)
        found += [
            ColdSnapshot(
                snapshot_id=snapshot.snapshot_id,
                committed_at=in_calendar(snapshot.timestamp_ms),
                tier="deep-archive" if snapshot.snapshot_id in archived else "cold",
                cold_table=each.name,
                tags=tuple(tags.get(snapshot.snapshot_id, ())),
                operation=snapshot.summary.operation,
                records=snapshot.summary.count("total-records"),
                data_files=snapshot.summary.count("total-data-files"),
            )
            for snapshot in each.metadata.snapshots
        ]
    found.sort(key=lambda each: each.committed_at)
    return ColdHistory(table, cold.newest.metadata.metadata_location, tuple(found))
