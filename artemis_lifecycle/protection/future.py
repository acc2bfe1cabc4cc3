"""Detects that the catalog's pointer is not the newest: later metadata files of the same table exist, for example
because the catalog was restored from a backup. To an orphan scan, everything that the lost commits wrote looks like
garbage. Also detects tables that no known catalog has: metadata files with another uuid below the table's location."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from posixpath import normpath
from shlex import quote
from urllib.parse import unquote

from artemis_lifecycle.errors import LifecycleError, MissingFile, StaleMetadata, StorageError, UnreadableMetadata
from artemis_lifecycle.metadata.table_metadata import Described, described, read_table_metadata
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.known_tables import TableLocations
from artemis_lifecycle.protection.ownership import is_root, metadata_locations
from artemis_lifecycle.storage.location import LocationRules, is_under, normalize, parent, split
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

# --- other formats ----------------------------------------------------------------------------------------------------
# Tables of other formats in a table's folders: Delta's `_delta_log`, Hudi's `.hoodie` and Paimon's `snapshot` name
# files that no Iceberg metadata names. Where there is any doubt about a log, its whole folder is somebody's.

DELTA_LOG = "_delta_log"
_HUDI = ".hoodie"
_PAIMON = {"snapshot": re.compile(r"snapshot-\d+\Z"), "schema": re.compile(r"schema-\d+\Z")}
_COMMIT = re.compile(r"\d{20}\.json\Z")
_SAYS_NO_MORE = re.compile(r"_last_checkpoint\Z|\d{20}\.checkpoint(\.[\w.-]+)?\.parquet\Z|.*\.crc\Z")
"""What a log has besides its commits: while every commit is there, it names no other files."""
_LAST_CHECKPOINT = "_last_checkpoint"
_NUMBER = re.compile(r"\d{20}")
_NAMES_NONE = ("metaData", "protocol", "txn", "commitInfo", "domainMetadata")
_PARTITION = re.compile(r"[01]+\Z|.*=")
"""Folders of a partition, or of Iceberg's object storage layout: no table begins below one."""
_LISTED, _ASKED = 5_000, 100
"""How many entries of each location are listed, and how many folders among them are asked for a log: before each batch,
whatever the table's size."""
_READERS = 8


def possible_roots(folders: Iterable[str], own: Sequence[str], around: Sequence[str], rules: LocationRules) -> set[str]:
    """Return the folders in which a log would concern files of `folders`: these and those above them, inside the
    table's `own` locations, and above these inside `around`."""
    found: set[str] = set()
    for folder in (*own, *folders):
        root = max((each for each in own if folder.startswith(f"{each}/")), key=len, default=folder)
        below = folder[len(root) :].split("/")
        is_log = [part in (DELTA_LOG, _HUDI) for part in below]
        ends = is_log if any(is_log) else [_PARTITION.match(part) is not None for part in below]
        place = root + "/".join(below[: ends.index(True)] if any(ends) else below)
        while place not in found and not is_root(place):
            if not any(is_under(f"{place}/x", each, rules) for each in (*own, *around)):
                break
            found.add(place)
            place = parent(place)
    return found


def claims(stores: Stores, roots: Iterable[str], own: Iterable[str] = ()) -> dict[str, frozenset[str] | None]:
    """Return the paths that the log in each of these folders, or in one directly below the `own` locations, names; None
    if the whole folder is claimed. Folders without a log are left out. Raises StorageError."""
    ordered = sorted({*roots, *(folder for each in own for folder in _directly_below(stores, each))})
    others = threaded(
        lambda root: _has_files(stores, f"{root}/{_HUDI}") or _is_paimons(stores, root), ordered, _READERS
    )
    logs = threaded(lambda root: _has_files(stores, f"{root}/{DELTA_LOG}"), ordered, _READERS)
    return {
        root: None if other else _named(stores, root)
        for root, other, log in zip(ordered, others, logs, strict=True)
        if other or log
    }


