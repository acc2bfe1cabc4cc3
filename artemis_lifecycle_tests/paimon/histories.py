"""Random lives of Paimon tables, written by Paimon itself: what the differential tests expire, clean and roll back.

Everything drawn comes from one seed. Commits are half minutes past full ones, so that no instant at a full minute is
that of a commit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from artemis_lifecycle_tests.paimon.bundle import Row, Table, create

_SHAPES: dict[str, tuple[bool, dict[str, str]]] = {
    "append": (False, {"bucket": "-1"}),
    "append in buckets": (False, {"bucket": "2", "bucket-key": "k"}),
    "keyed": (True, {"bucket": "2"}),
    "dynamic buckets": (True, {"bucket": "-1"}),
    "deletion vectors": (True, {"bucket": "1", "deletion-vectors.enabled": "true"}),
    "changelog of input": (True, {"bucket": "1", "changelog-producer": "input"}),
    "changelog by lookup": (True, {"bucket": "1", "changelog-producer": "lookup"}),
    "changelog of compactions": (True, {"bucket": "1", "changelog-producer": "full-compaction"}),
    "file index": (
        True,
        {"bucket": "1", "file-index.bloom-filter.columns": "v", "file-index.in-manifest-threshold": "1 b"},
    ),
}
SHAPES = tuple(_SHAPES)
_DECOUPLED = {"changelog.num-retained.min": "4", "changelog.num-retained.max": "9"}
STEP = timedelta(minutes=1)


@dataclass
class History:
    """A table as it grows. `now` is the instant of the newest commit; `said` is what was done, for failures."""

    table: Table
    keyed: bool
    buckets: bool
    partitioned: bool
    dice: random.Random
    now: datetime
    names: int = 0
    placed: set[tuple[str, int]] = field(default_factory=set)
    said: list[str] = field(default_factory=list)

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def rows(self) -> list[Row]:
        count = self.dice.randint(1, 4)
        return [(self.dice.randrange(8), self.dice.choice("ab"), self.name("v")) for _ in range(count)]

    def place(self) -> None:
        """Place the new snapshots of every branch in time."""
        for branch in ("main", *self.table.branches()):
            for number in self.table.snapshots(branch):
                if (branch, number) not in self.placed:
                    self.now += STEP
                    self.table.place(number, self.now, branch)
                    self.placed.add((branch, number))

    def say(self, what: str) -> None:
        self.said.append(what)


def write(history: History) -> None:
    rows = history.rows()
    if history.keyed:
        rows = list({(row[0], row[1]): row for row in rows}.values())
    # Tables without buckets are compacted by jobs of their own.
    how = history.dice.choice(("never", "never", "at will", "fully" if history.buckets else "at will"))
    branch = _branch(history)
    kind = history.dice.choice(("+I", "+I", "-D")) if history.keyed else "+I"
    history.say(f"{kind} {len(rows)} rows on {branch}, compact {how}")
    history.table.write(rows, kind, branch=branch, compact=how)  # type: ignore[arg-type]


def overwrite(history: History) -> None:
    history.say("overwrite")
    history.table.write(history.rows()[:1], overwrite=True)


def truncate(history: History) -> None:
    partition = {"p": history.dice.choice("ab")} if history.partitioned else {}
    history.say(f"truncate {partition}")
    history.table.truncate(partition)


def analyze(history: History) -> None:
    history.say("analyze")
    history.table.analyze()


def compact_manifests(history: History) -> None:
    history.say("compact manifests")
    history.table.compact_manifests()


def tag(history: History) -> None:
    branch = _branch(history)
    snapshots = history.table.snapshots(branch)
    if snapshots:
        name, number = history.name("tag"), history.dice.choice(snapshots)
        retained = history.dice.choice((None, timedelta(hours=1)))
        history.say(f"tag {name} = {number} of {branch}, retained {retained}")
        history.table.tag(name, number, retained=retained, branch=branch)


def delete_tag(history: History) -> None:
    branch = _branch(history)
    tags = sorted(history.table.tags(branch))
    if tags:
        name = history.dice.choice(tags)
        history.say(f"delete tag {name} of {branch}")
        history.table.delete_tag(name, branch)


def create_branch(history: History) -> None:
    # From a tag whose snapshot has expired Paimon cannot make one.
    there = history.table.snapshots()
    tags = sorted(name for name, number in history.table.tags().items() if number in there)
    name = history.name("branch")
    source = history.dice.choice(tags) if tags and history.dice.random() < 0.8 else None
    history.say(f"branch {name} from {source}")
    history.table.create_branch(name, source)


def delete_branch(history: History) -> None:
    branches = history.table.branches()
    if branches:
        name = history.dice.choice(branches)
        history.say(f"delete branch {name}")
        history.table.delete_branch(name)


def consume(history: History) -> None:
    snapshots = history.table.snapshots()
    consumer, number = history.dice.choice("xy"), history.dice.choice([*snapshots, snapshots[-1] + 1])
    history.say(f"consumer {consumer} at {number}")
    history.table.consume(consumer, number)


def delete_consumers(history: History) -> None:
    history.say("delete consumers")
    for consumer in "xy":
        history.table.delete_consumer(consumer)


def expire(history: History) -> None:
    least = history.dice.randint(1, 4)
    expired = history.table.expire(retain_max=least + 4, retain_min=least)
    history.say(f"expire, retain {least} to {least + 4}: {expired} snapshots")


def expire_as_writer(history: History) -> None:
    options = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": str(history.dice.randint(2, 6))}
    history.say(f"expire as writer {options}: {history.table.expire_as_writer(options)} snapshots")
    changelogs, kept = history.table.changelogs(), int(_DECOUPLED["changelog.num-retained.min"])
    if changelogs and history.table.snapshots()[-1] - kept + 1 >= changelogs[0]:
        history.say(f"expire {history.table.expire_changelogs(options)} changelogs")


def roll_back(history: History) -> None:
    number = history.dice.choice(history.table.snapshots()[-3:])
    history.say(f"roll back to {number}")
    history.table.rollback_to(number)
    history.placed = {(branch, each) for branch, each in history.placed if branch != "main" or each <= number}


def add_column(history: History) -> None:
    history.say("set an option: a new schema")
    history.table.alter({"snapshot.expire.limit": str(history.dice.randint(5, 50))})


Act = Callable[[History], None]
PLAIN: dict[Act, int] = {write: 12, overwrite: 2, truncate: 1, analyze: 1, compact_manifests: 1, add_column: 1}
TAGS: dict[Act, int] = {tag: 4, delete_tag: 2}
BRANCHES: dict[Act, int] = {create_branch: 2, delete_branch: 1}
CONSUMERS: dict[Act, int] = {consume: 1, delete_consumers: 1}
LOSSES: dict[Act, int] = {expire: 2, roll_back: 1}
DECOUPLED: dict[Act, int] = {expire_as_writer: 2}
WITH_CHANGELOGS = PLAIN | TAGS | CONSUMERS | DECOUPLED
ALONE = PLAIN | TAGS | CONSUMERS | LOSSES
BRANCHED = PLAIN | TAGS | CONSUMERS | BRANCHES
"""Without LOSSES: Paimon's expiration knows nothing of branches, and takes their files."""


