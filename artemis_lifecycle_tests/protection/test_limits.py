from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from artemis_lifecycle.config.policies import Deletion, QuietWindow
from artemis_lifecycle.errors import ApprovalNeeded, GraceNotOver, NaiveDatetime
from artemis_lifecycle.protection.limits import Amount, in_quiet_window, require_approval, require_grace_over

DUE = datetime(2024, 3, 15, 12, tzinfo=UTC)


def test_grace_runs_by_postgres_clock_and_now_can_only_make_it_later() -> None:
    before, after = DUE - timedelta(minutes=1), DUE + timedelta(minutes=1)
    require_grace_over("p", "ns.t", DUE, after)
    require_grace_over("p", "ns.t", DUE, DUE)
    with pytest.raises(GraceNotOver):
        require_grace_over("p", "ns.t", DUE, before, now=after)
    with pytest.raises(GraceNotOver):
        require_grace_over("p", "ns.t", DUE, after, now=before)
    with pytest.raises(NaiveDatetime):
        require_grace_over("p", "ns.t", DUE, after, now=datetime(2024, 3, 16))


@pytest.mark.parametrize(
    ("limits", "files", "in_table", "passes"),
    [
        (Deletion(), 10**9, None, True),
        (Deletion(max_files=10), 10, 100, True),
        (Deletion(max_files=10), 11, 100, False),
        (Deletion(max_files=0), 0, 0, True),
        (Deletion(max_bytes=500), 5, 100, True),
        (Deletion(max_bytes=499), 5, 100, False),
        (Deletion(max_share_of_table=0.5), 50, 100, True),
        (Deletion(max_share_of_table=0.5), 51, 100, False),
        (Deletion(max_share_of_table=0.5), 1, None, False),
        (Deletion(max_share_of_table=0.5), 0, None, True),
    ],
)
def test_a_job_above_its_limits_waits_for_a_person(
    limits: Deletion, files: int, in_table: int | None, passes: bool
) -> None:
    def ask(who: str | None) -> None:
        require_approval(
            "plan-1",
            "ns.t",
            limits,
            Amount(files, 100 * files, in_table),
            approved_by=who,
        )

    ask("j.smith")
    if passes:
        ask(None)
    else:
        with pytest.raises(ApprovalNeeded, match="artemis approve plan-1 --large"):
            ask(None)


@pytest.mark.parametrize(
    ("start", "end", "zone", "hour", "inside"),
    [
        ("00:00", "08:00", "UTC", 0, True),
        ("00:00", "08:00", "UTC", 8, False),
        ("22:00", "06:00", "UTC", 23, True),
        ("22:00", "06:00", "UTC", 5, True),
        ("22:00", "06:00", "UTC", 12, False),
        ("00:00", "00:00", "UTC", 12, True),
        ("00:00", "08:00", "Asia/Tokyo", 16, True),
        ("00:00", "08:00", "Asia/Tokyo", 2, False),
    ],
)
def test_the_quiet_window_is_in_its_own_time_zone(start: str, end: str, zone: str, hour: int, inside: bool) -> None:
    window = QuietWindow.model_validate({"from": start, "to": end, "timezone": zone})
    assert in_quiet_window(window, datetime(2024, 3, 15, hour, tzinfo=UTC)) is inside


@pytest.mark.parametrize(
    ("amount", "passes"),
    [
        (Amount(10, 10, 100, 1_000), True),
        (Amount(11, 10, 100, 1_000), False),
        (Amount(10, 101, 100, 1_000), False),
        (Amount(1, 1, None), False),
        (Amount(0, 0, None), True),
        (Amount(1, 1, 100, 1_000, left_files=5, current_files=5), True),
        (Amount(1, 1, 100, 1_000, left_files=4, current_files=5), False),
    ],
)
def test_a_large_share_of_orphans_or_a_table_left_with_too_few_files_waits(amount: Amount, passes: bool) -> None:
    require_approval("scan-1", "ns.t", Deletion(), amount, approved_by="j.smith", max_share=0.1)
    if passes:
        require_approval("scan-1", "ns.t", Deletion(), amount, approved_by=None, max_share=0.1)
    else:
        with pytest.raises(ApprovalNeeded):
            require_approval("scan-1", "ns.t", Deletion(), amount, approved_by=None, max_share=0.1)
