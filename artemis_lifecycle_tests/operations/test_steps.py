from __future__ import annotations

from datetime import date

import pytest

from artemis_lifecycle.errors import NoSuchPlan
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.steps import ENDED_UNSAID

NIGHT = date(2026, 3, 1)


def test_a_step_counts_for_its_night_when_it_is_done(operations: Operations, table_uuid: str) -> None:
    step_id = operations.steps.start(table_uuid, "a.b", "plan", NIGHT, "ada", "run-1")
    assert operations.steps.done_on(table_uuid, NIGHT) == set()
    record = operations.steps.finish(step_id, "done", {"files": 3})
    assert (record.state, dict(record.counts), record.run_id) == ("done", {"files": 3}, "run-1")
    assert record.finished_at is not None
    assert operations.steps.done_on(table_uuid, NIGHT) == {"plan"}
    assert operations.steps.done_on(table_uuid, date(2026, 3, 2)) == set()
    assert operations.steps.latest(table_uuid, "plan") == record


@pytest.mark.parametrize("state", ["failed", "pending", "skipped"])
def test_what_is_not_done_does_not_count(operations: Operations, table_uuid: str, state: str) -> None:
    step_id = operations.steps.start(table_uuid, "a.b", "plan", NIGHT, "ada")
    operations.steps.finish(step_id, state, error="why")  # type: ignore[arg-type]
    assert operations.steps.done_on(table_uuid, NIGHT) == set()
    latest = operations.steps.latest(table_uuid, "plan")
    assert latest is not None
    assert (latest.state, latest.error) == (state, "why")


def test_a_dry_run_is_in_the_history_and_counts_for_nothing(operations: Operations, table_uuid: str) -> None:
    step_id = operations.steps.start(table_uuid, "a.b", "deletion", NIGHT, "ada", dry_run=True)
    operations.steps.finish(step_id, "done")
    assert operations.steps.done_on(table_uuid, NIGHT) == set()
    assert operations.steps.latest(table_uuid, "deletion") is None
    assert [step.dry_run for step in operations.steps.history(table_uuid)] == [True]


def test_a_night_shows_what_ran_for_every_table(operations: Operations, table_uuid: str) -> None:
    night = date(2026, 7, 14)
    ids = [operations.steps.start(uuid, "a.b", "plan", night, "ada") for uuid in (table_uuid, f"other-{table_uuid}")]
    operations.steps.start(table_uuid, "a.b", "plan", night, "ada", dry_run=True)
    assert [step.step_id for step in operations.steps.of_night(night)] == ids


def test_the_history_is_newest_first_and_limited(operations: Operations, table_uuid: str) -> None:
    ids = [operations.steps.start(table_uuid, "a.b", "plan", NIGHT, "ada") for _ in range(3)]
    assert [step.step_id for step in operations.steps.history(table_uuid, limit=2)] == ids[:0:-1]


def test_an_unknown_step_is_named(operations: Operations) -> None:
    with pytest.raises(NoSuchPlan):
        operations.steps.finish(-1, "done")


def test_a_step_whose_process_was_killed_is_not_said_to_run_for_ever(operations: Operations, table_uuid: str) -> None:
    killed = operations.steps.start(table_uuid, "a.b", "handoff", NIGHT, "ada")
    looking = operations.steps.start(table_uuid, "a.b", "deletion", NIGHT, "bob", dry_run=True)
    elsewhere = operations.steps.start(f"other-{table_uuid}", "a.c", "plan", NIGHT, "eve")
    again = operations.steps.start(table_uuid, "a.b", "handoff", NIGHT, "ada")
    found = {step.step_id: step for step in operations.steps.history(table_uuid)}
    assert (found[killed].state, found[killed].error) == ("failed", ENDED_UNSAID)
    assert found[killed].finished_at is not None
    assert found[looking].state == found[again].state == "running"
    other = operations.steps.latest(f"other-{table_uuid}", "plan")
    assert other is not None
    assert (other.step_id, other.state) == (elsewhere, "running")
