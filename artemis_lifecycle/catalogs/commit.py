"""Commits to a table by compare-and-swap, through Iceberg's own core in the Spark driver.

`TableMetadata.Builder` builds the new metadata, so that no present or future field of the format is lost. The table
operations' `commit(base, updated)` compares exactly the base that the guards read. If a commit does not report its
result, the catalog is checked: the metadata file that follows the base is either from this commit or from another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tenacity import Retrying, retry_if_exception, retry_if_exception_type, stop_after_attempt, wait_random_exponential
from tenacity.retry import retry_base

from artemis_lifecycle import escaping
from artemis_lifecycle.catalogs.identifier import Identifier, parse_in
from artemis_lifecycle.contracts.summary import COMMIT_PROPERTY
from artemis_lifecycle.errors import (
    BadInput,
    Busy,
    CommitConflict,
    CommitStateUnknown,
    EnvironmentMissing,
    NoSuchSnapshot,
    NoSuchTable,
    ReferencedSnapshot,
    Refused,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.known_tables import Swaps
from artemis_lifecycle.spark.java_errors import (
    OTHER_TABLE,
    PASSING_STATES,
    ahead_of_clock,
    as_ours,
    brief,
    class_names,
    sql_states,
)
from artemis_lifecycle.spark.jvm import classes_of, java_longs, java_map, java_set, jvm_of
from artemis_lifecycle.spark.session import own_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = escaping.logger(__name__)

_MAIN = "main"

_MISSING = frozenset(
    {"org.apache.iceberg.exceptions.NoSuchTableException", "org.apache.iceberg.exceptions.NoSuchNamespaceException"}
)


@dataclass(frozen=True)
class BaseState:
    """The base that the swap compares: guards read the file `metadata_location`."""

    metadata_location: str
    table_uuid: str


@dataclass(frozen=True)
class TagChange:
    """A tag to set on a snapshot. `max_ref_age_ms` None leaves its age to the table; Iceberg counts it from the
    snapshot's commit."""

    name: str
    snapshot_id: int
    max_ref_age_ms: int | None = None


@dataclass(frozen=True)
class BranchChange:
    """A branch to set on a snapshot; an existing branch keeps its retention settings."""

    name: str
    snapshot_id: int


@dataclass(frozen=True)
class Change:
    """The changes of one commit. Refs are removed before snapshots; tags and branches are set last.

    `add_snapshots` maps ids to the JSON of new snapshots, in the format of metadata files. Each must be on a branch
    that the change sets. `add_schemas` and `add_specs` have JSON texts with the ids to use; `raise_to` has the lowest
    values of fields of the metadata file. `notes` are properties that any later commit may replace, so that their loss
    does not mean that this change was not committed. Sort orders leave only together with something else. They, and
    what is added or raised, need a catalog that takes whole metadata: REST's protocol has no such update.
    """

    expire_snapshot_ids: Sequence[int] = ()
    add_snapshots: Mapping[int, str] = field(default_factory=dict)
    remove_refs: Sequence[str] = ()
    set_tags: Sequence[TagChange] = ()
    set_branches: Sequence[BranchChange] = ()
    set_properties: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    remove_properties: Sequence[str] = ()
    remove_schema_ids: Sequence[int] = ()
    remove_spec_ids: Sequence[int] = ()
    remove_order_ids: Sequence[int] = ()
    add_schemas: Sequence[str] = ()
    add_specs: Sequence[str] = ()
    raise_to: Mapping[str, int] = field(default_factory=dict)

    def noting(self, notes: Mapping[str, str]) -> Change:
        """Return the change with further notes."""
        return replace(self, notes={**self.notes, **notes})

    def with_lineage(self, lineage: Mapping[str, str], base_location: str) -> Change:
        """Return the change with the lineage of a commit that adds no snapshot."""
        if not lineage or self.add_snapshots:
            return self
        return self.noting({COMMIT_PROPERTY: json.dumps({**lineage, "base": base_location}, ensure_ascii=False)})


