"""The results of stores, and the interface of each kind of store (`Store`). Other rooms import these from `stores`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, BinaryIO, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.errors import ExistingFile, MissingFile
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.instants import microseconds

# --- identity ---------------------------------------------------------------------------------------------------------
# What a file is, besides its name: its size, its modification time, and its store's own token for it.
#
# A path is only where a file was. Whoever acts on a file later than it was seen compares identities: a writer may
# have put another file at the same path in the meantime.

NO_TIME = -(2**63)
"""Represents a time that the store does not report."""

NO_TAG = 0
"""Represents a token that the store does not report."""

_MASK = 2**64 - 1
_MAJOR = 0xFFFFF000000FFF00
_DEVICE, _INODE, _TIME = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9


class Sameness(Enum):
    """How two identities of one path compare. UNSURE: the size agrees, but time or token differ, so only the content
    can tell (replication, re-encryption and a change of storage class change them, too)."""

    SAME = "same"
    UNSURE = "unsure"
    OTHER = "other"


@dataclass(frozen=True)
class FileIdentity:
    """A file's size in bytes, its modification time in microseconds since 1970 (NO_TIME if unknown), and a 64-bit hash
    (as a signed integer) of its store's token for it (NO_TAG if unknown): on S3 the ETag and version, on a local disk
    device, inode and nanoseconds."""

    size_in_bytes: int
    modified: int = NO_TIME
    tag: int = NO_TAG

    def compare(self, now: FileIdentity) -> Sameness:
        """Compare this recorded identity with the current one of the same path."""
        return (Sameness.SAME, Sameness.UNSURE, Sameness.OTHER)[
            int(
                compare(
                    *(np.array([value]) for value in (self.size_in_bytes, self.modified, self.tag)),
                    *(np.array([value]) for value in (now.size_in_bytes, now.modified, now.tag)),
                )[0]
            )
        ]


SAME, UNSURE, OTHER = 0, 1, 2
"""`Sameness` in arrays."""


def compare(
    sizes: NDArray[np.int64],
    modified: NDArray[np.int64],
    tags: NDArray[np.int64],
    now_sizes: NDArray[np.int64],
    now_modified: NDArray[np.int64],
    now_tags: NDArray[np.int64],
) -> NDArray[np.int8]:
    """Return SAME, UNSURE or OTHER for each row of recorded and current identities. What either side does not know is
    not compared; if nothing but the size is known, the row is UNSURE."""
    times = (modified != NO_TIME) & (now_modified != NO_TIME)
    tokens = (tags != NO_TAG) & (now_tags != NO_TAG)
    differs = (times & (modified != now_modified)) | (tokens & (tags != now_tags))
    result = np.where(differs | ~(times | tokens), UNSURE, SAME).astype(np.int8)
    result[sizes != now_sizes] = OTHER
    return result


def object_tag(*tokens: str | None) -> int:
    """Return the tag of an object from its store's tokens, such as ETag and version. NO_TAG if there is none."""
    known = [token for token in tokens if token]
    if not known:
        return NO_TAG
    digest = hashlib.blake2b("\0".join(known).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def disk_tag(device: Any, inode: Any, nanoseconds: Any) -> Any:
    """Return the tag of a file on a local disk, for integers or arrays of them (uint64). `device` is of
    `os.stat_result.st_dev`. It counts only for block devices: each machine numbers a network file system by itself."""
    device = device * ((device & _MAJOR) != 0)
    tag = (device * _DEVICE) ^ (inode * _INODE) ^ (nanoseconds * _TIME)
    if isinstance(tag, int):
        tag &= _MASK
        return tag - 2**64 if tag >= 2**63 else tag
    return tag.view(np.int64)


ARCHIVE_CLASSES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""S3 storage classes whose objects are not readable until they are thawed ("restored" in S3's terms)."""

UNREADABLE_CLASSES = {"s3": ARCHIVE_CLASSES, "abfss": frozenset({"Archive"})}
"""Storage classes whose objects are not readable at once, by a store's first scheme."""

CHUNK = 1 << 20
"""Bytes that are read or written at a time when a file is streamed."""


@dataclass(frozen=True)
class StoredFile:
    """A file and its store's information about it. `last_modified` is in UTC; None if the store does not report it.
    `tag` is the store's token for exactly this file (`identity.FileIdentity`); `etag` is that token where a delete may
    depend on it. `changed` is when a disk last changed the file or its names (microseconds since 1970): a file that is
    moved to a path keeps its modification time. `archived`: it is in an archive class,
    thawed or not."""

    path: str
    size_in_bytes: int
    last_modified: datetime | None
    tag: int = NO_TAG
    etag: str | None = None
    changed: int = field(default=NO_TIME, compare=False)
    archived: bool = field(default=False, compare=False)

    @property
    def since(self) -> int:
        """The earliest time from which the file is surely at its path, in microseconds since 1970; NO_TIME if it is
        unknown."""
        return max(self.identity.modified, self.changed)

    @property
    def identity(self) -> FileIdentity:
        """What the file is, besides its path."""
        modified = NO_TIME if self.last_modified is None else microseconds(self.last_modified)
        return FileIdentity(self.size_in_bytes, modified, self.tag)


@dataclass(frozen=True)
class DeleteOutcome:
    """The result for one path. S3 reports "deleted" even for a key that did not exist."""

    path: str
    outcome: Literal["deleted", "absent", "failed"]
    error: str | None = None


@dataclass(frozen=True)
class CopyOutcome:
    """A verified copy: `checksum` is `sha256:<hex>` of the bytes at the destination, read back or as its server
    computed it, equal to the source's."""

    size_in_bytes: int
    checksum: str


@dataclass(frozen=True)
class ArchiveState:
    """Whether a file is readable now. A file in an archive class is readable only after a thaw, until `readable_until`
    (UTC; None if the store does not report it). `thawing` means that a thaw is under way."""

    archived: bool
    readable: bool
    thawing: bool = False
    readable_until: datetime | None = None


# Aliases, because inside a class with a method `list`, a type checker takes `list` for that method.
Children = tuple[list[str], list[StoredFile]]


@dataclass(frozen=True)
class Span:
    """A range of the paths below the folder `prefix`, in the order of their UTF-8 bytes: after `after` (exclusive;
    None: from the first) up to `until` (inclusive; None: to the last)."""

    prefix: str
    after: str | None = None
    until: str | None = None


Outcomes = list[DeleteOutcome]
Spans = list[Span]
Heads = list[StoredFile | None]


@dataclass(frozen=True)
class FileStatuses:
    """Information about many files, one row each: whether it was `found`, and its identity (`identity.FileIdentity`).
    Values of rows that were not found are undefined. `etags` has the tokens of rows whose store has such."""

    found: NDArray[np.bool_]
    sizes: NDArray[np.int64]
    modified: NDArray[np.int64]
    tags: NDArray[np.int64]
    etags: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, heads: Sequence[StoredFile | None]) -> Self:
        """Convert from one result per file."""
        rows = len(heads)
        answers = cls(np.zeros(rows, np.bool_), np.zeros(rows, np.int64), np.full(rows, NO_TIME), np.full(rows, NO_TAG))
        for row, head in enumerate(heads):
            answers.put(row, head)
        return answers

    def put(self, row: int, head: StoredFile | None) -> None:
        """Set the result of one row."""
        self.found[row] = head is not None
        if head is not None:
            known = head.identity
            self.sizes[row], self.modified[row] = known.size_in_bytes, known.modified
            self.tags[row] = known.tag
            if head.etag is not None:
                self.etags[row] = head.etag


REMOVED, ABSENT, FAILED = 0, 1, 2

NOT_TRIED = "not tried: the time for this call was over"
"""The error of a path that a delete with a time limit did not reach."""


@dataclass(frozen=True)
class Removals:
    """The results for many paths, one row each: REMOVED, ABSENT or FAILED. `errors` has the reason for each failed
    row."""

    outcomes: NDArray[np.int8]
    errors: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, answers: Sequence[DeleteOutcome]) -> Self:
        """Convert from one result per path."""
        kinds = {"deleted": REMOVED, "absent": ABSENT, "failed": FAILED}
        failed = ((row, each) for row, each in enumerate(answers) if each.outcome == "failed")
        errors = {row: each.error or "the store refused" for row, each in failed}
        return cls(np.array([kinds[each.outcome] for each in answers], np.int8), errors)


