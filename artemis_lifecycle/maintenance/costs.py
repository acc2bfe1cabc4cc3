"""What a table costs by tier and by tag: bytes, files and requests as they are known, and money by the configuration's
price table. Belongs here: adding up and drawing. Does not belong: a price.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artemis_lifecycle.config.deployment import Prices
from artemis_lifecycle.expiration.curve import RefCost
from artemis_lifecycle.expiration.pictures import drawn, label, new_figure, size_unit
from artemis_lifecycle.metadata.types import MAIN_BRANCH
from artemis_lifecycle.operations.held_bytes import HeldBytes
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.held import held_files
from artemis_lifecycle.tabular import frame_of

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
class TableCosts:
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
                "deep-archive",
                classes.deep,
                len(cold.deep_snapshots),
                cold.deep_files,
                cold.deep_bytes,
                prices,
                asked,
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
