from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta

import pytest

from artemis_lifecycle.errors import NoSuchPlan, PlanStateError
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle_tests.operations.conftest import MakePlan

OPEN, HANDED_OFF, COMMITTED = PlanStatus.OPEN, PlanStatus.HANDED_OFF, PlanStatus.COMMITTED
DELETING, DONE, CLOSED = PlanStatus.DELETING, PlanStatus.DONE, PlanStatus.CLOSED


def test_a_plan_reads_back_as_it_was_sealed(operations: Operations, make_plan: MakePlan) -> None:
    record = make_plan(window_day=date(2026, 3, 1), summary='{"files": 10}')
    assert operations.plans.seal(record) == record
    assert operations.plans.get(record.plan_id) == record
    assert operations.plans.uncommitted(record.table_uuid) == record


def test_an_unknown_plan_is_named(operations: Operations) -> None:
    with pytest.raises(NoSuchPlan, match="no-such"):
        operations.plans.get("no-such")
    with pytest.raises(NoSuchPlan, match="no-such"):
        operations.plans.mark("no-such", {OPEN}, HANDED_OFF)


def test_sealing_supersedes_the_older_open_plan_of_that_table_only(operations: Operations, make_plan: MakePlan) -> None:
    elsewhere = operations.plans.seal(make_plan(table_uuid="another-table"))
    older = operations.plans.seal(make_plan())
    newer = operations.plans.seal(make_plan())
    assert operations.plans.get(older.plan_id).status is PlanStatus.SUPERSEDED
    assert operations.plans.get(older.plan_id).superseded_by == newer.plan_id
    assert [plan.plan_id for plan in operations.plans.of_table(newer.table_uuid)] == [newer.plan_id, older.plan_id]
    assert operations.plans.get(elsewhere.plan_id).status is OPEN
    operations.plans.close(elsewhere.plan_id, "test", "over")


def test_sealing_supersedes_a_plan_that_is_handed_off_and_none_that_is_committed(
    operations: Operations, make_plan: MakePlan
) -> None:
    committed = operations.plans.seal(make_plan())
    operations.plans.mark(committed.plan_id, {OPEN}, COMMITTED)
    handed_off = operations.plans.seal(make_plan())
    operations.plans.mark(handed_off.plan_id, {OPEN}, HANDED_OFF)
    operations.plans.seal(make_plan())
    assert operations.plans.get(committed.plan_id).status is COMMITTED
    assert operations.plans.get(handed_off.plan_id).status is PlanStatus.SUPERSEDED


def test_two_seals_at_once_leave_exactly_one_uncommitted_plan(operations: Operations, make_plan: MakePlan) -> None:
    records = [make_plan() for _ in range(8)]
    barrier = threading.Barrier(len(records))
    raised: list[BaseException] = []

    def seal(record: PlanRecord) -> None:
        barrier.wait()
        try:
            operations.plans.seal(record)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=seal, args=(record,)) for record in records]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []
    statuses = [plan.status for plan in operations.plans.of_table(records[0].table_uuid)]
    assert sorted(statuses) == [OPEN, *[PlanStatus.SUPERSEDED] * 7]


def test_sealing_an_uncommitted_plan_again_changes_nothing(operations: Operations, make_plan: MakePlan) -> None:
    record = operations.plans.seal(make_plan())
    handed_off = operations.plans.mark(record.plan_id, {OPEN}, HANDED_OFF, cold_metadata_location="file:/c")
    assert operations.plans.seal(record) == handed_off


def test_sealing_a_superseded_plan_opens_it_again_without_its_former_life(
    operations: Operations, make_plan: MakePlan
) -> None:
    first = operations.plans.seal(make_plan())
    operations.plans.mark(first.plan_id, {OPEN}, HANDED_OFF, cold_metadata_location="file:/c")
    operations.plans.approve(first.plan_id, "ada", "looked")
    operations.plans.approve(first.plan_id, "ada", "looked", "lost")
    with pytest.raises(PlanStateError, match="is approved, and waits"):
        operations.plans.seal(make_plan())
    second = operations.plans.seal(make_plan(), stale=first.plan_id)
    again = operations.plans.seal(first)
    assert again == first
    assert operations.plans.get(second.plan_id).status is PlanStatus.SUPERSEDED
    assert operations.plans.of_table(first.table_uuid)[0].plan_id == first.plan_id


@pytest.mark.parametrize("end", [COMMITTED, DELETING, DONE, CLOSED])
def test_sealing_a_plan_that_is_committed_or_over_is_refused(
    operations: Operations, make_plan: MakePlan, end: PlanStatus
) -> None:
    record = operations.plans.seal(make_plan())
    operations.plans.mark(record.plan_id, {OPEN}, end)
    with pytest.raises(PlanStateError, match=end):
        operations.plans.seal(record)


def test_generations_count_the_plans_of_a_content_that_can_never_open_again(
    operations: Operations, make_plan: MakePlan, table_uuid: str
) -> None:
    content = f"content-{table_uuid}"
    assert operations.plans.generation(content) == 0
    for generation, end in enumerate((COMMITTED, DELETING, DONE, CLOSED)):
        plan = operations.plans.seal(make_plan(f"{content}-{generation}", content_id=content))
        assert operations.plans.generation(content) == generation
        operations.plans.mark(plan.plan_id, {OPEN}, end)
    assert operations.plans.generation(content) == 4


