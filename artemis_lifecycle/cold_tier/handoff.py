"""The handoff: expired snapshots are copied, verified, and published in one commit of the cold table. Resumable by
batch.

Order: the list of needed files is sealed. Contents, then manifests, then manifest lists are copied; each batch is
recorded once it is completely verified. Then one metadata file is written, parsed by Iceberg's own parser, and
published by compare-and-swap. Until then, the cold table is unchanged, and copied files count for the next attempt.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.catalogs.guard import ensure_guard, publish_guarded
from artemis_lifecycle.catalogs.settings import require_uri
from artemis_lifecycle.catalogs.sql import ensure_tables
from artemis_lifecycle.cold_tier import cold_metadata
from artemis_lifecycle.cold_tier.cold_metadata import Meaning, continued, former_states, history_of, last, refs_of
from artemis_lifecycle.cold_tier.cold_split import Json, close, closed_tables, covering, split
from artemis_lifecycle.cold_tier.cold_tables import (
    ColdEntries,
    ColdEntry,
    cold_identity,
    open_entries,
    places_of_published,
)
from artemis_lifecycle.cold_tier.demand import Demand, Problem
from artemis_lifecycle.cold_tier.evolution import (
    Joint,
    archive_ids,
    fields_read,
    joint,
    mapping_of,
    with_current,
    with_lists,
)
from artemis_lifecycle.cold_tier.ledger import COPIED, PRESENT, REWRITTEN, VERIFIED, handoff_ledger
from artemis_lifecycle.cold_tier.needed import Reuse
from artemis_lifecycle.cold_tier.paths import (
    ColdIdentity,
    PathMapping,
    identities,
    read_identity,
    record_identity,
    record_published,
    record_reused,
    written_location,
)
from artemis_lifecycle.cold_tier.transfer import Consent, HandoffContext, HandoffInput, Transfer, TransferErrors
from artemis_lifecycle.errors import CommitConflict, HandoffFailed, NoSuchTable, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata import manifest_lists
from artemis_lifecycle.metadata.lines import Line, Relation, relate
from artemis_lifecycle.metadata.table_metadata import metadata_json, parse_table_metadata, refuse_encrypted
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.operations.database import connect
from artemis_lifecycle.storage.instants import instant_text
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.tabular import Shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- handoff outcome --------------------------------------------------------------------------------------------------
# What happened to a plan's snapshots in its handoff, as a file under `operations.root`.

NOTHING_ARCHIVED = ""
"""Replaces the metadata location if the handoff is done and all its snapshots were lost or overtaken."""


@dataclass(frozen=True)
class HandoffOutcome:
    """What happened to each snapshot of a plan in its handoff."""

    archived: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    overtaken: tuple[int, ...] = ()
    thinned: tuple[int, ...] = ()


def record_outcome(stores: Stores, root: str, plan_id: str, outcome: HandoffOutcome) -> None:
    data = json.dumps(asdict(outcome)).encode()
    with around("handoff.outcome"):
        stores.write(_outcome_path(root, plan_id), data, overwrite=True)


def read_outcome(stores: Stores, root: str, plan_id: str) -> HandoffOutcome | None:
    """Return what a finished handoff recorded; None if it is not finished. Raises StorageError if it is damaged."""
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
            hint=f"run the handoff again, which writes it again: artemis hand-off {plan_id}",
        ) from error


def _outcome_path(root: str, plan_id: str) -> str:
    return f"{root}/handoffs/{plan_id}/outcome.json"


# --- publication ------------------------------------------------------------------------------------------------------
# The end of a handoff: one metadata file for each changed cold table, and one commit for all of them.

_PUBLISH_ATTEMPTS = 10
_COLUMNS = ("source AS path", "destination", "kind", "size_in_bytes", "checksum", "action AS outcome")


@dataclass(frozen=True)
class Publication:
    """What to publish: the `archived` snapshots of the plan's base. The base is `base`, and as JSON `live`."""

    plan: HandoffInput
    placing: PathMapping
    base: TableMetadata
    live: Json
    archived: frozenset[int]


@dataclass(frozen=True)
class _Change:
    """The next metadata of one cold table; `before` is empty for a table that this handoff creates."""

    table: str
    before: ColdEntry
    metadata: Json


