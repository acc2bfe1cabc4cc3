"""Invariants, recomputed from the catalog, the stores and Postgres after the step that they check. They do not trust
what an asset reported.

Each check has the table partitions: without them, one table's success would hide another's failure. Dagster's blocking
checks stop only the same run. So the plan stores the verdicts of blocking checks, and its next steps require them.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import dagster as dg

from artemis_lifecycle.audit.schema_history import DESCRIBED, RECORDED, SCHEMAS
from artemis_lifecycle.audit.watch import LineageCheck
from artemis_lifecycle.catalogs.guard import GuardState
from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.defs.common import as_dagster_failure, maintenance_job, waiting_op
from artemis_lifecycle.defs.evidence import reachable_presence
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import JOB_TAG, is_judged, lacks, tables
from artemis_lifecycle.errors import NotApplicable
from artemis_lifecycle.escaping import table_of, terminal
from artemis_lifecycle.expiration.verdicts import COPY_VERIFIED, KEEPS_EVERY_REF, KEEPS_WINDOW_EDGE, Verdict
from artemis_lifecycle.operations.cold_tier import ColdLoss
from artemis_lifecycle.operations.plans import HOLDING
from artemis_lifecycle.orphans.trend import FRESH, INTACT, SHARE
from artemis_lifecycle.upkeep.health import COMMIT_COSTS, DATA_FILES_UNCHANGED, MANIFESTS_UNCHANGED, health_check
from artemis_lifecycle.upkeep.score import PARTS
from artemis_lifecycle.walk.plan_checks import ALL_CHECKS, NAMED

# Checks per partition are a preview feature of Dagster 1.13. Definitions copies the specs later, so the filter must
# stay.
warnings.filterwarnings(
    "ignore",
    message="Specifying a partitions_def on an AssetCheckSpec is currently in preview",
    category=dg.PreviewWarning,
)

GUARD_RESTORED = timedelta(days=1)
"""How long the check still warns after a broken guard of the cold catalog was restored."""


Context = dg.AssetCheckExecutionContext
Result = dg.AssetCheckResult
Judge = Callable[[Context, LifecycleResource], Result]
"""A check's function. It needs the instance and the partition of its context, which ops have, too."""

JUDGES: dict[tuple[str, str], Judge] = {}
"""Each check's function, by asset and name."""

ALL: list[dg.AssetChecksDefinition] = []

DAILY: list[tuple[str, str]] = []
"""The checks that the job `health_checks` runs: they rewrite, copy and walk nothing."""


def noted(lifecycle: LifecycleResource, asset: str, name: str, partition: str, result: Result) -> Result:
    """Record the result of a check, for the fleet's page, the metrics and the alerts."""
    with as_dagster_failure():
        is_red = not result.passed and result.severity is dg.AssetCheckSeverity.ERROR
        lifecycle.get().operations.check_results.note(
            table_of(partition), asset, name, result.description or "", is_red=is_red
        )
    return result


def _where_applicable(asset: str, name: str, judge: Judge) -> Judge:
    """Judge nothing for a table whose kind does not have the asset, or not what the check is about. Record the result,
    unless the plan has it."""

    @wraps(judge)
    def judged(context: Context, lifecycle: LifecycleResource) -> Result:
        missing = lacks(lifecycle.get().kind(table_of(context.partition_key)), asset)
        try:
            with as_dagster_failure():
                result = judge(context, lifecycle) if missing is None else _not_judged(missing)
        except NotApplicable as error:
            result = _not_judged(error.what)
        return result if name in ALL_CHECKS else noted(lifecycle, asset, name, context.partition_key, result)

    return judged


