"""What stores, disks, backups, clocks and people do."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

from artemis_lifecycle_tests.foreign.actions import CannotNowError, Draw, foreign
from artemis_lifecycle_tests.foreign.world import Held, World, called, connected, make_old, of_operations
from artemis_lifecycle_tests.guardian import GUARDIAN


@foreign(1)
def age_files(world: World, draw: Draw) -> None:
    """As after many days in which nobody wrote, but the writers at work."""
    age(world)


def age(world: World) -> None:
    # A writer may have named its file through a link.
    young = {os.path.realpath(path) for path, (_, beats) in world.in_flight.items() if not beats}
    state = str(world.state)
    for folder, folders, names in os.walk(world.warehouse.parent):
        folders[:] = [each for each in folders if os.path.join(folder, each) != state]
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink() and os.path.realpath(path) not in young:
                make_old(path)


@foreign(1)
def touch(world: World, draw: Draw) -> None:
    """A disk copied back: every file has a new time, and the same bytes."""
    for path in sorted(world.place(world.one_table(draw)).rglob("*.parquet")):
        os.utime(path)


@foreign(0.7)
def replicate(world: World, draw: Draw) -> None:
    """A replication writes the same bytes anew: another inode, another time."""
    for path in sorted(world.place(world.one_table(draw)).rglob("*.parquet")):
        if str(path) not in world.in_flight and path not in world.untouchable:
            copy = path.with_name(f".{path.name}.copy")
            shutil.copyfile(path, copy)
            copy.replace(path)


def _cold_file(world: World, draw: Draw) -> Path:
    found = sorted(path for path in world.cold_warehouse.rglob("*.parquet") if path.is_file())
    return draw.one(found, silent=True)


@foreign(0.7)
def lose_cold_file(world: World, draw: Draw) -> None:
    path = _cold_file(world, draw)
    path.unlink()
    # A snapshot that shares it with the live table may be archived before a scrub makes it again.
    GUARDIAN.damaged.add(str(path))


@foreign(0.7)
def flip_cold_file(world: World, draw: Draw) -> None:
    """A bit, or the last byte gone."""
    path = _cold_file(world, draw)
    keeps_size = draw.chance(0.5, "of the same size")
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :] if keeps_size else data[:-1])
    world.damaged[str(path)] = path.stat().st_mtime_ns
    if keeps_size:
        world.flipped.add(str(path))
    GUARDIAN.damaged.add(str(path))


@foreign(0.7)
def lose_records(world: World, draw: Draw) -> None:
    """The ledger of what was copied, or the index of what manifests have: both are caches of what can be seen."""
    what = draw.one(["copies", "index"])
    found = [path for path in world.state.rglob("*") if path.is_dir() and path.name == what]
    if not found:
        raise CannotNowError(what)
    for folder in found:
        shutil.rmtree(folder, ignore_errors=True)


@foreign(0.5)
def back_up_operations(world: World, draw: Draw) -> None:
    world.backup = {}
    with connected(world.uris[0]) as cursor:
        for table in of_operations(cursor):
            out = io.BytesIO()
            cursor.copy_expert(f"COPY lifecycle.{table} TO STDOUT", out)
            world.backup[table] = out.getvalue()


@foreign(0.5)
def restore_operations(world: World, draw: Draw) -> None:
    if world.backup is None:
        raise CannotNowError("no backup")
    with connected(world.uris[0]) as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        for table in of_operations(cursor):
            cursor.execute(f"DELETE FROM lifecycle.{table}")
            cursor.copy_expert(f"COPY lifecycle.{table} FROM STDIN", io.BytesIO(world.backup.get(table, b"")))
    beating = "SELECT table_uuid FROM lifecycle.heartbeats WHERE expires_at > pg_catalog.clock_timestamp()"
    alive = {row[0] for row in world.query(beating)}
    world.in_flight = {
        path: (owner, beats) for path, (owner, beats) in world.in_flight.items() if not beats or owner in alive
    }
    placed = {row[0] for row in world.query("SELECT hold_id FROM lifecycle.holds WHERE released_at IS NULL")}
    for hold_id, held in list(world.holds.items()):
        if held.lifecycle is world.lifecycle and hold_id not in placed:
            del world.holds[hold_id]


# --- people -----------------------------------------------------------------------------------------------------------


@foreign(1)
def hold(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    lifecycle = world.second_deployment() if draw.chance(0.3, "second") else world.lifecycle
    ids = world.ids(name)
    whole = draw.chance(0.5, "whole")
    held = ids if whole else [ids[draw.number(60) % len(ids)]]
    placed = lifecycle.hold(called(name), "legal", "a case", () if whole else tuple(held))
    world.holds[placed.hold_id] = Held(lifecycle, world.uuid(name), frozenset(held))


@foreign(1.5)
def release(world: World, draw: Draw) -> None:
    hold_id = draw.one(list(world.holds), silent=True)
    world.holds.pop(hold_id).lifecycle.release(hold_id)