def publish(context: HandoffContext, what: Publication) -> tuple[str | None, int]:
    """Commit the cold tables. Return the newest table's metadata location and the number of attempts, which is 0 if
    they already have all the snapshots."""
    plan, identity = what.plan, what.placing.identity
    engine = connect(require_uri(context.config.catalogs.cold))
    cold = context.config.catalogs.cold.name
    try:
        with open_entries(context, plan.table, plan.table_uuid, identity) as entries:
            for attempt in range(1, _PUBLISH_ATTEMPTS + 1):
                ensure_tables(engine)
                ensure_guard(engine, cold, context.config.catalogs.live.name)
                current, changes = _changes(context, entries, what)
                if not changes:
                    if current.location is not None:
                        _record_published(context, entries, identity, current.metadata)
                    return current.location, attempt - 1
                place = partial(cold_metadata.metadata_path, identity, plan.plan_id)
                written = [(change, place(change.before.location, change.table)) for change in changes]
                for change, location in written:
                    _write_metadata(context, plan.table, location, change.metadata)
                newest, metadata = next(
                    (location, change.metadata) for change, location in written if change.table == identity.cold_table
                )
                context.check()
                try:
                    with around("handoff.publish"), engine.begin() as connection:
                        # One transaction, always in the same order: a snapshot is always in exactly one cold table.
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
                    _record_published(context, entries, identity, metadata)
                    return newest, attempt
                except CommitConflict:
                    if attempt == _PUBLISH_ATTEMPTS:
                        raise
                    time.sleep(random.uniform(0, min(2.0, 0.05 * 2**attempt)))
        raise AssertionError("unreachable")
    finally:
        engine.dispose()


@dataclass(frozen=True)
class RecoveredArchive(Shown):
    """The name of a table's archive in the cold catalog, and the metadata files that were published there again. The
    files of the snapshots `unreadable` are out of reach: a manifest list or a manifest of theirs is lost or damaged."""

    table: str
    cold_table: str
    published: tuple[str, ...]
    unreadable: tuple[int, ...] = ()


def recover_archive(context: HandoffContext, table: str, identity: ColdIdentity) -> RecoveredArchive:
    """Publish again what handoffs published of the table since the state to which the cold catalog was put back; under
    a free name if its name is another table's. The caller holds the table's lease."""
    engine, cold = connect(require_uri(context.config.catalogs.cold)), context.config.catalogs.cold.name
    try:
        ensure_tables(engine)
        ensure_guard(engine, cold, context.config.catalogs.live.name)
        with open_entries(context, table, identity.table_uuid, identity) as entries:
            known = identities(context.live_stores, context.root)
            others = {each.cold_table for each in known if each.table_uuid != identity.table_uuid}
            name, behind = entries.behind(identity, others)
        for each in behind:
            if each.is_new:
                _write_metadata(context, table, each.newest, each.metadata)
        context.check()
        with engine.begin() as connection:
            for each in sorted(behind, key=lambda each: each.name):
                publish_guarded(
                    connection,
                    cold,
                    each.name,
                    plan_id="recover-archive",
                    expected_location=each.current.location,
                    new_location=each.newest,
                )
        recovered = replace(identity, cold_table=name)
        with open_entries(context, table, identity.table_uuid, recovered) as entries:
            _record_published(context, entries, recovered, entries.entry(name).metadata)
    finally:
        engine.dispose()
    if name != identity.cold_table:
        record_identity(context.live_stores, context.root, recovered)
    return RecoveredArchive(table, name, tuple(each.newest for each in behind))


def _record_published(
    context: HandoffContext, entries: ColdEntries, identity: ColdIdentity, newest: Json | None
) -> None:
    """Record all of the archive's tables, not only those that changed: an earlier run may have died before its record,
    and a table that no record names is lost with the cold catalog."""
    published = entries.locations(identity.cold_table, newest)
    with around("handoff.published"):
        for stores, path in places_of_published(context, identity):
            record_published(stores, path, published)


