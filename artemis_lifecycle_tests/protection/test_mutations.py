"""Each guard taken out, one at a time: with it an attack loses nothing, and without it the guardian reports the loss.

An attack does what its finding says, on real tables, and has no opinion about the outcome: whether the guard keeps the
files, waits or refuses is its own affair. What would make the loss visible to others (a commit, a table registered
again) is a step of its own, so that the guardian judges it as one of theirs. Of other systems' files the guardian knows
nothing; there the attack names them, and that they are still there is what counts.

docs/protection.md has the table of these guards.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.identifier import CatalogEntry, parse
from artemis_lifecycle.catalogs.live import CatalogReader, _Sql
from artemis_lifecycle.catalogs.siblings import CatalogsOfDatabase
from artemis_lifecycle.cold_tier.copy import Copier
from artemis_lifecycle.cold_tier.demand import SEALED
from artemis_lifecycle.cold_tier.paths import PathMapping
from artemis_lifecycle.cold_tier.presence import PlannedCopies
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.deletion.worker import DeletionSettings
from artemis_lifecycle.errors import LifecycleError, StorageError, UnreadableMetadata
from artemis_lifecycle.expiration.plan import ExpirationPlan
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.operations.database import Clock
from artemis_lifecycle.operations.holds import Hold, Holds
from artemis_lifecycle.operations.known_tables import KnownTable, KnownTables, Seen, Swaps, TableLocations
from artemis_lifecycle.operations.locks import TableLock
from artemis_lifecycle.operations.plans import PlanRecord, PlanStatus
from artemis_lifecycle.operations.quarantines import Quarantines
from artemis_lifecycle.protection.absence import Absence, Missed, dropped_folder
from artemis_lifecycle.protection.future import Evidence, evidence
from artemis_lifecycle.protection.identity import Folders
from artemis_lifecycle.protection.neighbors import Neighbors
from artemis_lifecycle.protection.places import Places
from artemis_lifecycle.protection.protection import Protection
from artemis_lifecycle.protection.table_state import TableState
from artemis_lifecycle.reachability.index import files as index_files
from artemis_lifecycle.reachability.reached import ReachedFolders
from artemis_lifecycle.session.contexts import copy_again, deletion_context, keepers
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.walk.deletion import Deletion
from artemis_lifecycle.walk.expiration import Expiration
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.conftest import REPOSITORY, MakeConfig, open_lifecycle
from artemis_lifecycle_tests.deaths import killed_at
from artemis_lifecycle_tests.guardian import GUARDIAN, LossError, on_disk
from artemis_lifecycle_tests.policies import AT_ONCE
from artemis_lifecycle_tests.protection.databases import with_operations
from artemis_lifecycle_tests.protection.foreign import expire_in_metadata, to_version_5, warehouse
from artemis_lifecycle_tests.protection.test_two_names_of_one_uuid import goes_on, make_original, replica_of

T = "db.t"
ONE_TIER = {**AT_ONCE, "cold_tier": {"enabled": False}}
PATIENT = {**ONE_TIER, "orphans": {"min_age": "7d", "min_age_floor": "1d"}}
SOON_GONE = {"dropped": {"keep": "1ms", "approval": "guards"}}

REFUSED = suppress(LifecycleError)
"""A guard may refuse, in its own words."""


@dataclass
class Stage:
    """Where an attack happens. `others`: files of other systems, which must stay."""

    make_config: MakeConfig
    spark: SparkSession
    patch: pytest.MonkeyPatch
    fixture: Callable[[str], Any]
    stack: ExitStack
    others: list[Path] = field(default_factory=list)
    lifecycle: Lifecycle = field(init=False)

    def open(self, defaults: dict[str, Any] = ONE_TIER, **sections: Any) -> Lifecycle:
        return self.opened(self.make_config(defaults=defaults, **sections))

    def opened(self, config: LifecycleConfig) -> Lifecycle:
        return self.stack.enter_context(open_lifecycle(config, self.spark))


@dataclass(frozen=True)
class Guard:
    """One guard: `without` takes it out of the package; `finding` is its number in the list that it answers."""

    name: str
    without: Callable[[pytest.MonkeyPatch], None]
    attack: Callable[[Stage], None]
    finding: int | None = None
    is_seen_by_the_guardian: bool = True


# --- what writers, other tools and people do --------------------------------------------------------------------------


def create(lifecycle: Lifecycle, table: str = T, *, location: Path | None = None, properties: str = "") -> None:
    live, identifier = lifecycle.config.catalogs.live.name, parse(table)
    core_tables.sql(lifecycle.spark, f"CREATE NAMESPACE IF NOT EXISTS {live}.{identifier.namespace[0]}")
    place = f"LOCATION 'file://{location}'" if location is not None else ""
    options = f"TBLPROPERTIES ({properties})" if properties else ""
    core_tables.sql(lifecycle.spark, f"CREATE TABLE {identifier.sql(live)} (id bigint) USING iceberg {place} {options}")


def append(lifecycle: Lifecycle, table: str = T) -> Any:
    """Commit a new file; returns Iceberg's own object for it."""
    name = parse(table).sql(lifecycle.config.catalogs.live.name)
    core_tables.append(lifecycle.spark, name, [(1,)])
    loaded = java(lifecycle, table)
    return next(iter(loaded.currentSnapshot().addedDataFiles(loaded.io())))


def overwrite(lifecycle: Lifecycle, table: str = T) -> None:
    name = parse(table).sql(lifecycle.config.catalogs.live.name)
    core_tables.sql(lifecycle.spark, f"INSERT OVERWRITE {name} VALUES (9)")


def java(lifecycle: Lifecycle, table: str) -> Any:
    spark: Any = lifecycle.spark
    load = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable
    return load(spark._jsparkSession, parse(table).sql(lifecycle.config.catalogs.live.name))


def replaced(lifecycle: Lifecycle, table: str = T, **options: Any) -> Any:
    """A table whose first file only its first snapshot reads; returns the file."""
    create(lifecycle, table, **options)
    file = append(lifecycle, table)
    overwrite(lifecycle, table)
    return file


def in_flight(lifecycle: Lifecycle, table: str = T, **options: Any) -> Any:
    """A file that a writer is about to commit: no snapshot of the table reads it now."""
    file = replaced(lifecycle, table, **options)
    expire_in_metadata(lifecycle, table, ids(lifecycle, table)[:1])
    return file


def commit(lifecycle: Lifecycle, table: str, *files: Any) -> None:
    """A writer commits files that stand there already."""
    with GUARDIAN.step("a writer's commit"):
        change = java(lifecycle, table).newAppend()
        for file in files:
            change = change.appendFile(file)
        change.commit()


def ids(lifecycle: Lifecycle, table: str = T) -> list[int]:
    return [snapshot.snapshot_id for snapshot in lifecycle.snapshot_history(table).snapshots]


def pointer(lifecycle: Lifecycle, table: str = T) -> str:
    return lifecycle.snapshot_history(table).metadata_location


def place(lifecycle: Lifecycle, table: str = T) -> Path:
    return on_disk(pointer(lifecycle, table)).parent.parent


def register(lifecycle: Lifecycle, location: str, *, only: int | None = None) -> None:
    """A person registers a metadata file, because what it describes is needed; `only` one of its snapshots."""
    if only is not None:
        document = json.loads(on_disk(location).read_text())
        document["snapshots"] = [each for each in document["snapshots"] if each["snapshot-id"] == only]
        document |= {"refs": {}, "current-snapshot-id": -1, "snapshot-log": [], "metadata-log": []}
        location = f"{location.rpartition('/')[0]}/{uuid.uuid4()}.metadata.json"
        on_disk(location).write_text(json.dumps(document))
    with (
        GUARDIAN.step("a person registers a table"),
        lifecycle.resources.unchecked_operations.engine.begin() as connection,
    ):
        connection.execute(
            text(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
                "iceberg_type) VALUES (:catalog, 'db', 'again', :location, 'TABLE')"
            ),
            {"catalog": lifecycle.config.catalogs.live.name, "location": location},
        )


def point(lifecycle: Lifecycle, location: str, table: str = "t") -> None:
    """A person sets the catalog's pointer of the table."""
    with lifecycle.resources.unchecked_operations.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE iceberg_tables SET metadata_location = :location WHERE catalog_name = :catalog "
                "AND table_name = :name"
            ),
            {"catalog": lifecycle.config.catalogs.live.name, "location": location, "name": table},
        )


