"""The guardian: fails the test in which a lifecycle step took away a file that a snapshot still reads, or changed the
rows of one. On for every test whose catalogs come from the fixtures of conftest.py.

It takes a census before and after each step: of every table in the catalogs' database, every snapshot of its metadata,
which is what every ref and the snapshot log can reach, with the files that each reads; the table's own files (metadata
file, metadata log, statistics); what the store says of each file; and the rows of a few snapshots of each table. After
the step:

- a file that a snapshot reads, and that was there, must be there;
- a snapshot that the step brought into a catalog must be complete;
- of a file that a snapshot reads and that was lost before, a copy in the other tier, or the file under another name,
  must be there if it was: it is the last one;
- a metadata file, manifest list or manifest that could be read can be read;
- a snapshot that left its table is whole where it is now, if it was whole and is anywhere;
- a sampled snapshot answers its rows, from its own table, or else from whichever catalog has it now.

What was broken before the step is left out: tests damage tables on purpose, and only the step is judged. Where the
damage is done inside the step, a test says `@pytest.mark.no_guardian(reason=...)`.

It shares no code with the package: pointers come from the catalog's rows, snapshots from the metadata's JSON, manifests
and rows through pyiceberg, which reads each immutable file once, so that a census costs milliseconds. In one census in
some, and in all with `ARTEMIS_GUARDIAN=spark`, the files are held against Iceberg's own metadata tables as Spark reads
them (`all_manifests`, `all_data_files`, `all_delete_files`). The package is imported to wrap its steps, for nothing
else.
"""

from __future__ import annotations

import functools
import gzip
import importlib
import json
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from artemis_lifecycle_tests import end_report

STEPS = (
    "plan_expiration",
    "hand_off",
    "commit_expiration",
    "delete_files",
    "expire",
    "list_objects",
    "scan_orphans",
    "delete_orphans",
    "scan_cold",
    "observe_catalog",
    "scan_dropped",
    "delete_dropped",
    "clear_dropped",
    "keep_dropped",
    "unkeep_dropped",
    "undelete",
    "purge_quarantine",
    "approve",
    "close_plan",
    "restore",
    "deep_archive",
    "approve_thaw",
    "refuse_thaw",
    "follow_thaw",
    "tag",
    "untag",
    "compact_data_files",
    "compact_manifests",
    "forget_records",
    "compact_result_tables",
    "compact_history",
    "append",
    "overwrite",
    "mark",
    "sweep",
)
"""Public methods of `Lifecycle` that change something, or seal what a later one deletes by. Those that are not there
are left out."""

LOWER = (
    ("artemis_lifecycle.deletion.worker", "delete_job"),
    ("artemis_lifecycle.orphans.scan", "delete_orphans"),
    ("artemis_lifecycle.cold_tier.handoff", "hand_off"),
    ("artemis_lifecycle.cold_tier.restore", "restore"),
    ("artemis_lifecycle.cold_tier.deep_archive", "deep_archive"),
)
"""What the rooms' own tests call, below `Lifecycle`."""

_RESULTS = "lifecycle"
"""The namespace of the project's own result tables: their files are judged, their rows grow by every step."""

_ROWS = (60, 400, 10_000)
"""Snapshots, data files and records of a table up to which rows are read."""
_ENTRIES = 20_000
"""Data files of a table up to which its manifests are opened."""
_CROSS_CHECKED = 1.0 if os.environ.get("ARTEMIS_GUARDIAN") == "spark" else 0.05

_ASIDE = ".deep-archive"
"""Where the local store keeps what is in the archive."""
_FROZEN = ("GLACIER", "DEEP_ARCHIVE")

Key = tuple[str, str, str, str]
"""Catalog, namespace, name, table uuid."""
Stamp = tuple[object, ...]
"""What a store says of a file; another one means another content."""
Print = tuple[str, tuple[str, ...]]
"""The engine that read, and its sorted rows."""

ARCHIVED: Stamp = ("archived",)
BEYOND: Print = ("beyond pyiceberg", ())
_RELEASED = 4
"""Equality deletes, ORC: Spark reads them. It is not asked where metadata is damaged, which it tries for minutes."""


