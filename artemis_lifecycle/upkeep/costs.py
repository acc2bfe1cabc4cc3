"""What a table costs by tier and by tag: bytes, files and requests as they are known, and money by the configuration's
price table."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.config.deployment import Prices
from artemis_lifecycle.expiration.curve import RefCost, axis_of_time, drawn, label, new_figure, size_unit
from artemis_lifecycle.metadata.types import MAIN_BRANCH, MetadataLogEntry, Snapshot, TableMetadata
from artemis_lifecycle.operations.fleet import HeldBytes
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.lookups import Written, held_files
from artemis_lifecycle.storage.instants import in_calendar
from artemis_lifecycle.tabular import Shown, frame_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


_COLOURS = {"live": "#1f6f8b", "cold": "#7fb3d5", "deep-archive": "#34495e"}


@dataclass(frozen=True)
class TierCost:
    """One tier of one table. Sizes in bytes. `requests` are those that this project made to bring files there, and to
    thaw them: what readers ask is not known here. Money is None where the price table has no such price: `per_month`
    for storage, `requests_price` for the requests so far, `read_price` for reading all of it once.
    """

    tier: str
    storage_class: str
    snapshots: int
    files: int
    size_in_bytes: int
    requests: int
    per_month: float | None = None
    requests_price: float | None = None
    read_price: float | None = None


@dataclass(frozen=True)
class TagCost:
    """What a tag (or a branch) costs: files and bytes that would not be there without it, and their price a month."""

    ref: str
    tier: str
    snapshot_id: int
    files: int
    size_in_bytes: int
    per_month: float | None = None


@dataclass(frozen=True)
class TableCosts(Shown):
    """What the tiers of a table hold, the live one first; and its tags, the most expensive first."""

    table: str
    currency: str
    tiers: tuple[TierCost, ...]
    tags: tuple[TagCost, ...]

    @property
    def per_month(self) -> float | None:
        """The storage of all tiers; None while the price of one that holds bytes is missing."""
        return month_of([(tier.size_in_bytes, tier.per_month) for tier in self.tiers])

    def to_pandas(self) -> pd.DataFrame:
        """One row per tier: tier, storage_class object; snapshots, files, size_in_bytes, requests int64; per_month,
        requests_price, read_price float64 (NaN where there is no price)."""
        return frame_of(TierCost, self.tiers)

    def tags_to_pandas(self) -> pd.DataFrame:
        """One row per tag: ref, tier object; snapshot_id, files, size_in_bytes int64; per_month float64."""
        return frame_of(TagCost, self.tags)

    def plot(self, kind: str = "png") -> bytes:
        """What each tier holds, and beside it the most expensive tags, as a picture (`png` or `svg`)."""
        figure = new_figure(11, 3.5)
        panels = figure.subplots(1, 2 if self.tags else 1, squeeze=False)[0]
        self._bars(panels[0], [(tier.tier, tier) for tier in self.tiers], f"{self.table}: held by tier")
        if self.tags:
            self._bars(panels[1], [(tag.ref, tag) for tag in self.tags[:12]], "What only a tag holds")
            panels[1].tick_params(axis="y", labelsize=8)
        return drawn(figure, kind)

    def _bars(self, panel: Axes, rows: Sequence[tuple[str, TierCost | TagCost]], title: str) -> None:
        """The first row on top."""
        unit, name = size_unit(max(row.size_in_bytes for _, row in rows))
        # An axis makes its labels anew when it is drawn.
        names = [label(name) for name, _ in rows[::-1]]
        costs = [row for _, row in rows[::-1]]
        bars = panel.barh(names, [row.size_in_bytes / unit for row in costs], color=[_COLOURS[r.tier] for r in costs])
        panel.bar_label(bars, [self._money(row.per_month) for row in costs], padding=3, fontsize=8)
        # Room for what is written behind the longest bar.
        panel.margins(x=0.5 if any(row.per_month is not None for row in costs) else 0.05)
        panel.set(xlabel=name, title=title)

    def _money(self, amount: float | None) -> str:
        return "" if amount is None else f"{amount:,.2f} {self.currency} a month"


@dataclass(frozen=True)
class ColdHoldings:
    """The cold table, and what of it is in the archive: its snapshots, files and bytes; how many copies handoffs made,
    and how many files thaws asked for."""

    view: IndexView
    copies: int
    deep_snapshots: frozenset[int]
    deep_files: int
    deep_bytes: int
    thawed_files: int


@dataclass(frozen=True)
class StorageClasses:
    """What each tier's files are stored as; the keys of the price table."""

    live: str
    cold: str
    deep: str

    def per_month(self, held: HeldBytes, prices: Prices) -> float | None:
        """Return the price of a month's storage of what a table held; None while a price is missing."""
        tiers = ((self.live, held.live), (self.cold, held.cold or 0), (self.deep, held.deep_archive or 0))
        return month_of([(size, prices.storage(kind, size)) for kind, size in tiers])