def live(
    calls: Any, warehouse: Path, seed: int, acts: dict[Act, int], *, name: str = "db.t", steps: int = 20
) -> History:
    """Make a table and let it live. Its newest commit is minutes before the present, which Paimon's clock is about."""
    dice = random.Random(seed)
    shape = dice.choice(SHAPES)
    keyed, options = _SHAPES[shape]
    options = options | {"manifest.merge-min-count": dice.choice(("2", "4", "30"))}
    if dice.random() < 0.3:
        options |= {"manifest.full-compaction-threshold-size": "1 b"}
    if dice.random() < 0.5:
        options |= {"file.format": dice.choice(("orc", "avro"))}
    if acts.keys() & DECOUPLED.keys():
        options |= _DECOUPLED
    partitioned = dice.random() < 0.5
    start = datetime.now(UTC).replace(second=30, microsecond=0) - (3 * steps + 10) * STEP
    table = create(calls, warehouse, name, partitioned=partitioned, keyed=keyed, options=options)
    history = History(table, keyed, shape != "append", partitioned, dice, start)
    history.say(f"seed {seed}: {shape}, partitioned {partitioned}, {options}")
    write(history)
    history.place()
    drawn = dice.choices(list(acts), list(acts.values()), k=steps)
    for act in drawn:
        act(history)
        history.place()
    return history


def _branch(history: History) -> str:
    branches = history.table.branches()
    return history.dice.choice(branches) if branches and history.dice.random() < 0.3 else "main"
