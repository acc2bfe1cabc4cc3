"""What engines that write do: rows in and out, branches and tags, schemas, files at work, and paths written again."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta

from artemis_lifecycle.errors import OtherDeployment
from artemis_lifecycle_tests.foreign.actions import CannotNowError, Draw, foreign
from artemis_lifecycle_tests.foreign.core import ids_in, write_equality, write_positions
from artemis_lifecycle_tests.foreign.world import World, called, make_old
from artemis_lifecycle_tests.guardian import on_disk


@foreign(8)
def append(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    table = world.java(name)
    world.core.java.append(table, "main", world.write(name, table))


@foreign(5)
def overwrite(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    table = world.java(name)
    world.core.java.overwrite(table, world.write(name, table, records=1 + draw.number(4)))


@foreign(5)
def delete_rows(world: World, draw: Draw) -> None:
    """Merge on read, by one kind of delete or another."""
    name = world.one_table(draw)
    delete_from(world, name, "main", draw, by_equality=draw.chance(0.4, "by equality"))


def delete_from(world: World, name: str, branch: str, draw: Draw, *, by_equality: bool) -> set[int]:
    """Delete one row, or all rows of one file; returns their ids."""
    table = world.java(name)
    found = [line.split("\t") for line in world.core.java.scan(table, branch).splitlines()]
    plain = [each for each in found if on_disk(each[0]).exists() and (by_equality or each[3] == "0")]
    path, _, records, _ = draw.one(sorted(plain), silent=True)
    ids = ids_in(on_disk(path))
    place = table.locationProvider().newDataLocation(f"deletes-{world.number()}.parquet")
    if by_equality:
        world.core.java.deleteRows(table, branch, write_equality(place, ids[0]), True)
        return {ids[0]}
    if world.described(name).version > 2:
        world.core.java.deleteByVector(table, branch, path, int(records))
    else:
        world.core.java.deleteRows(table, branch, write_positions(place, path, int(records)), False)
    return set(ids)


@foreign(2)
def compact(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    described = world.described(name)
    if described.main is None:
        raise CannotNowError(name)
    rows = [dict(row) for row in world.core.rows(described.location, described.main, current=True)]
    if not rows:
        raise CannotNowError(name)
    table = world.java(name)
    world.core.java.compact(table, world.write(name, table, rows=rows))


@foreign(2)
def stage_and_pick(world: World, draw: Draw) -> None:
    """Write-audit-publish: a staged snapshot, cherry-picked."""
    name = world.one_table(draw)
    table = world.java(name)
    staged = world.write(name, table)
    appended = world.write(name, table) if draw.chance(0.5, "and an append") else None
    world.core.java.stageAndPick(table, staged, f"wap-{world.number()}", appended)


# --- branches, tags and lines of history ------------------------------------------------------------------------------


@foreign(2)
def name_it(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    kind = draw.one(["branch", "tag"])
    ids = world.ids(name)
    which = ids[draw.number(60) % len(ids)]
    world.core.java.reference(world.java(name), f"{kind}-{world.number()}", which, kind == "branch")


def _refs(world: World, name: str) -> list[str]:
    return sorted(each for each in world.described(name).branches if each != "main")


@foreign(1)
def unname(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    branches = _refs(world, name)
    ref = draw.one([*branches, *sorted(world.described(name).tags)])
    world.core.java.unreference(world.java(name), ref, ref in branches)


@foreign(3)
def append_to_branch(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    branch = draw.one(_refs(world, name))
    table = world.java(name)
    world.core.java.append(table, branch, world.write(name, table, records=1))


@foreign(2)
def delete_from_branch(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    delete_from(world, name, draw.one(_refs(world, name)), draw, by_equality=draw.chance(0.5, "by equality"))


@foreign(2)
def roll_back(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    table = world.java(name)
    current = table.currentSnapshot()
    parent = None if current is None else current.parentId()
    if parent is None or parent not in world.ids(name):
        raise CannotNowError(name)
    world.core.java.setCurrent(table, parent, True)


@foreign(2)
def set_current(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    ids = world.ids(name)
    world.core.java.setCurrent(world.java(name), ids[draw.number(60) % len(ids)], False)


@foreign(1)
def add_column(world: World, draw: Draw) -> None:
    world.core.java.addColumn(world.java(world.one_table(draw)), f"more_{world.number()}")


@foreign(0.5)
def drop_column(world: World, draw: Draw) -> None:
    table = world.java(world.one_table(draw))
    names = [line.split("\t")[1] for line in world.core.java.columns(table).splitlines()]
    world.core.java.dropColumn(table, draw.one([name for name in names if name.startswith("more_")]))


# --- writers at work --------------------------------------------------------------------------------------------------


@foreign(2)
def stage_file(world: World, draw: Draw) -> None:
    """A writer's file that no snapshot has yet. It is young; or old, and the writer's heartbeat protects it."""
    world.require_right_clock()
    name = world.one_table(draw)
    beats = draw.chance(0.5, "beats")
    table_uuid = world.uuid(name)
    if beats:
        _require_ours(world, name)
    table = world.java(name)
    path = table.locationProvider().newDataLocation(f"in-flight-{world.number()}.parquet")
    world.write(name, table, path=path)
    if beats:
        beat(world, name, table_uuid)
        make_old(on_disk(path))
    world.in_flight[str(on_disk(path))] = (table_uuid, beats)


def _require_ours(world: World, name: str) -> None:
    """A heartbeat is refused where the catalog belongs to another deployment."""
    try:
        world.lifecycle.resources.require_deployment(record=False)
    except OtherDeployment as error:
        raise CannotNowError(name) from error


def beat(world: World, name: str, table_uuid: str) -> None:
    _require_ours(world, name)
    heartbeats = world.lifecycle.operations.heartbeats
    heartbeats.beat(table_uuid, called(name), "writer", None, timedelta(hours=1))


@foreign(1)
def take_up_expired_file(world: World, draw: Draw) -> None:
    """A writer that still has a file at hand that only an expired snapshot had, and says that it writes."""
    world.require_right_clock()
    name = world.one_table(draw)
    table_uuid = world.uuid(name)
    expired = [path for path in _paths_of(world, table_uuid) if on_disk(path).exists()]
    free = sorted(set(expired) - _read_now(world))
    path = draw.one(free, silent=True)
    beat(world, name, table_uuid)
    world.in_flight[str(on_disk(path))] = (table_uuid, True)


@foreign(2)
def commit_staged(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    table_uuid = world.uuid(name)
    mine = [path for path, (owner, _) in world.in_flight.items() if owner == table_uuid]
    if not mine:
        raise CannotNowError(name)
    lines = []
    for path in mine:
        place = on_disk(path)
        if place.exists():
            lines.append(f"file:{path}\t{place.stat().st_size}\t{len(ids_in(place))}")
        del world.in_flight[path]
    if lines:
        world.core.java.append(world.java(name), "main", "\n".join(lines))
    world.lifecycle.operations.heartbeats.stop(table_uuid, "writer")


# --- paths written again ----------------------------------------------------------------------------------------------


def _paths_of(world: World, table_uuid: str) -> list[str]:
    return [path for path, owner in world.paths.items() if owner == table_uuid]


def _read_now(world: World) -> set[str]:
    """Paths of data files that some table's metadata names, in the live catalog or where it may come back from."""
    locations = [each.location for each in world.objects() if each.catalog == world.live and each.kind == "TABLE"]
    found: set[str] = set()
    for location in (*locations, *world.elsewhere):
        if on_disk(location).exists():
            for files in world.core.describe(location).reads.values():
                found.update(files or ())
    return found