def month_of(tiers: Iterable[tuple[int, float | None]]) -> float | None:
    """Return the sum of what tiers cost (bytes, price). None if one that holds bytes has no price."""
    held = [price for size, price in tiers if size]
    return None if None in held else sum((price for price in held if price is not None), 0.0)


def table_costs(
    table: str,
    live: IndexView,
    refs: Sequence[RefCost],
    cold: ColdHoldings | None,
    classes: StorageClasses,
    prices: Prices,
) -> TableCosts:
    """Add up what the tiers hold. `refs` are what the live table's refs cost (`retention_curve`). Raises
    UnreadableMetadata."""
    ids = [snapshot.snapshot_id for snapshot in live.metadata.snapshots]
    (held,) = held_files(live, [ids])
    tiers = [_tier("live", classes.live, len(ids), held.files, held.size_in_bytes, prices, {})]
    tags = [
        TagCost(
            ref.ref,
            "live",
            ref.snapshot_id,
            ref.files,
            ref.size_in_bytes,
            prices.storage(classes.live, ref.size_in_bytes),
        )
        for ref in refs
    ]
    if cold is not None:
        every = [snapshot.snapshot_id for snapshot in cold.view.metadata.snapshots]
        named = {ref.name: ref.snapshot_id for ref in cold.view.metadata.refs.values() if ref.name != MAIN_BRANCH}
        whole, *without = held_files(
            cold.view, [every, *([each for each in every if each != snapshot_id] for snapshot_id in named.values())]
        )
        tiers.append(
            _tier(
                "cold",
                classes.cold,
                len(every) - len(cold.deep_snapshots),
                whole.files - cold.deep_files,
                whole.size_in_bytes - cold.deep_bytes,
                prices,
                {"put": cold.copies, "get": cold.copies},
            )
        )
        asked = {"put": cold.deep_files, "thaw": cold.thawed_files}
        tiers.append(
            _tier(
                "deep-archive", classes.deep, len(cold.deep_snapshots), cold.deep_files, cold.deep_bytes, prices, asked
            )
        )
        for (name, snapshot_id), rest in zip(named.items(), without, strict=True):
            size, is_deep = whole.size_in_bytes - rest.size_in_bytes, snapshot_id in cold.deep_snapshots
            price = prices.storage(classes.deep if is_deep else classes.cold, size)
            tier = "deep-archive" if is_deep else "cold"
            tags.append(TagCost(name, tier, snapshot_id, whole.files - rest.files, size, price))
    tags.sort(key=lambda tag: (-(tag.per_month or 0.0), -tag.size_in_bytes, tag.ref))
    return TableCosts(table, prices.currency, tuple(tiers), tuple(tags))


def _tier(
    tier: str, kind: str, snapshots: int, files: int, size: int, prices: Prices, requests: Mapping[str, int]
) -> TierCost:
    return TierCost(
        tier=tier,
        storage_class=kind,
        snapshots=snapshots,
        files=files,
        size_in_bytes=size,
        requests=sum(requests.values()),
        per_month=prices.storage(kind, size),
        requests_price=prices.requests(kind, requests),
        read_price=prices.reading(kind, files, size),
    )


# --- commit costs -----------------------------------------------------------------------------------------------------
# What each commit of a table wrote besides its data, and whether that grows with the table. Pure, except for the
# picture.

_PICTURED = range(1970, 2200)
_CHANGES = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")

FEWEST_COMMITS = 12
"""Fewer commits make thirds of less than four, whose medians say little."""

_STEEP = 0.5
_PARTS = {"metadata_bytes": "metadata.json", "manifest_list_bytes": "manifest list", "manifest_bytes": "new manifests"}
_COLORS = ("#34495e", "#e67e22", "#3498db")


@dataclass(frozen=True)
class CommitCost:
    """One commit: how much it changed, and the metadata that it wrote for that. Sizes in bytes.

    `snapshot_id` is None for a commit without a snapshot that the table still has: of properties, schemas or refs, an
    expiration, or one whose snapshot has expired. `files_changed` counts added and removed data and delete files;
    `total_files` are the table's data files after it. `metadata_bytes` is None where the metadata file is not in the
    table's metadata log any more, or was deleted. `requests` are the metadata files that it wrote.
    """

    committed_at: datetime
    snapshot_id: int | None
    operation: str | None
    files_changed: int
    total_files: int | None
    metadata_bytes: int | None
    manifest_list_bytes: int
    manifests: int
    manifest_bytes: int
    requests: int

    @property
    def known_bytes(self) -> int:
        """All bytes but those that are unknown."""
        return (self.metadata_bytes or 0) + self.manifest_list_bytes + self.manifest_bytes


