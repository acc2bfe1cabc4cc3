"""The handoff: expired snapshots are copied, verified, and published in one commit of the cold table. Resumable by
batch.

Order: the list of needed files is sealed. Contents, then manifests, then manifest lists are copied; each batch is
recorded once it is completely verified. Then one metadata file is written, parsed by Iceberg's own parser, and
published by compare-and-swap. Until then, the cold table is unchanged, and copied files count for the next attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.cold_entries import cold_identity, open_entries
from artemis_lifecycle.cold_tier.cold_split import Json
from artemis_lifecycle.cold_tier.demand import Demand
from artemis_lifecycle.cold_tier.evolution import archive_ids, with_lists
from artemis_lifecycle.cold_tier.handoff_context import HandoffContext, HandoffInput
from artemis_lifecycle.cold_tier.handoff_outcome import NOTHING_ARCHIVED, HandoffOutcome, record_outcome
from artemis_lifecycle.cold_tier.ledger import COPIED, PRESENT, REWRITTEN, VERIFIED, handoff_ledger
from artemis_lifecycle.cold_tier.paths import PathMapping, read_identity, record_reused
from artemis_lifecycle.cold_tier.publication import Publication, publish, require_one_line
from artemis_lifecycle.cold_tier.reuse import Reuse
from artemis_lifecycle.cold_tier.transfer import Consent, Transfer, TransferErrors
from artemis_lifecycle.cold_tier.work import Problem
from artemis_lifecycle.errors import HandoffFailed, NoSuchTable, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import metadata_json, parse_table_metadata, refuse_encrypted
from artemis_lifecycle.operations.crash_points import around

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Handoff:
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
    allow_lost: bool = False,
    overtaken: Collection[int] = (),
    dry_run: bool = False,
) -> Handoff:
    """Copy everything that the plan's snapshots read to the cold tier, verify it, and publish the snapshots in the cold
    catalog.

    Another run finishes the rest, and does nothing if all is done. A table without a cold tier in its policy, and a
    plan without snapshots, need no work. `allow_lost` means that a person approved two things: snapshots with missing
    files are not archived, and files whose size differs from the record are copied as they are. `overtaken` are
    snapshots of the plan that another process removed from the live table. If their files are gone, omitting them needs
    no approval.

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
    demand, placing, committed = _demand(context, plan, base, live, dry_run=dry_run)
    ledger = handoff_ledger(context.live_stores, context.root, plan.table_uuid)
    consent = Consent(allow_lost, frozenset(overtaken))
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
        reuse=Reuse(
            context.runner, context.live_stores, context.cold_stores, demand.metadata, plan.current, committed or {}
        ),
        decided=partial(_record_reused, context, plan.table_uuid),
        has_archive=committed is not None,
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
    what = Publication(plan, placed, demand.metadata, live, frozenset(archived))
    location, attempts = publish(context, what)
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
        _files=lambda: _described(ledger.files(context.runner, plan.plan_id).frame()),
    )
    _record(context, done)
    return done


def _demand(
    context: HandoffContext, plan: HandoffInput, base: bytes, live: Json, *, dry_run: bool
) -> tuple[Demand, PathMapping, dict[int, int] | None]:
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
    identity = cold_identity(context, plan.table, plan.table_uuid, metadata.location, dry_run=dry_run)
    with open_entries(context, plan.table, plan.table_uuid) as entries:
        newest = entries.newest(identity, plan.plan_id)
    require_one_line(plan, metadata, newest)
    # Manifests use the archive's spec ids from their first copy on, so these are decided first.
    sequences = {snapshot.snapshot_id: snapshot.sequence_number for snapshot in metadata.snapshots}
    placing = PathMapping(identity, archive_ids(live, newest.metadata), sequences)
    cold = None if newest.metadata is None else newest.metadata["snapshots"]
    committed = None if cold is None else {each["snapshot-id"]: each["timestamp-ms"] * 1000 for each in cold}
    return Demand(metadata, plan.snapshot_ids, placing), placing, committed


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
        )

    return TransferErrors(
        HandoffFailed,
        plan.table,
        untouched="the cold table, the live table and all its files; the plan stays open and holds them",
        if_failed="fix the cause and run the handoff again: finished batches are kept",
        gone=gone,
        if_gone="restore the file and run the handoff again; or approve the loss: "
        f"artemis approve {plan.plan_id} --lost",
    )


def _described(files: DataFrame) -> DataFrame:
    return files.selectExpr("source AS path", "destination", "kind", "size_in_bytes", "checksum", "action AS outcome")
