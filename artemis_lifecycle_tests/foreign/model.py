"""What was ever committed, where it can be read now, and whether a step of the lifecycle lost any of it.

Foreign actors may destroy: what cannot be read right after their actions is theirs. A step of the lifecycle may only
move: a snapshot that could be read before it can be read after it, in one tier or the other. Besides tables in the
catalogs these count as readable:

- a dropped table that the lifecycle had seen, by its last metadata file, until a person has approved its end;
- what newer metadata says than the pointer that came back with a catalog's backup, until a person has decided;
- the snapshots of a plan that others expired in metadata only: the plan's base names their files, and it can be handed
  off still. A plan that was closed or superseded promises nothing.

And what nobody but its owner may take: the catalog's objects, views' metadata, files of writers at work, other systems'
files, and whatever a hold holds, which stays in the live table. A table without an archive promises what its metadata
names, and no more.

Metadata is read by Iceberg's core, rows by `plain.py`, and at the end of a seed by the core; no code of the package
says what a snapshot has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle_tests.foreign.core import JAVA_ERRORS, Described, Row
from artemis_lifecycle_tests.foreign.plain import BeyondError, Plain
from artemis_lifecycle_tests.foreign.world import Object, World, connected
from artemis_lifecycle_tests.guardian import on_disk

LISTING_STEPS = ("delete_orphans", "delete_dropped", "clear_dropped", "sweep")
"""Steps that delete by a listing. What only a dropped table, or a future, reads may go with the plan of a living table
that has the same files; it may not go as nobody's."""

LOOKING_STEPS = (
    "plan_expiration",
    "commit_expiration",
    "delete_files",
    "scan_orphans",
    "delete_orphans",
    "observe_catalog",
    "mark",
    "sweep",
)
"""Steps that notice which tables there are. Of a table that came and went between them nobody knows."""

UNFINISHED = ("open", "handed_off", "committed", "deleting")

Stamp = tuple[int, int, int]
_ASIDE = ".deep-archive"
"""Where the local store keeps what is in the archive."""
ARCHIVED: Stamp = (-1, -1, -1)


@dataclass(frozen=True)
class Way:
    """Where a snapshot can be read: `kind` is live, cold, dropped, future or plan; `by` is the table, metadata file or
    plan; `location` the metadata file."""

    kind: str
    by: str
    table_uuid: str
    location: str


@dataclass(frozen=True)
class Observation:
    """All that can be read at one time."""

    ways: Mapping[int, Way]
    objects: frozenset[tuple[str, str, str, str]]
    """Of the live catalog."""
    files: frozenset[Path]
    """The files of writers, of views and of other systems that are there."""
    held: frozenset[int]
    plans: Mapping[str, str]
    in_cold: Mapping[int, frozenset[str]]
    in_live: frozenset[int]
    """Snapshots that the metadata of a live table names."""
    own: Mapping[str, bool]
    """By path, whether it is there: metadata files, earlier ones, and statistics that tables' metadata names."""


NOTHING = Observation({}, frozenset(), frozenset(), frozenset(), {}, {}, frozenset(), {})


