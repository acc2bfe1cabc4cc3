"""The retention of records under `operations.root`: sealed batches, outcomes and listings. Their rows and files are
deleted together, files first: after an interruption, the row still leads to the remaining files.

After that, a deletion's totals are still in its journal row. Every path is still in its receipt and in
`<live>.lifecycle.deletions`.
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
    """What was deleted: `counts` is rows by kind (`jobs` and `listings` count deletions and listings), `files` and
    `bytes` are under `operations.root`. A dry run counts what it would delete."""

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
    """Delete the records of jobs and listings that ended before these times. `check` is called between two of them, and
    may raise.

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
