"""Seeds, each a world of its own: lived through, replayed, cut down to the turns that a loss needs, and counted.

A seed's dice decide everything; snapshot ids and file names are as random as Iceberg makes them, so choices go by the
order of commits. Each turn has dice of its own: a replay with fewer turns is the same history without the others.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from artemis_lifecycle_tests.foreign import catalog, stores, tools, writers
from artemis_lifecycle_tests.foreign import steps as steps_of_the_lifecycle
from artemis_lifecycle_tests.foreign.actions import STEPS, CannotNowError, Draw
from artemis_lifecycle_tests.foreign.actors import Actors, WrongError
from artemis_lifecycle_tests.foreign.core import Core
from artemis_lifecycle_tests.foreign.world import World
from artemis_lifecycle_tests.spec.tools import load, require_checker

REGISTERED = (catalog, stores, tools, writers, steps_of_the_lifecycle)
"""The modules whose actions and steps are drawn from."""

TURNS = 120
"""Of one seed: an action of others, or one of the lifecycle's doings, in which others may come between two steps."""
SHARE_OF_STEPS = 0.25

Counted = Counter[tuple[str, str]]


@dataclass
class Lab:
    """What all worlds of a process share."""

    spark: SparkSession
    uris: tuple[str, str]
    folder: Path
    without: Container[str] = ()
    often: Container[str] = ()
    counted: Counted = field(default_factory=Counter)
    keep: bool = False
    """Whether the folder of a seed that failed stays."""
    histories: Path | None = None
    """Where the histories of all seeds are put, for `spec/replay.py`."""

    def __post_init__(self) -> None:
        require_checker()
        self._replayer = load("replay").Replayer(self.folder / "model")
        self._core = Core(self.spark)
        self._numbers = count(1)
        Actors.machines = [each for each in psutil.Process().children(recursive=True) if each.name() == "java"]

    def world(self, name: object) -> World:
        """A new one, whose folder has that name in it."""
        return World(self.spark, self._core, self.folder / f"{name}-{next(self._numbers)}", self.uris)

    def live(self, seed: int, turns: Sequence[int] | None = None) -> WrongError | None:
        """Live through the seed, or through those of its turns; return what went wrong."""
        world = self.world(seed)
        actors, failure = Actors(world, self.counted, self.without, self.often), None
        try:
            self._live(actors, seed, turns)
        except WrongError as error:
            failure = error
        finally:
            world.close()
            if not self.keep or failure is None:
                world.remove_folder()
        with actors.spent("replays"):
            failure = failure or self.refused(actors)
        self.counted["worlds", "all"] += 1
        self.history = actors.history
        if self.histories is not None:
            self.histories.mkdir(parents=True, exist_ok=True)
            (self.histories / f"{seed}.jsonl").write_text("\n".join(actors.traced.lines))
        return failure

    def refused(self, actors: Actors) -> WrongError | None:
        """Return the traces of this seed that the model in spec/ does not allow, as an error."""
        projected = list(load("replay").project(actors.traced.lines))
        for each in projected:
            self.counted["traces replayed", each.ends or "to their end"] += 1
        said = [each.said(at) for each, at in self._replayer.refused(projected)]
        if not said:
            return None
        history = "\n  ".join(actors.history)
        more = f"\n(and {len(said) - 3} more)" if len(said) > 3 else ""
        return WrongError("\n".join(["no run of the model", *said[:3]]) + f"{more}\nHistory:\n  {history}")

    def _live(self, actors: Actors, seed: int, turns: Sequence[int] | None) -> None:
        draw = Draw(seed, "beginning")
        hot = draw.one(["a", "b", None], silent=True)
        for name in ("a", "b", draw.one(["k", "n", "q", "x.y"])):
            actors.world.create(name, None, draw.one([2, 2, 3]))
        actors.temper(draw)
        weights = {name: step.weight for name, step in STEPS.items()}
        for turn in range(1, TURNS + 1) if turns is None else turns:
            draw = Draw(seed, turn)
            draw.focus = hot if draw.chance(0.5) else None
            actors.turn = turn
            try:
                if draw.chance(SHARE_OF_STEPS):
                    step = draw.weighted(weights)
                    if step not in self.without:
                        STEPS[step].work(actors, draw)
                else:
                    actors.others(draw)
            except CannotNowError:
                pass
        with actors.spent("ends of seeds"):
            actors.end(Draw(seed, "end"))

    def shrink(
        self, seed: int, failure: WrongError, seconds: float, turns: Sequence[int] | None = None
    ) -> tuple[WrongError, list[int]]:
        """The failure, by as few turns as are found in that time; each candidate is a world of its own."""
        end, size = time.monotonic() + seconds, 16
        lived = {int(each[0]) for line in str(failure).splitlines() if (each := line.split()) and each[0].isdigit()}
        kept = [turn for turn in turns or range(1, TURNS + 1) if turn in lived]
        while size:
            at = 0
            while at < len(kept) and time.monotonic() < end:
                fewer = kept[:at] + kept[at + size :]
                found = self.live(seed, fewer)
                if found is not None and _kind(found) == _kind(failure):
                    kept, failure = fewer, found
                else:
                    at += size
            size //= 2
        return failure, kept


