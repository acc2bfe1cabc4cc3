"""What scans tell over time: the leak rate, the next scan, and files that never settle."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.config import ScanEvery
from artemis_lifecycle.operations.heartbeats import Heartbeat
from artemis_lifecycle.orphans.trend import InFlight, ScanPoint, ScanTrend, in_flight, leaked_per_day, next_scan

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
WEEK = timedelta(days=7)
EVERY = ScanEvery()


def point(
    day: float, orphans: int, *, listed: int = 10_000, deleted: bool = True, young: int = 0, live: int = 0
) -> ScanPoint:
    return ScanPoint(f"s{day}", START + day * DAY, listed, orphans, orphans * 100, young, live, deleted)


def test_the_rate_counts_what_came_up_between_scans() -> None:
    assert leaked_per_day([]) is None and leaked_per_day([point(0, 50)]) is None
    assert leaked_per_day([point(0, 50), point(2, 20)]) == 10
    # Nobody deleted the first ones: they are found again, and are not new.
    assert leaked_per_day([point(0, 50, deleted=False), point(2, 60)]) == 5
    assert leaked_per_day([point(0, 50, deleted=False), point(2, 40)]) == 0
    # Only the last few scans count: a writer was mended.
    assert leaked_per_day([point(0, 0), point(1, 9000), *(point(day, 0) for day in range(2, 6))]) == 0


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], None),
        ([point(0, 5)], None),
        ([point(0, 0), point(1, 0)], 1 + 7),  # nothing leaks: as late as is allowed
        ([point(0, 0), point(1, 5)], 1 + 2),  # 5 a day, 10 are a thousandth of 10,000
        ([point(0, 0), point(1, 5_000)], 1 + 20 / 24),  # never sooner than the least
    ],
)
def test_the_next_scan_follows_the_leak_rate_within_bounds(points: list[ScanPoint], expected: float | None) -> None:
    assert next_scan(points, EVERY) == (None if expected is None else START + expected * DAY)


@given(st.lists(st.tuples(st.integers(0, 500), st.booleans()), min_size=2, max_size=12), st.integers(0, 10**6))
def test_the_next_scan_is_always_within_its_bounds(found: list[tuple[int, bool]], listed: int) -> None:
    points = [point(day, orphans, listed=listed, deleted=gone) for day, (orphans, gone) in enumerate(found)]
    due = next_scan(points, EVERY)
    assert due is not None and EVERY.least <= due - points[-1].at <= EVERY.most


def test_a_month_of_writers_that_leak_settles() -> None:
    """Every twentieth commit leaves its files behind: a scan when it is due, and its deletion, keep what is old enough
    to be an orphan at or below a thousandth after each; the most between two is what comes up in a night."""
    files, points = 100_000, list[ScanPoint]()
    waiting = 0.0
    for hour in range(24 * 31):
        files += 40
        waiting += 40 * 0.05
        now = START + timedelta(hours=hour)
        due = next_scan(points, EVERY)
        if hour % 24 == 6 and (due is None or due <= now):
            points.append(ScanPoint(f"s{hour}", now, files, int(waiting), 0, 0, 0, deleted=True))
            waiting -= int(waiting)
            assert waiting / files <= 0.001
    gaps = {after.at - before.at for before, after in itertools.pairwise(points)}
    assert len(points) > 10 and max(gaps) <= 3 * DAY
    assert all(point.orphans / point.listed <= 0.0015 for point in points[2:])


def beat(writer: str, days: float) -> Heartbeat:
    since = START - days * DAY
    return Heartbeat("u", "db.t", writer, "", None, "host", 1, since, START, START + timedelta(minutes=10))


def judged(points: list[ScanPoint], *beats: Heartbeat) -> InFlight:
    return in_flight(points, beats, max_share=0.05, scans=3, now=START, min_age=WEEK)


def test_files_that_never_settle_are_told_by_their_kind() -> None:
    calm, high = point(0, 0, young=400), point(1, 0, young=600)
    assert judged([calm]).settles and judged([high, high]).settles and judged([high, high, calm]).settles
    found = judged([calm, high, high, high])
    assert not found.settles and found.scans == 3
    assert "too young" in str(found) and "look at what crashes" in str(found)
    writers = point(2, 0, young=100, live=600)
    assert "prefix of their own" in str(judged([writers] * 3, beat("nightly", 1)))
    endless = judged([writers] * 3, beat("nightly", 1), beat("forgotten", 30))
    assert [each.writer_id for each in endless.endless] == ["forgotten"]
    assert "never end: forgotten" in str(endless)


def test_the_trend_is_a_table_and_a_picture() -> None:
    trend = ScanTrend("db.t", (point(0, 5), point(1, 7)), 7.0)
    assert trend.to_pandas()["orphans"].tolist() == [5, 7]
    assert trend.plot().startswith(b"\x89PNG") and ScanTrend("db.t", (), None).plot()
