"""What was ever committed, where it can be read now, and whether a step of the lifecycle lost any of it.

Foreign actors may destroy: what cannot be read right after one of their actions is theirs. A step of the lifecycle may
only move: a snapshot that could be read before it can be read after it, in one tier or the other. Besides tables in the
catalogs these count as readable:

- a dropped table, by its last metadata file, until a person has approved its end;
- what newer metadata says than the pointer that came back with a catalog's backup, until a person has decided;
- the snapshots of a plan that others expired in metadata only: the plan's base names their files, and it can be handed
  off still. A plan that was closed or superseded promises nothing.

And what nobody but its owner may take: files of writers at work, other systems' files, and whatever a hold holds, which
stays in the live table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle_tests.foreign.world import World, connected, libpq
from artemis_lifecycle_tests.guardian import (
    ARCHIVED,
    BEYOND,
    GUARDIAN,
    Census,
    Print,
    Seen,
    on_disk,
    rows_by_pyiceberg,
    rows_by_spark,
)

LISTING_STEPS = ("delete_orphans", "delete_dropped", "clear_dropped")
"""Steps that delete by a listing. What only a dropped table, or a future, reads may go with the plan of a living table
that has the same files; it may not go as nobody's."""

UNFINISHED = ("open", "handed_off", "committed", "deleting")


@dataclass(frozen=True)
class Way:
    """Where a snapshot can be read: `kind` is live, cold, dropped, future or plan; `by` is the table, metadata file or
    plan."""

    kind: str
    by: str
    table_uuid: str


@dataclass(frozen=True)
class Observation:
    """All that can be read at one time."""

    ways: Mapping[int, Way]
    files: frozenset[Path]
    """The files of writers and of other systems that are there."""
    held: frozenset[int]
    plans: Mapping[str, str]
    in_cold: Mapping[int, frozenset[str]]
    names: tuple[str, ...] = ()
    """Of the live tables."""