def _kind(failure: WrongError) -> str:
    """What happened, without the names of files."""
    first = str(failure).splitlines()[0]
    return " ".join(word for word in first.split() if "/" not in word and not any(map(str.isdigit, word)))


@dataclass
class Campaign:
    """Seeds one after another, until the time is over or so many foreign actions are done. `state`: a file from which
    another run goes on; a campaign that is over begins anew."""

    lab: Lab
    first: int
    step: int = 1
    minutes: float | None = None
    actions: int | None = None
    state: Path | None = None
    most_failures: int = 1

    def run(self) -> dict[int, str]:
        """Failures by seed."""
        known = self._known()
        next_seed, spent = int(known.get("next", self.first)), float(known.get("seconds", 0))
        failures = {int(seed): str(text) for seed, text in known.get("failures", {}).items()}
        for kind, name, number in known.get("counted", ()):
            self.lab.counted[kind, name] += number
        begun = time.monotonic()
        while len(failures) < self.most_failures and not self._is_over(spent + time.monotonic() - begun):
            failure = self.lab.live(next_seed)
            if failure is not None:
                failures[next_seed] = str(failure)
            next_seed += self.step
            self._keep(next_seed, spent + time.monotonic() - begun, failures)
        self.seconds = spent + time.monotonic() - begun
        return failures

    def _is_over(self, seconds: float) -> bool:
        done = sum(number for (kind, _), number in self.lab.counted.items() if kind == "foreign actions")
        by_time = self.minutes is not None and seconds > 60 * self.minutes
        return by_time or (self.actions is not None and done >= self.actions)

    def _known(self) -> dict[str, Any]:
        if self.state is None or not self.state.exists():
            return {}
        known: dict[str, Any] = json.loads(self.state.read_text())
        done = sum(number for kind, _, number in known["counted"] if kind == "foreign actions")
        by_time = self.minutes is not None and known["seconds"] > 60 * self.minutes
        is_over = by_time or (self.actions is not None and done >= self.actions)
        return {} if is_over else known

    def _keep(self, next_seed: int, seconds: float, failures: dict[int, str]) -> None:
        if self.state is None:
            return
        counted = [[kind, name, number] for (kind, name), number in sorted(self.lab.counted.items())]
        said = {"next": next_seed, "seconds": seconds, "failures": failures, "counted": counted}
        self.state.parent.mkdir(parents=True, exist_ok=True)
        written = self.state.with_suffix(".new")
        written.write_text(json.dumps(said, indent=1))
        shutil.move(written, self.state)


def report(counted: Counted, seconds: float) -> list[str]:
    """One line per kind, with the count of each action and step."""
    kinds: dict[str, list[tuple[str, int]]] = {}
    for (kind, name), number in sorted(counted.items()):
        if number:
            kinds.setdefault(kind, []).append((name, number))
    lines = []
    for kind, each in kinds.items():
        total = sum(number for _, number in each)
        lines.append(f"{total:,} {kind}: " + ", ".join(f"{name} {number:,}" for name, number in each))
    acts = sum(number for _, number in kinds.get("foreign actions", []))
    apart = sum(number for name, number in kinds.get("processor's milliseconds", []) if name != "steps")
    cost = f"{apart / max(acts, 1):.0f} ms of a processor for each, steps of the lifecycle apart"
    return [*lines, f"{acts / max(seconds, 1e-9):.1f} foreign actions a second, in {seconds:,.0f} seconds; {cost}"]


def turns_of(text: str) -> Iterable[int]:
    """`3,7,12-20` as numbers."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
