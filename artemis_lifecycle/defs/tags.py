"""The names of the assets, which of them each kind of table has, and the tags of assets, runs and materializations."""

import json
from collections.abc import Mapping
from typing import Any

import dagster as dg

from artemis_lifecycle.config.policies import Run
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

DRIVER_TAG = "artemis/driver-memory"
"""On runs with resources of their own: the memory of Spark's driver, which fits the pod that they were given."""

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


def resource_tags(run: Run) -> dict[str, str]:
    """Return the tags that give a run these resources: dagster-k8s' own for its pod, and DRIVER_TAG."""
    memory = {} if run.memory is None else {"memory": f"{run.memory}Mi"}
    requests = memory | ({} if run.cpu is None else {"cpu": f"{run.cpu:g}"})
    container = dict(run.kubernetes.get("container_config") or {})
    if requests:
        container["resources"] = {"requests": requests, **({"limits": memory} if memory else {})}
    pod = run.kubernetes | ({"container_config": container} if container else {})
    driver = {} if run.driver is None else {DRIVER_TAG: f"{run.driver}m"}
    return driver | ({"dagster-k8s/config": json.dumps(pod)} if pod else {})


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
