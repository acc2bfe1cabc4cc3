"""A worker of the storm: steps of the walk, on any table, in any order, without pause.

    python -m artemis_lifecycle_tests.soak.worker HOME NAME SEED [DIE]

DIE is the number of the crash point, of all that it reaches, at which it kills itself and its JVM.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.plans import PlanStatus
from artemis_lifecycle_tests.soak import place
from artemis_lifecycle_tests.soak.dying import kill_all
from artemis_lifecycle_tests.soak.journal import Journal

Step = Callable[[Lifecycle, str, random.Random], Mapping[str, Any] | None]


def _plan(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any]:
    return {"expires": len(lifecycle.plan_expiration(table).expired_snapshots)}


def _hand_off(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any] | None:
    plan = lifecycle.uncommitted_plan(table)
    if plan is None:
        return None
    done = lifecycle.hand_off(plan)
    return {"archived": len(done.archived), "copied": done.copied_files}


def _commit(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any] | None:
    plan = lifecycle.uncommitted_plan(table)
    return None if plan is None else {"expired": lifecycle.commit_expiration(plan).snapshots_removed}


def _delete(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any] | None:
    due = lifecycle.due_plans(table)
    if not due:
        return None
    done = lifecycle.delete_files(dice.choice(due).plan_id)
    return {"deleted": done.deleted, "kept": done.kept, "failed": done.failed}


def _expire(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any]:
    return {"deleted": lifecycle.expire(table).deleted}


def _scan(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any]:
    return {"orphans": lifecycle.scan_orphans(table).summary.orphan_files}


def _delete_orphans(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any] | None:
    begun = lifecycle.interrupted_scans(table)
    newest = lifecycle.latest_scan(table)
    scan_id = dice.choice(begun).scan_id if begun else None if newest is None else newest.scan_id
    if scan_id is None:
        return None
    done = lifecycle.delete_orphans(scan_id)
    return {"deleted": done.deleted, "kept": done.kept, "failed": done.failed}


def _compact(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any]:
    return {"rewritten": lifecycle.compact_data_files(table).rewritten_files}


def _compact_manifests(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any]:
    return {"rewritten": lifecycle.compact_manifests(table).rewritten_manifests}


def _lineage(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any]:
    return {"added": lifecycle.record_lineage(table).snapshots}


def _hold(lifecycle: Lifecycle, table: str, dice: random.Random) -> None:
    ids = [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history(table).snapshots]
    until = lifecycle.operations.clock.now() + timedelta(seconds=20)
    # Over by itself: nobody has to release what a killed worker placed.
    lifecycle.hold(table, "soak", "an audit", snapshot_ids=dice.sample(ids, min(len(ids), 2)), until=until)


def _explain(lifecycle: Lifecycle, table: str, dice: random.Random) -> Mapping[str, Any] | None:
    done = [record for record in lifecycle.plans(table) if record.status == PlanStatus.DONE and record.files]
    if not done:
        return None
    file = lifecycle.plan(done[0].plan_id).files().first()
    assert file is not None
    return {"verdict": lifecycle.explain(table, file["path"]).verdict}


STEPS: Mapping[str, tuple[float, Step]] = {
    "plan": (4, _plan),
    "handoff": (4, _hand_off),
    "commit": (4, _commit),
    "deletion": (5, _delete),
    "expire": (2, _expire),
    "orphan scan": (2, _scan),
    "orphan deletion": (3, _delete_orphans),
    "compaction": (0.5, _compact),
    "manifest compaction": (0.5, _compact_manifests),
    "lineage": (1, _lineage),
    "hold": (0.5, _hold),
    "explain": (0.5, _explain),
}


def work(
    lifecycle: Lifecycle,
    tables: tuple[str, ...],
    dice: random.Random,
    journal: Journal,
    over: Callable[[], bool],
) -> None:
    """Steps until it is over. Errors that are the project's own are what a worker may meet; others are defects."""
    while not over():
        table = dice.choice(tables)
        name = dice.choices(list(STEPS), [weight for weight, _ in STEPS.values()])[0]
        journal.write("begin", step=name, table=table)
        began = time.monotonic()
        try:
            counts = STEPS[name][1](lifecycle, table, dice)
        except LifecycleError as error:
            journal.write("error", step=name, table=table, kind=type(error).__name__, said=str(error)[:500])
            time.sleep(0.2)
        except Exception as error:
            journal.write("unexpected", step=name, table=table, kind=type(error).__name__, said=traceback.format_exc())
            time.sleep(0.2)
        else:
            journal.write("done", step=name, table=table, seconds=round(time.monotonic() - began, 2), counts=counts)


def main() -> int:
    home, name, seed, *die = sys.argv[1:]
    where = place.load(home)
    journal = Journal(where.journal(name))
    with ExitStack() as stack:
        if die:
            started, left = time.monotonic(), int(die[0])
            ripe: float | None = None

            def reached(point: str) -> None:
                nonlocal left, ripe
                # As those that others kill: not before it has worked for as long as it took to start.
                ripe = ripe or 2 * time.monotonic() - started
                left -= time.monotonic() > ripe
                if left == 0:
                    journal.write("dies", point=point)
                    kill_all(os.getpid())
                    os.kill(os.getpid(), signal.SIGKILL)

            stack.enter_context(crash_points.installed(reached))
        while not where.stopping:
            try:
                lifecycle = stack.enter_context(Lifecycle.open(where.config_path, owner=name))
                journal.write("opened", pid=os.getpid(), spark=lifecycle.spark.version)
            except LifecycleError as error:
                journal.write("error", step="open", kind=type(error).__name__, said=str(error)[:500])
                time.sleep(0.5)
                continue
            work(lifecycle, where.tables, random.Random(int(seed)), journal, lambda: where.stopping)
    return 0


if __name__ == "__main__":
    sys.exit(main())
