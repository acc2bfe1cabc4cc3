"""An open configuration: its catalogs, stores, Postgres and Spark session, each opened at first use. Does not belong
here: their use."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.commit import commit_with_retry
from artemis_lifecycle.catalogs.deployments import DeploymentRecords, of_other, require_deployment
from artemis_lifecycle.catalogs.guard import GuardState, guard_state, verify_guard
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.rest_commit import CommitTable, RestCommitter
from artemis_lifecycle.catalogs.results import ResultReader
from artemis_lifecycle.catalogs.settings import lifecycle_conf, require_uri
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.deployment import Operations as OperationsSettings
from artemis_lifecycle.config.durations import format_duration
from artemis_lifecycle.config.loading import load_config
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.config.schemes import kind_of
from artemis_lifecycle.embedded.addresses import addressed, fill
from artemis_lifecycle.embedded.jars import needed, resolve
from artemis_lifecycle.errors import (
    BadInput,
    ClocksDisagree,
    ConfigError,
    LifecycleError,
    NaiveDatetime,
    OperationsUnavailable,
    OtherDeployment,
)
from artemis_lifecycle.metadata.table_metadata import read_metadata_json, read_table_metadata
from artemis_lifecycle.operations.database import NOT_MADE, Clock, Deployment, Operations, connected, read_deployment
from artemis_lifecycle.operations.decisions import person
from artemis_lifecycle.operations.known_tables import KnownTable, Swaps
from artemis_lifecycle.operations.roles import where_allowed
from artemis_lifecycle.protection.context import TablesOfCatalog
from artemis_lifecycle.session.formats import Kind, OtherTables
from artemis_lifecycle.session.live_catalogs import AllReaders, LiveCatalogs, catalogs_of_database
from artemis_lifecycle.session.progress import Progress
from artemis_lifecycle.spark.isolated import end_children
from artemis_lifecycle.spark.runner import Starter
from artemis_lifecycle.spark.session import add_catalogs, live_session, open_session, session_conf
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.local.store import local_path, status_of
from artemis_lifecycle.storage.location import LocationRules, normalize, split
from artemis_lifecycle.storage.roots import require_apart
from artemis_lifecycle.storage.stores import Stores, StoreSettings, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- clocks -----------------------------------------------------------------------------------------------------------
# Agreement of clocks.
#
# The Postgres clock decides ages, windows and graces. If it were a month ahead, every file would be old and every
# grace over, and nothing else would detect it.

PROBE = ".artemis-clock-"
"""The prefix of a probe's name. It is hidden, so that a probe left behind by a kill is not taken for a table's file."""

_log = escaping.logger(__name__)
_RESOLUTION = timedelta(seconds=1)
"""S3 stores an object's time in whole seconds, rounded down."""


@dataclass(frozen=True)
class Folder:
    """A folder to whose store a probe may be written."""

    path: str
    stores: Stores

    @property
    def clock(self) -> str:
        """The clock that sets its files' times: that of a disk (possibly on a server), or of a bucket."""
        if not is_local(self.path):
            place = split(self.path)
            return f"{place.scheme}://{place.authority}"
        existing = Path(local_path(self.path))
        while (status := status_of(self.path, str(existing))) is None:
            existing = existing.parent
        return f"device {status.st_dev}"


def host_now() -> datetime:
    """Return this host's time in UTC."""
    return datetime.now(UTC)


def require_agreement(postgres_now: Callable[[], datetime], folders: Iterable[Folder], most: timedelta) -> None:
    """Raise ClocksDisagree if Postgres, this host and the stores of `folders` differ by more than `most`.

    Writes a tiny file into each folder and removes it again. The duration of a request does not count as a difference.
    Raises StorageError if a probe cannot be written, OperationsUnavailable.
    """
    asked, reported, answered = host_now(), postgres_now(), host_now()
    ahead = {"Postgres": _ahead(reported, asked, answered), "this host": timedelta(0)}
    for folder in folders:
        ahead[f"the store of {folder.path}"] = _store_ahead(folder)
    if max(ahead.values()) - min(ahead.values()) <= most:
        return
    now = host_now()
    clocks = ", ".join(f"{name} says {now + by:%Y-%m-%d %H:%M:%S} UTC" for name, by in ahead.items())
    raise ClocksDisagree(
        f"Clocks differ by more than {format_duration(most)} (clocks.max_difference): {clocks}",
        untouched="everything that was not done before",
        hint="correct the wrong clock (NTP), then run this again",
    )


