from __future__ import annotations

from datetime import UTC, datetime, timedelta

from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.lineage import FoundSnapshot

COMMITTED = datetime(2026, 3, 1, tzinfo=UTC)


def test_an_acknowledged_snapshot_is_open_again_once_another_has_its_id(
    operations: Operations, table_uuid: str
) -> None:
    watch = operations.lineage_watch

    def found(number: int, committed_at: datetime) -> None:
        snapshot = FoundSnapshot(7, committed_at, (f"problem {number}",))
        watch.checked(
            table_uuid, "a.b", f"file:/{number}", last_sequence_number=number, last_snapshot_ms=0, unmet=[snapshot]
        )

    found(1, COMMITTED)
    (first,) = watch.unmet(table_uuid)
    watch.acknowledge(table_uuid, "ada", "before the gate")
    # In format version 1, the watch may find the same snapshot twice.
    found(2, COMMITTED)
    assert watch.unmet(table_uuid) == ()
    found(3, COMMITTED + timedelta(seconds=1))
    (again,) = watch.unmet(table_uuid)
    assert again.problems == ("problem 3",) and again.acknowledged_by is None and again.found_at > first.found_at
