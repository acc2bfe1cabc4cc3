from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from artemis_lifecycle.errors import LeaseLost, NoSuchPlan, PlanStateError
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.journal import BatchState, JobRecord
from artemis_lifecycle_tests.operations.conftest import MakePlan


@pytest.fixture
def job(operations: Operations, table_uuid: str) -> JobRecord:
    return operations.journal.begin(
        JobRecord(f"job-{uuid4().hex}", "expiration", table_uuid, "space.debris", "file:/w/files"),
        [(1000, 50), (500, 20)],
    )


def test_a_job_is_written_with_all_its_batches_before_anything_goes(operations: Operations, job: JobRecord) -> None:
    assert (job.batches, job.files, job.bytes) == (2, 1500, 70)
    assert operations.journal.job(job.job_id) == job
    assert operations.journal.job("no-such") is None
    assert [(batch.batch, batch.state, batch.files) for batch in operations.journal.unfinished(job.job_id)] == [
        (0, BatchState.PLANNED, 1000),
        (1, BatchState.PLANNED, 500),
    ]


def test_beginning_a_job_again_returns_the_recorded_job(operations: Operations, job: JobRecord) -> None:
    operations.journal.start_batch(job.job_id, 0, fence=1)
    operations.journal.finish_batch(job.job_id, 0, 1, deleted=1000, absent=0, kept=0, failed=0, deleted_bytes=50)
    assert operations.journal.begin(job, [(1000, 50), (500, 20)]) == job
    assert [batch.batch for batch in operations.journal.unfinished(job.job_id)] == [1]


def test_a_job_with_other_batches_than_begun_is_refused(operations: Operations, job: JobRecord) -> None:
    with pytest.raises(PlanStateError, match="other batches"):
        operations.journal.begin(job, [(1000, 50), (499, 20)])
    with pytest.raises(PlanStateError, match="other batches"):
        operations.journal.begin(job, [])


def test_a_batch_goes_from_planned_over_deleting_to_done(operations: Operations, job: JobRecord) -> None:
    started = operations.journal.start_batch(job.job_id, 0, fence=7)
    assert (started.state, started.fence, started.attempts) == (BatchState.DELETING, 7, 1)
    done = operations.journal.finish_batch(job.job_id, 0, 7, deleted=990, absent=6, kept=4, failed=0, deleted_bytes=49)
    assert (done.state, done.deleted, done.absent, done.kept, done.failed) == (BatchState.DONE, 990, 6, 4, 0)
    with pytest.raises(PlanStateError, match="done already"):
        operations.journal.start_batch(job.job_id, 0, fence=7)


def test_a_batch_with_failures_is_unfinished_and_goes_again(operations: Operations, job: JobRecord) -> None:
    operations.journal.start_batch(job.job_id, 1, fence=7)
    failed = operations.journal.finish_batch(
        job.job_id, 1, 7, deleted=499, absent=0, kept=0, failed=1, deleted_bytes=19, error="503 SlowDown"
    )
    assert (failed.state, failed.error) == (BatchState.FAILED, "503 SlowDown")
    assert failed in operations.journal.unfinished(job.job_id)
    assert operations.journal.start_batch(job.job_id, 1, fence=8).attempts == 2
    done = operations.journal.finish_batch(job.job_id, 1, 8, deleted=1, absent=499, kept=0, failed=0, deleted_bytes=1)
    assert (done.state, done.error) == (BatchState.DONE, None)


def test_a_newer_fence_stops_the_slower_of_two_workers(operations: Operations, job: JobRecord) -> None:
    operations.journal.start_batch(job.job_id, 0, fence=7)
    operations.journal.start_batch(job.job_id, 0, fence=9)
    with pytest.raises(LeaseLost, match="7 is older than 9"):
        operations.journal.start_batch(job.job_id, 1, fence=7)
    with pytest.raises(LeaseLost):
        operations.journal.finish_batch(job.job_id, 0, 7, deleted=1000, absent=0, kept=0, failed=0, deleted_bytes=50)
    assert operations.journal.batches(job.job_id)[0].state is BatchState.DELETING


