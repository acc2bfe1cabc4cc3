"""Where a live path goes in the cold tier, and which cold table belongs to a live table. Pure except for `settle`,
which records the answer once, so that later changes of names or configuration move nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any, Protocol

from artemis_lifecycle.catalogs.identifier import CatalogEntry, parse
from artemis_lifecycle.cold_tier.evolution import SAME_IDS, Ids
from artemis_lifecycle.errors import ExistingFile, HandoffFailed, NoSuchTable, StorageError
from artemis_lifecycle.metadata.table_metadata import metadata_json
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.storage.local.store import ASIDE
from artemis_lifecycle.storage.location import LocationRules, PathParts, normalize, overlap, relative_to, split
from artemis_lifecycle.storage.stores import Stores, is_local

OUTSIDE = "_outside"
"""The folder in a cold table for files from outside the live table's location: `_outside/<scheme>/<authority>/<path>`.
No two tables share a copy: each rewrites delete files and manifests by its own paths."""

REUSED = "_reused"
"""The folder in a cold table for files at a path where an earlier file was archived:
`_reused/<snapshot that added the file>/<scheme>/<authority>/<path>`."""

SPELLED = "_spelled"
"""The folder in a cold table for paths in another spelling (`file:/x` for `file:///x`, `s3a` for `s3`) than that by
which their file has its place: `_spelled/<hash of what differs>/<scheme>/<authority>/<path>`. Iceberg's deletes apply
to a path, letter by letter, so two spellings of one file are two files in cold as they are in live."""

RESTORED = "restored"
"""The subfolder of a live table's location for restored files, with one folder per restore, where only it writes."""

_RESTORED_FILE = re.compile(f"/{RESTORED}/restore-[0-9a-f]{{32}}/")
_TAG = re.compile("[0-9a-f]{16}/")
_DOTS = re.compile(r"(?<=/)\.\.?(?=/|$)")

OWNER = f"{OUTSIDE}/table.json"
"""The file in a cold table's place that says whose place it is: several deployments may have one cold warehouse. No
copy has this path."""

PUBLISHED = f"{OUTSIDE}/published.json"
"""The file there that has the newest metadata file of each of the table's cold tables. No copy has this path."""

UNPLACED = "_tables"
"""The folder in the cold warehouse for tables whose location has no place of the same name there, by table-uuid."""


@dataclass(frozen=True)
class ColdIdentity:
    """One live table's place in the cold tier, decided at its first handoff and permanent. Only `reused` grows (and
    `cold_table` changes where a catalog that was put back gave it to another table): paths
    with another file than the one that was archived first, as (path, snapshot that added it, its sequence number),
    oldest first.

    Paths in the table's location keep their relative place in the cold table's. `rules` say which paths are equal.
    """

    table_uuid: str
    live_table: str
    cold_table: str
    cold_warehouse: str
    live_location: str
    cold_location: str
    rules: LocationRules
    reused: tuple[tuple[str, int, int], ...] = ()

    def to_json(self) -> bytes:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "rules"}
        rules = {"schemes": dict(self.rules.equal_schemes), "authorities": dict(self.rules.equal_authorities)}
        return json.dumps({**values, "rules": rules}, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, path: str) -> ColdIdentity:
        """Raises StorageError for bytes that `to_json` did not write."""
        try:
            values: dict[str, Any] = json.loads(data)
            rules = values.pop("rules")
            values["reused"] = tuple((path, added_by, number) for path, added_by, number in values.get("reused", ()))
            return cls(**values, rules=LocationRules(rules["schemes"], rules["authorities"]))
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(
                f"The record of a table's place in the cold tier is damaged: {error}",
                path=path,
                untouched="both tiers",
                hint="restore the file; the cold table's paths depend on it",
            ) from error


class Undecidable(HandoffFailed):
    """A path was used for several files, and which one is meant is unknown."""


class Placing(Protocol):
    """Maps a path of one tier to the other, as a picklable function of the path alone. `rules` say which paths are
    equal."""

    @property
    def rules(self) -> LocationRules: ...

    @property
    def ids(self) -> Ids:
        """The other tier's ids of schemas, specs and orders."""

    def __call__(self, path: str) -> str:
        """Return the path in the other tier. Raises HandoffFailed if it cannot have one."""

    def used(self, path: str, added_by: int | None) -> str:
        """Return the path in the other tier of the file that this snapshot added at `path`."""

    def meant(self, path: str, deleted_by: int | None) -> str:
        """Return the path in the other tier of the file at `path` of which this snapshot deleted rows."""


