from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle.operations.rest_commits import PutBack, RestState
from artemis_lifecycle_tests.operations.conftest import MakePlan


def test_a_commit_is_forgotten_once_no_step_can_ask_for_it(operations: Operations, make_plan: MakePlan) -> None:
    """Not while it is unproven, its plan may still be deleted, or its receipt written, or it put a ref back."""
    commits, again = operations.rest_commits, (PutBack("late", 7, 1, 9, 1),)
    holding = operations.plans.seal(make_plan())
    over = make_plan()
    operations.plans.mark(holding.plan_id, {PlanStatus.OPEN}, PlanStatus.COMMITTED)
    operations.plans.seal(over)
    operations.plans.close(over.plan_id, "ada", "over")
    uuid, now = over.table_uuid, operations.clock.now()
    for marker, plan, state in (
        ("proven", over, RestState.PROVEN),
        ("refused", over, RestState.REFUSED),
        ("unproven", over, RestState.UNPROVEN),
        ("put back", over, RestState.PROVEN),
        ("due", holding, RestState.PROVEN),
    ):
        commits.begin(marker, uuid, over.table, plan.plan_id, "base", (7,), ())
        commits.settle(marker, state, put_back=again if marker == "put back" else ())
    commits.begin("sent", uuid, over.table, over.plan_id, "base", (7,), ())

    def forget(age: timedelta) -> list[str]:
        operations.records.forget(now + timedelta(minutes=1) - age)
        return [each.marker for each in commits.of_table(uuid)]

    everything = ["proven", "refused", "unproven", "put back", "due", "sent"]
    # The details of its plan are still there.
    assert forget(timedelta(0)) == everything
    with operations.engine.begin() as connection:
        connection.execute(text("UPDATE lifecycle.plans SET forgotten_at = clock_timestamp() WHERE status = 'closed'"))
    assert forget(timedelta(hours=1)) == everything
    assert operations.records.before(now + timedelta(minutes=1))["rest_commits"] == 2
    assert forget(timedelta(0)) == ["unproven", "put back", "due", "sent"]
