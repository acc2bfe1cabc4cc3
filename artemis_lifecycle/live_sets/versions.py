"""All live versions of one table as one table: a metadata file that has what each of their metadata files has.

Branches of a catalog write to one table from several metadata files. Protection, the manifest index and the orphan scan
know tables as one metadata file. So what must stay is written as one: the snapshots of every live version, its metadata
files, statistics and partition specs. No reader of the catalog sees that file. Schemas, specs and sort orders of the
live versions stay where they are: nothing here changes a table's own metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from artemis_lifecycle.catalogs.references import VIEW
from artemis_lifecycle.errors import ExistingFile, UnreadableMetadata
from artemis_lifecycle.metadata.kinds import NAMED_BY_SNAPSHOT
from artemis_lifecycle.metadata.table_metadata import metadata_json, parse_table_metadata, refuse_encrypted
from artemis_lifecycle.metadata.unreadable import read_file
from artemis_lifecycle.operations.live_sets import NO_SNAPSHOT, LiveVersion, Snapshots
from artemis_lifecycle.protection.ownership import spelled_locations
from artemis_lifecycle.storage.stores import Stores


@dataclass(frozen=True)
class VersionMetadata:
    """One metadata file: as JSON, its table's uuid, and the locations that it gives the table."""

    location: str
    node: Mapping[str, Any]
    table_uuid: str
    locations: tuple[str, ...]


class FilesOfVersions(Protocol):
    """Reads the metadata file of a live version, from which everything else that it needs is found."""

    def __call__(self, metadata_location: str) -> VersionMetadata:
        """Raises UnreadableMetadata for a file that is missing or damaged: it never means "no files"."""


def version_metadata(stores: Stores, metadata_location: str) -> VersionMetadata:
    """Read a metadata file. Raises UnreadableMetadata; EncryptedTable."""
    data = read_file(stores, metadata_location)
    metadata = parse_table_metadata(data, metadata_location, stores.limits)
    refuse_encrypted(metadata)
    node = metadata_json(data, metadata_location, stores.limits)
    return VersionMetadata(metadata_location, node, metadata.table_uuid, spelled_locations(metadata))


