"""The handoff: expired snapshots copied, verified, and published as one commit of the cold table. Resumable by batch.

Order: what is needed is sealed; contents, then manifests, then manifest lists are copied, each batch recorded when all
of it is verified; then one metadata file is written, parsed by Iceberg's own parser, and published by compare-and-swap.
Until then the cold table is as it was, and whatever was copied counts for the next try.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import TYPE_CHECKING

from artemis_lifecycle.cold_tier.cold_entries import cold_identity, open_entries
from artemis_lifecycle.cold_tier.cold_split import Json
from artemis_lifecycle.cold_tier.demand import Demand
from artemis_lifecycle.cold_tier.evolution import archive_ids, with_lists
from artemis_lifecycle.cold_tier.handoff_context import HandoffContext, HandoffInput
from artemis_lifecycle.cold_tier.handoff_outcome import NOTHING_ARCHIVED, HandoffOutcome, record_outcome
from artemis_lifecycle.cold_tier.ledger import COPIED, PRESENT, REWRITTEN, VERIFIED, handoff_ledger
from artemis_lifecycle.cold_tier.paths import PathMapping
from artemis_lifecycle.cold_tier.publication import Publication, publish
from artemis_lifecycle.cold_tier.transfer import Consent, Transfer, TransferErrors
from artemis_lifecycle.cold_tier.work import Problem
from artemis_lifecycle.errors import HandoffFailed, NoSuchTable, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import metadata_json, parse_table_metadata, refuse_encrypted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Handoff:
    """What a handoff did. Sizes in bytes; `verified_files` are those whose copy was read back and compared.

    `archived` are the plan's snapshots that the cold table now has; `lost` those it cannot have, because a file of
    theirs is gone (`lost_files`); `overtaken` those whose loss is expected: another tool had expired them before.
    `thinned` are those that the policy does not archive, because it archives a neighbor.
    `repaired_files` are copies of earlier handoffs that were lost in cold, made again from live.
    `cold_metadata_location` is NOTHING_ARCHIVED when none was left to publish. `reused_files` were copied in earlier
    handoffs or found in place; nothing was sent for them. Of a dry run, only `would_copy_…`, `lost` and `thinned` say
    anything.
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
        """DataFrame[path, destination, kind, size_in_bytes, checksum, outcome] of this plan's copies; None if it had
        none."""
        return None if self._files is None else self._files()


def hand_off(
    context: HandoffContext,
    plan: HandoffInput,
    *,
    allow_lost: bool = False,
    overtaken: Collection[int] = (),
    dry_run: bool = False,
) -> Handoff:
    """Copy all that the plan's snapshots read to the cold tier, verify it, and publish them in the cold catalog.

    Running it again finishes what is left, and is a no-op when all is done. A table whose policy has no cold tier, and
    a plan without snapshots, are no-ops. `allow_lost`: a person approved that snapshots whose files are gone stay out,
    and that files of another size than recorded are taken as they are. `overtaken` are snapshots of the plan that the
    live table no longer has, because another tool expired them: they need no approval to stay out when their files are
    gone.

    `dry_run` reads the metadata, counts what is not copied yet, and writes nothing.

    Raises HandoffFailed, the cold table unchanged, when a file is gone and that is not approved, or a file cannot be
    copied, verified or rewritten; UnreadableMetadata when the base metadata file is broken; EncryptedTable;
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
    demand, placing = _demand(context, plan, base, live, dry_run=dry_run)
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
    work, losses = transfer.run()
    archived = tuple(snapshot for snapshot in work.snapshot_ids if snapshot not in losses.snapshot_ids)
    what = Publication(plan, placing, demand.metadata, live, frozenset(archived))
    location, attempts = publish(context, what)
    # What an earlier run sealed counts: a change of policy since then is the next plan's.
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
) -> tuple[Demand, PathMapping]:
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
    identity = cold_identity(context, plan.table, plan.table_uuid, metadata.location, dry_run=dry_run)
    with open_entries(context, plan.table, plan.table_uuid) as entries:
        cold = entries.newest(identity).metadata
    # Manifests name specs by the archive's ids from their first copy on: what they say is settled before.
    placing = PathMapping(identity, archive_ids(live, cold))
    return Demand(metadata, plan.snapshot_ids, placing), placing


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
        if_failed="fix what it says and run the handoff again: finished batches are kept",
        gone=gone,
        if_gone="restore the file and run the handoff again; or approve the loss: "
        f"artemis approve {plan.plan_id} --lost",
    )


def _described(files: DataFrame) -> DataFrame:
    return files.selectExpr("source AS path", "destination", "kind", "size_in_bytes", "checksum", "action AS outcome")
