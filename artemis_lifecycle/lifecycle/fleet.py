"""The fleet at a glance: one row per governed table, from Postgres alone, and the page that shows it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from artemis_lifecycle.lifecycle.fleet_page import page
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.tonight import forecasts
from artemis_lifecycle.operations.fleet import freed_since, last_done, red_checks
from artemis_lifecycle.operations.plans import UNCOMMITTED, PlanStatus
from artemis_lifecycle.scheduling.forecast import WindowForecast

if TYPE_CHECKING:
    import pandas as pd

FREED_OVER = timedelta(days=30)
OVERDUE_AFTER = timedelta(hours=36)
"""A table without a plan for this long has missed a window."""


@dataclass(frozen=True)
class FleetTable:
    """One table. `plan_status` is that of its newest plan under way. `freed_bytes` are from the last 30 days.
    `freeable_bytes` are what plans under way and the newest scan still hold. Instants are None if a step never
    ended."""

    table: str
    governed_by: str
    overdue: bool
    waits_for: tuple[str, ...]
    holds: int
    paused: bool
    red_checks: tuple[str, ...]
    plan_status: str | None
    freed_bytes: int
    freeable_bytes: int
    orphan_share: float | None
    planned_at: datetime | None
    committed_at: datetime | None
    deleted_at: datetime | None
    scanned_at: datetime | None


@dataclass(frozen=True)
class Fleet:
    """All governed tables at `at`. `windows` say whether the open quiet windows, or else the next ones, will suffice;
    empty until runs of a window are recorded."""

    at: datetime
    tables: tuple[FleetTable, ...]
    windows: tuple[WindowForecast, ...] = ()

    @property
    def summary(self) -> dict[str, int]:
        """The number of tables of each kind, and total bytes."""
        return {
            "tables": len(self.tables),
            "overdue": sum(table.overdue for table in self.tables),
            "waiting": sum(bool(table.waits_for) for table in self.tables),
            "held": sum(bool(table.holds) for table in self.tables),
            "paused": sum(table.paused for table in self.tables),
            "red": sum(bool(table.red_checks) for table in self.tables),
            "late": sum(len(window.late) for window in self.windows),
            "freed_bytes": sum(table.freed_bytes for table in self.tables),
            "freeable_bytes": sum(table.freeable_bytes for table in self.tables),
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per table, with the fields of FleetTable."""
        import pandas as pd

        return pd.DataFrame([asdict(table) for table in self.tables], columns=list(FleetTable.__dataclass_fields__))

    @property
    def html(self) -> str:
        """Return the fleet as one self-contained page: sortable, with bars."""
        return page(self.at, self.summary, list(map(str, self.windows)), [asdict(table) for table in self.tables])


def fleet_of(resources: Resources, tables: Sequence[str]) -> Fleet:
    """See `Lifecycle.fleet`."""
    operations, config = resources.operations, resources.config
    now = operations.clock.now()
    done = last_done(operations.engine)
    freed = freed_since(operations.engine, now - FREED_OVER)
    under_way = defaultdict(list)
    for plan in operations.plans.holding():
        under_way[plan.table].append(plan)
    red = red_checks(operations.engine, [plan.plan_id for plans in under_way.values() for plan in plans])
    holds = Counter(hold.table for hold in operations.holds.active())
    waits: dict[str, list[str]] = defaultdict(list)
    for wait in operations.waits.open():
        waits[wait.table].append(f"approval of {wait.job_id} since {wait.since:%Y-%m-%d %H:%M}: {wait.why}")
    pauses = {pause.table for pause in operations.pauses.in_force()}
    scans = operations.scans.recent(1)
    found = []
    for table in tables:
        entry = config.entry(table)
        if entry is None:
            continue
        steps, plans = done.get(table, {}), under_way.get(table, [])
        scan = next(iter(scans.get(table, ())), None)
        listed = 0 if scan is None else json.loads(scan.summary)["listed_files"]
        left = scan.bytes if scan is not None and scan.state != "done" else 0
        planned_at = steps.get("plan")
        found.append(
            FleetTable(
                table=table,
                governed_by=entry,
                overdue=planned_at is None or now - planned_at > OVERDUE_AFTER,
                waits_for=tuple(waits.get(table, ())),
                holds=holds.get(table, 0),
                paused=None in pauses or table in pauses,
                red_checks=tuple(check for plan in plans for check in red.get(plan.plan_id, ())),
                plan_status=next((plan.status.value for plan in plans if plan.status in UNCOMMITTED), None)
                or next((plan.status.value for plan in plans if plan.status is not PlanStatus.OPEN), None),
                freed_bytes=freed.get(table, 0),
                freeable_bytes=sum(plan.bytes for plan in plans) + left,
                orphan_share=scan.files / listed if scan is not None and listed else None,
                planned_at=planned_at,
                committed_at=steps.get("commit"),
                deleted_at=steps.get("deletion"),
                scanned_at=None if scan is None else scan.created_at,
            )
        )
    walked = [table.table for table in found if not table.paused]
    return Fleet(now, tuple(found), forecasts(resources, walked, now))
