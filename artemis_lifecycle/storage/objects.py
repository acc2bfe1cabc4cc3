"""Object stores of any kind but S3: what their stores have in common. Belongs here: paths and keys, retries, pace and
errors, streams, and conditional writes, copies and deletes by an object's token. Does not belong here: how one kind of
store words its requests (`azure`, `gcs`).

No request names a version of an object, so that a delete in a versioned or soft-deleted bucket takes only the current
one, and only as far as the bucket's own settings do.
"""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
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

_THREADS = 16
_LONGEST_KEY = 1024
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
    """An object: `token` identifies its content (ETag, generation); `write_id` is what `Requests.put` was given."""

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


class Requests(Protocol):
    """The requests of one kind of store. Each method sends one request, and raises Refusal if it fails. `token`
    restricts a request to the object that has it; `new` to a key that no object has."""

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

    def head(self, bucket: str, key: str) -> Item: ...

    def get(self, bucket: str, key: str, start: int, length: int | None, token: str | None) -> bytes: ...

    def whole(self, bucket: str, key: str, limits: ReadLimits, path: str) -> bytes: ...

    def put(
        self, bucket: str, key: str, data: bytes | bytearray, *, new: bool, storage_class: str | None, write_id: str
    ) -> str:
        """Write an object, and return its token."""
        ...

    def put_parts(
        self,
        bucket: str,
        key: str,
        parts: Iterable[bytearray],
        *,
        new: bool,
        storage_class: str | None,
        write_id: str,
        call: Call,
    ) -> str:
        """Write an object in parts; nothing is visible before the last one. `call` sends each request."""
        ...

    def copy(
        self, source: Address, target: Address, token: str | None, *, new: bool, storage_class: str | None, call: Call
    ) -> str:
        """Copy on the server, and return the copy's token."""
        ...

    def delete(self, bucket: str, key: str, token: str | None) -> None: ...


class Call(Protocol):
    """Sends a request that carries `size` bytes when its turn has come, again while the server is busy."""

    def __call__(self, send: Callable[[], T], kind: str = "reads", size: int = 0) -> T: ...


class _TimeIsOver(Exception):  # noqa: N818  (control flow inside a delete)
    pass


