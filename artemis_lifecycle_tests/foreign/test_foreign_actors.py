"""The lifecycle's steps and everything that others do, in any order, on real tables: after each step of the lifecycle
every snapshot that could be read before it can be read, from one tier or the other, with the same rows.

`model.py` says what counts as readable, and what others may destroy. For half a minute in `make test`, an hour in `make
soak` (`$ARTEMIS_FOREIGN_MINUTES`). A failure prints the whole history; `$ARTEMIS_SEED` draws the same one again, as far
as the machine's pace lets it. `$ARTEMIS_FOREIGN_WITHOUT` names actions, or what is said of
them, to leave out (`second,the other spelling`): so one gets behind what is known.
"""

from __future__ import annotations

import functools
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar

import psycopg2
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from pyspark.sql import SparkSession

from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.end_report import add_lines
from artemis_lifecycle_tests.foreign.model import Model, Observation
from artemis_lifecycle_tests.foreign.world import (
    NAMES,
    POLICIES,
    CannotNowError,
    World,
    connected,
    libpq,
    prepare_clock,
)
from artemis_lifecycle_tests.guardian import GUARDIAN, LossError

# Read before the fixture of the tests' conftest takes such variables away.
MINUTES = float(os.environ.get("ARTEMIS_FOREIGN_MINUTES", "0.5"))
SEED = int(os.environ.get("ARTEMIS_SEED", "0"))
WITHOUT = set(os.environ.get("ARTEMIS_FOREIGN_WITHOUT", "").split(","))
STEPS = 60
"""Rules that one world lives through."""

WHO = {"who": "Ann", "why": "a test"}


def _one_of_now(machine: Actors) -> st.SearchStrategy[str]:
    # One range of numbers for any count of names: which tables there are depends on the machine's pace, and Hypothesis
    # refuses a choice whose constraints change.
    names = machine.seen.names or NAMES
    return st.integers(0, 59).map(lambda number: names[number % len(names)])


TABLE = st.runner().flatmap(_one_of_now)
"""One that there is now."""
NAME = st.sampled_from(NAMES)
NUMBER = st.integers(0, 30)
DIES = st.none() | st.none() | st.integers(0, 40)
"""At which of the places between two writes the worker of a step dies, if it does."""
CLOCK = st.sampled_from([0, 0, 0, 0, 40, -40])
"""By how many days Postgres' clock is wrong during a step."""

BETWEEN = (
    "append",
    "overwrite",
    "roll_back",
    "expire_by_iceberg",
    "expire_by_pyiceberg",
    "stage_file",
    "take_up_expired_file",
    "lose_cold_file",
    "set_location",
    "restore_catalog",
    "drop",
    "back_up_operations",
)
"""What others do between two steps of a night."""

NIGHT = {
    "name": TABLE,
    "dies": DIES,
    "clock": CLOCK,
    "between": st.none() | st.sampled_from(BETWEEN),
    "at": st.integers(0, 2),
}
CLEANING = {"name": TABLE, "dies": DIES, "clock": CLOCK, "ages": st.booleans()}


class WrongError(AssertionError):
    """The lifecycle lost something, or failed with what is not an error of its own."""


