"""One function builds the Dagster definitions for production, tests and other installations. It uses no network."""

from pathlib import Path

from dagster import AssetsDefinition, Definitions, MetadataValue, in_process_executor
from dagster_aws.s3 import S3Resource

from artemis_lifecycle import escaping
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs import (
    alerts,
    checks,
    compaction,
    expiration,
    fleet,
    jobs,
    observation,
    orphans,
    schedules,
    sensors,
)
from artemis_lifecycle.defs.resources import LifecycleResource, SparkSessionResource
from artemis_lifecycle.errors import LifecycleError

ASSETS = (
    expiration.snapshot_history,
    expiration.reachable_set,
    expiration.expiration_plan,
    expiration.cold_tier_snapshots,
    expiration.expiration_commit,
    expiration.physical_deletion,
    orphans.object_listing,
    orphans.orphan_scan,
    orphans.orphan_deletion,
    observation.lineage_ledger,
    observation.schema_history,
    observation.table_health,
    compaction.compacted_manifests,
    compaction.compacted_data_files,
    fleet.fleet,
)

DESTRUCTIVE = (expiration.expiration_commit, expiration.physical_deletion, orphans.orphan_deletion)

_log = escaping.logger(__name__)


def build_definitions(config_path: str | Path | None = None, s3: S3Resource | None = None) -> Definitions:
    """Return what Dagster loads. With `config_path` None, each run looks it up when it starts, as `Lifecycle.open`
    does.

    `s3` replaces the driver's S3 client from lifecycle.yaml. Spark's executors keep those settings.
    """
    path = None if config_path is None else str(config_path)
    spark = SparkSessionResource(config_path=path)
    lifecycle = LifecycleResource(config_path=path, spark=spark, s3=s3)
    config = _config(path)
    warnings = config.warnings()
    for warning in warnings:
        _log.warning("lifecycle.yaml: %s", warning)
    return Definitions(
        assets=[_warning(asset, warnings) if warnings and asset in DESTRUCTIVE else asset for asset in ASSETS],
        asset_checks=list(checks.ALL),
        jobs=list(jobs.ALL),
        schedules=list(schedules.schedules_for(config.defaults.quiet_window)),
        sensors=[*sensors.ALL, *alerts.ALL],
        resources={"lifecycle": lifecycle, "spark": spark, **({"s3": s3} if s3 is not None else {})},
        # One JVM per run: with a process per step, Spark would start fourteen times.
        executor=in_process_executor,
    )


def _config(path: str | None) -> LifecycleConfig:
    try:
        return load_config(path)
    except LifecycleError:
        # The code location must load without a configuration; each run reports what is wrong with it.
        return LifecycleConfig()


def _warning(asset: AssetsDefinition, warnings: tuple[str, ...]) -> AssetsDefinition:
    """Return `asset` with `warnings` in the metadata that its UI page shows."""
    text = MetadataValue.md("\n".join(f"- {each}" for each in warnings))
    return asset.map_asset_specs(lambda spec: spec.merge_attributes(metadata={"warnings": text}))
