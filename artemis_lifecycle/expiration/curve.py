"""What-if analysis: how much a table would hold under other windows, and what each ref costs to keep. Changes nothing.

Every point is a complete decision by the table's own rule, holds and tags, under another window. The files that its
kept snapshots reach are counted in the manifest index, each once.
"""

from __future__ import annotations

import io
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.metadata.types import Ref, TableMetadata
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.lookups import held_files
from artemis_lifecycle.retention.rules import Decision, Keepers, RetentionSettings, decide, view_of
from artemis_lifecycle.tabular import Shown, frame_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# --- pictures ---------------------------------------------------------------------------------------------------------
# What pictures of sizes share.

_DPI = 80
_COLORS = 16


def size_unit(size_in_bytes: float) -> tuple[float, str]:
    """Return a readable unit for this size: the bytes in one unit, and its name."""
    for factor, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_in_bytes >= factor:
            return factor, name
    return 1.0, "B"


def label(text: str, most: int = 40) -> str:
    """Return a name for a picture: escaped, and cut if it would leave no space for the plot."""
    text = terminal(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of that size in inches. Raises EnvironmentMissing without the extra `ui`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentMissing.extra("ui", error) from error
    return Figure(figsize=(width, height), layout="constrained")


def axis_of_time(panel: Axes, times: Sequence[datetime]) -> None:
    """Label a panel's axis of time. Around a single instant, it is a day: by itself it would be four years."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    panel.xaxis.set_major_locator(locator)
    panel.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    panel.tick_params(axis="x", labelsize=8, rotation=20)
    if len({*times}) == 1:
        around: list[Any] = [times[0] - timedelta(hours=12), times[0] + timedelta(hours=12)]
        panel.set_xlim(*around)


def drawn(figure: Figure, kind: str) -> bytes:
    """Return the figure as a picture of that kind (`png`, `svg`), with all texts taken literally."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        # Names of tables and refs may contain dollar signs, which are not formulas.
        text.set_parse_math(False)
        text.set_text(label(text.get_text(), most=100))
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # Scripts that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(picture, format=kind, dpi=_DPI)
    return _in_few_colors(picture) if kind == "png" else picture.getvalue()


def _in_few_colors(png: io.BytesIO) -> bytes:
    """Return the picture with a palette: a quarter of the size, because Dagster stores it with each materialization."""
    from PIL import Image  # matplotlib needs it, too.

    small = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


_DAY_MS = 86_400_000
_MINUTE_MS, _HOUR_MS, _YEAR_MS = 60_000, 3_600_000, 365 * _DAY_MS
_ROUND_MS = (
    0,
    *(each * _MINUTE_MS for each in (1, 5, 15)),
    *(each * _HOUR_MS for each in (1, 3, 6, 12)),
    *(each * _DAY_MS for each in (1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 120, 180, 270)),
    *(each * _YEAR_MS for each in (1, 2, 3, 5, 7, 10, 20, 50)),
)
MOST_WORK = 10_000_000
"""Each ref whose snapshots no other ref keeps needs a complete decision over all refs and snapshots. With more refs
than this allows, only those on the oldest snapshots are computed."""


@dataclass(frozen=True)
class CurvePoint:
    """What the table holds under a window: kept snapshots, the distinct files that they reach, and their bytes.

    `is_policy` marks the window of the table's own policy.
    """

    window_ms: int
    snapshots: int
    files: int
    size_in_bytes: int
    is_policy: bool


@dataclass(frozen=True)
class RefCost:
    """What one branch or tag alone keeps: snapshots, files and bytes that its removal would free."""

    ref: str
    type: str
    snapshot_id: int
    snapshots: int
    files: int
    size_in_bytes: int


@dataclass(frozen=True)
class RetentionCurve(Shown):
    """Files and bytes held as a function of the window, and per ref under the policy's window."""

    table: str
    metadata_location: str
    points: tuple[CurvePoint, ...]
    refs: tuple[RefCost, ...]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per window: window_days float64, snapshots, files, size_in_bytes int64, is_policy bool."""
        frame = frame_of(CurvePoint, self.points)
        frame.insert(0, "window_days", frame.pop("window_ms") / _DAY_MS)
        return frame

    def refs_to_pandas(self) -> pd.DataFrame:
        """Return one row per ref, most expensive first: ref, type object; snapshot_id, snapshots, files, size_in_bytes
        int64."""
        return frame_of(RefCost, self.refs)

    def plot(self, kind: str = "png") -> bytes:
        """Return a picture (`png` or `svg`) of the curve and of the cost of each ref."""
        frame = self.to_pandas()
        figure = new_figure(10, 4)
        panels = figure.subplots(1, 2 if self.refs else 1, squeeze=False, width_ratios=(3, 2) if self.refs else None)
        curve = panels[0][0]
        most = max(frame["size_in_bytes"], default=0)
        unit, name = size_unit(most)
        # The units per day of the widest windows, and their name.
        days, spans = max(frame["window_days"], default=0), ((1.0, "days"), (24.0, "hours"), (1_440.0, "minutes"))
        per, span = next((each for each in spans if days * each[0] >= 2), (86_400.0, "seconds"))
        windows, held = frame["window_days"] * per, frame["size_in_bytes"] / unit
        # What the longest window holds, any longer window holds too: so the last step also has a width.
        curve.step(
            [*windows, *(windows.tail(1) * 1.05)], [*held, *held.tail(1)], where="post", color="#1f6f8b", linewidth=2
        )
        chosen = frame["is_policy"]
        curve.plot(windows[chosen], held[chosen], "o", color="#e59866", label="the policy")
        curve.set(xlabel=f"window ({span})", ylabel=f"held ({name})", title=f"{self.table}: held by window")
        curve.set_ylim(0, (most / unit or 1) * 1.1)
        curve.legend(loc="lower right")
        if not self.refs:
            return drawn(figure, kind)
        costs, largest = panels[0][1], self.refs[:12][::-1]
        part, part_name = size_unit(max((cost.size_in_bytes for cost in largest), default=0))
        # An axis creates its labels again when it is drawn.
        costs.barh(
            [label(cost.ref) for cost in largest], [cost.size_in_bytes / part for cost in largest], color="#1f6f8b"
        )
        costs.set(xlabel=f"freed by its removal ({part_name})", title="What each ref costs")
        costs.tick_params(axis="y", labelsize=8)
        return drawn(figure, kind)


def retention_curve(
    table: str,
    view: IndexView,
    settings: RetentionSettings,
    now_ms: int,
    keepers: Keepers,
    *,
    windows_ms: Sequence[int] | None = None,
) -> RetentionCurve:
    """Return the curve over `windows_ms` (None: round windows up to the table's age, closer together for short ones).

    The policy's window is always included. Raises what `decide` raises.
    """
    metadata = view.metadata

    def under(window_ms: int, of: TableMetadata = metadata) -> Decision:
        chosen = replace(settings, window_ms=window_ms, older_than_ms=None, explicit_ids=(), explicit_window=True)
        return decide(view_of(of), chosen, now_ms, **keepers)

    policy = settings.window_ms
    windows = sorted({policy, *(_windows(metadata, now_ms) if windows_ms is None else windows_ms)})
    decisions = [under(window) for window in windows]
    whole = decide(view_of(metadata), replace(settings, older_than_ms=None, explicit_ids=()), now_ms, **keepers)
    expired = set(whole.expired_refs)
    staying = [ref for name, ref in sorted(metadata.refs.items()) if name not in expired]
    on = Counter(ref.snapshot_id for ref in staying)
    alike = Counter(replace(ref, name="") for ref in staying)
    alone: list[Ref] = []
    free: list[Ref] = []
    for ref in staying:
        kept_by_another = alike[replace(ref, name="")] > 1 if ref.is_branch else on[ref.snapshot_id] > 1
        if ref.name != "main":
            (free if kept_by_another else alone).append(ref)
    order = {snapshot.snapshot_id: number for number, snapshot in enumerate(metadata.snapshots)}
    alone.sort(key=lambda ref: order.get(ref.snapshot_id, -1))
    removable = alone[: max(50, MOST_WORK // max(1, len(metadata.refs) + len(metadata.snapshots)))]
    without = []
    for ref in removable:
        rest = replace(metadata, refs={name: other for name, other in metadata.refs.items() if name != ref.name})
        base = replace(settings, older_than_ms=None, explicit_ids=())
        without.append(decide(view_of(rest), base, now_ms, **keepers))
    every = [decision.kept.keys() for decision in (*decisions, whole, *without)]
    # Windows between two commits keep the same snapshots: each set is counted once.
    distinct = list(dict.fromkeys(frozenset(kept) for kept in every))
    counted = dict(zip(distinct, held_files(view, [sorted(kept) for kept in distinct]), strict=True))
    points = []
    for window, decision in zip(windows, decisions, strict=True):
        held = counted[frozenset(decision.kept)]
        points.append(CurvePoint(window, len(decision.kept), held.files, held.size_in_bytes, window == policy))
    full = counted[frozenset(whole.kept)]
    # Another ref keeps the snapshot of these refs.
    costs = [RefCost(ref.name, ref.type, ref.snapshot_id, 0, 0, 0) for ref in free]
    for ref, decision in zip(removable, without, strict=True):
        rest_held = counted[frozenset(decision.kept)]
        costs.append(
            RefCost(
                ref.name,
                ref.type,
                ref.snapshot_id,
                len(whole.kept) - len(decision.kept),
                full.files - rest_held.files,
                full.size_in_bytes - rest_held.size_in_bytes,
            )
        )
    costs.sort(key=lambda cost: (-cost.size_in_bytes, cost.ref))
    return RetentionCurve(table, metadata.metadata_location, tuple(points), tuple(costs))


def _windows(metadata: TableMetadata, now_ms: int) -> list[int]:
    """Return the round windows that are shorter than the table's age, and the first that is not."""
    age = max((now_ms - snapshot.timestamp_ms for snapshot in metadata.snapshots), default=0)
    return list(_ROUND_MS[: bisect_left(_ROUND_MS, age) + 1])
