"""What happens to the objects of the catalog: tables and views made, replaced, renamed, dropped, registered, brought to
a version that nobody knows; and the catalog itself, which comes back from a backup."""

from __future__ import annotations

import json
from contextlib import suppress

from artemis_lifecycle_tests.foreign.actions import CannotNowError, Draw, foreign
from artemis_lifecycle_tests.foreign.world import NAMES, World
from artemis_lifecycle_tests.guardian import on_disk


def _free_name(world: World, draw: Draw) -> str:
    taken = {each.name for each in world.objects() if each.catalog == world.live}
    return draw.one([name for name in NAMES if name not in taken])


def _version(draw: Draw) -> int:
    return draw.one([2, 2, 3])


@foreign(0.7)
def create(world: World, draw: Draw) -> None:
    """In its default place, where a dropped one of the name may have its files."""
    world.create(_free_name(world, draw), None, _version(draw))


@foreign(0.4)
def create_inside(world: World, draw: Draw) -> None:
    inside = world.place(world.one_table(draw)) / "data" / "inner"
    world.create(_free_name(world, draw), inside, _version(draw))


@foreign(0.5)
def create_at_former_place(world: World, draw: Draw) -> None:
    """Where a table was that was dropped, or went on elsewhere."""
    places = sorted(place for place in (world.warehouse / "db").glob("*") if place.is_dir())
    world.create(_free_name(world, draw), draw.one(places, silent=True), _version(draw))


@foreign(0.7)
def rename(world: World, draw: Draw) -> None:
    name, to = world.one_table(draw), _free_name(world, draw)
    world.core.java.rename(world.catalog, name, to)
    _note_name(world, to)


def _note_name(world: World, name: str) -> None:
    if name == "n":
        world.unarchived.add(world.uuid(name))


@foreign(0.5, destroys=True)
def drop(world: World, draw: Draw) -> None:
    drop_table(world, world.one_table(draw), purge=draw.chance(0.3, "purge"))


def drop_table(world: World, name: str, *, purge: bool) -> None:
    location = world.pointer(name)
    if len(world.names()) == 1:
        # Without a table nothing happens any more.
        raise CannotNowError(name)
    try:
        world.core.java.drop(world.catalog, name, purge)
    finally:
        if not purge and name not in world.names():
            world.elsewhere[location] = "dropped"


@foreign(0.8, destroys=True)
def drop_and_make_again(world: World, draw: Draw) -> None:
    """Under the same name, in the same place or another, while the lifecycle remembers the old one."""
    name = world.one_table(draw)
    place = world.warehouse / f"again-{world.number()}" if draw.chance(0.3, "elsewhere") else None
    version = _version(draw)
    drop_table(world, name, purge=False)
    world.create(name, place, version)


@foreign(0.4, destroys=True)
def drop_and_view(world: World, draw: Draw) -> None:
    """As dbt replaces a table by a view of its name: the view's metadata stands in the table's place."""
    name = world.one_table(draw)
    drop_table(world, name, purge=False)
    world.core.java.view(world.catalog, name, None, False, "SELECT 1 AS id, 'view' AS name")


@foreign(2)
def make_view(world: World, draw: Draw) -> None:
    """In its own place, at a table's, or inside one."""
    place = world.place(world.one_table(draw))
    where = draw.one(["own", "at", "inside"])
    location = {"own": None, "at": f"file://{place}", "inside": f"file://{place}/views/v{world.number()}"}[where]
    taken = {each.name for each in world.objects()}
    name = draw.one([each for each in ("v1", "v2", "v3") if each not in taken])
    world.core.java.view(world.catalog, name, location, False, "SELECT 1 AS id, 'view' AS name")


@foreign(1)
def replace_view(world: World, draw: Draw) -> None:
    name = draw.one(world.names("VIEW"))
    world.core.java.view(world.catalog, name, None, True, f"SELECT {world.number()} AS id, 'view' AS name")


@foreign(1)
def drop_view(world: World, draw: Draw) -> None:
    world.core.java.dropView(world.catalog, draw.one(world.names("VIEW")))


