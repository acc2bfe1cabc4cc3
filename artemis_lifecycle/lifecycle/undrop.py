"""Undrop: register a dropped table again, in its last state, once everything that this state reaches is there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from shlex import quote

import numpy as np

from artemis_lifecycle.catalogs.commit import Change, commit_with_retry
from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.contracts.summary import COMMIT_PROPERTY, OPERATION
from artemis_lifecycle.deletion.quarantine import put_back
from artemis_lifecycle.errors import BadInput, NotApplicable, Refused, StorageError, UnreadableMetadata
from artemis_lifecycle.lifecycle.dropped import DroppedTables
from artemis_lifecycle.lifecycle.gate import Gate
from artemis_lifecycle.lifecycle.lineage import Recording
from artemis_lifecycle.lifecycle.quarantine import Quarantine
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.lifecycle.steps import Step, Steps
from artemis_lifecycle.metadata.manifest_lists import manifests_of
from artemis_lifecycle.metadata.manifests import live_entries
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.decisions import person
from artemis_lifecycle.operations.known_tables import KnownTable
from artemis_lifecycle.operations.locks import table_lock
from artemis_lifecycle.operations.quarantines import QuarantineState
from artemis_lifecycle.operations.texts import require_said
from artemis_lifecycle.orphans.dropped import last_metadata
from artemis_lifecycle.protection.absence import saved_metadata
from artemis_lifecycle.protection.future import evidence
from artemis_lifecycle.protection.ownership import metadata_locations
from artemis_lifecycle.storage.location import normalize
from artemis_lifecycle.storage.stores import Stores

_SHOWN = 3
_NAMED = 1_000


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
class _Lost:
    path: str
    why: str
    is_current: bool


@dataclass(frozen=True)
class Undrop:
    """Registers dropped tables again."""

    resources: Resources
    steps: Steps
    dropped: DroppedTables
    quarantine: Quarantine
    recording: Recording

    def undrop(
        self,
        table: str,
        table_uuid: str | None,
        as_name: str | None,
        *,
        metadata_location: str | None,
        incomplete: bool,
        who: str | None,
        why: str,
    ) -> Undropped:
        resources, catalog = self.resources, self.resources.live_catalog
        if any(resources.other(each) is not None for each in (table, as_name or table)):
            raise NotApplicable(
                "Only tables of the live catalog can be registered again", table=table, hint="use its own client"
            )
        operator = who or person()
        if incomplete:
            require_said(table, who=who or "", why=why)
        known = self.dropped.missing(table, table_uuid=table_uuid)
        name = parse(as_name or known.table)
        self._require_free(str(name), known)
        state, absence = self.dropped.lost(known)
        with self.steps.run(state, "undrop", pausable=False) as step:
            with table_lock(resources.operations.engine, known.table_uuid, table=known.table):
                # From now on no deletion of its files begins, or goes on.
                resources.operations.scans.close_dropped(known.table_uuid)
            restored = self._restore(known, operator, why or "undrop", step)
            metadata = self._last_state(known, metadata_location)
            files, lost = _compared(resources.live_stores, metadata, step.check)
            if any(each.is_current for each in lost) and not incomplete:
                raise _incomplete(known, lost)
            absence.require()
            self._require_free(str(name), known)
            if resources.live_stores.head(metadata.metadata_location) is None:
                resources.live_stores.copy(saved_metadata(resources.root, known), metadata.metadata_location)
            catalog.register(name, metadata.metadata_location)
            registered = self.steps.table_state(str(name))
            self.steps.require_same(registered, known.table_uuid)
            resources.operations.known_tables.undrop(known.catalog, known.table_uuid, operator, why)
            self.steps.saw(registered)
            for each in restored:
                # Its metadata protects them from here on.
                resources.operations.quarantines.close(each, operator, f"undrop of {known.table_uuid}")
            worker = replace(self.steps.worker("undrop"), trigger_type="manual", operator=operator)
            noted = Gate(resources).noted(str(name), {**worker.summary(), OPERATION: "undrop"})
            if noted:
                commit_with_retry(
                    resources.spark,
                    catalog.name,
                    str(name),
                    lambda base: Change(set_properties={COMMIT_PROPERTY: "{}"}),
                    before_swap=resources.operations.table_locations.attempts_of(known.table_uuid),
                    lineage=noted,
                )
            self.recording.record_expiration(
                str(name),
                known.table_uuid,
                f"undrop-{uuid.uuid4().hex}",
                worker,
                metadata.metadata_location,
                operation="undrop",
            )
            count = sum(restored.values())
            step.counts = {"files": files, "restored": count, "missing": len(lost)}
        return Undropped(
            table=str(name),
            table_uuid=known.table_uuid,
            metadata_location=metadata.metadata_location,
            snapshot_id=metadata.current_snapshot_id,
            files=files,
            restored=count,
            missing=len(lost),
            missing_files=tuple(each.path for each in lost[:_NAMED]),
        )

    def _require_free(self, name: str, known: KnownTable) -> None:
        kind = self.resources.live_catalog.kind_of(parse(name))
        if kind is not None:
            raise Refused(
                f"The catalog has a {kind} with the name {name}",
                table=known.table,
                untouched="the catalog and all files",
                hint=f"choose another name: artemis undrop {known.table_uuid} --as namespace.name",
            )

    def _restore(self, known: KnownTable, who: str, why: str, step: Step) -> dict[str, int]:
        """Copy what deletions of the dropped table moved into quarantine back to its paths. Return the number of files
        by job."""
        resources, done = self.resources, dict[str, int]()
        for record in resources.operations.quarantines.of_table(known.table_uuid):
            job = self.quarantine.job(record.job_id)
            if job.kind != "dropped" or record.state in (QuarantineState.PURGING, QuarantineState.PURGED):
                continue
            with table_lock(resources.operations.engine, record.table_uuid, table=record.table):
                record = resources.operations.quarantines.undelete(record.job_id, who, why)
            stores, root = resources.live_stores, resources.root
            back = put_back(resources.start_spark, stores, root, record, job, check=step.check)
            done[record.job_id] = back.restored
        return done

    def _last_state(self, known: KnownTable, chosen: str | None) -> TableMetadata:
        """Return the metadata of the table's last commit, or of the file that a person chose. The catalog may have
        moved on after it was seen last: then a newer file has the last seen one in its log."""
        resources, stores, rules = self.resources, self.resources.live_stores, self.resources.rules(known.table)
        if chosen is None:
            saved = last_metadata(stores, resources.root, known)  # Raises MissingFile after a purge.
            seen = replace(saved, metadata_location=known.metadata_location)
        else:
            seen = read_table_metadata(stores, chosen)
        if seen.table_uuid != known.table_uuid:
            raise BadInput(
                f"The metadata file is of table {seen.table_uuid}, not {known.table_uuid}",
                table=known.table,
                path=seen.metadata_location,
                untouched="the catalog",
                hint="choose one of the dropped table's own",
            )
        if chosen is not None:
            return seen
        # In the spelling that the catalog had.
        folders = (known.metadata_location.rpartition("/")[0], *metadata_locations(seen, rules))
        listed = (file.path for folder in folders for file in stores.list(folder))
        named = (path for path in listed if path.endswith((".metadata.json", ".metadata.json.gz")))
        paths = list({normalize(path, rules): path for path in reversed(list(named))}.values())
        newer = evidence(stores, seen, paths, rules, resources.operations.table_locations).newer
        settled = resources.operations.settled_metadata.of_table(known.table_uuid)
        found = [read_table_metadata(stores, path) for path in newer if normalize(path, rules) not in settled]
        if not found:
            return seen
        last = max(found, key=lambda each: (each.last_updated_ms, len(each.metadata_log)))
        log = {normalize(entry.metadata_file, rules) for entry in last.metadata_log}
        wanted = {normalize(each.metadata_location, rules) for each in (seen, *found) if each is not last}
        if not wanted.issubset(log):
            raise Refused(
                f"{len(found)} metadata files are newer than the one that the catalog was last seen to have, and do "
                f"not follow one another, e.g. {', '.join(newer[:_SHOWN])}",
                table=known.table,
                path=seen.metadata_location,
                untouched="the catalog",
                hint="choose the one that was current: artemis undrop … --metadata FILE",
            )
        return last


def _compared(stores: Stores, metadata: TableMetadata, check: Callable[[], None]) -> tuple[int, list[_Lost]]:
    """Compare every file that the metadata reaches with the store: existence and size. Return how many there are, and
    those that differ, those of the current state first."""
    count, lost = 0, list[_Lost]()
    for found in _checks(stores, metadata):
        check()
        count += found[0]
        lost += found[1]
    return count, sorted(lost, key=lambda each: not each.is_current)


def _checks(stores: Stores, metadata: TableMetadata) -> Iterator[tuple[int, list[_Lost]]]:
    seen: set[str] = set()
    current = metadata.current_snapshot
    for snapshot in sorted(metadata.snapshots, key=lambda each: each is not current):
        is_current = snapshot is current
        try:
            entries = manifests_of(stores, snapshot).entries
        except (UnreadableMetadata, StorageError) as error:
            yield 1, [_Lost(snapshot.manifest_list or metadata.metadata_location, error.what, is_current)]
            continue
        yield int(snapshot.manifest_list is not None), []
        for entry in entries:
            if entry.manifest_path in seen:
                continue
            seen.add(entry.manifest_path)
            try:
                files = live_entries(stores, entry)
            except (UnreadableMetadata, StorageError) as error:
                yield 1, [_Lost(entry.manifest_path, error.what, is_current)]
                continue
            paths, sizes = files.column("file_path"), files.column("file_size_in_bytes").to_numpy()
            there = stores.statuses(paths)
            wrong = np.flatnonzero(~there.found | (there.sizes != sizes)).tolist()
            yield (
                1 + len(paths),
                [
                    _Lost(
                        paths[row].as_py(),
                        f"{there.sizes[row]} bytes, not {sizes[row]}" if there.found[row] else "gone",
                        is_current,
                    )
                    for row in wrong
                ],
            )
    for file in metadata.statistics:
        head = stores.head(file.path)
        same = head is not None and head.size_in_bytes == file.size_in_bytes
        yield 1, [] if same else [_Lost(file.path, "gone or of another size", False)]


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
