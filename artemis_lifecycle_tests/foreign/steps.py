"""The lifecycle's steps, alone and as the schedules order them. Each may die or be refused, and others come between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypedDict

from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle_tests.foreign.actions import CannotNowError, Draw, product
from artemis_lifecycle_tests.foreign.actors import Actors
from artemis_lifecycle_tests.foreign.core import as_rows
from artemis_lifecycle_tests.foreign.world import UNARCHIVED, called


class _Who(TypedDict):
    who: str
    why: str


WHO: _Who = {"who": "Ann", "why": "a test"}


def _table(actors: Actors, draw: Draw) -> str:
    draw.focus = actors.world.one_table(draw)
    return draw.focus


def _uncommitted(actors: Actors, name: str) -> Any:
    plan = actors.lifecycle.uncommitted_plan(called(name))
    if plan is None:
        raise CannotNowError(name)
    return plan


# --- expiration -------------------------------------------------------------------------------------------------------


@product(2)
def plan(actors: Actors, draw: Draw) -> None:
    name = _table(actors, draw)
    actors.step("plan_expiration", lambda: actors.lifecycle.plan_expiration(called(name)), name, dies=draw.dies())


@product(2)
def hand_off(actors: Actors, draw: Draw) -> None:
    name = _table(actors, draw)
    actors.step("hand_off", lambda: actors.lifecycle.hand_off(_uncommitted(actors, name)), name, dies=draw.dies())


@product(2)
def commit(actors: Actors, draw: Draw) -> None:
    name = _table(actors, draw)
    work = lambda: actors.lifecycle.commit_expiration(_uncommitted(actors, name))  # noqa: E731
    actors.step("commit_expiration", work, name, dies=draw.dies())


@product(3)
def delete(actors: Actors, draw: Draw) -> None:
    _delete_due(actors, _table(actors, draw), draw.dies())


def _delete_due(actors: Actors, name: str, dies: int | None) -> None:
    due = []
    with suppress(LifecycleError):
        due = actors.lifecycle.due_plans(called(name))
    for record in due:
        work = partial(actors.lifecycle.delete_files, record.plan_id)
        actors.step("delete_files", work, record.plan_id[:12], dies=dies)


@product(12)
def night(actors: Actors, draw: Draw) -> None:
    """What the schedules do in a night: each is a step of its own. The clock may be wrong all along, and others may
    come between any two of them."""
    name = _table(actors, draw)
    table, clock = called(name), draw.clock()
    steps: list[tuple[str, Callable[[], object]]] = [
        ("plan_expiration", lambda: actors.lifecycle.plan_expiration(table)),
        ("hand_off", lambda: actors.lifecycle.hand_off(_uncommitted(actors, name))),
        ("commit_expiration", lambda: actors.lifecycle.commit_expiration(_uncommitted(actors, name))),
    ]
    if name == UNARCHIVED:
        del steps[1]
    with actors.world.clock_at(clock):
        for step, work in steps:
            actors.step(step, work, name, f"clock {clock:+}")
            actors.perhaps_others(draw)
        _delete_due(actors, name, draw.dies())


@product(1)
def close(actors: Actors, draw: Draw) -> None:
    """Any plan that there ever was."""
    name = _table(actors, draw)
    which = draw.number(60)

    def work() -> None:
        records = actors.lifecycle.plans(called(name))
        if not records:
            raise CannotNowError(name)
        actors.lifecycle.close_plan(records[which % len(records)].plan_id, **WHO)

    actors.step("close_plan", work, name)


@product(1.5)
def approve(actors: Actors, draw: Draw) -> None:
    name = _table(actors, draw)
    what = draw.one(["lost", "large"])

    def work() -> None:
        scan, plan = actors.lifecycle.latest_scan(called(name)), actors.lifecycle.uncommitted_plan(called(name))
        if plan is not None:
            actors.lifecycle.approve(plan, what="lost" if what == "lost" else "large", **WHO)
            record = actors.lifecycle.operations.plans.get(plan.plan_id)
            actors.model.given_up.update(record.lost_approved_snapshots or ())
        if scan is not None:
            actors.lifecycle.approve(scan, **WHO)

    actors.step("approve", work, name, what)


# --- orphans ----------------------------------------------------------------------------------------------------------


@product(8)
def clean(actors: Actors, draw: Draw) -> None:
    """Orphans: the dry run says what the real one does."""
    name, clock = _table(actors, draw), draw.clock()
    if draw.chance(0.85):
        actors.other("age_files", draw)
    with actors.world.clock_at(clock):
        work = lambda: actors.lifecycle.scan_orphans(called(name))  # noqa: E731
        found = actors.step("scan_orphans", work, name, f"clock {clock:+}", dies=draw.dies())
        actors.perhaps_others(draw)
        if found is not None:
            _delete_scan(actors, found.scan_id, draw.dies())


def _delete_scan(actors: Actors, scan_id: str, dies: int | None) -> None:
    # A report also has what earlier runs of the scan deleted.
    is_new = actors.lifecycle.operations.scans.get(scan_id).state == "open"
    work = lambda: actors.lifecycle.delete_orphans(scan_id, dry_run=True)  # noqa: E731
    dry = actors.step("delete_orphans", work, scan_id[:9], "dry")
    done = actors.step("delete_orphans", lambda: actors.lifecycle.delete_orphans(scan_id), scan_id[:9], dies=dies)
    if is_new and dry is not None and done is not None and not done.failed and dry.would_delete != done.deleted:
        actors.fail(f"the dry run said that {dry.would_delete} files go, and {done.deleted} went")


@product(1)
def scan(actors: Actors, draw: Draw) -> None:
    """One that waits, while the others go on."""
    name = _table(actors, draw)
    actors.step("scan_orphans", lambda: actors.lifecycle.scan_orphans(called(name)), name, dies=draw.dies())


@product(1.5)
def delete_latest_scan(actors: Actors, draw: Draw) -> None:
    name = _table(actors, draw)
    found = None
    with suppress(LifecycleError):
        found = actors.lifecycle.latest_scan(called(name))
    if found is not None:
        _delete_scan(actors, found.scan_id, draw.dies())


@product(1.5)
def mark(actors: Actors, draw: Draw) -> None:
    """The live catalog's set; somebody sweeps by it, soon or late."""
    made = actors.step("mark", lambda: actors.lifecycle.mark(actors.world.live), dies=draw.dies())
    if made is not None:
        actors.world.live_set = made.live_set_id
        actors.perhaps_others(draw, 0.6)
        if draw.chance(0.5):
            _sweep(actors, draw)


