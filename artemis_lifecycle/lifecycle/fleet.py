"""The fleet at a glance: one row per governed table, from Postgres alone, and the page that shows it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.policies import TablePolicy
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.lifecycle.fleet_history import FleetDay, fleet_history, overdue_after
from artemis_lifecycle.lifecycle.fleet_page import page
from artemis_lifecycle.lifecycle.maintenance import storage_classes
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.tonight import forecasts
from artemis_lifecycle.lifecycle.unread import unread_readers
from artemis_lifecycle.operations.fleet import freed_by_day, freed_by_job, last_done, red_checks
from artemis_lifecycle.operations.held_bytes import HeldBytes
from artemis_lifecycle.operations.plans import UNCOMMITTED, PlanStatus
from artemis_lifecycle.scheduling.forecast import WindowForecast

if TYPE_CHECKING:
    import pandas as pd

FREED_OVER = timedelta(days=30)


@dataclass(frozen=True)
class FleetTable:
    """One table. `red_checks` are those of its plans under way, and others (`<asset>: <check>`) whose newest result is
    an error, not a warning. `plan_status` is that of its newest plan under way. `freed_bytes` are from the last 30
    days. `freeable_bytes` are what plans under way and the newest scan still hold. `health_score`, 0 to 100, is the
    newest recorded one; None before the first.

    `stored_bytes` are those of all tiers when the table's costs were last added up (`costed_at`), None before that.
    `cost_per_month` is their price, None while a price is missing. Other instants say when a step last ended for the
    table, or had nothing to do: None if it never did. `health_at` is when its health was measured, `scrubbed_at` when
    its cold copies were last read."""

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
    stored_bytes: int | None
    cost_per_month: float | None
    health_score: float | None
    planned_at: datetime | None
    handed_off_at: datetime | None
    committed_at: datetime | None
    deleted_at: datetime | None
    scanned_at: datetime | None
    orphans_deleted_at: datetime | None
    lineage_at: datetime | None
    health_at: datetime | None
    costed_at: datetime | None
    data_compacted_at: datetime | None
    manifests_compacted_at: datetime | None
    history_compacted_at: datetime | None
    scrubbed_at: datetime | None
    deep_archived_at: datetime | None


_STEPS = {
    "planned_at": "plan",
    "handed_off_at": "handoff",
    "committed_at": "commit",
    "deleted_at": "deletion",
    "orphans_deleted_at": "orphan_deletion",
    "lineage_at": "lineage",
    "data_compacted_at": "compaction",
    "manifests_compacted_at": "manifest_compaction",
    "history_compacted_at": "history_compaction",
    "deep_archived_at": "deep_archive",
}
"""The step that each instant is of."""


@dataclass(frozen=True)
class Fleet:
    """All governed tables at `at`. `windows` say whether the open quiet windows, or else the next ones, will suffice;
    empty until runs of a window are recorded. `history` are the last 30 days, today last; `other_waits` say
    what of other tables, such as dropped ones, waits for a person."""

    at: datetime
    tables: tuple[FleetTable, ...]
    windows: tuple[WindowForecast, ...] = ()
    history: tuple[FleetDay, ...] = ()
    other_waits: tuple[str, ...] = ()
    currency: str = "USD"

    @property
    def summary(self) -> dict[str, int]:
        """The number of tables of each kind, and total bytes."""
        return {
            "tables": len(self.tables),
            "overdue": sum(table.overdue for table in self.tables),
            "waiting": sum(bool(table.waits_for) for table in self.tables) + len(self.other_waits),
            "held": sum(bool(table.holds) for table in self.tables),
            "paused": sum(table.paused for table in self.tables),
            "red": sum(bool(table.red_checks) for table in self.tables),
            "late": sum(len(window.late) for window in self.windows),
            "freed_bytes": sum(table.freed_bytes for table in self.tables),
            "freeable_bytes": sum(table.freeable_bytes for table in self.tables),
            "stored_bytes": sum(table.stored_bytes or 0 for table in self.tables),
        }

    @property
    def cost_per_month(self) -> float | None:
        """Return the price of a month's storage of the tables whose cost is known; None if there is none."""
        known = [table.cost_per_month for table in self.tables if table.cost_per_month is not None]
        return sum(known) if known else None

    @property
    def cost(self) -> str:
        """Return the cost per month in a sentence, with what of it is unknown and why."""
        unmeasured = sum(table.stored_bytes is None for table in self.tables)
        unpriced = sum(table.cost_per_month is None for table in self.tables) - unmeasured
        text = "the cost of storage is unknown"
        if self.cost_per_month is not None:
            text = f"storage of all tiers costs {self.cost_per_month:,.2f} {self.currency} a month"
        if unmeasured:
            text += f"; tables without recorded costs (asset table_health, or artemis costs TABLE): {unmeasured:,}"
        if unpriced:
            text += f"; tables in a storage class that `prices` in lifecycle.yaml does not have: {unpriced:,}"
        return text

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the page and the command line say beside the table: the cost, the windows, and other waits."""
        return (self.cost, *map(str, self.windows), *self.other_waits)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per table, with the fields of FleetTable."""
        import pandas as pd

        return pd.DataFrame([asdict(table) for table in self.tables], columns=list(FleetTable.__dataclass_fields__))

    @property
    def html(self) -> str:
        """Return the fleet as one self-contained page: sortable, with plots."""
        tables = [asdict(table) for table in self.tables]
        return page(self.at, self.summary, self.sentences, tables, self.history, self.currency)


