"""Thirty nights that nobody watches: failures, killed processes, late daemons, holds, approvals, and the end of summer
time in two zones. Then each table is where its policy says, nothing was done twice, each wait was reported once."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from dagster import DagsterRunStatus, RunsFilter
from sqlalchemy import create_engine, make_url, text

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.defs.resources import OWNER
from artemis_lifecycle.defs.tags import PARTITION_TAG, STEP_TAG, WAITS_FOR_TAG, WINDOW_TAG, partitioned_tables
from artemis_lifecycle.errors import LeaseTaken, PlanStateError, StorageError
from artemis_lifecycle.operations.plans import UNCOMMITTED, PlanStatus
from artemis_lifecycle.operations.scans import ScanState
from artemis_lifecycle.scheduling.maintenance_window import Step
from artemis_lifecycle_tests.conftest import REPOSITORY
from artemis_lifecycle_tests.defs.conftest import written
from artemis_lifecycle_tests.nights.clock import SimulatedClock
from artemis_lifecycle_tests.nights.fleet import Fleet, fleet
from artemis_lifecycle_tests.nights.steps import Doubles
from artemis_lifecycle_tests.nights.tables import Tables, expected

pytestmark = [
    # Dagster's own properties, which it asks itself.
    pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

EMPTY_DATABASE = True
"""The schema is made under the simulated clock."""
SEED = int(os.environ["ARTEMIS_SEED"])
BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
WINDOW = timedelta(days=2)
IN_NEW_YORK = {"from": "22:00", "to": "06:00", "timezone": "America/New_York", "runs": "one_per_table"}
IN_BERLIN = {"from": "00:00", "to": "08:00", "timezone": "Europe/Berlin"}
POLICIES = {
    "artemis.step*": {"quiet_window": IN_BERLIN},
    "artemis.walk*": {"quiet_window": IN_NEW_YORK},
    "artemis.large*": {"quiet_window": IN_BERLIN, "deletion": {"max_files": 5}},
    "artemis.leaky*": {"quiet_window": IN_NEW_YORK},
    "artemis.live*": {"quiet_window": IN_BERLIN, "cold_tier": {"enabled": False}},
    "artemis.plan*": {"quiet_window": {**IN_BERLIN, "steps": ["plan"]}},
}
# Its commits record no lineage; the watch of that is no part of the nights.
for _policy in POLICIES.values():
    _policy["lineage"] = {"required": [], "overwrite": {"needs": []}}
SHARES = {"step": 12, "walk": 12, "large": 4, "leaky": 4, "live": 4, "plan": 4}
"""Tables of each kind among 40."""


@dataclass(frozen=True)
class Length:
    """How long, how many tables, how often the daemon ticks, and when it begins."""

    first: datetime
    nights: int
    tables: int
    every: timedelta


SHORT = Length(datetime(2026, 10, 22, 12, tzinfo=UTC), 6, 12, timedelta(hours=1))
"""Over the end of summer time in Berlin."""
LONG = Length(datetime(2026, 10, 12, 12, tzinfo=UTC), 30, 40, timedelta(minutes=45))
"""Over the end of summer time in Berlin and in New York."""
CALM = 2
"""The last nights, without faults: what is late gets done."""


@pytest.fixture
def make_fleet(postgres_uri: str, tmp_path: Path) -> Iterator[Callable[[int], Fleet]]:
    """A fleet on a fresh database, for `seed`."""
    admin = create_engine(postgres_uri)
    database = str(admin.url.database)
    with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"CREATE DATABASE {database}_dagster"))
    (tmp_path / "dagster.yaml").write_text(
        (REPOSITORY / "dagster.yaml").read_text()
        + "run_launcher:\n  module: artemis_lifecycle_tests.nights.fleet\n  class: LateLauncher\n"
    )
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("DAGSTER_HOME", str(tmp_path))
        dagster_uri = make_url(postgres_uri).set(database=f"{database}_dagster")
        patch.setenv("ARTEMIS_DAGSTER_POSTGRES", dagster_uri.render_as_string(hide_password=False))

        def make(seed: int) -> Fleet:
            dice = random.Random(seed)
            clock = SimulatedClock(admin, database, patch)
            config = LifecycleConfig.model_validate(
                {
                    "catalogs": {
                        tier: {"name": tier, "uri": postgres_uri, "warehouse": f"file://{tmp_path}/{tier}"}
                        for tier in ("live", "cold")
                    },
                    "operations": {"uri": postgres_uri, "root": f"file://{tmp_path}/state"},
                    "defaults": {"retention": {"window": "2d"}, "deletion": {"grace": "20h"}},
                    "tables": POLICIES,
                    "alerts": {"webhook": "http://127.0.0.1:9/"},
                    "home": str(tmp_path),
                }
            )
            tables = Tables(create_engine(postgres_uri), "live", tmp_path / "live")
            doubles = Doubles(tables, clock, dice)
            return stack.enter_context(fleet(config, written(config, tmp_path), clock, doubles, dice))

        yield make
    admin.dispose()
    with create_engine(postgres_uri, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(f"DROP DATABASE {database}_dagster WITH (FORCE)"))


@dataclass
class Nights:
    """What happens around the fleet: writers, people, faults."""

    fleet: Fleet
    length: Length
    dice: random.Random
    names: list[str]
    approved: dict[str, datetime] = field(default_factory=dict)
    by_hand: int = 0
    holds: list[tuple[str, datetime]] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    down_until: datetime | None = None

    @property
    def last(self) -> datetime:
        return self.length.first + timedelta(days=self.length.nights)

    def pass_by(self) -> None:
        for table in self.names:
            self.fleet.doubles.tables.create(table, self.length.first)
        now = self.length.first
        while now < self.last:
            self.fleet.clock.set(now)
            day = (now - self.length.first) // timedelta(days=1)
            calm = self.length.nights - day <= CALM
            self.fleet.doubles.failing, self.fleet.doubles.killing = (0.0, 0.0) if calm else (0.06, 0.03)
            if now.hour == self.length.first.hour:
                self._by_day(now, day, calm=calm)
                now += timedelta(hours=1)
                self.fleet.tick(now)
                now = now.replace(hour=21, minute=50)
                continue
            self._by_night(now, day, calm=calm)
            now += self.length.every
            if now.hour == 11:
                now = now.replace(minute=0)
                self.fleet.tick(now)
                now = now.replace(hour=self.length.first.hour)

    def _by_day(self, now: datetime, day: int, *, calm: bool) -> None:
        """Writers commit; people approve what waits, release holds, drop a table and make others."""
        tables, lifecycle = self.fleet.doubles.tables, self.fleet.lifecycle
        if day == 2:
            tables.drop(self.names[0])
            tables.create("artemis.walk90", now)
            self.names.append("artemis.walk90")
        if day == 4:
            # Under the name of the dropped one.
            tables.create(self.names[0], now)
        for number, table in enumerate(self.names):
            if (day in (2, 3) and table == self.names[0]) or (number % 6 == 5 and day):
                continue
            for minutes in (30, 0):
                tables.commit(table, now - timedelta(minutes=minutes))
        for wait in lifecycle.operations.waits.open():
            # People read the alert first.
            known = any(f"approve {wait.job_id} " in text for text in self.fleet.posted)
            if known and (calm or self.dice.random() < 0.6):
                lifecycle.approve(wait.job_id, who="ada", why="read it")
                self.approved[wait.job_id] = now
        for hold, until in list(self.holds):
            if now >= until or calm:
                lifecycle.release(hold, who="ada", why="over")
                self.holds.remove((hold, until))

    def _by_night(self, now: datetime, day: int, *, calm: bool) -> None:
        fleet, dice = self.fleet, self.dice
        if self.down_until is not None and now < self.down_until:
            return
        self.down_until = None
        if not calm and dice.random() < 0.02:
            self.down_until = now + dice.choice([1, 2, 4]) * timedelta(hours=1)
            fleet.restart()
            return
        if not calm and dice.random() < 0.1:
            return  # A late tick.
        local = now.astimezone(BERLIN)
        if (
            timedelta(hours=2, minutes=30)
            <= timedelta(hours=local.hour, minutes=local.minute)
            < (timedelta(hours=2, minutes=30) + self.length.every)
        ):
            self._plan_by_hand(dice.choice(self.names))
        if not calm and dice.random() < 0.02:
            fleet.kill_runs()
        if not calm and dice.random() < 0.02:
            table = dice.choice(self.names)
            if fleet.lifecycle.resources.live_catalog.exists(table):
                hold = fleet.lifecycle.hold(table, "legal", "a case")
                self.held.add(table)
                self.holds.append((hold.hold_id, now + timedelta(days=dice.choice([1, 2, 3]))))
        if not calm and dice.random() < 0.05:
            with fleet.killed_while_submitting(after=dice.choice([0, 1, 2])):
                fleet.tick(now)
        else:
            fleet.tick(now)

    def _plan_by_hand(self, table: str) -> None:
        if not self.fleet.lifecycle.resources.live_catalog.exists(table):
            return
        resources = self.fleet.lifecycle.resources
        resources.owner = "ada"
        try:
            self.fleet.lifecycle.plan_expiration(table)
        except (LeaseTaken, PlanStateError, StorageError):
            return
        finally:
            resources.owner = OWNER
        self.by_hand += 1


def _names(count: int) -> list[str]:
    made = [
        f"artemis.{kind}{number:02}" for kind, share in SHARES.items() for number in range(share * count // 40 or 1)
    ]
    return [*made, *(f"artemis.step{number}" for number in range(50, 50 + count - len(made)))]


def _nights(make_fleet: Callable[[int], Fleet], length: Length) -> Nights:
    made = Nights(make_fleet(SEED), length, random.Random(SEED + 1), _names(length.tables))
    made.pass_by()
    return made


def _judge(nights: Nights) -> None:
    """Assert the promises at the end, all in one list."""
    fleet, lifecycle = nights.fleet, nights.fleet.lifecycle
    operations, present = lifecycle.operations, lifecycle.tables()
    wrong = [
        f"{what} of {job} happened at {', '.join(map(str, at))}"
        for (what, job), at in fleet.doubles.effects.items()
        if len(at) > 1
    ]
    if (partitions := partitioned_tables(fleet.instance)) != set(present):
        wrong.append(f"partitions and tables differ: {sorted(partitions ^ set(present))}")
    waiting = {wait.job_id: wait.table for wait in operations.waits.open()}
    for table in present:
        wrong += [f"{table}: {why}" for why in _wrong_in(nights, table, waits=table in waiting.values())]
    posted = Counter(fleet.posted)
    wrong += [f"posted {times} times: {what}" for what, times in posted.items() if times > 1]
    with operations.engine.connect() as connection:
        ever = connection.execute(text("SELECT job_id, table_name FROM lifecycle.waits")).all()
    for job, table in ever:
        reported = [each for each in fleet.posted if "waits for approval" in each and f"approve {job} " in each]
        if len(reported) != 1:
            wrong.append(f"{table}: the wait of {job} was reported {len(reported)} times")
    for run in fleet.instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.FAILURE])):
        times = sum(run.run_id in each for each in fleet.posted)
        if times != 1:
            wrong.append(f"{run.tags[PARTITION_TAG]}: failed run {run.run_id} was reported {times} times")
    wrong += _repeated(nights)
    assert not wrong, "\n".join(wrong)
    # The nights were what they claim to be.
    assert not [what for what in fleet.outcomes if "Error:" in what], fleet.outcomes
    assert ever and nights.approved and nights.by_hand
    assert fleet.outcomes["killed"] and fleet.outcomes["waits for Paused"]


def _repeated(nights: Nights) -> Iterator[str]:
    """Steps that were done, and that the sensor asked for again in the same window."""
    runs = nights.fleet.instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.SUCCESS]))
    done = Counter(
        (run.tags[PARTITION_TAG], run.tags[WINDOW_TAG], run.tags[STEP_TAG])
        for run in runs
        if WINDOW_TAG in run.tags and WAITS_FOR_TAG not in run.tags
    )
    for (table, day, step), times in done.items():
        # A plan by hand is handed off and committed after the night's own; the files of a hold are tried each hour.
        most = {Step.PLAN: 1, Step.ORPHANS: 1}.get(Step(step), 2)
        if times > most and not (step == Step.DELETION and table in nights.held):
            these = [run for run in runs if (run.tags.get(PARTITION_TAG), run.tags.get(WINDOW_TAG)) == (table, day)]
            ids = [f"{run.tags[STEP_TAG]} {run.run_id}" for run in these]
            yield f"{table}: {step} was done {times} times in the window of {day}: {', '.join(ids)}"


def _wrong_in(nights: Nights, table: str, *, waits: bool) -> Iterator[str]:
    """What is not as the policy of the table says, after the last window."""
    lifecycle = nights.fleet.lifecycle
    operations, table_uuid = lifecycle.operations, lifecycle.steps.table_uuid(table)
    history = [step for step in operations.steps.history(table_uuid, 500) if not step.dry_run]
    plans = [step for step in history if step.step == "plan" and step.state in ("done", "skipped")]
    days = Counter(step.window_day for step in plans if step.owner == OWNER)
    yield from (f"planned {times} times in the window of {day}" for day, times in days.items() if times > 1)
    if not plans or nights.last - plans[0].started_at > timedelta(hours=24):
        yield f"the last plan is of {plans[0].started_at if plans else None}"
        return
    if table.startswith("artemis.plan"):
        if {step.step for step in history} != {"plan"}:
            yield "a step ran that is switched off"
        return
    snapshots = nights.fleet.doubles.tables.snapshots(table)
    newest = operations.plans.of_table(table_uuid)[:1]
    # An approved plan is resumed as it is: what has expired since is left to the next one.
    planned_at = newest[0].planned_at if newest and newest[0].is_approved else plans[0].started_at
    kept = expected(snapshots, planned_at, WINDOW)
    if not waits and set(snapshots) != kept:
        yield f"{len(snapshots)} snapshots, and not {len(kept)}"
    for plan in operations.plans.of_table(table_uuid):
        if plan.status in UNCOMMITTED and plan.expired_snapshots and not waits:
            yield f"plan {plan.plan_id} of {plan.planned_at} is left {plan.status}"
        late = plan.due_at is not None and plan.due_at < nights.last - timedelta(hours=24)
        if late and plan.status in (PlanStatus.COMMITTED, PlanStatus.DELETING):
            yield f"plan {plan.plan_id}, due at {plan.due_at}, is {plan.status}"
    scans = operations.scans.of_table(table_uuid)
    if not scans or nights.last - scans[0].listed_at > timedelta(days=8):
        yield f"its last scan is {scans[0].listed_at if scans else None}"
    if scans and scans[0].state is not ScanState.DONE and not waits:
        yield f"scan {scans[0].scan_id} is left {scans[0].state}"


@pytest.mark.slow
@pytest.mark.nights
def test_six_nights(make_fleet: Callable[[int], Fleet]) -> None:
    nights = _nights(make_fleet, SHORT)
    print(nights.fleet.outcomes, nights.by_hand, len(nights.approved), len(nights.fleet.posted))
    _judge(nights)


@pytest.mark.nightly
def test_thirty_nights(make_fleet: Callable[[int], Fleet]) -> None:
    nights = _nights(make_fleet, LONG)
    print(nights.fleet.outcomes, nights.by_hand, len(nights.approved), len(nights.fleet.posted))
    _judge(nights)