class LossError(AssertionError):
    """A lifecycle step took something that is still read."""


@dataclass(frozen=True)
class Reads:
    """The files that a snapshot reads, and those of them that say nothing."""

    files: frozenset[str]
    broken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Seen:
    """A table, as its metadata file describes it. The reads of None are the table's own."""

    key: Key
    location: str
    reads: Mapping[int | None, Reads]
    current: int | None = None
    has_rows: bool = False

    @property
    def snapshots(self) -> set[int]:
        return {each for each in self.reads if each is not None}


@dataclass
class Census:
    pointers: dict[tuple[str, str, str], str]
    tables: dict[Key, Seen]
    stamps: dict[str, Stamp | None]
    rows: dict[tuple[Key, int], Print | None] = field(default_factory=dict)

    def stamp_of(self, reads: Reads) -> Stamp:
        return tuple(sorted((path, self.stamps.get(path)) for path in reads.files))

    def is_whole(self, reads: Reads) -> bool:
        """Whether it can be read now, without a thaw."""
        return not reads.broken and all(self.stamps.get(path) not in (None, ARCHIVED) for path in reads.files)


@dataclass
class World:
    """One database of catalogs. `catalogs`: the names that Spark knows, and how their stores are reached."""

    uri: str
    spark: Any
    catalogs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)


