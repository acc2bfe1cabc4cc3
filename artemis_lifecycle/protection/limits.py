"""Limits before a job: grace, size, the quiet window. Pure: time and counts are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from artemis_lifecycle.config.policies import Deletion, QuietWindow
from artemis_lifecycle.errors import ApprovalNeeded, GraceNotOver, NaiveDatetime


def require_grace_over(
    plan_id: str, table: str, due_at: datetime, clock_now: datetime, now: datetime | None = None
) -> None:
    """Raise GraceNotOver while a committed plan's grace runs.

    `clock_now` is the Postgres clock. `now` can only make the time earlier: the earlier of the two counts.
    """
    NaiveDatetime.refuse("now", now, table=table, untouched="all files")
    instant = clock_now if now is None else min(now, clock_now)
    if instant < due_at:
        raise GraceNotOver(
            f"The grace of plan {plan_id} runs until {due_at.isoformat()}, and it is {instant.isoformat()}",
            table=table,
            untouched="all files of the plan",
            hint="delete after that time; scheduled deletions find the plan automatically",
        )


@dataclass(frozen=True)
class Amount:
    """How much a deletion removes, and out of how much: files and bytes (None if unknown).

    `left_files` are the files that remain in the current snapshot by the manifest index; `current_files` is the number
    that its writer recorded.
    """

    files: int
    size_in_bytes: int
    files_in_table: int | None
    bytes_in_table: int | None = None
    left_files: int | None = None
    current_files: int | None = None


def require_approval(
    job_id: str,
    table: str,
    limits: Deletion,
    amount: Amount,
    *,
    approved_by: str | None,
    max_share: float | None = None,
) -> None:
    """Raise ApprovalNeeded if a job is larger than `limits` allow without a person.

    `max_share` is the limit of an orphan scan, in files or bytes (`orphans.max_share`).
    """
    if approved_by is not None:
        return
    reasons = []
    files, size = amount.files, amount.size_in_bytes
    if limits.max_files is not None and files > limits.max_files:
        reasons.append(f"{files:,} files are more than max_files {limits.max_files:,}")
    if limits.max_bytes is not None and size > limits.max_bytes:
        reasons.append(f"{size:,} bytes are more than max_bytes {limits.max_bytes:,}")
    for name, share in (("max_share_of_table", limits.max_share_of_table), ("orphans.max_share", max_share)):
        if share is None or not files:
            continue
        if not amount.files_in_table:
            reasons.append(f"its share of the table is unknown and {name} is set")
        elif files / amount.files_in_table > share:
            reasons.append(
                f"{files:,} of {amount.files_in_table:,} files are {files / amount.files_in_table:.1%}, "
                f"more than {name} {share:.1%}"
            )
        # The sizes in an external listing may be meaningless.
        elif amount.bytes_in_table is not None and amount.bytes_in_table > 0 and size / amount.bytes_in_table > share:
            reasons.append(
                f"{size:,} of {amount.bytes_in_table:,} bytes are {size / amount.bytes_in_table:.1%}, "
                f"more than {name} {share:.1%}"
            )
    left, current = amount.left_files, amount.current_files
    if files and left is not None and current is not None and left < current:
        reasons.append(
            f"{left:,} files would be left of the current snapshot, whose summary counts {current:,}: its manifests or "
            "its summary are wrong"
        )
    if reasons:
        raise ApprovalNeeded(
            f"The deletion {job_id} waits for a person: {'; '.join(reasons)}",
            table=table,
            untouched="all files of the job",
            hint=f"review them, then artemis approve {job_id} --large",
        )


def in_quiet_window(window: QuietWindow, now: datetime) -> bool:
    """Return True if `now` is inside the daily window, in the window's time zone. Equal ends mean the whole day."""
    local = now.astimezone(ZoneInfo(window.timezone)).strftime("%H:%M")
    if window.start == window.end:
        return True
    if window.start < window.end:
        return window.start <= local < window.end
    return local >= window.start or local < window.end