class PathMapping:
    """Maps a live path to its cold path, as a picklable function of the path alone. Different paths never have the same
    cold path, even if they name one file.

    `sequences` are the sequence numbers of the table's snapshots, by id; only `meant` needs them. Raises HandoffFailed
    for a relative path, and for one with the name of a disk's archive.
    """

    def __init__(self, identity: ColdIdentity, ids: Ids = SAME_IDS, sequences: Mapping[int, int] | None = None) -> None:
        self.identity = identity
        self.ids = ids
        self.sequences = sequences or {}
        self._reused: dict[str, dict[int, int]] = {}
        for path, added_by, sequence in identity.reused:
            self._reused.setdefault(path, {})[added_by] = sequence
        self._root, self._target = identity.live_location.rstrip("/"), identity.cold_location.rstrip("/")
        self._on_disk = is_local(self._target)
        self._reserved = tuple(f"{identity.cold_location}/{folder}/" for folder in (OUTSIDE, REUSED, SPELLED))

    @property
    def rules(self) -> LocationRules:
        return self.identity.rules

    @property
    def spelled(self) -> str:
        """The folder of everything whose path is not spelled like its place (SPELLED)."""
        return self._reserved[2]

    def spelled_location(self, place: str) -> str:
        """Return the location of the live file whose copy is at a place under `spelled`."""
        first, _, rest = place.removeprefix(self.spelled).partition("/")
        if first.isdecimal() and _TAG.match(rest):
            rest = rest.partition("/")[2]
        scheme, authority, path = rest.split("/", 2)
        return normalize(f"{scheme}://{'' if authority == '_' else authority}/{path}", self.rules)

    def __call__(self, path: str) -> str:
        if path.startswith(self._root + "/") and self.plain(path) == path and not self._is_odd(path):
            mirrored = self._target + path[len(self._root) :]
            # A live folder with exactly that name must not be confused with files from outside.
            if not mirrored.startswith(self._reserved):
                return mirrored
        return self._aside(path, self._reserved[0])

    def plain(self, path: str) -> str:
        """Return the spelling of the same location by which its file has its place: in the root as the root is spelled,
        elsewhere the location itself."""
        if path.startswith(self._root + "/") and _plain(path[len(self._root) + 1 :]):
            return path
        location, rest = self._split(path)
        spelled = f"{location.scheme}://{location.authority}{rest}"
        if relative_to(spelled, self._root, self.rules) is None:
            return spelled
        root = split(self._root).path.rstrip("/")
        if location.scheme == "file":
            root = split(normalize(self._root, self.rules)).path.rstrip("/")
        return self._root + rest[len(root) :] if rest.startswith(root + "/") else spelled

    def used(self, path: str, added_by: int | None) -> str:
        return self._again(path, added_by) if added_by in self._versions(path) else self(path)

    def meant(self, path: str, deleted_by: int | None) -> str:
        versions = self._versions(path)
        if not versions:
            return self(path)
        until = None if deleted_by is None else self.sequences.get(deleted_by)
        if until is None:
            raise Undecidable(
                f"Several files were at this path, and the sequence number of snapshot {deleted_by} is unknown, so it "
                "cannot be decided of which one it deleted rows",
                path=path,
                untouched="both tiers",
                hint="approve the loss of the snapshots that read it, or keep them",
            )
        newest = max((each for each in versions if versions[each] <= until), key=versions.__getitem__, default=None)
        return self.used(path, newest)

    def places(self, path: str) -> tuple[str, ...]:
        """Return the places of all files that were archived from `path`, oldest first."""
        return self(path), *(self._again(path, added_by) for added_by in self._versions(path))

    def _versions(self, path: str) -> Mapping[int, int]:
        return self._reused.get(path, {}) if self._reused else {}

    def _again(self, path: str, added_by: int | None) -> str:
        return self._aside(path, self._reserved[1], f"{added_by}/")

    def _aside(self, path: str, folder: str, use: str = "") -> str:
        location, rest = self._split(path)
        place = f"{location.scheme}/{location.authority or '_'}{_DOTS.sub('%2E', rest)}"
        odd = self._is_odd(rest)
        if not odd and self.plain(path) == path:
            return f"{folder}{use}{place}"
        differs = path if odd else path.removesuffix(rest)
        return f"{self.spelled}{use}{hashlib.sha256(differs.encode()).hexdigest()[:16]}/{place}"

    def _is_odd(self, path: str) -> bool:
        """Return True if the path of an object could share its place with others: a//b is a/b on a disk. One with . or
        .. as a name is never copied (`ambiguity`)."""
        rest = split(path).path
        return (self._on_disk and "//" in rest) or _DOTS.search(rest) is not None

    def _split(self, path: str) -> tuple[PathParts, str]:
        """Return the location's parts, and the path in its store: S3 distinguishes a//b from a/b."""
        location = split(normalize(path, self.rules))
        if not location.scheme:
            raise _unplaceable("The path is relative", path)
        rest = location.path if location.scheme == "file" else split(path).path
        if rest in ("", "/"):
            raise _unplaceable("The path has no name", path)
        if self._on_disk and ASIDE in rest.split("/"):
            raise _unplaceable(f"The path has {ASIDE} as a name, where a disk keeps its archived files", path)
        return location, rest


