"""The handoff: expired snapshots copied, verified, and published as one commit of the cold table. Resumable by batch.

Order: what is needed is sealed; contents, then manifests, then manifest lists are copied, each batch recorded when all
of it is verified; then one metadata file is written, parsed by Iceberg's own parser, and published by compare-and-swap.
Until then the cold table is as it was, and whatever was copied counts for the next try.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from artemis_lifecycle.catalogs.guard import ensure_guard, publish_guarded
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.live import CatalogReader
from artemis_lifecycle.catalogs.settings import require_uri
from artemis_lifecycle.cold_tier import cold_metadata
from artemis_lifecycle.cold_tier.cold_split import Json, close, closed_tables, covering, split
from artemis_lifecycle.cold_tier.evolution import archive_ids, with_current, with_lists
from artemis_lifecycle.cold_tier.ledger import COPIED, PRESENT, REWRITTEN, VERIFIED, CopiedFile, handoff_ledger
from artemis_lifecycle.cold_tier.name_mapping import Joint, fields_read, joint, mapping_of
from artemis_lifecycle.cold_tier.paths import ColdIdentity, PathMapping, place, settle
from artemis_lifecycle.cold_tier.tags import Meaning, continued, former_states, history_of, last, refs_of
from artemis_lifecycle.cold_tier.transfer import Consent, Transfer, TransferProgress, TransferSettings
from artemis_lifecycle.cold_tier.work import Batch, Demand, Problem, Work
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import (
    CommitConflict,
    ConfigError,
    HandoffFailed,
    NoSuchTable,
    StorageError,
    UnreadableMetadata,
)
from artemis_lifecycle.metadata import manifest_lists
from artemis_lifecycle.metadata.table_metadata import metadata_json, parse_table_metadata, refuse_encrypted
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle.operations.journal import HandoffBatches
from artemis_lifecycle.storage.instants import of_milliseconds
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PUBLISH_ATTEMPTS = 10

NOTHING_ARCHIVED = ""
"""In the place of a metadata location: the handoff is done, and all its snapshots were lost or overtaken."""


@dataclass(frozen=True)
class HandoffInput:
    """What is to go to the cold tier: snapshots of one metadata file of one table. `plan_id` keys the handoff's
    work; `thinned` are snapshots of the plan that the policy does not archive. `read_base` reads the base where it is
    not to be read at its own place."""

    plan_id: str
    table: str
    table_uuid: str
    base_metadata_location: str
    snapshot_ids: tuple[int, ...]
    thinned: tuple[int, ...] = ()
    read_base: Callable[[], bytes] | None = None


@dataclass(frozen=True)
class Handoff:
    """What a handoff did. Sizes in bytes; `verified_files` are those whose copy was read back and compared.

    `archived` are the plan's snapshots that the cold table now has; `lost` those it cannot have, because a file of
    theirs is gone (`lost_files`); `overtaken` those of which that is no wonder: somebody else had expired them before.
    `thinned` are those that the policy does not archive, because it archives a neighbour.
    `repaired_files` are copies of earlier handoffs that were lost in cold, made again from live.
    `cold_metadata_location` is NOTHING_ARCHIVED when none was left to publish. `reused_files` were copied in earlier
    handoffs or found in place; nothing was sent for them.
    """

    plan_id: str
    table: str
    cold_table: str | None = None
    cold_metadata_location: str | None = None
    archived: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    overtaken: tuple[int, ...] = ()
    thinned: tuple[int, ...] = ()
    lost_files: tuple[Problem, ...] = ()
    copied_files: int = 0
    copied_bytes: int = 0
    rewritten_files: int = 0
    reused_files: int = 0
    verified_files: int = 0
    repaired_files: int = 0
    attempts: int = 0
    _files: Callable[[], DataFrame] | None = field(default=None, repr=False, compare=False)

    def files(self) -> DataFrame | None:
        """DataFrame[path, destination, kind, size_in_bytes, checksum, outcome] of this plan's copies; None if it had
        none."""
        return None if self._files is None else self._files()


@dataclass(frozen=True)
class HandoffContext:
    """What a handoff works with. `check` raises when the worker's lease is lost: it is called before each batch and
    before the cold catalog changes. `record` runs in the transaction that publishes, with the new metadata location,
    when it must stand or fall with the commit; its connection is to the cold catalog's database."""

    spark: SparkSession
    live_stores: Stores
    cold_stores: Stores
    config: LifecycleConfig
    batches: HandoffBatches | None = None
    settings: TransferSettings = field(default_factory=TransferSettings)
    check: Callable[[], None] = lambda: None
    on_progress: Callable[[TransferProgress], None] = lambda progress: None
    record: Callable[[Connection, str], None] | None = None

    @property
    def root(self) -> str:
        root = self.config.operations.root
        if root is None:
            raise ConfigError("operations.root has no address", hint="set it in lifecycle.yaml")
        return root


