"""The history of a world as spec/replay.py reads it: one line of JSON for each step of the lifecycle, and for what
others did between two of them.

    {"turn", "step", "outcome", "names": {number: path}, "came": [fact, …], "went": [fact, …],
     "sealed": {job: …}, "judged": {job: {file: [outcome, reason]}}}

`step` is "others" between two steps. A file is a number; `names` has those that are new. Facts, each a list:

- there, file, content: a file stands at the path; stat, file, size and times: what the store says of it; young, file
- named, uuid, name: in the live catalog. A table there is its uuid and its name; elsewhere it is its uuid
- reads, table, snapshot, file: its metadata says so; place, table, folder
- snapshot, table, snapshot; newest, table, snapshot; ref, table, snapshot: of a branch or tag
- archived, snapshot; copy, snapshot, name: of the cold tier, and that the file is there
- held, table, snapshot or "": by a hold; beats, table, prefix or "": a live heartbeat
- unsure, file: metadata reads it that no catalog names; blind: some metadata cannot be read
- plan or scan, job, its state

`sealed` has the kind, table, name, snapshots and files of a plan or scan that is new, without files of two names.
`judged` has the files whose outcomes a deletion has written. All of it is seen from outside but what was sealed, and
the outcomes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.storage.frames import frame_batches
from artemis_lifecycle_tests.foreign.core import JAVA_ERRORS, Described
from artemis_lifecycle_tests.foreign.world import World, connected
from artemis_lifecycle_tests.guardian import on_disk

Fact = tuple[str | int, ...]

_JOBS = (
    "SELECT 'plan', plan_id, status, table_uuid, table_name, files_location FROM lifecycle.plans UNION ALL "
    "SELECT 'scan', scan_id, state, table_uuid, table_name, files_location FROM lifecycle.scans WHERE kind = 'orphans'"
)
_HELD = "SELECT table_uuid, snapshot_ids FROM lifecycle.holds WHERE released_at IS NULL"
_BEATS = (
    "SELECT table_uuid, coalesce(prefix, '') FROM lifecycle.heartbeats WHERE expires_at > pg_catalog.clock_timestamp()"
)
_DAY = 86_400 * 10**9


class History:
    """What was seen of one world so far, as lines."""

    def __init__(self, world: World) -> None:
        self.lines: list[str] = []
        self._world = world
        self._facts: set[Fact] = set()
        self._files: dict[str, int] = {}
        self._named: dict[int, str] = {}
        self._content: dict[int, tuple[str, str]] = {}
        self._jobs: set[str] = set()
        self._outcomes: dict[str, int] = {}
        self._spelled_twice: set[int] = set()
        self._numbers = functools.cache(self._number)
        self._of = functools.cache(self._facts_of)

    def note(self, turn: int, step: str, outcome: str) -> None:
        """After a step of the lifecycle, or after what others did."""
        sealed = dict(self._sealed())
        judged = dict(self._judged()) if step != "others" else {}
        facts = set(self._seen())
        came, went, self._facts = facts - self._facts, self._facts - facts, facts
        line = {
            "turn": turn,
            "step": step,
            "outcome": outcome,
            "sealed": sealed,
            "judged": judged,
            "names": self._named,
        }
        self.lines.append(json.dumps({**line, "came": sorted(came, key=str), "went": sorted(went, key=str)}))
        self._named = {}

    def _number(self, path: str) -> int:
        found = self._at(os.path.realpath(on_disk(path)))
        if on_disk(path).is_relative_to(self._world.other_spelling):
            self._spelled_twice.add(found)
        return found

    def _at(self, place: str) -> int:
        if place not in self._files:
            self._files[place] = len(self._files)
            self._named[self._files[place]] = place
        return self._files[place]

    # --- facts ------------------------------------------------------------------------------------------------------

    def _seen(self) -> Iterator[Fact]:
        world = self._world
        for each in world.objects():
            if each.kind != "TABLE" or each.namespace == "lifecycle":
                continue
            described = self._described(each.location)
            if described is None or None in described.reads.values():
                yield ("blind",)
            if described is not None and each.catalog == world.live:
                yield ("named", described.uuid, each.name)
                yield from self._of(described.location, each.name)
            elif described is not None:
                yield from self._archived(described)
        for location in world.elsewhere:
            described = self._described(location)
            for files in () if described is None else described.reads.values():
                yield from (("unsure", self._numbers(path)) for path in files or ())
        for table_uuid, snapshots in world.query(_HELD):
            yield from (("held", table_uuid, each) for each in snapshots or [""])
        yield from (("beats", *row) for row in world.query(_BEATS))
        for kind, job, state, *_ in world.query(_JOBS):
            yield kind, job, state
        yield from self._on_disk()

    def _archived(self, described: Described) -> Iterator[Fact]:
        for snapshot, files in described.reads.items():
            yield "archived", snapshot
            for path in files or ():
                if path.endswith(".parquet") and self._is_whole(str(on_disk(path))):
                    yield "copy", snapshot, path.rsplit("/", 1)[1]

    def _is_whole(self, path: str) -> bool:
        """Is the file there, and not as somebody has damaged it?"""
        with suppress(OSError):
            return os.stat(path).st_mtime_ns != self._world.damaged.get(path)
        return False

    def _on_disk(self) -> Iterator[Fact]:
        for folder, _, names in os.walk(os.path.realpath(self._world.warehouse)):
            for name in names:
                self._at(f"{folder}/{name}")
        written = {self._numbers(path) for path in self._world.paths}
        young = time.time_ns() - _DAY
        for place, number in self._files.items():
            with suppress(OSError):
                found = os.stat(place)
                stat = f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
                if self._content.get(number, ("",))[0] != stat:
                    # Nobody writes another file where Iceberg wrote one.
                    content = hashlib.md5(Path(place).read_bytes()).hexdigest()[:8] if number in written else ""
                    self._content[number] = stat, content
                yield "there", number, self._content[number][1]
                yield "stat", number, stat
                if found.st_mtime_ns > young:
                    yield "young", number

    def _described(self, location: str) -> Described | None:
        with suppress(OSError, ValueError, KeyError, *JAVA_ERRORS):
            return self._world.core.describe(location)
        return None

    def _facts_of(self, location: str, name: str) -> tuple[Fact, ...]:
        """Of a metadata file, which nobody changes."""
        described = self._world.core.describe(location)
        table = f"{described.uuid} {name}"
        found: list[Fact] = [("place", table, os.path.realpath(on_disk(described.base)))]
        for snapshot, files in described.reads.items():
            found.append(("snapshot", table, snapshot))
            found += (("reads", table, snapshot, self._numbers(path)) for path in files or ())
        if described.main is not None:
            found.append(("newest", table, described.main))
        document = json.loads(on_disk(location).read_bytes())
        for each in (*(document.get("statistics") or ()), *(document.get("partition-statistics") or ())):
            found.append(("reads", table, each["snapshot-id"], self._numbers(each["statistics-path"])))
        named = {**described.branches, **described.tags}
        found += (("ref", table, snapshot) for name, snapshot in named.items() if name != "main")
        return tuple(found)

    # --- what the product wrote -------------------------------------------------------------------------------------

    def _sealed(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for lifecycle, uri in self._world.deployments():
            with connected(uri) as cursor:
                cursor.execute(_JOBS)
                rows = [row for row in cursor.fetchall() if row[1] not in self._jobs]
            for kind, job, _, table_uuid, table, files_location in rows:
                self._jobs.add(job)
                files = [
                    self._numbers(path)
                    for batch in frame_batches(files_location, lifecycle.resources.live_stores)
                    for path in batch.column("path").to_pylist()
                    if self._numbers(path) not in self._spelled_twice
                ]
                yield (
                    job,
                    {
                        "kind": kind,
                        "table": table_uuid,
                        "name": table.removeprefix("db.").strip("`"),
                        "snapshots": _expired(lifecycle, job) if kind == "plan" else [],
                        "files": files,
                        "second": lifecycle is not self._world.lifecycle,
                    },
                )

    def _judged(self) -> Iterator[tuple[str, dict[int, tuple[str, str]]]]:
        for folder in sorted((self._world.state / "deletions").glob("*/outcomes")):
            found: dict[int, tuple[str, str]] = {}
            for part in sorted(folder.glob("batch-*.parquet")):
                written = part.stat().st_mtime_ns
                if self._outcomes.get(str(part)) == written:
                    continue
                self._outcomes[str(part)] = written
                for row in pq.ParquetFile(part).read(["path", "outcome", "reason"]).to_pylist():
                    found[self._numbers(row["path"])] = row["outcome"], row["reason"]
            if found:
                yield folder.parent.name, found


def _expired(lifecycle: Lifecycle, plan_id: str) -> list[int]:
    with suppress(LifecycleError):
        return list(lifecycle.plan(plan_id).expired_snapshots)
    return []