def _changes(context: HandoffContext, entries: ColdEntries, what: Publication) -> tuple[ColdEntry, list[_Change]]:
    """Return the newest cold table, and the changes after which the cold tables have the archived snapshots: to the
    newest one, to closed ones that cover some of them, and new ones if the newest is too large."""
    plan, placing, live, archived = what.plan, what.placing, what.live, what.archived
    identity = placing.identity
    newest = entries.newest(identity, plan.plan_id)
    present = newest.snapshot_ids
    closed = closed_tables((newest.metadata or {}).get("properties"))
    wanted: dict[str | None, set[int]] = {}
    for snapshot in live["snapshots"]:
        # If it could not go to the table of its period, it is in the newest one.
        if snapshot["snapshot-id"] in archived and snapshot["snapshot-id"] not in present:
            covers = covering(closed, snapshot["timestamp-ms"])
            wanted.setdefault(None if covers is None else covers.name, set()).add(snapshot["snapshot-id"])
    own = wanted.pop(None, set())
    late = {name: (entries.closed(identity, name), ids) for name, ids in wanted.items() if name is not None}
    late = {name: (table, ids) for name, (table, ids) in late.items() if not ids <= table.snapshot_ids}
    if not late and not own:
        return newest, []
    if archive_ids(live, newest.metadata) != placing.ids:
        raise HandoffFailed(
            "The ids of the cold table's schemas, partition specs or sort orders changed during the handoff",
            table=plan.table,
            path=newest.location,
            untouched="the cold catalog",
            hint="find out who writes to the cold catalog, which only handoffs may do; then run the handoff again",
        )
    tags = _tags(context, what.base, newest.metadata)
    changes = []
    for name, (table, ids) in late.items():
        assert table.location is not None and table.metadata is not None
        mapping = _joint(live, ids, table.metadata, table.snapshot_ids)
        if mapping is None:
            own |= ids
        else:
            joined = cold_metadata.add_late(live, table.metadata, table.location, ids, identity, placing, mapping, tags)
            changes.append(_Change(name, table, joined))
    before, mapping = newest.metadata, Joint(mapping_of(live))
    if before is not None:
        mapping = _joint(live, own, before, present)
    if before is not None and mapping is None:
        # Files without ids need a different mapping there, so the archived snapshots keep their own.
        name = entries.free_name(identity, f"mapping_{len(closed) + 1}")
        before, piece = close(before, name)
        piece = cold_metadata.without_moved_refs(piece, None, tags) or piece
        changes.append(_Change(name, ColdEntry(), piece))
        mapping = Joint(mapping_of(live))
    assert mapping is not None
    reset = require_one_line(context, plan, what.base, newest)
    location, seen_ms = plan.base_metadata_location, plan.seen_ms
    try:
        grown = cold_metadata.build_metadata(
            live, before, newest.location, own, identity, placing, mapping, tags, location, reset=reset, seen_ms=seen_ms
        )
    except cold_metadata.Diverged as apart:
        raise _two_lines(plan, newest, f" from {instant_text(apart.at_ms)} on") from apart
    policy = context.config.policy(plan.table).cold_tier.split
    pieces: dict[str, Json] = {}
    if policy.by != "never":
        known_until = cold_metadata.complete_until(grown)
        grown, pieces = split(
            grown, policy.by, policy.above, known_until, lambda label: entries.free_name(identity, label)
        )
    changes.append(_Change(identity.cold_table, newest, grown))
    changes += _without_moved_refs(entries, identity, newest, tags, {change.table for change in changes})
    changes += [_Change(name, ColdEntry(), piece) for name, piece in pieces.items()]
    return newest, [_bound_to_current(context, change) for change in changes]


def require_one_line(context: HandoffContext, plan: HandoffInput, base: TableMetadata, newest: ColdEntry) -> bool:
    """Raise HandoffFailed if the plan's base does not belong to the line of metadata that the archive has. Return True
    if the table went back to an earlier state, and goes on from there above all numbers of the archive."""
    if newest.metadata is None or newest.location is None:
        return False
    cold = parse_table_metadata(cold_metadata.to_bytes(newest.metadata), newest.location)
    own, archived = Line.of(base, context.left_ms), cold_metadata.line_of(cold)
    if relate(own, archived) is Relation.DIVERGED:
        raise _two_lines(plan, newest)
    return own.raised_above(archived)


def _two_lines(plan: HandoffInput, newest: ColdEntry, since: str = "") -> HandoffFailed:
    return HandoffFailed(
        f"The table's history is another one than the archive's{since}: it is registered under two names that both "
        "commit, or its catalog was put back in time and written to. Both gave the same numbers to different things",
        table=plan.table,
        path=newest.location,
        untouched="both tiers; the plan stays open and holds its files",
        hint="after a restored backup, register the lost metadata file again; or run artemis close "
        f"{plan.plan_id} and turn the table into a new one, with an archive of its own (CREATE TABLE … AS SELECT); of "
        "two names, turn one into a new table; or set cold_tier.enabled to false for it. What is archived stays "
        "readable (docs/cold-tier.md)",
    )


