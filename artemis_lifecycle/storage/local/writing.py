"""Atomic file writes."""

from __future__ import annotations

import errno
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from artemis_lifecycle.storage.local.paths import fail, local_path

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@contextmanager
def temporary_beside(path: str) -> Iterator[tuple[Path, Path]]:
    """Yield the path, and a temporary name next to it to write to first. A killed process leaves the temporary file
    behind as an unreferenced file, which an orphan scan finds once it is old enough."""
    target = Path(local_path(path))
    # Not derived from the target's name, which may already have the maximum length.
    temporary = target.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail("A folder cannot be made", path, error)
    try:
        yield target, temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_durably(temporary: Path, chunks: Iterable[bytes]) -> None:
    with open(temporary, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def read_back(temporary: Path) -> tuple[int, str]:
    with open(temporary, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), f"sha256:{digest.hexdigest()}"


def publish_new(temporary: Path, target: Path) -> None:
    """Give the file its name. Raises FileExistsError if the name is taken, also by a concurrent writer."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # No hard links here (exFAT, some network and FUSE mounts): reserve the name with an empty file, then fill it. A
        # kill between the two leaves the empty file, which reads as damaged rather than as other content.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        os.replace(temporary, target)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # Some network mounts cannot sync folders; the file itself is already on disk.
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