def _store_ahead(folder: Folder) -> timedelta:
    probe = f"{folder.path.rstrip('/')}/{PROBE}{uuid.uuid4().hex}"
    asked = host_now()
    try:
        folder.stores.write(probe, b"What time is it?", storage_class="STANDARD")
        found = folder.stores.head(probe)
    finally:
        for left in folder.stores.delete([probe]):
            if left.outcome == "failed":
                _log.warning("A probe of the store's clock could not be removed: %s: %s", probe, left.error)
    if found is None or found.last_modified is None:
        raise ClocksDisagree(
            "The store does not report when a file was written, so its files have no age",
            path=folder.path,
            untouched="everything that was not done before",
            hint="use a store that reports modification times",
        )
    return _ahead(found.last_modified, asked - _RESOLUTION, host_now())


def _ahead(shown: datetime, earliest: datetime, latest: datetime) -> timedelta:
    """Return how far `shown` is ahead of (behind: negative) a clock that showed `earliest` before and `latest` after
    it."""
    return shown - min(max(shown, earliest), latest)


_DEPLOYMENT_SEEN_FOR = 10.0
"""Seconds for which the catalog's owner is not checked again, except before a step begins or a batch of files is
deleted."""
_CLOCKS_SEEN_FOR = 60.0
"""Seconds for which a store whose clock agreed is not checked again."""


@cache
def _warn_once(warning: str) -> None:
    # Once per process: the sensors of a code server open a configuration every half minute.
    _log.warning("lifecycle.yaml: %s", warning)


class Sessions(Protocol):
    """A provider of a Spark session, which also stops it."""

    @property
    def spark_session(self) -> SparkSession:
        """Return the session, with both catalogs; started at first use."""

    @property
    def started(self) -> SparkSession | None:
        """Return the session if it is started."""


def without_operations(config: LifecycleConfig) -> LifecycleConfig:
    """Return the configuration with the addresses that it has, and without an operations database."""
    named = addressed(config, config.catalogs.live)
    catalogs = config.catalogs.model_copy(update={"named": named})
    return config.model_copy(update={"operations": OperationsSettings(), "catalogs": catalogs})


