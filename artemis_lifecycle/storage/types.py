"""What stores answer with, and what each kind of store offers (`Store`). Users import these from `stores`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO, Literal, Protocol

ARCHIVE_CLASSES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes of S3 whose objects are not readable until they were thawed (restored, in S3's words)."""

CHUNK = 1 << 20
"""Bytes that are read or written at a time when a file is streamed."""


@dataclass(frozen=True)
class StoredFile:
    """A file and what its store says of it. `last_modified` is in UTC; None where the store does not tell."""

    path: str
    size_in_bytes: int
    last_modified: datetime | None


@dataclass(frozen=True)
class DeleteOutcome:
    """What became of one path. S3 answers for a key that is not there as for one it deleted: "deleted"."""

    path: str
    outcome: Literal["deleted", "absent", "failed"]
    error: str | None = None


@dataclass(frozen=True)
class CopyOutcome:
    """A verified copy: `checksum` is `sha256:<hex>` of the bytes read back at the destination, and the source's."""

    source: str
    destination: str
    size_in_bytes: int
    checksum: str


@dataclass(frozen=True)
class ArchiveState:
    """Whether a file can be read now. One in an archive class cannot, until it was thawed; then it can until
    `readable_until` (UTC; None where the store does not tell). `thawing`: that was asked for and is under way."""

    archived: bool
    readable: bool
    thawing: bool = False
    readable_until: datetime | None = None


# Named, because inside a class with a method `list` the builtin's name means that method to a type checker.
Children = tuple[list[str], list[StoredFile]]


@dataclass(frozen=True)
class Span:
    """Some of what is below the folder `prefix`: the paths after `after` (None: from its first on), up to `until`,
    that one included (None: to its last), in the order of their UTF-8 bytes."""

    prefix: str
    after: str | None = None
    until: str | None = None


Outcomes = list[DeleteOutcome]
Spans = list[Span]
Heads = list[StoredFile | None]
Paths = list[str]


class Store(Protocol):
    """One kind of store. Errors are StorageError, whose text never holds a secret."""

    def list(self, prefix: str) -> Iterator[StoredFile]: ...

    def children(self, prefix: str) -> Children: ...

    def head(self, path: str) -> StoredFile | None: ...

    def heads(self, paths: Sequence[str]) -> Heads: ...

    def open(self, path: str) -> BinaryIO: ...

    def read(self, path: str) -> bytes: ...

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
    ) -> None:
        """Replace `path` by `chunks`. `verify(size, checksum)` is told what reads back and raises to refuse the copy,
        which then does not stay at `path`."""
        ...

    def delete(self, paths: Sequence[str], *, within_seconds: float | None) -> Outcomes: ...

    def touch(self, path: str, last_modified: datetime) -> None: ...

    def archive(self, path: str, storage_class: str) -> bool: ...

    def thaw(self, path: str, days: int, retrieval: str) -> None: ...

    def end_thaw(self, path: str) -> None: ...

    def archive_state(self, path: str) -> ArchiveState | None: ...