class Guardian:
    """Watches worlds, judges steps, and keeps what it found until the test is asked."""

    def __init__(self, cross_checked: float = _CROSS_CHECKED) -> None:
        self.is_off = False
        self.steps = self.snapshots = self.compared = self.checked = 0
        self.seconds = 0.0
        self.losses: list[str] = []
        self._why: dict[str, str] = {}
        self.damaged: set[str] = set()
        """Files that a test declares damaged or removed from outside: their content is not the lifecycle's doing."""
        self._worlds: dict[str, World] = {}
        self._chance = random.Random(os.environ.get("ARTEMIS_SEED"))
        self._cross_checked = cross_checked
        self._lock = threading.RLock()
        self._here = threading.local()
        self._documents: dict[tuple[str, Stamp | None], dict[str, Any]] = {}
        self._lists: dict[tuple[str, Stamp | None], list[Any]] = {}
        self._manifests: dict[tuple[str, Stamp | None], frozenset[str]] = {}
        self._prints: dict[tuple[str, int, Stamp], Print | None] = {}
        self._samples: dict[Key, set[int]] = {}
        self._listed: dict[str, Stamp | None] | None = None
        self._connections: dict[str, Any] = {}
        # Every path that a snapshot was ever seen to read, by how it ends: both tiers name a file alike.
        self._named: dict[str, dict[str, Mapping[str, str]]] = {}

    # --- what is watched --------------------------------------------------------------------------------------------

    def watch(self, uri: str, spark: Any, catalogs: Mapping[str, Mapping[str, str]]) -> None:
        """Judge the tables of the catalogs in that database from now on, and of others that stand in it."""
        install(self)
        world = self._worlds.setdefault(uri, World(uri, spark))
        world.catalogs.update(catalogs)

    def forget(self, uri: str, catalogs: list[str]) -> None:
        """The catalogs of a test that is over."""
        world = self._worlds.get(uri)
        if world is not None:
            for name in catalogs:
                world.catalogs.pop(name, None)
            world.forgotten.update(catalogs)
            if not world.catalogs:
                del self._worlds[uri]
        if not self._worlds:
            self._named.clear()

    def disconnect(self, uri: str) -> None:
        """The database is over."""
        if (connection := self._connections.pop(uri, None)) is not None:
            connection.close()

    def world(self, uri: str) -> World:
        return self._worlds[uri]

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Judge what the block does; blocks inside it are a part of it."""
        if self.is_off or not self._worlds or getattr(self._here, "inside", False):
            yield
            return
        self._here.inside = True
        try:
            before = self._censuses()
            try:
                yield
            finally:
                for uri, census in before.items():
                    self._judge(name, self._worlds.get(uri), census)
        finally:
            self._here.inside = False

    def require_no_loss(self) -> None:
        """Raise what was found since the last call."""
        found, self.losses = self.losses, []
        if found:
            raise LossError("\n".join(found))

    # --- the census -------------------------------------------------------------------------------------------------

    def _censuses(self) -> dict[str, Census]:
        begun = time.perf_counter()
        with self._lock:
            censuses = {}
            for uri, world in self._worlds.items():
                census = self.census(world)
                if census is not None and census.tables:
                    self._sample(world, census)
                    censuses[uri] = census
        self.seconds += time.perf_counter() - begun
        return censuses

    def census(self, world: World) -> Census | None:
        """Every table and file as they are now; None when the database does not answer."""
        pointers = self._pointers(world)
        if pointers is None:
            return None
        self._listed = {} if any(path.startswith("s3") for path in pointers.values()) else None
        stamps: dict[str, Stamp | None] = {}
        tables = {}
        for (catalog, namespace, name), location in pointers.items():
            properties = world.catalogs.get(catalog) or next(iter(world.catalogs.values()), {})
            try:
                seen = self.seen((catalog, namespace, name), location, properties, stamps)
            except Exception:
                # Metadata that tests made up: no reader makes anything of it.
                stamps.setdefault(location, None)
                unread = frozenset([location])
                seen = Seen((catalog, namespace, name, "?"), location, {None: Reads(unread, unread)})
            tables[seen.key] = seen
        for path in [path for path, stamp in stamps.items() if stamp is None]:
            for other, properties in list(self._named.get(_ending(path), {}).items()):
                self._stamp(other, properties, stamps)
        return Census(pointers, tables, stamps)

    def _pointers(self, world: World) -> dict[tuple[str, str, str], str] | None:
        with self._lock:
            for _ in range(2):  # A test may have ended the connection that is kept.
                try:
                    if world.uri not in self._connections:
                        self._connections[world.uri] = psycopg2.connect(world.uri)
                        self._connections[world.uri].autocommit = True
                    return _pointers_by(self._connections[world.uri], world)
                except psycopg2.Error:
                    with suppress(psycopg2.Error):
                        self.disconnect(world.uri)
            return None

    def _stamp(self, path: str, properties: Mapping[str, str], stamps: dict[str, Stamp | None]) -> Stamp | None:
        if path not in stamps:
            stamps[path] = None
            # Tests name files as no store can.
            with suppress(ValueError):
                stamps[path] = self._on_s3(path, properties) if path.startswith("s3") else _on_disk(path)
            if path not in (known := self._named.setdefault(_ending(path), {})):
                known[path] = properties
        return stamps[path]

    def _on_s3(self, path: str, properties: Mapping[str, str]) -> Stamp | None:
        """One listing of a bucket per census: the tests' are small."""
        if self._listed is None:
            self._listed = {}
        bucket = urlsplit(path).netloc
        if f"{bucket}/" not in self._listed:
            self._listed[f"{bucket}/"] = None
            pages = _s3(properties).get_paginator("list_objects_v2").paginate(Bucket=bucket)
            for item in (item for page in pages for item in page.get("Contents", ())):
                frozen = item.get("StorageClass") in _FROZEN
                self._listed[f"{bucket}/{item['Key']}"] = ARCHIVED if frozen else (item["Size"], item["ETag"])
        return self._listed.get(path.partition("://")[2])

    def seen(
        self, name: tuple[str, str, str], location: str, properties: Mapping[str, str], stamps: dict[str, Stamp | None]
    ) -> Seen:
        """The table that a metadata file describes; what the store says of its files goes into `stamps`."""

        def stamp(path: str) -> Stamp | None:
            return self._stamp(path, properties, stamps)

        document = self._document(location, stamp(location), properties)
        if not document:
            nothing = frozenset([location])
            return Seen((*name, "?"), location, {None: Reads(nothing, nothing)})
        own = {location, *(each["metadata-file"] for each in document.get("metadata-log") or ())}
        for kind in ("statistics", "partition-statistics"):
            own.update(each["statistics-path"] for each in document.get(kind) or ())
        reads: dict[int | None, Reads] = {None: Reads(frozenset(own))}
        snapshots = document.get("snapshots") or []
        for snapshot in snapshots:
            reads[snapshot["snapshot-id"]] = self._reads(snapshot, properties, stamp)
        for path in (path for each in reads.values() for path in each.files):
            stamp(path)
        current = document.get("current-snapshot-id")
        # Manifests named inline are of the first version of the format, and of tests that write metadata by hand.
        listed = all("manifest-list" in snapshot for snapshot in snapshots)
        # Of a version that is not released Spark tries for a minute and a half, and no reader has the rows.
        listed &= document.get("format-version", 1) <= _RELEASED
        has_rows = name[1] != _RESULTS and listed and len(snapshots) <= _ROWS[0]
        return Seen(
            (*name, document.get("table-uuid", "?")),
            location,
            reads,
            current if current in reads else None,
            has_rows and all(_small(each) for each in snapshots),
        )

    def _document(self, location: str, stamp: Stamp | None, properties: Mapping[str, str]) -> dict[str, Any]:
        if (location, stamp) not in self._documents:
            document = {}
            with suppress(Exception):
                data = _io(location, properties).new_input(location).open().read()
                document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
            self._documents[location, stamp] = document
        return self._documents[location, stamp]

    def _reads(
        self, snapshot: Mapping[str, Any], properties: Mapping[str, str], stamp: Callable[[str], Stamp | None]
    ) -> Reads:
        from pyiceberg.manifest import read_manifest_list

        path = snapshot.get("manifest-list")
        if path is None:
            return Reads(frozenset(snapshot.get("manifests") or ()))
        files, broken = {path}, set[str]()
        at = (path, stamp(path))
        if at not in self._lists:
            try:
                self._lists[at] = list(read_manifest_list(_io(path, properties).new_input(path)))
            except Exception:
                return Reads(frozenset(files), frozenset(files))
        for manifest in self._lists[at]:
            files.add(manifest.manifest_path)
            if int(snapshot.get("summary", {}).get("total-data-files", 0)) > _ENTRIES:
                continue
            at = (manifest.manifest_path, stamp(manifest.manifest_path))
            if at not in self._manifests:
                try:
                    self._manifests[at] = _live(manifest, properties)
                except Exception as error:
                    self._why[manifest.manifest_path] = repr(error)
                    broken.add(manifest.manifest_path)
                    continue
            files |= self._manifests[at]
        return Reads(frozenset(files), frozenset(broken))

    # --- rows -------------------------------------------------------------------------------------------------------

    def _sample(self, world: World, census: Census) -> None:
        """The current snapshot, and one older that stays the same from step to step as long as it is there."""
        for key, seen in census.tables.items():
            if not seen.has_rows:
                continue
            kept = {each for each in self._samples.get(key, ()) if each in seen.reads and each != seen.current}
            older = sorted(seen.snapshots - {seen.current})
            if not kept and older:
                kept = {self._chance.choice(older)}
            self._samples[key] = set(sorted(kept)[:2]) | ({seen.current} if seen.current is not None else set())
            for snapshot in self._samples[key]:
                census.rows[key, snapshot] = self._rows(world, census, seen, snapshot)

    def _rows(self, world: World, census: Census, seen: Seen, snapshot: int, engine: str | None = None) -> Print | None:
        """None where they cannot be read."""
        if not census.is_whole(seen.reads[snapshot]):
            return None
        at = (seen.location, snapshot, (engine, census.stamp_of(seen.reads[snapshot])))
        if at not in self._prints:
            found: Print | None = None
            if engine in (None, "pyiceberg"):
                found = rows_by_pyiceberg(seen.location, snapshot, world.catalogs.get(seen.key[0], {}))
            if found is BEYOND:
                engine, found = "spark", None
            if engine == "spark":
                found = rows_by_spark(world.spark, seen.key, snapshot)
            self._prints[at] = found
        return self._prints[at]

    # --- the judgment ----------------------------------------------------------------------------------------------

    def _judge(self, name: str, world: World | None, before: Census) -> None:
        if world is None:
            return
        begun = time.perf_counter()
        try:
            with self._lock:
                # Another thread may commit and delete while the census is taken: only what stands still is judged; and
                # a read may fail once for another reason: only what is found twice is a loss.
                for attempt in range(10):
                    census = self.census(world)
                    if census is None:
                        return
                    after = census
                    found = [*self._lost(before, after), *self._left(before, after)]
                    found += self._changed(world, before, after)
                    if not found or (attempt and self._pointers(world) == after.pointers):
                        break
                self.losses += [f"{name}: {each}" for each in found]
                self.steps += 1
                self.snapshots += sum(len(seen.snapshots) for seen in after.tables.values())
                if before.pointers != after.pointers and self._chance.random() < self._cross_checked:
                    self._cross_check(world, before, after)
        finally:
            self.seconds += time.perf_counter() - begun

    def _lost(self, before: Census, after: Census) -> Iterator[str]:
        for key, seen in after.tables.items():
            was = before.tables.get(key)
            for snapshot, reads in seen.reads.items():
                known = None if was is None else was.reads.get(snapshot)
                whose = f"{'.'.join(key[:3])}, {'its own' if snapshot is None else f'snapshot {snapshot}'}"
                for path in reads.files:
                    if self.damaged and str(on_disk(path)) in self.damaged:
                        continue
                    if after.stamps[path] is None and (before.stamps.get(path) is not None or known is None):
                        yield f"{whose}: {path} is gone"
                    elif after.stamps[path] is None:
                        others = self._named.get(_ending(path), {})  # Rows that tests made up name no path.
                        gone = [each for each in others if before.stamps.get(each) and not after.stamps[each]]
                        if gone and not any(after.stamps[each] for each in others):
                            yield f"{whose}: {path} was lost, and its last copy {gone[0]} is gone"
                for path in reads.broken - (frozenset() if known is None else known.broken):
                    if after.stamps[path] is not None:
                        yield f"{whose}: {path} cannot be read any more: {self._why.get(path, 'its list')}"

    def _left(self, before: Census, after: Census) -> Iterator[str]:
        """Snapshots that are now only in tables that cannot read them."""

        def whole(census: Census, reads: Reads) -> bool:
            return not reads.broken and all(census.stamps[path] is not None for path in reads.files)

        for key, was in before.tables.items():
            there = after.tables[key].snapshots if key in after.tables else set()
            for snapshot in was.snapshots - there:
                has = [each for each in after.tables.values() if snapshot in each.reads]
                if not has or not whole(before, was.reads[snapshot]):
                    continue
                if not any(
                    whole(after, each.reads[snapshot]) or self._is_damaged(each.reads[snapshot]) for each in has
                ):
                    names = ", ".join(".".join(each.key[:3]) for each in has)
                    yield f"{'.'.join(key[:3])}, snapshot {snapshot}: it is left to {names}, where files are gone"

    def _is_damaged(self, reads: Reads) -> bool:
        return bool(self.damaged) and not self.damaged.isdisjoint(str(on_disk(path)) for path in reads.files)

    def _changed(self, world: World, before: Census, after: Census) -> Iterator[str]:
        for (key, snapshot), rows in before.rows.items():
            if rows is None:
                continue
            for seen in self._answering(before, after, key, snapshot):
                was, reads = before.tables[key], seen.reads[snapshot]
                unchanged = seen.location == was.location and before.stamp_of(reads) == after.stamp_of(reads)
                if unchanged or self._is_damaged(reads) or not after.is_whole(reads):
                    continue
                self.compared += 1
                now = self._rows(world, after, seen, snapshot, rows[0])
                if now != rows:
                    said = "cannot be read" if now is None else f"has {len(now[1])} rows for {len(rows[1])}, or others"
                    yield f"{'.'.join(key[:3])}, snapshot {snapshot}: {'.'.join(seen.key[:3])} {said}"
                elif (
                    # A file was written over. Spark also asks for its checksum.
                    seen.location == was.location
                    and seen.key[0] in world.catalogs
                    and self._rows(world, after, seen, snapshot, "spark") is None
                ):
                    yield f"{'.'.join(key[:3])}, snapshot {snapshot}: Spark cannot read it any more"

    def _answering(self, before: Census, after: Census, key: Key, snapshot: int) -> Iterator[Seen]:
        """The table itself, and every table of another catalog that has the snapshot since the step."""
        for seen in after.tables.values():
            if snapshot in seen.reads and seen.has_rows:
                was = before.tables.get(seen.key)
                if seen.key == key or was is None or snapshot not in was.reads:
                    yield seen

    def _cross_check(self, world: World, before: Census, census: Census) -> None:
        """This census names the files that Iceberg's own metadata tables name, of a table that the step committed to:
        metadata that tests write by hand is nothing that Spark reads, and it tries for minutes."""
        known = [
            each
            for each in census.tables.values()
            if each.key[0] in world.catalogs
            and each.has_rows
            and before.pointers.get((each.key[0], each.key[1], each.key[2])) != each.location
        ]
        whole = [each for each in known if all(census.is_whole(reads) for reads in each.reads.values())]
        if not whole:
            return
        seen = self._chance.choice(whole)
        name = ".".join(f"`{part}`" for part in (seen.key[0], *seen.key[1].split("."), seen.key[2]))
        try:
            found = {
                row[0]
                for table, column in (
                    ("all_manifests", "path"),
                    ("all_data_files", "file_path"),
                    ("all_delete_files", "file_path"),
                )
                for row in world.spark.table(f"{name}.{table}").select(column).collect()
            }
        except Exception:
            # A test took the catalog away from Spark, or cancels its jobs.
            return
        if self._pointers(world) != census.pointers:
            return
        lists = {
            each["manifest-list"]
            for each in self._documents[seen.location, census.stamps[seen.location]].get("snapshots") or ()
        }
        mine = {path for snapshot in seen.snapshots for path in seen.reads[snapshot].files} - lists
        self.checked += 1
        if mine != found:
            self.losses.append(f"the guardian and Iceberg's metadata tables differ in {name}: {sorted(mine ^ found)}")