def require_possible(
    change: Change, refs: Mapping[str, tuple[int, bool]], has_snapshot: Callable[[int], bool], table: str, path: str
) -> None:
    """Raise ReferencedSnapshot, Refused, NoSuchSnapshot or BadInput for a change that its base does not allow: the
    metadata file `path`, whose `refs` have a snapshot each, and whether they are branches."""
    doomed = set(change.expire_snapshot_ids)
    held = sorted(name for name, (head, _) in refs.items() if head in doomed and name not in change.remove_refs)
    if held:
        raise ReferencedSnapshot(
            f"Refs that stay point at snapshots that would go: {', '.join(held[:5])}",
            table=table,
            path=path,
            untouched="the table",
            hint="plan again, or remove the refs first",
        )
    if _MAIN in change.remove_refs:
        raise Refused(
            "The main branch cannot be removed", table=table, path=path, untouched="the table", hint="plan again"
        )
    targets: list[TagChange | BranchChange] = [*change.set_tags, *change.set_branches]
    for target in targets:
        known = target.snapshot_id in change.add_snapshots or has_snapshot(target.snapshot_id)
        if not known or target.snapshot_id in doomed:
            raise NoSuchSnapshot(
                f"The table has no snapshot {target.snapshot_id} for {target.name}",
                table=table,
                path=path,
                untouched="the table",
                hint="use one from its history",
            )
        is_branch = isinstance(target, BranchChange)
        if refs.get(target.name, (0, is_branch))[1] is not is_branch:
            raise BadInput(
                f"{target.name} is a {'tag' if is_branch else 'branch'} already",
                table=table,
                untouched="the table",
                hint="use another name",
            )


@dataclass(frozen=True)
class CommitResult:
    """`metadata_location` is the file that the commit wrote, or the base's if nothing `changed`. `attempts` counts the
    attempted swaps."""

    metadata_location: str
    base_metadata_location: str
    attempts: int
    changed: bool


UNRECORDED = Swaps()


def commit_with_retry(
    spark: SparkSession,
    catalog_name: str,
    table: str,
    change: Callable[[BaseState], Change | None],
    *,
    attempts: int = 10,
    longest_wait: float = 5.0,
    swaps: Swaps = UNRECORDED,
    lineage: Mapping[str, str] = MappingProxyType({}),
) -> CommitResult:
    """Commit the result of `change`, and retry while other writers win, with full jitter up to `longest_wait` seconds.

    `change` is called for every attempt with the base that this attempt's swap compares. It reads that metadata file,
    checks its guards, and returns the change, or None if there is nothing to do. An exception from it ends the commit
    with the table untouched. `swaps` records each swap.
    A commit that adds no snapshot records `lineage` (keys and `operation`) in the table property COMMIT_PROPERTY.

    Raises ReferencedSnapshot if a remaining ref points to a removed snapshot (Iceberg's core would drop the ref);
    NoSuchTable; CommitConflict if every attempt lost; CommitStateUnknown if the catalog did not report the result;
    StorageError if metadata cannot be written, or the catalog's database refuses; UnreadableMetadata.
    """
    committer = _Committer(spark, catalog_name, table, swaps.begin, lineage)
    return until_accepted(lambda: committer.attempt(change), committer.gave_up, swaps, attempts, longest_wait)


def until_accepted(
    attempt: Callable[[], CommitResult],
    gave_up: Callable[[LostAttempt], Exception],
    swaps: Swaps,
    attempts: int,
    longest_wait: float,
) -> CommitResult:
    """Call `attempt` until it is not lost, with full jitter up to `longest_wait` seconds, and record what it made.
    `gave_up` returns the error if every attempt was."""
    retrying = Retrying(
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=0.05, max=longest_wait),
        retry=retry_if_exception_type(LostAttempt),
        reraise=True,
    )
    try:
        done: CommitResult = retrying(attempt)
    except LostAttempt as lost:
        raise gave_up(lost) from lost.__cause__
    if done.changed:
        swaps.made(done.metadata_location)
    return done


def looking_up(retry: retry_base) -> Retrying:
    """Return what asks a catalog for the table after a commit whose result is unknown."""
    wait = wait_random_exponential(multiplier=0.2, max=10)
    return Retrying(stop=stop_after_attempt(6), wait=wait, retry=retry, reraise=True)


class LostAttempt(Exception):  # noqa: N818
    """As far as known, this attempt changed nothing: another was faster, or the catalog's connection broke."""


@dataclass(frozen=True)
class _Try:
    """A swap that was started. `updated` is the metadata in the JVM that it would have made current."""

    base_location: str
    updated: Any
    change: Change


@dataclass(frozen=True)
class _Made:
    """A metadata file that one of this commit's swaps wrote, and its base."""

    made: str
    base: str


