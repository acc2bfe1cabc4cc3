from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from artemis_lifecycle.errors import BadInput, Busy, NaiveDatetime, NoSuchPlan, Refused
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.locks import table_lock


def test_a_hold_is_in_force_until_it_is_released(operations: Operations, table_uuid: str) -> None:
    hold = operations.holds.place(table_uuid, "space.debris", "legal", "case 7", (11, 2**62))
    assert hold.snapshot_ids == (11, 2**62)
    assert operations.holds.active(table_uuid) == (hold,)
    assert operations.holds.get(hold.hold_id) == hold
    released = operations.holds.release(hold.hold_id, "ada")
    assert released.released_at is not None
    assert operations.holds.release(hold.hold_id, "ada") == released
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
        operations.holds.release("no-such", "ada")


def test_placing_a_hold_waits_for_the_table_lock(operations: Operations, table_uuid: str) -> None:
    with table_lock(operations.engine, table_uuid), pytest.raises(Busy):
        operations.holds.place(table_uuid, "a.b", "legal", "case", timeout=0.2)
    assert operations.holds.active(table_uuid) == ()


def test_a_hold_is_legal_unless_it_says_otherwise(operations: Operations, table_uuid: str) -> None:
    assert operations.holds.place(table_uuid, "a.b", "legal", "case 7").kind == "legal"
    lease = operations.holds.place(table_uuid, "a.b", "ana", "reads", (1,), kind="lease", ttl=timedelta(hours=2))
    consumer = operations.holds.place(table_uuid, "a.b", "flink", "reads on", (1,), kind="consumer")
    assert (lease.kind, consumer.kind, consumer.until) == ("lease", "consumer", None)
    assert lease.until is not None
    assert timedelta(0) <= lease.until - lease.created_at - timedelta(hours=2) < timedelta(seconds=5)
    assert [hold.kind for hold in operations.holds.active(table_uuid)] == ["legal", "lease", "consumer"]
    operations.holds.release(consumer.hold_id, "ada")
    assert [hold.kind for hold in operations.holds.of_table(table_uuid)] == ["legal", "lease", "consumer"]


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"kind": "lease"}, "must end by itself"),
        ({"kind": "consumer"}, "one position"),
        ({"kind": "consumer", "snapshot_ids": (1, 2)}, "one position"),
        ({"kind": "lease", "ttl": timedelta(0)}, "holds nothing"),
        ({"ttl": timedelta(hours=1), "until": datetime(2100, 1, 1, tzinfo=UTC)}, "two ends"),
    ],
)
def test_terms_that_contradict_the_kind_are_refused(
    operations: Operations, table_uuid: str, terms: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        operations.holds.place(table_uuid, "a.b", "ana", "reads", **terms)
    assert operations.holds.of_table(table_uuid) == ()


def test_a_lease_is_renewed_while_it_lasts_and_never_shortened(operations: Operations, table_uuid: str) -> None:
    lease = operations.holds.place(table_uuid, "a.b", "ana", "reads", kind="lease", ttl=timedelta(hours=2))
    longer = operations.holds.renew(lease.hold_id, timedelta(hours=3))
    assert lease.until is not None and longer.until is not None
    assert longer.until - lease.until > timedelta(minutes=59)
    assert operations.holds.renew(lease.hold_id, timedelta(minutes=1)).until == longer.until
    with operations.engine.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE lifecycle.holds SET until = clock_timestamp() - interval '1 s' WHERE hold_id = '{lease.hold_id}'"
        )
    with pytest.raises(Refused, match="has ended"):
        operations.holds.renew(lease.hold_id, timedelta(hours=3))
    legal = operations.holds.place(table_uuid, "a.b", "legal", "case 7")
    with pytest.raises(BadInput, match="of kind legal, not lease"):
        operations.holds.renew(legal.hold_id, timedelta(hours=3))
    with pytest.raises(NoSuchPlan):
        operations.holds.renew("no-such", timedelta(hours=3))


def test_a_consumer_moves_on_until_it_is_released(operations: Operations, table_uuid: str) -> None:
    consumer = operations.holds.place(table_uuid, "a.b", "flink", "reads on", (1,), kind="consumer")
    assert operations.holds.advance(consumer.hold_id, 2**62).snapshot_ids == (2**62,)
    operations.holds.release(consumer.hold_id, "ada")
    with pytest.raises(Refused, match="has ended"):
        operations.holds.advance(consumer.hold_id, 3)