def _directly_below(stores: Stores, location: str) -> list[str]:
    """Return the folders in which a table of another format may begin."""
    folders = [folder.removesuffix("/") for folder in stores.children(location, _LISTED)[0]]
    named = ((folder, folder.rpartition("/")[2]) for folder in folders)
    found = [folder for folder, name in named if name not in (DELTA_LOG, _HUDI) and not _PARTITION.match(name)]
    return found[:_ASKED]


def _has_files(stores: Stores, folder: str) -> bool:
    return next(iter(stores.list(folder)), None) is not None


def _is_paimons(stores: Stores, root: str) -> bool:
    """Return True for a Paimon table's folder: it has snapshots, or schemas alone before the first commit."""
    return any(
        name.match(file.path.rpartition("/")[2])
        for folder, name in _PAIMON.items()
        for file in stores.children(f"{root}/{folder}")[1]
    )


def _named(stores: Stores, root: str) -> frozenset[str] | None:
    folders, files = stores.children(f"{root}/{DELTA_LOG}")
    names = sorted(file.path.rpartition("/")[2] for file in files)
    commits = [name for name in names if _COMMIT.match(name)]
    others = [name for name in names if not _COMMIT.match(name) and not _SAYS_NO_MORE.match(name)]
    if folders or others or [int(name[:20]) for name in commits] != [*range(len(commits))] or not commits:
        return None
    # The newest commits may be gone, which a checkpoint or a checksum of theirs shows.
    if any(int(number) >= len(commits) for name in names for number in _NUMBER.findall(name)):
        return None
    try:
        if _LAST_CHECKPOINT in names:
            last = json.loads(stores.read(f"{root}/{DELTA_LOG}/{_LAST_CHECKPOINT}"))["version"]
            if last >= len(commits):
                return None
        read = threaded(lambda name: stores.read(f"{root}/{DELTA_LOG}/{name}").decode(), commits, _READERS)
        return frozenset(
            path for text in read for line in text.splitlines() if line.strip() for path in _files(root, line)
        )
    except (StorageError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _files(root: str, line: str) -> Iterator[str]:
    """Yield the locations that one action names. Raises ValueError for what is not known to name none."""
    for kind, said in json.loads(line).items():
        if kind in ("add", "remove", "cdc") and said.get("deletionVector") is None:
            # Paths are percent-encoded, and relative to the table's folder or absolute. Hadoop resolves their dots.
            for path in {said["path"], unquote(said["path"])}:
                place = path if split(path).scheme or path.startswith("/") else f"{root}/{path}"
                below = split(place).path
                yield from (place, place.removesuffix(below) + normpath(below))
        elif kind not in _NAMES_NONE:
            raise ValueError(kind)


_VERSION = re.compile(r"(?:v(\d+)|(\d+)-[0-9a-fA-F-]{36})(?:\.gz)?\.metadata\.json(?:\.gz)?\Z")
_METADATA = re.compile(r"\.metadata\.json(?:\.gz)?\Z")
_SHOWN = 3
_BEGINNING = 1_000
_IN_FLIGHT = timedelta(hours=1)
"""A commit swaps its pointer seconds after it wrote its metadata file."""


@dataclass(frozen=True)
class Evidence:
    """What unreferenced metadata files show. `newer` belong to the table, and were committed after its pointer or
    outside its history. `attempts` were written on top of the pointer by steps of this deployment that were killed
    before their swap. `foreign` are locations of tables that no known catalog has, and folders with metadata files of
    other objects, such as views. `strangers` are the newest metadata of other tables elsewhere in the listing: such a
    table may have been dropped from the same place before anybody saw it."""

    newer: tuple[str, ...]
    attempts: tuple[TableMetadata, ...]
    foreign: tuple[str, ...]
    strangers: tuple[TableMetadata, ...]


def evidence(
    stores: Stores, metadata: TableMetadata, paths: Iterable[str], rules: LocationRules, known: TableLocations | None
) -> Evidence:
    """Read the relevant unreferenced metadata files among `paths`. In the table's own metadata folders, and in folders
    whose newest file belongs to the table (it may have moved in between), these are all files whose version is not
    older than the metadata log. In every other folder, it is the newest file. Files that are not JSON are ignored; one
    that the store does not give may say anything, and raises StorageError or UnreadableMetadata.

    `known` has the pointers that steps saw, and the swaps that they attempted (None for a dropped table).
    """
    paths = list(paths)
    own_folders = metadata_locations(metadata, rules)
    log = [entry.metadata_file for entry in metadata.metadata_log]
    versions = [number for each in (*log, metadata.metadata_location) if (number := version_of(each)) is not None]
    oldest = min(versions, default=0)
    lost = set() if known is None else {normalize(each, rules) for each in known.lost_pointers(metadata.table_uuid)}
    ours: list[str] = []
    elsewhere: dict[str, list[str]] = {}
    for path in paths:
        if any(is_under(path, folder, rules) for folder in own_folders):
            ours.append(path)
        else:
            elsewhere.setdefault(parent(normalize(path, rules)), []).append(path)

    unknown: dict[str, str | None] = {}

    def read(path: str) -> TableMetadata | None:
        try:
            return read_table_metadata(stores, path)
        except (UnreadableMetadata, MissingFile) as error:
            _raise_refusal(error)
            with suppress(UnreadableMetadata, MissingFile):
                # Of a newer format, or of a later draft, only whose it is counts.
                unknown[path] = described(stores, path).table_uuid
            return None

    def read_all(wanted: Sequence[str]) -> dict[str, TableMetadata]:
        found = zip(wanted, threaded(read, wanted, stores.readers(metadata.location, _READERS)), strict=True)
        return {path: other for path, other in found if other is not None}

    newest = {folder: max(files, key=lambda path: (version_of(path) or 0, path)) for folder, files in elsewhere.items()}
    found = read_all(list(newest.values()))
    others = _others(stores, paths, metadata.table_uuid)
    before = _named_before_a_uuid(stores, metadata, paths, others, rules)
    foreign = list(_claimed({path: each for path, each in others.items() if path not in before}, rules))
    for folder, path in newest.items():
        if path in found and found[path].table_uuid != metadata.table_uuid:
            foreign.append(parent(folder) if folder.endswith("/metadata") else folder)
        else:
            ours += (each for each in elsewhere[folder] if each not in found)
    numbers = {path: version_of(path) for path in ours}
    found |= read_all(
        [
            path
            for path, number in numbers.items()
            if number is None or number >= oldest or normalize(path, rules) in lost
        ]
    )
    lineage = {normalize(each, rules) for each in (*log, metadata.metadata_location)}
    ours_read = {path: other for path, other in found.items() if other.table_uuid == metadata.table_uuid}
    seen = {normalize(each, rules) for each in known.pointers(metadata.table_uuid)} if known is not None else set()
    attempted = known.attempted(metadata.table_uuid) if known is not None else frozenset()
    own_attempts = {(normalize(base, rules), updated_ms) for base, updated_ms in attempted}
    current = normalize(metadata.metadata_location, rules)
    newer, attempts = [], []
    for path, other in sorted(ours_read.items()):
        place = normalize(path, rules)
        # A step saw it as the pointer, and it is too recent to have left the log, or was when it was missed there.
        was_pointer = place in seen - lineage and (place in lost or _is_in_reach(other, metadata, oldest))
        if not was_pointer and not _is_newer(other, metadata, lineage, rules):
            continue
        base = [normalize(entry.metadata_file, rules) for entry in other.metadata_log[-1:]]
        if not was_pointer and base == [current] and (current, other.last_updated_ms) in own_attempts:
            attempts.append(other)
        else:
            newer.append(path)
    newer += (path for path, uuid in unknown.items() if uuid == metadata.table_uuid)
    strangers = []
    for path, what in _newest_of_each(others).items():
        folder = parent(normalize(path, rules))
        if any(is_under(f"{folder}/x", each, rules) for each in foreign):
            continue
        stranger = found.get(path) or read(path)
        if stranger is not None:
            strangers.append(stranger)
        else:
            foreign += _places(path, what, rules)
    return Evidence(tuple(newer), tuple(attempts), tuple(foreign), tuple(strangers))


def somebodys(stores: Stores, paths: Sequence[str], rules: LocationRules, table_uuid: str) -> tuple[str, ...]:
    """Return the folders of those metadata files that are not a table's: nothing says which other files there belong to
    the same view, function or unknown object. Files that are not JSON are ignored."""
    return tuple(_claimed(_others(stores, paths, table_uuid), rules))


def _claimed(others: Mapping[str, Described], rules: LocationRules) -> list[str]:
    """Return the folders of objects that are no tables, and the places of tables without a uuid, as version 1 has
    them: by what follows what, nothing tells which of their files is the newest."""
    found = dict[str, None]()
    for path, other in others.items():
        if other.is_table and other.table_uuid is None:
            found |= dict.fromkeys(_places(path, other, rules))
        elif other.locations and not other.is_table:
            found[parent(normalize(path, rules))] = None
    return list(found)


def _named_before_a_uuid(
    stores: Stores, metadata: TableMetadata, paths: Sequence[str], others: Mapping[str, Described], rules: LocationRules
) -> set[str]:
    """Return the table's own metadata files from before it had a uuid: the log of a later one names each of them."""
    nameless = {normalize(path, rules): path for path, each in others.items() if each.is_table and not each.table_uuid}
    found, left = set[str](), [entry.metadata_file for entry in metadata.metadata_log] if nameless else []
    for path in paths if nameless else ():
        with suppress(UnreadableMetadata, MissingFile):
            left += () if path in others else described(stores, path).log
    while left:
        path = nameless.get(normalize(left.pop(), rules), "")
        if path and path not in found:
            found.add(path)
            left += others[path].log
    return found


def _places(path: str, what: Described, rules: LocationRules) -> list[str]:
    folder = parent(normalize(path, rules))
    place = parent(folder) if folder.endswith("/metadata") else folder
    return [folder, place, *(normalize(each, rules) for each in what.locations)]


def _raise_refusal(error: LifecycleError) -> None:
    """Raise the error again if the store did not give the file, for another reason than that it is gone."""
    why = error if isinstance(error, StorageError) else error.__cause__
    if isinstance(why, StorageError) and not isinstance(why, MissingFile):
        raise error


def _others(stores: Stores, paths: Sequence[str], table_uuid: str) -> dict[str, Described]:
    """Return what those metadata files say that are not the table's. Files that are not JSON are left out."""
    ours = re.compile(rb'"table-uuid"\s*:\s*"%b"' % re.escape(table_uuid).encode(), re.IGNORECASE)

    def read(path: str) -> Described | None:
        try:
            # Every writer of tables writes the uuid first, and a table may have many large metadata files.
            if ours.search(stores.read_range(path, 0, _BEGINNING)):
                return None
            found = described(stores, path)
        except (UnreadableMetadata, StorageError) as error:
            _raise_refusal(error)
            return None
        return None if found.table_uuid == table_uuid else found

    found = zip(paths, threaded(read, list(paths), _READERS), strict=True)
    return {path: other for path, other in found if other is not None}


def _newest_of_each(others: Mapping[str, Described]) -> dict[str, Described]:
    """Return the newest metadata file of each other table."""
    newest: dict[str, str] = {}
    for path in sorted(others, key=lambda path: (version_of(path) or 0, path)):
        uuid = others[path].table_uuid
        if uuid is not None:
            newest[uuid] = path
    return {path: others[path] for path in newest.values()}


def unsettled(
    stores: Stores, paths: Iterable[str], settled: Mapping[str, Collection[str]], rules: LocationRules
) -> list[str]:
    """Return the metadata files that nobody settled (`settled`: checksums by location). Another file that was written
    at a settled path is none of them."""
    known = ((path, settled.get(normalize(path, rules))) for path in paths)
    return [path for path, checksums in known if not checksums or stores.checksum(path) not in checksums]


def require_no_future(left: Sequence[str], table: str, pointer: str) -> None:
    """Raise StaleMetadata with the names of metadata files that are newer than the pointer and not settled."""
    if not left:
        return
    raise StaleMetadata(
        f"{len(left)} metadata files of the table are newer than the catalog's pointer, e.g. "
        f"{', '.join(left[:_SHOWN])}: the catalog "
        "may have been restored from a backup, and what those commits wrote would look like orphans",
        table=table,
        path=pointer,
        untouched="all files",
        hint="if one of them is right, register it in the catalog; if the pointer is right, "
        f"artemis settle-metadata {quote(table)} --who … --why …, then scan again",
    )


def remember(newer: Sequence[str], stores: Stores, known: TableLocations, table_uuid: str, read_at: datetime) -> None:
    """Record metadata files newer than the pointer as lost. After the next commit, a lost commit looks like an attempt
    that lost its swap, and no longer newer. Attempts under way are excluded by their age. `read_at` is when the pointer
    was read."""
    for path in newer:
        found = stores.head(path)
        written = None if found is None else found.last_modified
        if found is not None and (written is None or written < read_at - _IN_FLIGHT):
            known.lost(table_uuid, [path], left=False)


def _is_newer(other: TableMetadata, current: TableMetadata, lineage: Collection[str], rules: LocationRules) -> bool:
    log = other.metadata_log
    if any(normalize(entry.metadata_file, rules) == normalize(current.metadata_location, rules) for entry in log):
        return True  # It was written on top of the pointer.
    if other.last_updated_ms > current.last_updated_ms:
        theirs, ours = version_of(other.metadata_location), version_of(current.metadata_location)
        if other.last_sequence_number > current.last_sequence_number:
            return True
        if theirs is not None and ours is not None and theirs > ours:
            return True
    if not log:
        return False
    # A commit with successors that is not in the table's history is a fork. A single attempt that lost its swap is not.
    base = log[-1]
    return base.timestamp_ms >= _log_since(current) and normalize(base.metadata_file, rules) not in lineage


def _is_in_reach(other: TableMetadata, current: TableMetadata, oldest: int) -> bool:
    """Return True if the log, whose lowest version is `oldest`, would have this file if it were of the same line. Its
    name says so; times are of several writers' clocks."""
    number = version_of(other.metadata_location)
    return other.last_updated_ms >= _log_since(current) if number is None else number >= oldest


def lost_since(seen: Iterable[str], pointer: str, log: Iterable[str], rules: LocationRules) -> set[str]:
    """Return those of a catalog's earlier pointers that its `pointer` now does not follow: its log (the earlier
    metadata files) reaches back to them and lacks them. The log only gets shorter, so this is found at the first look,
    or never."""
    line = {normalize(each, rules) for each in (pointer, *log)}
    oldest = min(version_of(each) or 0 for each in line)
    return {each for each in seen if normalize(each, rules) not in line and (version_of(each) or oldest) >= oldest}


def _log_since(metadata: TableMetadata) -> int:
    """Return how far back the metadata log reaches, in epoch milliseconds. Later files are in it, or outside the
    history."""
    return metadata.metadata_log[0].timestamp_ms if metadata.metadata_log else metadata.last_updated_ms


@dataclass(frozen=True)
class LostCommit:
    """A pointer that was seen and that a catalog lost, as it was put back in time. `metadata` has only the snapshots
    that were lost, and those of lost refs. For a file that is there and cannot be read, there is a `problem` in its
    place."""

    table_uuid: str
    path: str
    metadata: TableMetadata | None = None
    problem: UnreadableMetadata | None = None


def ahead_of(
    stores: Stores, metadata: TableMetadata, seen: Iterable[str], lost: Collection[str], rules: LocationRules
) -> list[LostCommit]:
    """Return the table as of each pointer that was `seen` and that its metadata log should have, but has not, and of
    each that was found to be `lost`; without what is gone."""
    log = [entry.metadata_file for entry in metadata.metadata_log]
    lineage = {normalize(each, rules) for each in (*log, metadata.metadata_location)}
    oldest = min(version_of(path) or 0 for path in lineage)
    wanted = {*lost, *lost_since(seen, metadata.metadata_location, log, rules)}
    # Pointers of other formats, such as Paimon's snapshots, have other names.
    left = (path for path in sorted(wanted) if ".json" in path and normalize(path, rules) not in lineage)
    found = {path: each for path in left if (each := _read(stores, path)) is not None}
    # What a lost line expired itself, as its later commits show, is gone by its own decision.
    followed = {
        normalize(entry.metadata_file, rules)
        for each in found.values()
        if isinstance(each, TableMetadata)
        for entry in each.metadata_log
    }
    commits = []
    for path, each in found.items():
        if normalize(path, rules) in followed:
            continue
        if isinstance(each, UnreadableMetadata):
            commits.append(LostCommit(metadata.table_uuid, path, problem=each))
        elif each.table_uuid == metadata.table_uuid and (
            (path in lost and version_of(path) is not None) or _is_in_reach(each, metadata, oldest)
        ):
            theirs = (entry.metadata_file for entry in reversed(each.metadata_log))
            common = next((path for path in theirs if normalize(path, rules) in lineage), None)
            base = None if common is None else _read(stores, common)
            had = {one.snapshot_id for one in base.snapshots} if isinstance(base, TableMetadata) else set[int]()
            now = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
            moved = {ref.snapshot_id for name, ref in each.refs.items() if now.get(name) != ref.snapshot_id}
            kept = (one for one in each.snapshots if one.snapshot_id not in had or one.snapshot_id in moved)
            commits.append(LostCommit(each.table_uuid, path, replace(each, snapshots=tuple(kept))))
    return commits


def _read(stores: Stores, path: str) -> TableMetadata | UnreadableMetadata | None:
    """Return the metadata; None if the file is gone."""
    try:
        return read_table_metadata(stores, path)
    except UnreadableMetadata as error:
        return None if stores.head(path) is None else error


def version_of(path: str) -> int | None:
    """Return the number in the name of a metadata file; None if it has none."""
    match = _VERSION.match(path.rpartition("/")[2])
    return None if match is None else int(match[1] or match[2])


def may_be_of(stores: Stores, path: str, table_uuid: str) -> bool:
    """Return True for a metadata file of the table, and for one that does not say whose it is."""
    try:
        found = described(stores, path)
    except UnreadableMetadata:
        return True
    return found.table_uuid == table_uuid or (found.table_uuid is None and not found.is_view)


def later_files(stores: Stores, seen: str) -> list[str]:
    """Return the metadata files beside `seen` whose names have higher numbers, newest first. After a file was
    registered under a name without a number, numbers begin anew: such files count, and what follows them, if they are
    younger by the store's clock. All may be of any table."""
    listed = [file for file in stores.list(parent(seen)) if _METADATA.search(file.path)]
    numbers, since = {file.path: version_of(file.path) for file in listed}, version_of(seen)
    times = {file.path: file.last_modified for file in listed if file.last_modified is not None}

    def is_later(path: str) -> bool:
        number = numbers[path]
        if number is not None and number > (-1 if since is None else since):
            return True
        if seen not in times or path not in times or times[path] <= times[seen]:
            return False
        try:
            log = described(stores, path).log
        except UnreadableMetadata:
            return True
        return number is None or any(each == seen or version_of(each) is None for each in log)

    return sorted(filter(is_later, numbers), key=lambda path: (numbers[path] or 0, path), reverse=True)