class Resources:
    """One configuration's catalogs, stores, Postgres and Spark session."""

    def __init__(
        self,
        config: LifecycleConfig | str | Path | None = None,
        spark: SparkSession | None = None,
        *,
        owner: str | None = None,
        run_id: str | None = None,
        in_quiet_window: bool = False,
        sessions: Sessions | None = None,
        s3_client_factory: Callable[[], Any] | None = None,
        restores_guard: bool = True,
        only_reads: bool = False,
    ) -> None:
        """See `Lifecycle.open`. `sessions` provides a Spark session instead of `spark`; `s3_client_factory` creates the
        stores' S3 clients. Without `restores_guard`, the cold catalog's guard is left as it is. With `only_reads`,
        nothing is opened but live catalogs and their stores: no operations database, which would share the read budget
        with other workers, no embedded stack, no cold tier."""
        given = config if isinstance(config, LifecycleConfig) else load_config(config)
        self.config = without_operations(given) if only_reads else fill(given)
        self.owner = owner or f"{person()}:{os.getpid()}"
        self.run_id = run_id
        self.in_quiet_window = in_quiet_window
        self.under_way: str | None = None
        self.others: dict[str, OtherTables] = {}
        self._given_spark = spark
        self._own_spark: SparkSession | None = None
        self._prepared = False
        self._sessions = sessions
        self._starting = RLock()
        self._on_spark: list[Callable[[SparkSession], None]] = []
        self.s3_client_factory = s3_client_factory
        self._deployment_seen_at = float("-inf")
        self._noted: object = None
        self._clocks_seen_at: dict[str, float] = {}
        self._readers: dict[tuple[str | bool, ...], AllReaders] = {}
        self._rest: dict[str, RestCommitter] = {}
        if only_reads:
            return
        for warning in self.config.warnings():
            _warn_once(warning)
        self.require_apart()
        if restores_guard:
            self._verify_cold_guard()

    def _verify_cold_guard(self) -> None:
        cold = self.config.catalogs.cold
        if cold.type != "sql":
            return
        with ExitStack() as stack:
            try:
                engine = stack.enter_context(connected(require_uri(cold)))
            except OperationsUnavailable as error:
                # A database that does not answer accepts no writes either, and every step that needs it stops.
                _log.warning("The guard of cold catalog %s cannot be verified: %s", cold.name, error)
                return
            verify_guard(engine, cold.name, self.config.catalogs.live.name)

    def cold_guard(self) -> GuardState | None:
        """Return the current state of the cold catalog's guard; None for a catalog that is not in SQL, which has no
        guard. Changes nothing."""
        cold = self.config.catalogs.cold
        if cold.type != "sql":
            return None
        with connected(require_uri(cold)) as engine, engine.connect() as connection:
            return guard_state(connection, cold.name)

    def close(self) -> None:
        """Stop the Spark session and the processes that this object started, and close its connections."""
        if self._own_spark is not None:
            self._own_spark.stop()
            self._own_spark = None
        if self._sessions is None:
            end_children()
        for other in self.others.values():
            other.close()
        self._rest.clear()
        self._readers.clear()
        for name in ("unchecked_operations", "catalogs", "cold_catalog"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()

    def other(self, table: str) -> OtherTables | None:
        """Return the catalog of another format with which the table's key begins; None for a table of a live
        catalog."""
        catalog, colon, _ = table.partition(":")
        return self.others.get(catalog) if colon else None

    def kind(self, table: str) -> Kind:
        """Return the kind of the table: iceberg (of a live catalog), nessie or paimon."""
        other = self.other(table)
        return "iceberg" if other is None else other.kind

    def has_cold_tier(self, table: str) -> bool:
        """Return True if the table's expired snapshots are copied to the cold tier."""
        return self.other(table) is None and self.config.policy(table).cold_tier.enabled

    @property
    def spark(self) -> SparkSession:
        """The Spark session: the given one, or a new one, started at first use."""
        with self._starting:
            session = self._session()
        for call in tuple(self._on_spark):
            call(session)
        return session

    @property
    def start_spark(self) -> Starter:
        """What starts `spark`, for functions that do so only for large work."""
        started, own = self.started_spark(), self.config.spark
        master = own.conf.get("spark.master", own.master) if started is None else started.sparkContext.master
        return Starter(master, lambda: self.spark)

    @contextmanager
    def calling_with_spark(self, call: Callable[[SparkSession], None]) -> Iterator[None]:
        """Inside the block, call `call` with the session whenever a thread asks for it, before the thread has it."""
        started = self.started_spark()
        if started is not None:
            call(started)
        self._on_spark.append(call)
        try:
            yield
        finally:
            self._on_spark.remove(call)

    def _session(self) -> SparkSession:
        if self._sessions is not None:
            return self._sessions.spark_session
        if self._own_spark is None and self._given_spark is None:
            # A session that is already alive in this process is stopped by its owner.
            self._given_spark = live_session()
        if self._given_spark is not None:
            if not self._prepared:
                add_catalogs(self._given_spark, lifecycle_conf(self.config))
                self._prepared = True
            return self._given_spark
        if self._own_spark is None:
            jars = resolve(self.config.home, needed(self.config))
            self._own_spark = open_session(session_conf(self.config, lifecycle_conf(self.config), jars))
        return self._own_spark

    def started_spark(self) -> SparkSession | None:
        """Return the session, or None if it is not started yet."""
        return self._sessions.started if self._sessions is not None else self._given_spark or self._own_spark

    @property
    def operations(self) -> Operations:
        """Plans, journal, leases, holds and heartbeats in Postgres. Raises OtherDeployment if they do not belong to the
        live catalog's deployment."""
        if elapsed() - self._deployment_seen_at > _DEPLOYMENT_SEEN_FOR:
            self.require_deployment(record=False)
        return self.unchecked_operations

    @cached_property
    def unchecked_operations(self) -> Operations:
        """`operations` without the check of the deployment: for reads of tables, which everyone may do. The first write
        claims the catalog for this deployment."""
        assert self.config.operations.uri is not None
        opened = Operations.open(self.config.operations.uri, make=False)
        opened.claim = self.require_deployment
        return opened

    @property
    def has_operations(self) -> bool:
        """Whether `operations` was opened."""
        return "unchecked_operations" in self.__dict__

    @property
    def clock(self) -> Clock:
        """The Postgres clock, which decides ages, windows and graces."""
        return self.unchecked_operations.clock

    def instant(self, name: str, given: datetime | None) -> datetime:
        """Return `given`, or the Postgres time, in UTC and whole milliseconds, as Iceberg counts them."""
        instant = self.clock.now() if given is None else given
        NaiveDatetime.refuse(name, instant)
        return instant.astimezone(UTC).replace(microsecond=instant.microsecond // 1000 * 1000)

    def past(self, given: datetime | None, table: str | None = None) -> datetime:
        """Return `instant("now", given)`. Raises BadInput for one to come."""
        instant, clock = self.instant("now", given), self.instant("now", None)
        if instant > clock:
            raise BadInput(
                f"now={instant.isoformat()} is after {clock.isoformat()}, the time by Postgres' clock",
                table=table,
                hint="leave now out, or give an earlier instant: age is judged as it is, not ahead of it",
            )
        return instant

    @property
    def deployment(self) -> Deployment:
        """The current identity of this operations database, with the root. Its schema is made, if necessary."""
        if not self.unchecked_operations.exists:
            self.unchecked_operations.make()
        return read_deployment(self.unchecked_operations.engine, normalize(self.root))

    def require_deployment(
        self, table: str = "", *, record: bool = True, destructive: bool = False
    ) -> Deployment | None:
        """Raise OtherDeployment if the live catalog, or that of `table` (of any format; its prefix will do), currently
        belongs to another deployment. At its first use it is assigned to this one, unless `record` is False. Raises
        Refused before a `destructive` step if the record of that can stand nowhere. Return this deployment, None before
        its schema is made."""
        known = record or self.unchecked_operations.exists
        ours = self.deployment if known else NOT_MADE
        own = self._catalog_of(table)
        for name in dict.fromkeys((self.config.catalogs.live.name, own)):
            records = self.records_of(name, table if name == own else "", destructive=destructive and name == own)
            first = partial(self._require_known, name)
            require_deployment(records, name, ours, who=self.owner, record=record, first=first)
        self._deployment_seen_at = elapsed()
        return ours if known else None

    def records_of(self, name: str, table: str = "", *, destructive: bool = False) -> DeploymentRecords:
        """Return the records of the deployment of a live catalog, or of one in `catalogs.others`. `table` and
        `destructive`: see `CatalogReader.deployments`."""
        other = self.config.catalogs.others.get(name)
        if other is not None:
            return of_other(self.live_stores, name, other)
        return self.catalogs.reader(name).deployments(self.live_stores, table, destructive=destructive)

    def prefix_of(self, name: str) -> str:
        """Return what the keys of a catalog's tables begin with, of any format."""
        return "" if name == self.config.catalogs.live.name else f"{name}:"

    def _catalog_of(self, table: str) -> str:
        """Return the name of the table's catalog, of any format."""
        name, catalogs = table.partition(":")[0], self.config.catalogs
        return name if ":" in table and name in catalogs.others else catalogs.of(table).name

    def _require_known(self, name: str) -> None:
        """Raise OtherDeployment if a catalog has no record of a deployment, and none of the tables that the operations
        database knows of a catalog of that name: it is another one, and not one that has lost its tables."""
        if name in self.config.catalogs.others or not self.unchecked_operations.exists:
            return
        known: dict[str, KnownTable] = {}
        # A login that may not read them records nothing of them either.
        with where_allowed():
            rows = self.unchecked_operations.known_tables.of_catalog(name)
            known = {each.table: each for each in rows if each.missing_since is None}
        reader = self.catalogs.reader(name)
        for table in known.keys() & set(reader.tables()) if known else ():
            with suppress(LifecycleError):
                pointer = reader.entry(table).metadata_location
                if read_table_metadata(self.live_stores, pointer).table_uuid == known[table].table_uuid:
                    return
        if known:
            raise OtherDeployment(
                f"Catalog {name} is not the one that this operations database knows: it has no record of this "
                f"deployment, and none of the known tables ({', '.join(sorted(known)[:3])}, {len(known)} in all)",
                hint=f"correct the address of catalogs.{name} in lifecycle.yaml. If the catalog was moved, or begun "
                "anew, and all of them are really dropped: artemis take-over --who … --why …",
            )

    @cached_property
    def live_stores(self) -> Stores:
        """The object stores of the live warehouses, and of sealed plans, listings and scans."""
        own, buckets = self._settings(self.config.catalogs.live), dict[str, StoreSettings]()
        for catalog in self.config.catalogs.iceberg:
            settings = replace(self._settings(catalog), storage_class=own.storage_class)
            own_root = self.config.operations.root if catalog is self.config.catalogs.live else None
            roots = (*catalog.places, own_root)
            for bucket in (split(root).authority for root in roots if root is not None and kind_of(root) is not None):
                if buckets.setdefault(bucket, settings) != settings:
                    raise ConfigError(
                        f"Bucket {bucket} belongs to live catalogs with different settings of its store, catalog "
                        f"{catalog.name} among them",
                        untouched="everything",
                        hint="give them the same s3.*, client.*, adls.* and gcs.* properties, or each a bucket of its "
                        "own",
                    )
        elsewhere = tuple((name, each) for name, each in sorted(buckets.items()) if each != own)
        return Stores(replace(own, elsewhere=elsewhere), self.s3_client_factory)

    @cached_property
    def cold_stores(self) -> Stores:
        """The object stores of the cold warehouse."""
        return Stores(self._settings(self.config.catalogs.cold), self.s3_client_factory)

    @property
    def live_catalog(self) -> CatalogReader:
        """The catalog `catalogs.live`, which also has the result tables."""
        return self.catalogs.reader(self.config.catalogs.live.name)

    @cached_property
    def catalogs(self) -> LiveCatalogs:
        """All live catalogs, by the keys of tables."""
        return LiveCatalogs(self.config.catalogs)

    def rest_of(self, table: str) -> RestCommitter | None:
        """Return what commits to the table's catalog if that is of type rest; None for any other."""
        catalog = self.config.catalogs.of(table)
        if catalog.type != "rest" or self.other(table) is not None:
            return None
        if catalog.name not in self._rest:
            client, records = self.catalogs.reader(catalog.name).rest_client(), self.unchecked_operations.rest_commits
            read = partial(read_metadata_json, self.live_stores)
            self._rest[catalog.name] = RestCommitter(client, records, read, self.owner)
        return self._rest[catalog.name]

    def swaps(self, table: str, table_uuid: str) -> Swaps:
        """Return what records the commits of a table."""
        return self.operations.table_locations.swaps(self.config.catalogs.of(table).name, table, table_uuid)

    def committer(self, table: str) -> CommitTable:
        """Return what commits to the table's catalog: Iceberg's core in Spark's driver, or the protocol of
        `catalogs/rest.py`."""
        return self.rest_of(table) or partial(commit_with_retry, self.spark, self.config.catalogs.of(table).name)

    @property
    def results(self) -> ResultReader:
        """The project's own result tables in the live catalog."""
        return ResultReader(self.live_catalog, self.live_stores)

    @cached_property
    def cold_catalog(self) -> CatalogReader:
        """The cold catalog's tables."""
        return CatalogReader(self.config.catalogs.cold)

    def readers_of(self, table: str, *, strict: bool = False) -> TablesOfCatalog:
        """Return every table that may read files of `table`, or have files among them: of all live catalogs. `strict`:
        all catalogs must answer, as for a table that may live on in another."""
        catalogs = self.config.catalogs
        own, prefix = catalogs.of(table).name, self.prefix_of(self._catalog_of(table))

        def around(name: str) -> TablesOfCatalog:
            confirm = partial(self.confirm, prefix) if name == own else (lambda: None)
            return catalogs_of_database(catalogs, self.catalogs.reader(name), self.cold_catalog, confirm)

        marked = {name: found for name, each in self.others.items() if (found := each.readers()) is not None}
        # A table of such a catalog asks its own itself.
        marked.pop(table.partition(":")[0] if ":" in table else "", None)
        known = self.unchecked_operations.known_tables.of_catalog
        all_readers = AllReaders(own, catalogs, around, known, self.clock.now, marked=marked, strict=strict)
        return self._readers.setdefault((own, prefix, *marked, strict), all_readers)

    def confirm(self, table: str = "") -> None:
        """Raise what currently forbids continuing: OtherDeployment, ClocksDisagree, ConfigError (tiers in one
        place)."""
        self.require_apart()
        # The step has recorded it; a question records nothing.
        self.require_deployment(table, record=False)
        self.require_clocks()

    def progress(self, deployment: Deployment | None = None) -> Progress:
        """Return the recorded progress of this operations database, whose `deployment` was just read."""
        return Progress(self.live_stores, deployment or self.deployment, self.unchecked_operations.engine)

    def note_decisions(self) -> None:
        """Record outside of the database what was decided and observed, before the person who decided it is told."""
        try:
            with where_allowed():
                progress = self.progress() if self.unchecked_operations.exists else None
                if progress is not None:
                    progress.send()
                    if (known := progress.known()) != self._noted:
                        progress.reached()
                        self._noted = known
        except LifecycleError as error:
            # A person may decide without a right to write there; the next step records it.
            _log.warning("A backup of the operations database may forget what was decided: %s", error)

    def require_clocks(self, location: str | None = None, *, cold: bool = False) -> None:
        """Raise ClocksDisagree unless Postgres, this host, and the stores of the live warehouse, of `operations.root`,
        of `location` and (`cold`) of the cold warehouse agree on the time. Postgres and the host are checked each time,
        because a clock may jump at any time. A store, which needs a probe file, is checked once a minute."""
        tiers = self.config.catalogs
        # A managed store takes no probe.
        probed = (self.root, None if tiers.live.managed else tiers.live.root, location)
        folders = [Folder(path, self.live_stores) for path in probed if path]
        if cold and tiers.cold.root:
            folders.append(Folder(tiers.cold.root, self.cold_stores))
        # Of folders with the same clock, the first one: if `operations.root` is in the tables' store, no probe is
        # written to tables.
        asked = {folder.clock: folder for folder in reversed(folders)}
        now = elapsed()
        due = {
            clock: folder
            for clock, folder in asked.items()
            if now - self._clocks_seen_at.get(clock, float("-inf")) > _CLOCKS_SEEN_FOR
        }
        require_agreement(self.clock.now, due.values(), self.config.clocks.max_difference)
        self._clocks_seen_at |= dict.fromkeys(due, now)

    def _settings(self, catalog: Catalog) -> StoreSettings:
        return StoreSettings.from_catalog(
            catalog, self.config.defaults.budgets, self.config.operations.uri, self.config.reading
        )

    @property
    def root(self) -> str:
        """The folder of sealed plans, listings and scans."""
        assert self.config.operations.root is not None
        return self.config.operations.root

    def require_apart(self) -> None:
        """Raise ConfigError if two tiers share a folder, by name or on the disk. A link can appear at any time."""
        rules = LocationRules.from_config(self.config.defaults.orphans)
        require_apart(self.config.roots(), rules, self.config.shared_roots)

    def rules(self, table: str) -> LocationRules:
        """Return how paths of `table` become locations."""
        found, *others = [LocationRules.from_config(each.orphans) for each in self.config.policies(table)]
        # A table whose entries tie still protects its files, by what they agree on. Else this raises.
        if any(each != found for each in others):
            self.config.entry(table)
        return found
