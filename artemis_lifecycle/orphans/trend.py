"""What the scans of one table show over time: how fast it accumulates orphans, when to scan again, and whether files
that are skipped as in flight ever settle. Pure, except for the picture."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from artemis_lifecycle.config.policies import Checks, ScanEvery
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.expiration.curve import axis_of_time, drawn, new_figure, size_unit
from artemis_lifecycle.expiration.verdicts import Verdict
from artemis_lifecycle.operations.holds import Heartbeat
from artemis_lifecycle.operations.scans import ScanRecord, ScanState
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.storage.frames import map_parts
from artemis_lifecycle.storage.location import LocationRules, is_under, normalize
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.tabular import Shown, frame_of

if TYPE_CHECKING:
    import pandas as pd


_SCANS_FOR_A_RATE = 4
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class ScanPoint:
    """One scan: counts of files, sizes in bytes. `too_young` and `live_writers` are the two kinds of files that it
    skipped as in flight. `deleted` means that its orphans were deleted."""

    scan_id: str
    at: datetime
    listed: int
    orphans: int
    orphan_bytes: int
    too_young: int
    live_writers: int
    deleted: bool

    @property
    def orphan_share(self) -> float:
        """The share of orphans among the listed files, 0 to 1."""
        return self.orphans / self.listed if self.listed else 0.0

    @property
    def in_flight(self) -> int:
        return self.too_young + self.live_writers

    @property
    def in_flight_share(self) -> float:
        """The share of skipped files among the listed ones, 0 to 1."""
        return self.in_flight / self.listed if self.listed else 0.0


@dataclass(frozen=True)
class ScanTrend(Shown):
    """The scans of a table, oldest first. `leaked_per_day`: unreferenced files that appear each day
    and grow old; None before there are two scans."""

    table: str
    points: tuple[ScanPoint, ...]
    leaked_per_day: float | None

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per scan: scan_id object; at datetime64[ms, UTC]; listed, orphans, orphan_bytes, too_young,
        live_writers int64; deleted bool."""
        return frame_of(ScanPoint, self.points)

    def plot(self, kind: str = "png") -> bytes:
        """Return a picture of orphans, skipped files in flight, and the orphans' bytes, by scan."""
        figure = new_figure(11, 3.5)
        files, size = figure.subplots(1, 2)
        times: list[Any] = [point.at for point in self.points]
        for label, color, counts in (
            ("orphans", "#c0392b", [point.orphans for point in self.points]),
            ("too young", "#7fb3d5", [point.too_young for point in self.points]),
            ("of live writers", "#1f6f8b", [point.live_writers for point in self.points]),
        ):
            files.plot(times, counts, marker="o", label=label, color=color)
        files.set_title(f"{self.table}: files that nothing refers to")
        files.legend()
        unit, name = size_unit(max((point.orphan_bytes for point in self.points), default=0))
        size.bar(range(len(self.points)), [point.orphan_bytes / unit for point in self.points], color="#c0392b")
        size.set_title(f"Orphans, {name}, scan by scan")
        axis_of_time(files, times)
        for panel in (files, size):
            panel.set_ylim(bottom=0)
        size.tick_params(axis="x", labelsize=8)
        return drawn(figure, kind)


def trend_of(table: str, scans: Sequence[ScanRecord]) -> ScanTrend:
    """`scans` in any order."""
    points = [_point(scan) for scan in sorted(scans, key=lambda scan: scan.listed_at)]
    return ScanTrend(table, tuple(points), leaked_per_day(points))


def _point(scan: ScanRecord) -> ScanPoint:
    summary = json.loads(scan.summary)
    return ScanPoint(
        scan_id=scan.scan_id,
        at=scan.listed_at,
        listed=summary["listed_files"],
        orphans=scan.files,
        orphan_bytes=scan.bytes,
        too_young=scan.skipped_young,
        live_writers=max(0, scan.skipped_in_flight - scan.skipped_young),
        deleted=scan.state is ScanState.DONE,
    )


def leaked_per_day(points: Sequence[ScanPoint]) -> float | None:
    """Return new orphans per day over the last few scans: the orphans of a scan, minus those of the scan before that
    were not deleted. Scans within one day count as a whole day, because one orphan in an hour is not 24 a day."""
    recent = points[-_SCANS_FOR_A_RATE:]
    if len(recent) < 2:
        return None
    new = sum(
        max(0, after.orphans - (0 if before.deleted else before.orphans))
        for before, after in itertools.pairwise(recent)
    )
    return new / max(1.0, (recent[-1].at - recent[0].at) / _DAY)


def next_scan(points: Sequence[ScanPoint], every: ScanEvery, min_age: timedelta) -> datetime | None:
    """Return when orphans will reach `every.target_share` of the table's files at the rate of the last scans, but no
    sooner than `every.least` and no later than `every.most` after the last scan. None (now) before the second scan.

    Unreferenced files that were too young at the last scan count as the growth during `min_age`. Otherwise a table
    would look clean until its first orphans are old enough, and would not be scanned for another such period.
    """
    rate = leaked_per_day(points)
    if rate is None:
        return None
    last = points[-1]
    rate = max(rate, last.too_young / max(min_age / _DAY, 1.0))
    aimed = every.most if rate <= 0 else timedelta(days=min(36_500.0, every.target_share * last.listed / rate))
    return last.at + min(max(aimed, every.least), every.most)


