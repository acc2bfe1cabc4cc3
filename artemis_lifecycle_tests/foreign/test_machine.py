"""The machine itself: it sees what is taken, it reads as Iceberg does, its seeds repeat, and its campaigns go on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from artemis_lifecycle_tests.foreign.actions import FOREIGN, STEPS, Draw
from artemis_lifecycle_tests.foreign.actors import Actors, WrongError
from artemis_lifecycle_tests.foreign.catalog import point_to
from artemis_lifecycle_tests.foreign.machine import Campaign, Lab, turns_of
from artemis_lifecycle_tests.foreign.tools import take_up
from artemis_lifecycle_tests.foreign.world import World
from artemis_lifecycle_tests.foreign.writers import beat, delete_from
from artemis_lifecycle_tests.guardian import on_disk

pytestmark = pytest.mark.no_guardian(reason="files are taken on purpose")

EMPTY_DATABASE = True
"""The schema is made under a clock that steps."""


@pytest.fixture
def world(lab: Lab) -> Iterator[World]:
    world = lab.world("machine")
    world.create("a", None, 2)
    world.create("q", None, 3)
    yield world
    world.close()


@pytest.fixture
def actors(world: World) -> Actors:
    return Actors(world, Counter())


def _lose_data_file(world: World) -> None:
    described = world.described("a")
    on_disk(described.files[0].path).unlink()


def _lose_manifest_list(world: World) -> None:
    described = world.described("a")
    next(on_disk(path) for path in described.reads[described.order[0]] or () if "/snap-" in path).unlink()


def _lose_earlier_metadata(world: World) -> None:
    on_disk(min(world.described("a").own)).unlink()


def _change_rows(world: World) -> None:
    one, other = (on_disk(each.path) for each in world.described("a").files)
    one.write_bytes(other.read_bytes())


def _lose_view(world: World) -> None:
    view = next(each for each in world.objects() if each.kind == "VIEW")
    on_disk(view.location).unlink()


def _drop_from_catalog(world: World) -> None:
    world.core.java.drop(world.catalog, "q", False)


def _lose_other_system(world: World) -> None:
    min(world.untouchable).unlink()


@pytest.mark.parametrize(
    ("take", "said"),
    [
        (_lose_data_file, "is in neither tier: live a: no file"),
        (_lose_manifest_list, "is in neither tier"),
        (_lose_earlier_metadata, "which a table's metadata names, is gone"),
        (_change_rows, "in place of"),
        (_lose_view, "of another system, or a view, is gone"),
        (_drop_from_catalog, "the catalog's table db.q is gone"),
        (_lose_other_system, "of another system, or a view, is gone"),
    ],
)
def test_whatever_a_step_takes_is_seen(actors: Actors, take: Callable[[World], None], said: str) -> None:
    world = actors.world
    world.core.java.view(world.catalog, "v", None, False, "SELECT 1 AS id, 'x' AS name")
    FOREIGN["stream"].work(world, Draw("stream"))
    with pytest.raises(WrongError, match=re.escape(said)):
        actors.step("delete_files", lambda: take(world))


def test_what_others_take_is_theirs(actors: Actors) -> None:
    actors.look()
    _lose_data_file(actors.world)
    actors.look_again()
    actors.step("delete_files", lambda: None)


def test_an_archived_manifest_that_others_changed_is_theirs(actors: Actors) -> None:
    world = actors.world
    world.create("b", None, 4)
    world.core.java.overwrite(world.java("b"), world.write("b", world.java("b")))
    actors.step("delete_files", lambda: actors.lifecycle.expire("db.b"))
    kinds = [way.kind for way in actors.look().ways.values()]
    for path in world.cold_warehouse.rglob("*-m0.parquet"):
        path.write_bytes(bytes(path.stat().st_size))
        world.flipped.add(str(path))
    actors.end(Draw("end"))
    assert "cold" in kinds
    assert "cold" not in [way.kind for way in actors.look_again().ways.values()]


@pytest.mark.parametrize("inside", [True, False])
def test_a_commit_that_nobody_saw_counts_where_no_other_table_is_inside(actors: Actors, inside: bool) -> None:
    world = actors.world
    if inside:
        world.create("k", world.place("a") / "data", 2)
    older = world.pointer("a")
    world.core.java.append(world.java("a"), "main", world.write("a", world.java("a")))
    actors.look_again()
    (new,) = [path for path in world.paths if path.endswith(f"/part-{world.next_number - 1}.parquet")]
    point_to(world, "a", older)
    actors.look_again()
    with nullcontext() if inside else pytest.raises(WrongError, match="read from future"):
        actors.step("delete_orphans", on_disk(new).unlink)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_rows_put_together_without_iceberg_are_those_that_iceberg_reads(world: World, version: int) -> None:
    world.create("b", None, version)
    for by_equality in (True, False):
        delete_from(world, "b", "main", Draw(version, by_equality), by_equality=by_equality)
        world.core.java.append(world.java("b"), "main", world.write("b", world.java("b")))
        world.core.java.addColumn(world.java("b"), f"more_{by_equality}")
    model = Actors(world, Counter()).model
    described = world.described("b")
    for snapshot in described.order:
        assert model.observe().ways[snapshot].kind == "live"
        assert model.prints[snapshot] == model.rows(described.location, snapshot)
    assert len(described.order) == 6


def test_a_branch_that_forgets_its_deletes_is_seen(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    actors.write_and_read_back("a", "main", Draw("good"))
    described = actors.world.described("a")
    kept = dict(actors.model.rows(described.location, described.branches["main"])[0])["id"]  # type: ignore[index]
    monkeypatch.setattr("artemis_lifecycle_tests.foreign.actors.delete_from", lambda *_, **__: {kept})
    with pytest.raises(WrongError, match="written to, deleted from and read back"):
        actors.write_and_read_back("a", "main", Draw("bad"))


def _hold(world: World) -> None:
    world.lifecycle.hold("db.a", "legal", "a case")


def _beat(world: World) -> None:
    beat(world, "a", world.uuid("a"))


def _take_up(world: World) -> None:
    plan = world.lifecycle.plans("db.a")[0]
    files = [row.path for row in world.lifecycle.plan(plan.plan_id).deletable_data_files.collect()]
    take_up(world, "q", [f"file:{on_disk(path)}" for path in files])


@pytest.mark.parametrize(
    ("others", "guard"),
    [
        (_hold, "protection.Protection.require_no_hold"),
        (_beat, "protection.covered"),
        (_take_up, "neighbors.Neighbors.reads"),
    ],
)
def test_a_step_that_a_guard_would_have_stopped_is_no_run_of_the_model(
    lab: Lab, actors: Actors, monkeypatch: pytest.MonkeyPatch, others: Callable[[World], None], guard: str
) -> None:
    world, lifecycle = actors.world, actors.lifecycle
    world.core.java.overwrite(world.java("a"), world.write("a", world.java("a")))
    actors.step("plan_expiration", lambda: lifecycle.plan_expiration("db.a"))
    plan = lifecycle.plans("db.a")[0].plan_id
    actors.step("hand_off", lambda: lifecycle.hand_off(plan))
    actors.step("commit_expiration", lambda: lifecycle.commit_expiration(plan))
    others(world)
    actors.look_again()
    assert lab.refused(actors) is None
    monkeypatch.setattr(f"artemis_lifecycle.protection.{guard}", lambda *_: ())
    with suppress(WrongError):
        actors.step("delete_files", lambda: lifecycle.delete_files(plan))
    refused = lab.refused(actors)
    assert refused is not None
    assert re.search(r"→ +\d+ expirer: deletes file 1\n", str(refused))


def test_a_seed_and_its_turns_repeat(lab: Lab) -> None:
    def history(turns: range | None) -> list[str]:
        assert lab.live(7, turns) is None
        # Ids and names of files are as random as Iceberg makes them.
        return [re.sub(r"→.*|[0-9a-f-]{9,}|[0-9]{9,}", "", line) for line in lab.history]

    first, again, fewer = history(range(1, 13)), history(range(1, 13)), history(range(7, 13))
    assert first == again
    assert fewer, "turns 1 to 6 are left out, and the others are drawn as before"
    assert {line.split("(")[0] for line in fewer} <= {line.split("(")[0] for line in first}


def test_a_campaign_goes_on_where_it_was_stopped(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived: list[int] = []

    def live(seed: int) -> WrongError | None:
        lived.append(seed)
        lab.counted["foreign actions", "append"] += 10
        if len(lived) == 2:
            raise KeyboardInterrupt
        return WrongError("lost") if seed == 11 else None

    monkeypatch.setattr(lab, "live", live)
    lab.counted.clear()
    campaign = Campaign(lab, 5, 3, actions=40, state=tmp_path / "shard.json", most_failures=9)
    with pytest.raises(KeyboardInterrupt):
        campaign.run()
    lab.counted.clear()
    assert campaign.run() == {11: "lost"}
    assert lived == [5, 8, 8, 11, 14]
    lab.counted.clear()
    assert campaign.run() == {11: "lost"}, "one that is over begins anew"
    assert lived[5:] == [5, 8, 11, 14]


def test_all_actions_and_steps_are_drawn_from() -> None:
    assert len(FOREIGN) > 50
    assert len(STEPS) > 20
    assert list(turns_of("3,7,12-14")) == [3, 7, 12, 13, 14]
