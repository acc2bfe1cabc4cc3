"""`Stores` is the only access to object stores. It routes each path to the store of its scheme, and copies between
stores.

Nothing here deletes on its own initiative: a failed copy removes only what it wrote.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.config.schemes import AZURE_SCHEMES, KINDS, S3_SCHEMES, kind_of
from artemis_lifecycle.errors import CopyMismatch, ExistingFile, MissingFile, StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.local.store import LocalStore
from artemis_lifecycle.storage.location import normalize, split
from artemis_lifecycle.storage.pace import PIECE
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.types import (
    ARCHIVE_CLASSES,
    CHUNK,
    UNREADABLE_CLASSES,
    ArchiveState,
    Children,
    CopyOutcome,
    DeleteOutcome,
    FileStatuses,
    Heads,
    Outcomes,
    Removals,
    Span,
    Spans,
    Store,
    StoredFile,
    existing,
    missing,
)

if TYPE_CHECKING:
    from artemis_lifecycle.storage.objects import ObjectStore
    from artemis_lifecycle.storage.s3 import S3Store

__all__ = ["ArchiveState", "CopyOutcome", "DeleteOutcome", "StoreSettings", "StoredFile", "Stores", "is_local"]

_DEFAULTS = StoreSettings()
_LOCAL = frozenset({"", "file"})
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_CARRIED = threading.BoundedSemaphore(2)
"""For copies that a server refuses to make by itself: many were begun at once, and each holds a part in memory."""

Shown = dict[tuple[str, str], dict[tuple[str, str], bool]]
"""What probes have shown (`ObjectStore.shown`), by the key of a store in `Stores`."""

_SMALL = 64 << 10
"""Bytes. For files below this size, opening and parsing in Python take longer than reading and decompressing."""


def is_local(path: str) -> bool:
    """Return True if `path` is on this machine's file system."""
    # Nearly all paths begin in one of these ways, so most need no pattern match.
    return path.startswith(("file:/", "/")) or split(path).scheme in _LOCAL


def place_of(folder: str, path: str) -> str:
    """Return the location of the file `path` in a job's quarantine folder."""
    digest = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
    name = _ODD.sub("_", path.rpartition("/")[2])[-60:]
    return f"{folder}/files/{digest[:40]}-{name}"


def are_local(paths: pa.Array) -> pa.Array:
    """`is_local` for an Arrow array of strings, as booleans. False for relative paths, which name no file."""
    return pc.match_substring_regex(paths, r"(?i)\A(file:)?/")


