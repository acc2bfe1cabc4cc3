"""The schedule is a history of more than 400 days with everything in it that a table can meet."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from examples.mission.schedule import ARCHIVE, HISTORY_DAYS, INCIDENT, REGISTRY, TABLES, Action, events

NOWS = [
    datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC),
    datetime(2026, 3, 1, 3, 0, tzinfo=UTC),
    datetime(2026, 11, 21, 23, 59, 59, tzinfo=UTC),
]


@pytest.mark.parametrize("now", NOWS)
@pytest.mark.parametrize("table", TABLES)
def test_events_are_in_order_a_minute_apart_and_over(table: str, now: datetime) -> None:
    made = events(table, now)
    assert made[0].action is Action.CREATE
    assert now - made[0].at > timedelta(days=400)
    assert made[-1].at < now
    assert all(later.at - earlier.at >= timedelta(minutes=1) for earlier, later in pairwise(made))


@pytest.mark.parametrize("now", NOWS)
def test_every_action_happens_and_about_ten_tags_are_made(now: datetime) -> None:
    counted = Counter(event.action for table in TABLES for event in events(table, now))
    assert set(counted) == set(Action)
    assert 8 <= counted[Action.TAG] + counted[Action.MARK] <= 12
    marks = [event for event in events(REGISTRY, now) if event.action is Action.MARK]
    assert [event.name for event in marks] == [INCIDENT]
    # On a snapshot that the window of 30 days would let go.
    assert now - marks[0].at > timedelta(days=30)


def test_the_last_days_are_dense_and_the_old_ones_sparse() -> None:
    now = NOWS[1]
    for table in TABLES:
        times = [event.at for event in events(table, now)]
        recent = sum(1 for at in times if now - at < timedelta(days=20)) / 20
        old = sum(1 for at in times if now - at > timedelta(days=60)) / (HISTORY_DAYS - 60)
        assert recent > 2 * old, table


def test_orphans_are_older_than_their_tables_rules_ask_and_the_young_file_is_not() -> None:
    now = NOWS[1]
    made = {event.action: now - event.at for table in TABLES for event in events(table, now)}
    week = timedelta(days=7)
    # A lost metadata file outside the log must be older than the table's window, too.
    assert made[Action.LOST_COMMIT] > timedelta(days=30)
    assert made[Action.CRASHED_WRITER] > week
    assert made[Action.INTERRUPTED_COMPACTION] > week
    assert made[Action.WRITER_IN_FLIGHT] > week
    assert made[Action.YOUNG_FILE] < timedelta(hours=24)
    assert any(event.action is Action.INTERRUPTED_COMPACTION for event in events(ARCHIVE, now))