def fleet_of(resources: Resources, tables: Sequence[str], *, history: bool = True) -> Fleet:
    """See `Lifecycle.fleet`."""
    operations, config = resources.operations, resources.config
    now = operations.clock.now()
    done = last_done(operations.engine)
    freed = freed_by_day(operations.engine, now - FREED_OVER)
    under_way = defaultdict(list)
    for plan in operations.plans.holding():
        under_way[plan.table].append(plan)
    of_plans = red_checks(operations.engine, [plan.plan_id for plans in under_way.values() for plan in plans])
    of_tables = operations.check_results.red()
    holds = Counter(hold.table for hold in operations.holds.active())
    waits: dict[str, list[str]] = defaultdict(list)
    for wait in operations.waits.open():
        waits[wait.table].append(f"approval of {wait.job_id} since {wait.since:%Y-%m-%d %H:%M}: {wait.why}")
    for thaw in operations.thaws.to_approve():
        waits[thaw.table].append(f"approval of {thaw.thaw_id} since {thaw.requested_at:%Y-%m-%d %H:%M}: {thaw.what}")
    pauses = {pause.table for pause in operations.pauses.in_force()}
    scans = operations.scans.recent(1)
    jobs = [plan.plan_id for plans in under_way.values() for plan in plans]
    jobs += [scan.scan_id for (scan, *_) in scans.values()]
    gone = freed_by_job(operations.engine, jobs)
    healths, scrubbed, held = operations.health.by_table(), operations.scrubs.last(), operations.held_bytes.by_table()
    found, governed = list[FleetTable](), dict[str, TablePolicy]()
    for table in tables:
        if not config.governs(table):
            continue
        (entry,), governed[table] = config.matching(table), config.policy(table)
        steps, plans = done.get(table, {}), under_way.get(table, [])
        planned_at, limit = steps.get("plan"), overdue_after(governed[table])
        scan = next(iter(scans.get(table, ())), None)
        listed = 0 if scan is None else json.loads(scan.summary)["listed_files"]
        left = sum(plan.bytes - gone.get(plan.plan_id, 0) for plan in plans)
        if scan is not None and scan.state != "done":
            left += scan.bytes - gone.get(scan.scan_id, 0)
        health = healths.get(table)
        ended: dict[str, Any] = {name: steps.get(step) for name, step in _STEPS.items()}
        found.append(
            FleetTable(
                table=table,
                governed_by=entry,
                overdue=limit is not None and (planned_at is None or now - planned_at > limit),
                waits_for=tuple(waits.pop(table, ())),
                holds=holds.get(table, 0),
                paused=None in pauses or table in pauses,
                red_checks=(
                    *dict.fromkeys(check for plan in plans for check in of_plans.get(plan.plan_id, ())),
                    *of_tables.get(table, ()),
                ),
                plan_status=next((plan.status.value for plan in plans if plan.status in UNCOMMITTED), None)
                or next((plan.status.value for plan in plans if plan.status is not PlanStatus.OPEN), None),
                freed_bytes=sum(freed.get(table, {}).values()),
                freeable_bytes=left,
                orphan_share=scan.files / listed if scan is not None and listed else None,
                **_costs(config, held.get(table)),
                health_score=None if health is None else health.score,
                scanned_at=None if scan is None else scan.created_at,
                health_at=None if health is None else health.measured_at,
                scrubbed_at=scrubbed.get(table),
                **ended,
            )
        )
    walked = [table.table for table in found if not table.paused]
    days: tuple[FleetDay, ...] = ()
    if history:
        overdue = sum(table.overdue for table in found)
        days = fleet_history(operations, config.catalogs.live.name, governed, freed, now, FREED_OVER, overdue)
    others = tuple(
        f"outside of the tables below, {table} waits for {each}" for table, those in waits.items() for each in those
    )
    try:
        others += unread_readers(config, resources.live_catalog, resources.live_stores).sentences
    except LifecycleError as error:
        others += (f"which tables cannot be read is unknown: {error.what}",)
    return Fleet(now, tuple(found), forecasts(resources, walked, now), days, others, config.prices.currency)


def _costs(config: LifecycleConfig, held: HeldBytes | None) -> dict[str, Any]:
    if held is None:
        return {"stored_bytes": None, "cost_per_month": None, "costed_at": None}
    return {
        "stored_bytes": held.live + (held.cold or 0) + (held.deep_archive or 0),
        "cost_per_month": storage_classes(config).per_month(held, config.prices),
        "costed_at": held.measured_at,
    }