class Stores:
    """All stores that `settings` can access.

    `s3_client_factory` (no arguments, returns an S3 client) replaces the client from `settings` in this process, like
    dagster-aws' `S3Resource.get_client`. It is not pickled: a Spark executor builds its client from `settings`, so they
    must have the same endpoint and credentials, or leave both to boto3's default chain.

    All methods raise StorageError for a scheme that no store supports, except `delete` and `remove`, which report it.
    """

    def __init__(self, settings: StoreSettings = _DEFAULTS, s3_client_factory: Callable[[], Any] | None = None) -> None:
        self.settings = settings
        self._s3_client_factory = s3_client_factory
        self._local = LocalStore()
        self._elsewhere = dict(settings.elsewhere)
        self._objects: dict[tuple[str, str], ObjectStore] = {}
        self._shown: Shown = {}

    def __getstate__(self) -> tuple[StoreSettings, Shown]:
        # What probes have shown of servers need not be asked by each task.
        return self.settings, {place: dict(store.shown) for place, store in [*self._objects.items()]}

    def __setstate__(self, state: tuple[StoreSettings, Shown]) -> None:
        Stores.__init__(self, state[0])
        self._shown = state[1]

    def __repr__(self) -> str:
        return f"Stores({self.settings!r})"

    def shared_by(self, tasks: int) -> Stores:
        """Return the stores for each of `tasks` tasks that read at the same time, so that together they keep to the
        read budget."""
        return Stores(self.settings.shared_by(tasks), self._s3_client_factory)

    def with_moved(self, folders: tuple[str, ...]) -> Stores:
        """Return stores for which a file that is in one of these quarantine folders is still at its path."""
        found = Stores(replace(self.settings, moved=folders), self._s3_client_factory) if folders else self
        found._objects = self._objects
        return found

    def _at(self, path: str) -> str:
        """Return where the file is: at its path, or where a deletion moved it, which had listed it in its own
        spelling."""
        if not self.settings.moved:
            return path
        spellings = {path, normalize(path)}
        moved = (place_of(folder, each) for folder in self.settings.moved for each in spellings)
        return next((each for each in (path, *moved) if self._store(each).head(each) is not None), path)

    def readers(self, path: str, most: int, size_in_bytes: float | None = None) -> int:
        """Return how many threads, at most `most`, should read files like `path` at once. `size_in_bytes` is their
        usual size.

        On an object store, many threads hide the latency. A local disk has no latency to hide: large files use a thread
        per core. For small files, threads would only compete for the GIL.
        """
        if not is_local(path):
            return most
        small = size_in_bytes is not None and size_in_bytes < _SMALL
        return 1 if small else max(1, min(most, os.cpu_count() or 1))

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Yield all files below the folder `prefix`, including hidden ones, in `prefix`'s spelling. Nothing if it is
        missing.

        In object stores, an empty object whose key ends in `/` is a folder marker, not a file. Every error is a
        StorageError: a listing that ends without one is complete.
        """
        return self._store(prefix).list(prefix)

    def batches(self, folder: str) -> Iterator[pa.RecordBatch]:
        """`list` of a local folder as Arrow (path, last_modified, size_in_bytes, tag)."""
        return self._local.batches(folder)

    def has_spans(self, prefix: str) -> bool:
        """Return True if `list_span` and `split` support the prefix's store."""
        return split(prefix).scheme in S3_SCHEMES

    def list_span(self, span: Span) -> Iterator[StoredFile]:
        """`list` for a span of an S3 prefix. Raises StorageError if the server does not list keys in order."""
        return self._s3_of(span).list_span(span)

    def split(self, span: Span, wanted: int) -> Spans:
        """Split the span of an S3 prefix into about `wanted` disjoint pieces that together cover it, if its keys differ
        enough. The number of keys in each is unknown."""
        return self._s3_of(span).split(span, wanted)

    def children(self, prefix: str, most: int | None = None) -> Children:
        """Return one level of `list`: (folders, each with its trailing `/`; files). `list` and `children` accept such a
        folder. With `most`, an object store is asked for no further page after so many entries."""
        return self._store(prefix).children(prefix, most)

    def head(self, path: str) -> StoredFile | None:
        """Return the store's information about one file. None if it is absent or a folder."""
        path = self._at(path)
        return self._store(path).head(path)

    def heads(self, paths: Sequence[str]) -> Heads:
        """`head` of each path, in the given order. Faster than separate calls, especially for files in the same
        folders."""
        found: list[StoredFile | None] = []
        for store, group in groupby(map(self._at, paths), self._store):
            found += store.heads([*group])
        return found

    def statuses(self, paths: pa.Array) -> FileStatuses:
        """`heads` of an Arrow array of strings."""
        return FileStatuses.of(self.heads(paths.to_pylist()))

    def exist(self, paths: pa.Array) -> NDArray[np.bool_]:
        """Return which of these local paths exist. If most do not, this is much cheaper than `statuses` or deletes."""
        return self._local.exist(paths)

    def open(self, path: str) -> BinaryIO:
        """Open the file as a seekable stream that uses little memory. Raises MissingFile, a StorageError, if it is
        absent."""
        return self._store(path).open(path)

    @property
    def limits(self) -> ReadLimits:
        """The size limits of one file when it is read."""
        return self.settings.limits

    def read(self, path: str) -> bytes:
        """Return the complete file. Raises MissingFile if it is absent, and TooLarge beyond `limits`; both are
        StorageError."""
        path = self._at(path)
        return self._store(path).read(path, self.limits)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`; fewer at the end of the file. Raises MissingFile, a StorageError, if it
        is absent."""
        return self._store(path).read_range(path, offset, length)

    def write(self, path: str, data: bytes, *, overwrite: bool = False, storage_class: str | None = None) -> StoredFile:
        """Store `data` completely or not at all. It is durable when this returns.

        Without `overwrite`, an existing file raises ExistingFile, a StorageError. Of several concurrent writers,
        exactly one succeeds.
        """
        chosen = storage_class or self.settings.storage_class
        return self._store(path).write(path, data, overwrite=overwrite, storage_class=chosen)

    def checksum(self, path: str) -> str:
        """Return `sha256:<hex>` of the file's current bytes."""
        return _checksum(self.open(path), path)

    def head_and_checksum(
        self, path: str, admits: Callable[[StoredFile], bool]
    ) -> tuple[StoredFile | None, str | None]:
        """Return an object's `head`, and if `admits` accepts that, the checksum of this very object: on S3 both are of
        one answer."""
        store = self._remote(path)
        assert store is not None
        if not store.can_have(path):
            return None, None
        try:
            found, file = store.opened(path)
            with file:
                return found, _checksum(file, path) if admits(found) else None
        except MissingFile:
            return None, None

    def copy(
        self,
        source: str,
        destination: str,
        *,
        source_stores: Stores | None = None,
        storage_class: str | None = None,
        found: StoredFile | None = None,
        absent: bool = False,
        overwrite: bool = True,
        confirm: Callable[[str], None] = lambda checksum: None,
    ) -> CopyOutcome:
        """Copy one file and read it back. Memory is limited to one part (`settings.multipart_bytes`). `found` is the
        source's `head`, if the caller has it: no other file is copied. `absent` says that it has just seen none at
        `destination`.

        An identical file at `destination` counts as done; a different one is replaced, or raises ExistingFile without
        `overwrite`, also if it came to be there meanwhile, where the store honors that. `confirm` gets the checksum of
        what is copied, and raises to refuse it before it takes its place. Between buckets of one server, the server
        copies, and only the object that was read, to where nothing is: what a copy replaces may be the last one.
        Without `overwrite`, a probe must have shown that the server refuses a second copy. If it answers with the
        copy's SHA-256, that is compared, and the copy not read back. A copy that reads back differently is repeated, up
        to `settings.copy_attempts` attempts.

        Raises MissingFile if the source is absent, CopyMismatch if no attempt reads back correctly (`destination` then
        has no file of this call), and StorageError for everything else.
        """
        origin = self if source_stores is None else source_stores
        chosen = storage_class or self.settings.storage_class
        if normalize(source) == normalize(destination):
            raise StorageError(
                "Source and destination are one file",
                path=source,
                untouched="the file",
                hint="choose another destination",
            )
        if chosen in UNREADABLE_CLASSES.get(kind_of(destination) or "", ()):
            raise StorageError(
                f"A copy in storage class {chosen} cannot be read back, so it cannot be verified",
                path=destination,
                untouched="source and destination",
                hint="copy to a class with immediate access (GLACIER_IR, Cold), and change the class after that",
            )
        found = found or origin.head(source)
        if found is None:
            raise missing(source)
        size, replaces = found.size_in_bytes, False

        def present() -> CopyOutcome | None:
            nonlocal replaces
            there = self.head(destination)
            replaces = there is not None
            if there is None or there.size_in_bytes != size:
                return None
            state = self.archive_state(destination) if overwrite else None
            if state is not None and state.archived:
                return None  # It leaves the archive by being written again.
            checksum = origin.checksum(source)
            return CopyOutcome(size, checksum) if self.checksum(destination) == checksum else None

        done, refusal = None if absent else present(), ""
        if done is not None:
            return done
        for _ in range(self.settings.copy_attempts):
            try:
                copier = None if replaces else self._copier(origin, source, destination, overwrite=overwrite)
                checksum = self._transfer(
                    origin, source, found, destination, chosen, confirm, copier, overwrite=overwrite
                )
                return CopyOutcome(size, checksum)
            except ExistingFile:
                # Perhaps by an attempt of this call whose answer was lost.
                done = present()
                if done is not None:
                    return done
                if self.head(destination) is not None:
                    raise
                refusal = "the source changed meanwhile"  # Stores answer that as they do an existing object.
            except _ReadsBackDifferently as difference:
                refusal = str(difference)
        raise CopyMismatch(
            f"A copy reads back differently from its source, {self.settings.copy_attempts} times: {refusal}",
            path=destination,
            untouched=f"the source {source}",
            hint="check both stores' disks and network, then run the step again",
        )

    def copy_new(
        self, source: str, destination: str, *, source_stores: Stores, found: StoredFile, checksum: str
    ) -> bool:
        """Have the server copy the object that was `found`, whose bytes have this checksum, to where nothing is, in one
        request if it computes checksums. Return False if it does not or something is there: `copy` then finds out."""
        chosen, size = self.settings.storage_class, found.size_in_bytes
        target = self._copier(source_stores, source, destination, overwrite=False)
        if target is None or found.etag is None or chosen in UNREADABLE_CLASSES.get(kind_of(destination) or "", ()):
            return False
        try:
            return target.copy_within(
                source,
                destination,
                size=size,
                source_etag=found.etag,
                checksum=checksum,
                storage_class=chosen,
                verify=_verifier(size, lambda: (size, checksum)),
                overwrite=False,
            )
        except (ExistingFile, _ReadsBackDifferently):
            return False

    def copies_within(self, origin: Stores, source: str, destination: str) -> bool:
        """Return True if one server has both paths, `source` by `origin`, and may copy by itself: then many copies at
        once take little memory."""
        return self._copier(origin, source, destination, overwrite=False) is not None

    def require_unchanged(self, path: str, found: StoredFile) -> None:
        """Raise CopyMismatch if the file at `path` is not the one that was `found`."""
        after = self.head(path)
        if after is None or after.identity != found.identity:
            raise CopyMismatch(
                "The file changed while it was copied", path=path, untouched="the file", hint="try again"
            )

    def remove_empty(self, folder: str, below: str) -> int:
        """On a local disk, remove `folder` and its parents while they are empty, but not `below`. Return how many were
        removed. Object stores have no folders."""
        return self._local.remove_empty(folder, below) if is_local(folder) and is_local(below) else 0

    def duplicate(self, source: str, destination: str, *, overwrite: bool = True) -> None:
        """Make the bytes of `source` also available at `destination`: as a hard link if both are on one disk that
        supports links, else as a verified copy. Only for files that are never written again. Without `overwrite`, a
        different file at `destination` raises ExistingFile; a link does so up to the last moment. Raises what `copy`
        raises."""
        both_local = split(source).scheme in _LOCAL and split(destination).scheme in _LOCAL
        if both_local and self._local.second_name(source, destination):
            return
        if not overwrite and self.head(destination) is not None:
            if self.checksum(destination) != self.checksum(source):
                raise existing(destination)
            return
        self.copy(source, destination, overwrite=overwrite)

    def _transfer(
        self,
        origin: Stores,
        source: str,
        found: StoredFile,
        destination: str,
        storage_class: str | None,
        confirm: Callable[[str], None],
        target: ObjectStore | None,
        *,
        overwrite: bool,
    ) -> str:
        size = found.size_in_bytes
        carried: AbstractContextManager[object] = nullcontext()
        if found.etag is not None and target is not None:
            expected = origin.checksum(source)
            confirm(expected)
            if target.copy_within(
                source,
                destination,
                size=size,
                source_etag=found.etag,
                checksum=expected,
                storage_class=storage_class,
                verify=_verifier(size, lambda: (size, expected)),
                overwrite=overwrite,
            ):
                return expected
            carried = _CARRIED
        digest = hashlib.sha256()
        streamed = 0

        def reading() -> Iterator[bytes]:
            nonlocal streamed
            for chunk in _chunks(origin.open(source), source):
                digest.update(chunk)
                streamed += len(chunk)
                yield chunk
            if streamed == size:
                origin.require_unchanged(source, found)
                confirm(f"sha256:{digest.hexdigest()}")

        verify = _verifier(size, lambda: (streamed, f"sha256:{digest.hexdigest()}"))
        with carried:
            self._store(destination).put_stream(
                destination, reading(), size=size, storage_class=storage_class, verify=verify, overwrite=overwrite
            )
        return f"sha256:{digest.hexdigest()}"

    def _copier(self, origin: Stores, source: str, destination: str, *, overwrite: bool) -> ObjectStore | None:
        """Return the store of `destination` if its server also has `source` in `origin`, and so can copy; without
        `overwrite`, if it then replaces no object, whatever comes to be there meanwhile."""
        target, other = self._remote(destination), origin._remote(source)
        if target is None or other is None or kind_of(destination) != kind_of(source):
            return None
        if not target.same_server(destination, other, source):
            return None
        return target if overwrite or target.keeps_existing(destination) else None

    def deletes_at_once(self, path: str) -> int:
        """Return how many files like `path` may be deleted at once: those of about one second."""
        store = self._remote(path)
        return PIECE if store is None else store.deletes_at_once()

    def reserve_deletes(self, paths: pa.Array) -> None:
        """Wait until the store's budget allows these deletes, so that nobody waits for it later, with a lock."""
        store = self._remote(paths[0].as_py()) if len(paths) else None
        if store is not None:
            store.reserve_deletes(len(paths))

    def delete(
        self, paths: Sequence[str], *, until: float | None = None, etags: Mapping[int, str] | None = None
    ) -> Outcomes:
        """Delete files. Return one outcome per path, in the given order. A path that cannot be deleted does not raise.

        For a symbolic link, the link is deleted, not its target. A folder stays and is "failed". Once
        `instants.elapsed` is `until`, no more requests begin, including retries; the remaining paths are then "failed".
        A row with one of `etags` (`FileStatuses.etags`) goes only if it still has it, where the store honors that; else
        it is deleted like the others.
        """
        groups: dict[Store, list[int]] = {}
        outcomes: dict[int, DeleteOutcome] = {}
        for index, path in enumerate(paths):
            store = self._found(path)
            if store is None:
                outcomes[index] = DeleteOutcome(path, "failed", f"no store here answers to {split(path).scheme}:")
            else:
                groups.setdefault(store, []).append(index)
        for store, indexes in groups.items():
            own = {place: etags[index] for place, index in enumerate(indexes) if etags and index in etags}
            done = store.delete([paths[index] for index in indexes], until=until, etags=own)
            outcomes.update(zip(indexes, done, strict=True))
        return [outcomes[index] for index in range(len(paths))]

    def remove(
        self, paths: pa.Array, *, until: float | None = None, etags: Mapping[int, str] | None = None
    ) -> Removals:
        """`delete` for an Arrow array of strings."""
        return Removals.of(self.delete(paths.to_pylist(), until=until, etags=etags))

    def archive(self, path: str, storage_class: str = "DEEP_ARCHIVE") -> bool:
        """Move a file to an archive class at the same path. It is still listed, but not readable until it is thawed.
        Return False if it is already archived.

        On S3, the store copies the object onto itself; other object stores refuse. A local disk has no such class: the
        file is moved to the folder `.deep-archive` next to it. Raises MissingFile; raises StorageError and leaves the
        file unchanged if the store refuses.
        """
        if storage_class not in ARCHIVE_CLASSES:
            raise StorageError(
                f"{storage_class} is not an archive class",
                path=path,
                untouched="the file",
                hint=f"use one of {', '.join(sorted(ARCHIVE_CLASSES))}",
            )
        return self._store(path).archive(path, storage_class)

    def thaw(self, path: str, *, days: int, retrieval: str = "Bulk") -> None:
        """Request that an archived file be readable for `days` days, at once or (on S3) after hours; see
        `archive_state`. A repeated request changes nothing while the thaw is under way, and extends it afterward.
        Raises MissingFile."""
        self._store(path).thaw(path, days, retrieval)

    def end_thaw(self, path: str) -> None:
        """Remove the readable copy of an archived file, as S3 does by itself at the end of a thaw."""
        self._store(path).end_thaw(path)

    def unarchive(self, path: str) -> bool:
        """Take a file out of the archive for good. Return False if it has to be written again for that."""
        return self._store(path).unarchive(path)

    def archive_state(self, path: str) -> ArchiveState | None:
        """Return whether the file is archived, and whether it is readable now. None if it is absent."""
        return self._store(path).archive_state(path)

    def _found(self, path: str) -> Store | None:
        """Return the store of the path's scheme. Another kind of store is added here."""
        return self._local if is_local(path) else self._remote(path)

    def _remote(self, path: str) -> ObjectStore | None:
        """Return the object store of the path; None for a local path or an unknown scheme."""
        kind = kind_of(path)
        if kind is None:
            return None
        bucket = split(path).authority if self._elsewhere else ""
        other = self._elsewhere.get(bucket)
        place = kind, "" if other is None else bucket
        if place not in self._objects:
            made = _made(kind, other or self.settings, None if other else self._s3_client_factory)
            made.shown.update(self._shown.get(place, {}))
            self._objects[place] = made
        return self._objects[place]

    def _store(self, path: str) -> Store:
        store = self._found(path)
        if store is None:
            raise StorageError(
                f"No store here answers to {split(path).scheme}:",
                path=path,
                hint=f"use file:, {', '.join(f'{scheme}:' for kind in KINDS for scheme in kind)} paths",
            )
        return store

    def _s3_of(self, span: Span) -> S3Store:
        """Return the store of a span. Raises StorageError for a store without spans."""
        if self.has_spans(span.prefix):
            return cast("S3Store", self._store(span.prefix))
        raise StorageError(
            "Only a prefix in S3 can be listed in spans", path=span.prefix, hint="list the folder as a whole"
        )


def _made(kind: str, settings: StoreSettings, s3_client_factory: Callable[[], Any] | None) -> ObjectStore:
    # boto3 takes a fifth of a second to load, and a local warehouse never needs it.
    from artemis_lifecycle.storage.objects import ObjectStore

    if kind == S3_SCHEMES[0]:
        from artemis_lifecycle.storage.s3 import S3Store

        return S3Store(settings, s3_client_factory)
    if kind == AZURE_SCHEMES[0]:
        from artemis_lifecycle.storage.azure import AzureRequests

        return ObjectStore(settings, AzureRequests(settings))
    from artemis_lifecycle.storage.gcs import GcsRequests

    return ObjectStore(settings, GcsRequests(settings))


class _ReadsBackDifferently(Exception):  # noqa: N818  (control flow inside `copy`)
    pass


def _verifier(size: int, expected: Callable[[], tuple[int, str]]) -> Callable[[int, str], None]:
    """Return a check of the read-back bytes against the source: its size before the copy, and its bytes as streamed."""

    def verify(read_size: int, read_checksum: str) -> None:
        streamed, checksum = expected()
        if not streamed == size == read_size:
            raise _ReadsBackDifferently(f"the source has {size} bytes, {streamed} were read, {read_size} were written")
        if checksum != read_checksum:
            raise _ReadsBackDifferently(f"the source is {checksum}, the copy {read_checksum}")

    return verify


def _checksum(file: BinaryIO, path: str) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(file, path):
        digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _chunks(file: BinaryIO, path: str) -> Iterator[bytes]:
    with file:
        while True:
            try:
                chunk = file.read(CHUNK)
            except OSError as error:
                raise StorageError(
                    f"A file cannot be read to its end: {error.strerror or error}",
                    path=path,
                    untouched="the file",
                    hint="check the store, then retry",
                ) from error
            if not chunk:
                return
            yield chunk