def _plain(rest: str) -> bool:
    return bool(rest) and "//" not in rest and not rest.startswith(("/", ".")) and "/." not in rest


def _unplaceable(what: str, path: str) -> HandoffFailed:
    return HandoffFailed(
        f"{what}, so it has no place in the cold tier",
        path=path,
        untouched="the table and all its files",
        hint="rewrite the table's files under plain paths, then plan again",
    )


def written_location(metadata: TableMetadata, rules: LocationRules) -> str:
    """Return the table's location as its newest manifest list spells it: Hadoop writes `file:/x` in a table at
    `file:///x`. Most paths begin like that, and have their places by their letters."""
    location = metadata.location.rstrip("/")
    for snapshot in sorted(metadata.snapshots, key=lambda each: -each.timestamp_ms):
        path = snapshot.manifest_list or ""
        relative = relative_to(path, location, rules)
        if relative is not None and path.endswith(f"/{relative}"):
            return path.removesuffix(f"/{relative}")
    return location


def place(
    *,
    table: str,
    table_uuid: str,
    live_location: str,
    live_warehouse: str,
    cold_warehouse: str,
    rules: LocationRules,
    is_taken: Callable[[str], bool],
    cold_locations: Iterable[str],
) -> ColdIdentity:
    """Choose the place of a table that has none yet.

    `is_taken` says whether the cold catalog has an entry of a name with another table-uuid. `cold_locations` are those
    of all other tables. If one equals or nests with the mirrored place, that table keeps it, and this table gets a
    place by its uuid (`by_uuid`).
    """
    suffix = free_suffix(table, table_uuid, is_taken)
    cold_warehouse, live_location = cold_warehouse.rstrip("/"), live_location.rstrip("/")
    relative = relative_to(live_location, live_warehouse, rules)
    cold_location = f"{cold_warehouse}/{relative}{suffix}"
    if relative is None or any(overlap(cold_location, other, rules) for other in cold_locations):
        cold_location = by_uuid(cold_warehouse, table_uuid)
    return ColdIdentity(
        table_uuid=table_uuid,
        live_table=table,
        cold_table=str(parse(table).suffixed(suffix)) if suffix else table,
        cold_warehouse=cold_warehouse,
        live_location=live_location,
        cold_location=cold_location,
        rules=rules,
    )


def by_uuid(cold_warehouse: str, table_uuid: str) -> str:
    return f"{cold_warehouse}/{UNPLACED}/{table_uuid}"


def claim(stores: Stores, identity: ColdIdentity, *, dry_run: bool = False) -> bool:
    """Mark the place in the cold store as this table's. Return False if it is another's, by its mark or, without one,
    by the archive that is there. `dry_run` marks nothing."""
    path = f"{identity.cold_location}/{OWNER}"
    location = normalize(identity.live_location, identity.rules)
    own = json.dumps({"live_location": location, "table_uuid": identity.table_uuid}, indent=1).encode()
    if stores.head(path) is None:
        listed = (each.path for each in stores.list(f"{identity.cold_location}/metadata"))
        files = (each for each in listed if each.endswith(".metadata.json"))
        uuids = (metadata_json(stores.read(each), each, stores.limits).get("table-uuid") for each in files)
        # Of an archive of this table, one file is enough.
        is_anothers = next(uuids, identity.table_uuid) != identity.table_uuid and identity.table_uuid not in uuids
        if is_anothers or dry_run:
            return not is_anothers
        with suppress(ExistingFile):
            stores.write(path, own)
    return stores.read(path) == own


def free_suffix(name: str, table_uuid: str, is_taken: Callable[[str], bool]) -> str:
    """Return what sets a name apart from taken ones: nothing, the uuid's first digits (of version 7: its time, which
    another table may share), or all of it."""
    tried = ("", f"__{table_uuid[:8]}", f"__{table_uuid}")
    return next((each for each in tried if not is_taken(str(parse(name).suffixed(each)))), tried[-1])


