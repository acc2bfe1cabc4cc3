"""Which checks of this project are red now, from Dagster's storage: the newest evaluation of each check and table."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from dagster import AssetCheckKey, AssetCheckSeverity, AssetKey, DagsterInstance
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckExecutionRecordStatus,
)

from artemis_lifecycle.defs.checks import ALL
from artemis_lifecycle.defs.partitions import table_of
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.expiration.verdicts import COPY_VERIFIED, KEEPS_EVERY_REF, KEEPS_WINDOW_EDGE

_ON_THE_PLAN = (KEEPS_EVERY_REF, KEEPS_WINDOW_EDGE, COPY_VERIFIED)
"""The plan stores their verdicts: an evaluation in Dagster may be of a plan that is over."""

RedChecks = Mapping[str, Mapping[str, str]]
"""The red checks of each table, and what each says."""


def red_checks(instance: DagsterInstance, lifecycle: LifecycleResource, tables: Collection[str]) -> RedChecks:
    """Return the checks of `tables` whose newest evaluation failed as an error. A warning is not red.

    A check that is being evaluated, or whose run ended without evaluating it, counts as before. Verdicts that plans
    store are left out: `Lifecycle.fleet` has those.
    """
    storage = instance.event_log_storage
    names = {key for check in ALL for key in check.check_keys if key.name not in _ON_THE_PLAN}
    keys = {AssetCheckKey(lifecycle.key(_name(key.asset_key)), key.name): key for key in names}
    found: dict[str, dict[str, str]] = defaultdict(dict)
    # Dagster's summary of a check has the newest evaluation of any partition only.
    for newest in storage.get_asset_check_partition_info(list(keys)):
        table = table_of(newest.partition_key or "")
        if table not in tables or newest.latest_execution_status is AssetCheckExecutionRecordStatus.SUCCEEDED:
            continue
        records = storage.get_asset_check_execution_history(
            newest.check_key,
            limit=1,
            status=COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
            partition_filter=PartitionKeyFilter(key=newest.partition_key),
        )
        result = records[0].evaluation if records else None
        if result is not None and not result.passed and result.severity is AssetCheckSeverity.ERROR:
            name = keys[newest.check_key]
            found[table][f"{_name(name.asset_key)}: {name.name}"] = result.description or ""
    return found


def _name(key: AssetKey) -> str:
    return key.path[-1]