# --- catalogs and stores ----------------------------------------------------------------------------------------------


def _pointers_by(connection: Any, world: World) -> dict[tuple[str, str, str], str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('iceberg_tables') IS NULL")
        row = cursor.fetchone()
        if row is None or row[0]:
            return {}
        cursor.execute(
            "SELECT catalog_name, table_namespace, table_name, metadata_location FROM iceberg_tables t "
            "WHERE metadata_location IS NOT NULL AND coalesce(to_jsonb(t)->>'iceberg_type', 'TABLE') = 'TABLE'"
        )
        return {row[:3]: row[3] for row in cursor.fetchall() if row[0] not in world.forgotten}


def _ending(path: str) -> str:
    return "/".join(path.rsplit("/", 3)[1:])


def _on_disk(path: str) -> Stamp | None:
    place = on_disk(path)
    try:
        found = os.stat(place)
    except OSError:
        return ARCHIVED if os.path.exists(os.path.join(place.parent, _ASIDE, place.name)) else None
    return (found.st_size, found.st_mtime_ns, found.st_ino)


@functools.lru_cache(100_000)
def on_disk(path: str) -> Path:
    """Where a local path of Iceberg's metadata stands."""
    return Path("/" + path.removeprefix("file:").lstrip("/"))


def _s3(properties: Mapping[str, str]) -> Any:
    """The client of these properties: to make one for each listing costs more than the listing."""
    return _client_of(tuple(properties.get(f"s3.{each}") for each in _S3_KEYS))


_S3_KEYS = ("endpoint", "region", "access-key-id", "secret-access-key", "session-token")


@functools.cache
def _client_of(given: tuple[str | None, ...]) -> Any:
    import boto3

    endpoint, region, key, secret, token = given
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=token,
    )


