"""One world with everybody in it: runs what others do and the steps of the lifecycle, keeps the history, and judges."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import psutil

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle_tests.deaths import Killed, lapse
from artemis_lifecycle_tests.foreign.actions import FOREIGN, CannotNowError, Draw
from artemis_lifecycle_tests.foreign.core import JAVA_ERRORS, Row
from artemis_lifecycle_tests.foreign.model import NOTHING, Model, Observation
from artemis_lifecycle_tests.foreign.trace import History
from artemis_lifecycle_tests.foreign.world import World, called
from artemis_lifecycle_tests.foreign.writers import delete_from


class WrongError(AssertionError):
    """The lifecycle lost something, or failed with what is not an error of its own."""


class Actors:
    """`without`: actions and steps to leave out. `often`: actions to do ten times as often. `counted`: what was done,
    by kind and name."""

    machines: ClassVar[list[psutil.Process]] = []
    """The session's JVM."""

    def __init__(
        self,
        world: World,
        counted: Counter[tuple[str, str]],
        without: Container[str] = (),
        often: Container[str] = (),
    ) -> None:
        self.world = world
        self.model = Model(world)
        self.counted = counted
        self.history: list[str] = []
        self.traced = History(world)
        self._step = "others"
        self.turn = 0
        self.seen: Observation = NOTHING
        self._without = without
        self._often = often
        self._is_stale = True
        # What is left out is drawn, too: the seed's other turns stay what they are.
        self._weights = {name: each.weight for name, each in FOREIGN.items()}

    def temper(self, draw: Draw) -> None:
        """Some others come often in this seed, and some not at all: what needs a rare order of them is found so."""
        for name in self._weights:
            found = draw.one([0, 0.5, 1, 1, 1, 4], silent=True)
            self._weights[name] *= 10 if name in self._often else found

    @property
    def lifecycle(self) -> Lifecycle:
        return self.world.lifecycle

    def look(self) -> Observation:
        """What can be read now, if anybody has done something since the last look."""
        if self._is_stale:
            with self.spent("looks"):
                self.seen = self.model.observe()
            with self.spent("traces"):
                said = self.history[-1] if self._step != "others" else ""
                self.traced.note(self.turn, self._step, said.partition("→ ")[2])
            self._is_stale = False
        return self.seen

    def look_again(self) -> Observation:
        self._is_stale = True
        return self.look()

    @contextmanager
    def spent(self, on: str) -> Iterator[None]:
        """Count the milliseconds, by the clock and of the processor, here and in the JVM."""
        begun, processor = time.perf_counter(), self._processor()
        try:
            yield
        finally:
            self.counted["milliseconds", on] += round(1000 * (time.perf_counter() - begun))
            self.counted["processor's milliseconds", on] += round(1000 * (self._processor() - processor))

    def _processor(self) -> float:
        return time.process_time() + sum(sum(each.cpu_times()[:2]) for each in self.machines)

    # --- others -----------------------------------------------------------------------------------------------------

    def others(self, draw: Draw) -> None:
        """Something that somebody does, or cannot do. What is gone after it, they took."""
        self.other(draw.weighted(self._weights), draw)

    def other(self, name: str, draw: Draw) -> None:
        if name in self._without:
            return
        action, said = FOREIGN[name], len(draw.said)
        if action.destroys:
            self.look()
        result = ""
        try:
            with self.spent("foreign actions"):
                action.work(self.world, draw)
            self.counted["foreign actions", name] += 1
        except CannotNowError:
            self.counted["nothing to do for", name] += 1
            return
        except Exception as error:
            # Whatever an engine or a tool raises, it could not do it. The report counts these.
            text = str(getattr(error, "java_exception", error) or type(error).__name__)
            result = f" → {text.splitlines()[0][:100]}"
            self.counted["foreign actions that failed", name] += 1
        self.history.append(f"{self.turn:3} others: {name}({', '.join(draw.said[said:])}){result}")
        self._is_stale = True

    def perhaps_others(self, draw: Draw, chance: float = 0.35) -> None:
        """Somebody may come between two steps."""
        while draw.chance(chance):
            self.others(draw)

    # --- steps of the lifecycle -------------------------------------------------------------------------------------

    def step(self, name: str, work: Callable[[], object], *said: object, dies: int | None = None) -> Any:
        """A step of the lifecycle, which may be refused, and may die at one of its writes. Returns what it did, or
        None."""
        if name in self._without:
            return None
        self.look()
        self.history.append(f"{self.turn:3} {name}({', '.join(map(str, said))})")
        self._step, done = "second" if "second" in said else name, None
        try:
            with self.spent("steps"), crash_points.installed(_killer(dies)):
                done = work()
            self._say("done", "steps", name)
        except CannotNowError:
            self.history.pop()
            self._step = "others"
            return None
        except LifecycleError as error:
            self._say(f"{type(error).__name__}: {error.what}", "steps that were refused", name)
        except Killed as killed:
            self._say(f"died at {killed}", "steps that died", name)
            for lifecycle, _ in self.world.deployments():
                lapse(lifecycle, "leases")
        except Exception:
            self.fail(f"{name} failed with what is not an error of its own:\n{traceback.format_exc()}")
        before = self.seen
        self._judge(name)
        self._step = "others"
        if done is not None:
            self.model.notice(name, before)
        return done

    def _say(self, what: str, counted: str, name: str) -> None:
        self.history[-1] += f" → {what}"
        self.counted[counted, name] += 1

    def _judge(self, name: str) -> None:
        before = self.seen
        lost = self.model.lost(name, before, self.look_again())
        if lost:
            # An archived file that others took is made again while the live table has it: by the scrub, in its time.
            for lifecycle, _ in self.world.deployments():
                for table in self.world.names():
                    # The one that owns the catalogs can.
                    with suppress(LifecycleError):
                        lifecycle.scrub_cold(called(table))
            lost = self.model.lost(name, before, self.look_again())
            self.counted["archives", "that a scrub repaired"] += not lost
        if lost:
            self.fail("\n".join(lost))
        self.counted["judged", "snapshots after steps"] += len(self.seen.ways)

    def forget_end(self, table_uuid: str) -> None:
        """A person's approval of a dropped table's end was used, or is over."""
        self.model.approved.discard(table_uuid)
        self._is_stale = True

    def approve_end(self, table_uuid: str) -> None:
        self.model.approved.add(table_uuid)
        self._is_stale = True

    def fail(self, what: str) -> None:
        raise WrongError(f"{what}\nHistory:\n  " + "\n  ".join(self.history))

    # --- writers after the fact -------------------------------------------------------------------------------------

    def require_archived(self, name: str, branch: str, snapshot: int) -> None:
        """A restored branch has the rows of its snapshot, in the table's current columns."""
        wanted = self.model.prints[snapshot]
        described = self.world.described(name)
        found = self.model.rows(described.location, described.branches[branch], current=True)
        if found is None:
            self.fail(f"branch {branch} of {name}, restored from {snapshot}, cannot be read")
            return
        columns = {line.split("\t")[1] for line in self._columns(name)}
        if _only(found, columns) != _only(wanted, columns):
            self.fail(f"branch {branch} of {name}, restored from {snapshot}, has {found}\nin place of {wanted}")

    def _columns(self, name: str) -> list[str]:
        return str(self.world.core.java.columns(self.world.java(name))).splitlines()

    def write_and_read_back(self, name: str, branch: str, draw: Draw) -> None:
        """Append to the branch and delete from it, by position and by equality, and hold it against what must be
        there. A branch that others have broken is left alone."""
        try:
            self._write_and_read_back(name, branch, draw)
        except JAVA_ERRORS as error:
            self.fail(f"{name}, branch {branch}, can be read, and not be written to: {error}")

    def _write_and_read_back(self, name: str, branch: str, draw: Draw) -> None:
        core, before = self.world.core.java, self._ids(name, branch)
        if before is None:
            return
        counts = Counter(before)
        table = self.world.java(name)
        expected = counts.copy()
        row_id = 10 * self.world.next_number
        core.append(table, branch, self.world.write(name, table, records=1))
        expected[row_id] += 1
        unsure: set[object] = set()
        for by_equality in (False, True):
            with suppress(CannotNowError):
                gone = delete_from(self.world, name, branch, draw, by_equality=by_equality)
                if not by_equality and any(counts[each] > 1 for each in gone):
                    # Another file has these ids, too, or the rest of them: not gone with this one.
                    unsure |= gone
                for each in gone:
                    del expected[each]
        after = self._ids(name, branch)
        self.counted["judged", "branches written to"] += 1
        self.history.append(f"{self.turn:3} written to {name}, branch {branch}, and read back")
        wanted = sorted((each for each in expected.elements() if each not in unsure), key=repr)
        if after is None or sorted((each for each in after if each not in unsure), key=repr) != wanted:
            self.fail(
                f"{name}, branch {branch}: written to, deleted from and read back, it has "
                f"{after and sorted(after, key=repr)} in place of {wanted}"
            )
        twice = self.model.row_ids_given_twice(self.world.described(name))
        if twice:
            self.fail(f"{name}, after a write to branch {branch}: {'; '.join(twice[:3])}")
        self._is_stale = True

    def _ids(self, name: str, branch: str) -> list[object] | None:
        described = self.world.described(name)
        rows = self.model.rows(described.location, described.branches[branch], current=True)
        return None if rows is None else [dict(row).get("id") for row in rows]

    def end(self, draw: Draw) -> None:
        """Everything that could be read is read afresh; then each branch is written to, deleted from and read back."""
        before = self.look()
        self.seen = self.model.observe(afresh=True)
        lost = self.model.lost("the end", before, self.seen)
        if lost:
            self.fail("read afresh at the end:\n" + "\n".join(lost))
        self.counted["judged", "snapshots read afresh"] += len(self.seen.ways)
        for name in self.world.names():
            with suppress(OSError, ValueError):
                for branch in sorted(self.world.described(name).branches):
                    self.write_and_read_back(name, branch, draw)


def _only(rows: tuple[Row, ...], columns: set[str]) -> list[str]:
    return sorted(repr(tuple(item for item in row if item[0] in columns)) for row in rows)


def _killer(at: int | None) -> Callable[[str], None]:
    places = iter(range(10**6))

    def reached(name: str) -> None:
        if next(places) == at:
            raise Killed(name)

    return reached
