"""The fleet as Prometheus metrics (text exposition format 0.0.4), from Postgres alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.fleet.fleet import fleet_of
from artemis_lifecycle.operations.fleet import Seconds, counted, seconds_to_deletion
from artemis_lifecycle.session.resources import Resources

_COUNTERS: Mapping[str, tuple[tuple[str, str], str]] = {
    "files_compacted": (("compaction", "files_rewritten"), "Data files that compaction rewrote."),
    "bytes_compacted": (("compaction", "bytes_rewritten"), "Bytes of data files that compaction rewrote."),
    "manifest_compactions": (("manifest_compaction", "rewrites"), "Rewrites of manifests that were committed."),
    "manifests_rewritten": (("manifest_compaction", "manifests_rewritten"), "Manifests that were rewritten into few."),
    "history_compactions": (("history_compaction", "compactions"), "Compactions of a table's history."),
    "history_entries": (("history_compaction", "entries"), "Entries of the snapshot log that those read."),
    "snapshots_expired": (("commit", "snapshots_removed"), "Snapshots that commits removed."),
    "files_deleted": (("deletion", "files_deleted"), "Files of expired snapshots that were deleted."),
    "bytes_deleted": (("deletion", "bytes_deleted"), "Bytes of expired snapshots that were deleted."),
    "orphans_deleted": (("orphan_deletion", "files_deleted"), "Orphan files that were deleted."),
    "orphan_bytes_deleted": (("orphan_deletion", "bytes_deleted"), "Bytes of orphan files that were deleted."),
    "skipped_in_flight": (("orphan_scan", "skipped_in_flight"), "Unreferenced files that scans skipped as in flight."),
    "bytes_skipped_in_flight": (("orphan_scan", "skipped_in_flight_bytes"), "Bytes of those files."),
    "files_archived": (("handoff", "files_copied"), "Files that handoffs copied to the cold tier."),
    "bytes_archived": (("handoff", "bytes_copied"), "Bytes that handoffs copied to the cold tier."),
}
"""Each counter's step and figure, and its help. Deleted step records count on in totals, so that no counter falls."""


def metrics(resources: Resources, tables: Iterable[str]) -> str:
    """See `Lifecycle.metrics`."""
    fleet = fleet_of(resources, tuple(tables), history=False)
    governed = {table.table for table in fleet.tables}
    sums, waited = counted(resources.operations.engine), seconds_to_deletion(resources.operations.engine)
    lines: list[str] = []

    def metric(name: str, kind: str, text: str, values: Mapping[str, float]) -> None:
        lines.extend((f"# HELP artemis_{name} {text}", f"# TYPE artemis_{name} {kind}"))
        lines.extend(
            f'artemis_{name}{{table="{_label(table)}"}} {_number(value)}' for table, value in sorted(values.items())
        )

    for name, ((step, key), text) in _COUNTERS.items():
        of_step = {table: value for (table, *rest), value in sums.items() if rest == [step, key]}
        metric(f"{name}_total", "counter", text, {table: of_step.get(table, 0) for table in governed})
    rows = {table.table: table for table in fleet.tables}
    flags = {
        "overdue": "1 if the table's plan is overdue.",
        "waiting": "Plans and scans that wait for approval.",
        "paused": "1 if the table is paused.",
        "red_checks": "Failed checks of plans under way, and of the table, without warnings.",
        "freeable_bytes": "Bytes that plans under way and the newest scan hold.",
    }
    metric("overdue", "gauge", flags["overdue"], {name: row.overdue for name, row in rows.items()})
    metric("waiting", "gauge", flags["waiting"], {name: len(row.waits_for) for name, row in rows.items()})
    metric("paused", "gauge", flags["paused"], {name: row.paused for name, row in rows.items()})
    metric("red_checks", "gauge", flags["red_checks"], {name: len(row.red_checks) for name, row in rows.items()})
    metric("freeable_bytes", "gauge", flags["freeable_bytes"], {name: row.freeable_bytes for name, row in rows.items()})
    shares = {name: row.orphan_share for name, row in rows.items() if row.orphan_share is not None}
    metric("orphan_share", "gauge", "Orphans among the files of the newest scan, from 0 to 1.", shares)
    costs = {name: row.cost_per_month for name, row in rows.items() if row.cost_per_month is not None}
    metric("cost_per_month", "gauge", "Price of a month's storage in all tiers, in the currency of `prices`.", costs)
    scores = {name: row.health_score for name, row in rows.items() if row.health_score is not None}
    metric("health_score", "gauge", "The table's newest health score, from 0 to 100.", scores)
    ages = {name: (fleet.at - row.planned_at).total_seconds() for name, row in rows.items() if row.planned_at}
    metric("plan_age_seconds", "gauge", "Seconds since the table was planned.", ages)
    known: dict[str, Seconds] = {name: waited[name] for name in governed & waited.keys()}
    text = "Seconds between the commit and the deletion of the newest finished plan."
    metric("expiry_to_deletion_seconds", "gauge", text, known)
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    # Six digits, as `g` has them, would hide what a large counter gained.
    return str(int(value)) if value == int(value) else repr(float(value))


def _label(text: str) -> str:
    return terminal(text).replace("\\", "\\\\").replace('"', '\\"')
