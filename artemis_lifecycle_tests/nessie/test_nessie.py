"""Mark and sweep of a real Nessie catalog, whose tables Spark writes through Iceberg's NessieCatalog."""

from __future__ import annotations

from artemis_lifecycle_tests.nessie.world import NAME, World


def test_a_sweep_deletes_what_no_reference_shows_and_nothing_else(world: World) -> None:
    world.table("db.orders", rows=2)
    world.tag("before")
    world.create("work")
    world.insert("db.orders", 10, "work")
    world.create("idea")
    world.insert("db.orders", 99, "idea")
    world.table("db.fresh", "idea")
    lost = world.data_files("db.orders", "idea") - world.data_files("db.orders")
    fresh = world.data_files("db.fresh", "idea")
    world.create("merged")
    world.insert("db.orders", 20, "merged")
    world.merge("merged")
    world.delete("merged")
    with world.open() as lifecycle:
        first = lifecycle.mark(NAME)
        assert (first.state, first.references, first.contents) == ("marked", 4, 2)
        assert {each.table for each in lifecycle.live_set(first.live_set_id).contents} == {
            "versions:db.orders",
            "versions:db.fresh@idea",
        }
        nothing = lifecycle.sweep(first.live_set_id, deferred=False)
        assert [(each.error, each.files) for each in nothing.tables] == [(None, 0)] * 2, "everything is live"
        world.delete("idea")
        again = lifecycle.mark(NAME)
        before = world.files()
        assert lost | fresh <= before
        done = lifecycle.sweep(again.live_set_id, deferred=False)
        assert done.live_set.state == "swept" and [each.error for each in done.tables] == [None]
        gone = before - world.files()
        assert lost <= gone and not fresh & gone, "the dropped table is reported, and stays"
        assert [each.table for each in done.unseen] == ["versions:db.fresh@idea"]
    assert world.rows("db.orders") == [0, 1, 20]
    assert world.rows("db.orders", "work") == [0, 1, 10]
    assert world.rows("db.orders", "before") == [0, 1]