def _without_moved_refs(
    entries: ColdEntries, identity: ColdIdentity, newest: ColdEntry, tags: Sequence[Meaning], changed: Collection[str]
) -> Iterator[_Change]:
    """Yield changes of closed tables whose tags have moved since the last handoff. Reads the tables only if a tag has
    moved."""
    properties = (newest.metadata or {}).get("properties")
    before = history_of(properties)
    if all(last(tags, each.name) == last(before, each.name) for each in before):
        return
    for closed in closed_tables(properties):
        if closed.name in changed:
            continue
        table = entries.closed(identity, closed.name)
        assert table.metadata is not None
        pruned = cold_metadata.without_moved_refs(table.metadata, table.location, tags)
        if pruned is not None:
            yield _Change(closed.name, table, pruned)


def _tags(context: HandoffContext, base: TableMetadata, cold: Json | None) -> tuple[Meaning, ...]:
    """Return the history of the live table's refs, up to `base`. If the table never had tags, no metadata file is
    read."""
    known = history_of((cold or {}).get("properties"))
    if not known and not refs_of(base):
        return ()
    until = 0 if cold is None else cold_metadata.complete_until(cold)
    if base.last_updated_ms <= until:
        return known  # An older plan, or a retry.
    states = list(former_states(context.live_stores, base, until))[::-1]
    return continued(known, [*states, (base.last_updated_ms, refs_of(base))])


def _joint(live: Json, added: Collection[int], cold: Json, present: Collection[int]) -> Joint | None:
    """Return a name mapping for a cold table's snapshots and those `added` to it; None if no mapping works for both."""
    if not added or not present:
        return Joint(mapping_of(cold) if present else mapping_of(live))
    return joint(mapping_of(cold), mapping_of(live), fields_read(cold, present), fields_read(live, added))


def _bound_to_current(context: HandoffContext, change: _Change) -> _Change:
    def specs_of(snapshot: Json) -> list[int]:
        if snapshot.get("manifest-list") is None:
            return []
        entries = manifest_lists.read_manifest_list(context.cold_stores, snapshot["manifest-list"]).entries
        own = [entry for entry in entries if entry.added_snapshot_id == snapshot["snapshot-id"]]
        return list(dict.fromkeys(entry.partition_spec_id for entry in (*own, *entries)))

    return replace(change, metadata=with_current(change.metadata, specs_of))


def _write_metadata(context: HandoffContext, table: str, location: str, metadata: Json) -> None:
    data = cold_metadata.to_bytes(metadata)
    parse_table_metadata(data, location, context.cold_stores.limits)
    _parse_with_iceberg(context.runner.session, location, data, table)
    with around("handoff.metadata"):
        context.cold_stores.write(location, data, overwrite=True)
    if context.cold_stores.read(location) != data:
        raise HandoffFailed(
            "The cold metadata file reads back differently",
            table=table,
            path=location,
            untouched="the cold catalog",
            hint="check the cold store, then run the step again",
        )


def _parse_with_iceberg(spark: SparkSession, location: str, data: bytes, table: str) -> None:
    """Parse the file with the parser that engines use, before any engine can see it."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    try:
        jvm.org.apache.iceberg.TableMetadataParser.fromJson(location, data.decode()).snapshots().size()
    except Py4JJavaError as error:
        raise HandoffFailed(
            f"Iceberg's parser refuses the cold metadata: {error.java_exception.getMessage()}",
            table=table,
            path=location,
            untouched="the cold catalog; nothing was written there",
            hint="report this with the live metadata file; the plan stays open and holds its files",
        ) from error


@dataclass(frozen=True)
class Handoff(Shown):
    """The result of a handoff. Sizes in bytes. `verified_files` were read back and compared.

    `archived` are the plan's snapshots that the cold table now has. `lost` are those that it cannot have because some
    of their files are gone (`lost_files`). `overtaken` are lost ones that another process had already expired.
    `thinned` are those that the policy does not archive, because it archives a neighbor. `repaired_files` are copies of
    earlier handoffs that were lost in cold, and were copied from live again. `cold_metadata_location` is
    NOTHING_ARCHIVED if there was nothing to publish. `reused_files` were copied by earlier handoffs or already existed,
    and were not transferred. A dry run sets only `would_copy_…`, `lost` and `thinned`.
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
    would_copy_files: int = 0
    would_copy_bytes: int = 0
    dry_run: bool = False
    _files: Callable[[], DataFrame] | None = field(default=None, repr=False, compare=False)

    def files(self) -> DataFrame | None:
        """Return DataFrame[path, destination, kind, size_in_bytes, checksum, outcome] of this plan's copies; None if
        there are none."""
        return None if self._files is None else self._files()


