"""Until when a snapshot is held is the first instant at which a plan would let it go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from artemis_lifecycle.expiration.plan import held_until
from artemis_lifecycle.metadata.table_metadata import parse_table_metadata
from artemis_lifecycle.metadata.types import Ref, TableMetadata
from artemis_lifecycle.retention.rules import HoldView, RetentionSettings, decide, view_of
from artemis_lifecycle.retention.views import NO_KEEPERS
from artemis_lifecycle_tests.expiration.test_curve import DAY, history

SETTINGS = RetentionSettings(window_ms=7 * DAY)


@pytest.fixture
def metadata() -> TableMetadata:
    return parse_table_metadata(history(days=10), "s3://b/t/metadata/1.metadata.json")


def test_it_is_the_first_instant_at_which_a_plan_lets_it_go(metadata: TableMetadata) -> None:
    now = metadata.snapshots[-1].timestamp_ms
    for snapshot in metadata.snapshots[:-1]:
        until = held_until(metadata, [snapshot.snapshot_id], SETTINGS, now, NO_KEEPERS)
        assert until is not None
        assert snapshot.snapshot_id not in decide(view_of(metadata), SETTINGS, until).kept
        if until > now:
            assert snapshot.snapshot_id in decide(view_of(metadata), SETTINGS, until - 1_000).kept


def test_what_is_current_or_tagged_for_ever_has_no_end(metadata: TableMetadata) -> None:
    now = metadata.snapshots[-1].timestamp_ms
    assert held_until(metadata, [metadata.snapshots[-1].snapshot_id], SETTINGS, now, NO_KEEPERS) is None
    first = metadata.snapshots[0].snapshot_id
    tagged = replace(metadata, refs={**metadata.refs, "keep": Ref("keep", first, "tag")})
    assert held_until(tagged, [first], SETTINGS, now, NO_KEEPERS) is None


def test_a_hold_ends_when_it_ends(metadata: TableMetadata) -> None:
    now = metadata.snapshots[-1].timestamp_ms
    first = metadata.snapshots[0].snapshot_id
    assert held_until(metadata, [first], SETTINGS, now, NO_KEEPERS) == now
    hold = HoldView("h", "audit", "a question", (first,), until_ms=now + 3 * DAY)
    until = held_until(metadata, [first], SETTINGS, now, {**NO_KEEPERS, "holds": (hold,)})
    assert until is not None
    assert abs(until - (now + 3 * DAY)) <= 1_000