def forget(lifecycle: Lifecycle, name: str) -> str:
    """The catalog loses a table's row, and nobody ever wrote down that it had it; returns the pointer."""
    found = pointer(lifecycle, f"db.{name}")
    with lifecycle.resources.unchecked_operations.engine.begin() as connection:
        connection.execute(
            text("DELETE FROM iceberg_tables WHERE catalog_name = :catalog AND table_name = :name"),
            {"catalog": lifecycle.config.catalogs.live.name, "name": name},
        )
    return found


def drop(lifecycle: Lifecycle, table: str) -> str:
    """Drop a table that was seen; returns its last metadata file."""
    lifecycle.observe_catalog()
    last = pointer(lifecycle, table)
    lifecycle.spark.sql(f"DROP TABLE {parse(table).sql(lifecycle.config.catalogs.live.name)}")
    return last


def committed(lifecycle: Lifecycle, table: str = T) -> ExpirationPlan:
    """A plan whose files are due."""
    plan = lifecycle.plan_expiration(table)
    lifecycle.hand_off(plan)
    lifecycle.commit_expiration(plan)
    return plan


def sweep(lifecycle: Lifecycle, table: str = T) -> None:
    """Scan for orphans, and delete them."""
    with REFUSED:
        lifecycle.delete_orphans(lifecycle.scan_orphans(table))


def lose_copies(lifecycle: Lifecycle, *files: Any) -> None:
    for file in files:
        live, cold = (warehouse(lifecycle, tier) for tier in ("live", "cold"))
        (cold / on_disk(str(file.location())).relative_to(live)).unlink()


def elsewhere(lifecycle: Lifecycle, name: str) -> str:
    """The property that puts a table's metadata outside the locations of all others."""
    return f"'write.metadata.path'='file://{warehouse(lifecycle, 'live')}/metadata-of-{name}'"


# --- the attacks ------------------------------------------------------------------------------------------------------


def another_tool_expires_an_open_plan(stage: Stage) -> None:
    lifecycle = stage.open(AT_ONCE)
    replaced(lifecycle)
    plan = lifecycle.plan_expiration(T)
    expire_in_metadata(lifecycle, T, plan.expired_snapshots)
    lifecycle.plan_expiration(T)
    with REFUSED:
        lifecycle.delete_files(plan)
    register(lifecycle, plan.base_metadata_location)


def another_tool_expires_an_open_plan_and_orphans_are_swept(stage: Stage) -> None:
    lifecycle = stage.open(AT_ONCE)
    replaced(lifecycle)
    plan = lifecycle.plan_expiration(T)
    expire_in_metadata(lifecycle, T, plan.expired_snapshots)
    sweep(lifecycle)
    register(lifecycle, plan.base_metadata_location)


def another_tool_expires_what_shared_files_with_an_open_plan(stage: Stage) -> None:
    lifecycle = stage.open(AT_ONCE)
    create(lifecycle)
    append(lifecycle)
    append(lifecycle)
    overwrite(lifecycle)
    first, second, _ = ids(lifecycle)
    hold = lifecycle.hold(T, "ann", "an audit", [second])
    plan = lifecycle.plan_expiration(T)
    lifecycle.release(hold.hold_id)
    expire_in_metadata(lifecycle, T, [first, second])
    sweep(lifecycle)
    register(lifecycle, plan.base_metadata_location, only=first)


def the_warehouse_gets_a_second_name(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    live = warehouse(lifecycle, "live")
    second = live.with_name("second")
    second.symlink_to(live)
    lifecycle.spark.sql(f"ALTER TABLE {lifecycle.config.catalogs.live.name}.db.t SET LOCATION 'file://{second}/db/t'")
    sweep(lifecycle)


def a_neighbor_lies_inside_by_a_second_name(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    live = warehouse(lifecycle, "live")
    second = live.with_name("second")
    second.symlink_to(live)
    inside = second / "db" / "t" / "data" / "inner"
    create(lifecycle, "db.inner", location=inside, properties=elsewhere(lifecycle, "inner"))
    append(lifecycle, "db.inner")
    sweep(lifecycle)


def other_systems_keep_files_under_hidden_names(stage: Stage) -> None:
    lifecycle = stage.open()
    replaced(lifecycle)
    for name in ("_checkpoints/offsets/0", "_delta_log/00000.json", "data/_temporary/0/part", ".hoodie/x", "data/_SUM"):
        path = place(lifecycle) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        stage.others.append(path)
    sweep(lifecycle)


def _shared_copy(stage: Stage) -> tuple[Lifecycle, Any]:
    """The first snapshot is archived, and shares its file with the second."""
    lifecycle = stage.open(AT_ONCE)
    create(lifecycle)
    file = append(lifecycle)
    append(lifecycle)
    overwrite(lifecycle)
    hold = lifecycle.hold(T, "ann", "still in use", ids(lifecycle)[1:])
    lifecycle.expire(T)
    lifecycle.release(hold.hold_id)
    return lifecycle, file


def a_shared_copy_is_lost_between_two_nights(stage: Stage) -> None:
    lifecycle, file = _shared_copy(stage)
    plan = lifecycle.plan_expiration(T)
    lose_copies(lifecycle, file)
    lifecycle.hand_off(plan)


def a_copy_is_lost_before_the_commit(stage: Stage) -> None:
    lifecycle = stage.open(AT_ONCE)
    file = replaced(lifecycle)
    plan = lifecycle.plan_expiration(T)
    lifecycle.hand_off(plan)
    lose_copies(lifecycle, file)
    lifecycle.commit_expiration(plan)


def a_copy_is_lost_in_the_grace(stage: Stage) -> None:
    lifecycle = stage.open(AT_ONCE)
    file = replaced(lifecycle)
    plan = committed(lifecycle)
    lose_copies(lifecycle, file)
    lifecycle.delete_files(plan)


def a_writer_uses_an_expired_file(stage: Stage) -> None:
    lifecycle = stage.open()
    file = replaced(lifecycle)
    plan = committed(lifecycle)
    with lifecycle.writing(T, "w"):
        lifecycle.delete_files(plan)
        commit(lifecycle, T, file)


def a_writer_has_an_old_file_in_flight(stage: Stage) -> None:
    lifecycle = stage.open()
    file = in_flight(lifecycle)
    with lifecycle.writing(T, "w"):
        sweep(lifecycle)
        commit(lifecycle, T, file)


def a_neighbor_takes_up_a_file(stage: Stage, neighbor: str = "db.reader") -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, neighbor)
    commit(lifecycle, neighbor, append(lifecycle))
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)


def a_neighbor_that_cannot_be_read_has_taken_up_a_file(
    stage: Stage,
    *,
    only_the_newest: bool = False,
    read_before: bool = False,
    then: Callable[[], object] = lambda: None,
) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, "db.reader")
    if read_before:
        lifecycle.scan_orphans(T)
    commit(lifecycle, "db.reader", append(lifecycle))
    overwrite(lifecycle)
    metadata = on_disk(pointer(lifecycle, "db.reader"))
    lost = metadata if only_the_newest else metadata.parent
    aside = lost.rename(lost.with_name("aside"))
    then()
    with REFUSED:
        lifecycle.expire(T)
    with GUARDIAN.step("a person brings the metadata back"):
        aside.rename(lost)


def a_neighbor_that_does_not_load_has_taken_up_a_file(stage: Stage) -> None:
    """Its catalog lists it, and answers nothing else."""

    def in_part(self: Any) -> list[CatalogEntry]:
        found = all_of(self)
        lost = [replace(each, metadata_location="", problem="it fails") for each in found if each.table == "reader"]
        return [*(each for each in found if each.table != "reader"), *lost]

    all_of = _Sql.pointers
    with stage.patch.context() as failing:
        after = partial(failing.setattr, _Sql, "pointers", in_part)
        a_neighbor_that_cannot_be_read_has_taken_up_a_file(stage, only_the_newest=True, read_before=True, then=after)


def a_neighbor_writes_inside(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    inside = place(lifecycle) / "data" / "inner"
    file = in_flight(lifecycle, "db.inner", location=inside, properties=elsewhere(lifecycle, "inner"))
    sweep(lifecycle)
    commit(lifecycle, "db.inner", file)


def a_neighbor_on_hold_had_taken_up_a_file(
    stage: Stage, meanwhile: Callable[[Lifecycle], None] = lambda _: None
) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, "db.reader")
    commit(lifecycle, "db.reader", append(lifecycle))
    held = pointer(lifecycle, "db.reader")
    # Where it reads is known from now on.
    lifecycle.scan_orphans(T)
    lifecycle.hold("db.reader", "legal", "case 7")
    overwrite(lifecycle, "db.reader")
    expire_in_metadata(lifecycle, "db.reader", ids(lifecycle, "db.reader")[:1])
    meanwhile(lifecycle)
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)
    register(lifecycle, held)


