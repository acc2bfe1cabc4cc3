"""Commands of expiration: plans, their handoff, their commit and the deletion of their files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from artemis_lifecycle.cli.command import command
from artemis_lifecycle.cli.output import Result, cell, grid, print_fields, say, show, show_list, show_rows, show_table
from artemis_lifecycle.errors import BadInput, Busy, CheckFailed
from artemis_lifecycle.retention.views import few, first_few

if TYPE_CHECKING:
    from artemis_lifecycle.api import Lifecycle
    from artemis_lifecycle.expiration.plan import ExpirationPlan, WhatIf
    from artemis_lifecycle.operations.plans import PlanRecord
    from artemis_lifecycle.operations.scans import ScanRecord

app = typer.Typer()

ExpiredOption = Annotated[list[int] | None, typer.Option(help="Expire this snapshot; may be repeated.")]


@command(app, "reading the policy of {table}")
def explain_policy(lifecycle: Lifecycle, table: str) -> Iterator[object]:
    """Show where the settings of a table's retention came from."""
    found = lifecycle.explain_policy(table)
    yield found
    rows = grid(
        found.values,
        "setting, value, from=source, stated",
        stated=lambda each: "; ".join(f"{source} {said}" for source, said in each.stated.items()),
    )
    show_table(f"Policy of {table}", *rows)


@command(app, "planning {table}")
def plan(
    lifecycle: Lifecycle,
    table: str,
    now: datetime | None = None,
    older_than: datetime | None = None,
    retain_last: int | None = None,
    snapshot_id: ExpiredOption = None,
    files: bool = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="PATH", help="Explain why this file is in the plan, or why not.")
    ] = None,
    dry_run: bool = False,
    limit: int = 50,
) -> Iterator[object]:
    """Plan an expiration: seal which snapshots and files it removes, and say why the others stay. Does not change the
    table. A dry run seals nothing, and leaves a plan that waits as it is."""
    wanted = (table, now, older_than, retain_last, snapshot_id)
    if dry_run and explain is not None:
        raise BadInput("A dry run explains no file", hint=f"artemis explain {quote(table)} {quote(explain)}")
    if dry_run:
        yield from _show_plan(lifecycle.what_if(*wanted), limit, files=files)
        return
    made = lifecycle.plan_expiration(*wanted)
    record = lifecycle.operations.plans.get(made.plan_id)
    if record.status == "open" and _next_step(lifecycle, record) is None:
        with suppress(Busy):  # The next plan supersedes it.
            lifecycle.close_plan(made, who=lifecycle.resources.owner, why="nothing expires")
    if explain is not None:
        yield from show(lifecycle.explain_in_plan(made, explain), title=f"Plan {made.plan_id}")
        return
    yield from _show_plan(made, limit, files=files)
    if not files:
        say_next(lifecycle, made.plan_id)


def _next_step(lifecycle: Lifecycle, record: PlanRecord) -> str | None:
    """Return the command that an uncommitted plan needs next; None for an empty one."""
    from artemis_lifecycle.fleet.fleet import next_step
    from artemis_lifecycle.scheduling.maintenance_window import Step

    cleans = lifecycle.config.policy(record.table).retention.clean_metadata
    step = next_step(record, cold_tier=lifecycle.resources.has_cold_tier(record.table), cleans=cleans)
    return None if step is None else "hand-off" if step is Step.HANDOFF else "commit"


def say_next(lifecycle: Lifecycle, plan: str) -> None:
    """Say what is next for a plan, and from when on."""
    record = lifecycle.operations.plans.get(plan)
    if record.status in ("open", "handed_off", "closed"):
        step = _next_step(lifecycle, record)
        if step is None:
            closed = ", and the plan is closed" if record.status == "closed" else ""
            say(f"Nothing expires{closed}. Next: artemis retention-curve {record.table}, which shows other windows")
        elif record.status != "closed":
            say(f"Next: artemis {step} {plan}", unbroken=True)
    elif record.status in ("committed", "deleting"):
        due = record.due_at or lifecycle.operations.clock.now()
        left = timedelta(seconds=max(0, round((due - lifecycle.operations.clock.now()).total_seconds())))
        when = f", from {cell(due)} UTC on, in {left}" if left else ""
        say(f"Next: artemis delete {plan}{when}", unbroken=True)


def _done(lifecycle: Lifecycle, done: object, plan: str, title: str) -> Iterator[object]:
    """Show what a step has done with a plan (see `command`), and what is next."""
    yield done
    print_fields(done, title=title)
    say_next(lifecycle, plan)


def _show_plan(plan: ExpirationPlan | WhatIf, limit: int, *, files: bool = False) -> Iterator[object]:
    """Show what expires (see `command`), or the files."""
    plan_id = getattr(plan, "plan_id", "none: a dry run seals nothing")
    if files:
        yield from show_rows(plan.files().orderBy("kind", "path"), limit=limit, title=f"Files of plan {plan_id}")
        return
    yield plan
    summary = plan.summary
    print_fields(
        {
            "plan": plan_id,
            "rule": plan.settings.rule,
            "decided at": plan.decided_at,
            "cutoff": plan.cutoff,
            "snapshots": f"{summary.snapshots_expired:,} go, {summary.snapshots_kept:,} stay",
            "refs": few(plan.expired_refs) or "all stay",
        },
        title=f"Plan of {plan.table}",
    )
    kinds = [(kind.kind, f"{kind.files:,}", f"{kind.size_in_bytes:,}") for kind in summary.by_kind]
    total = ("in all", f"{summary.files:,}", f"{summary.size_in_bytes:,}")
    show_table("Files that may go after the commit", ("kind", "files", "bytes"), [*kinds, total])
    by_reasons: dict[tuple[str, ...], list[int]] = {}
    for snapshot_id, reasons in plan.kept.items():
        by_reasons.setdefault(reasons, []).append(snapshot_id)
    rows = [
        (len(ids), ids[-1], first_few(reasons))
        for reasons, ids in sorted(by_reasons.items(), key=lambda kept: -len(kept[1]))
    ]
    show_table("Why snapshots stay", ("snapshots", "the newest", "because"), rows[:limit])
    if len(rows) > limit:
        say(f"({limit} of {len(rows)} sets of reasons; --limit shows more)", dim=True)