def test_a_mark_compares_the_status_and_reports_the_actual_one(operations: Operations, make_plan: MakePlan) -> None:
    plan = operations.plans.seal(make_plan())
    with pytest.raises(PlanStateError, match=r"it is open, and would have to be committed or handed off") as raised:
        operations.plans.mark(plan.plan_id, {HANDED_OFF, COMMITTED}, DELETING)
    assert raised.value.table == "space.debris"
    assert operations.plans.get(plan.plan_id) == plan


def test_a_superseded_plan_names_its_successor(operations: Operations, make_plan: MakePlan) -> None:
    older, newer = operations.plans.seal(make_plan()), operations.plans.seal(make_plan())
    with pytest.raises(PlanStateError, match=f"it is superseded by {newer.plan_id}"):
        operations.plans.mark(older.plan_id, {OPEN}, HANDED_OFF)


def test_a_mark_stamps_its_instant_once_by_the_clock_of_postgres(operations: Operations, make_plan: MakePlan) -> None:
    plan = operations.plans.seal(make_plan())
    before = operations.clock.now()
    committed = operations.plans.mark(
        plan.plan_id,
        {OPEN},
        COMMITTED,
        due_in=timedelta(hours=24),
        committed_metadata_location="file:/m",
        attempts=2,
    )
    assert committed.committed_at is not None
    assert committed.due_at is not None
    assert before < committed.committed_at < operations.clock.now()
    assert timedelta(0) <= committed.due_at - committed.committed_at - timedelta(hours=24) < timedelta(seconds=5)
    again = operations.plans.mark(plan.plan_id, {COMMITTED}, COMMITTED)
    assert again == committed
    done = operations.plans.mark(plan.plan_id, {COMMITTED}, DONE)
    assert done.done_at is not None


def test_a_mark_sets_nothing_that_is_not_the_statuses_own(operations: Operations, make_plan: MakePlan) -> None:
    plan = operations.plans.seal(make_plan())
    with pytest.raises(TypeError, match="files_location"):
        operations.plans.mark(plan.plan_id, {OPEN}, HANDED_OFF, files_location="file:/elsewhere")


def test_due_plans_are_those_whose_grace_is_over_and_now_cannot_hasten_it(
    operations: Operations, make_plan: MakePlan
) -> None:
    due = operations.plans.seal(make_plan())
    operations.plans.mark(due.plan_id, {OPEN}, COMMITTED, due_in=timedelta(seconds=-1))
    waiting = operations.plans.seal(make_plan())
    operations.plans.mark(waiting.plan_id, {OPEN}, COMMITTED, due_in=timedelta(hours=1))

    def found(now: datetime | None = None) -> set[str]:
        return {plan.plan_id for plan in operations.plans.due(now)} & {due.plan_id, waiting.plan_id}

    assert found() == {due.plan_id}
    assert found(operations.clock.now() + timedelta(days=2)) == {due.plan_id}
    assert found(datetime(2020, 1, 1, tzinfo=UTC)) == set()
    operations.plans.mark(due.plan_id, {COMMITTED}, DELETING)
    assert found() == {due.plan_id}
    operations.plans.mark(due.plan_id, {DELETING}, DONE)
    assert found() == set()


@pytest.mark.parametrize(
    ("status", "holds"),
    [(OPEN, True), (HANDED_OFF, True), (COMMITTED, True), (DELETING, True), (DONE, False), (CLOSED, False)],
)
def test_a_plan_holds_its_files_until_it_is_over(
    operations: Operations, make_plan: MakePlan, status: PlanStatus, holds: bool
) -> None:
    plan = operations.plans.seal(make_plan())
    if status is not OPEN:
        operations.plans.mark(plan.plan_id, {OPEN}, status)
    assert [found.plan_id for found in operations.plans.holding(plan.table_uuid)] == [plan.plan_id] * holds
    assert (plan.plan_id in {found.plan_id for found in operations.plans.holding()}) is holds


def test_an_approval_keeps_who_when_and_why(operations: Operations, make_plan: MakePlan) -> None:
    plan = operations.plans.seal(make_plan())
    approved = operations.plans.approve(plan.plan_id, "ada", "the table was rewritten")
    assert (approved.approved_by, approved.approved_why) == ("ada", "the table was rewritten")
    assert approved.approved_at is not None
    assert (approved.lost_approved_by, approved.lost_approved_at, approved.lost_approved_why) == (None, None, None)
    both = operations.plans.approve(plan.plan_id, "bob", "the disk is gone", "lost")
    assert (both.lost_approved_by, both.lost_approved_why) == ("bob", "the disk is gone")
    assert both.lost_approved_at is not None
    assert (both.approved_by, both.approved_at) == ("ada", approved.approved_at)
    operations.plans.close(plan.plan_id, "ada", "no longer")
    with pytest.raises(PlanStateError, match="closed"):
        operations.plans.approve(plan.plan_id, "ada", "late")


def test_closing_ends_a_plan_permanently_and_may_be_repeated(operations: Operations, make_plan: MakePlan) -> None:
    plan = operations.plans.seal(make_plan())
    closed = operations.plans.close(plan.plan_id, "ada", "wrong window")
    assert (closed.status, closed.closed_by, closed.closed_why) == (CLOSED, "ada", "wrong window")
    assert operations.plans.close(plan.plan_id, "bob", "again") == closed
    assert operations.plans.uncommitted(plan.table_uuid) is None
    done = operations.plans.seal(make_plan())
    operations.plans.mark(done.plan_id, {OPEN}, DONE)
    with pytest.raises(PlanStateError, match="done"):
        operations.plans.close(done.plan_id, "ada", "late")