def the_cache_is_lost(lifecycle: Lifecycle) -> None:
    on_disk(f"{lifecycle.resources.root}/reached/tables.json").unlink()
    index_files._known.clear()


def another_one_is_held(lifecycle: Lifecycle) -> None:
    create(lifecycle, "db.other")
    lifecycle.hold("db.other", "ann", "unrelated")
    # The next night is another process.
    index_files._known.clear()


def a_dropped_table_lies_inside(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    inside = place(lifecycle) / "data" / "inner"
    create(lifecycle, "db.inner", location=inside, properties=elsewhere(lifecycle, "inner"))
    append(lifecycle, "db.inner")
    lifecycle.observe_catalog()
    last = pointer(lifecycle, "db.inner")
    lifecycle.spark.sql(f"DROP TABLE {lifecycle.config.catalogs.live.name}.db.inner")
    sweep(lifecycle)
    register(lifecycle, last)


def a_marked_table_is_dropped_and_made_again(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    marked = lifecycle.mark(lifecycle.config.catalogs.live.name)
    last = pointer(lifecycle)
    lifecycle.spark.sql(f"DROP TABLE {lifecycle.config.catalogs.live.name}.{T}")
    create(lifecycle)
    append(lifecycle)
    with REFUSED:
        lifecycle.sweep(marked.live_set_id, deferred=False)
    register(lifecycle, last)


def a_table_that_no_catalog_knows_lies_inside(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    create(lifecycle, "db.stranger", location=place(lifecycle) / "data" / "stranger")
    append(lifecycle, "db.stranger")
    last = forget(lifecycle, "stranger")
    sweep(lifecycle)
    register(lifecycle, last)


def a_table_without_a_uuid_lies_inside(stage: Stage) -> None:
    """Version 1 may have none."""
    place = _stranger_inside(stage, "'format-version'='1'")
    for path in (place / "metadata").glob("*.metadata.json"):
        node = json.loads(path.read_text())
        del node["table-uuid"]
        path.write_text(json.dumps(node))
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    sweep(stage.lifecycle)


def a_table_whose_metadata_the_store_refuses_lies_inside(stage: Stage) -> None:
    place = _stranger_inside(stage)
    for name in ("read", "read_range"):
        stage.patch.setattr(Stores, name, _refusing(getattr(Stores, name), place))
    with REFUSED:
        sweep(stage.lifecycle)


def _refusing(read: Callable[..., bytes], place: Path) -> Callable[..., bytes]:
    def refused(self: Stores, path: str, *more: Any) -> bytes:
        if path.endswith(".metadata.json") and on_disk(path).is_relative_to(place):
            raise StorageError("403", path=path, hint="ask its owner")
        return read(self, path, *more)

    return refused


def _stranger_inside(stage: Stage, properties: str = "") -> Path:
    """A table inside that no catalog has."""
    lifecycle = stage.lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    stranger = place(lifecycle) / "data" / "stranger"
    create(lifecycle, "db.stranger", location=stranger, properties=properties)
    append(lifecycle, "db.stranger")
    forget(lifecycle, "stranger")
    stage.others += (stranger / "data").glob("*.parquet")
    return stranger


def what_an_undeleted_snapshot_shares_expires(stage: Stage) -> None:
    aside = {"root": f"file://{stage.fixture('tmp_path')}/aside"}
    lifecycle = stage.open({**ONE_TIER, "deletion": {"grace": "0s", "mode": "quarantine"}}, quarantine=aside)
    create(lifecycle)
    stage.others.append(on_disk(str(append(lifecycle).location())))
    append(lifecycle)
    plan = lifecycle.plan_expiration(T)
    lifecycle.commit_expiration(plan)
    lifecycle.delete_files(plan)
    lifecycle.undelete(plan, who="ann", why="an auditor reads it")
    overwrite(lifecycle)
    lifecycle.expire(T)


def a_second_name_reads_what_the_first_expires(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    register(lifecycle, pointer(lifecycle))
    lifecycle.observe_catalog()
    last = forget(lifecycle, "again")
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)
    register(lifecycle, last)


def a_table_is_dropped_from_a_sibling_catalog(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, "db.reader")
    commit(lifecycle, "db.reader", append(lifecycle))
    last, tiers = pointer(lifecycle, "db.reader"), lifecycle.config.catalogs
    rows = "iceberg_tables {} WHERE catalog_name = :name AND table_name = 'reader'"
    with lifecycle.resources.unchecked_operations.engine.begin() as connection:
        move = rows.format("SET catalog_name = 'sibling'")
        connection.execute(text(f"UPDATE {move}"), {"name": tiers.live.name})
    lifecycle.observe_catalog()
    with lifecycle.resources.unchecked_operations.engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {rows.format('')}"), {"name": "sibling"})
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)
    register(lifecycle, last)


def nothing_tells_of_a_stranger_inside(stage: Stage, defaults: dict[str, Any] = ONE_TIER, properties: str = "") -> None:
    """Its metadata is elsewhere, so that its data are orphans to every rule."""
    lifecycle = stage.open(defaults)
    create(lifecycle, properties=properties)
    append(lifecycle)
    inside = place(lifecycle) / "data" / "stranger"
    create(lifecycle, "db.stranger", location=inside, properties=elsewhere(lifecycle, "stranger"))
    append(lifecycle, "db.stranger")
    last = forget(lifecycle, "stranger")
    sweep(lifecycle)
    register(lifecycle, last)


def a_table_was_here_before(stage: Stage) -> None:
    """Dropped and made again in its place, before the lifecycle ever looked."""
    lifecycle = stage.open(ONE_TIER)
    create(lifecycle)
    append(lifecycle)
    last = forget(lifecycle, "t")
    create(lifecycle)
    append(lifecycle)
    sweep(lifecycle)
    register(lifecycle, last)


def another_deployment_has_a_hold(stage: Stage) -> None:
    theirs = stage.open()
    replaced(theirs)
    theirs.hold(T, "legal", "case 7")
    held = pointer(theirs)
    ours = stage.opened(with_operations(theirs.config, uri=stage.fixture("databases").make()))
    with REFUSED:
        ours.expire(T)
    register(theirs, held)


def another_catalog_has_a_table_of_that_name(stage: Stage) -> None:
    ours = stage.open()
    theirs = stage.open(catalogs={"live": {"warehouse": ours.config.catalogs.live.warehouse}})
    for lifecycle in (ours, theirs):
        create(lifecycle)
        append(lifecycle)
    sweep(ours)


def the_cold_warehouse_becomes_a_link_to_the_live_one(stage: Stage) -> None:
    lifecycle = stage.open(AT_ONCE)
    replaced(lifecycle)
    # Only Hadoop leaves checksums beside files; they would stop the handoff when its harm is done.
    for path in list(warehouse(lifecycle, "live").rglob(".*.crc")):
        path.unlink()
    plan = lifecycle.plan_expiration(T)
    warehouse(lifecycle, "cold").symlink_to(warehouse(lifecycle, "live"))
    with REFUSED:
        lifecycle.hand_off(plan)
        lifecycle.commit_expiration(plan)
        lifecycle.delete_files(plan)


def the_catalog_is_restored_from_a_backup(stage: Stage, damage: dict[str, Any] | None = None) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    backup = pointer(lifecycle)
    append(lifecycle)
    right = pointer(lifecycle)
    point(lifecycle, backup)
    whole = on_disk(right).read_bytes()
    on_disk(right).write_text(json.dumps({**json.loads(whole), **(damage or {})}))
    sweep(lifecycle)
    on_disk(right).write_bytes(whole)
    with GUARDIAN.step("a person registers the right metadata"):
        point(lifecycle, right)


def a_clock_goes_ahead(stage: Stage) -> None:
    lifecycle = stage.open(PATIENT)
    file = in_flight(lifecycle)
    right = Clock.now
    stage.patch.setattr(Clock, "now", lambda self: right(self) + timedelta(days=30))
    sweep(lifecycle)
    commit(lifecycle, T, file)


def a_young_file_is_in_flight(stage: Stage) -> None:
    lifecycle = stage.open(PATIENT)
    file = in_flight(lifecycle)
    sweep(lifecycle)
    commit(lifecycle, T, file)


def a_table_keeps_its_data_in_a_home(stage: Stage) -> None:
    lifecycle = stage.open()
    home = warehouse(lifecycle, "live").with_name("home")
    create(lifecycle, properties=f"'write.data.path'='file://{home}'")
    append(lifecycle)
    for name in ("docs/thesis.txt", "photos/1.jpg"):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        stage.others.append(path)
    sweep(lifecycle)


def orphans_are_swept(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    sweep(lifecycle)


def a_writer_commits_an_expired_file_between_two_batches(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    files = sorted((append(lifecycle) for _ in range(2)), key=lambda file: str(file.location()))
    overwrite(lifecycle)
    plan = committed(lifecycle)
    settings = partial(DeletionSettings, files_per_batch=1)
    stage.patch.setattr("artemis_lifecycle.walk.deletion.DeletionSettings", settings)
    left = [files[1]]

    def act(reached: str) -> None:
        if reached == "deletion.write_outcomes:after" and left:
            commit(lifecycle, T, left.pop())

    with crash_points.installed(act):
        lifecycle.delete_files(plan)


def what_was_put_back_lies_unread(stage: Stage) -> None:
    aside = {"root": f"file://{stage.fixture('tmp_path')}/aside"}
    policy = {**ONE_TIER, "deletion": {"grace": "0s", "mode": "quarantine"}}
    lifecycle = stage.open(policy, quarantine=aside)
    replaced(lifecycle)
    plan = committed(lifecycle)
    lifecycle.delete_files(plan)
    lifecycle.undelete(plan, who="ann", why="an audit")
    sweep(lifecycle)
    register(lifecycle, plan.base_metadata_location)


def a_hold_comes_in_the_grace(stage: Stage) -> None:
    lifecycle = stage.open()
    replaced(lifecycle)
    plan = committed(lifecycle)
    lifecycle.hold(T, "legal", "case 7")
    with REFUSED:
        lifecycle.delete_files(plan)
    register(lifecycle, plan.base_metadata_location)


def a_file_is_recorded_under_another_scheme(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    file = append(lifecycle)
    with GUARDIAN.step("nothing"):
        pass
    table: Any = java(lifecycle, T)
    jvm: Any = lifecycle.spark._jvm
    other = jvm.org.apache.iceberg.DataFiles.builder(table.spec()).copy(file)
    other = other.withPath(f"hdfs://nn1{on_disk(str(file.location()))}").build()
    table.newOverwrite().deleteFile(file).addFile(other).commit()
    expire_in_metadata(lifecycle, T, ids(lifecycle)[:1])
    sweep(lifecycle)


def a_listed_file_is_written_again(stage: Stage) -> None:
    lifecycle = stage.open()
    file = in_flight(lifecycle)
    path = on_disk(str(file.location()))
    content = path.read_bytes()
    path.write_bytes(b"half of it")
    scan = lifecycle.scan_orphans(T)
    path.write_bytes(content)
    lifecycle.delete_orphans(scan)
    commit(lifecycle, T, file)


def _written_again(stage: Stage, write: Callable[[Path], None], policy: dict[str, Any] = ONE_TIER) -> None:
    """A writer writes an expired path again in the grace, and commits just after the deletion."""
    lifecycle = stage.open(policy)
    file = replaced(lifecycle)
    plan = committed(lifecycle)
    path = on_disk(str(file.location()))
    write(path)
    lifecycle.delete_files(plan)
    commit(lifecycle, T, file)


def a_path_is_written_again_in_the_grace(stage: Stage) -> None:
    _written_again(stage, lambda path: path.write_bytes(path.read_bytes()) and None)


def _put_there_with_an_old_time(path: Path) -> None:
    staged = path.with_name("staged")
    staged.write_bytes(path.read_bytes())
    os.utime(staged, (1, 1))
    staged.rename(path)


def a_file_is_moved_to_an_expired_path(stage: Stage) -> None:
    _written_again(stage, _put_there_with_an_old_time)


def an_archived_path_gets_another_file(stage: Stage) -> None:
    def change_content(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content.replace(b"parquet-mr", b"parquet-mx"))
        assert path.read_bytes() != content
        os.utime(path, (1, 1))

    _written_again(stage, change_content, AT_ONCE)


def a_path_is_written_again_during_the_move_into_quarantine(stage: Stage) -> None:
    lifecycle = stage.open({**ONE_TIER, "deletion": {"grace": "0s", "mode": "quarantine"}})
    file = replaced(lifecycle)
    plan = committed(lifecycle)

    def act(reached: str) -> None:
        if reached == "quarantine.set_aside:after":
            path = on_disk(str(file.location()))
            _put_there_with_an_old_time(path)

    with crash_points.installed(act):
        lifecycle.delete_files(plan)
    commit(lifecycle, T, file)


def the_lock_is_lost_at_the_last_second(stage: Stage) -> None:
    lifecycle = stage.open()
    file = replaced(lifecycle)
    plan = committed(lifecycle)

    def act(reached: str) -> None:
        if reached == "deletion.delete_files:before":
            with lifecycle.resources.unchecked_operations.engine.connect() as connection:
                ended = connection.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM lifecycle.locks JOIN pg_locks ON granted "
                        "AND locktype = 'transactionid' AND transactionid = locks.xmax WHERE name = :name"
                    ),
                    {"name": f"table:{plan.table_uuid}"},
                ).all()
            assert ended
            # Whoever waited for the lock is let in.
            commit(lifecycle, T, file)

    with crash_points.installed(act), REFUSED:
        lifecycle.delete_files(plan)


def create_view(lifecycle: Lifecycle, location: Path) -> Path:
    """A view; returns its metadata file."""
    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.sql(f"CREATE VIEW {live}.db.v TBLPROPERTIES ('location'='file://{location}') AS SELECT 1 AS one")
    [found] = (location / "metadata").glob("*.metadata.json")
    return found


def a_view_lies_inside(stage: Stage, *, is_listed: bool = True) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    stage.others.append(create_view(lifecycle, place(lifecycle) / "data" / "v"))
    if not is_listed:
        with lifecycle.resources.unchecked_operations.engine.begin() as connection:
            connection.execute(text("DELETE FROM iceberg_tables WHERE table_name = 'v'"))
    sweep(lifecycle)


def a_neighbor_of_a_newer_version_takes_up_a_file(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, "db.reader")
    lifecycle.scan_orphans(T)
    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.sql(f"ALTER TABLE {live}.db.reader SET TBLPROPERTIES ('format-version'='4')")
    file = append(lifecycle)
    # Outside of a guardian's step: pyiceberg cannot read manifests of that version.
    java(lifecycle, "db.reader").newAppend().appendFile(file).commit()
    to_version_5(lifecycle, "db.reader")
    stage.others.append(on_disk(str(file.location())))
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)


def a_neighbor_of_a_newer_version_is_dropped_unseen(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, "db.reader")
    lifecycle.scan_orphans(T)
    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.sql(f"ALTER TABLE {live}.db.reader SET TBLPROPERTIES ('format-version'='4')")
    file = append(lifecycle)
    java(lifecycle, "db.reader").newAppend().appendFile(file).commit()
    to_version_5(lifecycle, "db.reader")
    with lifecycle.resources.unchecked_operations.engine.begin() as connection:
        connection.execute(text("DELETE FROM iceberg_tables WHERE table_name = 'reader'"))
    stage.others.append(on_disk(str(file.location())))
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)


def a_delta_table_shares_the_folder(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    named, log = place(lifecycle) / "data" / "delta.parquet", place(lifecycle) / "_delta_log"
    named.write_bytes(b"x")
    log.mkdir()
    (log / f"{0:020}.json").write_text('{"add": {"path": "data/delta.parquet"}}')
    stage.others.append(named)
    sweep(lifecycle)


def a_table_was_in_the_cold_catalog_before_its_guard(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, "db.reader")
    commit(lifecycle, "db.reader", append(lifecycle))
    tiers = lifecycle.config.catalogs
    with lifecycle.resources.unchecked_operations.engine.begin() as connection:
        connection.execute(
            text("UPDATE iceberg_tables SET catalog_name = :cold WHERE catalog_name = :live AND table_name = 'reader'"),
            {"cold": tiers.cold.name, "live": tiers.live.name},
        )
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)


def a_job_writes_an_archived_path_again(stage: Stage) -> None:
    lifecycle = stage.open(AT_ONCE)
    file = replaced(lifecycle)
    lifecycle.expire(T)
    path = str(file.location())
    ids_of_rows = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table({"id": pa.array([5], pa.int64())}, pa.schema([ids_of_rows])), on_disk(path))
    data, spark = java(lifecycle, T), lifecycle.spark
    assert spark._jvm is not None
    again = spark._jvm.org.apache.iceberg.DataFiles.builder(data.spec()).withPath(path).withFormat("parquet")
    again = again.withFileSizeInBytes(on_disk(path).stat().st_size).withRecordCount(1).build()
    commit(lifecycle, T, again)
    second = ids(lifecycle)[-1]
    stage.others.append(warehouse(lifecycle, "cold") / f"db/t/_reused/{second}/file/_{on_disk(path)}")
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)