def _refusal(key: str) -> str | None:
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

        settings = self.settings
        return Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, Refusal) and error.transient),
            wait=wait_random_exponential(multiplier=0.2, max=settings.max_wait_seconds),
            stop=stop_after_attempt(settings.attempts) | stop_after_delay(settings.deadline_seconds),
            reraise=True,
        )(attempt)

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
        refused = _refusal(address.key) or self._requests.refused_key(address.key)
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
            after = following

    def _stored(self, address: Address, item: Item) -> StoredFile:
        # HEADs and some listings have no fractions of a second.
        modified = item.modified.astimezone(UTC).replace(microsecond=0)
        return StoredFile(f"{address.stem}/{item.key}", item.size, modified, object_tag(item.token), item.token)

    def _item(self, path: str) -> Item | None:
        address = address_of(path)
        if not address.key or len(address.key.encode("utf-8", "surrogatepass")) > _LONGEST_KEY:
            return None
        self._usable(path)
        try:
            return self._send(lambda: self._requests.head(address.bucket, address.key))
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
        address = self._usable(path)
        data = self._call(
            "An object cannot be read",
            path,
            lambda: self._requests.whole(address.bucket, address.key, limits, path),
        )
        pace_of(*self.settings.paced_by).take("bytes", len(data))
        return data

    def read_range(self, path: str, offset: int, length: int, token: str | None = None) -> bytes:
        """`Store.read_range`; with `token`, only of the object that has it."""
        address = self._usable(path)
        if length <= 0:
            return b""
        try:
            data = self._send(lambda: self._requests.get(address.bucket, address.key, offset, length, token))
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
        write_id = uuid.uuid4().hex
        try:
            self._put(path, data, overwrite=overwrite, storage_class=self._class(storage_class), write_id=write_id)
        except ExistingFile:
            # If the first attempt succeeded but its answer was lost, the retry finds its own object.
            found = self._item(path)
            if found is None or found.write_id != write_id:
                raise
        return StoredFile(path, len(data), None)

    def _put(
        self, path: str, data: bytes | bytearray, *, overwrite: bool, storage_class: str | None, write_id: str
    ) -> str:
        address = self._usable(path)
        put = partial(self._requests.put, address.bucket, address.key, data, new=not overwrite)
        write = partial(put, storage_class=storage_class, write_id=write_id)
        return self._written(path, lambda: self._send(write, "writes", len(data)))

    def _class(self, storage_class: str | None) -> str | None:
        return storage_class and self._requests.classes.get(storage_class, storage_class)

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
        address, put_parts = self._usable(path), self._requests.put_parts
        parts = _parts(chunks, self.settings.multipart_bytes)
        options: Any = {"storage_class": self._class(storage_class), "write_id": uuid.uuid4().hex}
        if size <= self.settings.multipart_bytes:
            only = next(parts, bytearray())
            next(parts, None)  # Detects a source that has grown, so that `verify` fails.
            token = self._put(path, only, overwrite=overwrite, **options)
        else:
            send = partial(put_parts, address.bucket, address.key, parts, new=not overwrite, call=self._send, **options)
            token = self._written(path, send)
        self._verify(path, token, verify)

    def copy_within(
        self,
        source: str,
        destination: str,
        *,
        source_etag: str | None,
        storage_class: str | None,
        verify: Callable[[int, str], None],
        overwrite: bool,
    ) -> bool:
        """Copy on the server, and only the object with `source_etag`. Return False if the server refuses, so that the
        bytes must be transferred. `verify` as in `put_stream`."""
        origin, target = self._usable(source), self._usable(destination)
        token = source_etag or self.require_token(source).token
        try:
            copied = self._requests.copy(
                origin, target, token, new=not overwrite, storage_class=self._class(storage_class), call=self._send
            )
        except Refusal as error:
            if error.status == _STALE:
                # A changed source is answered as an existing copy is; `Stores.copy` asks which it was.
                raise existing(destination) from None
            if error.status not in (401, 403):
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
                found, address = self._item(path), address_of(path)
                if found is not None and found.token == token:
                    self._call(
                        "A copy cannot be removed",
                        path,
                        lambda: self._requests.delete(address.bucket, address.key, token),
                    )
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
            spellings = objects.setdefault((address.bucket, address.key), [])
            spellings += [path] if path not in spellings else []
            if row in etags:
                tokens[address.bucket, address.key] = etags[row]
        if until is not None and elapsed() >= until:
            tokens = {}
        tokens = {at: token for at, token in tokens.items() if self._honors(*at)}
        done = threaded(lambda at: self._delete(objects[at][0], tokens.get(at), until), [*objects], _THREADS)
        for spellings, (outcome, reason) in zip(objects.values(), done, strict=True):
            outcomes.update({path: DeleteOutcome(path, outcome, reason) for path in spellings})
        return [outcomes[path] for path in paths]

    def _delete(self, path: str, token: str | None, until: float | None) -> tuple[Outcome, str | None]:
        address = address_of(path)
        delete = partial(self._requests.delete, address.bucket, address.key, token)
        try:
            self._send(delete, "writes", until=until)
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

    def _honors(self, bucket: str, beside: str) -> bool:
        """Return True if the server deletes by token, as an object shows that is put `beside` a key: it survives a
        wrong token, and goes with the right one. Asked once for each bucket."""
        if bucket not in self._conditional:
            key = f"{beside.rpartition('/')[0]}/{_PROBE}{uuid.uuid4().hex}".lstrip("/")
            requests = self._requests

            def tried(token: str | None) -> bool:
                """Return True if the probe is gone."""
                with suppress(Refusal):
                    self._send(lambda: requests.delete(bucket, key, token), "writes")
                try:
                    self._send(lambda: requests.head(bucket, key))
                except Refusal as error:
                    if error.status != 404:
                        raise
                    return True
                return False

            def put() -> str:
                data = b"May this be deleted?"
                return requests.put(bucket, key, data, new=True, storage_class=None, write_id=uuid.uuid4().hex)

            try:
                token = self._send(put, "writes")
                self._conditional[bucket] = not tried(requests.wrong_token) and tried(token)
            except Refusal:
                self._conditional[bucket] = False
            if not self._conditional[bucket]:
                with suppress(Refusal):
                    self._send(lambda: requests.delete(bucket, key, None), "writes")
        return self._conditional[bucket]

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


class _Reader(io.RawIOBase):
    """An object as a seekable stream: ranges, each of the same object, larger ones while it is read in order."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        super().__init__()
        found = store.require_token(path)
        self._store, self._path, self._size, self._token = store, path, found.size, found.token
        self._position, self._ahead, self._fetched = 0, CHUNK, memoryview(b"")
        if found.archived:
            store.read_range(path, 0, 1)  # The server says why it cannot be read.

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
            self._position, self._ahead, self._fetched = position, CHUNK, memoryview(b"")
        return position

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


def _parts(chunks: Iterable[bytes], size: int) -> Iterator[bytearray]:
    """Yield the same bytes in pieces of exactly `size`; the last one is shorter."""
    part = bytearray()
    for chunk in chunks:
        part += chunk
        while len(part) >= size:
            yield part[:size]
            del part[:size]
    if part:
        yield part
