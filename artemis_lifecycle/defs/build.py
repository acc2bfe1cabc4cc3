"""One function builds the Dagster definitions for production, tests and other installations. It uses no network."""

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import dagster as dg
from dagster._core.definitions.decorators.op_decorator import DecoratedOpFunction
from dagster._core.definitions.events import CoercibleToAssetKey, CoercibleToAssetKeyPrefix
from dagster_aws.s3 import S3Resource

from artemis_lifecycle import escaping
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs import (
    alerts,
    checks,
    compaction,
    expiration,
    jobs,
    observation,
    orphans,
    schedules,
    sensors,
)
from artemis_lifecycle.defs.common import Launch, by_command
from artemis_lifecycle.defs.resources import (
    ChangesResource,
    LifecycleResource,
    SparkSessionResource,
    TablesS3Resource,
    on_s3,
)
from artemis_lifecycle.defs.tags import ASSETS as ASSET_NAMES
from artemis_lifecycle.defs.tags import resource_tags
from artemis_lifecycle.errors import ConfigError, LifecycleError

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
    observation.fleet,
)

DESTRUCTIVE = (expiration.expiration_commit, expiration.physical_deletion, orphans.orphan_deletion)

_log = escaping.logger(__name__)


def build_definitions(
    config_path: str | Path | None = None,
    key_prefix: CoercibleToAssetKeyPrefix | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    *,
    upstream: Iterable[CoercibleToAssetKey] = (),
    s3: S3Resource | None = None,
    launch: Launch | None = None,
) -> dg.Definitions:
    """Return what Dagster loads. With `config_path` None, each run looks it up when it starts, as `Lifecycle.open`
    does.

    `key_prefix` precedes the names of all assets; `owners` and `tags` are those of all assets. The first two are by
    default those of lifecycle.yaml. `upstream` are assets of
    your own that write to the tables: `live_table` depends on them. `s3` replaces the driver's S3 client from
    lifecycle.yaml. Spark's executors keep those settings. `launch` runs the steps of the walk as jobs elsewhere, by a
    client of Dagster Pipes; by default those of `dagster.pipes` in lifecycle.yaml, if it names a command.
    """
    path = None if config_path is None else str(config_path)
    config = _config(path)
    require_valid_pods(config)
    before = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or config.dagster.key_prefix)
    spark = SparkSessionResource(config_path=path)

    by = launch or (by_command(config.dagster.pipes) if config.dagster.pipes else None)

    class Prefixed(LifecycleResource):
        prefix = tuple(before)
        launch = None if by is None else staticmethod(by)

    lifecycle = Prefixed(config_path=path, spark=spark, s3=s3)
    warned = config.warnings()
    for warning in warned:
        _log.warning("lifecycle.yaml: %s", warning)
    keys = {dg.AssetKey(name): dg.AssetKey([*before, name]) for name in ASSET_NAMES}
    live = observation.live_table.replace_attributes(
        key=keys[observation.live_table.key], deps=[dg.AssetKey.from_coercible(each) for each in upstream]
    )

    def attributed(spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(owners=owners or config.dagster.owners, tags={**spec.tags, **(tags or {})})

    def completed(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
        extra = _code_reference(asset)
        if warned and asset in DESTRUCTIVE:
            extra["warnings"] = dg.MetadataValue.md("\n".join(f"- {each}" for each in warned))
        keyed = asset.with_attributes(asset_key_replacements=keys)
        return keyed.map_asset_specs(lambda spec: attributed(spec).merge_attributes(metadata=extra))

    with warnings.catch_warnings():
        # Code references, and keys of checks that are replaced.
        warnings.simplefilter("ignore", dg.BetaWarning)
        assets: list[dg.AssetsDefinition | dg.AssetSpec] = [attributed(live), *map(completed, ASSETS)]
        asset_checks = [
            each.with_attributes(asset_key_replacements=keys).coerce_to_checks_def() if before else each
            for each in checks.ALL
        ]
    return dg.Definitions(
        assets=assets,
        asset_checks=asset_checks,
        jobs=list(jobs.ALL),
        schedules=list(schedules.schedules_for(config.defaults.quiet_window)),
        sensors=[*sensors.ALL, *alerts.ALL],
        resources={
            "lifecycle": lifecycle,
            "changes": ChangesResource(),
            "spark": spark,
            **({"s3": s3} if s3 is not None else {}),
            **({"tables_s3": TablesS3Resource(config_path=path)} if on_s3(config) is not None else {}),
        },
        # One JVM per run: with a process per step, Spark would start fourteen times.
        executor=dg.in_process_executor,
    )


def _config(path: str | None) -> LifecycleConfig:
    try:
        return load_config(path)
    except LifecycleError:
        # The code location must load without a configuration; each run reports what is wrong with it.
        return LifecycleConfig()


def require_valid_pods(config: LifecycleConfig) -> None:
    """Raise ConfigError for `run.kubernetes` that dagster-k8s does not take, where it is installed."""
    for place, run in {"defaults": config.defaults.run, **{key: config.run(key) for key in config.tables}}.items():
        if run.kubernetes and find_spec("dagster_k8s"):
            from dagster_k8s.job import get_user_defined_k8s_config

            try:
                get_user_defined_k8s_config(resource_tags(run))
            # A plain Exception for a key that Kubernetes' model does not have.
            except Exception as error:
                raise ConfigError(
                    f"run.kubernetes of {place} in lifecycle.yaml is not what dagster-k8s takes: {error}",
                    hint="write it as the tag dagster-k8s/config, such as {pod_spec_config: {node_selector: {…}}}",
                ) from error


def _code_reference(asset: dg.AssetsDefinition) -> dict[str, dg.MetadataValue]:
    """Return where the function of the asset is. `with_source_code_references` would show the decorator's."""
    compute = asset.op.compute_fn
    function = inspect.unwrap(compute.decorated_fn if isinstance(compute, DecoratedOpFunction) else compute)
    file, (_, line) = inspect.getsourcefile(function), inspect.getsourcelines(function)
    reference = dg.LocalFileCodeReference(file_path=str(file), line_number=line)
    return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}