@foreign(0.5)
def upgrade(world: World, draw: Draw) -> None:
    """To a version of the format that Iceberg's core writes, and that the lifecycle may not know."""
    name = world.one_table(draw)
    versions = {each: world.described(each).version for each in world.names()}
    # A table or two: nothing else may be left to look at.
    if versions[name] == 4 or sum(version == 4 for version in versions.values()) * 3 > len(versions):
        raise CannotNowError(name)
    version = draw.one([3, 4, 4])
    if version <= versions[name]:
        raise CannotNowError(name)
    world.core.java.setProperty(world.java(name), "format-version", str(version))


@foreign(0.7)
def register(world: World, draw: Draw) -> None:
    """The same table under a second name."""
    name, to = world.one_table(draw), _free_name(world, draw)
    world.core.java.register(world.catalog, to, world.pointer(name))
    _note_name(world, to)


@foreign(2)
def undrop(world: World, draw: Draw) -> None:
    """A person who has found out registers a dropped table again."""
    dropped = [each for each, why in world.elsewhere.items() if why == "dropped" and on_disk(each).exists()]
    location, to = draw.one(dropped, silent=True), _free_name(world, draw)
    world.core.java.register(world.catalog, to, location)
    del world.elsewhere[location]
    _note_name(world, to)


# --- catalogs that come back from a backup ----------------------------------------------------------------------------


def _older(world: World, name: str) -> list[str]:
    """Metadata files before the current one that are still there, oldest first."""
    return [each for each in _log(world, name) if on_disk(each).exists()]


def _log(world: World, name: str) -> list[str]:
    document = json.loads(on_disk(world.pointer(name)).read_bytes())
    return [each["metadata-file"] for each in document.get("metadata-log") or ()]


@foreign(2, destroys=True)
def restore_catalog(world: World, draw: Draw) -> None:
    """The catalog's pointer as an older backup has it; newer metadata stands beside."""
    name = world.one_table(draw)
    older = _older(world, name)
    back = draw.one(older[-4:], silent=True)
    draw.said.append(f"{len(older) - older.index(back)} commits back")
    point_to(world, name, back)


def point_to(world: World, name: str, back: str) -> None:
    now, log = world.pointer(name), _log(world, name)
    world.query(
        "UPDATE iceberg_tables SET metadata_location = %s, previous_metadata_location = NULL "
        "WHERE catalog_name = %s AND table_namespace = 'db' AND table_name = %s",
        back,
        world.live,
        name,
    )
    _note_future(world, now, back, log)


def _note_future(world: World, now: str, back: str, log: list[str]) -> None:
    world.elsewhere[now] = "future"
    if log and back == log[-1]:
        world.single[now] = back


@foreign(1.5, destroys=True)
def restore_catalog_and_write(world: World, draw: Draw) -> None:
    """The pointer as of a backup, and writers that go on from there at once: the archive is ahead of them."""
    name = world.one_table(draw)
    older = _older(world, name)
    back = draw.one(older, silent=True)
    draw.said.append(f"{len(older) - older.index(back)} commits back")
    point_to(world, name, back)
    for _ in range(1 + draw.number(3)):
        table = world.java(name)
        if draw.chance(0.2, "a column"):
            world.core.java.addColumn(table, f"more_{world.number()}")
            table = world.java(name)
        with suppress(OSError):
            world.core.java.append(table, "main", world.write(name, table))


@foreign(0.5, destroys=True)
def register_older(world: World, draw: Draw) -> None:
    """Somebody drops a table and registers an older metadata file of it."""
    name = world.one_table(draw)
    back = draw.one(_older(world, name), silent=True)
    now, log = world.pointer(name), _log(world, name)
    drop_table(world, name, purge=False)
    world.core.java.register(world.catalog, name, back)
    _note_future(world, now, back, log)


@foreign(0.7)
def give_up_future(world: World, draw: Draw) -> None:
    """A person says that the older pointer is right."""
    for location in [location for location, why in world.elsewhere.items() if why == "future"]:
        del world.elsewhere[location]