@dataclass(frozen=True)
class CostTrend:
    """The cost of a changed file on a small table and on a large one, as medians of the third of the commits that met
    the fewest files, and of the third that met the most. `part` is what the bytes are of.

    `growth` is the exponent between the two: 0 if the cost does not depend on the table's size, 1 if it is
    proportional. Medians of thirds are not moved by a few unusual commits: bytes that vary by less than a factor of
    1.41 never look like growth, because the table must at least have doubled. None if it did not, or if there are fewer
    than FEWEST_COMMITS commits.
    """

    part: str
    commits: int
    small_table: float = 0.0
    large_table: float = 0.0
    small_cost: float = 0.0
    large_cost: float = 0.0
    growth: float | None = None

    @property
    def grows(self) -> bool:
        return self.growth is not None and self.growth >= _STEEP

    def __str__(self) -> str:
        if self.growth is None:
            few = f"fewer than {FEWEST_COMMITS}" if self.commits < FEWEST_COMMITS else "the table did not double"
            return f"{self.part}: no trend in {self.commits:,} commits ({few})"
        return (
            f"{self.part}: {self.small_cost:,.0f} bytes for each changed file at {self.small_table:,.0f} files, "
            f"{self.large_cost:,.0f} at {self.large_table:,.0f} (growth "
            f"{round(self.growth, 2) + 0.0:.2f}; it warns from {_STEEP})"
        )


def trend_of(part: str, points: Sequence[tuple[float, float]]) -> CostTrend:
    """Compare the costs of `points` (files of the table, bytes for each changed file) by the size of the table."""
    if len(points) < FEWEST_COMMITS:
        return CostTrend(part, len(points))
    ordered, third = sorted(points), len(points) // 3
    small, large = ordered[:third], ordered[-third:]
    sizes = [max(1.0, median(size for size, _ in each)) for each in (small, large)]
    costs = [max(1.0, median(cost for _, cost in each)) for each in (small, large)]
    growth = math.log(costs[1] / costs[0]) / math.log(sizes[1] / sizes[0]) if sizes[1] >= 2 * sizes[0] else None
    return CostTrend(part, len(points), sizes[0], sizes[1], costs[0], costs[1], growth)