def hand_off(
    context: HandoffContext, plan: HandoffInput, *, allow_lost: bool = False, overtaken: Collection[int] = ()
) -> Handoff:
    """Copy all that the plan's snapshots read to the cold tier, verify it, and publish them in the cold catalog.

    Running it again finishes what is left, and is a no-op when all is done. A table whose policy has no cold tier, and
    a plan without snapshots, are no-ops. `allow_lost`: a person approved that snapshots whose files are gone stay out,
    and that files of another size than recorded are taken as they are. `overtaken` are snapshots of the plan that the
    live table has no more, by somebody else's doing: they need no approval to stay out when their files are gone.

    Raises HandoffFailed, the cold table unchanged, when a file is gone and that is not approved, or a file cannot be
    copied, verified or rewritten; UnreadableMetadata when the base metadata file is broken; EncryptedTable;
    CommitConflict.
    """
    whole = (*plan.snapshot_ids, *plan.thinned)
    if not whole or not context.config.policy(plan.table).cold_tier.enabled:
        return Handoff(plan.plan_id, plan.table)
    if not plan.snapshot_ids:
        none = Handoff(plan.plan_id, plan.table, cold_metadata_location=NOTHING_ARCHIVED, thinned=plan.thinned)
        return _recorded(context, none)
    base = context.live_stores.read(plan.base_metadata_location) if plan.read_base is None else plan.read_base()
    live = with_lists(metadata_json(base, plan.base_metadata_location, context.live_stores.limits))
    demand, placing = _demand(context, plan, base, live)
    ledger = handoff_ledger(context.live_stores, context.root, plan.table_uuid)
    consent = Consent(allow_lost, frozenset(overtaken))
    work, losses = Transfer(
        spark=context.spark,
        source=context.live_stores,
        target=context.cold_stores,
        records=context.live_stores,
        folder=f"{context.root}/handoffs/{plan.plan_id}",
        work_id=plan.plan_id,
        demand=demand,
        ledger=ledger,
        watcher=_Watcher(plan, context.batches),
        consent=consent,
        settings=context.settings,
        check=context.check,
        on_progress=context.on_progress,
    ).run()
    archived = tuple(snapshot for snapshot in work.snapshot_ids if snapshot not in losses.snapshot_ids)
    what = _Publication(plan, placing, demand.metadata, live, frozenset(archived))
    location, attempts = _publish(context, what)
    # What an earlier run sealed counts: a change of policy since then is the next plan's.
    asked = {*work.snapshot_ids, *(snapshot for problem in work.problems for snapshot in problem.snapshot_ids)}
    out = asked.difference(archived)
    settled = asked.union(archived)
    outcome = ledger.outcome(plan.plan_id)
    copied, rewritten, present = (outcome.files.get(action, 0) for action in (COPIED, REWRITTEN, PRESENT))
    done = Handoff(
        plan_id=plan.plan_id,
        table=plan.table,
        cold_table=placing.identity.cold_table,
        cold_metadata_location=location or NOTHING_ARCHIVED,
        archived=archived,
        lost=tuple(each for each in whole if each in out and each not in consent.overtaken),
        overtaken=tuple(each for each in whole if each in out and each in consent.overtaken),
        thinned=tuple(each for each in whole if each not in settled),
        lost_files=work.problems + losses.problems,
        copied_files=copied + rewritten,
        copied_bytes=sum(outcome.size_in_bytes.get(action, 0) for action in (COPIED, REWRITTEN)),
        rewritten_files=rewritten,
        reused_files=present,
        verified_files=copied + rewritten + present,
        attempts=attempts,
        _files=lambda: _described(ledger.files(context.spark, plan.plan_id)),
    )
    return _recorded(context, done)


@dataclass(frozen=True)
class HandoffOutcome:
    """What became of each snapshot of a plan that was handed off."""

    archived: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    overtaken: tuple[int, ...] = ()
    thinned: tuple[int, ...] = ()