def hand_off(
    context: HandoffContext,
    plan: HandoffInput,
    *,
    approved: Collection[int] = (),
    overtaken: Collection[int] = (),
    dry_run: bool = False,
) -> Handoff:
    """Copy everything that the plan's snapshots read to the cold tier, verify it, and publish the snapshots in the cold
    catalog.

    Another run finishes the rest, and does nothing if all is done. A table without a cold tier in its policy, and a
    plan without snapshots, need no work. Of `approved` snapshots, a person approved that those whose files are missing,
    or not what the metadata says, are not archived. `overtaken` are snapshots of the plan that another process removed
    from the live table. If their files are gone, omitting them needs no approval.

    `dry_run` reads the metadata, counts the files to copy, and writes nothing.

    Raises HandoffFailed, with the cold table unchanged, if a file is gone without approval, or cannot be copied,
    verified or rewritten. Raises UnreadableMetadata if the base metadata file is broken; EncryptedTable;
    CommitConflict.
    """
    whole = (*plan.snapshot_ids, *plan.thinned)
    if not whole or not context.config.policy(plan.table).cold_tier.enabled:
        return Handoff(plan.plan_id, plan.table, dry_run=dry_run)
    if not plan.snapshot_ids:
        if dry_run:
            return Handoff(plan.plan_id, plan.table, thinned=plan.thinned, dry_run=True)
        none = Handoff(plan.plan_id, plan.table, cold_metadata_location=NOTHING_ARCHIVED, thinned=plan.thinned)
        _record(context, none)
        return none
    base = context.live_stores.read(plan.base_metadata_location) if plan.read_base is None else plan.read_base()
    live = with_lists(metadata_json(base, plan.base_metadata_location, context.live_stores.limits))
    demand, placing, before = _demand(context, plan, base, live, dry_run=dry_run)
    committed = {each["snapshot-id"]: each["timestamp-ms"] * 1000 for each in before or ()}
    lists = frozenset(filter(None, (each.get("manifest-list") for each in before or ())))
    ledger = handoff_ledger(context.live_stores, context.root, plan.table_uuid)
    live_stores = context.live_stores
    consent = Consent(frozenset(approved), frozenset(overtaken), lambda path: live_stores.head(path) is not None)
    transfer = Transfer(
        runner=context.runner,
        source=context.live_stores,
        target=context.cold_stores,
        records=context.live_stores,
        folder=f"{context.root}/handoffs/{plan.plan_id}",
        work_id=plan.plan_id,
        demand=demand,
        ledger=ledger,
        errors=_errors(plan),
        batches=context.batches,
        consent=consent,
        settings=context.settings,
        check=context.check,
        on_progress=context.on_progress,
        reuse=Reuse(context.runner, context.live_stores, context.cold_stores, demand.metadata, plan.current, committed),
        decided=partial(_record_reused, context, plan.table_uuid),
        archive=lists,
    )
    if dry_run:
        files, size, problems = transfer.foreseen()
        unreadable = {snapshot for problem in problems for snapshot in problem.snapshot_ids}
        return Handoff(
            plan.plan_id,
            plan.table,
            cold_table=placing.identity.cold_table,
            lost=tuple(each for each in whole if each in unreadable and each not in consent.overtaken),
            thinned=plan.thinned,
            lost_files=problems,
            would_copy_files=files,
            would_copy_bytes=size,
            dry_run=True,
        )
    work, losses, placed = transfer.run()
    assert isinstance(placed, PathMapping)
    archived = tuple(snapshot for snapshot in work.snapshot_ids if snapshot not in losses.snapshot_ids)
    location, attempts = publish(context, Publication(plan, placed, demand.metadata, live, frozenset(archived)))
    # The list that an earlier run sealed counts. A later change of policy applies to the next plan.
    asked = {*work.snapshot_ids, *(snapshot for problem in work.problems for snapshot in problem.snapshot_ids)}
    out = asked.difference(archived)
    settled = asked.union(archived)
    outcome = ledger.outcome(plan.plan_id)
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
        copied_files=outcome.files(COPIED, REWRITTEN),
        copied_bytes=outcome.bytes(COPIED, REWRITTEN),
        rewritten_files=outcome.files(REWRITTEN),
        reused_files=outcome.files(PRESENT),
        verified_files=outcome.files(*VERIFIED),
        attempts=attempts,
        _files=lambda: ledger.files(context.runner, plan.plan_id).frame().selectExpr(*_COLUMNS),
    )
    _record(context, done)
    return done


