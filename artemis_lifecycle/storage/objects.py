"""What object stores have in common: paths and keys, retries and streams; and, for stores of any kind but S3, pace and
errors, and conditional writes, copies and deletes by an object's token. Does not belong here: how one kind of store
words its requests (`azure`, `gcs`).

No request names a version of an object, so that a delete in a versioned or soft-deleted bucket takes only the current
one, and only as far as the bucket's own settings do.
"""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, BinaryIO, Literal, NoReturn, Protocol, TypeVar, cast
from urllib.parse import quote

from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from artemis_lifecycle.errors import ExistingFile, StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.location import split
from artemis_lifecycle.storage.pace import PIECE, pace_of
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import (
    CHUNK,
    NOT_TRIED,
    ArchiveState,
    Children,
    DeleteOutcome,
    Heads,
    Outcomes,
    StoredFile,
    existing,
    missing,
    object_tag,
)

T = TypeVar("T")
Outcome = Literal["deleted", "absent", "failed"]

_THREADS = 10
"""As many connections as Google's client keeps."""

_LONGEST_KEY = 1024
"""Characters: no store has an object with a longer key."""

_AHEAD = 16 << 20
"""The most bytes that one request of a sequential read fetches."""

_PROBE = "artemis-probe-"
_STALE = 412
"""Status of a conditional request whose condition does not hold."""