def _recorded(context: HandoffContext, done: Handoff) -> Handoff:
    outcome = HandoffOutcome(done.archived, done.lost, done.overtaken, done.thinned)
    data = json.dumps(asdict(outcome)).encode()
    with around("handoff.outcome"):
        context.live_stores.write(_outcome_path(context.root, done.plan_id), data, overwrite=True)
    return done


def read_outcome(stores: Stores, root: str, plan_id: str) -> HandoffOutcome | None:
    """What a finished handoff recorded; None when it is not finished. Raises StorageError if damaged."""
    path = _outcome_path(root, plan_id)
    if stores.head(path) is None:
        return None
    try:
        return HandoffOutcome(**{key: tuple(ids) for key, ids in json.loads(stores.read(path)).items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise StorageError(
            f"The record of a handoff is damaged: {error}",
            path=path,
            untouched="both tiers",
            hint=f"run the handoff again, which writes it anew: artemis hand-off {plan_id}",
        ) from error


def _outcome_path(root: str, plan_id: str) -> str:
    return f"{root}/handoffs/{plan_id}/outcome.json"


def cold_identity(context: HandoffContext, table: str, table_uuid: str, live_location: str) -> ColdIdentity:
    """The table's place in the cold tier, settled now if it has none."""
    catalogs = context.config.catalogs
    if catalogs.live.warehouse is None or catalogs.cold.warehouse is None:
        raise ConfigError(
            "A catalog has no warehouse",
            hint="set catalogs.live.warehouse and catalogs.cold.warehouse",
        )
    live_warehouse, cold_warehouse = catalogs.live.warehouse, catalogs.cold.warehouse
    rules = LocationRules.from_config(context.config.policy(table).orphans)

    def choose(cold_locations: list[str]) -> ColdIdentity:
        with _cold_catalog(context.config) as catalog:
            taken = _other_uuid(context, catalog, table, table_uuid)
        return place(
            table=table,
            table_uuid=table_uuid,
            live_location=live_location,
            live_warehouse=live_warehouse,
            cold_warehouse=cold_warehouse,
            rules=rules,
            name_is_taken=taken,
            cold_locations=cold_locations,
        )

    return settle(context.live_stores, context.root, table_uuid, choose)


def _demand(context: HandoffContext, plan: HandoffInput, base: bytes, live: Json) -> tuple[Demand, PathMapping]:
    metadata = parse_table_metadata(base, plan.base_metadata_location, context.live_stores.limits)
    if metadata.table_uuid != plan.table_uuid:
        raise NoSuchTable(
            f"The plan's base is of table-uuid {metadata.table_uuid}, not {plan.table_uuid}",
            table=plan.table,
            path=plan.base_metadata_location,
            untouched="both tiers",
            hint=f"plan again: artemis plan {quote(plan.table)}",
        )
    refuse_encrypted(metadata, plan.table)
    absent = [snapshot for snapshot in plan.snapshot_ids if metadata.snapshot(snapshot) is None]
    if absent:
        raise UnreadableMetadata(
            f"The plan's base has no snapshot {absent[0]}",
            table=plan.table,
            path=plan.base_metadata_location,
            untouched="both tiers",
            hint=f"plan again: artemis plan {quote(plan.table)}",
        )
    identity = cold_identity(context, plan.table, plan.table_uuid, metadata.location)
    with _cold_catalog(context.config) as catalog:
        cold = _newest(context, catalog, plan, identity).metadata
    # Manifests name specs by the archive's ids from their first copy on: what they say is settled before.
    placing = PathMapping(identity, archive_ids(live, cold))
    return Demand(metadata, plan.snapshot_ids, placing), placing


# --- copying --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Watcher:
    """A handoff's batches in Postgres, for people and the UI (the ledger is what a resume goes by), and its errors."""

    plan: HandoffInput
    batches: HandoffBatches | None

    def begin(self, work: Work, recorded: Collection[int]) -> None:
        if self.batches is None:
            return
        plan_id = self.plan.plan_id
        self.batches.begin(plan_id, [(batch.files, batch.size_in_bytes) for batch in work.batches])
        unfinished = {row.batch for row in self.batches.unfinished(plan_id)}
        for index, batch in enumerate(work.batches):
            if batch.number in recorded and index in unfinished:
                # Killed between the two records.
                self.batches.finish_batch(plan_id, index, batch.files, 0)

    def finish(self, work: Work, batch: Batch, files: Sequence[CopiedFile], error: str | None) -> None:
        if self.batches is None:
            return
        present = sum(file.action == PRESENT for file in files)
        verified = sum(file.action in VERIFIED for file in files)
        self.batches.finish_batch(self.plan.plan_id, work.batches.index(batch), verified - present, present, error)

    def failed(self, what: str, path: str) -> HandoffFailed:
        return HandoffFailed(
            what,
            table=self.plan.table,
            path=path,
            untouched="the cold table, the live table and all its files; the plan stays open and holds them",
            hint="mend what it says and run the handoff again: finished batches are kept",
        )

    def lost(self, problems: Sequence[Problem]) -> HandoffFailed:
        snapshots = sorted({snapshot for problem in problems for snapshot in problem.snapshot_ids})
        return HandoffFailed(
            f"{len(problems)} files that the handoff needs are gone or damaged ({problems[0].reason}); without them "
            f"{len(snapshots)} snapshots cannot be archived: {', '.join(map(str, snapshots[:10]))}",
            table=self.plan.table,
            path=problems[0].path,
            untouched="the cold table, the live table and all its files; the plan stays open and holds them",
            hint=f"restore the file and run the handoff again; or approve the loss: "
            f"artemis approve {self.plan.plan_id} --lost",
        )


def _described(files: DataFrame) -> DataFrame:
    return files.selectExpr("source AS path", "destination", "kind", "size_in_bytes", "checksum", "action AS outcome")


# --- publishing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Current:
    """The cold table as its catalog has it; both None before its first handoff."""

    location: str | None = None
    metadata: Json | None = None


@dataclass(frozen=True)
class _Publication:
    """What is to be published: `archived` snapshots of the plan's base, which is `base`, and `live` as JSON."""

    plan: HandoffInput
    placing: PathMapping
    base: TableMetadata
    live: Json
    archived: frozenset[int]


@contextmanager
def _cold_catalog(config: LifecycleConfig) -> Iterator[CatalogReader]:
    with CatalogReader(config.catalogs.cold) as reader:
        yield reader


def _current(context: HandoffContext, catalog: CatalogReader, table: str) -> _Current:
    try:
        location = catalog.entry(table).metadata_location
    except NoSuchTable:
        return _Current()
    stores = context.cold_stores
    return _Current(location, with_lists(metadata_json(stores.read(location), location, stores.limits)))


@dataclass(frozen=True)
class _Change:
    """The next metadata of one cold table; `before` is empty for a table that this handoff makes."""

    table: str
    before: _Current
    metadata: Json


def _publish(context: HandoffContext, what: _Publication) -> tuple[str | None, int]:
    """One commit of the cold tables; (the newest one's metadata location, attempts), 0 attempts when they have all of
    the snapshots."""
    plan, identity = what.plan, what.placing.identity
    engine = connect(require_uri(context.config.catalogs.cold))
    cold = context.config.catalogs.cold.name
    try:
        with _cold_catalog(context.config) as catalog:
            for attempt in range(1, _PUBLISH_ATTEMPTS + 1):
                ensure_guard(engine, cold, context.config.catalogs.live.name)
                current, changes = _changes(context, catalog, what)
                if not changes:
                    return current.location, attempt - 1
                written = [(change, _write_metadata(context, plan, identity, change)) for change in changes]
                newest = next(location for change, location in written if change.table == identity.cold_table)
                context.check()
                try:
                    with around("handoff.publish"), engine.begin() as connection:
                        # One transaction, always in one order: a snapshot is never in two cold tables, nor in none.
                        for change, location in sorted(written, key=lambda each: each[0].table):
                            publish_guarded(
                                connection,
                                cold,
                                change.table,
                                plan_id=plan.plan_id,
                                expected_location=change.before.location,
                                new_location=location,
                            )
                        if context.record is not None:
                            context.record(connection, newest)
                    return newest, attempt
                except CommitConflict:
                    if attempt == _PUBLISH_ATTEMPTS:
                        raise
                    time.sleep(random.uniform(0, min(2.0, 0.05 * 2**attempt)))
        raise AssertionError("unreachable")
    finally:
        engine.dispose()


def _changes(context: HandoffContext, catalog: CatalogReader, what: _Publication) -> tuple[_Current, list[_Change]]:
    """The newest cold table as it is, and what has to change so that the cold tables have the archived snapshots: the
    newest one, closed ones that cover some of them, new ones where the newest has grown too large."""
    plan, placing, live, archived = what.plan, what.placing, what.live, what.archived
    identity = placing.identity
    newest = _newest(context, catalog, plan, identity)
    there = _ids(newest)
    closed = closed_tables((newest.metadata or {}).get("properties"))
    wanted: dict[str | None, set[int]] = {}
    for snapshot in live["snapshots"]:
        # One that could not go to the table of its time is in the newest one.
        if snapshot["snapshot-id"] in archived and snapshot["snapshot-id"] not in there:
            covers = covering(closed, snapshot["timestamp-ms"])
            wanted.setdefault(None if covers is None else covers.name, set()).add(snapshot["snapshot-id"])
    own = wanted.pop(None, set())
    late = {name: (_closed(context, catalog, plan, name), ids) for name, ids in wanted.items() if name is not None}
    late = {name: (table, ids) for name, (table, ids) in late.items() if not ids <= _ids(table)}
    if not late and not own:
        return newest, []
    if archive_ids(live, newest.metadata) != placing.ids:
        raise HandoffFailed(
            "The cold table got schemas, partition specs or sort orders of other ids during the handoff",
            table=plan.table,
            path=newest.location,
            untouched="the cold catalog",
            hint="see who writes to the cold catalog, which only handoffs do; then run the handoff again",
        )
    tags = _tags(context, what.base, newest.metadata)
    changes = []
    for name, (table, ids) in late.items():
        assert table.location is not None and table.metadata is not None
        mapping = _joint(live, ids, table.metadata, _ids(table))
        if mapping is None:
            own |= ids
        else:
            joined = cold_metadata.add_late(live, table.metadata, table.location, ids, identity, placing, mapping, tags)
            changes.append(_Change(name, table, joined))
    before, mapping = newest.metadata, Joint(mapping_of(live))
    if before is not None:
        mapping = _joint(live, own, before, there)
    if before is not None and mapping is None:
        # Files without ids are read by another mapping there: what is archived stays with its own.
        name = _free_name(catalog, identity, f"mapping_{len(closed) + 1}")
        before, piece = close(before, name)
        piece = cold_metadata.without_moved_refs(piece, None, tags) or piece
        changes.append(_Change(name, _Current(), piece))
        mapping = Joint(mapping_of(live))
    assert mapping is not None
    try:
        grown = cold_metadata.build_metadata(live, before, newest.location, own, identity, placing, mapping, tags)
    except cold_metadata.Diverged as apart:
        raise HandoffFailed(
            "The table's history is another one than the archive's from "
            f"{of_milliseconds(apart.at_ms).isoformat()} on: it is registered under two names that both commit, or its "
            "catalog was put back in time",
            table=plan.table,
            path=newest.location,
            untouched="the cold catalog; the plan stays open and holds its files",
            hint="see which other table has this table-uuid; make one of the two a table of its own (CREATE TABLE … AS "
            "SELECT), or set cold_tier.enabled to false for it",
        ) from apart
    policy = context.config.policy(plan.table).cold_tier.split
    pieces: dict[str, Json] = {}
    if policy.by != "never":
        known_until = cold_metadata.complete_until(grown)
        grown, pieces = split(
            grown, policy.by, policy.above, known_until, lambda label: _free_name(catalog, identity, label)
        )
    changes.append(_Change(identity.cold_table, newest, grown))
    changes += _without_moved_refs(context, catalog, plan, newest, tags, {change.table for change in changes})
    changes += [_Change(name, _Current(), piece) for name, piece in pieces.items()]
    return newest, [_bound_to_current(context, change) for change in changes]


def _without_moved_refs(
    context: HandoffContext,
    catalog: CatalogReader,
    plan: HandoffInput,
    newest: _Current,
    tags: Sequence[Meaning],
    changed: Collection[str],
) -> Iterator[_Change]:
    """The closed tables whose tags mean something else since the last handoff. They are read only if any does."""
    properties = (newest.metadata or {}).get("properties")
    before = history_of(properties)
    if all(last(tags, each.name) == last(before, each.name) for each in before):
        return
    for closed in closed_tables(properties):
        if closed.name in changed:
            continue
        table = _closed(context, catalog, plan, closed.name)
        assert table.metadata is not None
        pruned = cold_metadata.without_moved_refs(table.metadata, table.location, tags)
        if pruned is not None:
            yield _Change(closed.name, table, pruned)


def _tags(context: HandoffContext, base: TableMetadata, cold: Json | None) -> tuple[Meaning, ...]:
    """The history of the live table's refs, up to `base`. Where nobody has ever tagged, no metadata file is read."""
    known = history_of((cold or {}).get("properties"))
    if not known and not refs_of(base):
        return ()
    until = 0 if cold is None else cold_metadata.complete_until(cold)
    if base.last_updated_ms <= until:
        return known  # An older plan, or a second try.
    states = list(former_states(context.live_stores, base, until))[::-1]
    return continued(known, [*states, (base.last_updated_ms, refs_of(base))])


def _joint(live: Json, added: Collection[int], cold: Json, there: Collection[int]) -> Joint | None:
    """The name mapping for a cold table's snapshots and those `added` to it; None where no one does for both."""
    if not added or not there:
        return Joint(mapping_of(cold) if there else mapping_of(live))
    return joint(mapping_of(cold), mapping_of(live), fields_read(cold, there), fields_read(live, added))


def _bound_to_current(context: HandoffContext, change: _Change) -> _Change:
    def specs_of(snapshot: Json) -> list[int]:
        if snapshot.get("manifest-list") is None:
            return []
        entries = manifest_lists.read_manifest_list(context.cold_stores, snapshot["manifest-list"]).entries
        own = [entry for entry in entries if entry.added_snapshot_id == snapshot["snapshot-id"]]
        return list(dict.fromkeys(entry.partition_spec_id for entry in (*own, *entries)))

    return replace(change, metadata=with_current(change.metadata, specs_of))


def _newest(context: HandoffContext, catalog: CatalogReader, plan: HandoffInput, identity: ColdIdentity) -> _Current:
    newest = _current(context, catalog, identity.cold_table)
    if newest.metadata is not None and newest.metadata.get("table-uuid") != plan.table_uuid:
        raise HandoffFailed(
            f"The cold catalog's {identity.cold_table} is of another table-uuid, {newest.metadata.get('table-uuid')}",
            table=plan.table,
            path=newest.location,
            untouched="the cold catalog",
            hint="drop or rename that entry, which no handoff made, and run the handoff again",
        )
    return newest


def _ids(current: _Current) -> set[int]:
    return cold_metadata.snapshot_ids(current.metadata)


def _closed(context: HandoffContext, catalog: CatalogReader, plan: HandoffInput, name: str) -> _Current:
    current = _current(context, catalog, name)
    if current.metadata is None:
        raise HandoffFailed(
            f"The cold catalog has no table {name}, which has the table's past",
            table=plan.table,
            untouched="both tiers",
            hint="bring the catalog's row back, and run the handoff again",
        )
    return current


def _free_name(catalog: CatalogReader, identity: ColdIdentity, label: str) -> str:
    """A name in the cold catalog for a closed table, which another live table may have taken."""
    name = parse(identity.cold_table).suffixed(f"_{label}")
    return str(name.suffixed(f"__{identity.table_uuid[:8]}") if catalog.exists(str(name)) else name)


def _write_metadata(context: HandoffContext, plan: HandoffInput, identity: ColdIdentity, change: _Change) -> str:
    location = cold_metadata.metadata_path(identity, plan.plan_id, change.before.location, change.table)
    data = cold_metadata.to_bytes(change.metadata)
    parse_table_metadata(data, location, context.cold_stores.limits)
    _parse_with_iceberg(context.spark, location, data, plan)
    with around("handoff.metadata"):
        context.cold_stores.write(location, data, overwrite=True)
    if context.cold_stores.read(location) != data:
        raise HandoffFailed(
            "The cold metadata file reads back differently",
            table=plan.table,
            path=location,
            untouched="the cold catalog",
            hint="check the cold store, then run the handoff again",
        )
    return location


def _parse_with_iceberg(spark: SparkSession, location: str, data: bytes, plan: HandoffInput) -> None:
    """Hold the file against the parser that engines use, before any engine can see it."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    try:
        parsed = jvm.org.apache.iceberg.TableMetadataParser.fromJson(location, data.decode())
        parsed.snapshots().size()
    except Py4JJavaError as error:
        reason = str(error.java_exception.getMessage())
        raise HandoffFailed(
            f"Iceberg's parser refuses the cold metadata: {reason}",
            table=plan.table,
            path=location,
            untouched="the cold catalog; nothing was written there",
            hint="report this with the live metadata file; the plan stays open and holds its files",
        ) from error


def _other_uuid(context: HandoffContext, catalog: CatalogReader, table: str, table_uuid: str) -> bool:
    current = _current(context, catalog, table)
    return current.metadata is not None and current.metadata.get("table-uuid") != table_uuid
