from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from artemis_lifecycle.errors import BadInput, Busy, NaiveDatetime, NoSuchPlan
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.leases import table_lock


def test_a_hold_is_in_force_until_it_is_released(operations: Operations, table_uuid: str) -> None:
    hold = operations.holds.place(table_uuid, "space.debris", "legal", "case 7", (11, 2**62))
    assert hold.snapshot_ids == (11, 2**62)
    assert operations.holds.active(table_uuid) == (hold,)
    assert operations.holds.get(hold.hold_id) == hold
    released = operations.holds.release(hold.hold_id)
    assert released.released_at is not None
    assert operations.holds.release(hold.hold_id) == released
    assert operations.holds.active(table_uuid) == ()


def test_a_hold_ends_by_itself_and_now_cannot_hasten_it(operations: Operations, table_uuid: str) -> None:
    until = operations.clock.now() + timedelta(hours=1)
    hold = operations.holds.place(table_uuid, "space.debris", "reader", "slow query", until=until)
    assert operations.holds.active(table_uuid, until + timedelta(days=1)) == (hold,)
    with operations.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lifecycle.holds SET until = clock_timestamp() - interval '1 s'")
    assert operations.holds.active(table_uuid) == ()
    assert operations.holds.active(table_uuid, until - timedelta(days=1)) != ()


def test_a_hold_that_makes_no_sense_is_refused(operations: Operations, table_uuid: str) -> None:
    with pytest.raises(NaiveDatetime):
        operations.holds.place(table_uuid, "a.b", "legal", "case", until=datetime(2030, 1, 1))
    with pytest.raises(BadInput, match="before it begins"):
        operations.holds.place(table_uuid, "a.b", "legal", "case", until=operations.clock.now() - timedelta(days=1))
    assert operations.holds.active(table_uuid) == ()
    with pytest.raises(NoSuchPlan, match="no-such"):
        operations.holds.release("no-such")


def test_placing_a_hold_waits_for_the_table_lock(operations: Operations, table_uuid: str) -> None:
    with table_lock(operations.engine, table_uuid), pytest.raises(Busy):
        operations.holds.place(table_uuid, "a.b", "legal", "case", timeout=0.2)
    assert operations.holds.active(table_uuid) == ()
