"""What scans tell over time: the leak rate, the next scan, and files that never settle."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.config.policies import ScanEvery
from artemis_lifecycle.operations.holds import Heartbeat
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
    assert leaked_per_day([point(0, 50), point(1 / 24, 1)]) == 1, "one orphan in an hour"
    # Nobody deleted the first ones: they are found again, and are not new.
    assert leaked_per_day([point(0, 50, deleted=False), point(2, 60)]) == 5
    assert leaked_per_day([point(0, 50, deleted=False), point(2, 40)]) == 0
    # Only the last few scans count: a writer was fixed.
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
    assert next_scan(points, EVERY, WEEK) == (None if expected is None else START + expected * DAY)


@given(st.lists(st.tuples(st.integers(0, 500), st.booleans()), min_size=2, max_size=12), st.integers(0, 10**6))
def test_the_next_scan_is_always_within_its_bounds(found: list[tuple[int, bool]], listed: int) -> None:
    points = [point(day, orphans, listed=listed, deleted=gone) for day, (orphans, gone) in enumerate(found)]
    due = next_scan(points, EVERY, WEEK)
    assert due is not None and EVERY.least <= due - points[-1].at <= EVERY.most


def test_what_is_too_young_now_is_what_comes() -> None:
    """Nothing was old enough to be an orphan yet, and 700 files will be within the week."""
    points = [point(0, 0, young=700), point(1, 0, young=700)]
    assert next_scan(points, EVERY, WEEK) == START + 1 * DAY + EVERY.least
    assert next_scan([point(0, 0), point(1, 0, young=14)], EVERY, WEEK) == START + (1 + 5) * DAY


def test_a_month_of_writers_that_leak_settles() -> None:
    """Every twentieth file is left behind, and is an orphan after a week: a scan when due, and its deletion, keep
    orphans at or below a thousandth after each night. (The same on a real table: integration/test_leaking_month.py.)"""
    files, points = 100_000, list[ScanPoint]()
    left: list[float] = []
    for day in range(31):
        files += 960
        left.append(960 * 0.05)
        due, now = next_scan(points, EVERY, WEEK), START + day * DAY
        if due is None or due <= now:
            old, young = sum(left[:-7]), sum(left[-7:])
            points.append(ScanPoint(f"s{day}", now, files, int(old), 0, int(young), 0, deleted=True))
            left[:-7] = [0.0] * len(left[:-7])
        assert sum(left[:-7]) / files <= 0.001
    # Nothing is old in the first week; from then on it is looked at every second or third night.
    gaps = {after.at - before.at for before, after in itertools.pairwise(points) if before.at >= START + WEEK}
    assert 10 <= len(points) < 20 and max(gaps) <= 3 * DAY


def beat(writer: str, days: float) -> Heartbeat:
    since = START - days * DAY
    return Heartbeat("u", "db.t", writer, "", None, "host", 1, since, START, START + timedelta(minutes=10))


def judged(points: list[ScanPoint], *beats: Heartbeat) -> InFlight:
    return in_flight(points, beats, max_share=0.05, scans=3, now=START, min_age=WEEK)


def test_files_that_never_settle_are_reported_by_their_kind() -> None:
    calm, high = point(0, 0, young=400), point(1, 0, young=600)
    assert judged([calm]).settles and judged([high, high]).settles and judged([high, high, calm]).settles
    found = judged([calm, high, high, high])
    assert not found.settles and found.scans == 3
    assert "too young" in str(found) and "find out what crashes" in str(found)
    writers = point(2, 0, young=100, live=600)
    assert "prefix of their own" in str(judged([writers] * 3, beat("nightly", 1)))
    endless = judged([writers] * 3, beat("nightly", 1), beat("forgotten", 30))
    assert [each.writer_id for each in endless.endless] == ["forgotten"]
    assert "never end: forgotten" in str(endless)


@pytest.mark.seconds
def test_the_trend_is_a_table_and_a_picture() -> None:
    trend = ScanTrend("db.t", (point(0, 5), point(1, 7)), 7.0)
    assert trend.to_pandas()["orphans"].tolist() == [5, 7]
    assert trend.plot().startswith(b"\x89PNG") and ScanTrend("db.t", (), None).plot()
