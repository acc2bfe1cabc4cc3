"""The commit of a removal: snapshots, long-lived changelogs and tags leave a Paimon table, one file at a time; and the
rollback to an earlier snapshot. Source: Paimon's ExpireSnapshotsImpl, RollbackHelper and HintFileUtils.

Paimon deletes data files first and the snapshot's file last. Here the snapshot's file goes first, and what it reached
after the grace, from a sealed list. Each removal hides exactly one snapshot, the oldest. Before and after each, the
first snapshot that stays must be there: a rollback behind it would have made the removed snapshot the newest, and its
file is then put back. See docs/decisions/0021-paimon-removes-snapshots-first.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote

from artemis_lifecycle.errors import ExistingFile, MissingFile, NoSuchSnapshot, StalePlan, StorageError
from artemis_lifecycle.operations.crash_points import around
from artemis_lifecycle.paimon.documents import Document
from artemis_lifecycle.paimon.removal import Gone, Removal
from artemis_lifecycle.paimon.table import EARLIEST, LATEST, Branch
from artemis_lifecycle.storage.stores import Stores


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
    _write_hints(stores, removal)
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


def _write_hints(stores: Stores, removal: Removal) -> None:
    """Write where the oldest snapshot and changelog are, as Paimon does at the end: until then, a hint that names none
    is ignored. A hint that another expiration moved further stays."""
    if removal.following is not None:
        _raise_hint(stores, f"{removal.folder}/snapshot", removal.following)
    if removal.first_changelog is not None:
        _raise_hint(stores, f"{removal.folder}/changelog", removal.first_changelog)


def _raise_hint(stores: Stores, folder: str, number: int) -> None:
    known = read_hint(stores, folder, EARLIEST)
    if known is None or known < number:
        _write_hint(stores, folder, EARLIEST, number)


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
