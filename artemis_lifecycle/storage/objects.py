"""What object stores have in common: paths and keys, retries and pace, errors, streams, and conditional writes, copies
and deletes by an object's token. One file: what a request of any store goes through, from its path to its answer.

No request names a version of an object, so that a delete in a versioned or soft-deleted bucket takes only the current
one, and only as far as the bucket's own settings do.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, NamedTuple, NoReturn, Protocol, TypeVar, cast

from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.instants import is_late
from artemis_lifecycle.storage.location import split
from artemis_lifecycle.storage.pace import PIECE, TimeIsOver, pace_of
from artemis_lifecycle.storage.settings import MIB, StoreSettings
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

LONGEST_KEY = 1024
"""Characters: no store has an object with a longer key."""

_AHEAD = 16 << 20
"""The most bytes that one request of a sequential read fetches."""

_PROBE = "artemis-probe-"
_PROBED = b"May this be deleted?"
_STALE = 412
"""Status of a conditional request whose condition does not hold."""

_CANNOT_COPY = {401, 403, 404, 405, 501}

_NO_OBJECT, _NO_BUCKET = {"NoSuchKey", "BlobNotFound"}, {"NoSuchBucket", "ContainerNotFound"}
"""Codes that say what is missing."""

_TRANSIENT = {0, 408, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Address:
    """`stem` is the path up to and including the bucket, in the user's spelling; `bucket` is its authority."""

    stem: str
    bucket: str
    key: str


READABLE = ArchiveState(archived=False, readable=True)


class Item(NamedTuple):
    """An object: `token` identifies its content (ETag, generation); `write_id` as in `Writing`; `said` is all that the
    store says of it, if that is more."""

    key: str
    size: int
    modified: datetime
    token: str | None
    write_id: str | None = None
    state: ArchiveState = READABLE
    said: Mapping[str, Any] = MappingProxyType({})


Page = tuple[list[str], list[Item], Any]
"""Folders (with their `/`) and objects, and what the request for the next page needs; None at the end."""


Place = tuple[str, str]
"""A bucket, as in `Address`, and a key."""