@command(app, "comparing the plans", name="plan-diff")
def plan_diff(
    lifecycle: Lifecycle,
    before: Annotated[str, typer.Argument(help="The id of a plan.", metavar="A")],
    after: Annotated[str, typer.Argument(help="The id of another plan of the same table.", metavar="B")],
    files: bool = False,
    limit: int = 50,
) -> Iterator[object]:
    """Show what plan B removes and plan A does not, and the opposite: snapshots and why, refs, files and bytes."""
    found = lifecycle.plan_difference(before, after)
    if files:
        listed = found.files().orderBy("change", "kind", "path")
        yield from show_rows(listed, limit=limit, title=f"From plan {before} to {after}")
        return
    yield found
    refs = [f"+ {ref}" for ref in found.refs_added] + [f"- {ref}" for ref in found.refs_removed]
    say(f"{found.table}: refs removed by one alone: {few(refs) or 'none'}")
    snapshots = [
        ({"added": "+", "removed": "-"}[change.change], change.snapshot_id, change.why) for change in found.snapshots
    ]
    show_table("Snapshots", ("in B", "snapshot", "the other plan keeps it because"), snapshots[:limit])
    if len(snapshots) > limit:
        say(f"({limit} of {len(snapshots)} snapshots; --limit shows more)", dim=True)
    columns = "kind, + files=added_files:,, + bytes=added_bytes:,, - files=removed_files:,, - bytes=removed_bytes:,"
    show_table("Files", *grid(found.by_kind, columns))


@command(app, "reading the plans")
def plans(lifecycle: Lifecycle, table: str) -> Iterator[object]:
    """List the plans of a table, newest first, with their status."""
    return show_list(
        lifecycle.plans(table),
        f"Plans of {table}",
        "plan=plan_id, status, planned at=planned_at, snapshots=expired_snapshots:,, files:,, bytes:,, due at=due_at, "
        "approved",
        status=lambda each: each.status.replace("_", " "),
        approved=approvals,
    )


def approvals(record: PlanRecord | ScanRecord) -> list[str]:
    given = [("large", record.approved_by, record.approved_at, record.approved_why)]
    # A scan loses nothing.
    by, at, why = (getattr(record, f"lost_approved_{what}", None) for what in ("by", "at", "why"))
    given.append(("lost", by, at, why))
    return [f"{what}: {who}, {cell(at)}: {why}" for what, who, at, why in given if who]


@command(app, "copying to the cold tier", name="hand-off")
def hand_off(lifecycle: Lifecycle, plan: str, dry_run: bool = False) -> Iterator[object]:
    """Copy a plan's expired snapshots to the cold tier, verify them, and publish them in the cold catalog."""
    return _done(lifecycle, lifecycle.hand_off(plan, dry_run=dry_run), plan, f"Handoff of {plan}")


@command(app, "checking")
def check(lifecycle: Lifecycle, plan: str) -> Iterator[object]:
    """Run a plan's checks again. A plan with a failed check is neither committed nor deleted."""
    found = lifecycle.check_plan(plan)
    passed = all(each.passed for each in found)
    yield Result([asdict(each) for each in found], exit_code=0 if passed else CheckFailed.exit_code)
    rows = grid(
        found,
        "check, result, found=text",
        result=lambda each: "passed" if each.passed else "FAILED",
        text=lambda each: "; ".join((each.text, *each.offenders[:3])),
    )
    show_table(f"Checks of {plan}", *rows)


@command(app, "committing", confirm="plan")
def commit(lifecycle: Lifecycle, plan: str, dry_run: bool = False) -> Iterator[object]:
    """Remove a plan's snapshots from the table's metadata in one commit."""
    return _done(lifecycle, lifecycle.commit_expiration(plan, dry_run=dry_run), plan, f"Commit of {plan}")


@command(app, "deleting", confirm="plan")
def delete(lifecycle: Lifecycle, plan: str, now: datetime | None = None, dry_run: bool = False) -> Iterator[object]:
    """Delete the files of a committed plan whose grace is over. Resumes where an earlier run stopped."""
    return _done(lifecycle, lifecycle.delete_files(plan, now=now, dry_run=dry_run), plan, f"Deletion of {plan}")


@command(app, "expiring {table}", confirm="table")
def expire(
    lifecycle: Lifecycle,
    table: str,
    now: datetime | None = None,
    older_than: datetime | None = None,
    retain_last: int | None = None,
    snapshot_id: ExpiredOption = None,
    dry_run: bool = False,
) -> Iterator[object]:
    """Plan, hand off, commit, and delete if the grace is over: all steps in order. A dry run shows what would go."""
    if dry_run:
        return _show_plan(lifecycle.what_if(table, now, older_than, retain_last, snapshot_id), 50)
    done = lifecycle.expire(table, now=now, older_than=older_than, retain_last=retain_last, snapshot_ids=snapshot_id)
    return _done(lifecycle, done, done.job_id, f"Expiration of {table}")