@dataclass(frozen=True)
class InFlight:
    """Whether files that are skipped as in flight settle. `scans` in a row were above the threshold. `endless` are
    heartbeats that run for longer than the minimum age of orphans."""

    settles: bool
    scans: int
    share: float
    too_young: int
    live_writers: int
    endless: tuple[Heartbeat, ...]

    def __str__(self) -> str:
        if self.settles:
            return (
                f"{self.too_young + self.live_writers:,} unreferenced files are in flight ({self.share:.1%} of those "
                f"listed): {self.too_young:,} too young, {self.live_writers:,} of live writers."
            )
        often = (
            f"For {self.scans} scans in a row more files were skipped than the threshold allows ({self.share:.1%}): "
        )
        kinds = f"{self.too_young:,} are too young, {self.live_writers:,} belong to live writers"
        if not self.live_writers:
            return f"{often}{kinds}. Writers leave more each day than becomes old enough: find out what crashes."
        if self.endless:
            names = ", ".join(sorted({beat.writer_id for beat in self.endless}))
            return f"{often}{kinds}. Heartbeats that never end: {names}. Stop them, or give them a prefix of their own."
        return f"{often}{kinds}. Give long writers a prefix of their own, so that they protect no more than that."


def in_flight(
    points: Sequence[ScanPoint],
    heartbeats: Sequence[Heartbeat],
    *,
    max_share: float,
    scans: int,
    now: datetime,
    min_age: timedelta,
) -> InFlight:
    """Return the result for the last `scans` of `points` (oldest first). `heartbeats` are the table's live ones."""
    above = 0
    for point in reversed(points):
        if point.in_flight_share <= max_share:
            break
        above += 1
    last = points[-1]
    return InFlight(
        settles=above < scans,
        scans=above,
        share=last.in_flight_share,
        too_young=last.too_young,
        live_writers=last.live_writers,
        endless=tuple(beat for beat in heartbeats if now - beat.started_at > min_age),
    )


FRESH, INTACT, SHARE = "listing_is_fresh", "listing_is_intact", "orphan_share_below_threshold"


# --- verdicts ---------------------------------------------------------------------------------------------------------
# Checks of a table's newest listing, and of its share of orphans over the last scans.

_NONE = "The table has no listing."


def judge_listing_age(
    listing: Listing | None, folders: Sequence[str], rules: LocationRules, now: datetime, checks: Checks
) -> Verdict:
    """Check that the newest listing is younger than `listing_age`, and covers all `folders` of the table."""
    if listing is None:
        return Verdict(FRESH, False, _NONE, warns=True)
    listed = {normalize(each, rules) for each in listing.locations}
    missing = tuple(
        each
        for each in folders
        if normalize(each, rules) not in listed and not any(is_under(each, other, rules) for other in listing.locations)
    )
    age = now - listing.started_at
    text = f"The newest listing began {age.total_seconds() / 3600:.1f} hours ago"
    return Verdict(
        FRESH,
        not missing and age <= checks.listing_age,
        f"{text}, and does not cover all of the table's locations."
        if missing
        else f"{text}; {checks.listing_age.total_seconds() / 3600:.0f} hours are allowed.",
        missing,
        {"listing_id": listing.listing_id, "age_seconds": round(age.total_seconds())},
        warns=True,
    )


def judge_listing(listing: Listing | None, stores: Stores) -> Verdict:
    """Check that the sealed rows of the newest listing match their checksums, and their recorded number and bytes.
    Reads all of them."""
    if listing is None:
        return Verdict(INTACT, False, _NONE, warns=True)
    try:
        parts = list(map_parts(listing.files_location, stores, _totals, ["size_in_bytes"]))
    except StorageError as error:
        return Verdict(INTACT, False, f"The rows of {listing.listing_id} cannot be read.", (str(error),))
    files, size = sum(each for each, _ in parts), sum(each for _, each in parts)
    recorded = (listing.files, listing.bytes)
    return Verdict(
        INTACT,
        (files, size) == recorded,
        f"The listing has {files:,} files and {size:,} bytes; recorded are {recorded[0]:,} and {recorded[1]:,}.",
        figures={"listing_id": listing.listing_id, "files": files, "bytes": size},
    )


def _totals(batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    files = size = 0
    for batch in batches:
        files, size = files + batch.num_rows, size + (pc.sum(batch.column("size_in_bytes")).as_py() or 0)
    return files, size


def judge_orphan_share(points: Sequence[ScanPoint], checks: Checks) -> Verdict:
    """Check the share of orphans of the last of `points` (oldest first) against `error`, and that of the last scans
    against `warn`. A single scan above `warn` may find what was left behind before the first one."""
    if not points:
        return Verdict(SHARE, False, "The table has no scan.", warns=True)
    limits, last = checks.orphan_share, points[-1]
    recent = points[-limits.scans :]
    above = len(recent) == limits.scans and all(each.orphan_share > limits.warn for each in recent)
    red = last.orphan_share > limits.error
    text = f"{last.orphans:,} of {last.listed:,} listed files are orphans ({last.orphan_share:.2%})"
    return Verdict(
        SHARE,
        not red and not above,
        f"{text}; above {limits.error:.1%}, a wrong location or scheme is likely. Check before you delete."
        if red
        else f"{text}; each of the last {limits.scans} scans found more than {limits.warn:.2%}."
        if above
        else f"{text}; {limits.error:.1%} are allowed in a scan, {limits.warn:.2%} in {limits.scans} in a row.",
        figures={"orphan_share": round(last.orphan_share, 6), "orphans": last.orphans, "files": last.listed},
        warns=not red,
    )