def _io(path: str, properties: Mapping[str, str]) -> Any:
    from pyiceberg.io import load_file_io

    return load_file_io(dict(properties), path)


# --- rows -------------------------------------------------------------------------------------------------------------


def _live(manifest: Any, properties: Mapping[str, str]) -> frozenset[str]:
    """The files of a manifest's live entries; also of one in Parquet (format version 4), as pyiceberg cannot."""
    io = _io(manifest.manifest_path, properties)
    if not manifest.manifest_path.endswith(".parquet"):
        return frozenset(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io))
    data = io.new_input(manifest.manifest_path).open().read()
    entries = pq.ParquetFile(pa.BufferReader(data)).read(["status", "data_file.file_path"]).to_pylist()
    return frozenset(entry["data_file"]["file_path"] for entry in entries if entry["status"] != 2)


def _small(snapshot: Mapping[str, Any]) -> bool:
    summary = snapshot.get("summary", {})
    return int(summary.get("total-data-files", 0)) <= _ROWS[1] and int(summary.get("total-records", 0)) <= _ROWS[2]


def rows_by_pyiceberg(location: str, snapshot: int, properties: Mapping[str, str]) -> Print | None:
    from pyiceberg.table import StaticTable

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = StaticTable.from_metadata(location, dict(properties))
            rows = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
    except Exception as error:
        return BEYOND if "support" in str(error) or "does not match any of the expected tags" in str(error) else None
    return "pyiceberg", tuple(sorted(map(repr, rows)))