def _check(
    asset: str, *, name: str | None = None, description: str | None = None, blocking: bool = False, daily: bool = False
) -> Callable[[Judge], Any]:
    def decorate(judge: Judge) -> Any:
        called = name or judge.__name__
        judged = JUDGES[asset, called] = _where_applicable(asset, called, judge)
        if daily:
            DAILY.append((asset, called))
        declared = dg.asset_check(
            asset=dg.AssetKey(asset), name=called, description=description, blocking=blocking, partitions_def=tables
        )
        ALL.append(declared(judged))
        return ALL[-1]

    return decorate


def _result(
    passed: bool, description: str, offenders: Iterable[object] = (), *, warn: bool = False, **numbers: Any
) -> Result:
    named = list(offenders)
    return dg.AssetCheckResult(
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN if warn else dg.AssetCheckSeverity.ERROR,
        description=terminal(description),
        metadata={
            **numbers,
            **({"offenders": ui_metadata.table(["offender"], [(offender,) for offender in named])} if named else {}),
        },
    )


def _not_judged(why: str) -> Result:
    """Return the result of a check that has nothing to judge. Dagster requires one, and knows no third color: whoever
    counts results leaves it out (`tags.is_judged`)."""
    return _result(True, f"Does not apply: {why.rstrip('.')}.", warn=True, judged=False)


@_check("snapshot_history", daily=True)
def metadata_age(context: Context, lifecycle: LifecycleResource) -> Result:
    """The last materialized history matches the table's current metadata file, or is younger than
    checks.metadata_age."""
    steps, table = lifecycle.get(), table_of(context.partition_key)
    allowed = steps.config.policy(table).checks.metadata_age
    history, now = steps.snapshot_history(table), steps.operations.clock.now()
    newest = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(lifecycle.key("snapshot_history"), asset_partitions=[context.partition_key]), limit=1
    ).records
    if not newest:
        return _result(False, "The table's history was never materialized.")
    pinned = newest[0].asset_materialization
    seen = pinned.metadata.get("metadata_location") if pinned is not None else None
    age = now - datetime.fromtimestamp(newest[0].timestamp, tz=UTC)
    current = seen == ui_metadata.place(history.metadata_location)
    return _result(
        current or age <= allowed,
        "It is the current metadata file." if current else f"The table has changed; the history was read {age} ago.",
        is_current=current,
        age_seconds=round(age.total_seconds()),
    )


def _required(context: Context, lifecycle: LifecycleResource, check: str) -> Result:
    """Evaluate a check that the plan's commit and deletion require. Its verdict is stored, so it also stops later
    runs."""
    steps, table = lifecycle.get(), table_of(context.partition_key)
    plan = steps.uncommitted_plan(table)
    if plan is None:
        return _not_judged("the table has no uncommitted plan, so there is nothing to remove")
    (verdict,) = steps.check_plan(plan, check)
    return _verdict(verdict, plan_id=plan.plan_id)


def report(context: dg.OpExecutionContext, lifecycle: LifecycleResource, asset: str, name: str, result: Result) -> None:
    """Write the result of a check that an op ran to Dagster's event log."""
    found = dg.AssetCheckEvaluation(
        lifecycle.key(asset),
        name,
        result.passed,
        metadata=result.metadata,
        severity=result.severity,
        description=result.description,
        partition=context.partition_key,
    )
    context.log_event(found)  # type: ignore[arg-type]  # Dagster accepts these; its annotation omits them.


def _verdict(verdict: Verdict, **numbers: Any) -> Result:
    figures: dict[str, Any] = {
        name: dg.MetadataValue.timestamp(value) if isinstance(value, datetime) else value
        for name, value in verdict.figures.items()
    }
    if not verdict.judged:
        return _not_judged(verdict.text)
    return _result(verdict.passed, verdict.text, verdict.offenders[:NAMED], warn=verdict.warns, **numbers, **figures)


def _table_check(asset: str, name: str, description: str) -> Any:
    """Return the Dagster check that judges a table as `Lifecycle.check_table` does."""

    def check(context: Context, lifecycle: LifecycleResource) -> Result:
        (verdict,) = lifecycle.get().check_table(table_of(context.partition_key), name)
        return _verdict(verdict)

    return _check(asset, name=name, description=description, daily=True)(check)


