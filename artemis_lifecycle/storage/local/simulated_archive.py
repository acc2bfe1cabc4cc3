"""A simulation of S3's archive classes on the local disk, for demos and tests of the deep archive.

A disk has no archive class. An archived file moves to the folder `.deep-archive` next to it. It is still listed at its
path, but is not readable there until it is thawed. A thaw links the file back to its path at once, and records in
`.until` how long it stays. This saves no cost and adds no safety.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.local.paths import fail, local_path, status_of
from artemis_lifecycle.storage.local.writing import NO_LINKS, sync_folder, temporary_beside, write_durably
from artemis_lifecycle.storage.types import CHUNK, ArchiveState, StoredFile, missing

ASIDE = ".deep-archive"
_UNTIL = ".until"


def archive(path: str) -> bool:
    where = local_path(path)
    if is_aside(where):
        return False
    target, aside = Path(where), Path(aside_of(where))
    try:
        aside.parent.mkdir(exist_ok=True)
        os.rename(target, aside)
        sync_folder(aside.parent)
        sync_folder(target.parent)
    except FileNotFoundError as error:
        raise missing(path) from error
    except OSError as error:
        fail("A file cannot be archived", path, error)
    return True


def thaw(path: str, days: int, write: Callable[..., StoredFile]) -> None:
    state = archive_state(path)
    if state is None:
        raise missing(path)
    until = datetime.now(UTC) + timedelta(days=days)
    if not state.archived or (state.readable_until is not None and state.readable_until >= until):
        return
    where = local_path(path)
    write(str(_until(where)), until.isoformat().encode(), overwrite=True, storage_class=None)
    try:
        with suppress(FileExistsError):
            link(path, aside_of(where))
        sync_folder(Path(where).parent)
    except OSError as error:
        fail("A file cannot be thawed", path, error)


def link(path: str, aside: str) -> None:
    """Link the file `aside` to the name `path` as well; copy it where links are not supported."""
    try:
        os.link(aside, local_path(path))
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with temporary_beside(path) as (target, temporary), open(aside, "rb") as file:
            write_durably(temporary, iter(lambda: file.read(CHUNK), b""))
            os.replace(temporary, target)


def end_thaw(path: str) -> None:
    where = local_path(path)
    if not is_aside(where):
        return
    try:
        for gone in (Path(where), _until(where)):
            gone.unlink(missing_ok=True)
    except OSError as error:
        fail("A thawed file cannot be removed", path, error)


def archive_state(path: str) -> ArchiveState | None:
    where = local_path(path)
    exists = status_of(path, where) is not None
    if not is_aside(where):
        return ArchiveState(archived=False, readable=True) if exists else None
    try:
        until = datetime.fromisoformat(_until(where).read_text())
    except (OSError, ValueError):
        until = None
    return ArchiveState(archived=True, readable=exists, readable_until=until if exists else None)


def aside_of(where: str) -> str:
    """Return where a local path's file is stored while it is archived."""
    folder, _, name = where.rpartition("/")
    return f"{folder}/{ASIDE}/{name}"


def is_aside(where: str) -> bool:
    return os.path.isfile(aside_of(where))


def _until(where: str) -> Path:
    """Return the file that records how long the thawed copy stays."""
    folder, _, name = where.rpartition("/")
    return Path(folder, ASIDE, _UNTIL, name)


def archived_error(path: str, what: str) -> StorageError:
    return StorageError(
        f"The file is in the archive, so {what}",
        path=path,
        untouched="the file",
        hint="thaw it with artemis thaw",
    )


def may_archive(where: str) -> bool:
    """Return True if files in the folder may be archived."""
    return os.path.lexists(f"{where}/{ASIDE}")
