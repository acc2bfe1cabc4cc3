"""The share of orphans: single digits are allowed in a scan, a tenth of a percent in the steady state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from artemis_lifecycle.config.policies import Checks
from artemis_lifecycle.orphans.trend import ScanPoint, judge_orphan_share

START = datetime(2026, 1, 1, tzinfo=UTC)


def scans(*orphans: int) -> list[ScanPoint]:
    """Scans of 10,000 listed files with so many orphans, a day apart."""
    return [
        ScanPoint(f"s{n}", START + timedelta(days=n), 10_000, each, each, 0, 0, True) for n, each in enumerate(orphans)
    ]


def test_a_backlog_passes_once_and_a_steady_leak_warns() -> None:
    assert judge_orphan_share(scans(900), Checks()).passed
    assert judge_orphan_share(scans(900, 11), Checks()).passed
    steady = judge_orphan_share(scans(900, 11, 11), Checks())
    assert not steady.passed and steady.warns
    assert judge_orphan_share(scans(900, 11, 10), Checks()).passed
    red = judge_orphan_share(scans(0, 0, 1_001), Checks())
    assert not red.passed and not red.warns
    never = judge_orphan_share([], Checks())
    assert not never.passed and never.warns


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=8))
def test_more_orphans_never_improve_the_verdict(orphans: list[int]) -> None:
    def rank(counts: list[int]) -> int:
        found = judge_orphan_share(scans(*counts), Checks())
        return 0 if found.passed else 1 if found.warns else 2

    assert rank(orphans) <= rank([min(10_000, each + 50) for each in orphans])