class Store(Protocol):
    """One kind of store. Errors are StorageError, whose text never contains a secret."""

    def list(self, prefix: str) -> Iterator[StoredFile]: ...

    def children(self, prefix: str, most: int | None = None) -> Children: ...

    def head(self, path: str) -> StoredFile | None: ...

    def heads(self, paths: Sequence[str]) -> Heads: ...

    def open(self, path: str) -> BinaryIO: ...

    def read(self, path: str, limits: ReadLimits) -> bytes: ...

    def read_range(self, path: str, offset: int, length: int) -> bytes: ...

    def write(self, path: str, data: bytes, *, overwrite: bool, storage_class: str | None) -> StoredFile: ...

    def put_stream(
        self,
        path: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        storage_class: str | None,
        verify: Callable[[int, str], None],
        overwrite: bool,
    ) -> None:
        """Write `chunks` to `path`. Without `overwrite`, an existing file raises ExistingFile. `verify(size, checksum)`
        receives what was read back, and raises to refuse the copy, which is then removed from `path`."""
        ...

    def delete(self, paths: Sequence[str], *, until: float | None, etags: Mapping[int, str]) -> Outcomes: ...

    def archive(self, path: str, storage_class: str) -> bool: ...

    def thaw(self, path: str, days: int, retrieval: str) -> None: ...

    def end_thaw(self, path: str) -> None: ...

    def unarchive(self, path: str) -> bool: ...

    def archive_state(self, path: str) -> ArchiveState | None: ...


def missing(path: str) -> MissingFile:
    return MissingFile(
        "The file is absent", path=path, untouched="everything else", hint="check whether it was deleted or moved"
    )


def existing(path: str) -> ExistingFile:
    return ExistingFile(
        "The file already exists",
        path=path,
        untouched="the existing file",
        hint="read the existing file, or write to another path",
    )