@product(1.5)
def sweep(actors: Actors, draw: Draw) -> None:
    _sweep(actors, draw)


def _sweep(actors: Actors, draw: Draw) -> None:
    live_set = actors.world.live_set
    if live_set is None:
        raise CannotNowError("no mark")
    if draw.chance(0.85):
        actors.other("age_files", draw)
    deferred = draw.chance(0.3, "deferred")
    work = lambda: actors.lifecycle.sweep(live_set, deferred=deferred)  # noqa: E731
    swept = actors.step("sweep", work, "deferred" if deferred else "", dies=draw.dies())
    if swept is None or not deferred:
        return
    actors.world.live_set = None
    actors.perhaps_others(draw)
    for each in swept.tables:
        if each.scan_id is not None:
            actors.step("delete_orphans", partial(actors.lifecycle.delete_orphans, each.scan_id), each.table)


# --- quarantine -------------------------------------------------------------------------------------------------------


@product(1)
def undelete(actors: Actors, draw: Draw) -> None:
    name, which = _table(actors, draw), draw.number(60)

    def work() -> None:
        records = actors.lifecycle.quarantined(called(name))
        if not records:
            raise CannotNowError(name)
        actors.lifecycle.undelete(records[which % len(records)].job_id, **WHO)

    actors.step("undelete", work, name, dies=draw.dies())


@product(1)
def purge(actors: Actors, draw: Draw) -> None:
    name, due = _table(actors, draw), draw.chance(0.5, "due")

    def work() -> None:
        if due:
            actors.world.query(
                "UPDATE lifecycle.quarantines SET purge_after = now() - interval '1 s' WHERE purge_after IS NOT NULL"
            )
        actors.lifecycle.purge_quarantine(called(name))

    actors.step("purge_quarantine", work, name, "due" if due else "", dies=draw.dies())


# --- the cold tier ----------------------------------------------------------------------------------------------------


@product(1.5)
def scrub(actors: Actors, draw: Draw) -> None:
    name = _table(actors, draw)
    actors.step("scrub_cold", lambda: actors.lifecycle.scrub_cold(called(name)), name)


def _archived(actors: Actors, draw: Draw) -> tuple[str, int]:
    """A table, and a snapshot of it that only the cold tier has, by the order of commits."""
    ways = actors.look().ways
    names = {}
    for name in actors.world.names():
        with suppress(FileNotFoundError):  # Another tool's clean-up may have taken its metadata.
            names[actors.world.uuid(name)] = name
    cold = [each for each in actors.model.prints if each in ways and ways[each].kind == "cold"]
    mine = [each for each in cold if ways[each].table_uuid in names]
    # Another table's is refused.
    snapshot = draw.one(mine if mine and draw.chance(0.95) else cold, silent=True)
    name = names.get(ways[snapshot].table_uuid) or _table(actors, draw)
    draw.focus = name
    return name, snapshot