_TRANSIENT = {0, 408, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Address:
    """`stem` is the path up to and including the bucket, in the user's spelling; `bucket` is its authority."""

    stem: str
    bucket: str
    key: str


@dataclass(frozen=True)
class Item:
    """An object: `token` identifies its content (ETag, generation); `write_id` as in `Writing`."""

    key: str
    size: int
    modified: datetime
    token: str | None
    write_id: str | None = None
    archived: bool = False
    thawing: bool = False


Page = tuple[list[str], list[Item], Any]
"""Folders (with their `/`) and objects, and what the request for the next page needs; None at the end."""


class Refusal(Exception):  # noqa: N818  (control flow inside a store)
    """A request that failed. `status` as in HTTP; 0 if the server did not answer. `settled`: do not ask again."""

    def __init__(self, status: int, message: str, *, code: str = "", settled: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.transient = status in _TRANSIENT and not settled


@dataclass(frozen=True)
class Writing:
    """How an object is written: only if its key is `new`, in which class, and with an id that `head` returns."""

    new: bool
    storage_class: str | None
    write_id: str = field(default_factory=lambda: uuid.uuid4().hex)


class Requests(Protocol):
    """The requests of one kind of store, one in each method unless it gets a `call`, which sends each of several. They
    raise Refusal. A `token` restricts a request to the object that has it. What writes returns the new token."""

    kind: str
    credentials: str
    """The name of the store for messages, and the properties that have its credentials."""

    classes: Mapping[str, str | None]
    """This store's classes for the names that S3 has for them; None: the bucket's own."""
    wrong_token: str
    """A token that no object has."""

    def refused_key(self, key: str) -> str | None:
        """Return why no object can be reached by this key; None for an ordinary one."""
        ...

    def server(self, bucket: str) -> str:
        """Return the server of a bucket: between buckets of one server, it copies."""
        ...

    def page(self, bucket: str, prefix: str, *, deep: bool, after: Any) -> Page: ...

    def head(self, at: Address) -> Item: ...

    def get(self, at: Address, start: int, length: int, token: str | None) -> bytes: ...

    def put(self, at: Address, data: bytes | bytearray, how: Writing) -> str: ...

    def put_parts(self, at: Address, parts: Iterable[bytearray], how: Writing, call: Call) -> str: ...

    def copy(self, source: Address, at: Address, token: str, how: Writing, call: Call) -> str: ...

    def delete(self, at: Address, token: str | None) -> None: ...


class Call(Protocol):
    """Sends a request that carries `size` bytes when its turn has come, again while the server is busy."""

    def __call__(self, send: Callable[[], T], kind: str = "reads", size: int = 0) -> T: ...


class _TimeIsOver(Exception):  # noqa: N818  (control flow inside a delete)
    pass


def refusal(key: str) -> str | None:
    """Return why no store has an object with this key; None for any other key."""
    if not key:
        return "it names a bucket and no object"
    try:
        key.encode()
    except UnicodeEncodeError:
        return "its name is not Unicode text"
    return None


def address_of(path: str) -> Address:
    parts = split(path)
    if not parts.authority:
        raise StorageError("The path names no bucket", path=path, hint=f"write it as {parts.scheme}://bucket/key")
    return Address(path[: len(path) - len(parts.path)], parts.authority, parts.path[1:])


class SeekableObject(io.RawIOBase):
    """One object as a seekable stream. A subclass reads it, and drops what it read ahead where the position moves."""

    def __init__(self, size: int = 0) -> None:
        super().__init__()
        self._size, self._position = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        position = max(0, start + offset)
        if position != self._position:
            self._drop()
            self._position = position
        return position

    def _drop(self) -> None:
        """Drop what was read ahead of the position."""


def pieces(chunks: Iterable[bytes], size: int) -> Iterator[bytearray]:
    """Yield the same bytes in pieces of exactly `size`; the last one is shorter."""
    part = bytearray()
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            taken = rest[: size - len(part)]
            part += taken
            rest = rest[len(taken) :]
            if len(part) == size:
                yield part
                part = bytearray()
    if part:
        yield part


def retrying(settings: StoreSettings, transient: Callable[[BaseException], bool]) -> Retrying:
    """Return what sends a request again, with full jitter, while the server is busy or the connection fails."""
    return Retrying(
        retry=retry_if_exception(transient),
        wait=wait_random_exponential(multiplier=0.2, max=settings.max_wait_seconds),
        stop=stop_after_attempt(settings.attempts) | stop_after_delay(settings.deadline_seconds),
        reraise=True,
    )


class ObjectStore:
    """The objects that `requests` reaches."""

    def __init__(self, settings: StoreSettings, requests: Requests) -> None:
        self.settings = settings
        self._requests = requests
        self._buckets: set[str] = set()
        self._conditional: dict[str, bool] = {}

    # --- requests

    def _send(self, send: Callable[[], T], kind: str = "reads", size: int = 0, until: float | None = None) -> T:
        """Send a request that carries `size` bytes. Retry with full jitter while the server is busy or the connection
        fails, then raise Refusal. Raises _TimeIsOver instead of sending once `elapsed` is `until`."""

        def attempt() -> T:
            pace = pace_of(*self.settings.paced_by)
            pace.take(kind, 1)
            pace.take("bytes", size)
            if until is not None and elapsed() >= until:
                pace.put_back(kind, 1)
                raise _TimeIsOver
            return send()

        return retrying(self.settings, lambda error: isinstance(error, Refusal) and error.transient)(attempt)

    def _call(self, what: str, path: str, send: Callable[[], T]) -> T:
        """Like `_send`, but raise StorageError."""
        try:
            return self._send(send)
        except Refusal as error:
            self._fail(what, path, error)

    def _fail(self, what: str, path: str, error: Refusal) -> NoReturn:
        address, requests = address_of(path), self._requests
        if error.status == 404 and address.key:
            self._require_bucket(address, path)
            raise missing(path) from None
        do = f"check the {requests.kind} service and the network, then retry"
        if error.status in (401, 403):
            do = f"check the catalog's credentials ({requests.credentials}) and their permissions, then retry"
        elif error.status == 404:
            do = f"check the name {address.bucket} and the catalog's properties"
        elif error.status == 412:
            do = "another object took its place meanwhile: run the step again"
        elif error.code == "BlobArchived":
            do = "rehydrate the blob to an online tier, then retry"
        raise StorageError(
            f"{what}: {self._reason(error)}", path=path, untouched="the existing objects", hint=do
        ) from None

    def _require_bucket(self, address: Address, path: str) -> None:
        # "No such file" must not be reported for a missing store.
        if address.bucket in self._buckets:
            return
        try:
            self._send(lambda: self._requests.page(address.bucket, "", deep=False, after=None))
        except Refusal as error:
            if error.status == 404:
                raise StorageError(
                    f"{self._requests.kind} has no bucket or container {address.bucket}",
                    path=path,
                    untouched="the existing objects",
                    hint="check its name and the catalog's properties",
                ) from None
            if error.status != 403:  # It exists, but listing it is not allowed.
                self._fail(f"{address.bucket} cannot be reached", address.stem, error)
        self._buckets.add(address.bucket)

    def _usable(self, path: str) -> Address:
        """Return the address of one object. Raises StorageError for a key that this store does not reach."""
        address = address_of(path)
        refused = refusal(address.key) or self._requests.refused_key(address.key)
        if refused is not None:
            raise StorageError(f"No object has this key: {refused}", path=path, hint="check what wrote the path")
        return address

    def same_server(self, path: str, other: ObjectStore, others: str) -> bool:
        """Return True if one server has both paths."""
        return self._requests.server(address_of(path).bucket) == other._requests.server(address_of(others).bucket)

    # --- listing and status

    def list(self, prefix: str) -> Iterator[StoredFile]:
        for _, files in self._pages(prefix, deep=True):
            yield from files

    def children(self, prefix: str) -> Children:
        folders: list[str] = []
        found: list[StoredFile] = []
        for below, files in self._pages(prefix, deep=False):
            folders += below
            found += files
        return folders, found

    def _pages(self, prefix: str, *, deep: bool) -> Iterator[Children]:
        address, after = address_of(prefix), None
        folder = address.key and address.key.rstrip("/") + "/"
        if folder:
            self._usable(prefix.rstrip("/"))
        while True:
            folders, items, following = self._call(
                "A prefix cannot be listed",
                address.stem,
                lambda: self._requests.page(address.bucket, folder, deep=deep, after=after),  # noqa: B023
            )
            files = [self._stored(address, item) for item in items if item.size or not item.key.endswith("/")]
            yield [f"{address.stem}/{each}" for each in folders], files
            if following is None:
                return
            if following == after:
                raise StorageError(
                    "A listing does not end: the server repeats its page",
                    path=prefix,
                    hint=f"check the {self._requests.kind} server; no part of this listing was used",
                )
            after = following

    def _stored(self, address: Address, item: Item) -> StoredFile:
        # HEADs and some listings have no fractions of a second.
        modified = item.modified.astimezone(UTC).replace(microsecond=0)
        return StoredFile(f"{address.stem}/{item.key}", item.size, modified, object_tag(item.token), item.token)

    def _item(self, path: str) -> Item | None:
        address = address_of(path)
        if not address.key or len(address.key) > _LONGEST_KEY:
            return None
        self._usable(path)
        try:
            return self._send(lambda: self._requests.head(address))
        except Refusal as error:
            if error.status != 404:
                self._fail("An object's status cannot be read", path, error)
        self._require_bucket(address, path)
        return None

    def head(self, path: str) -> StoredFile | None:
        found = self._item(path)
        return None if found is None else self._stored(address_of(path), found)

    def heads(self, paths: Sequence[str]) -> Heads:
        return [*threaded(self.head, paths, _THREADS)]

    # --- reading

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", io.BufferedReader(_Reader(self, path), CHUNK))

    def read(self, path: str, limits: ReadLimits) -> bytes:
        """One request for a small object. The size of a large one is checked before the rest is fetched."""
        data = self.read_range(path, 0, min(_AHEAD, limits.max_bytes) + 1)
        if len(data) <= min(_AHEAD, limits.max_bytes):
            return data
        limits.require(self.require_token(path).size, path)
        with self.open(path) as file:
            return file.read()

    def read_range(self, path: str, offset: int, length: int, token: str | None = None) -> bytes:
        """`Store.read_range`; with `token`, only of the object that has it."""
        address = self._usable(path)
        if length <= 0:
            return b""
        try:
            data = self._send(lambda: self._requests.get(address, offset, length, token))
        except Refusal as error:
            if error.status == 416:
                return b""
            self._fail("An object cannot be read", path, error)
        pace_of(*self.settings.paced_by).take("bytes", len(data))
        return data

    def require_token(self, path: str) -> Item:
        """Return an object's status. Raises StorageError if the server does not say which object it is: what is read
        in several requests could then be of two."""
        found = self._item(path)
        if found is None:
            raise missing(path)
        if found.token is None:
            raise StorageError(
                f"The {self._requests.kind} server names neither ETag nor generation of the object",
                path=path,
                untouched="the object",
                hint="check the server, or a proxy in front of it that removes headers",
            )
        return found

    # --- writing

    def write(self, path: str, data: bytes, *, overwrite: bool, storage_class: str | None) -> StoredFile:
        """`last_modified` of the result is None: servers do not report it on a write."""
        how = self._how(overwrite, storage_class)
        try:
            self._put(path, data, how)
        except ExistingFile:
            # If the first attempt succeeded but its answer was lost, the retry finds its own object.
            found = self._item(path)
            if found is None or found.write_id != how.write_id:
                raise
        return StoredFile(path, len(data), None)

    def _how(self, overwrite: bool, storage_class: str | None) -> Writing:
        return Writing(not overwrite, storage_class and self._requests.classes.get(storage_class, storage_class))

    def _put(self, path: str, data: bytes | bytearray, how: Writing) -> str:
        at = self._usable(path)
        return self._written(path, lambda: self._send(lambda: self._requests.put(at, data, how), "writes", len(data)))

    def _written(self, path: str, write: Callable[[], str]) -> str:
        """Return the token of a new object. Raises ExistingFile if its place is taken, and StorageError."""
        try:
            return write()
        except Refusal as error:
            if error.status == _STALE:
                raise existing(path) from None
            self._fail("An object cannot be written", path, error)

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
        at, how = self._usable(path), self._how(overwrite, storage_class)
        parts = pieces(chunks, self.settings.multipart_bytes)
        if size <= self.settings.multipart_bytes:
            only = next(parts, bytearray())
            next(parts, None)  # Detects a source that has grown, so that `verify` fails.
            token = self._put(path, only, how)
        else:
            token = self._written(path, lambda: self._requests.put_parts(at, parts, how, self._send))
        self._verify(path, token, verify)

    def copy_within(
        self,
        source: str,
        destination: str,
        *,
        size: int,
        source_etag: str,
        checksum: str,
        storage_class: str | None,
        verify: Callable[[int, str], None],
        overwrite: bool,
    ) -> bool:
        """Copy on the server, and only the object with `source_etag`. Return False if the server refuses or does
        not find it, so that the bytes must be transferred. `verify` as in `put_stream`: these servers compute no
        SHA-256 of a copy."""
        origin, at, how = self._usable(source), self._usable(destination), self._how(overwrite, storage_class)
        try:
            copied = self._requests.copy(origin, at, source_etag, how, self._send)
        except Refusal as error:
            if error.status == _STALE and how.new:
                # A changed source is answered as an existing copy is; `Stores.copy` asks which it was.
                raise existing(destination) from None
            if error.status not in (401, 403, 404):
                self._fail("An object cannot be copied", destination, error)
            return False
        self._verify(destination, copied, verify)
        return True

    def _verify(self, path: str, token: str, verify: Callable[[int, str], None]) -> None:
        """Read the object back. If `verify` refuses it, remove it, unless another writer has replaced it."""
        with io.BufferedReader(_Reader(self, path), CHUNK) as file:
            digest, size = hashlib.file_digest(file, "sha256"), file.tell()
        try:
            verify(size, f"sha256:{digest.hexdigest()}")
        except Exception:
            with suppress(StorageError):
                found, at = self._item(path), address_of(path)
                if found is not None and found.token == token:
                    self._call("A copy cannot be removed", path, lambda: self._requests.delete(at, token))
            raise

    # --- deleting

    def deletes_at_once(self) -> int:
        """Return how many objects may be deleted at once: those of about one second."""
        rate = pace_of(*self.settings.paced_by).rate("writes")
        return PIECE if rate is None else max(1, min(PIECE, int(rate)))

    def reserve_deletes(self, count: int) -> None:
        """Wait until the budget allows so many deletes."""
        pace_of(*self.settings.paced_by).reserve("writes", count)

    def delete(self, paths: Sequence[str], *, until: float | None, etags: Mapping[int, str]) -> Outcomes:
        """`Stores.delete`: one request for each object."""
        outcomes: dict[str, DeleteOutcome] = {}
        objects: dict[tuple[str, str], list[str]] = {}
        tokens: dict[tuple[str, str], str] = {}
        for row, path in enumerate(paths):
            try:
                address = self._usable(path)
            except StorageError as error:
                outcomes[path] = DeleteOutcome(path, "failed", error.what)
                continue
            # One key may have several spellings.
            at = address.bucket, address.key
            objects.setdefault(at, []).append(path)
            if row in etags and (until is None or elapsed() < until) and self._honors(address):
                tokens[at] = etags[row]
        done = threaded(lambda at: self._delete(objects[at][0], tokens.get(at), until), [*objects], _THREADS)
        for spellings, (outcome, reason) in zip(objects.values(), done, strict=True):
            outcomes |= {path: DeleteOutcome(path, outcome, reason) for path in spellings}
        return [outcomes[path] for path in paths]

    def _delete(self, path: str, token: str | None, until: float | None) -> tuple[Outcome, str | None]:
        address = address_of(path)
        try:
            self._send(lambda: self._requests.delete(address, token), "writes", until=until)
        except _TimeIsOver:
            return "failed", NOT_TRIED
        except Refusal as error:
            if error.status != 404:
                return "failed", self._reason(error)
            try:
                self._require_bucket(address, path)
            except StorageError as lost:
                return "failed", lost.what
            return "absent", None
        return "deleted", None

    def _honors(self, beside: Address) -> bool:
        """Return True if the server deletes by token, as an object shows that is put `beside` a key: it survives a
        wrong token, and goes with the right one. Asked once for each bucket."""
        if beside.bucket not in self._conditional:
            key = f"{beside.key.rpartition('/')[0]}/{_PROBE}{uuid.uuid4().hex}".lstrip("/")
            at, requests = replace(beside, key=key), self._requests

            def goes_with(token: str | None) -> bool:
                with suppress(Refusal):
                    self._send(lambda: requests.delete(at, token), "writes")
                return self._item(f"{at.stem}/{key}") is None

            try:
                token = self._put(f"{at.stem}/{key}", b"May this be deleted?", Writing(True, None))
                self._conditional[at.bucket] = not goes_with(requests.wrong_token) and goes_with(token)
            except StorageError:
                self._conditional[at.bucket] = False
            if not self._conditional[at.bucket]:
                with suppress(StorageError):
                    goes_with(None)
        return self._conditional[beside.bucket]

    # --- archive classes

    def archive(self, path: str, storage_class: str) -> bool:
        self.require_token(path)
        raise StorageError(
            f"{self._requests.kind} has no archive class that the lifecycle can move an object to and thaw again",
            path=path,
            untouched="the object",
            hint="set cold_tier.then to keep, or let a rule of the bucket change the class of old objects",
        )

    def thaw(self, path: str, days: int, retrieval: str) -> None:
        if self.require_token(path).archived:
            raise StorageError(
                "The object is in an archive tier, into which something else than the lifecycle has put it",
                path=path,
                untouched="the object",
                hint="rehydrate it to an online tier in the store, then retry",
            )

    def end_thaw(self, path: str) -> None:
        """Do nothing: nothing is thawed."""

    def archive_state(self, path: str) -> ArchiveState | None:
        found = self._item(path)
        if found is None:
            return None
        return ArchiveState(archived=found.archived, readable=not found.archived, thawing=found.thawing)

    def _reason(self, error: Refusal) -> str:
        """Return what the server said, without a secret."""
        text = f"{error.code}: {error}" if error.code else str(error)
        for secret in self.settings.secrets():
            for spelling in (secret, quote(secret, safe=""), quote(secret)):
                text = text.replace(spelling, "***")
        return text


class _Reader(SeekableObject):
    """An object as a seekable stream: ranges, each of the same object, larger ones while it is read in order."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        found = store.require_token(path)
        super().__init__(found.size)
        self._store, self._path, self._token = store, path, found.token
        self._ahead, self._fetched = CHUNK, memoryview(b"")
        if found.archived:
            store.read_range(path, 0, 1)  # The server says why it cannot be read.

    def _drop(self) -> None:
        self._ahead, self._fetched = CHUNK, memoryview(b"")

    def readinto(self, buffer: Any, /) -> int:
        if self._position >= self._size or not len(buffer):
            return 0
        if not self._fetched:
            wanted = min(max(len(buffer), self._ahead), self._size - self._position)
            data = self._store.read_range(self._path, self._position, wanted, self._token)
            if len(data) != wanted:
                raise StorageError(
                    f"The server sent {len(data)} bytes of a range of {wanted}",
                    path=self._path,
                    untouched="the object",
                    hint="check the server, or a proxy in front of it",
                )
            self._fetched, self._ahead = memoryview(data), min(4 * self._ahead, _AHEAD)
        taken = min(len(buffer), len(self._fetched))
        buffer[:taken], self._fetched = self._fetched[:taken], self._fetched[taken:]
        self._position += taken
        return taken