def _demand(
    context: HandoffContext, plan: HandoffInput, base: bytes, live: Json, *, dry_run: bool
) -> tuple[Demand, PathMapping, list[Json] | None]:
    """Return what to archive, where to, and the snapshots that the cold table has (None: there is none)."""
    metadata = parse_table_metadata(base, plan.base_metadata_location, context.live_stores.limits)
    if metadata.table_uuid != plan.table_uuid:
        raise NoSuchTable(
            f"The plan's base has table-uuid {metadata.table_uuid}, not {plan.table_uuid}",
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
    now = metadata if plan.current is None else plan.current
    gone = [snapshot for snapshot in plan.snapshot_ids if now.snapshot(snapshot) is None]
    # The table may have left that line since the plan was made.
    if gone and relate(Line.of(now, context.left_ms), Line.of(metadata)) is Relation.DIVERGED:
        raise HandoffFailed(
            f"The plan was made on another line of the table's history, which the catalog has left: snapshot {gone[0]} "
            "is none of the table's",
            table=plan.table,
            path=plan.base_metadata_location,
            untouched="both tiers; the plan stays open and holds its files",
            hint=f"run artemis close {plan.plan_id}, or register that metadata file again if it is the right one",
        )
    location = written_location(metadata, LocationRules.from_config(context.config.policy(plan.table).orphans))
    identity = cold_identity(context, plan.table, plan.table_uuid, location, dry_run=dry_run)
    with open_entries(context, plan.table, plan.table_uuid, identity) as entries:
        newest = entries.newest(identity, plan.plan_id)
    require_one_line(context, plan, metadata, newest)
    # Manifests use the archive's spec ids from their first copy on, so these are decided first.
    sequences = {snapshot.snapshot_id: snapshot.sequence_number for snapshot in metadata.snapshots}
    placing = PathMapping(identity, archive_ids(live, newest.metadata), sequences)
    before = None if newest.metadata is None else newest.metadata["snapshots"]
    return Demand(metadata, plan.snapshot_ids, placing), placing, before


def _record_reused(context: HandoffContext, table_uuid: str, reused: Sequence[tuple[str, int, int]]) -> None:
    identity = read_identity(context.live_stores, context.root, table_uuid)
    assert identity is not None  # `_demand` settled it.
    with around("handoff.reused"):
        record_reused(context.live_stores, context.root, identity, reused)


def _record(context: HandoffContext, done: Handoff) -> None:
    outcome = HandoffOutcome(done.archived, done.lost, done.overtaken, done.thinned)
    record_outcome(context.live_stores, context.root, done.plan_id, outcome)


def _errors(plan: HandoffInput) -> TransferErrors:
    def gone(problems: Sequence[Problem]) -> str:
        snapshots = sorted({snapshot for problem in problems for snapshot in problem.snapshot_ids})
        return (
            f"{len(problems)} files that the handoff needs are gone or damaged ({problems[0].reason}); without them "
            f"{len(snapshots)} snapshots cannot be archived: {', '.join(map(str, snapshots[:10]))}"
            + (". Each stands for its period (cold_tier.archive), which may then have none" if plan.thinned else "")
        )

    return TransferErrors(
        HandoffFailed,
        plan.table,
        untouched="the cold table, the live table and all its files; the plan stays open and holds them",
        if_failed="fix the cause and run the handoff again: finished batches are kept",
        gone=gone,
        if_gone="restore the file and run the handoff again; or approve the loss: "
        f"artemis approve {plan.plan_id} --lost",
        named=plan.named,
    )