def is_restored(path: str) -> bool:
    """Return True if a live file was written by a restore: once, for all uses that entries of its snapshot name."""
    return _RESTORED_FILE.search(path) is not None


def identity_path(root: str, table_uuid: str) -> str:
    """Return the path, under `operations.root`, of the record of a table's place."""
    return f"{root}/cold/{table_uuid}/table.json"


def read_identity(stores: Stores, root: str, table_uuid: str) -> ColdIdentity | None:
    """Return the table's recorded place; None before its first handoff. Raises StorageError if the record is
    damaged."""
    path = identity_path(root, table_uuid)
    return None if stores.head(path) is None else ColdIdentity.from_json(stores.read(path), path)


def record_published(stores: Stores, path: str, published: Mapping[str, str]) -> None:
    """Record the metadata files of cold tables that a handoff published, by name, in the file `published_path`, or
    beside the copies (`PUBLISHED`), where no backup of a database takes it back. The caller holds the table's lease."""
    known = read_published(stores, path)
    # One under its former name is the same table.
    others = {name: location for name, location in known.items() if location not in published.values()}
    if {**others, **published} != known:
        data = json.dumps({**others, **published}, indent=1, sort_keys=True).encode()
        stores.write(path, data, overwrite=True)


def read_published(stores: Stores, path: str) -> dict[str, str]:
    """Return what `record_published` recorded last. Raises StorageError if it is damaged."""
    if stores.head(path) is None:
        return {}
    try:
        return dict(json.loads(stores.read(path)))
    except (ValueError, TypeError) as error:
        raise StorageError(
            f"The record of a cold table's newest metadata file is damaged: {error}",
            path=path,
            untouched="both tiers",
            hint="remove that file: the next handoff writes it again",
        ) from error


def published_path(root: str, table_uuid: str) -> str:
    return f"{root}/cold/{table_uuid}/published.json"


def record_reused(
    stores: Stores, root: str, identity: ColdIdentity, reused: Iterable[tuple[str, int, int]]
) -> ColdIdentity:
    """Record more files at paths where others were archived. The caller holds the table's lease."""
    return record_identity(stores, root, replace(identity, reused=(*identity.reused, *reused)))


def record_identity(stores: Stores, root: str, identity: ColdIdentity) -> ColdIdentity:
    stores.write(identity_path(root, identity.table_uuid), identity.to_json(), overwrite=True)
    return identity


def identities(stores: Stores, root: str) -> list[ColdIdentity]:
    """Return the recorded places of all tables."""
    folders, _ = stores.children(f"{root}/cold")
    found = (read_identity(stores, root, folder.rstrip("/").rpartition("/")[2]) for folder in folders)
    return [identity for identity in found if identity is not None]


def no_cold_table(table: str) -> NoSuchTable:
    """Return the error for a table without the record of a handoff."""
    return NoSuchTable(
        "Nothing says that the table has a cold table: it was not handed off yet, or <operations.root>/cold is lost",
        table=table,
        untouched="all files",
        hint="the first handoff creates one (artemis hand-off PLAN); after a loss, restore that folder from a backup",
    )


def recovering(table: str) -> str:
    """Return the command that publishes a table's archive again."""
    return f"artemis recover-archive {quote(table)} --who WHO --why WHY"


def settle(
    stores: Stores, root: str, table_uuid: str, choose: Callable[[list[str]], ColdIdentity], *, dry_run: bool = False
) -> ColdIdentity:
    """Return the table's place: the recorded one, else the result of `choose` for the cold locations that are already
    taken.

    Of two concurrent callers, the first one decides, and both get the same answer. `dry_run` records nothing.
    """
    known = read_identity(stores, root, table_uuid)
    if known is not None:
        return known
    chosen = choose([other.cold_location for other in identities(stores, root)])
    if dry_run:
        return chosen
    path = identity_path(root, table_uuid)
    try:
        stores.write(path, chosen.to_json())
    except ExistingFile:
        return ColdIdentity.from_json(stores.read(path), path)
    return chosen


def is_archive(stores: Stores, root: str, name: str, row: CatalogEntry | None) -> bool:
    """Return True if a handoff published what the cold catalog has as `name`: all its files are in its own place. What
    somebody registered could reach any."""
    at = "" if row is None else row.metadata_location
    known = ((each.cold_location, published_path(root, each.table_uuid)) for each in identities(stores, root))
    return any(at.startswith(f"{own}/") and read_published(stores, path).get(name) == at for own, path in known)