def rows_by_spark(spark: Any, key: Key, snapshot: int) -> Print | None:
    name = ".".join(f"`{part}`" for part in (key[0], *key[1].split("."), key[2]))
    try:
        rows = spark.read.option("versionAsOf", snapshot).table(name).collect()
    except Exception:
        return None
    return "spark", tuple(sorted(map(repr, rows)))


# --- the steps --------------------------------------------------------------------------------------------------------

_installed = False


def install(guardian: Guardian) -> None:
    """Wrap the steps, once, in whatever class and module of the package has them, and where they were imported."""
    global _installed
    if _installed:
        return
    _installed = True
    from artemis_lifecycle.api import Lifecycle

    for name in STEPS:
        owner = next((each for each in Lifecycle.__mro__ if name in vars(each)), None)
        if owner is not None:
            setattr(owner, name, _judged(vars(owner)[name], name))
    for module, name in LOWER:
        with suppress(ImportError, AttributeError):
            original = getattr(importlib.import_module(module), name)
            judged = _judged(original, name)
            loaded = [each for at, each in sys.modules.items() if at.startswith("artemis_lifecycle")]
            for user in loaded:
                for alias in [alias for alias, value in vars(user).items() if value is original]:
                    setattr(user, alias, judged)


def _judged(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def judged(*args: Any, **options: Any) -> Any:
        with GUARDIAN.step(name):
            return original(*args, **options)

    return judged


GUARDIAN = Guardian()


# --- the plugin -------------------------------------------------------------------------------------------------------


class Plugin:
    """Fails the phase of a test in which the guardian found a loss."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        mark = item.get_closest_marker("no_guardian")
        if mark is not None and not mark.kwargs.get("reason"):
            raise pytest.UsageError(f"{item.nodeid}: no_guardian needs a reason=")
        GUARDIAN.is_off = mark is not None
        GUARDIAN.losses.clear()
        yield from _asked()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        yield from _asked()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        yield from _asked()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if GUARDIAN.steps:
            end_report.add_row(
                "the guardian",
                ("steps judged", "snapshots held against the store", "rows compared", "held against Spark", "seconds"),
                (
                    *map(str, (GUARDIAN.steps, GUARDIAN.snapshots, GUARDIAN.compared, GUARDIAN.checked)),
                    f"{GUARDIAN.seconds:.0f}",
                ),
            )


def _asked() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        found, GUARDIAN.losses = GUARDIAN.losses, []
        for loss in found:
            error.add_note(f"guardian: {loss}")
        raise
    GUARDIAN.require_no_loss()
