"""The score of a table's health, and of its parts. Pure: the evidence comes as arguments.

A part's score is 100 times a ratio: what its work costs a fit table, by what it costs this one. Costs are seconds of
one connection (`Prices.seconds`), bytes that are paid for, snapshots at risk, or ages. The table's score is the product
of the ratios, because costs multiply: if small files make reads twice as slow and deletes make that twice as slow
again, reads are four times as slow. So there are no weights: a part counts as much as it costs. A part that is unknown
counts like one that is about to fail its check.

A worse figure never raises the score: what a part adds is divided by what the table costs without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import cycle
from shlex import quote
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.config.deployment import Prices
from artemis_lifecycle.config.durations import format_duration
from artemis_lifecycle.config.policies import HealthLimits, ScoreLimits, TablePolicy
from artemis_lifecycle.expiration.curve import axis_of_time, drawn, new_figure
from artemis_lifecycle.operations.fleet import HealthPoint
from artemis_lifecycle.tabular import Shown
from artemis_lifecycle.upkeep.compaction import why_deletes, why_small_files
from artemis_lifecycle.upkeep.health import HealthPart, TableHealth
from artemis_lifecycle.upkeep.manifests import why_rewrite

if TYPE_CHECKING:
    import pandas as pd


PARTS = tuple(name for name, field in HealthLimits.model_fields.items() if field.annotation is ScoreLimits)
"""The parts of a score: those for which lifecycle.yaml has limits."""

_LEAST = 0.01
"""The smallest ratio of a part. A ratio of 0 would hide what all other parts would gain."""


@dataclass(frozen=True)
class StepAge:
    """How long ago a step ended, and how long that may be. `step` reads after a number of hours, `command` runs it."""

    step: str
    age: timedelta
    allowed: timedelta
    command: str


@dataclass(frozen=True)
class Upkeep:
    """What else counts. `expirable_snapshots` should have expired already; they hold at most `expirable_bytes`.
    `orphan_bytes` are those of the newest scan (`orphan_command` deletes them); None if the table was never scanned.
    `unrecorded_snapshots` are not in the ledger; `lineage_at_risk`, from 0 to 1, is their share of the snapshots, each
    counted by how much of its retention window has passed."""

    expirable_snapshots: int
    expirable_bytes: int
    orphan_bytes: int | None
    orphan_command: str
    unrecorded_snapshots: int
    lineage_at_risk: float
    steps: tuple[StepAge, ...]


@dataclass(frozen=True)
class Rates:
    """What reading and storing costs in the table's storage class."""

    prices: Prices
    storage_class: str

    def seconds(self, files: int, size_in_bytes: int = 0) -> float:
        return self.prices.seconds(self.storage_class, files, size_in_bytes)

    def reading(self, files: int, size_in_bytes: int = 0) -> float | None:
        return self.prices.reading(self.storage_class, files, size_in_bytes)

    def storage(self, size_in_bytes: int) -> float | None:
        return self.prices.storage(self.storage_class, size_in_bytes)


_Cost = tuple[HealthPart, float]
"""A part before all others are known, and by what it makes the table's score smaller."""


def _cost(
    name: str,
    ratio: float | None,
    figure: float | None,
    unit: str,
    why: str,
    next_step: str | None,
    *,
    counts_as: float = 1.0,
    **costs: Any,
) -> _Cost:
    """`ratio` is None if the part is unknown; then `counts_as` is used."""
    factor = max(_LEAST, counts_as if ratio is None else ratio)
    score = None if ratio is None else round(100 * factor, 2)
    return HealthPart(name, score, figure, unit, why, next_step=next_step, **costs), factor


def scored(health: TableHealth, upkeep: Upkeep, policy: TablePolicy, rates: Rates) -> TableHealth:
    """Return `health` with its score and parts. A table that needs nothing scores 100."""
    costs = (
        _small_files(health, policy, rates),
        _deletes(health, policy, rates),
        _manifests(health, policy, rates),
        _snapshots(health, upkeep, rates),
        _metadata_size(health, upkeep, rates),
        _orphan_share(health, upkeep, policy, rates),
        _lineage(health, upkeep),
        _staleness(upkeep.steps),
    )
    whole = math.prod(factor for _, factor in costs)
    parts = tuple(replace(part, gain=round(100 * (whole / factor - whole), 2)) for part, factor in costs)
    return replace(health, score=round(100 * whole, 2), parts=parts)


def _ratio(fit: float, extra: float) -> float:
    """The cost of a fit table by that of this one, which costs `extra` more."""
    return fit / (fit + extra) if extra else 1.0


