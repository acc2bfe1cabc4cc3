"""Undrop: register a dropped table again, in its last state, once everything that this state reaches is there."""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from shlex import quote
from typing import TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa

from artemis_lifecycle.audit.recording import Recording
from artemis_lifecycle.catalogs.commit import Change
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.commits.gate import Gate
from artemis_lifecycle.config.names import name_of
from artemis_lifecycle.contracts.summary import COMMIT_PROPERTY, OPERATION
from artemis_lifecycle.deletion.quarantine import Undeleted, put_back
from artemis_lifecycle.errors import BadInput, NotApplicable, PlanStateError, Refused, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import live_entries
from artemis_lifecycle.metadata.table_metadata import described, read_table_metadata
from artemis_lifecycle.metadata.types import METADATA, TableMetadata, kind_by_name
from artemis_lifecycle.operations.decisions import person
from artemis_lifecycle.operations.known_tables import KnownTable
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.quarantines import QuarantineState
from artemis_lifecycle.operations.tables import require_said
from artemis_lifecycle.orphans.dropped import last_metadata
from artemis_lifecycle.protection.absence import saved_metadata
from artemis_lifecycle.protection.future import evidence, unsettled, version_of
from artemis_lifecycle.protection.ownership import metadata_locations
from artemis_lifecycle.session.steps import Step, Steps
from artemis_lifecycle.storage.location import normalize
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.walk.dropped import DroppedTables
from artemis_lifecycle.walk.quarantine import Quarantine

_SHOWN = 3
_NAMED = 1_000
T = TypeVar("T")


@dataclass(frozen=True)
class Undropped:
    """A dropped table that is in the catalog again. `restored` files came back from quarantine. Of `files` that any of
    its snapshots reaches, `missing` are gone or have another size; `missing_files` names up to 1,000 of them."""

    table: str
    table_uuid: str
    metadata_location: str
    snapshot_id: int | None
    files: int
    restored: int
    missing: int
    missing_files: tuple[str, ...]