@dataclass
class Model:
    world: World
    prints: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    approved: set[str] = field(default_factory=set)
    """Uuids of dropped tables whose end a person has approved."""
    noticed: set[str] = field(default_factory=set)
    """Uuids of tables that were in the catalog while the lifecycle did a step that looks at it."""
    pointers: set[str] = field(default_factory=set)
    """Metadata files that were current then."""
    given_up: set[int] = field(default_factory=set)
    """Snapshots whose loss a person has approved, as a refused handoff named them."""
    _known: dict[tuple[int, object], bool] = field(default_factory=dict)
    _plain: Plain = field(default_factory=Plain)
    _is_afresh: bool = False
    _expired: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _stamps: dict[str, Stamp | None] = field(default_factory=dict)

    def observe(self, *, afresh: bool = False) -> Observation:
        """Read every snapshot that was ever seen, where its files have changed since it was last read (`afresh`: all);
        and learn those that are new in the live catalog."""
        self._stamps.clear()
        self._is_afresh = afresh
        if afresh:
            self._known.clear()
            self.world.core.forget()
        objects = self.world.objects()
        ways: dict[int, Way] = {}
        in_cold: dict[int, frozenset[str]] = {}
        in_live: set[int] = set()
        own: dict[str, bool] = {}
        plans = self._plans()
        for way, described, snapshots in self._places(objects, plans):
            if way.kind in ("live", "cold"):
                own.update((path, self._stamp(path) is not None) for path in described.own)
            for snapshot in snapshots:
                files = described.reads.get(snapshot)
                if way.kind == "live":
                    in_live.add(snapshot)
                if files is None:
                    continue
                if way.kind == "cold":
                    in_cold[snapshot] = files
                if snapshot not in ways and self._answers(way, files, snapshot):
                    ways[snapshot] = way
        live = [each for each in objects if each.catalog == self.world.live and each.namespace != "lifecycle"]
        # A table that came back has another end before it.
        self.approved.difference_update(self._uuid(each) for each in live)
        views = {on_disk(each.location) for each in live if each.kind == "VIEW"}
        files_of_others = {Path(path) for path in self.world.in_flight} | self.world.untouchable | views
        return Observation(
            ways,
            frozenset((each.namespace, each.name, each.kind, self._uuid(each)) for each in live),
            frozenset(path for path in files_of_others if path.exists()),
            frozenset(snapshot for held in self.world.holds.values() for snapshot in held.snapshots),
            {plan_id: status for plan_id, (status, _, _) in plans.items()},
            in_cold,
            frozenset(in_live),
            own,
        )

    def _describe(self, location: str) -> Described | None:
        try:
            return self.world.core.describe(location)
        except (OSError, ValueError, KeyError, *JAVA_ERRORS):
            return None

    def _uuid(self, of: Object) -> str:
        found = self._describe(of.location) if of.kind == "TABLE" else None
        return "" if found is None else found.uuid

    def _places(
        self, objects: list[Object], plans: Mapping[str, tuple[str, str, str]]
    ) -> Iterator[tuple[Way, Described, list[int]]]:
        """Every table there is, the live ones first, and which of its snapshots it answers for."""
        tables = [each for each in objects if each.kind == "TABLE" and each.namespace != "lifecycle"]
        for each in tables:
            found = self._describe(each.location)
            if found is not None:
                kind = "live" if each.catalog == self.world.live else "cold"
                yield Way(kind, each.name, found.uuid, each.location), found, found.order
        pointers = {each.location for each in tables}
        for location, why in self.world.elsewhere.items():
            if self.world.single.get(location, location) not in {location, *pointers}:
                continue
            found = self._describe(location)
            if found is not None and found.uuid not in self.approved:
                yield Way(why, location, found.uuid, location), found, found.order
        for plan_id, (status, location, table_uuid) in plans.items():
            found = self._describe(location) if status in UNFINISHED else None
            if found is not None:
                yield Way("plan", plan_id, table_uuid, location), found, list(self._expired[plan_id])

    def _plans(self) -> dict[str, tuple[str, str, str]]:
        """(status, base, table) of the plans of both deployments."""
        found = {}
        for lifecycle, uri in self.world.deployments():
            for plan_id, status, base, table_uuid in self._records(uri):
                if plan_id not in self._expired:
                    self._expired[plan_id] = _expired_by(lifecycle, plan_id)
                found[plan_id] = status, base, table_uuid
        return found

    def _records(self, uri: str) -> list[tuple[str, str, str, str]]:
        statement = (
            "SELECT plan_id, status, base_metadata_location, table_uuid FROM lifecycle.plans "
            "WHERE split_part(table_name, '.', 1) = 'db' AND expired_snapshots > 0"
        )
        if uri == self.world.uris[0]:
            return self.world.query(statement)
        with connected(uri) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def _stamp(self, path: str) -> Stamp | None:
        if path not in self._stamps:
            place = on_disk(path)
            try:
                found = os.stat(place)
                self._stamps[path] = (found.st_size, found.st_mtime_ns, found.st_ino)
            except OSError:
                is_aside = os.path.exists(os.path.join(place.parent, _ASIDE, place.name))
                self._stamps[path] = ARCHIVED if is_aside else None
        return self._stamps[path]

    def _answers(self, way: Way, files: frozenset[str], snapshot: int) -> bool:
        stamps = frozenset((path, self._stamp(path)) for path in files)
        if any(stamp is None for _, stamp in stamps):
            return False
        if snapshot not in self.prints:
            # It was committed.
            found = self._rows(way.location, snapshot) if way.kind == "live" else None
            if found is not None:
                self.prints[snapshot] = found
                self._known[snapshot, stamps] = True
            return found is not None
        if any(stamp == ARCHIVED for _, stamp in stamps):
            return True
        at = (snapshot, stamps)
        if at not in self._known:
            self._known[at] = self._rows(way.location, snapshot) == self.prints[snapshot]
        return self._known[at]

    def _rows(self, location: str, snapshot: int) -> tuple[Row, ...] | None:
        described = self.world.core.describe(location)
        if not self._is_afresh:
            with suppress(BeyondError):
                return self._plain.rows(described.schemas[snapshot], described.entries[snapshot])
        return self.rows(location, snapshot)

    def rows(self, location: str, snapshot: int, *, current: bool = False) -> tuple[Row, ...] | None:
        try:
            return self.world.core.rows(location, snapshot, current=current)
        except JAVA_ERRORS:
            return None

    # --- the judgment ----------------------------------------------------------------------------------------------

    def lost(self, step: str, before: Observation, after: Observation) -> list[str]:
        """What a step of the lifecycle took."""
        found = []
        for snapshot, was in before.ways.items():
            now = after.ways.get(snapshot)
            said = f"snapshot {snapshot}, read from {was.kind} {was.by}"
            if now is None and self._is_loss(step, snapshot, was, before, after):
                found.append(f"{said}, is in neither tier: {self._why(snapshot, was)}")
            elif snapshot in before.held and was.kind == "live" and (now is None or now.kind != "live"):
                found.append(f"{said}, is held, and left the live table")
        for path in sorted(before.files - after.files):
            of = self.world.in_flight.get(str(path))
            whose = "another system, or a view" if of is None else "a writer at work"
            found.append(f"{path}, of {whose}, is gone")
        for named, was_there in before.own.items():
            if was_there and after.own.get(named) is False:
                found.append(f"{named}, which a table's metadata names, is gone")
        for namespace, name, kind, _ in sorted(before.objects - after.objects):
            found.append(f"the catalog's {kind.lower()} {namespace}.{name} is gone, or another one")
        return found

    def _is_loss(self, step: str, snapshot: int, was: Way, before: Observation, after: Observation) -> bool:
        # Where a manifest was changed, a look afresh does not say any more what the snapshot reads.
        in_cold = after.in_cold.get(snapshot) or before.in_cold.get(snapshot) or ()
        if not self.world.flipped.isdisjoint(str(on_disk(path)) for path in in_cold):
            # Others changed its only copy's bytes, before it was the only one.
            return False
        if was.kind == "dropped" and was.table_uuid not in self.noticed:
            return False
        if was.kind == "future" and was.location not in self.pointers and not self._lost_its_own(snapshot, was):
            # What a commit took up that nobody saw, and that its catalog lost.
            return False
        if was.table_uuid in self.world.unarchived and snapshot not in after.in_live:
            return was.kind in ("dropped", "future") and step in LISTING_STEPS and was.table_uuid not in self.approved
        if was.kind == "plan":
            return snapshot not in self.given_up and after.plans.get(was.by) not in ("closed", "superseded")
        if was.kind in ("dropped", "future"):
            return step in LISTING_STEPS and was.table_uuid not in self.approved
        return True

    def _lost_its_own(self, snapshot: int, was: Way) -> bool:
        """In its own place, without those of other tables inside: only its own scan looks for such commits."""
        described = self._describe(was.location)
        if described is None:
            # The step took its metadata file, as a scan does in the place of a dropped table that nobody saw.
            return was.table_uuid in self.noticed
        reads, place = described.reads.get(snapshot), _real(described.base)
        objects = [each for each in self.world.objects() if each.catalog == self.world.live and each.kind == "TABLE"]
        live = map(self._describe, (each.location for each in objects))
        others = [_real(each.base) for each in live if each is not None and each.uuid != was.table_uuid]
        inside = [each for each in others if place in each.parents]
        return reads is None or any(
            self._stamp(path) is None
            and _real(path).is_relative_to(place)
            and not any(_real(path).is_relative_to(each) for each in inside)
            for path in reads
        )

    def notice(self, step: str, before: Observation) -> None:
        """The step was done."""
        if step in LOOKING_STEPS:
            self.pointers.update(way.location for way in before.ways.values() if way.kind == "live")
            self.noticed.update(uuid for _, _, kind, uuid in before.objects if kind == "TABLE")

    def _why(self, snapshot: int, was: Way) -> str:
        """Where it should be read, and what is the matter there."""
        found = []
        for way, described, snapshots in self._places(self.world.objects(), self._plans()):
            if snapshot in snapshots:
                files = described.reads.get(snapshot)
                gone = sorted(path for path in files or () if self._stamp(path) is None)
                if files is None:
                    wrong = "metadata cannot be read"
                elif gone:
                    wrong = f"no file {', '.join(gone)}"
                else:
                    wrong = f"{self._rows(way.location, snapshot)} in place of {self.prints.get(snapshot)}"
                found.append(f"{way.kind} {way.by}: {wrong}")
        return "; ".join(found) or "no metadata names it"

    def row_ids_given_twice(self, described: Described) -> list[str]:
        """Files of one table whose ranges of row ids overlap, and that are not copies of one file."""
        known = sorted(
            (each.first_row_id, each.records, each.path) for each in described.files if each.first_row_id is not None
        )
        found = []
        for (first, records, path), (other, of, also) in pairwise(known):
            is_copy = (first, records) == (other, of) and _number(path) == _number(also)
            if other < first + records and not is_copy:
                found.append(f"row ids {other} to {first + records - 1} are in {path} and in {also}")
        return found


def _real(path: str) -> Path:
    return Path(os.path.realpath(on_disk(path)))


def _number(path: str) -> str:
    """What a file and its copies have in common."""
    return path.rsplit("-", 1)[-1]


def _expired_by(lifecycle: Lifecycle, plan_id: str) -> tuple[int, ...]:
    return tuple(lifecycle.plan(plan_id).expired_snapshots)