@product(5)
def restore(actors: Actors, draw: Draw) -> None:
    """And then written to, deleted from and read back."""
    name, snapshot = _archived(actors, draw)
    branch = f"back-{actors.world.number()}"
    work = lambda: actors.lifecycle.restore(called(name), snapshot, branch, **WHO)  # noqa: E731
    done = actors.step("restore", work, name, f"the {_nth(actors, snapshot)} snapshot", dies=draw.dies())
    if done is not None:
        actors.require_archived(name, branch, snapshot)
        actors.write_and_read_back(name, branch, draw)


def _nth(actors: Actors, snapshot: int) -> str:
    return f"{list(actors.model.prints).index(snapshot) + 1}."


@product(0.3)
def read(actors: Actors, draw: Draw) -> None:
    """What the product itself answers, from either tier. It asks Spark, and is therefore rare."""
    name, snapshot = _archived(actors, draw)

    def work() -> object:
        rows = actors.lifecycle.read(called(name), snapshot_id=snapshot).collect()
        return as_rows([row.asDict() for row in rows])

    found = actors.step("read", work, name, f"the {_nth(actors, snapshot)} snapshot")
    if found is not None and found != actors.model.prints[snapshot]:
        actors.fail(f"snapshot {snapshot} of {name} has {found}\nin place of {actors.model.prints[snapshot]}")


@product(1)
def archive_deep(actors: Actors, draw: Draw) -> None:
    name = _table(actors, draw)
    actors.step("deep_archive", lambda: actors.lifecycle.deep_archive(called(name)), name, dies=draw.dies())


@product(1)
def look_at_cold(actors: Actors, draw: Draw) -> None:
    name = _table(actors, draw)
    actors.step("scan_cold", lambda: actors.lifecycle.scan_cold(called(name)), name)


# --- upkeep -----------------------------------------------------------------------------------------------------------


@product(0.4)
def compact(actors: Actors, draw: Draw) -> None:
    """By Iceberg's own procedures on Spark, and therefore rare."""
    name = _table(actors, draw)
    kinds: list[Callable[[str], object]] = [actors.lifecycle.compact_manifests, actors.lifecycle.compact_data_files]
    work = draw.one(kinds, silent=True)
    actors.step(work.__name__, lambda: work(called(name)), name, dies=draw.dies())


@product(0.1)
def publish(actors: Actors, draw: Draw) -> None:
    """The result tables, which people read, stand in the live catalog."""
    actors.step("publish_results", actors.lifecycle.publish_results)


# --- dropped tables ---------------------------------------------------------------------------------------------------


@product(2)
def observe(actors: Actors, draw: Draw) -> None:
    actors.step("observe_catalog", lambda: actors.lifecycle.observe_catalog())


@product(2.5)
def clear_dropped(actors: Actors, draw: Draw) -> None:
    """A dropped table's files go when its days are over and a person has approved it, and not before."""
    world, which, dies = actors.world, draw.number(60), draw.dies()
    approved, in_time = draw.chance(0.5, "approved"), draw.chance(0.5, "in time")

    def scanned() -> Any:
        waiting = [each for each in actors.lifecycle.dropped_tables() if each.state in ("waiting", "due")]
        if not waiting:
            raise CannotNowError("nothing was dropped")
        return actors.lifecycle.scan_dropped(waiting[which % len(waiting)].table_uuid)

    if draw.chance(0.85):
        actors.other("age_files", draw)
    scan = actors.step("scan_dropped", scanned)
    if scan is None:
        return
    if not in_time:
        world.query(
            "UPDATE lifecycle.known_tables SET missing_since = now() - interval '40 days' WHERE table_uuid = %s",
            scan.table_uuid,
        )
    if approved:
        actors.step("approve", lambda: actors.lifecycle.approve(scan, **WHO), scan.table)
    actors.perhaps_others(draw)
    # An earlier try may have made it overdue, and died.
    (overdue,) = world.query(
        "SELECT bool_or(missing_since < now() - interval '30 days') FROM lifecycle.known_tables WHERE table_uuid = %s",
        scan.table_uuid,
    )[0]
    if approved and overdue and scan.table_uuid not in {held.table_uuid for held in world.holds.values()}:
        actors.approve_end(scan.table_uuid)
    work = lambda: actors.lifecycle.delete_dropped(scan)  # noqa: E731
    said = ("approved" if approved else "", "in time" if in_time else "")
    actors.step("delete_dropped", work, scan.table, *said, dies=dies)
    (is_over,) = world.query(
        "SELECT bool_and(gone_at IS NOT NULL) FROM lifecycle.known_tables WHERE table_uuid = %s", scan.table_uuid
    )[0]
    if not is_over:
        actors.forget_end(scan.table_uuid)


# --- another installation ---------------------------------------------------------------------------------------------


@product(1)
def second_deployment_walks(actors: Actors, draw: Draw) -> None:
    name = _table(actors, draw)

    def work() -> None:
        second = actors.world.second_deployment()
        second.expire(called(name))
        second.delete_orphans(second.scan_orphans(called(name)))

    actors.step("delete_orphans", work, "second", name)
