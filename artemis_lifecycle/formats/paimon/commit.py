"""The commit of a removal: snapshots, long-lived changelogs and tags leave a Paimon table, one file at a time; and the
rollback to an earlier snapshot. Source: Paimon's ExpireSnapshotsImpl, RollbackHelper and HintFileUtils.

Paimon deletes data files first and the snapshot's file last. Here the snapshot's file goes first, and what it reached
after the grace, from a sealed list. Each removal hides exactly one snapshot, the oldest. Before and after each, the
first snapshot that stays must be there: a rollback behind it would have made the removed snapshot the newest, and its
file is then put back. See docs/decisions/0021-paimon-removes-snapshots-first.md.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from shlex import quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artemis_lifecycle.errors import (
    ExistingFile,
    MissingFile,
    NoSuchSnapshot,
    NoSuchTable,
    StalePlan,
    StorageError,
    UnreadableMetadata,
    require_uuid,
)
from artemis_lifecycle.formats.paimon.documents import Document
from artemis_lifecycle.formats.paimon.reached import PaimonFiles, Reader, reaches_of
from artemis_lifecycle.formats.paimon.table import EARLIEST, LATEST, Branch, PaimonTable, metadata_of
from artemis_lifecycle.metadata.types import TableMetadata
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.protection.context import Deletion
from artemis_lifecycle.protection.table_state import CURRENT_METADATA, REACHABLE, hash_texts
from artemis_lifecycle.storage.location import LocationRules, normalize
from artemis_lifecycle.storage.stores import Stores

# --- removal ----------------------------------------------------------------------------------------------------------
# What one commit removes from a Paimon table: documents, each with its text, so that the commit can be resumed, and
# undone where a rollback overtook it.

_LOOKS = 8


@dataclass(frozen=True)
class Gone:
    """One document that goes. `changelog` is where its text stays as a long-lived changelog."""

    role: str
    number: int
    path: str
    text: bytes
    name: str | None = None
    changelog: str | None = None


@dataclass(frozen=True)
class Removal:
    """Documents of one branch, in the order in which they go: snapshots, then changelogs, each oldest first; or tags.

    `following` is the number of the first snapshot that stays, and `following_text` its text: while it is there, the
    branch has not been rolled back behind it. `first_changelog` is the number of the first changelog that stays.
    `overrides` are options that the call set in place of the table's.
    """

    branch: str
    folder: str
    gone: tuple[Gone, ...]
    following: int | None
    following_text: bytes | None
    first_changelog: int | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        content = {
            "branch": self.branch,
            "folder": self.folder,
            "following": self.following,
            "first_changelog": self.first_changelog,
            "overrides": dict(self.overrides),
            "following_text": None if self.following_text is None else _packed(self.following_text),
            "gone": [
                [each.role, each.number, each.path, _packed(each.text), each.name, each.changelog] for each in self.gone
            ],
        }
        return json.dumps(content).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Removal:
        content = json.loads(data)
        text = content["following_text"]
        return cls(
            content["branch"],
            content["folder"],
            tuple(
                Gone(role, number, path, base64.b64decode(packed), name, changelog)
                for role, number, path, packed, name, changelog in content["gone"]
            ),
            content["following"],
            None if text is None else base64.b64decode(text),
            content["first_changelog"],
            content["overrides"],
        )


def _packed(text: bytes) -> str:
    return base64.b64encode(text).decode()


def removal_of(
    table: PaimonTable,
    branch: str,
    snapshots: Sequence[Document],
    changelogs: Sequence[Document],
    outlived: Iterable[Document],
    following: Document | None,
    tags: Sequence[Document] = (),
) -> Removal:
    folder = table.branches[branch].folder
    become = {each.snapshot_id: f"{folder}/changelog/changelog-{each.snapshot_id}" for each in outlived}
    gone = [
        Gone(each.role, each.snapshot_id, each.path, each.text, each.name, become.get(each.snapshot_id))
        for each in snapshots
    ]
    gone += [Gone(each.role, each.snapshot_id, each.path, each.text, each.name) for each in (*changelogs, *tags)]
    return Removal(
        branch,
        folder,
        tuple(gone),
        None if following is None else following.snapshot_id,
        None if following is None else following.text,
    )


def without(table: PaimonTable, removed: Iterable[Document], added: Iterable[Document] = ()) -> PaimonTable:
    """Return the table as it is when the removed documents are gone, and `added` changelogs are there."""
    paths = {each.path for each in removed}
    new = list(added)
    branches = {}
    for name, branch in table.branches.items():
        mine = [each for each in new if each.branch == name]
        changelogs = sorted([*branch.changelogs, *mine], key=lambda each: each.snapshot_id)
        branches[name] = replace(
            branch,
            snapshots=tuple(each for each in branch.snapshots if each.path not in paths),
            tags=tuple(each for each in branch.tags if each.path not in paths),
            changelogs=tuple(each for each in changelogs if each.path not in paths),
        )
    return replace(table, branches=branches)


def files_of(reader: Reader, table: PaimonTable) -> PaimonFiles:
    """Read everything that a table reaches. Raises UnreadableMetadata."""
    files = PaimonFiles(metadata_of(table), reader, reaches_of(reader, table, table.documents))
    # Only now is it known that no snapshot deletes what it does not add.
    _ = files.live
    return files


def whole_table(
    reader: Reader, read: Callable[[], PaimonTable], first: PaimonTable | None = None
) -> tuple[PaimonTable, PaimonFiles]:
    """Read a table (`first`, if it was read just now) and everything that it reaches, again as long as another process
    removes documents meanwhile: a writer that expires by itself removes manifests before their snapshot. Raises
    UnreadableMetadata if a file is missing although its document stays."""
    table = read() if first is None else first
    for _ in range(_LOOKS):
        try:
            return table, files_of(reader, table)
        except UnreadableMetadata:
            again = read()
            if set(table.documents) <= set(again.documents):
                raise
            table = again
    return table, files_of(reader, table)


@dataclass(frozen=True)
class Removed:
    """What a commit removed now; what was gone already is not counted."""

    snapshots: int = 0
    changelogs: int = 0
    tags: int = 0


def remove_documents(stores: Stores, removal: Removal, table: str, check: Callable[[], None]) -> Removed:
    """Remove what is still there, in order. `check` raises what forbids continuing; it runs before each removal.

    Raises StalePlan if a document has another content than planned, or if the table was rolled back behind the first
    snapshot that stays. A killed call is continued by the next.
    """
    counts = {"snapshot": 0, "changelog": 0, "tag": 0}
    for each in removal.gone:
        check()
        if not _is_as_planned(stores, each, table):
            continue
        if each.role == "snapshot":
            _require_following(stores, removal, table)
            if each.changelog is not None:
                with around("paimon.write_changelog"):
                    stores.write(each.changelog, each.text, overwrite=True)
                    _write_hint(stores, f"{removal.folder}/changelog", LATEST, each.number)
        with around(f"paimon.remove_{each.role}"):
            _delete(stores, each.path)
        counts[each.role] += 1
        if each.role == "snapshot":
            _put_back_unless_following(stores, removal, each, table)
    # As Paimon does at the end: until then, a hint that names none is ignored. A hint that another expiration moved
    # further stays.
    for kind, oldest in (("snapshot", removal.following), ("changelog", removal.first_changelog)):
        if oldest is not None:
            known = read_hint(stores, f"{removal.folder}/{kind}", EARLIEST)
            if known is None or known < oldest:
                _write_hint(stores, f"{removal.folder}/{kind}", EARLIEST, oldest)
    return Removed(counts["snapshot"], counts["changelog"], counts["tag"])


def _is_as_planned(stores: Stores, gone: Gone, table: str) -> bool:
    """Return False if the document is gone already. Raises StalePlan if it is another one."""
    try:
        found = stores.read(gone.path)
    except MissingFile:
        return False
    if found != gone.text:
        raise StalePlan(
            f"The {gone.role} {gone.name or gone.number} is another one than planned: the table was rolled back, or a "
            "tag was made anew",
            table=table,
            path=gone.path,
            untouched="it, and what comes after it",
            hint=f"plan again: artemis plan {quote(table)}",
        )
    return True


def _require_following(stores: Stores, removal: Removal, table: str) -> None:
    hint = read_hint(stores, f"{removal.folder}/snapshot", LATEST)
    if hint is not None and hint < (removal.following or 0) and _is_stale(stores, f"{removal.folder}/snapshot"):
        # Paimon's readers would follow it to a snapshot that goes; without it, they list.
        _delete(stores, f"{removal.folder}/snapshot/{LATEST}")
    if not _follows(stores, removal):
        raise _rolled_back(removal, table)


def _follows(stores: Stores, removal: Removal) -> bool:
    """Return True if the first snapshot that stays is there, and no rollback behind it has begun: it sets the hint to
    the latest snapshot before it removes later ones."""
    assert removal.following is not None
    hint = read_hint(stores, f"{removal.folder}/snapshot", LATEST)
    if hint is not None and hint < removal.following:
        return False
    try:
        found = stores.read(f"{removal.folder}/snapshot/snapshot-{removal.following}")
    except MissingFile:
        # A writer that expires by itself may have gone further: then a later snapshot is there.
        _, files = stores.children(f"{removal.folder}/snapshot")
        names = (file.path.rpartition("/snapshot-")[2] for file in files if "/snapshot-" in file.path)
        return any(name.isdigit() and int(name) > removal.following for name in names)
    return found == removal.following_text


def _is_stale(stores: Stores, folder: str) -> bool:
    """Return True if a snapshot was written after the hint to the latest one: its commit lost the hint, as Paimon
    allows. A rollback writes the hint when all snapshots are there."""
    hint = stores.head(f"{folder}/{LATEST}")
    _, files = stores.children(folder)
    written = [file.last_modified for file in files if "/snapshot-" in file.path and file.last_modified is not None]
    return hint is not None and hint.last_modified is not None and bool(written) and max(written) > hint.last_modified


def _put_back_unless_following(stores: Stores, removal: Removal, gone: Gone, table: str) -> None:
    if _follows(stores, removal):
        return
    with suppress(ExistingFile):  # The rollback may have written it itself.
        stores.write(gone.path, gone.text)
    raise _rolled_back(removal, table)


def _rolled_back(removal: Removal, table: str) -> StalePlan:
    return StalePlan(
        f"Snapshot {removal.following}, the first that would stay, is gone or another one, or the hint {LATEST} names "
        "an earlier one: the table was rolled back",
        table=table,
        path=f"{removal.folder}/snapshot",
        untouched="every snapshot that is left, and all files",
        hint=f"plan again: artemis plan {quote(table)}. If it stays so, and nobody rolls the table back, the hint is "
        f"stale: remove the file {LATEST}, and Paimon lists the snapshots",
    )


def _delete(stores: Stores, path: str) -> None:
    (outcome,) = stores.delete([path])
    if outcome.outcome == "failed":
        raise StorageError(
            f"The file cannot be deleted: {outcome.error}",
            path=path,
            untouched="it, and all files that it reaches",
            hint="run the step again; it continues here",
        )


def read_hint(stores: Stores, folder: str, name: str) -> int | None:
    """Return a hint; None if it is missing, or not a number: readers can do without it."""
    try:
        text = stores.read(f"{folder}/{name}").decode("ascii", "replace").strip()
    except MissingFile:
        return None
    return int(text) if text.isdigit() else None


def _write_hint(stores: Stores, folder: str, name: str, number: int) -> None:
    stores.write(f"{folder}/{name}", str(number).encode(), overwrite=True)


@dataclass(frozen=True)
class Rollback:
    """What a rollback removed, or would remove. Files that only these reached are orphans from now on."""

    table: str
    previous_snapshot_id: int
    current_snapshot_id: int
    snapshots: tuple[int, ...]
    tags: tuple[str, ...]
    changelogs: tuple[int, ...]
    dry_run: bool = False


def target_of(branch: Branch, table: str, snapshot_id: int | None, tag: str | None) -> Document:
    """Return the document to which the table goes back: a snapshot, or the tag of one that has expired. Raises
    NoSuchSnapshot."""
    if tag is not None:
        found = next((each for each in branch.tags if each.name == tag), None)
    else:
        of_id = [each for each in branch.tags if each.snapshot_id == snapshot_id]
        found = branch.snapshot(snapshot_id or 0) or next(iter(of_id), None)
    if found is None:
        what = f"tag {tag}" if tag is not None else f"snapshot {snapshot_id}"
        raise NoSuchSnapshot(
            f"The table has no {what}", table=table, untouched="the table", hint="artemis history lists them"
        )
    return found


def later_than(branch: Branch, target: Document) -> Iterator[Document]:
    """Yield what a rollback removes, in its order: the newest snapshot first, then changelogs and tags."""
    for documents in (branch.snapshots, branch.changelogs, branch.tags):
        yield from (each for each in reversed(documents) if each.snapshot_id > target.snapshot_id)


def roll_back(stores: Stores, branch: Branch, target: Document, check: Callable[[], None]) -> None:
    """Remove everything later than `target`, and make it the latest snapshot.

    The snapshot of a tag is written before anything goes, so that at no moment the table has no snapshot. A killed
    rollback leaves later snapshots, and is continued by the same call.
    """
    folder = f"{branch.folder}/snapshot"
    if branch.snapshot(target.snapshot_id) is None:
        with around("paimon.write_snapshot"):
            stores.write(f"{folder}/snapshot-{target.snapshot_id}", target.text, overwrite=True)
        _write_hint(stores, folder, EARLIEST, target.snapshot_id)
    check()
    with around("paimon.write_latest"):
        _write_hint(stores, folder, LATEST, target.snapshot_id)
    for each in later_than(branch, target):
        check()
        with around("paimon.roll_back"):
            _delete(stores, each.path)
    left = [each.snapshot_id for each in branch.changelogs if each.snapshot_id <= target.snapshot_id]
    if len(left) < len(branch.changelogs):
        _write_hint(stores, f"{branch.folder}/changelog", LATEST, max(left, default=-1))


# --- state ------------------------------------------------------------------------------------------------------------
# What a Paimon table reaches now, for protection: its snapshots, tags, branches and changelogs are read again before
# each piece of a deletion. A tag, a branch or a rollback that came after the plan keeps its files.


class PaimonState:
    """A `ReachingTable` of a Paimon warehouse. `current` reads the table."""

    def __init__(self, reader: Reader, deletion: Deletion, current: Callable[[], PaimonTable]) -> None:
        self._reader = reader
        self._deletion = deletion
        self._current = current
        self._known: tuple[PaimonTable, TableMetadata] | None = None
        self._files: PaimonFiles | None = None
        self._needed: set[str] = set()
        self._later: list[tuple[str, NDArray[np.uint64]]] | None = None
        self.other_names: Callable[[pa.Array], Sequence[NDArray[np.uint64]]] = lambda locations: ()
        self.table = deletion.table
        self.table_uuid = deletion.table_uuid
        self.metadata: TableMetadata | None = None

    @property
    def reason(self) -> str:
        return REACHABLE

    @property
    def _rules(self) -> LocationRules:
        return self._reader.rules

    def read(self) -> TableMetadata:
        """Read the table's documents, and what new ones reach. Returns the same object as before if none has changed.

        Raises StalePlan; UnreadableMetadata if anything that the table needs is missing, broken or ambiguous."""
        table = self._checked()
        # Consumers move all the time, and keep no files.
        if self._known is None or list(self._known[0].documents) != list(table.documents):
            table, self._files = whole_table(self._reader, self._checked, table)
            self._known = table, self._files.metadata
        return self._known[1]

    def _checked(self) -> PaimonTable:
        try:
            table = self._current()
        except NoSuchTable as error:
            raise StalePlan(
                f"The warehouse has no table {self.table} any more",
                table=self.table,
                untouched="all files of the job that were not deleted before",
                hint="find out who changed the warehouse; if the table is gone for good, artemis close "
                f"{self._deletion.job_id}",
            ) from error
        require_uuid(self.table, table.table_uuid, self.table_uuid)
        return table

    def files(self, metadata: TableMetadata) -> PaimonFiles:
        assert self._files is not None and self._files.metadata is metadata
        return self._files

    def reaches(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        assert self.metadata is not None
        return self.files(self.metadata).reaches(hashes)

    def walked(self, metadata: TableMetadata) -> None:
        assert self._known is not None
        self.metadata = metadata
        self._needed = needed_files(self._known[0], self._rules)
        self._later = None

    def refresh(self) -> bool:
        """Read the documents again; whatever changed, all files are then compared again. Manifests that were read stay
        known, so that this costs what the change costs."""
        return self.read() is self.metadata

    @property
    def new(self) -> set[str]:
        return set()

    @property
    def needed(self) -> set[str]:
        """The locations of the documents themselves."""
        return self._needed

    def later(self) -> Sequence[tuple[str, NDArray[np.uint64]]]:
        if self._later is None:
            self._later = [(CURRENT_METADATA, hash_texts(self._needed, self._rules, self.other_names))]
        return self._later


def needed_files(table: PaimonTable, rules: LocationRules) -> set[str]:
    """Return the locations of a table's documents and hints, of every branch."""
    paths = [document.path for document in table.documents]
    for branch in table.branches.values():
        paths += (f"{branch.folder}/schema/schema-{schema.schema_id}" for schema in branch.schemas)
        paths += (f"{branch.folder}/consumer/consumer-{name}" for name in branch.consumers)
        paths += (f"{branch.folder}/{kind}/{hint}" for kind in ("snapshot", "changelog") for hint in (EARLIEST, LATEST))
    return {normalize(path, rules) for path in paths}
