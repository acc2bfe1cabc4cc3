"""Setting back keeps order: what came later is later, and an event's own files keep their distance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.mission.timeline import Timeline, set_back_document

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _instant(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def _timeline(*pairs: tuple[int, int]) -> Timeline:
    timeline = Timeline()
    for real, simulated in pairs:
        timeline.begin(real, _instant(simulated))
    return timeline


def test_an_instant_within_an_event_keeps_its_distance_from_the_events_start() -> None:
    timeline = _timeline((1000, 50), (2000, 100_000))
    assert [timeline.at(real) for real in (1000, 1007, 2000, 2500)] == [50, 57, 100_000, 100_500]


def test_before_the_first_event_is_its_start() -> None:
    assert _timeline((1000, 50)).at(3) == 50


def test_an_event_that_took_long_does_not_overtake_the_next() -> None:
    timeline = _timeline((1000, 50), (9000, 100))
    assert timeline.at(8999) == 99
    assert timeline.at(9000) == 100


def test_events_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        _timeline((1000, 50), (1000, 60))
    with pytest.raises(ValueError, match="order"):
        _timeline((1000, 50), (1001, 50))


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(60_000, 10**9)), min_size=1, max_size=20),
    st.lists(st.integers(0, 10**6), min_size=2, max_size=50),
)
def test_later_is_never_earlier(steps: list[tuple[int, int]], instants: list[int]) -> None:
    real = simulated = 0
    pairs = []
    for gap, leap in steps:
        real, simulated = real + gap, simulated + leap
        pairs.append((real, simulated))
    timeline = _timeline(*pairs)
    moved = [timeline.at(instant) for instant in sorted(instants)]
    assert moved == sorted(moved)


def test_every_time_of_a_metadata_file_is_moved_and_nothing_else() -> None:
    document = {
        "format-version": 3,
        "last-updated-ms": 2001,
        "snapshots": [{"snapshot-id": 1, "timestamp-ms": 1001, "summary": {"operation": "append"}}],
        "snapshot-log": [{"snapshot-id": 1, "timestamp-ms": 1001}],
        "metadata-log": [{"metadata-file": "a", "timestamp-ms": 1000}],
        "a-field-to-come": {"timestamp-ms": 1001},
    }
    moved = set_back_document(document, _timeline((1000, 50), (2000, 100_000)))
    assert moved == {
        "format-version": 3,
        "last-updated-ms": 100_001,
        "snapshots": [{"snapshot-id": 1, "timestamp-ms": 51, "summary": {"operation": "append"}}],
        "snapshot-log": [{"snapshot-id": 1, "timestamp-ms": 51}],
        "metadata-log": [{"metadata-file": "a", "timestamp-ms": 50}],
        "a-field-to-come": {"timestamp-ms": 1001},
    }
    assert document["last-updated-ms"] == 2001
