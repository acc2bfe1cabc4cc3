"""What other tools do to the same tables: expire, clean, rewrite, move, share; and other systems in their folders."""

from __future__ import annotations

import json
from pathlib import Path

from artemis_lifecycle.catalogs.settings import pyiceberg_properties
from artemis_lifecycle_tests.foreign.actions import CannotNowError, Draw, foreign
from artemis_lifecycle_tests.foreign.core import records_in
from artemis_lifecycle_tests.foreign.world import World, make_old
from artemis_lifecycle_tests.guardian import on_disk


@foreign(1.5)
def rewrite_manifests(world: World, draw: Draw) -> None:
    world.core.java.rewriteManifests(world.java(world.one_table(draw)))


@foreign(1)
def compute_statistics(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    table = world.java(name)
    if table.currentSnapshot() is None:
        raise CannotNowError(name)
    world.core.java.statistics(table, f"{table.location()}/metadata/statistics-{world.number()}.stats")


# --- expiration by others ---------------------------------------------------------------------------------------------


@foreign(2.5, destroys=True)
def expire_by_iceberg(world: World, draw: Draw) -> None:
    """In metadata only, or with the files; with unused schemas, or without."""
    name = world.one_table(draw)
    how = draw.one(["metadata", "metadata", "files"])
    cleans = draw.chance(0.4, "schemas")
    table = world.java(name)
    if how == "files":
        world.core.java.expire(table, "", True, cleans)
        return
    current = table.currentSnapshot()
    if current is None:
        raise CannotNowError(name)
    described = world.described(name)
    kept = {current.snapshotId(), *described.branches.values(), *described.tags.values()}
    old = [str(each) for each in world.ids(name) if each not in kept]
    if not old:
        raise CannotNowError(name)
    world.core.java.expire(table, ",".join(old), False, cleans)


@foreign(0.5, destroys=True)
def expire_by_pyiceberg(world: World, draw: Draw) -> None:
    from pyiceberg.catalog import load_catalog

    name = world.one_table(draw)
    if world.described(name).version > 2:
        # pyiceberg 0.12 cannot write it.
        raise CannotNowError(name)
    catalog = load_catalog(world.live, **pyiceberg_properties(world.config.catalogs.live))
    try:
        table = catalog.load_table(("db", name))
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    finally:
        catalog.close()


@foreign(0.1, destroys=True)
def remove_orphans_by_iceberg(world: World, draw: Draw) -> None:
    """With a week's patience, as everybody has it. An action of Spark's, and therefore rare here."""
    world.sql("CALL {live}.system.remove_orphan_files(table => 'db.`{name}`')", name=world.one_table(draw))


# --- where files are --------------------------------------------------------------------------------------------------


@foreign(2)
def set_location(world: World, draw: Draw) -> None:
    name = world.one_table(draw)
    how = draw.one(["elsewhere", "the other spelling", "the other spelling", "in another's", "around all"])
    place, root = world.place(name), world.warehouse.resolve()
    is_inside = place.resolve().is_relative_to(root)
    target = {
        "elsewhere": lambda: world.warehouse / f"moved-{world.number()}",
        "the other spelling": lambda: world.other_spelling / (place.resolve().relative_to(root) if is_inside else name),
        "in another's": lambda: world.place(world.one_table(draw)) / "inner",
        "around all": lambda: world.warehouse / "db",
    }[how]()
    world.core.java.setLocation(world.java(name), f"file://{target}")


@foreign(0.5)
def point_at_documents(world: World, draw: Draw) -> None:
    """`write.data.path` names a folder that is a person's."""
    name = world.one_table(draw)
    home = world.warehouse.parent / f"home-{world.number()}"
    for path in ("docs/thesis.txt", ".ssh/id", "photo.parquet"):
        _put(world, home / path)
    world.core.java.setProperty(world.java(name), "write.data.path", f"file://{home}")


@foreign(1)
def stream(world: World, draw: Draw) -> None:
    """What other systems keep below a table's location, under names that everybody leaves alone."""
    place, number = world.place(world.one_table(draw)), world.number()
    for folder in (
        "_checkpoints",
        "_spark_metadata",
        "_temporary",
        "_symlink_format_manifest",
        ".metadata",
        "data/.staging",
    ):
        _put(world, place / folder / f"{number}.parquet")


def _put(world: World, path: Path, data: bytes = b"PAR1") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    make_old(path)
    world.untouchable.add(path)


@foreign(1)
def write_as_delta(world: World, draw: Draw) -> None:
    """A Delta table in the same folder, or in one inside: only its log names its files."""
    place, number = world.place(world.one_table(draw)), world.number()
    if draw.chance(0.4, "inside"):
        place = place / f"delta-{number}"
    names = [f"part-{number}-{each}.snappy.parquet" for each in range(2)]
    if draw.chance(0.5, "partitioned"):
        names = [f"day=2026-01-0{each + 1}/{name}" for each, name in enumerate(names)]
    lines = [json.dumps({"metaData": {"id": str(number), "format": {"provider": "parquet"}}})]
    lines += [json.dumps({"add": {"path": name, "size": 4, "dataChange": True}}) for name in names]
    for name in names:
        _put(world, place / name)
    log = place / "_delta_log"
    version = sum(1 for _ in log.glob("*.json"))
    _put(world, log / f"{version:020}.json", "\n".join(lines).encode())


@foreign(0.7)
def write_as_hudi(world: World, draw: Draw) -> None:
    """A Hudi table in a folder inside: its commits name its files."""
    place, number = world.place(world.one_table(draw)), world.number()
    place = place / f"hudi-{number}" if draw.chance(0.5, "inside") else place
    name = f"{number:08}-0_0-1-1_20260101.parquet"
    _put(world, place / name)
    _put(world, place / ".hoodie" / "hoodie.properties", b"hoodie.table.name=h\n")
    written = {"partitionToWriteStats": {"": [{"path": name, "fileId": f"{number:08}-0"}]}}
    _put(world, place / ".hoodie" / f"2026010100000{number % 10}.commit", json.dumps(written).encode())


# --- tables that read each other's files ------------------------------------------------------------------------------


def _files_of(world: World, name: str) -> list[Path]:
    """Data files in the table's folder, read by a snapshot or not."""
    place = world.place(name) / "data"
    return sorted(path for path in place.glob("*.parquet") if path.name.startswith(("part-", "in-flight-")))


@foreign(3)
def share_file(world: World, draw: Draw) -> None:
    """The table reads a file of another one, which that reads now."""
    name, of = world.one_table(draw), world.one_table(draw)
    described = world.described(of)
    read = described.reads.get(described.main or 0) or frozenset()
    paths = sorted(
        each.path
        for each in described.files
        if each.path in read and "part-" in each.path and on_disk(each.path).exists()
    )
    take_up(world, name, [draw.one(paths, silent=True)])


@foreign(3)
def add_files(world: World, draw: Draw) -> None:
    """All files of another one's folder, or of its own, read by somebody or expired, as the procedure does it."""
    name, of = world.one_table(draw), world.one_table(draw)
    paths = [path for path in _files_of(world, of) if str(path) not in world.in_flight]
    if not paths:
        raise CannotNowError(of)
    if draw.chance(0.5, "one"):
        paths = [draw.one(paths, silent=True)]
    take_up(world, name, [f"file:{path}" for path in paths])


def take_up(world: World, name: str, paths: list[str]) -> None:
    lines = []
    for path in paths:
        place = on_disk(path)
        lines.append(f"{path}\t{place.stat().st_size}\t{records_in(place)}")
    world.core.java.append(world.java(name), "main", "\n".join(lines))


@foreign(1)
def leave_orphan(world: World, draw: Draw) -> None:
    path = world.place(world.one_table(draw)) / "data" / f"orphan-{world.number()}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PAR1")
    make_old(path)