@dataclass(frozen=True)
class Undrop:
    """Registers dropped tables again."""

    steps: Steps
    dropped: DroppedTables
    quarantine: Quarantine
    recording: Recording

    def undrop(
        self,
        table: str,
        uuid: str | None = None,
        as_name: str | None = None,
        *,
        incomplete: bool = False,
        who: str | None = None,
        why: str = "",
    ) -> Undropped:
        """Register a dropped table (by name or uuid) in the live catalog again, in its last state, under its former
        name or `as_name`. Its open scan is closed, and what its deletion moved into quarantine is restored. Every file
        that the state reaches is compared with the store. If the current snapshot misses one, this names it and
        registers nothing, unless `incomplete`, which needs `who` and `why`.

        Raises NoSuchTable; BadInput with all candidates if several have the name; Refused if files are missing, or a
        table or view has the name; StalePlan if the table is in the catalog; LeaseTaken; MissingFile after a purge.
        """
        resources, operator = self.steps.resources, who or person()
        operations, stores = resources.operations, resources.live_stores
        if any(resources.other(each) is not None for each in (table, as_name or table)):
            raise NotApplicable("Only a table of a live catalog can be registered again", table=table, hint="none")
        if incomplete:
            require_said(table, who=who or "", why=why)
        known = self.dropped.missing(table, table_uuid=uuid)
        catalog = resources.catalogs.reader(known.catalog)
        key = as_name or name_of(known.table)
        if resources.config.catalogs.of(key).name != known.catalog:
            raise BadInput(
                f"{key} is a name in another catalog than {known.catalog}", table=table, hint="name it there"
            )
        name = parse(key.removeprefix(catalog.prefix))
        catalog.require_free(name)
        state, absence = self.dropped.lost(known)
        with self.steps.run(state, "undrop", pausable=False) as step:
            with table_lock(operations.engine, known.table_uuid, table=known.table):
                # From now on no deletion of its files begins, or goes on.
                operations.scans.close_dropped(known.table_uuid)
            restored = self._restore(known, operator, why or "undrop", step)
            metadata, seen = self._last_state(known)
            rules = resources.rules(known.table)
            # A file of the same size may stand at a path whose own file is in quarantine.
            aside = {normalize(path, rules): why for back in restored for path, why in back.problems}
            amiss = lambda path: aside.get(normalize(path, rules)) if aside else None  # noqa: E731
            files, lost = _compared(stores, metadata, amiss, step.check)
            if lost and lost[0].is_current and not incomplete:
                raise _incomplete(known, lost)
            absence.require()
            catalog.require_free(name)
            if stores.head(metadata.metadata_location) is None:
                stores.copy(saved_metadata(resources.root, known), metadata.metadata_location)
            # What the catalog was seen to have under this name passed the gate; a file on top may be a refused commit.
            old = seen.snapshots if key == known.table else ()
            new = (each for each in metadata.snapshots if each not in old)
            summaries = [{"snapshot-id": str(each.snapshot_id), **each.summary.whole()} for each in new]
            # First, so that it stays known who did it, whatever comes between.
            operations.known_tables.undrop(known, operator, why)
            catalog.register(name, metadata.metadata_location, summaries)
            with suppress(PlanStateError):  # A look may have found it by now.
                # Only by its own last state does another name take what is known of a dropped table.
                operations.known_tables.back(known, metadata.metadata_location)
            self.steps.saw(self.steps.state_of(key, known.table_uuid))
            for back in restored:
                if not back.problems:
                    # The table protects them from here on.
                    operations.quarantines.close(back.job_id, operator, f"undrop of {known.table_uuid}")
            worker = replace(self.steps.worker("undrop"), trigger_type="manual", operator=operator)
            noted = Gate(resources).noted(key, {**worker.summary(), OPERATION: "undrop"})
            if noted:
                change = Change(set_properties={COMMIT_PROPERTY: "{}"})
                swaps = resources.swaps(key, known.table_uuid)
                resources.committer(key)(key, lambda _: change, swaps=swaps, lineage=noted)
            undrop_id, at = f"undrop-{uuid4().hex}", metadata.metadata_location
            self.recording.record_expiration(key, known.table_uuid, undrop_id, worker, at, operation="undrop")
            count = sum(back.restored for back in restored)
            step.counts = {"files": files, "restored": count, "missing": len(lost)}
        paths = tuple(each.path for each in lost[:_NAMED])
        return Undropped(key, known.table_uuid, at, metadata.current_snapshot_id, files, count, len(lost), paths)

    def _restore(self, known: KnownTable, who: str, why: str, step: Step) -> list[Undeleted]:
        """Copy what deletions of the dropped table moved into quarantine back to its paths. Return what came of each
        deletion's files, with every problem."""
        resources, done = self.steps.resources, list[Undeleted]()
        for record in resources.operations.quarantines.of_table(known.table_uuid):
            job = self.quarantine.job(record.job_id)
            if job.kind == "dropped" and record.state is not QuarantineState.PURGED:
                again = record.undeleted_at is not None
                with table_lock(resources.operations.engine, record.table_uuid, table=record.table):
                    record = resources.operations.quarantines.undelete(record.job_id, who, why)
                stores, root = resources.live_stores, resources.root
                spark, most = resources.start_spark, float("inf")
                done.append(put_back(spark, stores, root, record, job, again=again, check=step.check, most=most))
        return done

    def _last_state(self, known: KnownTable) -> tuple[TableMetadata, TableMetadata]:
        """Return the metadata of the table's last commit, and of the last that was seen. The catalog may have moved on
        since: then a newer file has the last seen one in its log. Raises MissingFile after a purge."""
        resources, stores = self.steps.resources, self.steps.resources.live_stores
        rules, operations = resources.rules(known.table), resources.operations
        seen = replace(last_metadata(stores, resources.root, known), metadata_location=known.metadata_location)
        # In the spelling that the catalog had.
        folders = (*metadata_locations(seen, rules), known.metadata_location.rpartition("/")[0])
        listed = {normalize(file.path, rules): file.path for folder in folders for file in stores.list(folder)}
        paths = [path for path in listed.values() if kind_by_name(path) == METADATA and ".json" in path]
        around = evidence(stores, seen, paths, rules, operations.table_locations)
        for path in paths:
            if (version_of(path) or 0) > (version_of(seen.metadata_location) or 0):
                described(stores, path)  # It may be the last commit, damaged since: not JSON, it raises.
        # A step that was killed at its swap may have been the last to commit, if nothing has looked since.
        may_be = {
            updated_ms for _, updated_ms in operations.table_locations.attempted(known.table_uuid, known.last_seen)
        }
        attempts = (each.metadata_location for each in around.attempts if each.last_updated_ms in may_be)
        ahead = (*around.newer, *attempts)
        newer = unsettled(stores, ahead, operations.settled_metadata.of_table(known.table_uuid), rules)
        others, other = self._other_lines(known, {normalize(folder, rules) for folder in folders})
        found = [read_table_metadata(stores, path) for path in newer if normalize(path, rules) not in others]
        # Not by time: each writer has its own clock.
        names = {normalize(each.metadata_location, rules) for each in (seen, *found)}
        logs = [{normalize(entry.metadata_file, rules) for entry in each.metadata_log} for each in (seen, *found)]
        last, log = max(zip((seen, *found), logs, strict=True), key=lambda each: len(each[1] & names))
        follows = all(normalize(each.metadata_location, rules) in log for each in (seen, *found) if each != last)
        # Of an attempt of ours, one clock has said it already.
        written = (stores.head(each.metadata_location) for each in found if each.metadata_location in around.newer)
        is_old = any(each and each.last_modified and each.last_modified < known.last_seen for each in written)
        if is_old or not follows or (found and other):
            why = f"were there when it was last seen, at {known.last_seen:%Y-%m-%d %H:%M:%S} UTC"
            why = f"may be of {other}, whose metadata log does not reach back to it" if other else why
            raise Refused(
                f"{len(found)} metadata files are newer than the one that the catalog was last seen to have "
                f"({seen.metadata_location}), and {why if follows else 'do not follow one another'}, e.g. "
                f"{', '.join(each.metadata_location for each in found[:_SHOWN])}",
                table=known.table,
                path=seen.metadata_location,
                untouched="the catalog",
                hint="register the one that was current with an engine (register_table)",
            )
        return last, seen

    def _other_lines(self, known: KnownTable, folders: Set[str]) -> tuple[set[str], str | None]:
        """Return the metadata files of other names of the uuid that the catalog has, as far as their logs reach; and
        one of these names that may have more of them in `folders`, made since this one was last seen."""
        resources, lines, cut = self.steps.resources, set[str](), None
        last = version_of(known.metadata_location) or 0
        for each in resources.operations.known_tables.of_catalog(known.catalog):
            if each.table_uuid == known.table_uuid and each.table != known.table and not each.missing_since:
                rules = resources.rules(each.table)
                current = self.steps.state_of(each.table, each.table_uuid).metadata
                files = (current.metadata_location, *(entry.metadata_file for entry in current.metadata_log))
                lines |= {normalize(path, rules) for path in files}
                is_here = not folders.isdisjoint(metadata_locations(current, rules))
                numbers = [version_of(path) for path in files]
                # Where one has no number, numbers began anew.
                if is_here and (None in numbers or min(filter(None, numbers), default=0) > last + 1):
                    cut = each.table
        return lines, cut