@dataclass
class Model:
    world: World
    prints: dict[int, Print] = field(default_factory=dict)
    holds: dict[str, tuple[Lifecycle, str, frozenset[int]]] = field(default_factory=dict)
    """By id: the deployment that it was placed in, the table's uuid, and the snapshots."""
    approved: set[str] = field(default_factory=set)
    """Uuids of dropped tables whose end a person has approved."""
    answered: int = 0
    _known: dict[tuple[int, object], bool] = field(default_factory=dict)
    _expired: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def observe(self) -> Observation:
        """Read every snapshot that was ever seen, where its files have changed since it was last read; and learn those
        that are new in the live catalog."""
        watched = GUARDIAN.world(libpq(self.world.uri))
        census = GUARDIAN.census(watched)
        assert census is not None
        ways: dict[int, Way] = {}
        in_cold: dict[int, frozenset[str]] = {}
        plans = self._plans()
        for way, seen, snapshots in self._places(census, plans):
            for snapshot in snapshots & seen.snapshots:
                if way.kind == "cold":
                    in_cold[snapshot] = seen.reads[snapshot].files
                if snapshot not in ways and self._answers(census, way, seen, snapshot):
                    ways[snapshot] = way
        live = (self.world.live, "db")
        files = {Path(path) for path in self.world.in_flight} | self.world.untouchable
        self.answered += len(ways)
        return Observation(
            ways,
            frozenset(path for path in files if path.exists()),
            frozenset(snapshot for _, _, snapshots in self.holds.values() for snapshot in snapshots),
            {plan_id: status for plan_id, (status, _, _) in plans.items()},
            in_cold,
            tuple(sorted(name for catalog, namespace, name in census.pointers if (catalog, namespace) == live)),
        )

    def _places(
        self, census: Census, plans: Mapping[str, tuple[str, str, str]]
    ) -> Iterator[tuple[Way, Seen, set[int]]]:
        """Every table there is, the live ones first, and which of its snapshots it answers for."""
        world = self.world
        for kind in ("live", "cold"):
            catalog = getattr(world.config.catalogs, kind).name
            for key, seen in census.tables.items():
                if key[0] == catalog and key[1] != "lifecycle":
                    yield Way(kind, key[2], key[3]), seen, seen.snapshots
        for location, why in world.elsewhere.items():
            if world.single.get(location, location) not in {location, *census.pointers.values()}:
                continue
            seen = GUARDIAN.seen((why, "db", location), location, {}, census.stamps)
            if seen.key[3] not in self.approved:
                yield Way(why, location, seen.key[3]), seen, seen.snapshots
        for plan_id, (status, location, table_uuid) in plans.items():
            if status in UNFINISHED:
                seen = GUARDIAN.seen(("plan", "db", plan_id), location, {}, census.stamps)
                yield Way("plan", plan_id, table_uuid), seen, set(self._expired[plan_id])

    def _plans(self) -> dict[str, tuple[str, str, str]]:
        """(status, base, table) of the plans of both deployments."""
        found = {}
        for lifecycle in (self.world.lifecycle, self.world.second):
            if lifecycle is None:
                continue
            with connected(str(lifecycle.config.operations.uri)) as cursor:
                cursor.execute(
                    "SELECT plan_id, status, base_metadata_location, table_uuid FROM lifecycle.plans "
                    "WHERE split_part(table_name, '.', 1) = 'db' AND expired_snapshots > 0 "
                    # Worlds share the databases.
                    "AND position(%s in base_metadata_location) > 0",
                    (str(self.world.warehouse),),
                )
                rows = cursor.fetchall()
            for plan_id, status, base, table_uuid in rows:
                if plan_id not in self._expired:
                    self._expired[plan_id] = lifecycle.plan(plan_id).expired_snapshots
                found[plan_id] = status, base, table_uuid
        return found

    def _answers(self, census: Census, way: Way, seen: Seen, snapshot: int) -> bool:
        reads = seen.reads[snapshot]
        stamps = {path: census.stamps.get(path) for path in reads.files}
        if reads.broken or None in stamps.values():
            return False
        if snapshot not in self.prints:
            # It was committed.
            if way.kind == "live":
                found = self._rows(way, seen, snapshot)
                if found is not None:
                    self.prints[snapshot] = found
            return way.kind == "live" and snapshot in self.prints
        if ARCHIVED in stamps.values():
            return True
        at = (snapshot, frozenset(stamps.items()))
        if at not in self._known:
            self._known[at] = self._rows(way, seen, snapshot, self.prints[snapshot][0]) == self.prints[snapshot]
        return self._known[at]

    def _rows(self, way: Way, seen: Seen, snapshot: int, engine: str | None = None) -> Print | None:
        found = BEYOND if engine == "spark" else rows_by_pyiceberg(seen.location, snapshot, {})
        if found is BEYOND:
            return rows_by_spark(self.world.spark, seen.key, snapshot) if way.kind in ("live", "cold") else None
        return found

    # --- the judgment ----------------------------------------------------------------------------------------------

    def lost(self, step: str, before: Observation, after: Observation) -> list[str]:
        """What a step of the lifecycle took."""
        found = []
        for snapshot, was in before.ways.items():
            now = after.ways.get(snapshot)
            said = f"snapshot {snapshot}, read from {was.kind} {was.by}"
            if now is None and self._is_loss(step, snapshot, was, after):
                found.append(f"{said}, is in neither tier")
            elif snapshot in before.held and was.kind == "live" and (now is None or now.kind != "live"):
                found.append(f"{said}, is held, and left the live table")
        for path in sorted(before.files - after.files):
            of = self.world.in_flight.get(str(path))
            found.append(f"{path}, of {'another system' if of is None else 'a writer at work'}, is gone")
        return found

    def _is_loss(self, step: str, snapshot: int, was: Way, after: Observation) -> bool:
        if not self.world.flipped.isdisjoint(str(on_disk(path)) for path in after.in_cold.get(snapshot, ())):
            # Others changed its only copy's bytes, before it was the only one.
            return False
        if was.kind == "plan":
            return after.plans.get(was.by) not in ("closed", "superseded")
        if was.kind in ("dropped", "future"):
            return step in LISTING_STEPS and was.table_uuid not in self.approved
        return True
