"""Which compaction a table needs now, from its recorded health. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from artemis_lifecycle.config.policies import Compaction, MaintenanceWindow
from artemis_lifecycle.maintenance.compaction import why_compact
from artemis_lifecycle.maintenance.health import figure
from artemis_lifecycle.maintenance.manifests import why_rewrite
from artemis_lifecycle.maintenance.statistics import why_statistics
from artemis_lifecycle.operations.health import HealthRecord

CompactionJob = Literal["data_compaction", "manifest_compaction"]

_STEPS = ("compaction", "manifest_compaction")


@dataclass(frozen=True)
class CompactionVerdict:
    """The job to request now, or None; `why` is shown at the tick. `waited` is the time since the table was last
    compacted; None if it never was."""

    job: CompactionJob | None
    why: str
    waited: timedelta | None = None


def due_compaction(
    now: datetime,
    window: MaintenanceWindow,
    health: HealthRecord | None,
    thresholds: Compaction,
    last_done: Mapping[str, datetime],
    timezone: str = "UTC",
) -> CompactionVerdict:
    """Return the compaction that `health` asks for: of data files outside the quiet `window`, of manifests inside it.
    Data files come first: their rewrite replaces manifests, too. Manifests have their days of the week, in `timezone`:
    each rewrite writes all of them.

    A table is not compacted again before its health is measured again. `last_done` is when its steps last ended.
    """
    if health is None:
        return CompactionVerdict(None, "its health is not recorded")
    ended = max((last_done[step] for step in _STEPS if step in last_done), default=None)
    if ended is not None and health.measured_at <= ended:
        return CompactionVerdict(None, "compacted since its health was measured")
    waited = None if ended is None else now - ended
    changed, records = (figure(health, name) for name in ("unanalyzed_records", "records"))
    why = why_compact(health, thresholds) or why_statistics(changed, records, thresholds)
    if why is not None:
        if window.excludes(now):
            return CompactionVerdict(None, f"{why}; it is in its quiet window")
        return CompactionVerdict("data_compaction", why, waited)
    why = why_rewrite(health, thresholds)
    if why is not None:
        today = f"{now.astimezone(ZoneInfo(timezone)):%A}".lower()
        if today not in thresholds.manifests_on or not window.opens <= now < window.closes:
            days = " and ".join(thresholds.manifests_on) or "no day"
            return CompactionVerdict(None, f"{why}; they are rewritten in the quiet window, on {days}")
        return CompactionVerdict("manifest_compaction", why, waited)
    return CompactionVerdict(None, "its health asks for none")