class Refusal(Exception):  # noqa: N818  (control flow inside a store)
    """A request that failed. `status` as in HTTP; 0 if the server did not answer. `settled`: do not ask again. `hint`:
    what to do, where it is more than the status says."""

    def __init__(
        self, status: int, message: str, *, code: str = "", settled: bool = False, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.hint = status, code, hint
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
    """The names of the store and of its credentials, for messages."""

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

    def require_bucket(self, bucket: str) -> None: ...

    def page(self, bucket: str, prefix: str, *, deep: bool, after: Any) -> Page: ...

    def head(self, at: Address) -> Item: ...

    def get(self, at: Address, start: int, length: int, token: str | None) -> bytes: ...

    def put(self, at: Address, data: bytes | bytearray, how: Writing) -> str: ...

    def put_parts(self, at: Address, parts: Iterable[bytearray], how: Writing, call: Call) -> str: ...

    def copy(
        self, source: Address, at: Address, token: str, size: int, how: Writing, call: Call
    ) -> tuple[str, str | None]:
        """Return the SHA-256 of the copy, too, in base64, if the server has computed it."""
        ...

    def delete(self, at: Address, token: str | None) -> None: ...


class Call(Protocol):
    """Sends a request that carries `size` bytes when its turn has come, again while the server is busy."""

    def __call__(self, send: Callable[[], T], kind: str = "reads", size: int = 0) -> T: ...


def refusal(key: str) -> str | None:
    """Return why no store has an object with this key; None for any other key."""
    if not key:
        return "it names a bucket and no object"
    try:
        key.encode()
    except UnicodeEncodeError:
        return "its name is not Unicode text"
    return None


def _copied(probe: Address) -> Address:
    return replace(probe, key=f"{probe.key}-copy")


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

    def item(self) -> Item:
        """Return what the store said of the object when it was opened."""
        raise NotImplementedError

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


def pieces(chunks: Iterable[bytes | bytearray], size: int) -> Iterator[bytearray]:
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


_PARTS = 10_000
"""The most parts of an object."""


def part_bytes(settings: StoreSettings, size: int) -> int:
    """Return the size of the parts of an object."""
    return max(settings.multipart_bytes, -(-size // _PARTS // MIB) * MIB)


def content_md5(data: bytes | bytearray) -> str:
    """Return what the header Content-MD5 has for these bytes."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def hiding(pattern: re.Pattern[str]) -> Callable[[logging.LogRecord], bool]:
    """Return a filter of a log that hides what follows the first group of the pattern."""

    def clean(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        shown = pattern.sub(r"\1***", text)
        if shown != text:
            record.msg, record.args = shown, ()
        return True

    return clean


class ObjectStore:
    """The objects that `requests` reaches."""

    threads = 10
    """As many connections as Google's client keeps."""

    def __init__(self, settings: StoreSettings, requests: Requests) -> None:
        self.settings = settings
        self._requests = requests
        self._buckets: set[str] = set()
        self.shown: dict[tuple[str, str], bool] = {}
        self._probing = Lock()

    # --- requests

    def send(self, send: Callable[[], T], kind: str = "reads", size: int = 0, until: float | None = None) -> T:
        """Send a request that carries `size` bytes. Retry with full jitter while the server is busy or the connection
        fails, then raise Refusal. Raises TimeIsOver instead of sending once `elapsed` is `until`."""
        return Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, Refusal) and error.transient),
            wait=wait_random_exponential(multiplier=0.2, max=self.settings.max_wait_seconds),
            stop=stop_after_attempt(self.settings.attempts) | stop_after_delay(self.settings.deadline_seconds),
            reraise=True,
        )(lambda: self.in_turn(send, kind, size, until))

    def in_turn(self, send: Callable[[], T], kind: str, size: int, until: float | None) -> T:
        """Send a request when the budget allows it."""
        pace = pace_of(*self.settings.paced_by)
        pace.turn(kind, 1, size, until)
        answer = send()
        if isinstance(answer, bytes):
            pace.take("bytes", len(answer))
        return answer

    def call(self, what: str, path: str, send: Callable[[], T]) -> T:
        """Like `send`, but raise StorageError."""
        try:
            return self.send(send)
        except Refusal as error:
            self.fail(what, path, error)

    def fail(self, what: str, path: str, error: Refusal, *, listing: bool = False) -> NoReturn:
        address, requests = address_of(path), self._requests
        if error.status == 404 and error.code not in _NO_BUCKET and address.key and not listing:
            if error.code not in _NO_OBJECT:
                self._require_bucket(address, path)
            raise missing(path) from None
        do = f"check the {requests.kind} server and the network, then retry"
        if error.status in (401, 403):
            do = f"check the catalog's {requests.credentials} and their permissions, then retry"
        elif error.status == 404:
            do = f"check the name {address.bucket} and the catalog's properties"
        elif error.status == _STALE:
            do = "another object took its place meanwhile: run the step again"
        raise StorageError(
            f"{what}: {self.reason(error)}", path=path, untouched="the existing objects", hint=error.hint or do
        ) from None

    def _require_bucket(self, address: Address, path: str) -> None:
        # "No such file" must not be reported for a missing store.
        if address.bucket in self._buckets:
            return
        try:
            self.send(lambda: self._requests.require_bucket(address.bucket))
        except Refusal as error:
            if error.status == 404:
                raise StorageError(
                    f"{self._requests.kind} has no bucket or container {address.bucket}",
                    path=path,
                    untouched="the existing objects",
                    hint="check its name and the catalog's properties",
                ) from None
            if error.status != 403:  # It exists, but listing it is not allowed.
                self.fail(f"The bucket {address.bucket} cannot be reached", path, error)
        self._buckets.add(address.bucket)

    def usable(self, path: str) -> Address:
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
        for _, files in self.pages(prefix, deep=True):
            yield from files

    def children(self, prefix: str, most: int | None = None) -> Children:
        folders: list[str] = []
        found: list[StoredFile] = []
        for below, files in self.pages(prefix, deep=False):
            folders += below
            found += files
            if most is not None and len(folders) + len(found) >= most:
                break
        return folders, found

    def pages(self, prefix: str, *, deep: bool, after: Any = None) -> Iterator[Children]:
        address = address_of(prefix)
        if address.key:
            self.usable(prefix)
        folder = address.key and address.key.removesuffix("/") + "/"
        while True:
            folders, items, following = self.page(prefix, folder, deep=deep, after=after)
            files = [self.stored(address.stem, item) for item in items if item.size or not item.key.endswith("/")]
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

    def page(self, path: str, prefix: str, **how: Any) -> Page:
        """Return one page of the bucket of `path`."""
        bucket = address_of(path).bucket
        try:
            return self.send(lambda: self._requests.page(bucket, prefix, **how))
        except Refusal as error:
            self.fail("A prefix cannot be listed", path, error, listing=True)

    def stored(self, stem: str, item: Item) -> StoredFile:
        # HEADs and some listings have no fractions of a second.
        modified = item.modified.astimezone(UTC).replace(microsecond=0)
        path, tag = f"{stem}/{item.key}", object_tag(item.token)
        return StoredFile(path, item.size, modified, tag, item.token, archived=item.state.archived)

    def item(self, path: str) -> Item | None:
        if not self.can_have(path):
            return None
        address = address_of(path)
        self.usable(path)
        try:
            return self.send(lambda: self._requests.head(address))
        except Refusal as error:
            if error.status != 404:
                self.fail("An object's status cannot be read", path, error)
        self._require_bucket(address, path)
        return None

    def can_have(self, path: str) -> bool:
        """Return False for a path that no object can have."""
        key = address_of(path).key
        return refusal(key) is None and not self.is_too_long(key)

    def is_too_long(self, key: str) -> bool:
        """Return True if no object can have the key, whatever the store answers."""
        return len(key) > LONGEST_KEY

    def head(self, path: str) -> StoredFile | None:
        found = self.item(path)
        return None if found is None else self.stored(address_of(path).stem, found)

    def heads(self, paths: Sequence[str]) -> Heads:
        return [*threaded(self.head, paths, self.threads)]

    # --- reading

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", io.BufferedReader(self.stream(path), CHUNK))

    def opened(self, path: str) -> tuple[StoredFile, BinaryIO]:
        """`open`, with the status of the object that is read."""
        stream = self.stream(path)
        found = self.stored(address_of(path).stem, stream.item())
        return found, cast("BinaryIO", io.BufferedReader(stream, CHUNK))

    def stream(self, path: str) -> SeekableObject:
        return _Reader(self, path)

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
        address = self.usable(path)
        if length <= 0:
            return b""
        try:
            return self.send(lambda: self._requests.get(address, offset, length, token))
        except Refusal as error:
            if error.status == 416:
                return b""
            self.fail("An object cannot be read", path, error)

    def require_token(self, path: str) -> Item:
        """Return an object's status. Raises StorageError if the server does not say which object it is: what is read
        in several requests could then be of two."""
        found = self.item(path)
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
        self._put(path, data, self._how(overwrite, storage_class))
        return StoredFile(path, len(data), None)

    def _how(self, overwrite: bool, storage_class: str | None) -> Writing:
        return Writing(not overwrite, storage_class and self._requests.classes.get(storage_class, storage_class))

    def _put(self, path: str, data: bytes | bytearray, how: Writing) -> str:
        at = self.usable(path)
        return self._written(
            "An object cannot be written",
            path,
            how,
            lambda: self.send(lambda: self._requests.put(at, data, how), "writes", len(data)),
        )

    def _written(self, what: str, path: str, how: Writing, write: Callable[[], str]) -> str:
        """Return the token of a new object. Raises ExistingFile if its place is taken, and StorageError."""
        try:
            return write()
        except Refusal as error:
            if error.status != _STALE or not how.new:
                self.fail(what, path, error)
        # If an earlier attempt succeeded but its answer was lost, this one has found its own object.
        found = self.item(path)
        if found is None or found.write_id != how.write_id or found.token is None:
            raise existing(path)
        return found.token

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
        at, how = self.usable(path), self._how(overwrite, storage_class)
        parts = pieces(chunks, part_bytes(self.settings, size))
        if size <= self.settings.multipart_bytes:
            only = next(parts, bytearray())
            next(parts, None)  # Detects a source that has grown, so that `verify` fails.
            token = self._put(path, only, how)
        else:
            what = "An object cannot be written in parts"
            token = self._written(what, path, how, lambda: self._requests.put_parts(at, parts, how, self.send))
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
        """Copy on the server, and only the object with `source_etag`, whose bytes have this checksum. Return False if
        the server refuses or does not find it, so that the bytes must be transferred. `verify` as in `put_stream`,
        unless the server computes the same checksum of its copy."""
        origin, at, how = self.usable(source), self.usable(destination), self._how(overwrite, storage_class)
        try:
            token, digest = self._requests.copy(origin, at, source_etag, size, how, self.send)
        except Refusal as error:
            if error.status == _STALE and how.new:
                # A changed source is answered as an existing copy is; `Stores.copy` asks which it was.
                raise existing(destination) from None
            if error.status not in _CANNOT_COPY:
                self.fail("An object cannot be copied", destination, error)
            return False
        if digest != base64.b64encode(bytes.fromhex(checksum.removeprefix("sha256:"))).decode():
            self._verify(destination, token, verify)
        return True

    def _verify(self, path: str, token: str, verify: Callable[[int, str], None]) -> None:
        """Read the object back. If `verify` refuses it, remove it, unless another writer has replaced it."""
        with io.BufferedReader(self.stream(path), CHUNK) as file:
            digest, size = hashlib.file_digest(file, "sha256"), file.tell()
        try:
            verify(size, f"sha256:{digest.hexdigest()}")
        except Exception:
            with suppress(StorageError, Refusal):
                found, at = self.item(path), address_of(path)
                # Some servers write an ETag with quotes in one answer and without in another.
                if found is not None and found.token is not None and found.token.strip('"') == token.strip('"'):
                    only = found.token if self.honors(at) else None
                    self.send(lambda: self._requests.delete(at, only), "writes")
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
        """`Stores.delete`. Where the server honors it, a row with one of `etags` is deleted only if the object still
        has it."""
        outcomes: dict[str, DeleteOutcome] = {}
        objects: dict[Place, list[str]] = {}
        tokens: dict[Place, str] = {}
        for row, path in enumerate(paths):
            try:
                address = self.usable(path)
            except StorageError as error:
                outcomes[path] = DeleteOutcome(path, "failed", error.what)
                continue
            if self.is_too_long(address.key):
                outcomes[path] = DeleteOutcome(path, "absent")
                continue
            # One key may have several spellings: s3://b/k and s3a://b/k.
            at = address.bucket, address.key
            objects.setdefault(at, []).append(path)
            if row in etags and not is_late(until) and self.honors(address):
                tokens[at] = etags[row]
        for at, (outcome, reason) in self.delete_all(objects, tokens, until):
            outcomes |= {path: DeleteOutcome(path, outcome, reason) for path in objects[at]}
        return [outcomes[path] for path in paths]

    def delete_all(
        self, objects: Mapping[Place, Sequence[str]], tokens: Mapping[Place, str], until: float | None
    ) -> Iterator[tuple[Place, tuple[Outcome, str | None]]]:
        """Delete objects, each of which has these paths; those in `tokens` if they have that token."""
        done = threaded(lambda at: self._delete(objects[at][0], tokens.get(at), until), [*objects], self.threads)
        yield from zip(objects, done, strict=True)

    def _delete(self, path: str, token: str | None, until: float | None) -> tuple[Outcome, str | None]:
        address = address_of(path)
        try:
            self.send(lambda: self._requests.delete(address, token), "writes", until=until)
        except TimeIsOver:
            return "failed", NOT_TRIED
        except Refusal as error:
            if error.status != 404 or error.code in _NO_BUCKET:
                return "failed", self.reason(error)
            try:
                self._require_bucket(address, path)
            except StorageError as lost:
                return "failed", lost.what
            return "absent", None
        return "deleted", None

    def honors(self, beside: Address) -> bool:
        """Return True if the server deletes by token, as an object shows that is put `beside` a key: it survives a
        wrong token, and goes with the right one. Asked once for each bucket."""
        requests = self._requests

        def goes_with(at: Address, token: str) -> bool:
            try:
                self.send(lambda: requests.delete(at, token), "writes")
            except Refusal as error:
                if error.transient:  # It says nothing about the token.
                    raise
            return self.item(f"{at.stem}/{at.key}") is None

        return self._shown(
            "delete", beside, lambda at, token: not goes_with(at, requests.wrong_token) and goes_with(at, token)
        )

    def keeps_existing(self, destination: str) -> bool:
        """Return True if the server refuses to copy onto an object where none is to be, as a second copy of an object
        that is put beside `destination` shows. Asked once for each bucket."""

        def refused(at: Address, token: str) -> bool:
            try:
                self._requests.copy(at, _copied(at), token, len(_PROBED), Writing(True, None), self.send)
            except Refusal as error:
                if error.status != _STALE:
                    raise
                return True
            return False

        at = self.usable(destination)
        return self._shown("copy", at, lambda at, token: not refused(at, token) and refused(at, token))

    def _shown(self, what: str, beside: Address, shows: Callable[[Address, str], bool]) -> bool:
        """Return what an object `shows` that is put beside a key, asked once for each bucket; False on any error."""
        known = what, beside.bucket
        with self._probing:
            if known not in self.shown:
                key = f"{beside.key.rpartition('/')[0]}/{_PROBE}{uuid.uuid4().hex}".lstrip("/")
                at = replace(beside, key=key)
                try:
                    token = self._put(f"{at.stem}/{key}", _PROBED, Writing(True, None))
                    self.shown[known] = shows(at, token)
                except (StorageError, Refusal):
                    self.shown[known] = False
                list(threaded(self._clear, [at, _copied(at)], self.threads))
            return self.shown[known]

    def _clear(self, made: Address) -> None:
        with suppress(StorageError, Refusal):
            if self.item(f"{made.stem}/{made.key}") is not None:
                self.send(partial(self._requests.delete, made, None), "writes")

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
        if not self.require_token(path).state.readable:
            raise StorageError(
                "The object is in an archive tier, into which something else than the lifecycle has put it",
                path=path,
                untouched="the object",
                hint="rehydrate it to an online tier in the store, then retry",
            )

    def end_thaw(self, path: str) -> None:
        """Do nothing: nothing is thawed."""

    def unarchive(self, path: str) -> bool:
        """Return False: an object leaves its class when it is written again."""
        return False

    def archive_state(self, path: str) -> ArchiveState | None:
        found = self.item(path)
        return None if found is None else found.state

    def reason(self, error: Refusal) -> str:
        """Return what the server said, without a secret."""
        return self.settings.without_secrets(f"{error.code}: {error}".removeprefix(": ").rstrip(": "))


class _Reader(SeekableObject):
    """An object as a seekable stream: ranges, each of the same object, larger ones while it is read in order."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._found = store.require_token(path)
        super().__init__(self._found.size)
        self._store, self._path = store, path
        self._ahead, self._fetched = CHUNK, memoryview(b"")
        if not self._found.state.readable:
            store.read_range(path, 0, 1)  # The server says why it cannot be read.

    def item(self) -> Item:
        return self._found

    def _drop(self) -> None:
        self._ahead, self._fetched = CHUNK, memoryview(b"")

    def readinto(self, buffer: Any, /) -> int:
        if self._position >= self._size or not len(buffer):
            return 0
        if not self._fetched:
            wanted = min(max(len(buffer), self._ahead), self._size - self._position)
            data = self._store.read_range(self._path, self._position, wanted, self._found.token)
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
