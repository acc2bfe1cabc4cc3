from __future__ import annotations

from datetime import UTC, datetime, timedelta

from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.holds import MOVED, NOT_MADE, REPLACED


def test_a_tag_keeps_who_when_why_and_how_long(operations: Operations, table_uuid: str) -> None:
    made = datetime(2026, 3, 1, tzinfo=UTC)
    record = operations.tags.record(
        table_uuid, "a.b", "incident", 2**62, "ada", "evidence", timedelta(days=400), created_at=made, max_ref_age_ms=7
    )
    assert (record.who, record.why, record.retain) == ("ada", "evidence", timedelta(days=400))
    assert (record.created_at, record.max_ref_age_ms) == (made, 7)
    assert operations.tags.of_table(table_uuid) == (record,)
    clocked = operations.tags.record(table_uuid, "a.b", "other", 1, "ada")
    assert clocked.created_at is not None and clocked.created_at <= operations.clock.now()


def test_a_tag_made_again_or_removed_stays_in_the_books(operations: Operations, table_uuid: str) -> None:
    first = operations.tags.record(table_uuid, "a.b", "incident", 1, "ada")
    second = operations.tags.record(table_uuid, "a.b", "incident", 2, "bob", "moved")
    assert second.retain is None
    assert operations.tags.of_table(table_uuid) == (second,)
    removed = operations.tags.removed(table_uuid, "a.b", "incident", 2, "eve", "case closed")
    assert (removed.tag_record_id, removed.removed_by, removed.removed_why) == (
        second.tag_record_id,
        "eve",
        "case closed",
    )
    assert operations.tags.of_table(table_uuid) == ()
    history = operations.tags.of_table(table_uuid, with_removed=True)
    assert [(tag.tag_record_id, tag.removed_why) for tag in history] == [
        (first.tag_record_id, REPLACED),
        (second.tag_record_id, "case closed"),
    ]


def test_the_removal_of_a_tag_that_others_made_is_on_record(operations: Operations, table_uuid: str) -> None:
    mine = operations.tags.record(table_uuid, "a.b", "incident", 1, "ada")
    removed = operations.tags.removed(table_uuid, "a.b", "incident", 2, "eve", "case closed")
    assert (removed.who, removed.created_at, removed.snapshot_id, removed.removed_by) == (None, None, 2, "eve")
    assert removed.removed_at is not None and removed.removed_at <= operations.clock.now()
    history = operations.tags.of_table(table_uuid, with_removed=True)
    assert [(tag.tag_record_id, tag.removed_why) for tag in history] == [
        (mine.tag_record_id, MOVED),
        (removed.tag_record_id, "case closed"),
    ]


def test_a_withdrawn_record_gives_its_place_back(operations: Operations, table_uuid: str) -> None:
    first = operations.tags.record(table_uuid, "a.b", "incident", 1, "ada")
    second = operations.tags.record(table_uuid, "a.b", "incident", 2, "bob")
    operations.tags.withdraw(second)
    operations.tags.withdraw(second)
    assert operations.tags.of_table(table_uuid) == (first,)
    assert operations.tags.of_table(table_uuid, with_removed=True)[1].removed_why == NOT_MADE
    operations.tags.removed(table_uuid, "a.b", "incident", 1, "eve")
    third = operations.tags.record(table_uuid, "a.b", "incident", 3, "bob")
    operations.tags.withdraw(third)
    # What was removed on purpose does not come back.
    assert operations.tags.of_table(table_uuid) == ()
