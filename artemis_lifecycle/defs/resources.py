"""The resources: the switch for changes, a Spark session with both catalogs, and the `Lifecycle` that steps call."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Optional

import dagster as dg
from dagster_aws.s3 import S3Resource
from dagster_pyspark import LazyPySparkResource
from dagster_spark.utils import flatten_dict
from pydantic import Field, PrivateAttr

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import lifecycle_conf
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.schemes import S3_SCHEMES, kind_of
from artemis_lifecycle.defs.processes import parallel_runs, sign
from artemis_lifecycle.defs.tags import DRIVER_TAG, PARTITION_TAG, WINDOW_TAG
from artemis_lifecycle.embedded.addresses import fill
from artemis_lifecycle.embedded.jars import needed, resolve
from artemis_lifecycle.escaping import table_of
from artemis_lifecycle.fleet.fleet import Fleet
from artemis_lifecycle.session.resources import Resources
from artemis_lifecycle.spark.executors import local_cores
from artemis_lifecycle.spark.session import KeptSession, live_session, open_session, session_conf
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.settings import StoreSettings

OWNER = "dagster"
"""The owner in leases and step records when Dagster does the work. The run's id is next to it."""

_kept: KeptSession | None = None

_CONFIG = "lifecycle.yaml; by default $ARTEMIS_CONFIG, then the one in the working directory."


class SparkSessionResource(LazyPySparkResource):
    """A Spark session with the Iceberg runtime and both catalogs. It starts at first use and stops when the run ends.
    In a warm worker, it continues to the next run.

    It uses a session that is already alive in this process and leaves it running. It refuses one without the jars with
    EnvironmentMissing: `getOrCreate` would return that session and ignore `spark.jars`.
    """

    config_path: Optional[str] = Field(default=None, description=_CONFIG)
    spark_config: dict[str, Any] = Field(default_factory=dict, description="Settings that override lifecycle.yaml.")

    _started_by_run: bool = PrivateAttr(default=False)
    _log: Optional[dg.DagsterLogManager] = PrivateAttr(default=None)
    _memory: dict[str, str] = PrivateAttr(default_factory=dict)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Remember the run's log, and its driver's memory. Starts nothing."""
        self._log = context.log
        given = None if context.run is None else context.run.tags.get(DRIVER_TAG)
        self._memory = {"spark.driver.memory": given} if given else {}

    def _init_session(self) -> None:
        if self._spark_session is not None:
            return
        config = fill(load_config(self.config_path))
        given = dict(flatten_dict(self.spark_config))  # type: ignore[no-untyped-call]
        conf = session_settings(config)
        if _kept is not None:
            # A worker has memory of its own, and keeps its session for the runs of all tables.
            self._spark_session = _kept.open(conf | given)
            return
        self._started_by_run, began = live_session() is None, elapsed()
        self._spark_session = open_session(conf | self._memory | given)
        if self._started_by_run and self._log is not None:
            # Part of the duration of the step that first needs it.
            self._log.info(f"the Spark session started in {elapsed() - began:.1f} s")

    @property
    def started(self) -> Any:
        """Return the session if a step has started it, else None. Never starts one."""
        return self._spark_session

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session if this run started it."""
        session, self._spark_session = self._spark_session, None
        if session is not None and self._started_by_run:
            session.stop()


def keep_session(config_path: str | None = None) -> None:
    """Start a session, and keep it from one run of this process to the next. Raises what `open_session` raises; the
    next run then tries again."""
    global _kept
    _kept = KeptSession()
    _kept.open(session_settings(fill(load_config(config_path))))


def session_settings(config: LifecycleConfig) -> dict[str, str]:
    """Return the settings of a session for `config`. Resolves the jars for a local master."""
    jars = None if local_cores(config.spark.master) is None else resolve(config.home, needed(config))
    return session_conf(config, lifecycle_conf(config), jars)


class ChangesResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The switch of a whole run, for every step that changes a table or deletes."""

    dry_run: bool = Field(
        default=True, description="Report what each step would do, and change nothing. False makes the changes."
    )


class TablesS3Resource(S3Resource):
    """For your own assets: a client with the settings of the catalog in lifecycle.yaml that is on S3, the live one
    first. None of its fields, which the UI shows, has a credential."""

    config_path: Optional[str] = Field(default=None, description=_CONFIG)

    def get_client(self) -> Any:
        """Return a boto3 client of S3. Raises ConfigError, StorageError."""
        from artemis_lifecycle.storage.s3 import S3Requests

        catalog = on_s3(load_config(self.config_path))
        return None if catalog is None else S3Requests(StoreSettings.from_catalog(catalog), None).client


def on_s3(config: LifecycleConfig) -> Catalog | None:
    """Return the first of the live and the cold catalog whose warehouse is on S3."""
    tiers = (config.catalogs.live, config.catalogs.cold)
    return next((each for each in tiers if kind_of(each.root or "") == S3_SCHEMES[0]), None)


class LifecycleResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Provides one `Lifecycle` per run. Opens it when a step first needs it, and closes it when the run ends."""

    config_path: Optional[str] = Field(default=None, description=_CONFIG)
    spark: SparkSessionResource
    s3: Optional[S3Resource] = None

    prefix: ClassVar[tuple[str, ...]] = ()
    """What precedes the names of the assets. No field: each would stand in every launchpad."""

    launch: ClassVar[Callable[..., Any] | None] = None
    """What runs steps as jobs outside the run's process (`common.Launch`)."""

    _opened: Optional[Lifecycle] = PrivateAttr(default=None)
    _run: Optional[dg.DagsterRun] = PrivateAttr(default=None)
    _started_at: Optional[datetime] = PrivateAttr(default=None)
    _parallel_runs: Optional[int] = PrivateAttr(default=None)
    _predecessors: tuple[str, ...] = PrivateAttr(default=())
    _log: Optional[dg.DagsterLogManager] = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Remember the run and record its process. Opens nothing."""
        run, instance = context.run, context.instance
        if run is not None and instance is not None:
            sign(instance, run.run_id)
        self._log = context.log
        # A manual run starts at once. A scheduled run ends with its maintenance window, and its duration is recorded.
        self._run, self._started_at = run, None
        if self.scheduled and run is not None and instance is not None:
            record = instance.get_run_record_by_id(run.run_id)
            if record is not None and record.start_time is not None:
                self._started_at = datetime.fromtimestamp(record.start_time, tz=UTC)
            self._parallel_runs = parallel_runs(instance)
        self._predecessors = ended_predecessors(run, instance) if run is not None and instance is not None else ()

    def key(self, asset: str) -> dg.AssetKey:
        """Return the key of the project's asset with that name."""
        return dg.AssetKey([*self.prefix, asset])

    def get(self) -> Lifecycle:
        """Return the `Lifecycle` of this run. Raises ConfigError, EnvironmentMissing, OperationsUnavailable."""
        if self._opened is None:
            opened = Lifecycle(
                Resources(
                    self.config_path,
                    owner=OWNER,
                    run_id=self._run.run_id if self._run is not None else None,
                    in_quiet_window=self.scheduled,
                    sessions=self.spark,
                    s3_client_factory=self.s3.get_client if self.s3 is not None else None,
                )
            )
            self._opened = opened
            if self._log is not None:
                for warning in opened.config.warnings():
                    self._log.warning(f"lifecycle.yaml: {warning}")
            if self._predecessors:
                # A killed run's lease lives on for two minutes, but its retry comes within seconds.
                opened.operations.leases.lapse(self._predecessors)
        return self._opened

    def fleet(self, *, history: bool = True) -> Fleet:
        """Return the fleet, with links to Dagster's pages of the assets of this code location."""
        found = self.get().fleet(history=history)
        return replace(found, links=replace(found.links, key_prefix=self.prefix))

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Record how long a run of a window took, and close the connections."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        with closing(opened):
            run = self._run
            if run is not None and self._started_at is not None and PARTITION_TAG in run.tags:
                table, started_at = table_of(run.tags[PARTITION_TAG]), self._started_at
                opened.operations.run_times.note(run.run_id, table, run.job_name, started_at, self._parallel_runs)

    @property
    def scheduled(self) -> bool:
        """True for a run of a maintenance window, which ends with the window."""
        return self._run is not None and WINDOW_TAG in self._run.tags


def ended_predecessors(run: dg.DagsterRun, instance: dg.DagsterInstance) -> tuple[str, ...]:
    """Return the ended runs of which `run` is a retry, most recent first."""
    found: list[str] = []
    parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
    while parent is not None and parent.is_finished and parent.run_id not in found:
        found.append(parent.run_id)
        parent = instance.get_run_by_id(parent.parent_run_id) if parent.parent_run_id else None
    return tuple(found)