def one_file_is_added_in_two_spellings(stage: Stage) -> None:
    lifecycle = stage.open(AT_ONCE)
    create(lifecycle)
    file = append(lifecycle)
    other = str(file.location()).replace("file:/", "file:///")
    assert other != str(file.location())
    spark: Any = lifecycle.spark
    again = spark._jvm.org.apache.iceberg.DataFiles.builder(java(lifecycle, T).spec()).copy(file).withPath(other)
    commit(lifecycle, T, again.build())
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)
    copies = sorted(warehouse(lifecycle, "cold").rglob(on_disk(other).name))
    stage.others += copies if len(copies) == 2 else [warehouse(lifecycle, "cold") / "a copy for each spelling"]


def a_reader_takes_up_a_file_and_is_dropped_unseen(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, "db.reader")
    lifecycle.scan_orphans(T)
    commit(lifecycle, "db.reader", append(lifecycle))
    last = pointer(lifecycle, "db.reader")
    lifecycle.spark.sql(f"DROP TABLE {lifecycle.config.catalogs.live.name}.db.reader")
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)
    register(lifecycle, last)


def a_reader_is_put_back(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, "db.reader")
    before, file = pointer(lifecycle, "db.reader"), append(lifecycle)
    commit(lifecycle, "db.reader", file)
    lifecycle.observe_catalog()
    last = pointer(lifecycle, "db.reader")
    point(lifecycle, before, "reader")
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)
    register(lifecycle, last)


