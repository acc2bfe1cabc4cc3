"""What a compaction is for: what it costs to plan and read a table, before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from artemis_lifecycle.maintenance.health import TableHealth


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
