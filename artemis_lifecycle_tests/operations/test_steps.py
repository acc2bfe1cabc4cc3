from __future__ import annotations

from datetime import date

import pytest
from sqlalchemy import text

from artemis_lifecycle.errors import NoSuchPlan
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.fleet import _LAST_DONE, last_done, last_done_of
from artemis_lifecycle.operations.steps import ENDED_UNSAID

NIGHT = date(2026, 3, 1)


@pytest.mark.parametrize("state", ["done", "failed", "pending", "skipped"])
def test_a_step_is_recorded_with_how_it_ended(operations: Operations, table_uuid: str, state: str) -> None:
    step_id = operations.steps.start(table_uuid, "a.b", "plan", NIGHT, "ada", "run-1")
    record = operations.steps.finish(step_id, state, {"files": 3}, error="why")  # type: ignore[arg-type]
    assert (record.state, dict(record.counts), record.run_id, record.error) == (state, {"files": 3}, "run-1", "why")
    assert record.finished_at is not None
    assert operations.steps.history(table_uuid) == [record]


def test_a_window_shows_what_ran_for_every_table(operations: Operations, table_uuid: str) -> None:
    window_day = date(2026, 7, 14)
    ids = [
        operations.steps.start(uuid, "a.b", "plan", window_day, "ada") for uuid in (table_uuid, f"other-{table_uuid}")
    ]
    operations.steps.start(table_uuid, "a.b", "plan", window_day, "ada", dry_run=True)
    assert [step.step_id for step in operations.steps.of_window(window_day)] == ids


def test_the_history_is_newest_first_and_limited(operations: Operations, table_uuid: str) -> None:
    ids = [operations.steps.start(table_uuid, "a.b", "plan", NIGHT, "ada") for _ in range(3)]
    assert [step.step_id for step in operations.steps.history(table_uuid, limit=2)] == ids[:0:-1]


def test_an_unknown_step_is_named(operations: Operations) -> None:
    with pytest.raises(NoSuchPlan):
        operations.steps.finish(-1, "done")


def test_a_step_whose_process_was_killed_is_not_reported_as_running_forever(
    operations: Operations, table_uuid: str
) -> None:
    killed = operations.steps.start(table_uuid, "a.b", "handoff", NIGHT, "ada")
    looking = operations.steps.start(table_uuid, "a.b", "deletion", NIGHT, "bob", dry_run=True)
    elsewhere = operations.steps.start(f"other-{table_uuid}", "a.c", "plan", NIGHT, "eve")
    again = operations.steps.start(table_uuid, "a.b", "handoff", NIGHT, "ada")
    found = {step.step_id: step for step in operations.steps.history(table_uuid)}
    assert (found[killed].state, found[killed].error) == ("failed", ENDED_UNSAID)
    assert found[killed].finished_at is not None
    assert found[looking].state == found[again].state == "running"
    (other,) = operations.steps.history(f"other-{table_uuid}")
    assert (other.step_id, other.state) == (elsewhere, "running")


def test_when_each_step_last_ended_is_read_from_one_row_of_the_index_each(operations: Operations) -> None:
    values = """
        INSERT INTO lifecycle.steps
            (table_uuid, table_name, step, window_day, owner, dry_run, state, counts, started_at, finished_at)
        SELECT 'u' || number % 7, 'many.t' || number % 7, (ARRAY['plan', 'commit', 'deletion'])[1 + number % 3],
            '2026-03-01', 'ada', number % 5 = 0, (ARRAY['done', 'skipped', 'failed', 'running'])[1 + number % 4], '{}',
            '2026-03-01', CASE WHEN number % 4 < 3 THEN timestamptz '2026-03-01' + number * interval '1 s' END
        FROM generate_series(1, 20000) AS number"""
    with operations.engine.begin() as connection:
        connection.execute(text(values))
        connection.execute(text("ANALYZE lifecycle.steps"))
        newest = """
            SELECT table_name, step, max(finished_at) FROM lifecycle.steps
            WHERE state IN ('done', 'skipped') AND NOT dry_run GROUP BY table_name, step"""
        expected = {(table, step): at for table, step, at in connection.execute(text(newest))}
        (plan,) = connection.execute(text(f"EXPLAIN (ANALYZE, FORMAT JSON) {_LAST_DONE}")).scalars()
    found = last_done(operations.engine)
    assert {(table, step): at for table, steps in found.items() for step, at in steps.items()} == expected
    assert len([table for table in found if table.startswith("many.")]) == 7
    assert {table: last_done_of(operations.engine, table) for table in found} == found
    assert "Seq Scan" not in str(plan) and "steps_ended" in str(plan)
