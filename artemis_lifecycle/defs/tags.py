"""The names of the assets, which of them each kind of table has, and the tags of assets, runs and materializations."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from artemis_lifecycle.escaping import table_of
from artemis_lifecycle.session.formats import PLANNED, Kind

ASSET_TAG = "artemis/asset"
"""On assets: the name, without the key prefix of an installation. Jobs select by it."""

WALK = (
    "snapshot_history",
    "reachable_set",
    "expiration_plan",
    "cold_tier_snapshots",
    "expiration_commit",
    "physical_deletion",
    "object_listing",
    "orphan_scan",
    "orphan_deletion",
    "lineage_ledger",
    "schema_history",
    "table_health",
    "compacted_manifests",
    "compacted_data_files",
)
"""The names of the partitioned assets that steps materialize."""

ASSETS = (*WALK, "fleet", "live_table")

DATA_VERSION_TAG = "dagster/data_version"

WINDOW_TAG = "artemis/window"
"""On runs that the sensor `maintenance_window` requested: the day of the window."""

JOB_TAG = "artemis/job"
STEP_TAG = "artemis/step"
PARTITION_TAG = "dagster/partition"
PRIORITY_TAG = "dagster/priority"
BACKFILL_TAG = "dagster/backfill"

TABLE_TAG = "artemis/table"
"""On runs that a sensor or schedule requested. dagster.yaml limits the runs under way to one for each of its values."""

UNMET_TAG = "artemis/unmet"
"""On runs that the sensor `lineage_watch` requested: when the newest unmet snapshot that they check was
found, and which attempt it is."""

OUTCOME_TAG = "artemis/outcome"
"""On runs and materializations: `done`, `dry_run`, `waiting`, `not_due`, `not_governed`,
`not_applicable`. Only `done` means that the
step was completed for the partition."""

KIND_TAG = "artemis/kind"
"""On materializations: the table's kind: iceberg, nessie or paimon."""


def is_judged(metadata: Mapping[str, Any] | None) -> bool:
    """Return whether a check's result, given by its metadata, judged anything. If not, it has `judged: false`. Dagster
    shows it as passed; counts of green checks leave it out."""
    judged = (metadata or {}).get("judged", True)
    return bool(getattr(judged, "value", judged))


WAITS_FOR_TAG = "artemis/waits-for"
"""On runs: the error class that says what a step waits for. See `failures.FOR_A_PERSON`."""

_ORPHANS = frozenset({"snapshot_history", "reachable_set", "object_listing", "orphan_scan", "orphan_deletion"})
_PLANS = frozenset({"expiration_plan", "expiration_commit", "physical_deletion"})
_OTHERS: tuple[Kind, ...] = ("nessie", "paimon")

ASSETS_OF: Mapping[Kind, frozenset[str]] = {
    "iceberg": frozenset(WALK),
    **{kind: _ORPHANS | (_PLANS if kind in PLANNED else frozenset()) for kind in _OTHERS},
}
"""Assets that a kind does not have are materialized with the outcome `not_applicable`. Their checks judge nothing."""


def lacks(kind: Kind, asset: str) -> str | None:
    """Return why a table of that kind does not have the asset; None if it has."""
    return None if asset in ASSETS_OF[kind] else f"A {kind.capitalize()} table has no {asset} (docs/formats.md)"


# --- partitions -------------------------------------------------------------------------------------------------------

PARTITIONS_NAME = "table"

tables = dg.DynamicPartitionsDefinition(name=PARTITIONS_NAME)
"""The sensor `discovery` adds the tables of the live catalog, and retires the partition of a dropped table. Dagster
keeps the history of a retired partition."""


def partitioned_tables(instance: dg.DagsterInstance) -> set[str]:
    """Return the tables that are partitions of the instance."""
    return set(map(table_of, instance.get_dynamic_partitions(PARTITIONS_NAME)))