def an_own_commit_is_lost_before_the_next_look(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    overwrite(lifecycle)
    before = pointer(lifecycle)
    lifecycle.tag(T, "audit", ids(lifecycle)[0])
    last = lifecycle.resources.live_catalog.entry(T).metadata_location
    point(lifecycle, before)
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)
    register(lifecycle, last)


def the_window_is_raised_between_plan_and_commit(stage: Stage) -> None:
    lifecycle = stage.open(ONE_TIER)
    create(lifecycle)
    append(lifecycle)
    overwrite(lifecycle)
    plan, last = lifecycle.plan_expiration(T), pointer(lifecycle)
    config = lifecycle.config.model_dump(exclude_unset=True)
    config["defaults"]["retention"] |= {"window": "900d"}
    with open_lifecycle(LifecycleConfig.model_validate(config), stage.spark) as changed, REFUSED:
        changed.commit_expiration(plan.plan_id)
        changed.delete_files(plan.plan_id)
    register(lifecycle, last)


def a_lapsed_tag_is_moved_after_the_plan(stage: Stage) -> None:
    """Of a day's snapshots the archive has the newest, and what refs name."""
    lifecycle = stage.open({**AT_ONCE, "cold_tier": {"archive": "daily"}})
    create(lifecycle)
    for _ in range(3):
        append(lifecycle)
    overwrite(lifecycle)
    first, second, *_ = ids(lifecycle)
    name = parse(T).sql(lifecycle.config.catalogs.live.name)
    lifecycle.spark.sql(f"ALTER TABLE {name} CREATE TAG x AS OF VERSION {first} RETAIN 5 DAYS")
    later = lifecycle.operations.clock.now() + timedelta(days=60)
    plan = lifecycle.plan_expiration(T, now=later)
    lists = {each.snapshot_id: each.manifest_list for each in lifecycle.steps.table_state(T).metadata.snapshots}
    stage.others.append(on_disk(str(lists[second])))
    lifecycle.hand_off(plan)
    lifecycle.spark.sql(f"ALTER TABLE {name} REPLACE TAG x AS OF VERSION {second} RETAIN 5 DAYS")
    with REFUSED:
        lifecycle.commit_expiration(plan)
        lifecycle.delete_files(plan)


def a_dropped_table_is_committed_to_elsewhere(stage: Stage) -> None:
    lifecycle = stage.open({**ONE_TIER, **SOON_GONE})
    create(lifecycle)
    append(lifecycle)
    # The guardian judges no step that finds no table at all.
    create(lifecycle, "db.other")
    lifecycle.observe_catalog()
    last, name = pointer(lifecycle), f"{lifecycle.config.catalogs.live.name}.{T}"
    lifecycle.spark.sql(f"DROP TABLE {name}")
    with REFUSED:
        scan = lifecycle.scan_dropped(T)
    elsewhere = on_disk(last).with_name(f"{99:05}-{uuid.uuid4()}.metadata.json")
    elsewhere.write_bytes(on_disk(last).read_bytes())
    with REFUSED:
        lifecycle.delete_dropped(scan)
    register(lifecycle, f"file://{elsewhere}")


def a_paimon_table_shares_the_folder(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    for name in ("snapshot/snapshot-1", "schema/schema-0", "manifest/manifest-0", "bucket-0/data-0.parquet"):
        path = place(lifecycle) / "paimon" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"theirs")
        stage.others.append(path)
    sweep(lifecycle)


def a_person_keeps_a_dropped_replica(stage: Stage) -> None:
    lifecycle = stage.open({**ONE_TIER, "dropped": {"keep": "30d"}})
    table = make_original(lifecycle)
    # Dropped by mistake, and taken back.
    last = drop(lifecycle, table)
    lifecycle.scan_dropped(table)
    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.sql(f"CALL {live}.system.register_table(table => '{table}', metadata_file => '{last}')")
    replica_of(lifecycle, table, stage.fixture("tmp_path"))
    goes_on(lifecycle, table)
    last = drop(lifecycle, "db.replica")
    lifecycle.keep_dropped("db.replica", who="ann", why="still needed")
    sweep(lifecycle, table)
    register(lifecycle, last)


def a_reader_is_dropped_again_after_a_deletion_was_begun(stage: Stage) -> None:
    lifecycle = stage.open({**ONE_TIER, **SOON_GONE})
    create(lifecycle)
    create(lifecycle, "db.reader")
    commit(lifecycle, "db.reader", append(lifecycle))
    last = drop(lifecycle, "db.reader")
    scan = lifecycle.scan_dropped("db.reader")
    with killed_at("deletion.seal_batches:before"):
        lifecycle.delete_dropped(scan)
    # Nothing is deleted yet, and a person takes it back.
    live = lifecycle.config.catalogs.live.name
    lifecycle.spark.sql(f"CALL {live}.system.register_table(table => 'db.reader', metadata_file => '{last}')")
    drop(lifecycle, "db.reader")
    lifecycle.observe_catalog()
    overwrite(lifecycle)
    manifests = sorted(on_disk(last).parent.glob("*-m*.avro"))
    for path in manifests:
        path.rename(path.with_suffix(".aside"))
    with REFUSED:
        lifecycle.expire(T)
    for path in manifests:
        path.with_suffix(".aside").rename(path)
    register(lifecycle, last)


def a_reader_comes_back_from_quarantine(stage: Stage) -> None:
    tables = {T: {}, "db.reader": {"deletion": {"grace": "0s", "mode": "quarantine"}}}
    lifecycle = stage.open({**ONE_TIER, **SOON_GONE}, tables=tables)
    create(lifecycle)
    create(lifecycle, "db.reader")
    commit(lifecycle, "db.reader", append(lifecycle))
    last = drop(lifecycle, "db.reader")
    scan = lifecycle.scan_dropped("db.reader")
    lifecycle.delete_dropped(scan)
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)
    lifecycle.undelete(scan, who="ann", why="still needed")
    register(lifecycle, last)


def a_second_name_is_dropped_while_the_first_archives(stage: Stage) -> None:
    lifecycle = stage.open({**AT_ONCE, **SOON_GONE})
    create(lifecycle)
    append(lifecycle)
    register(lifecycle, pointer(lifecycle))
    live = lifecycle.config.catalogs.live.name
    moved = f"file://{warehouse(lifecycle, 'live')}/moved"
    core_tables.sql(lifecycle.spark, f"ALTER TABLE {live}.{T} SET LOCATION '{moved}'")
    overwrite(lifecycle)
    drop(lifecycle, "db.again")
    plan = lifecycle.plan_expiration(T)
    expire_in_metadata(lifecycle, T, plan.expired_snapshots)
    with REFUSED:
        lifecycle.delete_dropped(lifecycle.scan_dropped("db.again"))
    register(lifecycle, plan.base_metadata_location)


