"""Guards that stand before a job: grace, approval, the quiet window. Pure: time and counts come in as arguments."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from artemis_lifecycle import config
from artemis_lifecycle.errors import ApprovalNeeded, GraceNotOver, NaiveDatetime


def require_grace_over(
    plan_id: str, table: str, due_at: datetime, clock_now: datetime, now: datetime | None = None
) -> None:
    """Raise GraceNotOver while a committed plan's grace runs.

    `clock_now` is Postgres' clock. `now` can make it later and never earlier: of the two the older one counts.
    """
    if now is not None and now.tzinfo is None:
        raise NaiveDatetime(
            f"now={now.isoformat()} has no time zone", table=table, untouched="all files", do="pass an aware datetime"
        )
    instant = clock_now if now is None else min(now, clock_now)
    if instant < due_at:
        raise GraceNotOver(
            f"The grace of plan {plan_id} runs until {due_at.isoformat()}, and it is {instant.isoformat()}",
            table=table,
            untouched="all files of the plan",
            do="delete then; what deletes on a schedule finds the plan by itself",
        )


def require_approval(
    job_id: str,
    table: str,
    limits: config.Deletion,
    *,
    files: int,
    size_in_bytes: int,
    files_in_table: int | None,
    approved_by: str | None,
) -> None:
    """Raise ApprovalNeeded when a job is larger than `limits` let through without a person.

    `files_in_table` counts the table's files with the job's own; None (unknown) needs a person wherever a share is set.
    """
    if approved_by is not None:
        return
    reasons = []
    if limits.max_files is not None and files > limits.max_files:
        reasons.append(f"{files:,} files are more than max_files {limits.max_files:,}")
    if limits.max_bytes is not None and size_in_bytes > limits.max_bytes:
        reasons.append(f"{size_in_bytes:,} bytes are more than max_bytes {limits.max_bytes:,}")
    if limits.max_share_of_table is not None and files:
        if not files_in_table:
            reasons.append("its share of the table is unknown and max_share_of_table is set")
        elif files / files_in_table > limits.max_share_of_table:
            reasons.append(
                f"{files:,} of {files_in_table:,} files are {files / files_in_table:.1%}, "
                f"more than max_share_of_table {limits.max_share_of_table:.1%}"
            )
    if reasons:
        raise ApprovalNeeded(
            f"The deletion {job_id} waits for a person: {'; '.join(reasons)}",
            table=table,
            untouched="all files of the job",
            do=f"look at them, then artemis approve {job_id} --large",
        )


def in_quiet_window(window: config.QuietWindow, now: datetime) -> bool:
    """Whether `now` is inside the daily window, in the window's own time zone; equal ends mean the whole day."""
    local = now.astimezone(ZoneInfo(window.timezone)).strftime("%H:%M")
    if window.start == window.end:
        return True
    if window.start < window.end:
        return window.start <= local < window.end
    return local >= window.start or local < window.end