OF_TABLES = tuple(
    _table_check(*each)
    for each in (
        *(
            (
                "table_health",
                health_check(part),
                f"The part {part} of the table's score is above checks.health.{part}.warn; fails below .error.",
            )
            for part in PARTS
        ),
        (
            "table_health",
            COMMIT_COSTS,
            "What commits write for each changed file does not grow with the table. Warns; see artemis commit-costs.",
        ),
        ("lineage_ledger", RECORDED, "The ledger has each snapshot that is older than checks.metadata_age."),
        ("lineage_ledger", DESCRIBED, "At most checks.incomplete_snapshots summaries miss required lineage."),
        ("schema_history", SCHEMAS, "Each snapshot's schema exists, and field ids keep their types or are promoted."),
        (
            "compacted_data_files",
            DATA_FILES_UNCHANGED,
            "The newest compaction kept all rows, and all refs but main. Counts the rows again for two days.",
        ),
        (
            "compacted_manifests",
            MANIFESTS_UNCHANGED,
            "The newest compaction kept all rows, and all refs but main. Counts the rows again for two days.",
        ),
        ("object_listing", FRESH, "The newest listing is younger than checks.listing_age and covers the table."),
        ("object_listing", INTACT, "The sealed listing matches its checksums, its number of files and its bytes."),
        (
            "orphan_scan",
            SHARE,
            "Fails above checks.orphan_share.error. Warns if the last scans were all above checks.orphan_share.warn.",
        ),
    )
)
"""The checks against the thresholds `checks` of each table's policy."""


@_check("expiration_plan", blocking=True)
def plan_keeps_every_ref(context: Context, lifecycle: LifecycleResource) -> Result:
    """No branch or tag that the plan keeps points to a snapshot that the plan removes, in the table's current state."""
    return _required(context, lifecycle, KEEPS_EVERY_REF)


@_check("expiration_plan", blocking=True)
def plan_keeps_window_edge(context: Context, lifecycle: LifecycleResource) -> Result:
    """The plan keeps every snapshot that was current at any time in the window, including the one at its edge."""
    return _required(context, lifecycle, KEEPS_WINDOW_EDGE)


@_check("cold_tier_snapshots", blocking=True)
def cold_copy_verified(context: Context, lifecycle: LifecycleResource) -> Result:
    """The plan's snapshots are in the cold table and readable from cold storage alone, and their copies verify."""
    return _required(context, lifecycle, COPY_VERIFIED)


@_check("cold_tier_snapshots", daily=True)
def cold_files_are_as_recorded(context: Context, lifecycle: LifecycleResource) -> Result:
    """No cold file of the table is lost: every file that a scrub found missing or damaged matches its record again."""
    return judge_losses(lifecycle.get().cold_losses(table_of(context.partition_key)))


@_check("cold_tier_snapshots", daily=True)
def cold_catalog_is_guarded(context: Context, lifecycle: LifecycleResource) -> Result:
    """The cold catalog's triggers are intact, so that only a handoff writes to it or drops from it. Warns for a day
    after broken triggers were restored."""
    steps = lifecycle.get()
    return judge_guard(steps.cold_guard(), steps.operations.clock.now())


def judge_guard(found: GuardState | None, now: datetime) -> Result:
    """Fail while the guard is broken and the cold catalog has tables to guard."""
    if found is None:
        return _result(False, "The cold catalog is not in SQL: nothing prevents other writers.", warn=True)
    if not found.in_use:
        return _not_judged("there was no handoff yet, so there is nothing to guard")
    lately = [each for each in found.restorations if now - each.restored_at <= GUARD_RESTORED]
    if found.condition != "present":
        text = f"The guard of the cold catalog is {found.condition}: any engine can change or drop its tables."
        return _result(False, text, found.problems, state=found.condition)
    return _result(
        not lately,
        "The guard was broken and is now restored. Check what was written to the cold catalog in the meantime."
        if lately
        else "The guard is intact.",
        [f"{each.restored_at:%Y-%m-%d %H:%M:%S} by {each.restored_by}: {each.found}" for each in lately],
        warn=True,
        state=found.condition,
    )