def another_tool_expires_what_shared_files_with_an_open_plan_beside_a_replica(stage: Stage) -> None:
    lifecycle = stage.open(AT_ONCE)
    table = make_original(lifecycle)
    replica_of(lifecycle, table, stage.fixture("tmp_path"))
    lifecycle.observe_catalog()
    goes_on(lifecycle, table)
    overwrite(lifecycle, table)
    first, *others = ids(lifecycle, table)[:-1]
    hold = lifecycle.hold(table, "ann", "an audit", others)
    plan = lifecycle.plan_expiration(table)
    lifecycle.release(hold.hold_id)
    expire_in_metadata(lifecycle, table, [first, *others])
    sweep(lifecycle, table)
    register(lifecycle, plan.base_metadata_location, only=first)


def a_reader_is_put_back_and_registered_again(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, "db.reader")
    append(lifecycle, "db.reader")
    before = pointer(lifecycle, "db.reader")
    commit(lifecycle, "db.reader", append(lifecycle))
    last = pointer(lifecycle, "db.reader")
    # Its index has one segment, of which a deletion of the other table then sees a part.
    lifecycle.plan_expiration("db.reader")
    point(lifecycle, before, "reader")
    lifecycle.scan_orphans(T)
    point(lifecycle, last, "reader")
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)


