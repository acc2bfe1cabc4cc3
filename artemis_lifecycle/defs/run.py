"""Run the walk in this process: one run per table, on one Dagster instance and one Spark session, with events."""

import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.remote_origin import ManagedGrpcPythonEnvCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import REPOSITORY_LABEL_TAG
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.defs.build import build_definitions
from artemis_lifecycle.defs.jobs import for_real
from artemis_lifecycle.defs.processes import end_runs_without_process
from artemis_lifecycle.defs.tags import PARTITIONS_NAME, is_judged
from artemis_lifecycle.escaping import partition_key
from artemis_lifecycle.spark.session import live_session

_MODULE = "artemis_lifecycle.definitions"

Plain = int | float | bool | str


@dataclass(frozen=True)
class WalkEvent:
    """An event of one asset of one table.

    `checked` events have the name of the `check` and whether it `passed` (None: it had nothing to judge).
    `materialised` events have `seconds` and `metadata` (plain values, by the stable keys that the UI plots). `failed`
    and `checked` events have a `message`.
    """

    table: str
    asset: str
    what: Literal["started", "materialised", "checked", "failed"]
    seconds: float | None = None
    metadata: Mapping[str, Plain] = field(default_factory=dict)
    check: str | None = None
    passed: bool | None = None
    message: str = ""


@dataclass(frozen=True)
class Walk:
    """One table's run. `succeeded` means that every step succeeded. The results of checks are in `events`."""

    table: str
    run_id: str
    succeeded: bool
    seconds: float
    events: tuple[WalkEvent, ...]

    def metadata(self, asset: str) -> Mapping[str, Plain]:
        """Return the metadata of the asset's materialization; empty if the asset was not materialized."""
        return next(
            (event.metadata for event in self.events if (event.asset, event.what) == (asset, "materialised")), {}
        )

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """Names of the failed checks."""
        return tuple(event.check for event in self.events if event.check is not None and event.passed is False)

    @property
    def failures(self) -> tuple[str, ...]:
        """Messages of the failed steps."""
        return tuple(f"{event.asset}: {event.message}" for event in self.events if event.what == "failed")


def materialize_walk(
    tables: Sequence[str],
    *,
    config_path: str | Path | None = None,
    dry_run: bool = False,
    on_event: Callable[[WalkEvent], None] | None = None,
    instance: dg.DagsterInstance | None = None,
    spark: Any = None,
    job: str = "whole_walk",
) -> list[Walk]:
    """Add a partition for each table and run `job` for one table after the other. A table's failure does not stop the
    rest.

    With `instance` None, the instance of $DAGSTER_HOME is used. All runs share one Spark session: the given one, which
    keeps running, or a new one, which is stopped at the end. Unless `dry_run`, destructive steps do their work. Runs
    whose process was killed are ended first, so that they block no other run.
    """
    definitions, location = build_definitions(config_path), load_config(config_path).dagster.code_location
    with _instance(instance) as dagster, _session(config_path, spark):
        end_runs_without_process(dagster)
        dagster.add_dynamic_partitions(PARTITIONS_NAME, list(map(partition_key, tables)))
        return [
            _walk(definitions.resolve_job_def(job), table, dagster, for_real(job, dry_run=dry_run), on_event, location)
            for table in tables
        ]


def materialize_fleet(*, config_path: str | Path | None = None, instance: dg.DagsterInstance | None = None) -> None:
    """Build the fleet page in this process; `instance` as for `materialize_walk`."""
    job, location = build_definitions(config_path).resolve_job_def("fleet_page"), load_config(config_path).dagster
    with _instance(instance) as dagster:
        _put_on_the_timeline(dagster, job.execute_in_process(instance=dagster).run_id, location.code_location)


def _walk(
    job: Any,
    table: str,
    instance: dg.DagsterInstance,
    run_config: Mapping[str, Any],
    on_event: Callable[[WalkEvent], None] | None,
    code_location: str,
) -> Walk:
    run_id, events, began = str(uuid.uuid4()), list[WalkEvent](), time.monotonic()

    def listen(entry: dg.EventLogEntry) -> None:
        event = walk_event(table, entry)
        if event is not None:
            events.append(event)
            if on_event is not None:
                on_event(event)

    instance.add_event_listener(run_id, listen)
    result = job.execute_in_process(
        instance=instance,
        partition_key=partition_key(table),
        run_config=run_config,
        run_id=run_id,
        raise_on_error=False,
    )
    _put_on_the_timeline(instance, run_id, code_location)
    return Walk(table, run_id, result.success, round(time.monotonic() - began, 2), tuple(events))


def _put_on_the_timeline(instance: dg.DagsterInstance, run_id: str, name: str) -> None:
    """Record the code location that the run belongs to. The UI's first page omits runs without one, and a run in this
    process has none."""
    run = instance.get_run_by_id(run_id)
    assert run is not None
    location = ManagedGrpcPythonEnvCodeLocationOrigin(
        LoadableTargetOrigin(executable_path=sys.executable, module_name=_MODULE), location_name=name
    )
    origin = RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME)
    instance.add_run_tags(run_id, {REPOSITORY_LABEL_TAG: origin.get_label()})
    run = run.with_tags({**run.tags, REPOSITORY_LABEL_TAG: origin.get_label()})
    instance.run_storage.replace_job_origin(run, origin.get_job_origin(run.job_name))


def walk_event(table: str, entry: dg.EventLogEntry) -> WalkEvent | None:
    """Return what a log entry means for the walk; None for Dagster's internal entries."""
    event = entry.dagster_event
    if event is None or event.step_key is None:
        return None
    if event.event_type_value == "STEP_START":
        return WalkEvent(table, event.step_key, "started")
    if event.event_type_value == "STEP_FAILURE":
        error = event.step_failure_data.user_failure_data
        raised = event.step_failure_data.error
        words = error.description if error is not None else raised.message if raised is not None else event.message
        return WalkEvent(table, event.step_key, "failed", message=(words or "").strip())
    data: Any = event.event_specific_data
    materialization = getattr(data, "materialization", None)
    if isinstance(materialization, dg.AssetMaterialization):
        numbers = {
            key: value.value for key, value in materialization.metadata.items() if isinstance(value.value, Plain)
        }
        return WalkEvent(
            table,
            materialization.asset_key.to_user_string(),
            "materialised",
            seconds=float(numbers.get("seconds", 0.0)),
            metadata=numbers,
        )
    if isinstance(data, dg.AssetCheckEvaluation):
        return WalkEvent(
            table,
            data.asset_key.to_user_string(),
            "checked",
            check=data.check_name,
            passed=data.passed if is_judged(data.metadata) else None,
            message=data.description or "",
        )
    return None


@contextmanager
def _instance(given: dg.DagsterInstance | None) -> Iterator[dg.DagsterInstance]:
    if given is not None:
        yield given
    else:
        with dg.DagsterInstance.get() as found:
            # Without this, Dagster's Postgres storages open a new connection for every event.
            found.optimize_for_webserver(statement_timeout=60_000, pool_recycle=600, max_overflow=20)
            yield found


@contextmanager
def _session(config_path: str | Path | None, given: Any) -> Iterator[None]:
    if given is not None:
        yield
    else:
        if live_session() is not None:
            yield
            return
        with Lifecycle.open(config_path) as lifecycle:
            # A session that is alive before the first run is shared by all runs. They leave it to this function to
            # stop.
            assert lifecycle.spark is not None
            yield