def judge_losses(losses: Sequence[ColdLoss], repaired: int = 0) -> Result:
    """Fail while files are lost; warn about files that were repaired."""
    if losses:
        return _result(
            False,
            f"{len(losses):,} cold files are lost: missing or damaged, and the live table no longer has them.",
            [f"{loss.path}: {loss.reason}" for loss in losses[:NAMED]],
            lost=len(losses),
            repaired=repaired,
        )
    if repaired:
        text = (
            f"{repaired:,} cold files were missing or damaged, and were copied from live again. Check the cold store."
        )
        return _result(False, text, warn=True, lost=0, repaired=repaired)
    return _result(True, "No cold file is lost.", lost=0, repaired=0)


def _presence(context: Context, lifecycle: LifecycleResource) -> Result:
    steps, table = lifecycle.get(), table_of(context.partition_key)
    found = reachable_presence(steps, table)
    if found.absent_files and table not in {pause.table for pause in steps.pauses()}:
        # Whatever took them, no more of this table is deleted until a person has seen it.
        steps.pause(table, who="artemis-lifecycle", why=f"{found.absent_files:,} reachable files are gone")
    return _result(
        not found.absent_files,
        f"All {found.reachable_files:,} files that the table's snapshots reach are in the store."
        if not found.absent_files
        else f"{found.absent_files:,} of {found.reachable_files:,} reachable files are not in the store.",
        found.absent,
        files=found.reachable_files,
        files_absent=found.absent_files,
        metadata_location=ui_metadata.place(found.metadata_location),
    )


@_check("physical_deletion")
def nothing_reachable_deleted(context: Context, lifecycle: LifecycleResource) -> Result:
    """Every file that any snapshot of the table reaches is in the store. Walks the metadata again after the
    deletion."""
    return _presence(context, lifecycle)


@_check("orphan_deletion", name="nothing_reachable_deleted")
def nothing_reachable_deleted_as_orphan(context: Context, lifecycle: LifecycleResource) -> Result:
    """Every file that any snapshot of the table reaches is in the store. Walks the metadata again after the
    deletion."""
    return _presence(context, lifecycle)


@_check("orphan_scan", daily=True)
def in_flight_files_settle(context: Context, lifecycle: LifecycleResource) -> Result:
    """Files skipped as in flight become committed files or orphans. Many of them in every scan mean that they do
    not."""
    steps, table = lifecycle.get(), table_of(context.partition_key)
    found = steps.in_flight(table)
    if found is None:
        return _result(False, "The table has no scan.", warn=True)
    return _result(
        found.settles,
        str(found),
        [f"{beat.writer_id} on {beat.host}, since {beat.started_at:%Y-%m-%d %H:%M}" for beat in found.endless],
        warn=True,
        scans_above=found.scans,
        in_flight_share=round(found.share, 6),
        too_young=found.too_young,
        live_writers=found.live_writers,
    )


@_check("physical_deletion", daily=True)
def no_plan_waits_too_long(context: Context, lifecycle: LifecycleResource) -> Result:
    """No plan holds its files for longer than checks.plan_age plus its grace: otherwise it could hold them forever."""
    steps, table = lifecycle.get(), table_of(context.partition_key)
    now, policy = steps.operations.clock.now(), steps.config.policy(table)
    allowed = policy.checks.plan_age + policy.deletion.grace
    waiting = [record for record in steps.plans(table) if record.status in HOLDING]
    age = now - min((record.planned_at for record in waiting), default=now)
    late = [record for record in waiting if now - record.planned_at > allowed]
    return _result(
        not late,
        f"Plans that hold files: {len(waiting)}. The oldest was planned {age.total_seconds() / 3600:.1f} hours ago."
        if waiting
        else "No plan holds files.",
        [
            f"{record.plan_id}, {record.status.replace('_', ' ')}, planned {record.planned_at:%Y-%m-%d}"
            for record in late
        ],
        warn=True,
        plans=len(waiting),
        oldest_seconds=round(age.total_seconds()),
    )


