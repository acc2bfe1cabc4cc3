"""The retention of records under `operations.root`: sealed batches, outcomes, listings, and frames of what is over.
Their rows and files are deleted together, files first: after an interruption, the row still leads to the remaining
files.

After that, a deletion's totals are still in its journal row. Every path is still in its receipt and in
`<live>.lifecycle.deletions`. Of a committed plan, its description and its handoff's outcome stay, without the details.

Frames of a plan or scan go only after its row is marked, in one statement that checks again that nothing needs them:
an approval, a deletion or a new plan with the same content then no longer finds it usable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from artemis_lifecycle.deletion.batches import job_folder
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.operations.records import FrameKind, Owner
from artemis_lifecycle.storage.frames import owner_folder
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import StoredFile


@dataclass(frozen=True)
class Forgotten:
    """What was deleted: `counts` is rows by kind (`jobs` and `listings` count deletions and listings; `plans`, `scans`,
    `thaws`, `restores`, `cold_scans`, `observed` and `incidents` those whose frames or reports were deleted; `unnamed`
    frames of processes that died before they stored a record; `indexes` manifest indexes that were not extended since,
    such as those of dropped tables), `files` and `bytes` are under `operations.root`. A dry run counts what it would
    delete; that includes no plan or scan whose deletion the same run would forget first."""

    counts: Mapping[str, int]
    files: int
    bytes: int
    dry_run: bool = False


@dataclass
class _Sum:
    files: int = 0
    bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)


def forget(
    stores: Stores,
    operations: Operations,
    root: str,
    *,
    observed: str,
    records_before: datetime,
    listings_before: datetime,
    trim: Callable[[str], None],
    dry_run: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Forgotten:
    """Delete the records of jobs and listings, and the frames of plans, scans, thaws, restores and reports, that ended
    before these times. `trim` shortens the description of a committed plan, by its id. `check` is called between two of
    them, and may raise.

    Raises StorageError when the store refuses. Another run continues.
    """
    done, records = _Sum(), operations.records
    jobs = records.jobs_before(records_before)
    for job_id in jobs:
        check()
        _remove(stores, job_folder(root, job_id), done, dry_run=dry_run)
        if not dry_run:
            records.forget_job(job_id)
    listings = records.listings_before(listings_before)
    for listing in listings:
        check()
        _remove(stores, listing.files_location, done, dry_run=dry_run)
        if not dry_run:
            records.forget_listing(listing.listing_id)
    counts = dict.fromkeys(("plans", "scans", "thaws", "restores"), 0)
    for owner in records.owners_before(records_before):
        check()
        if not dry_run and not records.begin_forgetting(owner, records_before):
            continue  # It changed since it was listed.
        if owner.is_committed and not dry_run:
            trim(owner.job_id)
        for folder in _folders(root, owner):
            _remove(stores, folder, done, dry_run=dry_run, kept=_STAYS if owner.is_committed else ())
        if not dry_run:
            records.forgotten(owner)
        counts[owner.kind] += 1
    old = partial(_remove_old, stores, done=done, check=check, dry_run=dry_run)
    counts["cold_scans"] = old(f"{root}/cold-scans", listings_before)
    counts["observed"] = old(observed, listings_before)
    counts["incidents"] = old(f"{root}/incidents", records_before)
    is_alone = has_root_alone(stores, root)
    counts["unnamed"] = sum(
        old(f"{root}/{kind}", records_before, depth=depth, stays=partial(records.named, kind))
        for kind, depth in _NAMED_BY_ROWS.items()
        if is_alone
    )
    counts["indexes"] = sum(old(f"{root}/{each}", records_before) for each in _INDEXES)
    check()
    if not dry_run:
        operations.outbox.forget(listings_before)
    rows = records.before(records_before) if dry_run else records.forget(records_before)
    return Forgotten({"jobs": len(jobs), "listings": len(listings), **counts, **rows}, done.files, done.bytes, dry_run)


def has_root_alone(stores: Stores, root: str) -> bool:
    """Return False if another deployment has its records below `root`, too: what no row names may be its own."""
    return len([*stores.list(f"{root}/deployment")]) < 2


_STAYS = ("plan.json", "outcome.json")
"""What stays of a committed plan: which snapshots left, and which of them are in the cold tier."""


_NAMED_BY_ROWS: Mapping[FrameKind, int] = {"plans": 2, "scans": 1, "listings": 1}
"""Where a process seals frames before it stores their row, and how deep the folder of each is. One that no row names
was left by a process that died in between, unless another deployment has its records below the same root."""

_INDEXES = ("index", "attempts/index", "unarchived/index", "cold/others/index")
"""Where manifest indexes are, one folder for each table. They are caches: what is still needed is built again."""


def _folders(root: str, owner: Owner) -> tuple[str, ...]:
    """Return the folders in which only this plan, scan, thaw or restore keeps frames."""
    if owner.files_location is None:
        return (f"{root}/restores/{owner.job_id}",)
    if owner.kind == "thaws":
        return (owner.files_location,)
    own = owner_folder(owner.files_location)
    return (own, f"{root}/handoffs/{owner.job_id}") if owner.kind == "plans" else (own,)


def _remove_old(
    stores: Stores,
    folder: str,
    before: datetime,
    *,
    done: _Sum,
    check: Callable[[], None],
    dry_run: bool,
    depth: int = 1,
    stays: Callable[[Collection[str]], Collection[str]] = lambda names: (),
) -> int:
    """Delete what is in `folder`, each a file or a folder of files at `depth`, if its newest file is older than
    `before`. Return how many. `stays` returns which of these names records refer to."""
    groups = defaultdict[str, list[StoredFile]](list)
    for file in stores.list(folder):
        groups["/".join(file.path[len(folder) + 1 :].split("/")[:depth])].append(file)
    old = {
        group.rpartition("/")[2]: files
        for group, files in groups.items()
        # A store that reports no time proves no age.
        if all(file.last_modified is not None and file.last_modified < before for file in files)
    }
    kept = set(stays(old)) if old else set()
    gone = [files for name, files in old.items() if name not in kept]
    for files in gone:
        check()
        _delete(stores, folder, files, done, dry_run=dry_run)
    return len(gone)


def _remove(stores: Stores, folder: str, done: _Sum, *, dry_run: bool, kept: Collection[str] = ()) -> None:
    found = [file for file in stores.list(folder) if file.path.rpartition("/")[2] not in kept]
    _delete(stores, folder, found, done, dry_run=dry_run)


def _delete(stores: Stores, folder: str, found: Sequence[StoredFile], done: _Sum, *, dry_run: bool) -> None:
    done.files += len(found)
    done.bytes += sum(file.size_in_bytes for file in found)
    if dry_run or not found:
        return
    refused = [answer for answer in stores.delete([file.path for file in found]) if answer.outcome == "failed"]
    if refused:
        raise StorageError(
            f"{len(refused)} files of old records could not be deleted: {refused[0].error}",
            path=refused[0].path,
            untouched="the rows that name them",
            hint="check why the store refuses, then run this again",
        )
    _remove_folders(stores, folder, [file.path for file in found])


def _remove_folders(stores: Stores, folder: str, paths: Iterable[str]) -> None:
    above = folder.rpartition("/")[0]
    for each in sorted({path.rpartition("/")[0] for path in paths}, key=len, reverse=True):
        stores.remove_empty(each, above)