@dataclass(frozen=True)
class _Lost:
    path: str
    why: str
    is_current: bool


def _compared(
    stores: Stores, metadata: TableMetadata, amiss: Callable[[str], str | None], check: Callable[[], None]
) -> tuple[int, list[_Lost]]:
    """Compare every file that the metadata reaches with the store: existence and size, and whether anything is `amiss`
    with its path. Return how many there are, and those that differ, those of the current state first."""
    lost: list[_Lost] = []
    current, files = metadata.current_snapshot, 0

    def read(path: str, call: Callable[[], T]) -> T | None:
        what = amiss(path)
        if what is None:
            try:
                return call()
            except (UnreadableMetadata, StorageError) as error:
                what = error.what
        lost.append(_Lost(path, what, is_current))
        return None

    def compare(paths: pa.Array, sizes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        there, whys = stores.statuses(paths), [amiss(path) for path in paths.to_pylist()]
        differs = np.array([why is not None for why in whys], np.bool_) | ~there.found | (there.sizes != sizes)
        for row in np.flatnonzero(differs).tolist():
            why = f"{there.sizes[row]} bytes, not {sizes[row]}" if there.found[row] else "gone"
            lost.append(_Lost(paths[row].as_py(), whys[row] or why, is_current))
        return len(paths)

    seen: set[str] = set()
    for snapshot in sorted(metadata.snapshots, key=lambda each: each is not current):
        is_current, files = snapshot is current, files + 1
        of_list = read(snapshot.manifest_list or "", lambda one=snapshot: manifests_of(stores, one))  # type: ignore[misc]
        for entry in () if of_list is None else of_list.entries:
            if entry.manifest_path not in seen:
                check()
                seen.add(entry.manifest_path)
                files += 1
                entries = read(entry.manifest_path, lambda one=entry: live_entries(stores, one))  # type: ignore[misc]
                if entries is not None:
                    files += compare(entries.column("file_path"), entries.column("file_size_in_bytes").to_numpy())
    is_current = False
    statistics = metadata.statistics
    paths = pa.array([each.path for each in statistics], pa.string())
    return files + compare(paths, np.array([each.size_in_bytes for each in statistics], np.int64)), lost


def _incomplete(known: KnownTable, lost: list[_Lost]) -> Refused:
    current = [each for each in lost if each.is_current]
    shown = "; ".join(f"{each.path} ({each.why})" for each in current[:_SHOWN])
    return Refused(
        f"{len(current)} files that the table's current state needs are not as its metadata records them ({len(lost)} "
        f"with its history), e.g. {shown}",
        table=known.table,
        path=current[0].path,
        untouched="the catalog; what came back from quarantine stays",
        hint="restore them, e.g. from a backup; or register the table without them: artemis undrop "
        f"{quote(known.table)} --uuid {known.table_uuid} --incomplete --who … --why …",
    )
