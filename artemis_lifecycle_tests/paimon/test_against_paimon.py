"""Differential against Paimon's own code: each random life is copied byte by byte, Paimon works on one copy and this
project on the other. The same snapshots must be left, the same files, and the same rows.

Only branches differ, and in one direction: Paimon's expiration takes their files, ours does not. `make nightly` takes
more lives, by new seeds.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.end_report import add_row
from artemis_lifecycle_tests.paimon import ours
from artemis_lifecycle_tests.paimon.bundle import Table
from artemis_lifecycle_tests.paimon.histories import ALONE, BRANCHED, STEP, WITH_CHANGELOGS, Act, History, live

# Read before the fixture of the tests' conftest takes such variables away.
TIMES = int(os.environ.get("ARTEMIS_SOAK", "1"))
SEED = 1000 * int(os.environ["ARTEMIS_SEED"])


@dataclass
class World:
    """A warehouse with a life in each table, and room for copies."""

    lifecycle: Lifecycle
    calls: Any
    warehouse: Path
    beside: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def live(self, seed: int, acts: dict[Act, int]) -> History:
        return live(self.calls, self.warehouse, seed, acts, name=f"db.t{next(self.numbers)}")

    def copy(self, table: Table) -> Table:
        return table.copy(self.beside)


@pytest.fixture(scope="module")
def world(
    calls: Any, module_configs: MakeConfig, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("paimon")
    config = ours.configured(module_configs, folder / "warehouse")
    with ours.opened(config, spark) as lifecycle:
        yield World(lifecycle, calls, folder / "warehouse", folder / "theirs")


def seeds(count: int) -> range:
    return range(SEED, SEED + count * TIMES)


def draw_options(history: History) -> None:
    """Draw the table's own options about expiration; its time is that of the argument older_than."""
    least = history.dice.randint(1, 6)
    options = {"snapshot.num-retained.min": f"{least}", "snapshot.expire.limit": f"{history.dice.choice((3, 50))}"}
    if history.dice.random() < 0.5:
        options["snapshot.num-retained.max"] = f"{least + history.dice.randint(0, 4)}"
    options["snapshot.clean-empty-directories"] = history.dice.choice(("true", "false"))
    history.table.alter(options)
    history.say(f"options {options}")


def draw_older_than(history: History) -> datetime:
    """An instant between two commits, or about them all."""
    older_than = history.now + timedelta(seconds=30) - history.dice.randint(0, 30) * STEP
    history.say(f"older than {older_than}")
    return older_than


def draw_arguments(history: History) -> dict[str, int]:
    """Arguments of the call, which win over options."""
    least, given = history.dice.randint(1, 5), {}
    if history.dice.random() < 0.4:
        given |= {"retain_min": least, "retain_max": least + history.dice.randint(0, 5)}
    if history.dice.random() < 0.3:
        given["max_deletes"] = history.dice.randint(1, 4)
    history.say(f"arguments {given}")
    return given


@pytest.mark.parametrize("seed", seeds(2))
def test_the_same_snapshots_and_files_are_left(world: World, seed: int) -> None:
    history = world.live(seed, ALONE)
    draw_options(history)
    theirs, before = world.copy(history.table), history.table.contents()
    given = {"older_than": draw_older_than(history), **draw_arguments(history)}
    options = history.dice.choice(({}, {"snapshot.expire.limit": "4"}))

    expired = theirs.expire(**given, options=options)
    text = ",".join(f"{key}={value}" for key, value in options.items())
    done = ours.procedures(world.lifecycle, history.table).expire_snapshots(
        ours.name(history.table), **given, options=text
    )

    assert done.deleted_snapshots_count == expired, "\n".join(history.said)
    _require_same(history, theirs, before)
    _count("expire_snapshots", history, theirs, expired)