@dataclass(frozen=True)
class CommitCosts(Shown):
    """The commits that the table's metadata still tells of, oldest first. A store takes `unfelt_bytes` in the time in
    which it answers one request: no writer notices less."""

    table: str
    rows: tuple[CommitCost, ...]
    unfelt_bytes: float

    @property
    def unknown(self) -> int:
        """Commits whose metadata file has an unknown size."""
        return sum(row.metadata_bytes is None for row in self.rows)

    @property
    def trends(self) -> tuple[CostTrend, ...]:
        """How each part of the cost depends on the table's size. The trend of metadata.json covers only the commits
        whose metadata file the table still names (`write.metadata.previous-versions-max`)."""
        changed = [row for row in self.rows if row.files_changed and row.total_files is not None]
        return tuple(
            trend_of(name, [(row.total_files or 0, size / row.files_changed) for row, size in sized])
            for field, name in _PARTS.items()
            if (sized := [(row, size) for row in changed if (size := getattr(row, field)) is not None])
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The parts that grow with the table and have become large enough to notice, and what helps."""
        return tuple(
            f"{trend}. {_HELP[trend.part]}"
            for trend in self.trends
            if trend.grows and trend.large_cost >= self.unfelt_bytes
        )

    def to_pandas(self) -> pd.DataFrame:
        """One row per commit, with the fields of CommitCost."""
        return frame_of(CommitCost, self.rows)

    def plot(self, kind: str = "png") -> bytes:
        """Return a picture: what the commits wrote over time beside what they changed, and the cost of a changed file
        by the size of the table."""
        figure = new_figure(11, 3.5)
        over_time, by_size = figure.subplots(1, 2)
        # A writer's wrong clock would leave all others in one corner, or beyond what an axis of time can have.
        dated = (row for row in self.rows if row.committed_at.year in _PICTURED)
        snapshots = [row for row in dated if row.snapshot_id is not None]
        unit, name = size_unit(max((row.known_bytes for row in snapshots), default=0))
        times: list[Any] = [row.committed_at for row in snapshots]
        for (field, named), color in zip(_PARTS.items(), _COLORS, strict=True):
            sizes = [getattr(row, field) for row in snapshots]
            over_time.plot(
                times, [math.nan if size is None else size / unit for size in sizes], ".", label=named, color=color
            )
        changed = over_time.twinx()
        changed.plot(times, [row.files_changed for row in snapshots], color="#b2babb", linewidth=1)
        changed.set_ylabel("changed files", color="#7f8c8d")
        over_time.set(title=f"{self.table}: written by each commit, {name}")
        over_time.legend(fontsize=8)
        axis_of_time(over_time, times)
        points = [row for row in snapshots if row.files_changed and row.total_files]
        complete = [row for row in points if row.metadata_bytes is not None]
        for named, color, some in (
            ("list and manifests", _COLORS[2], points),
            ("with metadata.json", _COLORS[0], complete),
        ):
            costs = [
                row.manifest_list_bytes + row.manifest_bytes + (row.metadata_bytes or 0 if some is complete else 0)
                for row in some
            ]
            per_file = [cost / row.files_changed for cost, row in zip(costs, some, strict=True)]
            by_size.plot([row.total_files for row in some], per_file, ".", color=color, label=named)
        by_size.set(title="Bytes for each changed file, by the table's size", xlabel="data files of the table")
        by_size.legend(fontsize=8)
        for panel in (over_time, changed, by_size):
            panel.set_ylim(bottom=0)
        return drawn(figure, kind)


_HELP = {
    "metadata.json": "Each commit writes all snapshots again: a shorter window or thinning keeps fewer",
    "manifest list": "Each commit lists all manifests again: `artemis compact --manifests` leaves fewer",
    "new manifests": "Commits merge manifests of the whole table: larger commits, or a higher "
    "commit.manifest.min-count-to-merge, merge less often",
}


def commit_costs(
    table: str,
    metadata: TableMetadata,
    written: Mapping[int, Written],
    sizes: Mapping[str, int | None],
    unfelt_bytes: float,
) -> CommitCosts:
    """Put together what commits wrote: `written` by snapshot, and the `sizes` of metadata files (None: deleted).

    Iceberg builds a commit's metadata file after its snapshot and before any later one. So it is the first file that is
    not older than the snapshot. Only the last of several snapshots between two files has one of its own: they were
    committed together.
    """
    log = [*metadata.metadata_log, MetadataLogEntry(metadata.last_updated_ms, metadata.metadata_location)]
    snapshots = sorted(metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
    times = [snapshot.timestamp_ms for snapshot in snapshots]
    before = 0
    if not log[0].metadata_file.rpartition("/")[2].startswith("00000-"):
        # It is not the table's first file: whether it came with a snapshot depends on the one before it.
        before = bisect_right(times, log.pop(0).timestamp_ms)
    rows = [_cost(snapshot, written, None) for snapshot in snapshots[:before]]
    for entry in log:
        size, upto = sizes.get(entry.metadata_file), bisect_right(times, entry.timestamp_ms)
        together = snapshots[before:upto]
        rows += [_cost(snapshot, written, 0, files=0) for snapshot in together[:-1]]
        if together:
            rows.append(_cost(together[-1], written, size))
        else:
            rows.append(CommitCost(in_calendar(entry.timestamp_ms), None, None, 0, None, size, 0, 0, 0, 1))
        before = max(before, upto)
    # Clocks that differ can leave snapshots after the newest file.
    rows += [_cost(snapshot, written, None) for snapshot in snapshots[before:]]
    return CommitCosts(table, tuple(sorted(rows, key=lambda row: row.committed_at)), unfelt_bytes)


def _cost(
    snapshot: Snapshot, written: Mapping[int, Written], metadata_bytes: int | None, *, files: int = 1
) -> CommitCost:
    """The cost of a snapshot whose commit wrote `files` metadata files."""
    own = written[snapshot.snapshot_id]
    return CommitCost(
        committed_at=in_calendar(snapshot.timestamp_ms),
        snapshot_id=snapshot.snapshot_id,
        operation=snapshot.summary.operation,
        files_changed=sum(snapshot.summary.count(name) or 0 for name in _CHANGES),
        total_files=snapshot.summary.total_data_files,
        metadata_bytes=metadata_bytes,
        manifest_list_bytes=own.manifest_list_bytes,
        manifests=own.manifests,
        manifest_bytes=own.manifest_bytes,
        requests=files + (snapshot.manifest_list is not None) + own.manifests,
    )
