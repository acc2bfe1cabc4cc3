"""The fleet day by day: bytes freed, the share of orphans and overdue tables, from records in Postgres."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day

from artemis_lifecycle.config.policies import TablePolicy
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.fleet import DayScan, planned_since, scan_shares

_SCANNED_WITHIN = timedelta(days=60)
"""How long before the first day a table's last scan still counts on it."""


@dataclass(frozen=True)
class FleetDay:
    """The fleet at the end of one day in UTC, or now. `orphan_share` is that of all tables by their last scans, from 0
    to 1; None before the first scan. `overdue` tables are counted by the current thresholds."""

    day: date
    freed_bytes: int
    orphan_share: float | None
    overdue: int


def fleet_history(
    operations: Operations,
    catalog: str,
    policies: Mapping[str, TablePolicy],
    freed: Mapping[str, Mapping[date, int]],
    now: datetime,
    over: timedelta,
    overdue: int,
) -> tuple[FleetDay, ...]:
    """Return the days of the last `over`, today last, of the tables with these policies. `overdue` is today's number.
    `freed` is by table and day."""
    today = now.astimezone(UTC).date()
    days = [today - timedelta(days=each) for each in reversed(range(over.days))]
    limits = {table: overdue_after(policy) for table, policy in policies.items()}
    watched = {table: limit for table, limit in limits.items() if limit is not None}
    first = _end(days[0])
    planned = planned_since(operations.engine, first - max(watched.values(), default=timedelta()))
    known = {each.table: each.first_seen for each in operations.known_tables.of_catalog(catalog)}
    shares = _shares(scan_shares(operations.engine, first - _SCANNED_WITHIN), policies, days)

    def late(table: str, allowed: timedelta, at: datetime) -> bool:
        if known.get(table, now) > at - allowed:
            return False
        plans = planned.get(table, [])
        before = bisect_right(plans, at)
        return before == 0 or at - plans[before - 1] > allowed

    return tuple(
        FleetDay(
            day=day,
            freed_bytes=sum(by_day.get(day, 0) for table, by_day in freed.items() if table in policies),
            orphan_share=shares[day],
            overdue=overdue
            if day == today
            else sum(late(table, allowed, _end(day)) for table, allowed in watched.items()),
        )
        for day in days
    )


def overdue_after(policy: TablePolicy) -> timedelta | None:
    """Return how long after its last plan a table is overdue; None if its plans do not run by themselves."""
    return policy.checks.overdue_after if "plan" in policy.quiet_window.steps else None


def _end(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), time_of_day(), UTC)


def _shares(scans: list[DayScan], policies: Mapping[str, TablePolicy], days: list[date]) -> dict[date, float | None]:
    """Return the share of orphans among the files of all tables, by day: of each table, its last scan until then."""
    last: dict[str, DayScan] = {}
    found: dict[date, float | None] = {}
    rest = iter(scans)
    each = next(rest, None)
    for day in days:
        while each is not None and each.day <= day:
            if each.table in policies:
                last[each.table] = each
            each = next(rest, None)
        listed = sum(scan.listed for scan in last.values())
        found[day] = sum(scan.orphans for scan in last.values()) / listed if listed else None
    return found