@foreign(4, destroys=True)
def write_again(world: World, draw: Draw) -> None:
    """A writer that names its files itself: a path whose old file has expired. That file may wait for its deletion, be
    deleted, or be archived. The new one may have its size, and its second."""
    name = world.one_table(draw)
    read = {str(on_disk(path)) for path in _read_now(world)} | set(world.in_flight)
    free = [path for path in _paths_of(world, world.uuid(name)) if str(on_disk(path)) not in read]
    if draw.chance(0.5):
        free = [path for path in free if on_disk(path).exists()] or free
    again(world, name, draw.one(free, silent=True), draw, commit=True)


def again(world: World, name: str, path: str, draw: Draw, *, commit: bool) -> str:
    place = on_disk(path)
    before = place.stat() if place.exists() else None
    draw.said.append("still there" if before else "gone")
    table = world.java(name)
    records = draw.one([4, 4, 3, 5])
    if draw.chance(0.3, "moved there"):
        # As a rename does it, with another inode and the time of its writing.
        place.unlink(missing_ok=True)
    line = world.write(name, table, records=records, path=path)
    if before is not None and draw.chance(0.4, "in the same second"):
        second = before.st_mtime_ns // 10**9 * 10**9
        os.utime(place, ns=(second, second + 1 + draw.number(10**6)))
    elif draw.chance(0.3, "old"):
        make_old(place)
    if commit:
        world.core.java.append(table, "main", line)
    return line


@foreign(1.5, destroys=True)
def take_place_of_another(world: World, draw: Draw) -> None:
    """One table's writer writes where an expired file of another table was."""
    name, of = world.one_table(draw), world.one_table(draw)
    read = {str(on_disk(path)) for path in _read_now(world)} | set(world.in_flight)
    free = [path for path in _paths_of(world, world.uuid(of)) if str(on_disk(path)) not in read]
    again(world, name, draw.one(free, silent=True), draw, commit=True)


@foreign(1, destroys=True)
def put_back(world: World, draw: Draw) -> None:
    """A person copies an archived file back to where it was: the same bytes, another time."""
    found = sorted(world.cold_warehouse.rglob("part-*.parquet"))
    copy = draw.one(found, silent=True)
    ends = {path.rsplit("/", 1)[1]: path for path in world.paths}
    origin = next((path for end, path in ends.items() if copy.name.endswith(end)), None)
    if origin is None or on_disk(origin).exists():
        raise CannotNowError("its place is taken")
    on_disk(origin).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(copy, on_disk(origin))
    if draw.chance(0.5, "old"):
        make_old(on_disk(origin))