@dataclass
class MergedTable:
    """The live versions of one table, so far. Add versions with `add`, and read the result as `data`."""

    table_uuid: str
    snapshots: Snapshots
    locations: dict[str, None] = field(default_factory=dict)
    _base: Mapping[str, Any] = field(default_factory=dict)
    _current: int | None = None
    _snapshots: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    _files: dict[str, dict[str, Mapping[str, Any]]] = field(
        default_factory=lambda: {key: {} for key in NAMED_BY_SNAPSHOT}
    )
    _specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _log: dict[str, int] = field(default_factory=dict)

    def add(self, version: VersionMetadata, snapshot_ids: Iterable[int]) -> None:
        """Add one metadata file, of which references show these snapshots. With `snapshots: all`, all of its snapshots
        stay, and the files of its metadata log; with `referenced`, only those that references show.

        Raises UnreadableMetadata if it lacks a snapshot that a reference shows, or if two versions have different
        snapshots under one id.
        """
        node, shown = version.node, set(snapshot_ids)
        has = {each["snapshot-id"]: each for each in node.get("snapshots") or ()}
        if NO_SNAPSHOT in shown:
            # Nessie's client then reads the current snapshot of the metadata file, if it has one.
            shown = (shown - {NO_SNAPSHOT}) | {each for each in has if each == node.get("current-snapshot-id")}
        if not shown <= has.keys():
            raise _unusable(
                f"A reference shows snapshot {min(shown - has.keys())}, which the metadata file does not have",
                version.location,
            )
        is_all = self.snapshots == "all"
        self._add(version, has if is_all else {each: has[each] for each in shown}, with_log=is_all)
        self._log[version.location] = node["last-updated-ms"]
        if not self._base or _rank(node) > _rank(self._base):
            self._base = {key: value for key, value in node.items() if key not in ("snapshots", "metadata-log")}
            current = node.get("current-snapshot-id")
            if shown and current not in shown:
                # Nessie's client makes the content's snapshot the current one.
                current = min(shown)
            self._current = current if current in self._snapshots else None

    def include(self, merged: VersionMetadata) -> None:
        """Add what an earlier `data` of the table has."""
        has = {each["snapshot-id"]: each for each in merged.node["snapshots"]}
        self._add(merged, has, with_log=True)

    def _add(self, version: VersionMetadata, snapshots: Mapping[int, Mapping[str, Any]], *, with_log: bool) -> None:
        node = version.node
        for snapshot_id, snapshot in snapshots.items():
            known = self._snapshots.setdefault(snapshot_id, snapshot)
            if any(known.get(key) != snapshot.get(key) for key in ("manifest-list", "manifests")):
                raise _unusable(
                    f"Two live versions have different snapshots under the id {snapshot_id}", version.location
                )
        for key in NAMED_BY_SNAPSHOT:
            # Those of dropped snapshots stay too: nothing says which reader still opens them (nessie 9879).
            self._files[key] |= {each["statistics-path"]: each for each in node.get(key) or ()}
        for spec in node.get("partition-specs") or [{"fields": node.get("partition-spec") or []}]:
            self._specs.setdefault(json.dumps(spec.get("fields", []), sort_keys=True), spec)
        if with_log:
            self._log |= {each["metadata-file"]: each["timestamp-ms"] for each in node.get("metadata-log") or ()}
        self.locations |= dict.fromkeys(version.locations)

    def data(self) -> bytes:
        """Return the metadata file. The same versions give the same bytes."""
        base = dict(self._base)
        snapshots = sorted(self._snapshots.values(), key=_order)
        refs = {
            name: ref for name, ref in (base.get("refs") or {}).items() if ref.get("snapshot-id") in self._snapshots
        }
        refs.pop("main", None)
        if self._current is not None:
            refs["main"] = {"snapshot-id": self._current, "type": "branch"}
        log = [each for each in base.get("snapshot-log") or () if each["snapshot-id"] in self._snapshots]
        numbers = [each.get("sequence-number", 0) for each in snapshots]
        # Only names of partition fields are read from specs here, and two branches may have used one id.
        specs = [{**spec, "spec-id": number} for number, (_, spec) in enumerate(sorted(self._specs.items()))]
        # Nessie's client sets it on each table, against Iceberg's own collectors, which see one reference at a time.
        properties = {key: value for key, value in (base.get("properties") or {}).items() if key != "gc.enabled"}
        base |= {
            "snapshots": snapshots,
            "current-snapshot-id": -1 if self._current is None else self._current,
            "refs": refs,
            "snapshot-log": log,
            "metadata-log": [
                {"metadata-file": path, "timestamp-ms": at}
                for path, at in sorted(self._log.items(), key=lambda item: (item[1], item[0]))
            ],
            "last-sequence-number": max([base.get("last-sequence-number", 0), *numbers]),
            "partition-specs": specs,
            "default-spec-id": 0,
            "properties": properties,
            **{key: [files[path] for path in sorted(files)] for key, files in self._files.items()},
        }
        return json.dumps(base, sort_keys=True).encode()

    def write(self, stores: Stores, folder: str) -> str:
        """Store the file below `folder`, and return its path. A file that is there already has the same content."""
        data = self.data()
        path = f"{folder}/{self.table_uuid}/{hashlib.sha256(data).hexdigest()[:32]}.metadata.json"
        with suppress(ExistingFile):
            stores.write(path, data)
        return path


def _unusable(what: str, path: str) -> UnreadableMetadata:
    return UnreadableMetadata(
        what,
        path=path,
        untouched="all files",
        hint="find out who wrote the file; nothing of this catalog is deleted meanwhile",
    )


def _order(snapshot: Mapping[str, Any]) -> tuple[int, int, int]:
    return snapshot.get("sequence-number", 0), snapshot["timestamp-ms"], snapshot["snapshot-id"]


def _rank(node: Mapping[str, Any]) -> tuple[int, int, str]:
    return node["format-version"], node["last-updated-ms"], str(node.get("current-snapshot-id"))


def merged_tables(
    read: FilesOfVersions, versions: Iterable[LiveVersion], snapshots: Snapshots
) -> dict[str, tuple[str, MergedTable]]:
    """Return the tables of these versions, by uuid, each with the first content that has it. Views are left out: they
    have no data files.

    Reads each metadata file once. Raises UnreadableMetadata for any that is missing or damaged.
    """
    shown: dict[tuple[str, str], list[int]] = {}
    for version in versions:
        if version.type != VIEW:
            shown.setdefault((version.content_id, version.metadata_location), []).append(version.snapshot_id)
    found: dict[str, tuple[str, MergedTable]] = {}
    for (content_id, location), snapshot_ids in shown.items():
        metadata = read(location)
        _, table = found.setdefault(metadata.table_uuid, (content_id, MergedTable(metadata.table_uuid, snapshots)))
        table.add(metadata, snapshot_ids)
    return found