def _small_files(health: TableHealth, policy: TablePolicy, rates: Rates) -> _Cost:
    """Reading the table's data files, one request for each and all their bytes; a compaction saves requests."""
    saved = health.rewritable_files - health.rewritten_files
    extra = rates.seconds(saved)
    whole = rates.seconds(health.data_files, health.data_bytes)
    due = why_small_files(health, policy.compaction)
    return _cost(
        "small_files",
        _ratio(whole - extra, extra),
        health.rewritable_files,
        "small files",
        due
        or f"{health.rewritable_files:,} of {health.data_files:,} data files are small and have company in their "
        f"partition; a compaction starts at {policy.compaction.min_rewritable_share:.0%}",
        None if due is None else f"artemis compact {quote(health.table)}",
        seconds=extra,
        per_read=rates.reading(saved),
    )


def _deletes(health: TableHealth, policy: TablePolicy, rates: Rates) -> _Cost:
    """Reading the delete files, once each, beside the data files."""
    extra = rates.seconds(health.delete_files, health.delete_bytes)
    due = why_deletes(health, policy.compaction)
    return _cost(
        "deletes",
        _ratio(rates.seconds(health.data_files, health.data_bytes), extra),
        health.delete_files,
        "delete files",
        due
        or f"{health.delete_files:,} delete files stand against {health.data_files:,} data files; a compaction starts "
        f"at {policy.compaction.min_delete_file_ratio:g} for each",
        None if due is None else f"artemis compact {quote(health.table)}",
        seconds=extra,
        per_read=rates.reading(health.delete_files, health.delete_bytes),
        per_month=rates.storage(health.delete_bytes),
    )


def _manifests(health: TableHealth, policy: TablePolicy, rates: Rates) -> _Cost:
    """Planning without pruning: the metadata file, the list and each manifest. Too few to rewrite are few enough."""
    enough = max(health.fewest_manifests, policy.compaction.min_manifests - 1)
    saved = max(0, health.manifests - enough)
    extra = rates.seconds(saved)
    fit = rates.seconds(2 + min(health.manifests, enough), health.manifest_list_bytes + health.manifest_bytes)
    due = why_rewrite(health, policy.compaction)
    return _cost(
        "manifests",
        _ratio(fit, extra),
        health.manifests,
        "manifests",
        due
        or f"{health.manifests:,} manifests, where {enough:,} are few enough; more than twice as many are rewritten",
        None if due is None else f"artemis compact {quote(health.table)} --manifests",
        seconds=extra,
        per_read=rates.reading(saved),
    )


def _needed_metadata_bytes(health: TableHealth, upkeep: Upkeep) -> int:
    """The size of the metadata file without the snapshots that should have expired."""
    kept = health.snapshots - upkeep.expirable_snapshots
    return health.metadata_file_bytes * kept // health.snapshots if health.snapshots else health.metadata_file_bytes


def _snapshots(health: TableHealth, upkeep: Upkeep, rates: Rates) -> _Cost:
    """Reading the metadata file, and storing files that only snapshots past their window hold."""
    needed, size = _needed_metadata_bytes(health, upkeep), health.metadata_file_bytes
    extra = rates.seconds(0, size - needed)
    reading, storing = _ratio(rates.seconds(1, needed), extra), _ratio(_live(health), upkeep.expirable_bytes)
    return _cost(
        "snapshots",
        reading * storing,
        upkeep.expirable_snapshots,
        "snapshots past their window",
        f"{upkeep.expirable_snapshots:,} of {health.snapshots:,} snapshots should have expired; by their summaries "
        f"they hold at most {upkeep.expirable_bytes:,} bytes",
        f"artemis expire {quote(health.table)}" if upkeep.expirable_snapshots else None,
        seconds=extra,
        per_month=rates.storage(upkeep.expirable_bytes),
        wasted_bytes=upkeep.expirable_bytes,
    )


def _metadata_size(health: TableHealth, upkeep: Upkeep, rates: Rates) -> _Cost:
    """Reading what the metadata file has beyond the bytes that arrive in the time of one request."""
    needed = _needed_metadata_bytes(health, upkeep)
    extra = max(0.0, rates.seconds(0, needed) - rates.seconds(1))
    return _cost(
        "metadata_size",
        _ratio(rates.seconds(1, needed) - extra, extra),
        health.metadata_file_bytes,
        "bytes of metadata",
        f"each plan reads, and each commit writes, {health.metadata_file_bytes:,} bytes of metadata.json; a shorter "
        "window, thinning or write.metadata.compression-codec=gzip makes it smaller",
        f"artemis retention-curve {quote(health.table)}" if extra else None,
        seconds=extra,
    )