def test_a_newer_lease_stops_a_worker_before_it_has_started_a_batch(operations: Operations, job: JobRecord) -> None:
    with operations.leases.hold(job.table_uuid, step="deletion", owner="slow") as slow:
        token = slow.token
    with operations.leases.hold(job.table_uuid, step="restore", owner="fast"):
        pass
    with pytest.raises(LeaseLost):
        operations.journal.start_batch(job.job_id, 0, token)


def test_a_job_is_over_when_all_its_batches_are(operations: Operations, job: JobRecord) -> None:
    with pytest.raises(PlanStateError, match="2 batches"):
        operations.journal.finish(job.job_id)
    for batch, files in ((0, 1000), (1, 500)):
        operations.journal.start_batch(job.job_id, batch, fence=1)
        operations.journal.finish_batch(
            job.job_id, batch, 1, deleted=files - 2, absent=1, kept=1, failed=0, deleted_bytes=10
        )
    finished = operations.journal.finish(job.job_id)
    assert finished.finished_at is not None
    assert operations.journal.finish(job.job_id) == finished
    batches = operations.journal.batches(job.job_id)
    assert [(each.deleted, each.absent, each.kept, each.failed) for each in batches] == [(998, 1, 1, 0), (498, 1, 1, 0)]
    assert [(each.state, each.deleted_bytes, each.attempts) for each in batches] == [(BatchState.DONE, 10, 1)] * 2


def test_a_job_without_files_has_nothing_to_do(operations: Operations, table_uuid: str) -> None:
    job = JobRecord(f"empty-{table_uuid}", "orphans", table_uuid, "space.debris", "file:/w/files")
    operations.journal.begin(job, [])
    assert operations.journal.unfinished(job.job_id) == ()
    assert operations.journal.finish(job.job_id).finished_at is not None


def test_an_unknown_job_is_named(operations: Operations) -> None:
    with pytest.raises(NoSuchPlan, match="no-such"):
        operations.journal.start_batch("no-such", 0, 1)
    with pytest.raises(NoSuchPlan, match="no-such"):
        operations.journal.finish("no-such")


def test_handoff_batches_resume_where_they_were(operations: Operations, make_plan: MakePlan) -> None:
    plan = operations.plans.seal(make_plan()).plan_id
    operations.handoffs.begin(plan, [(10, 100), (5, 50)])
    operations.handoffs.finish_batch(plan, 0, copied=9, skipped=1)
    operations.handoffs.finish_batch(plan, 1, copied=2, skipped=0, error="disk full")
    again = operations.handoffs.begin(plan, [(10, 100), (5, 50)])
    assert [(batch.state, batch.copied, batch.skipped) for batch in again] == [("done", 9, 1), ("failed", 2, 0)]
    assert [batch.batch for batch in operations.handoffs.unfinished(plan)] == [1]
    assert operations.handoffs.finish_batch(plan, 1, copied=3, skipped=2).attempts == 2
    assert operations.handoffs.unfinished(plan) == ()


def test_a_handoff_divided_otherwise_begins_anew(operations: Operations, make_plan: MakePlan) -> None:
    plan = operations.plans.seal(make_plan()).plan_id
    operations.handoffs.begin(plan, [(10, 100)])
    operations.handoffs.finish_batch(plan, 0, copied=10, skipped=0)
    assert [batch.files for batch in operations.handoffs.begin(plan, [(6, 60), (4, 40)])] == [6, 4]
    assert len(operations.handoffs.unfinished(plan)) == 2
    with pytest.raises(NoSuchPlan):
        operations.handoffs.finish_batch(plan, 2, copied=0, skipped=0)


def test_a_lapsed_workers_batch_is_taken_over_with_a_newer_fence(operations: Operations, job: JobRecord) -> None:
    with (
        operations.leases.hold(job.table_uuid, step="deletion", owner="first", ttl=timedelta(seconds=30)) as first,
    ):
        operations.journal.start_batch(job.job_id, 0, first.token)
    with operations.leases.hold(job.table_uuid, step="deletion", owner="second") as second:
        left = operations.journal.unfinished(job.job_id)
        assert [(batch.batch, batch.state) for batch in left] == [(0, BatchState.DELETING), (1, BatchState.PLANNED)]
        assert operations.journal.start_batch(job.job_id, 0, second.token).attempts == 2