@pytest.mark.parametrize("seed", seeds(1))
def test_the_same_tags_expire_with_the_same_files(world: World, seed: int) -> None:
    history = world.live(seed, ALONE)
    # What only tags have.
    history.table.expire(retain_max=1, retain_min=1)
    theirs, before = world.copy(history.table), history.table.contents()
    older_than = datetime.now(UTC) + timedelta(hours=history.dice.choice((-1, 1)))

    expired = theirs.expire_tags(older_than)
    done = ours.procedures(world.lifecycle, history.table).expire_tags(ours.name(history.table), older_than=older_than)

    assert list(done.expired_tags) == expired, "\n".join(history.said)
    assert history.table.tags() == theirs.tags()
    _require_same(history, theirs, before)
    _count("expire_tags", history, theirs, len(expired))


@pytest.mark.parametrize("seed", seeds(1))
def test_rolling_back_leaves_the_same(world: World, seed: int) -> None:
    history = world.live(seed, WITH_CHANGELOGS)
    snapshots, tags = history.table.snapshots(), history.table.tags()
    target: int | str = history.dice.choice([*snapshots, *sorted(tags)])
    history.say(f"roll back to {target}")
    theirs, before = world.copy(history.table), history.table.contents()

    theirs.rollback_to(target)
    to = {"snapshot_id": target} if isinstance(target, int) else {"tag": target}
    ours.procedures(world.lifecycle, history.table).rollback_to(ours.name(history.table), **to)  # type: ignore[arg-type]

    assert history.table.tags() == theirs.tags()
    _require_same(history, theirs, before)
    assert history.table.files() == theirs.files(), "hints, too"
    assert history.table.write([(1, "a", "goes on")]) == theirs.write([(1, "a", "goes on")])
    _count("rollback_to", history, theirs, len(snapshots) - len(theirs.snapshots()) + 1)


@pytest.mark.parametrize("seed", seeds(1))
def test_files_of_branches_are_kept_and_all_else_is_as_paimon_leaves_it(world: World, seed: int) -> None:
    history = world.live(seed, BRANCHED)
    draw_options(history)
    theirs, before, older_than = world.copy(history.table), history.table.contents(), draw_older_than(history)
    garbage = history.table.unreached()

    expired = theirs.expire(older_than=older_than)
    ours.expire(world.lifecycle, history.table, older_than=older_than)

    said = "\n".join(history.said)
    assert history.table.snapshots() == theirs.snapshots(), said
    assert set(history.table.listing()) >= set(theirs.listing()), said
    assert history.table.unreached() == garbage, said
    _require_read(history, before)
    _count("expiration with branches", history, theirs, expired)


@pytest.mark.parametrize("seed", seeds(1))
def test_decoupled_changelogs_live_as_long(world: World, seed: int) -> None:
    history = world.live(seed, WITH_CHANGELOGS)
    draw_options(history)
    # All is old by now: counts decide. Paimon's procedure, unlike its writers, would not spare changelogs.
    history.table.alter({"snapshot.time-retained": "1 ms"})
    theirs, before = world.copy(history.table), history.table.contents()

    expired = theirs.expire_as_writer()
    with suppress(Py4JJavaError):  # It fails where its minimum keeps all changelogs.
        theirs.expire_changelogs()
    ours.expire(world.lifecycle, history.table)

    _require_same(history, theirs, before)
    assert history.table.changelogs() == theirs.changelogs(), "\n".join(history.said)
    _count("expiration with changelogs", history, theirs, expired)


def _require_same(history: History, theirs: Table, before: dict[str, Any]) -> None:
    said = "\n".join(history.said)
    assert history.table.snapshots() == theirs.snapshots(), said
    assert history.table.listing() == theirs.listing(), said
    assert history.table.folders() == theirs.folders(), said
    _require_read(history, before)


def _require_read(history: History, before: dict[str, Any]) -> None:
    after = history.table.contents()
    assert after == {what: rows for what, rows in before.items() if what in after}, "\n".join(history.said)


def _count(what: str, history: History, theirs: Table, expired: int) -> None:
    head = ("compared", "life", "snapshots expired", "files left")
    row = (what, history.said[0].partition(",")[0], f"{expired}", f"{len(theirs.listing())}")
    add_row("Paimon tables, against Paimon's own code", head, row)