def act(**strategies: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule, until the time is over."""

    def decorated(work: Callable[..., None]) -> Any:
        @functools.wraps(work)
        def act(self: Actors, **drawn: Any) -> None:
            self.is_over = self.is_over or time.monotonic() > self.end
            if not self.is_over:
                work(self, **drawn)

        return rule(**strategies)(act)

    return decorated


class Actors(RuleBasedStateMachine):
    """One world with everybody in it. Class attributes are the test's."""

    make: ClassVar[Callable[[], World]]
    end: ClassVar[float]
    counted: ClassVar[Counter[str]]
    failures: ClassVar[list[WrongError]]

    def __init__(self) -> None:
        super().__init__()
        self.history: list[str] = []
        self.seen = Observation({}, frozenset(), frozenset(), {}, {})
        self.is_over = time.monotonic() > self.end
        if self.is_over:
            return
        self.world = self.make()
        self.model = Model(self.world)
        self.seen = self.model.observe()
        self.counted["worlds"] += 1

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()

    # --- how rules run ------------------------------------------------------------------------------------------------

    def _is_out(self, *said: object) -> bool:
        return not WITHOUT.isdisjoint(map(str, said))

    def others(self, name: str, work: Callable[[], object], *said: object) -> None:
        """Something that others do, or cannot do. What is gone after it, they took."""
        if self._is_out(name, *said):
            return
        line = f"others: {name}({', '.join(map(str, said))})"
        try:
            work()
            self.counted["foreign actions"] += 1
        except CannotNowError:
            return
        except LifecycleError as error:
            line += f" → {type(error).__name__}"
        except Exception as error:
            line += f" → {str(error).splitlines()[0][:90] if str(error) else type(error).__name__}"
            self.counted["foreign actions that could not be done"] += 1
        self.history.append(line)
        self.seen = self.model.observe()

    def step(self, name: str, work: Callable[[], object], *said: object, dies: int | None = None) -> Any:
        """A step of the lifecycle, which may be refused, and may die at one of its writes."""
        if self._is_out(name, *said):
            return None
        self.history.append(f"{name}({', '.join(map(str, said))})")
        done = None
        try:
            with crash_points.installed(_killer(dies)):
                done = work()
            self._say("done", "steps")
        except CannotNowError:
            self.history.pop()
            return None
        except LifecycleError as error:
            self._say(f"{type(error).__name__}: {error.what}", "steps that were refused")
        except Killed as killed:
            self._say(f"died at {killed}", "steps that died")
            for lifecycle in (self.world.lifecycle, self.world.second):
                if lifecycle is not None:
                    lapse(lifecycle, "leases")
        except Exception:
            self._fail(f"{name} failed with what is not an error of its own:\n{traceback.format_exc()}")
        self._judge(name)
        return done

    def _say(self, what: str, counted: str) -> None:
        self.history[-1] += f" → {what}"
        self.counted[counted] += 1

    def _judge(self, name: str) -> None:
        before, self.seen = self.seen, self.model.observe()
        lost = self.model.lost(name, before, self.seen)
        if lost:
            # An archived file that others took is made again while the live table has it: by the scrub, in its time.
            for table in self.world.tables():
                with suppress(LifecycleError):
                    self.lifecycle.scrub_cold(f"db.{table}")
            self.seen = self.model.observe()
            lost = self.model.lost(name, before, self.seen)
            self.counted["archives that a scrub repaired"] += not lost
        try:
            GUARDIAN.require_no_loss()
        except LossError as loss:
            lost.append(f"the guardian: {loss}")
        if lost:
            self._fail("\n".join(lost))
        self.counted["snapshots read after steps"] += len(self.seen.ways)

    def _fail(self, what: str) -> None:
        failure = WrongError(f"{what}\nHistory (ARTEMIS_SEED={SEED}):\n  " + "\n  ".join(self.history))
        self.failures.append(failure)
        # Nothing of it is repeated.
        Actors.end = 0
        raise failure

    @property
    def lifecycle(self) -> Lifecycle:
        return self.world.lifecycle

    # --- the lifecycle's steps ----------------------------------------------------------------------------------------

    def _plan(self, name: str) -> Any:
        plan = self.lifecycle.uncommitted_plan(f"db.{name}")
        if plan is None:
            raise CannotNowError(name)
        return plan

    @act(name=TABLE, dies=DIES)
    def plan(self, name: str, dies: int | None) -> None:
        self.step("plan_expiration", lambda: self.lifecycle.plan_expiration(f"db.{name}"), name, dies=dies)

    @act(name=TABLE, dies=DIES)
    def hand_off(self, name: str, dies: int | None) -> None:
        self.step("hand_off", lambda: self.lifecycle.hand_off(self._plan(name)), name, dies=dies)

    @act(name=TABLE)
    def scrub(self, name: str) -> None:
        self.step("scrub_cold", lambda: self.lifecycle.scrub_cold(f"db.{name}"), name)

    @act(name=TABLE, dies=DIES)
    def commit(self, name: str, dies: int | None) -> None:
        self.step("commit_expiration", lambda: self.lifecycle.commit_expiration(self._plan(name)), name, dies=dies)

    @act(name=TABLE, dies=DIES)
    def delete(self, name: str, dies: int | None) -> None:
        self._delete_due(name, dies)

    def _delete_due(self, name: str, dies: int | None) -> None:
        for record in self._due(name):
            plan_id = record.plan_id
            self.step("delete_files", partial(self.lifecycle.delete_files, plan_id), plan_id[:12], dies=dies)

    def _due(self, name: str) -> list[Any]:
        with suppress(LifecycleError):
            return self.lifecycle.due_plans(f"db.{name}")
        return []

    def _night(self, name: str, dies: int | None, clock: int, between: str | None, at: int) -> None:
        """What the schedules do in a night: each is a step of its own. The clock may be wrong all along, and somebody
        may come between two of them."""
        table = f"db.{name}"
        steps: list[tuple[str, Callable[[], object]]] = [
            ("plan_expiration", lambda: self.lifecycle.plan_expiration(table)),
            ("hand_off", lambda: self.lifecycle.hand_off(self._plan(name))),
            ("commit_expiration", lambda: self.lifecycle.commit_expiration(self._plan(name))),
        ]
        with self.world.clock_at(clock):
            for number, (step, work) in enumerate(steps):
                self.step(step, work, name, f"clock {clock:+}")
                if between is not None and number == at:
                    self.others(between, self._between(between, name), name)
                    if number == 0 and between.startswith("expire"):
                        self.step("plan_expiration", steps[0][1], name)
            self._delete_due(name, dies)

    # There are more kinds of others than of steps: nights and cleanings come as often as all of those.
    night = act(**NIGHT)(_night)
    night_again = act(**NIGHT)(_night)
    night_once_more = act(**NIGHT)(_night)

    def _between(self, what: str, name: str) -> Callable[[], object]:
        more: dict[str, tuple[object, ...]] = {
            "expire_by_iceberg": (name, False),
            "stage_file": (name, True),
            "lose_cold_file": (0,),
            "set_location": (name, name, "elsewhere"),
            "restore_catalog": (name, 0),
            "drop": (name, False),
            "back_up_operations": (),
        }
        return partial(getattr(self.world, what), *more.get(what, (name,)))

    def _clean(self, name: str, dies: int | None, clock: int, ages: bool) -> None:
        """Orphans: the dry run says what the real one does."""
        if ages:
            self.others("age_files", self.world.age_files)
        with self.world.clock_at(clock):
            found = self.step(
                "scan_orphans", lambda: self.lifecycle.scan_orphans(f"db.{name}"), name, f"clock {clock:+}", dies=dies
            )
            if found is not None:
                self._delete_scan(found.scan_id, dies)

    clean = act(**CLEANING)(_clean)
    clean_again = act(**CLEANING)(_clean)
    clean_once_more = act(**CLEANING)(_clean)

    def _delete_scan(self, scan_id: str, dies: int | None) -> None:
        # A report also has what earlier runs of the scan deleted.
        is_new = self.lifecycle.operations.scans.get(scan_id).state == "open"
        dry = self.step(
            "delete_orphans", lambda: self.lifecycle.delete_orphans(scan_id, dry_run=True), scan_id[:9], "dry"
        )
        done = self.step("delete_orphans", lambda: self.lifecycle.delete_orphans(scan_id), scan_id[:9], dies=dies)
        if is_new and dry is not None and done is not None and not done.failed and dry.would_delete != done.deleted:
            self._fail(f"the dry run said that {dry.would_delete} files go, and {done.deleted} went")

    @act(name=TABLE, dies=DIES)
    def scan(self, name: str, dies: int | None) -> None:
        """One that waits, while the others go on."""
        self.step("scan_orphans", lambda: self.lifecycle.scan_orphans(f"db.{name}"), name, dies=dies)

    @act(name=TABLE, dies=DIES)
    def delete_latest_scan(self, name: str, dies: int | None) -> None:
        with suppress(LifecycleError):
            found = self.lifecycle.latest_scan(f"db.{name}")
            if found is not None:
                self._delete_scan(found.scan_id, dies)

    @act(name=TABLE, number=NUMBER, lost=st.booleans())
    def approve(self, name: str, number: int, lost: bool) -> None:
        def work() -> None:
            scan, plan = self.lifecycle.latest_scan(f"db.{name}"), self.lifecycle.uncommitted_plan(f"db.{name}")
            if plan is not None:
                self.lifecycle.approve(plan, what="lost" if lost else "large", **WHO)
            if scan is not None:
                self.lifecycle.approve(scan, **WHO)

        self.step("approve", work, name, "lost" if lost else "large")

    @act(name=TABLE, number=NUMBER)
    def close(self, name: str, number: int) -> None:
        """Any plan that there ever was."""

        def work() -> None:
            records = self.lifecycle.plans(f"db.{name}")
            if not records:
                raise CannotNowError(name)
            self.lifecycle.close_plan(records[number % len(records)].plan_id, **WHO)

        self.step("close_plan", work, name)

    @act(name=TABLE, number=NUMBER, dies=DIES)
    def undelete(self, name: str, number: int, dies: int | None) -> None:
        def work() -> None:
            records = self.lifecycle.quarantined(f"db.{name}")
            if not records:
                raise CannotNowError(name)
            self.lifecycle.undelete(records[number % len(records)].job_id, **WHO)

        self.step("undelete", work, name, dies=dies)

    @act(name=TABLE, dies=DIES, due=st.booleans())
    def purge(self, name: str, dies: int | None, due: bool) -> None:
        def work() -> None:
            if due:
                self.world.pass_time(
                    "UPDATE lifecycle.quarantines SET purge_after = now() - interval '1 s' "
                    "WHERE purge_after IS NOT NULL"
                )
            self.lifecycle.purge_quarantine(f"db.{name}")

        self.step("purge_quarantine", work, name, dies=dies)

    @act(name=TABLE, number=NUMBER, dies=DIES)
    def restore(self, name: str, number: int, dies: int | None) -> None:
        def work() -> None:
            archived = sorted(snapshot for snapshot, way in self.seen.ways.items() if way.kind == "cold")
            if not archived:
                raise CannotNowError(name)
            branch = f"back-{self.world.number()}"
            self.lifecycle.restore(f"db.{name}", archived[number % len(archived)], branch, **WHO)

        self.step("restore", work, name, dies=dies)

    @act(name=TABLE, dies=DIES)
    def archive_deep(self, name: str, dies: int | None) -> None:
        self.step("deep_archive", lambda: self.lifecycle.deep_archive(f"db.{name}"), name, dies=dies)

    @act(name=TABLE)
    def look_at_cold(self, name: str) -> None:
        self.step("scan_cold", lambda: self.lifecycle.scan_cold(f"db.{name}"), name)

    @act(name=TABLE, dies=DIES, manifests=st.booleans())
    def compact(self, name: str, dies: int | None, manifests: bool) -> None:
        work = self.lifecycle.compact_manifests if manifests else self.lifecycle.compact_data_files
        self.step(work.__name__, lambda: work(f"db.{name}"), name, dies=dies)

    @act()
    def observe(self) -> None:
        self.step("observe_catalog", lambda: self.lifecycle.observe_catalog())

    @act(number=NUMBER, dies=DIES, approved=st.booleans(), in_time=st.booleans())
    def clear_dropped(self, number: int, dies: int | None, approved: bool, in_time: bool) -> None:
        """A dropped table's files go when its days are over and a person has approved it, and not before."""

        def scanned() -> Any:
            waiting = [each for each in self.lifecycle.dropped_tables() if each.state in ("waiting", "due")]
            if not waiting:
                raise CannotNowError("nothing was dropped")
            return self.lifecycle.scan_dropped(waiting[number % len(waiting)].table_uuid)

        scan = self.step("scan_dropped", scanned)
        if scan is None:
            return
        if not in_time:
            self.world.pass_time(
                "UPDATE lifecycle.known_tables SET missing_since = now() - interval '40 days' "
                f"WHERE table_uuid = '{scan.table_uuid}'"
            )
        if approved:
            self.step("approve", lambda: self.lifecycle.approve(scan, **WHO), scan.table)
        if approved and not in_time and scan.table_uuid not in {held for _, held, _ in self.model.holds.values()}:
            self.model.approved.add(scan.table_uuid)
            self.seen = self.model.observe()
        self.step(
            "delete_dropped", lambda: self.lifecycle.delete_dropped(scan), scan.table, approved, in_time, dies=dies
        )
        self.model.approved.discard(scan.table_uuid)
        self.seen = self.model.observe()

    # --- people of this and of another deployment ---------------------------------------------------------------------

    @act(name=TABLE, number=NUMBER, whole=st.booleans(), second=st.booleans())
    def hold(self, name: str, number: int, whole: bool, second: bool) -> None:
        def work() -> None:
            lifecycle = self.world.second_deployment() if second else self.lifecycle
            ids = self.world.ids(name)
            held = tuple(ids if whole else [ids[number % len(ids)]])
            hold = lifecycle.hold(f"db.{name}", "legal", "a case", () if whole else held)
            self.model.holds[hold.hold_id] = lifecycle, self.world.uuid(name), frozenset(held)

        self.others("hold", work, name, "whole" if whole else number, "second" if second else "first")

    @act(number=NUMBER)
    def release(self, number: int) -> None:
        def work() -> None:
            if not self.model.holds:
                raise CannotNowError("no hold")
            hold_id = sorted(self.model.holds)[number % len(self.model.holds)]
            lifecycle = self.model.holds.pop(hold_id)[0]
            lifecycle.release(hold_id)

        self.others("release", work)

    @act(name=TABLE)
    def second_deployment_walks(self, name: str) -> None:
        def work() -> None:
            second = self.world.second_deployment()
            second.expire(f"db.{name}")
            second.delete_orphans(second.scan_orphans(f"db.{name}"))

        self.step("delete_orphans", work, "second", name)

    @act(name=TABLE, beats=st.booleans())
    def stage_file(self, name: str, beats: bool) -> None:
        self.others("stage_file", lambda: self.world.stage_file(name, beats), name, "beats" if beats else "young")

    @act(name=TABLE)
    def take_up_expired_file(self, name: str) -> None:
        self.others("take_up_expired_file", lambda: self.world.take_up_expired_file(name), name)

    @act(name=TABLE)
    def commit_staged(self, name: str) -> None:
        self.others("commit_staged", lambda: self.world.commit_staged(name), name)

    # --- other engines and tools --------------------------------------------------------------------------------------

    @act(name=TABLE, how=st.sampled_from(["append", "overwrite", "overwrite", "delete_rows", "compact"]))
    def write(self, name: str, how: str) -> None:
        self.others(how, lambda: getattr(self.world, how)(name), name)

    @act(name=TABLE, how=st.sampled_from(["rewrite_manifests", "compute_statistics", "roll_back", "append_to_branch"]))
    def maintain(self, name: str, how: str) -> None:
        self.others(how, lambda: getattr(self.world, how)(name), name)

    @act(name=TABLE, number=NUMBER)
    def set_current(self, name: str, number: int) -> None:
        self.others("set_current", lambda: self.world.set_current(name, number), name)

    @act(name=TABLE, and_append=st.booleans())
    def cherry_pick(self, name: str, and_append: bool) -> None:
        self.others("stage_and_pick", lambda: self.world.stage_and_pick(name, and_append), name)

    @act(name=TABLE, kind=st.sampled_from(["BRANCH", "TAG"]), number=NUMBER)
    def name_it(self, name: str, kind: str, number: int) -> None:
        self.others("name_it", lambda: self.world.name_it(name, kind, number), name, kind)

    @act(name=TABLE)
    def unname(self, name: str) -> None:
        self.others("unname", lambda: self.world.unname(name), name)

    @act(name=TABLE, how=st.sampled_from(["metadata", "metadata", "files", "pyiceberg"]))
    def expire_by_others(self, name: str, how: str) -> None:
        if how == "pyiceberg":
            self.others("expire_by_pyiceberg", lambda: self.world.expire_by_pyiceberg(name), name)
        else:
            self.others("expire_by_iceberg", lambda: self.world.expire_by_iceberg(name, how == "files"), name, how)

    @act(name=TABLE)
    def remove_orphans_by_others(self, name: str) -> None:
        self.others("remove_orphans_by_iceberg", lambda: self.world.remove_orphans_by_iceberg(name), name)

    @act(
        name=TABLE,
        other=TABLE,
        how=st.sampled_from(["elsewhere", "the other spelling", "the other spelling", "in another's", "around all"]),
    )
    def set_location(self, name: str, other: str, how: str) -> None:
        self.others("set_location", lambda: self.world.set_location(name, other, how), name, how, other)

    @act(name=TABLE)
    def point_at_documents(self, name: str) -> None:
        self.others("point_at_documents", lambda: self.world.point_at_documents(name), name)

    @act(name=TABLE)
    def stream(self, name: str) -> None:
        self.others("stream", lambda: self.world.stream(name), name)

    @act(name=TABLE)
    def leave_orphan(self, name: str) -> None:
        self.others("leave_orphan", lambda: self.world.leave_orphan(name), name)

    @act(name=TABLE, to=NAME)
    def rename(self, name: str, to: str) -> None:
        self.others("rename", lambda: self.world.rename(name, to), name, to)

    @act(name=TABLE, purge=st.sampled_from([False, False, True]))
    def drop(self, name: str, purge: bool) -> None:
        self.others("drop", lambda: self.world.drop(name, purge), name, "purge" if purge else "")

    @act(name=NAME)
    def create(self, name: str) -> None:
        """In its default place, where a dropped one of the name may have its files."""
        self.others("create", lambda: self.world.create(name), name)

    @act(name=NAME, inside=TABLE)
    def create_inside(self, name: str, inside: str) -> None:
        self.others(
            "create_inside", lambda: self.world.create(name, self.world.place(inside) / "data" / "inner"), name, inside
        )

    @act(name=TABLE, to=NAME)
    def register(self, name: str, to: str) -> None:
        self.others("register", lambda: self.world.register(name, to), name, to)

    @act(to=NAME)
    def undrop(self, to: str) -> None:
        self.others("undrop", lambda: self.world.undrop(to), to)

    @act(name=TABLE, of=TABLE, by_procedure=st.booleans())
    def share_files(self, name: str, of: str, by_procedure: bool) -> None:
        work = self.world.add_files if by_procedure else self.world.share_file
        self.others(work.__name__, lambda: work(name, of), name, of)

    # --- stores, clocks, backups --------------------------------------------------------------------------------------

    @act(number=NUMBER, how=st.sampled_from(["lost", "cut short", "flipped"]))
    def damage_cold(self, number: int, how: str) -> None:
        if how == "lost":
            self.others("lose_cold_file", lambda: self.world.lose_cold_file(number), number)
        else:
            self.others("flip_cold_file", lambda: self.world.flip_cold_file(number, how == "flipped"), number, how)

    @act(what=st.sampled_from(["copies", "index"]))
    def lose_records(self, what: str) -> None:
        self.others("lose_records", lambda: self.world.lose_records(what), what)

    @act(name=TABLE, number=NUMBER)
    def restore_catalog(self, name: str, number: int) -> None:
        self.others("restore_catalog", lambda: self.world.restore_catalog(name, number), name)

    @act()
    def give_up_future(self) -> None:
        self.others("give_up_future", self.world.give_up_future)

    @act()
    def back_up_operations(self) -> None:
        self.others("back_up_operations", self.world.back_up_operations)

    @act()
    def restore_operations(self) -> None:
        def work() -> None:
            self.world.restore_operations()
            with connected(self.world.uri) as cursor:
                cursor.execute("SELECT hold_id FROM lifecycle.holds WHERE released_at IS NULL")
                placed = {row[0] for row in cursor.fetchall()}
            for hold_id, (lifecycle, _, _) in list(self.model.holds.items()):
                if lifecycle is self.lifecycle and hold_id not in placed:
                    del self.model.holds[hold_id]

        self.others("restore_operations", work)


def _killer(at: int | None) -> Callable[[str], None]:
    places = iter(range(10**6))

    def reached(name: str) -> None:
        if next(places) == at:
            raise Killed(name)

    return reached


@pytest.fixture
def second_uri(postgres: EmbeddedPostgres, postgres_uri: str) -> Iterator[str]:
    name = postgres_uri.rpartition("/")[2] + "_second"
    with _autocommit(libpq(postgres.uri("postgres"))) as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    yield postgres.uri(name)
    with _autocommit(libpq(postgres.uri("postgres"))) as cursor:
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def _autocommit(uri: str) -> Iterator[Any]:
    connection = psycopg2.connect(uri)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


@pytest.mark.timeout(0)
def test_nothing_is_lost_whatever_others_do(
    make_config: MakeConfig, spark: SparkSession, postgres_uri: str, second_uri: str
) -> None:
    prepare_clock(postgres_uri)
    Actors.make = staticmethod(lambda: World(make_config(**POLICIES), spark, second_uri))  # type: ignore[method-assign]
    Actors.end = time.monotonic() + 60 * MINUTES
    Actors.counted, Actors.failures = Counter(), []
    rounds = 0
    while time.monotonic() < Actors.end and not Actors.failures:
        try:
            run_state_machine_as_test(
                seed(SEED + rounds)(Actors),
                settings=settings(
                    max_examples=50,
                    stateful_step_count=STEPS,
                    phases=(Phase.generate,),
                    database=None,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    print_blob=False,
                ),
            )
        except Exception:
            # Repeating what failed is Hypothesis' way; the first one has the history.
            if not Actors.failures:
                raise
        rounds += 1
    counts = ", ".join(f"{number:,} {what}" for what, number in sorted(Actors.counted.items()))
    add_lines("others on the same tables", [f"{counts} ({len(Actors.failures)} losses)"])
    if Actors.failures:
        raise Actors.failures[0]
