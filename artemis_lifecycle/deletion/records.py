"""The retention of what deletions and listings leave under `operations.root`: sealed batches, outcomes, listings. Rows
and files go together, files first: what died in between is found again by its row.

After it a deletion's sums are in its journal row, every path in its receipt by the table and in
`<live>.lifecycle.deletions`; both outlive it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from artemis_lifecycle.deletion.batches import job_folder
from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.storage.stores import Stores


@dataclass(frozen=True)
class Forgotten:
    """What went: `counts` rows by kind (`jobs` and `listings` count deletions and listings), `files` under
    `operations.root` and their `bytes`. A dry run counts what would go."""

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
    records_before: datetime,
    listings_before: datetime,
    dry_run: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Forgotten:
    """Delete the records of what ended before these instants. `check` is asked between two of them, and may raise.

    Raises StorageError when the store refuses; run again it goes on.
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
    check()
    rows = records.before(records_before) if dry_run else records.forget(records_before)
    return Forgotten({"jobs": len(jobs), "listings": len(listings), **rows}, done.files, done.bytes, dry_run)


def _remove(stores: Stores, folder: str, done: _Sum, *, dry_run: bool) -> None:
    found = list(stores.list(folder))
    done.files += len(found)
    done.bytes += sum(file.size_in_bytes for file in found)
    if dry_run or not found:
        return
    refused = [answer for answer in stores.delete([file.path for file in found]) if answer.outcome == "failed"]
    if refused:
        raise StorageError(
            f"{len(refused)} files of old records cannot be deleted: {refused[0].error}",
            path=refused[0].path,
            untouched="the rows that name them",
            hint="see what the store refuses, and run this again",
        )
    _remove_folders(stores, folder, [file.path for file in found])


def _remove_folders(stores: Stores, folder: str, paths: Iterable[str]) -> None:
    above = folder.rpartition("/")[0]
    for each in sorted({path.rpartition("/")[0] for path in paths}, key=len, reverse=True):
        stores.remove_empty(each, above)