def _orphan_share(health: TableHealth, upkeep: Upkeep, policy: TablePolicy, rates: Rates) -> _Cost:
    """Storing files that nothing refers to."""
    if upkeep.orphan_bytes is None:
        return _cost(
            "orphan_share",
            None,
            None,
            "% of bytes orphaned",
            "the table was never scanned for orphans; until then it counts as one whose scan turns its check red "
            f"({policy.checks.orphan_share.error:.0%})",
            f"artemis scan-orphans {quote(health.table)}",
            counts_as=1 - policy.checks.orphan_share.error,
        )
    ratio = _ratio(_live(health), upkeep.orphan_bytes)
    return _cost(
        "orphan_share",
        ratio,
        round(100 * (1 - ratio), 2),
        "% of bytes orphaned",
        f"the newest scan left orphans of {upkeep.orphan_bytes:,} bytes",
        upkeep.orphan_command if upkeep.orphan_bytes else None,
        per_month=rates.storage(upkeep.orphan_bytes),
        wasted_bytes=upkeep.orphan_bytes,
    )


def _lineage(health: TableHealth, upkeep: Upkeep) -> _Cost:
    """Keeping who wrote what: a snapshot that is not recorded loses that when it expires."""
    return _cost(
        "lineage",
        1 - upkeep.lineage_at_risk,
        upkeep.unrecorded_snapshots,
        "unrecorded snapshots",
        f"{upkeep.unrecorded_snapshots:,} of {health.snapshots:,} snapshots are not in the lineage ledger; who wrote "
        "them is lost when they expire",
        f"artemis record-lineage {quote(health.table)}" if upkeep.lineage_at_risk else None,
    )


def _staleness(steps: Sequence[StepAge]) -> _Cost:
    """The step that is latest: what it left undone grows with the time."""
    worst = max(steps, key=lambda step: step.age / step.allowed if step.allowed else math.inf)
    late = worst.age > worst.allowed
    return _cost(
        "staleness",
        worst.allowed / worst.age if late else 1.0,
        round(worst.age / timedelta(hours=1), 1),
        f"hours {worst.step}",
        "; ".join(
            f"{step.age // timedelta(hours=1):,} hours {step.step} ({format_duration(step.allowed)} are allowed)"
            for step in steps
        ),
        worst.command if late else None,
    )


def _live(health: TableHealth) -> int:
    return health.data_bytes + health.delete_bytes


# --- health history ---------------------------------------------------------------------------------------------------
# A table's scores over time.

_PALETTE = ("#16a085", "#e59866", "#1f6f8b", "#7fb3d5", "#34495e", "#8e44ad", "#27ae60", "#b7950b", "#7f8c8d")
_COLORS = dict(zip(PARTS, cycle(_PALETTE), strict=False))


@dataclass(frozen=True)
class HealthHistory(Shown):
    """The scores that were recorded of a table, oldest first."""

    table: str
    points: Sequence[HealthPoint]

    def to_pandas(self) -> pd.DataFrame:
        """One row per score: scored_at datetime64[ms, UTC]; score, and one column per part (NaN: unknown),
        float64."""
        import pandas as pd

        times = pd.to_datetime([point.scored_at for point in self.points], utc=True).astype("datetime64[ms, UTC]")
        columns = {name: [point.parts.get(name) for point in self.points] for name in PARTS}
        scores = {"score": [point.score for point in self.points], **columns}
        return pd.DataFrame({"scored_at": times, **{name: pd.Series(v, dtype="float64") for name, v in scores.items()}})

    def plot(self, kind: str = "png") -> bytes:
        """Return a picture: the newest scores of the parts, and all scores over time."""
        figure = new_figure(11, 3.5)
        now, past = figure.subplots(1, 2)
        newest = self.points[-1].parts if self.points else {}
        names = PARTS[::-1]
        labels = [name.replace("_", " ") for name in names]
        bars = now.barh(labels, [newest.get(name) or 0 for name in names], color=[_COLORS[name] for name in names])
        now.bar_label(bars, [self._label(newest.get(name)) for name in names], padding=3, fontsize=8)
        now.set(xlim=(0, 115), title=f"{self.table}: {self.points[-1].score:.0f} of 100" if self.points else self.table)
        times: list[Any] = [point.scored_at for point in self.points]
        past.plot(times, [point.score for point in self.points], marker="o", color="black", linewidth=2, label="score")
        for name in PARTS:
            scores: list[Any] = [point.parts.get(name) for point in self.points]
            if any(each is not None and each < 100 for each in scores):
                past.plot(times, scores, color=_COLORS[name], label=name.replace("_", " "))
        past.set(ylim=(0, 105), title="Scores over time")
        past.legend(fontsize=8)
        axis_of_time(past, times)
        return drawn(figure, kind)

    @staticmethod
    def _label(score: float | None) -> str:
        return "unknown" if score is None else f"{score:.0f}"
