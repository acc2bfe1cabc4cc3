from __future__ import annotations

from datetime import timedelta

from artemis_lifecycle.operations.database import Operations


def test_a_tag_keeps_who_when_why_and_how_long(operations: Operations, table_uuid: str) -> None:
    record = operations.tags.record(table_uuid, "a.b", "incident", 2**62, "ada", "evidence", timedelta(days=400))
    assert (record.who, record.why, record.retain) == ("ada", "evidence", timedelta(days=400))
    assert record.created_at <= operations.clock.now()
    assert operations.tags.of_table(table_uuid) == (record,)


def test_a_tag_made_again_or_removed_stays_in_the_books(operations: Operations, table_uuid: str) -> None:
    first = operations.tags.record(table_uuid, "a.b", "incident", 1, "ada")
    second = operations.tags.record(table_uuid, "a.b", "incident", 2, "bob", "moved")
    assert second.retain is None
    assert operations.tags.of_table(table_uuid) == (second,)
    removed = operations.tags.removed(table_uuid, "incident", "eve", "case closed")
    assert removed is not None
    assert (removed.removed_by, removed.removed_why) == ("eve", "case closed")
    assert operations.tags.removed(table_uuid, "incident", "eve") is None
    assert operations.tags.of_table(table_uuid) == ()
    history = operations.tags.of_table(table_uuid, with_removed=True)
    assert [(tag.tag_record_id, tag.removed_why) for tag in history] == [
        (first.tag_record_id, "replaced"),
        (second.tag_record_id, "case closed"),
    ]