class _Committer:
    """One commit of one table, over its attempts."""

    def __init__(
        self,
        spark: SparkSession,
        catalog_name: str,
        table: str,
        before_swap: Callable[[str, int], None],
        lineage: Mapping[str, str],
    ) -> None:
        identifier = parse_in(table, catalog_name)
        self._table = table
        self._catalog_name = catalog_name
        self._before_swap = before_swap
        self._lineage = lineage
        self._jvm = jvm_of(spark)
        self._tries: list[_Try] = []
        self._tried = 0
        with self._reading():
            # Iceberg uses the thread's active session, which a thread created by Python may lack.
            self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
            catalog = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
                spark._jsparkSession, own_catalog(spark, catalog_name)
            )
            # A user's session may cache tables, but their operations still refresh.
            self._operations = catalog.loadTable(_java_identifier(spark, identifier)).operations()

    def attempt(self, change: Callable[[BaseState], Change | None]) -> CommitResult:
        """Run one round: refresh, guard, build, swap. Raises LostAttempt if another round may succeed."""
        with self._reading():
            base = self._operations.refresh()
        location = str(base.metadataFileLocation())
        # An earlier round whose swap seemed lost with its connection may have succeeded.
        late = self._made_by_us(base)
        if late is not None:
            return CommitResult(late.made, late.base, self._tried, changed=True)
        wanted = change(BaseState(location, str(base.uuid())))
        updated = None if wanted is None else self._build(base, location, wanted)
        if wanted is None or updated is None:
            return CommitResult(location, location, self._tried, changed=False)
        if self._lineage:
            updated = self._updated(base, wanted.with_lineage(self._lineage, location))
        self._before_swap(location, int(updated.lastUpdatedMillis()))
        this = _Try(location, updated, wanted)
        self._tries.append(this)
        self._tried += 1
        try:
            with around("catalog.commit"):
                _swap(self._operations, base, updated)
        except Exception as error:
            return self._settle(this, error)
        return CommitResult(self._location_of_success(this), location, self._tried, changed=True)

    def gave_up(self, lost: LostAttempt) -> CommitConflict | CommitStateUnknown:
        """Return the error for a commit that lost every attempt."""
        why = brief(lost.__cause__) if lost.__cause__ is not None else "the last attempt was lost"
        if self._tries:
            # As far as visible, its base is still current, but a swap may be under way in the database.
            return CommitStateUnknown(
                f"The catalog accepted none of {self._tried} attempts, and the last may still come through: {why}",
                table=self._table,
                path=self._tries[-1].base_location,
                untouched="all data files",
                hint="check that the catalog answers, then run the step again: it uses the table's current state",
            )
        return CommitConflict(
            f"Other commits were faster in each of {self._tried} attempts: {why}",
            table=self._table,
            untouched="the table",
            hint="run the step again when the table is less busy",
        )

    def _build(self, base: Any, location: str, change: Change) -> Any | None:
        """Return the new metadata; None if it equals the base."""
        require_possible(change, _refs(base), lambda number: base.snapshot(number) is not None, self._table, location)
        whole = change.expire_snapshot_ids or change.remove_refs or change.add_schemas or change.add_specs
        if (whole or change.raise_to) and not self._compares_whole_metadata():
            raise Refused(
                f"Catalog {self._catalog_name} does not compare the whole metadata at a commit: a ref made meanwhile "
                "would be dropped unseen",
                table=self._table,
                untouched="the table",
                hint="give the catalog type: rest in lifecycle.yaml: then each commit is proven afterwards",
            )
        try:
            updated = self._updated(base, change)
        except Exception as error:
            if not class_names(error):
                raise
            raise ahead_of_clock(error, self._table, base.lastUpdatedMillis) or Refused(
                f"Iceberg's core refuses the change: {brief(error)}",
                table=self._table,
                path=location,
                untouched="the table",
                hint="check the table's metadata file: it contradicts itself, or the change does",
            ) from error
        # The builder returns what it started from if nothing changed.
        return updated if updated.changes() else None

    def _updated(self, base: Any, change: Change) -> Any:
        start = self._edited(base, change)
        builder = self._jvm.org.apache.iceberg.TableMetadata.buildFrom(start)
        for name in change.remove_refs:
            builder.removeRef(name)
        if change.expire_snapshot_ids:
            builder.removeSnapshots(java_longs(self._jvm, set(change.expire_snapshot_ids)))
        for snapshot in change.add_snapshots.values():
            builder.addSnapshot(self._jvm.org.apache.iceberg.SnapshotParser.fromJson(snapshot))
        snapshot_ref = self._jvm.org.apache.iceberg.SnapshotRef
        targets: list[TagChange | BranchChange] = [*change.set_tags, *change.set_branches]
        for target in targets:
            if isinstance(target, BranchChange):
                old = base.refs().get(target.name)
                made = (
                    snapshot_ref.branchBuilder(target.snapshot_id)
                    if old is None
                    else snapshot_ref.builderFrom(old, target.snapshot_id)
                )
            else:
                made = snapshot_ref.tagBuilder(target.snapshot_id)
                if target.max_ref_age_ms is not None:
                    made.maxRefAgeMs(self._jvm.java.lang.Long.valueOf(target.max_ref_age_ms))
            builder.setRef(target.name, made.build())
        properties = {**change.set_properties, **change.notes}
        if properties:
            builder.setProperties(java_map(self._jvm, properties))
        if change.remove_properties:
            builder.removeProperties(java_set(self._jvm, change.remove_properties))
        if change.remove_schema_ids:
            builder.removeSchemas(_java_integers(self._jvm, change.remove_schema_ids))
        if change.remove_spec_ids:
            builder.removeSpecs(_java_integers(self._jvm, change.remove_spec_ids))
        return builder.build()

    def _edited(self, base: Any, change: Change) -> Any:
        """Return `base` as if its file had what the builder cannot set: it removes no sort orders, raises no numbers,
        and chooses the ids of schemas and specs itself."""
        if not (change.remove_order_ids or change.add_schemas or change.add_specs or change.raise_to):
            return base
        parser = self._jvm.org.apache.iceberg.TableMetadataParser
        parsed = json.loads(str(parser.toJson(base)))
        parsed["sort-orders"] = [
            each for each in parsed["sort-orders"] if each["order-id"] not in change.remove_order_ids
        ]
        parsed["schemas"] += map(json.loads, change.add_schemas)
        parsed["partition-specs"] += map(json.loads, change.add_specs)
        for key, lowest in change.raise_to.items():
            parsed[key] = max(parsed.get(key, 0), lowest)
        return parser.fromJson(base.metadataFileLocation(), json.dumps(parsed))

    def _compares_whole_metadata(self) -> bool:
        """Return False for a REST catalog: it checks only requirements derived from the changes, and removing snapshots
        has none."""
        return "org.apache.iceberg.rest.RESTTableOperations" not in classes_of(self._operations)

    def _settle(self, this: _Try, error: Exception) -> CommitResult:
        """Determine the result of a swap that raised: return the result if it succeeded; raise if it did not, or if
        that is unknown."""
        kinds = class_names(error)
        if not kinds:
            # A test's crash point, or an interrupt: not from the catalog.
            raise error
        current = self._look_up(this, error)
        ours = self._made_by_us(current)
        if ours is not None:
            _LOG.warning("The commit to %s succeeded, although it raised %s", self._table, kinds[0])
            return CommitResult(ours.made, ours.base, self._tried, changed=True)
        said_failed = "org.apache.iceberg.exceptions.CommitFailedException" in kinds
        where = str(current.metadataFileLocation())
        if where != this.base_location and not self._in_log(current, this.base_location):
            # The table's log no longer reaches back to the base, so this commit's file may have been in between.
            if not _undone(current, this.change):
                raise CommitStateUnknown(
                    f"The outcome of the commit is unknown: the metadata log of {where} is cut before it "
                    f"({brief(error)})",
                    table=self._table,
                    path=this.base_location,
                    untouched="all data files",
                    hint="run the step again: it starts from the table's current state",
                ) from error
            self._tries.remove(this)
        elif where != this.base_location:
            # Another commit followed the base, so this one never can.
            self._tries.remove(this)
            if said_failed:
                self._drop_lost_file(this, current)
        elif said_failed:
            self._tries.remove(this)
        if said_failed or _may_pass(error, kinds):
            raise LostAttempt from error
        known = ahead_of_clock(error, self._table, current.lastUpdatedMillis) or as_ours(error, self._table)
        if isinstance(known, Refused) or type(known) is Busy:
            raise known from error
        raise StorageError(
            f"The commit was not accepted: {brief(error)}",
            table=self._table,
            path=this.base_location,
            untouched="the table",
            hint="fix the cause in the message, and run the step again",
        ) from error

    def _look_up(self, this: _Try, error: Exception) -> Any:
        """Return the catalog's current metadata. Raises CommitStateUnknown."""
        try:
            return looking_up(retry_if_exception(_may_come_back))(self._operations.refresh)
        except Exception as second:
            kinds = class_names(second)
            if not kinds:
                raise
            if not _MISSING.isdisjoint(kinds):
                raise NoSuchTable.of(self._catalog_name, self._table) from second
            if OTHER_TABLE in brief(second):
                raise self._another_table() from second
            raise CommitStateUnknown(
                f"The catalog did not report whether the commit happened ({brief(error)}), and a look-up failed "
                f"({brief(second)})",
                table=self._table,
                path=this.base_location,
                untouched="all data files",
                hint="check that the catalog answers, then run the step again: it uses the table's current state",
            ) from error

    def _location_of_success(self, this: _Try) -> str:
        try:
            current = self._operations.refresh()
        except Exception as error:
            current = self._look_up(this, error)
        ours = self._made_by_us(current)
        # Already dropped from the log: the newest metadata is the nearest one.
        return str(current.metadataFileLocation()) if ours is None else ours.made

    def _in_log(self, metadata: Any, location: str) -> bool:
        return any(str(entry.file()) == location for entry in metadata.previousFiles())

    def _made_by_us(self, current: Any) -> _Made | None:
        """Return the metadata file, among `current` and its log, that one of this commit's swaps wrote."""
        if not self._tries:
            return None
        where = str(current.metadataFileLocation())
        log = [str(entry.file()) for entry in current.previousFiles()]
        chain = [*log, where]
        for this in self._tries:
            if this.base_location not in log:
                continue
            follower = chain[log.index(this.base_location) + 1]
            metadata = current
            if follower != where:
                try:
                    metadata = self._jvm.org.apache.iceberg.TableMetadataParser.read(self._operations.io(), follower)
                except Exception as error:
                    if not class_names(error):
                        raise
                    # Deleted after a later commit, because of a table property. Its changes are still visible.
                    if _undone(current, this.change):
                        continue
                    raise CommitStateUnknown(
                        f"It is unknown which commit followed {this.base_location}: {brief(error)}",
                        table=self._table,
                        path=follower,
                        untouched="all data files",
                        hint="run the step again: it starts from the table's current state",
                    ) from error
            if _same_metadata(metadata, this.updated):
                return _Made(follower, this.base_location)
        return None

    def _drop_lost_file(self, this: _Try, current: Any) -> None:
        """Delete the metadata file of a swap that lost to another commit: nothing references it, and nothing ever can.

        Iceberg does not reveal its name, so it is found by its content. If it is not found, the orphan scan will find
        it.
        """
        try:
            keep = {str(current.metadataFileLocation()), this.base_location}
            keep |= {str(entry.file()) for entry in current.previousFiles()}
            name = this.base_location.rsplit("/", 1)[-1].partition("-")[0]
            if not name.isdigit():
                return
            prefix = str(self._operations.metadataFileLocation(f"{int(name) + 1:05d}-"))
            for path in self._list(prefix):
                if path in keep or not path.endswith(".metadata.json"):
                    continue
                found = self._jvm.org.apache.iceberg.TableMetadataParser.read(self._operations.io(), path)
                if _same_metadata(found, this.updated):
                    with around("catalog.drop_lost_metadata"):
                        self._operations.io().deleteFile(path)
        except Exception as error:
            if not class_names(error):
                raise
            _LOG.info("The metadata file of a lost commit to %s was not deleted: %s", self._table, brief(error))

    def _list(self, prefix: str) -> list[str]:
        io = self._operations.io()
        if str(io.getClass().getSimpleName()) != "HadoopFileIO":
            return [str(info.location()) for info in io.listPrefix(prefix).iterator()]
        # Hadoop lists folders, not prefixes.
        path = self._jvm.org.apache.hadoop.fs.Path(prefix)
        pattern = self._jvm.org.apache.hadoop.fs.Path(_escaped(str(path.getParent())), f"{path.getName()}*")
        found = path.getFileSystem(io.getConf()).globStatus(pattern)
        return [str(status.getPath()) for status in found or ()]

    def _another_table(self) -> NoSuchTable:
        return NoSuchTable(
            "The name now belongs to another table", table=self._table, untouched="both tables", hint="plan again"
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kinds = class_names(error)
            if not kinds:
                raise
            if not _MISSING.isdisjoint(kinds):
                raise NoSuchTable.of(self._catalog_name, self._table) from error
            text = brief(error)
            if OTHER_TABLE in text:
                raise self._another_table() from error
            if "org.apache.iceberg.exceptions.NotFoundException" in kinds:
                raise UnreadableMetadata(
                    f"The table's metadata cannot be read: {text}",
                    table=self._table,
                    hint="see that the warehouse is there and readable",
                ) from error
            if "Cannot find catalog plugin class" in text or "CatalogNotFoundException" in str(kinds):
                raise EnvironmentMissing(
                    f"The Spark session has no Iceberg catalog named {self._catalog_name}: {text}",
                    table=self._table,
                    hint="open the session with this project's settings, or do not pass a session",
                ) from error
            raise StorageError(
                f"The catalog or the table's metadata cannot be read: {text}",
                table=self._table,
                hint="check that the catalog and the warehouse answer, and run the step again",
            ) from error


def _refs(base: Any) -> dict[str, tuple[int, bool]]:
    """Return the snapshot of each ref, and whether it is a branch."""
    return {str(name): (int(ref.snapshotId()), bool(ref.isBranch())) for name, ref in base.refs().items()}


def _swap(operations: Any, base: Any, updated: Any) -> None:
    """Run Iceberg's own compare-and-swap."""
    operations.commit(base, updated)


def _may_pass(error: BaseException, kinds: Sequence[str]) -> bool:
    """Return True if another attempt may succeed: the connection broke, or the database was busy."""
    if "org.apache.iceberg.exceptions.CommitStateUnknownException" in kinds:
        return True
    state = next(iter(sql_states(error)), None)
    # After a transient error, the statement may have run, or may run on another attempt; any other error is definite.
    if state is not None:
        return state.startswith(PASSING_STATES)
    return "org.apache.iceberg.exceptions.ServiceFailureException" in kinds


def _may_come_back(error: BaseException) -> bool:
    """Return True if a catalog that did not answer a look-up may answer the next one."""
    kinds = class_names(error)
    return bool(kinds) and _MISSING.isdisjoint(kinds) and OTHER_TABLE not in brief(error)


def _same_metadata(found: Any, updated: Any) -> bool:
    """Return True if a metadata file has the content of `updated`: same base, same millisecond."""
    return bool(
        found.lastUpdatedMillis() == updated.lastUpdatedMillis()
        and str(found.uuid()) == str(updated.uuid())
        and found.lastSequenceNumber() == updated.lastSequenceNumber()
        and found.previousFiles().equals(updated.previousFiles())
        and found.refs().equals(updated.refs())
        and found.properties().equals(updated.properties())
        and found.snapshotLog().equals(updated.snapshotLog())
        and found.snapshots().equals(updated.snapshots())
        and found.statisticsFiles().equals(updated.statisticsFiles())
        and found.schemasById().keySet().equals(updated.schemasById().keySet())
        and found.specsById().keySet().equals(updated.specsById().keySet())
        and found.sortOrdersById().keySet().equals(updated.sortOrdersById().keySet())
    )


def _java_identifier(spark: SparkSession, identifier: Identifier) -> Any:
    """Return an `org.apache.iceberg.catalog.TableIdentifier`; its own `parse` would split the name at its dots."""
    gateway: Any = spark.sparkContext._gateway
    parts = gateway.new_array(gateway.jvm.java.lang.String, len(identifier.parts))
    for index, part in enumerate(identifier.parts):
        parts[index] = part
    return gateway.jvm.org.apache.iceberg.catalog.TableIdentifier.of(parts)


def _undone(current: Any, change: Change) -> bool:
    """Return True if an effect of `change` is missing: then no ancestor of `current` is its commit."""
    refs = current.refs()
    targets: list[TagChange | BranchChange] = [*change.set_tags, *change.set_branches]
    return (
        any(current.snapshot(snapshot) is not None for snapshot in change.expire_snapshot_ids)
        or any(current.snapshot(snapshot) is None for snapshot in change.add_snapshots)
        or any(refs.get(name) is not None for name in change.remove_refs)
        or any(refs.get(ref.name) is None or refs.get(ref.name).snapshotId() != ref.snapshot_id for ref in targets)
        or any(current.properties().get(key) != value for key, value in change.set_properties.items())
        or any(current.properties().get(key) is not None for key in change.remove_properties)
        or any(current.schemasById().get(each) is not None for each in change.remove_schema_ids)
        or any(current.specsById().get(each) is not None for each in change.remove_spec_ids)
        or any(current.sortOrdersById().get(each) is not None for each in change.remove_order_ids)
    )


def _java_integers(jvm: Any, numbers: Sequence[int]) -> Any:
    found = jvm.java.util.ArrayList()
    for number in numbers:
        found.add(jvm.java.lang.Integer.valueOf(number))
    return found


def _escaped(path: str) -> str:
    """Return a path in which Hadoop's glob finds no pattern."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