LINEAGE_GATE = "lineage_gate"


@_check("lineage_ledger", blocking=True)
def lineage_gate(context: Context, lifecycle: LifecycleResource) -> Result:
    """Every snapshot since the watch began states its lineage as lifecycle.yaml requires, or a person acknowledged
    it. Warns where the catalog could have a gate and has none: `artemis gate enable`."""
    return judge_lineage(lifecycle.get().check_lineage(table_of(context.partition_key)))


def judge_lineage(found: LineageCheck) -> Result:
    """Fail while the table has unacknowledged snapshots without its required lineage. Warn in mode `report`, and where
    the gate that would have rejected them is not enabled."""
    if not found.unmet:
        return _result(True, "Every snapshot since the watch began states its lineage.", mode=found.mode, unmet=0)
    return _result(
        False,
        f"{len(found.unmet):,} snapshots do not meet the table's lineage requirements. "
        + (
            "Nothing rejects such commits: enable the gate of its catalog with: artemis gate enable. Then"
            if found.gate_missing
            else "Find out who commits without a gate; then"
        )
        + f": artemis gate acknowledge {found.table}",
        [f"{each.snapshot_id}: {'; '.join(each.problems)}" for each in found.unmet[:NAMED]],
        warn=found.passed,
        mode=found.mode,
        unmet=len(found.unmet),
    )


# --- health checks ----------------------------------------------------------------------------------------------------
# The job that runs the checks of a table every day, whether or not something was materialized.


@maintenance_job(
    "health_checks",
    "Runs the checks of a table that need no new materialization: ages, health, lineage, schemas, compactions, "
    "listing, orphan share, cold losses. Changes nothing.",
)
def check_health(context: dg.OpExecutionContext, lifecycle: LifecycleResource) -> None:
    """Run the checks of the table that rewrite, copy and walk nothing. One that cannot run does not stop the others."""
    judged, red, broken = 0, list[str](), list[dg.Failure]()
    for asset, name in DAILY:
        try:
            # A job of checks alone has no partitions in Dagster 1.13, so this op runs them.
            result = JUDGES[asset, name](context, lifecycle)  # type: ignore[arg-type]
        except dg.Failure as failure:
            broken.append(failure)
            continue
        if not is_judged(result.metadata):
            continue
        judged += 1
        if not result.passed:
            red.append(f"{asset}: {name}")
        report(context, lifecycle, asset, name, result)
    context.add_output_metadata({"checks": judged, "not_passed": ", ".join(red) or "none"})
    if broken:
        raise broken[0]


@dg.op(tags={"kind": "postgres"})
@waiting_op
def check_lineage(context: dg.OpExecutionContext, lifecycle: LifecycleResource) -> None:
    """Run the check `lineage_gate` of the table. Starts no Spark."""
    asset = "lineage_ledger"
    result = JUDGES[asset, LINEAGE_GATE](context, lifecycle)  # type: ignore[arg-type]
    report(context, lifecycle, asset, LINEAGE_GATE, result)


@dg.job(partitions_def=tables, tags={JOB_TAG: "lineage_check"})
def lineage_check() -> None:
    """Turns the check `lineage_gate` red or green. The sensor `lineage_watch` requests it for new snapshots that do not
    meet their table's requirements: Dagster 1.13 stores one evaluation of a partition without a run, and no second."""
    check_lineage()