def an_unknown_table_of_a_newer_version_lies_inside(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    inside = place(lifecycle) / "data" / "stranger"
    create(lifecycle, "db.stranger", location=inside)
    append(lifecycle, "db.stranger")
    forget(lifecycle, "stranger")
    for path in (inside / "metadata").glob("*.metadata.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 5, "location": None}))
    stage.others += inside.rglob("*.parquet")
    sweep(lifecycle)


def a_refused_commit_lies_on_top_of_a_dropped_table(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    append(lifecycle)
    overwrite(lifecycle)
    lifecycle.observe_catalog()
    right = pointer(lifecycle)
    expire_in_metadata(lifecycle, T, ids(lifecycle)[:1])
    point(lifecycle, right)
    drop(lifecycle, T)
    with REFUSED:
        lifecycle.undrop(T, who="ann", why="a mistake")
    sweep(lifecycle)
    register(lifecycle, right)


def the_name_of_a_dropped_reader_is_taken_by_its_original(stage: Stage) -> None:
    """A swap by an engine, before any look; then another table expires."""
    lifecycle = stage.open()
    create(lifecycle)
    table, live = make_original(lifecycle), lifecycle.config.catalogs.live.name
    replica_of(lifecycle, table, stage.fixture("tmp_path"))
    commit(lifecycle, "db.replica", append(lifecycle))
    goes_on(lifecycle, table)
    last = drop(lifecycle, "db.replica")
    lifecycle.spark.sql(f"ALTER TABLE {live}.{table} RENAME TO db.replica")
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)
    register(lifecycle, last)


def a_reader_is_put_back_to_a_state_that_has_a_name(stage: Stage) -> None:
    lifecycle = stage.open()
    create(lifecycle)
    create(lifecycle, "db.reader")
    before = pointer(lifecycle, "db.reader")
    commit(lifecycle, "db.reader", append(lifecycle))
    last, live = pointer(lifecycle, "db.reader"), lifecycle.config.catalogs.live.name
    # A person looks at the older state first.
    lifecycle.spark.sql(f"CALL {live}.system.register_table(table => 'db.check', metadata_file => '{before}')")
    lifecycle.observe_catalog()
    point(lifecycle, before, "reader")
    lifecycle.observe_catalog()
    overwrite(lifecycle)
    with REFUSED:
        lifecycle.expire(T)
    register(lifecycle, last)


# --- the guards -------------------------------------------------------------------------------------------------------


def taken(*targets: tuple[Any, str, Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Sets attributes of classes, or of modules by their names in the package."""

    def without(patch: pytest.MonkeyPatch) -> None:
        for owner, name, value in targets:
            if isinstance(owner, str):
                patch.setattr(f"artemis_lifecycle.{owner}.{name}", value)
            else:
                patch.setattr(owner, name, value)

    return without


def _copies_are_trusted(status: PlanStatus) -> Callable[[pytest.MonkeyPatch], None]:
    def trusting(resources: Any, plan: Any, record: Any, step: Any) -> int:
        return 0 if record.status is status else copy_again(resources, plan, record, step)

    return taken(*((f"walk.{module}", "copy_again", trusting) for module in ("expiration", "cold_tier")))


def _without_dots(patch: pytest.MonkeyPatch) -> None:
    """Names that are more than words and one dot are not seen, as when they were split at each dot."""
    tables, pointers = CatalogsOfDatabase.tables, CatalogsOfDatabase.pointers
    patch.setattr(CatalogsOfDatabase, "tables", lambda self: [each for each in tables(self) if "`" not in each])
    patch.setattr(
        CatalogsOfDatabase,
        "pointers",
        lambda self: {name: each for name, each in pointers(self).items() if "`" not in name},
    )


def _what_does_not_load_is_left_out(patch: pytest.MonkeyPatch) -> None:
    pointers = CatalogReader.pointers
    patch.setattr(
        CatalogReader,
        "pointers",
        lambda self: {name: each for name, each in pointers(self).items() if each.problem is None},
    )


def _in_context(**changes: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """What protection judges with, changed."""

    def changed(*asked: Any) -> Any:
        return replace(deletion_context(*asked), **changes)

    modules = ("deletion", "dropped", "explaining", "orphans", "quarantine")
    return taken(*((f"walk.{module}", "deletion_context", changed) for module in modules))


def _tiers_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Neither the roots, nor a file with its copy, nor a file's place with the other tier's: any one is enough."""
    _in_context(reserved=())(patch)
    patch.setattr("artemis_lifecycle.session.resources.require_apart", nothing)
    # Nor does a copy wait for a free place, or see that it has changed its source.
    patch.setattr(Copier, "_replaces", lambda self, wanted, there: there is not None)
    patch.setattr(Stores, "require_unchanged", nothing)
    for module in ("copy", "presence"):
        patch.setattr(f"artemis_lifecycle.cold_tier.{module}.same_file", no)


def _spellings_share_a_place(patch: pytest.MonkeyPatch) -> None:
    place = PathMapping.__call__
    patch.setattr(PathMapping, "__call__", lambda self, path: place(self, self.plain(path)))


def _holds_of_others_are_not_asked(patch: pytest.MonkeyPatch) -> None:
    active = Holds.active
    patch.setattr(
        Holds,
        "active",
        lambda self, table_uuid=None, now=None: () if table_uuid is None else active(self, table_uuid, now),
    )


def _nobody_looked_first(_: Any, files_location: str, **__: Any) -> str:
    return files_location


_NO_FIRST_LOOK = tuple((f"walk.{module}", "first_look", _nobody_looked_first) for module in ("expiration", "deletion"))
_NO_RECORD = (*_NO_FIRST_LOOK, ("walk.deletion", "sealed_at", lambda *_: None))
"""Nothing but its path says what a plan's file was, unless it is archived."""


def _the_cold_catalog_is_left_out(self: CatalogsOfDatabase, key: str | None = None) -> dict[str, Any]:
    found = self._live.beside(())
    return {name: each for name, each in found.items() if each.catalog not in self._without}


def _cannot_be_read(*asked: Any) -> Any:
    raise UnreadableMetadata("no such encoding", path=asked[-1])


def _a_uuid_has_one_name(patch: pytest.MonkeyPatch) -> None:
    """A table counts as present if any name has its uuid."""
    every = Neighbors._not_present

    def by_uuid(self: Neighbors, *known: Any) -> Iterator[KnownTable]:
        present = {other.table_uuid for other in self._known.values() if other is not None} | {self._table_uuid}
        return (each for each in every(self, *known) if each.table_uuid not in present)

    patch.setattr(Neighbors, "_not_present", by_uuid)


def _last_metadata_has_a_name(patch: pytest.MonkeyPatch) -> None:
    """What is saved of a dropped table is named as its metadata file is, wherever that is."""

    def saved(root: str, known: Missed) -> str:
        return f"{dropped_folder(root, known.table_uuid)}/{known.metadata_location.rpartition('/')[2]}"

    for module in ("protection.absence", "protection.neighbors", "protection.table_state", "orphans.dropped"):
        patch.setattr(f"artemis_lifecycle.{module}.saved_metadata", saved)


def _one_state_of_each_uuid(patch: pytest.MonkeyPatch) -> None:
    """Of several names of a uuid, one says what a plan still has to archive."""
    every = Protection._unarchived_files

    def of_the_last(self: Protection, plans: list[PlanRecord]) -> Any:
        last = {state.table_uuid: state for state in (self._own, *self._others.values())}
        with pytest.MonkeyPatch.context() as states:
            states.setattr(self, "_own", last.pop(self._own.table_uuid))
            states.setattr(self, "_others", {state.table: state for state in last.values()})
            return every(self, plans)

    patch.setattr(Protection, "_unarchived_files", of_the_last)


def _holds_record_no_folders(patch: pytest.MonkeyPatch) -> None:
    place = Holds.place

    def placed(self: Holds, *what: Any, **options: Any) -> Hold:
        return place(self, *what, **{**options, "reads": ()})

    patch.setattr(Holds, "place", placed)


def _holds_forget_folders(patch: pytest.MonkeyPatch) -> None:
    """A hold looks at one table, and forgets where all others read."""
    _holds_record_no_folders(patch)
    refresh = ReachedFolders.refresh

    def refreshed(self: ReachedFolders, tables: Any, unchanged: Any = None, *more: Any) -> dict[str, str]:
        return refresh(self, tables, () if unchanged is None else unchanged, *more)

    patch.setattr(ReachedFolders, "refresh", refreshed)


def _only_their_metadata_stays(*asked: Any) -> Evidence:
    found = evidence(*asked)
    return replace(found, foreign=tuple(each for each in found.foreign if f"{each}/metadata" not in found.foreign))


def _no_catalog_is_beside(patch: pytest.MonkeyPatch) -> None:
    known = Neighbors._known_tables
    patch.setattr(Neighbors, "_known_tables", lambda self: (known(self)[0], []))


def _hashes_of_nothing(*_: Any) -> Any:
    return np.empty(0, np.uint64)


def nothing(*_: Any, **__: Any) -> None: ...


def none(*_: Any, **__: Any) -> tuple[()]:
    return ()


def no(*_: Any, **__: Any) -> bool:
    return False


def yes(*_: Any, **__: Any) -> bool:
    return True


GUARDS = (
    Guard(
        "a commit is ours by the metadata log",
        taken(("walk.expiration", "made_by", yes)),
        another_tool_expires_an_open_plan,
        1,
    ),
    Guard(
        "open plans hold their files",
        taken((Protection, "_open_plans", none)),
        another_tool_expires_an_open_plan_and_orphans_are_swept,
        1,
    ),
    Guard(
        "open plans hold what they still have to archive",
        taken(("session.contexts", "unarchived", nothing)),
        another_tool_expires_what_shared_files_with_an_open_plan,
        1,
    ),
    Guard(
        "physical identity of files",
        taken((Protection, "_other_names", lambda *_: iter(()))),
        the_warehouse_gets_a_second_name,
        2,
    ),
    Guard(
        "physical identity of folders",
        taken((Folders, "above", lambda *_: frozenset())),
        a_neighbor_lies_inside_by_a_second_name,
        2,
    ),
    Guard(
        "hidden names",
        # The logs of other formats keep their folders by themselves.
        taken(
            (Places, "_is_hidden", no),
            ("protection.places", "_HIDDEN_NAME", r"[^\s\S]"),
            ("protection.protection", "claims", lambda *_: {}),
        ),
        other_systems_keep_files_under_hidden_names,
        3,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "cold copies are asked for by the handoff",
        _copies_are_trusted(PlanStatus.OPEN),
        a_shared_copy_is_lost_between_two_nights,
        4,
    ),
    Guard(
        "cold copies are asked for before the commit",
        _copies_are_trusted(PlanStatus.HANDED_OFF),
        a_copy_is_lost_before_the_commit,
        4,
    ),
    Guard(
        "cold copies are asked for before each batch",
        taken((Deletion, "_planned_copies", nothing)),
        a_copy_is_lost_in_the_grace,
        4,
    ),
    Guard(
        "heartbeats stop expirations",
        taken(("protection.protection", "covered", none)),
        a_writer_uses_an_expired_file,
        5,
    ),
    Guard(
        "heartbeats stop orphan deletions",
        taken(("protection.protection", "covered", none)),
        a_writer_has_an_old_file_in_flight,
        5,
    ),
    Guard(
        "tables with dots in their names",
        _without_dots,
        partial(a_neighbor_takes_up_a_file, neighbor="db.`x.y`"),
        6,
    ),
    Guard(
        "dropped tables inside",
        taken((Neighbors, "_dropped", none)),
        a_dropped_table_lies_inside,
        10,
    ),
    Guard(
        "the last state of dropped tables",
        taken((Neighbors, "_unseen_state", none)),
        a_reader_takes_up_a_file_and_is_dropped_unseen,
    ),
    Guard(
        "a name is not a table",
        # By any, the sweep leaves the files: it looks for the table by its uuid, knows that it was dropped, and scans,
        # which keeps what the other table's newest metadata file reaches.
        taken(
            ("session.steps", "require_uuid", nothing),
            ("walk.marking", "_remember", nothing),
            ("protection.future", "_newest_of_each", lambda others: {}),
        ),
        a_marked_table_is_dropped_and_made_again,
    ),
    Guard(
        "one deployment",
        taken(("session.resources", "require_deployment", nothing)),
        another_deployment_has_a_hold,
        11,
    ),
    Guard(
        "sibling catalogs",
        # A scan alone would also keep what the other table's newest metadata file reaches.
        taken(
            (CatalogsOfDatabase, "_others", lambda _: {}), ("protection.future", "_newest_of_each", lambda others: {})
        ),
        another_catalog_has_a_table_of_that_name,
        12,
    ),
    Guard(
        "tiers apart",
        _tiers_are_not_compared,
        the_cold_warehouse_becomes_a_link_to_the_live_one,
        13,
    ),
    Guard(
        "evidence of a future",
        taken(("orphans.scan", "require_no_future", nothing)),
        the_catalog_is_restored_from_a_backup,
        14,
    ),
    Guard(
        "clocks agree",
        taken(("session.resources", "require_agreement", nothing)),
        a_clock_goes_ahead,
        15,
    ),
    Guard(
        "roots",
        _in_context(roots=()),
        a_table_keeps_its_data_in_a_home,
        16,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "reachability",
        taken(
            *(
                (room, "reaches", lambda _, hashes: np.zeros(len(hashes), np.bool_))
                for room in ("reachability.files", "protection.table_state")
            )
        ),
        orphans_are_swept,
    ),
    Guard(
        "the metadata's own files",
        taken(("protection.table_state", "metadata_files", lambda *_: set())),
        orphans_are_swept,
    ),
    Guard(
        "the pointer is read again before each batch",
        taken((TableState, "refresh", yes)),
        a_writer_commits_an_expired_file_between_two_batches,
    ),
    Guard(
        "other tables that read here",
        taken((Neighbors, "reads", none)),
        a_neighbor_takes_up_a_file,
    ),
    Guard(
        "tables that cannot be read",
        taken((Neighbors, "unread", lambda _: {})),
        a_neighbor_that_cannot_be_read_has_taken_up_a_file,
    ),
    Guard(
        "other tables inside",
        taken(("protection.protection", "nested_locations", none)),
        a_neighbor_writes_inside,
    ),
    Guard(
        "tables inside that no catalog knows",
        taken((Protection, "protect", nothing)),
        a_table_that_no_catalog_knows_lies_inside,
    ),
    Guard(
        "holds",
        taken((Protection, "require_no_hold", nothing)),
        a_hold_comes_in_the_grace,
    ),
    Guard(
        "holds of other tables",
        _holds_of_others_are_not_asked,
        a_neighbor_on_hold_had_taken_up_a_file,
    ),
    Guard(
        "undeletes",
        taken((Quarantines, "undeleted", none)),
        what_was_put_back_lies_unread,
    ),
    Guard(
        "prefix mismatch",
        taken((Protection, "twins", lambda *_: np.empty(0, np.uint64))),
        a_file_is_recorded_under_another_scheme,
    ),
    Guard(
        "age",
        taken(("protection.protection", "_young", none)),
        a_young_file_is_in_flight,
    ),
    Guard(
        "changed since listing",
        taken(("deletion.identities", "_changed", lambda sizes, *_: np.zeros(len(sizes), np.bool_))),
        a_listed_file_is_written_again,
    ),
    Guard(
        "written again after the plan",
        taken(*_NO_RECORD),
        a_path_is_written_again_in_the_grace,
    ),
    Guard(
        "the first look at a plan's files",
        taken(*_NO_FIRST_LOOK),
        a_file_is_moved_to_an_expired_path,
    ),
    Guard(
        "the archived file is the live one",
        taken((PlannedCopies, "archived_files", lambda *_: {}), *_NO_RECORD),
        an_archived_path_gets_another_file,
    ),
    Guard(
        "an archived path is not an archived file",
        taken(
            ("cold_tier.needed", "_reused", lambda *_: SEALED.empty_table()),
            (PlannedCopies, "archived_files", lambda *_: {}),
            *_NO_RECORD,
        ),
        a_job_writes_an_archived_path_again,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "two spellings of a file are two files",
        _spellings_share_a_place,
        one_file_is_added_in_two_spellings,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "what goes into quarantine is what was judged",
        taken(("deletion.worker", "same", lambda before, _: np.ones(len(before.found), np.bool_)), *_NO_RECORD),
        a_path_is_written_again_during_the_move_into_quarantine,
    ),
    Guard(
        "the lock is held to the last second",
        taken((TableLock, "check", nothing)),
        the_lock_is_lost_at_the_last_second,
    ),
    Guard(
        "limits",
        taken(("walk.deletion", "require_approval", nothing)),
        partial(
            nothing_tells_of_a_stranger_inside,
            defaults={**ONE_TIER, "orphans": {**ONE_TIER["orphans"], "max_share": 0.1}},
        ),
    ),
    Guard(
        "gc.enabled",
        taken(("protection.protection", "require_collectable", nothing)),
        partial(nothing_tells_of_a_stranger_inside, properties="'gc.enabled'='false'"),
    ),
    Guard(
        "tables that were here before",
        taken(("protection.future", "_newest_of_each", lambda others: {})),
        a_table_was_here_before,
    ),
    Guard(
        "objects that are not tables",
        taken((CatalogsOfDatabase, "others", none), ("protection.future", "_folders", none)),
        a_view_lies_inside,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "metadata files of other objects",
        taken(("protection.future", "_folders", none)),
        partial(a_view_lies_inside, is_listed=False),
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "tables of a newer format version",
        taken(
            ("protection.context", "newer_files", _cannot_be_read), (Protection, "_reached_since", _hashes_of_nothing)
        ),
        a_neighbor_of_a_newer_version_takes_up_a_file,
    ),
    Guard(
        "second names of a uuid",
        _a_uuid_has_one_name,
        a_second_name_reads_what_the_first_expires,
    ),
    Guard(
        "dropped tables of sibling catalogs",
        _no_catalog_is_beside,
        a_table_is_dropped_from_a_sibling_catalog,
    ),
    Guard(
        "dropped tables of a newer format version",
        taken((Neighbors, "_unseen_state", none)),
        a_neighbor_of_a_newer_version_is_dropped_unseen,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "newest commits that cannot be read",
        taken((Protection, "_reached_since", _hashes_of_nothing)),
        partial(a_neighbor_that_cannot_be_read_has_taken_up_a_file, only_the_newest=True, read_before=True),
    ),
    Guard(
        "tables that their catalog cannot load",
        _what_does_not_load_is_left_out,
        a_neighbor_that_does_not_load_has_taken_up_a_file,
    ),
    Guard(
        "logs of other formats",
        taken(("protection.protection", "claims", lambda *_: {})),
        a_delta_table_shares_the_folder,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "folders of Paimon",
        taken(("protection.future", "_is_paimons", lambda *_: False)),
        a_paimon_table_shares_the_folder,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "commits that a catalog lost",
        taken((Neighbors, "lost_commits", none)),
        a_reader_is_put_back,
    ),
    Guard(
        "own commits are seen",
        taken((TableLocations, "swaps", lambda *_: Swaps())),
        an_own_commit_is_lost_before_the_next_look,
    ),
    Guard(
        "the policy of now",
        taken((Expiration, "_guards", lambda self, plan: (keepers(self.resources, plan.table, plan.table_uuid),))),
        the_window_is_raised_between_plan_and_commit,
    ),
    Guard(
        "what a plan's ref names",
        taken(("expiration.commit", "_moved_refs", none)),
        a_lapsed_tag_is_moved_after_the_plan,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "dropped tables that live elsewhere",
        taken((Absence, "expect", nothing)),
        a_dropped_table_is_committed_to_elsewhere,
    ),
    Guard(
        "foreign tables in the cold catalog",
        taken((CatalogsOfDatabase, "_others", _the_cold_catalog_is_left_out)),
        a_table_was_in_the_cold_catalog_before_its_guard,
    ),
    Guard(
        "a dropped replica has its own last state",
        _last_metadata_has_a_name,
        a_person_keeps_a_dropped_replica,
    ),
    Guard(
        "a deletion of an earlier drop is over",
        taken(("protection.table_state", "is_of_this_drop", yes)),
        a_reader_is_dropped_again_after_a_deletion_was_begun,
    ),
    Guard(
        "dropped tables in quarantine",
        taken((Quarantines, "of_dropped", lambda *_: none)),
        a_reader_comes_back_from_quarantine,
    ),
    Guard(
        "plans of a uuid that lives on",
        taken((KnownTables, "lives_on", no)),
        a_second_name_is_dropped_while_the_first_archives,
    ),
    Guard(
        "what each name of a uuid has to archive",
        _one_state_of_each_uuid,
        another_tool_expires_what_shared_files_with_an_open_plan_beside_a_replica,
    ),
    Guard(
        "a part of a segment is not the segment",
        taken(("reachability.index.files", "_names", lambda state, number: (state.segments[number].name,))),
        a_reader_is_put_back_and_registered_again,
    ),
    Guard(
        "a hold forgets no other table",
        _holds_forget_folders,
        partial(a_neighbor_on_hold_had_taken_up_a_file, meanwhile=another_one_is_held),
    ),
    Guard(
        "a hold records where its table reads",
        _holds_record_no_folders,
        partial(a_neighbor_on_hold_had_taken_up_a_file, meanwhile=the_cache_is_lost),
    ),
    Guard(
        "own metadata that cannot be read",
        taken(("protection.future", "described", _cannot_be_read)),
        partial(the_catalog_is_restored_from_a_backup, damage={"snapshots": 1}),
    ),
    Guard(
        "unknown tables of a newer format version",
        taken(("orphans.scan", "evidence", _only_their_metadata_stays)),
        an_unknown_table_of_a_newer_version_lies_inside,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "tables without a uuid",
        taken(("protection.future", "_places", none)),
        a_table_without_a_uuid_lies_inside,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "metadata that the store refuses",
        taken(("protection.future", "_raise_refusal", nothing)),
        a_table_whose_metadata_the_store_refuses_lies_inside,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "what an undelete's snapshots need",
        taken((Protection, "_undeleted_plans", none)),
        what_an_undeleted_snapshot_shares_expires,
        is_seen_by_the_guardian=False,
    ),
    Guard(
        "each look at a catalog counts",
        taken(("operations.known_tables", "_looked", lambda _: text("SELECT 1"))),
        a_refused_commit_lies_on_top_of_a_dropped_table,
    ),
    Guard(
        "a name is not a line",
        taken((Seen, "continues", yes)),
        the_name_of_a_dropped_reader_is_taken_by_its_original,
    ),
    Guard(
        "what a look finds lost",
        taken(("orphans.dropped", "lost_since", none)),
        a_reader_is_put_back_to_a_state_that_has_a_name,
    ),
)

every_guard = pytest.mark.parametrize("guard", GUARDS, ids=[guard.name.replace(" ", "-") for guard in GUARDS])


@pytest.fixture
def stage(
    make_config: MakeConfig, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(make_config, spark, monkeypatch, request.getfixturevalue, stack)


@every_guard
def test_nothing_is_lost_with_the_guard(guard: Guard, stage: Stage) -> None:
    guard.attack(stage)
    GUARDIAN.require_no_loss()
    assert [path for path in stage.others if not path.exists()] == []


@pytest.mark.nightly
@every_guard
def test_a_loss_without_the_guard_is_reported(guard: Guard, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    guard.without(monkeypatch)
    guard.attack(stage)
    if guard.is_seen_by_the_guardian:
        with pytest.raises(LossError):
            GUARDIAN.require_no_loss()
    else:
        assert [path for path in stage.others if path.exists()] == []


def test_nothing_is_lost_while_the_newest_commit_of_a_reader_that_was_never_read_cannot_be_read(stage: Stage) -> None:
    a_neighbor_that_cannot_be_read_has_taken_up_a_file(stage, only_the_newest=True)
    GUARDIAN.require_no_loss()


def test_nothing_is_lost_while_the_newest_commit_of_a_reader_cannot_be_read(stage: Stage) -> None:
    a_neighbor_that_cannot_be_read_has_taken_up_a_file(stage, only_the_newest=True, read_before=True)
    GUARDIAN.require_no_loss()


def test_the_documentation_names_every_guard_and_its_finding() -> None:
    page = (REPOSITORY / "docs" / "protection.md").read_text()
    for guard in GUARDS:
        assert f"| {guard.name} | {guard.finding or ''}".rstrip() in page
