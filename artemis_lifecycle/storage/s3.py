"""Objects on S3 and on servers that speak its protocol, through boto3: paths with `s3:`, `s3a:` or `s3n:`.

Every client of this project comes from `make_client`, or from a factory that the user gives. A key is what follows the
bucket, to the letter: `s3://b/a//c` and `s3://b/a/c` are two objects here, though they have one location.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import pairwise
from typing import Any, BinaryIO, NoReturn, TypeVar, cast

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError, NoCredentialsError
from botocore.httpchecksum import FlexibleChecksumError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.local import existing, missing
from artemis_lifecycle.storage.location import split
from artemis_lifecycle.storage.pace import TokenBucket, shared_pace
from artemis_lifecycle.storage.settings import MIB, StoreSettings
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import (
    ARCHIVE_CLASSES,
    CHUNK,
    FAILED,
    NOT_TRIED,
    ArchiveState,
    Children,
    DeleteOutcome,
    Heads,
    Outcomes,
    Removals,
    Span,
    Spans,
    StoredFile,
)

T = TypeVar("T")

_DELETES_PER_REQUEST = 1000
_DELETERS = 4  # More at once, of a thousand keys each, is what S3 answers with 503.
_HEADS = 16
_PAGE = 1000
_QUESTIONS, _MOST_QUESTIONS = 8, 400
"""Requests for each piece that a prefix is wanted in, and for all."""
_PARTS = 10_000
_LONGEST_KEY = 1024
_WRITE_ID = "artemis-write"

_TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}
_TRANSIENT_CODES = {
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "OperationAborted",
    "ConditionalRequestConflict",
}
_CANNOT_COPY_WITHIN = {"AccessDenied", "NotImplemented", "MethodNotAllowed"}
# What XML cannot carry would spoil a bulk request for a thousand others, or, as a carriage return or outer blanks that
# a parser changes, name another object. Such a key goes by a request of its own, in its address.
_ALONE = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|\A\s|\s\Z")
# Nearly all paths: a key of ASCII that goes into a bulk request as it is, whatever `_ALONE` and `_refusal` ask.
_PLAIN = r"\As3[an]?://(?P<bucket>[^/]+)/(?P<key>[!-~](?:[ -~]*[!-~])?)\z"
_DELETED = re.compile(rb"<Deleted>.*?</Deleted>", re.DOTALL)


# --- clients --------------------------------------------------------------------------------------------------------


def make_client(settings: StoreSettings) -> Any:
    """An S3 client for `settings`. It does not retry: `S3Store` does, for every client alike."""
    own_server = settings.s3_endpoint is not None
    path_style = settings.s3_path_style if settings.s3_path_style is not None else own_server
    options: dict[str, Any] = {}
    if own_server:
        # Servers other than AWS's refuse the checksums that newer clients add unasked.
        options = {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
    session = boto3.session.Session(
        aws_access_key_id=settings.s3_access_key_id,
        aws_secret_access_key=settings.s3_secret_access_key,
        aws_session_token=settings.s3_session_token,
        region_name=settings.s3_region,
    )
    return session.client(
        "s3",
        endpoint_url=settings.s3_endpoint,
        region_name=session.region_name or ("us-east-1" if own_server else None),
        config=Config(
            connect_timeout=settings.s3_connect_timeout,
            read_timeout=settings.s3_read_timeout,
            max_pool_connections=settings.s3_connections,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": "path" if path_style else "auto"},
            user_agent_extra="artemis-lifecycle",
            **options,
        ),
    )


_clients: dict[tuple[StoreSettings, int], Any] = {}
_clients_lock = threading.Lock()


def shared_client(settings: StoreSettings) -> Any:
    """The one client of this process for `settings`: a Spark task that unpickles its stores finds it made already."""
    key = (settings, os.getpid())  # Sockets do not survive a fork.
    with _clients_lock:
        if key not in _clients:
            _clients[key] = make_client(settings)
        return _clients[key]


_paces: dict[tuple[float | None, int], TokenBucket] = {}


def _own_pace(rate: float | None) -> TokenBucket:
    """The one bucket of this process for a rate."""
    with _clients_lock:
        return _paces.setdefault((rate, os.getpid()), TokenBucket(rate))


def _prepared(client: Any, settings: StoreSettings) -> Any:
    """`client`, each of whose requests (a page, a part, a try again) and bytes waits for its turn. Of the answer to a
    bulk delete it leaves out what some servers put there though asked not to, the keys that went: of a thousand files
    they take as long to parse as the request to make."""
    if getattr(client.meta, "artemis_pace", None) == (settings.pace, settings.requests_per_second):
        return client
    rate, shared = settings.requests_per_second, settings.pace

    def ask(request: Any, **_: Any) -> None:
        if shared is None:
            _own_pace(rate).take(1)
        else:
            pace = shared_pace(shared, rate)
            pace.request()
            pace.carry(int(request.headers.get("Content-Length") or 0))
        _require_time()

    def answered(response_dict: dict[str, Any] | None, **_: Any) -> None:
        # What comes back is known only now, and paid for by whoever asks next.
        if shared is not None and response_dict is not None and response_dict.get("body") is not None:
            shared_pace(shared, rate).carry(int(response_dict["headers"].get("content-length") or 0))

    def shorten(response_dict: dict[str, Any], **_: Any) -> None:
        body = response_dict.get("body")
        if isinstance(body, bytes) and b"<Deleted>" in body:
            response_dict["body"] = _DELETED.sub(b"", body)

    client.meta.events.register("before-parse.s3.DeleteObjects", shorten, unique_id="artemis-quiet")
    client.meta.events.register("before-send.s3", ask, unique_id="artemis-pace")
    client.meta.events.register("response-received.s3", answered, unique_id="artemis-pace-bytes")
    client.meta.artemis_pace = (settings.pace, settings.requests_per_second)
    return client


class _Redact(logging.Filter):
    """botocore writes requests to its log at DEBUG, session token and signature included."""

    _headers = re.compile(
        r"((?:x-amz-security-token|authorization|x-amz-server-side-encryption-customer-key)['\"]?\s*[:=]\s*b?)"
        r"(?:'[^']*'|\"[^\"]*\"|[^\n]*)",
        re.IGNORECASE,
    )

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        clean = self._headers.sub(r"\1***", text)
        if clean != text:
            record.msg, record.args = clean, ()
        return True


_REDACT = _Redact()


def _silence_credentials() -> None:
    for name in ("botocore.auth", "botocore.endpoint", "botocore.awsrequest", "botocore.httpsession", "botocore.hooks"):
        logging.getLogger(name).addFilter(_REDACT)


# --- the store ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Address:
    """`stem` is the path up to the bucket, as the user spells it; every path handed back begins with it."""

    stem: str
    bucket: str
    key: str


def _address(path: str) -> _Address:
    parts = split(path)
    if not parts.authority:
        raise StorageError("The path names no bucket", path=path, hint="write it as s3://bucket/key")
    return _Address(path[: len(path) - len(parts.path)], parts.authority, parts.path[1:])


def _folder_key(address: _Address) -> str:
    return address.key if not address.key or address.key.endswith("/") else address.key + "/"


class _Stems:
    """Beginnings of keys that lie far enough apart to list what is between them at once. Each is found by asking for
    the first key behind a place: how many keys have one nobody knows."""

    def __init__(self, first: Callable[[str], str | None], folder: str) -> None:
        self._first = first
        self._folder = folder
        self._asked = 0

    def found(self, wanted: int) -> list[str]:
        """Ascending; every key lies behind the first of them, or is it."""
        # Each with its first key; without one it has no more to divide.
        stems: list[tuple[str, str | None]] = [(self._folder, self._ask(self._folder))]
        most = min(wanted * _QUESTIONS, _MOST_QUESTIONS)
        while len(stems) < wanted and any(key is not None for _, key in stems) and self._asked < most:
            longer: list[tuple[str, str | None]] = []
            for stem, key in stems:
                if key is None or self._asked >= most:
                    longer.append((stem, key))
                else:
                    longer += list(self._longer(stem, key)) or [(stem, None)]
            stems = longer
        return [stem for stem, _ in stems]

    def _longer(self, stem: str, first: str) -> Iterator[tuple[str, str]]:
        """Where the keys that begin with `stem` part: the stems there, each with its first key, of which the very first
        is `first`. None where there is one key."""
        shared = first[: self._shared(stem, first)]
        key: str | None = first
        while key is not None and key.startswith(stem):
            if len(key) == len(shared):  # The stem itself is a key: it lies before the first of the longer ones.
                key = self._ask(key)
                continue
            one = key[: len(shared) + 1]
            yield one, key
            key = self._ask_behind(one)

    def _shared(self, stem: str, key: str) -> int:
        """How many characters all keys that begin with `stem` begin with, of which `key` is the first."""

        def all_begin(length: int) -> bool:
            following = self._ask_behind(key[:length])
            return following is None or not following.startswith(stem)

        least, most = len(stem), len(key)
        # They part at once more often than not.
        if least < most and not all_begin(least + 1):
            return least
        while least < most:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if all_begin(middle) else (least, middle - 1)
        return least

    def _ask_behind(self, stem: str) -> str | None:
        behind = _behind(stem)
        return None if behind is None else self._ask(behind)

    def _ask(self, behind: str) -> str | None:
        self._asked += 1
        return self._first(behind)


def _behind(stem: str) -> str | None:
    """A text behind all texts that begin with `stem`; None where Unicode ends."""
    code = ord(stem[-1]) + 1
    if 0xD800 <= code <= 0xDFFF:  # No text has these.
        code = 0xE000
    return None if code > 0x10FFFF else stem[:-1] + chr(code)


class S3Store:
    """S3 by `settings`, or by the client that `client_factory` makes in this process."""

    def __init__(self, settings: StoreSettings, client_factory: Callable[[], Any] | None = None) -> None:
        self._settings = settings
        self._factory = client_factory
        self._made: Any = None
        self._buckets: set[str] = set()

    @property
    def client(self) -> Any:
        if self._made is None:
            _silence_credentials()
            try:
                made = shared_client(self._settings) if self._factory is None else self._factory()
                self._made = _prepared(made, self._settings)
            except (BotoCoreError, ValueError) as error:
                self._fail("There is no client for S3", None, error)
        return self._made

    def same_endpoint(self, other: S3Store) -> bool:
        return bool(self.client.meta.endpoint_url == other.client.meta.endpoint_url)

    # --- looking

    def list(self, prefix: str) -> Iterator[StoredFile]:
        for _, files in self._pages(prefix, delimiter=None):
            yield from files

    def children(self, prefix: str) -> Children:
        folders: list[str] = []
        found: list[StoredFile] = []
        for below, files in self._pages(prefix, delimiter="/"):
            folders.extend(below)
            found.extend(files)
        return folders, found

    def list_span(self, span: Span) -> Iterator[StoredFile]:
        until = None if span.until is None else _address(span.until).key
        after = None if span.after is None else _address(span.after).key
        stem = len(_address(span.prefix).stem) + 1
        last = after or ""
        for _, files in self._pages(span.prefix, delimiter=None, after=after):
            for file in files:
                # Python compares texts by code points, which is the order of their UTF-8 bytes.
                key = file.path[stem:]
                if key <= last:
                    raise StorageError(
                        "The server does not list in the order of keys, so that a prefix cannot be listed in pieces",
                        path=file.path,
                        hint="name a location with fewer files, or give the scan a listing",
                    )
                if until is not None and key > until:
                    return
                last = key
                yield file

    def split(self, span: Span, wanted: int) -> Spans:
        address = _address(span.prefix)
        folder = _folder_key(address)
        after = folder if span.after is None else _address(span.after).key
        until = None if span.until is None else _address(span.until).key

        def first(behind: str) -> str | None:
            """The first key of the span behind `behind`."""
            keys = self._call(
                "A prefix cannot be listed",
                span.prefix,
                lambda: self.client.list_objects_v2(
                    Bucket=address.bucket, Prefix=folder, StartAfter=max(behind, after), MaxKeys=1
                ),
            ).get("Contents", ())
            key = keys[0]["Key"] if keys else None
            return None if key is None or (until is not None and key > until) else key

        stems = _Stems(first, folder).found(wanted)
        # A stem itself, should it be a key, is the last of the piece before it.
        cuts = [None, *(f"{address.stem}/{stem}" for stem in stems[1:]), None]
        pieces = [Span(span.prefix, cut or span.after, following or span.until) for cut, following in pairwise(cuts)]
        return pieces or [span]

    def _pages(self, prefix: str, *, delimiter: str | None, after: str | None = None) -> Iterator[Children]:
        address = _address(prefix)
        request: dict[str, Any] = {"Bucket": address.bucket, "Prefix": _folder_key(address), "MaxKeys": _PAGE}
        if delimiter is not None:
            request["Delimiter"] = delimiter
        if after:
            request["StartAfter"] = after
        while True:
            page = self._call("A prefix cannot be listed", prefix, lambda: self.client.list_objects_v2(**request))
            yield (
                [f"{address.stem}/{common['Prefix']}" for common in page.get("CommonPrefixes", ())],
                [
                    StoredFile(f"{address.stem}/{item['Key']}", item["Size"], item["LastModified"].astimezone(UTC))
                    for item in page.get("Contents", ())
                    if item["Size"] or not item["Key"].endswith("/")
                ],
            )
            if not page.get("IsTruncated"):
                return
            if request.get("ContinuationToken") == page["NextContinuationToken"]:
                raise StorageError(
                    "A listing does not come to an end: the server repeats its page",
                    path=prefix,
                    hint="look into the S3 server; no part of this listing was used",
                )
            request["ContinuationToken"] = page["NextContinuationToken"]

    def head(self, path: str) -> StoredFile | None:
        found = self._head(path)
        if found is None:
            return None
        return StoredFile(path, found["ContentLength"], found["LastModified"].astimezone(UTC))

    def heads(self, paths: Sequence[str]) -> Heads:
        return list(threaded(self.head, paths, _HEADS))

    def _head(self, path: str) -> dict[str, Any] | None:
        address = _address(path)

        def look() -> dict[str, Any] | None:
            try:
                return cast("dict[str, Any]", self.client.head_object(Bucket=address.bucket, Key=address.key))
            except ClientError as error:
                if _status(error) == 404:
                    return None
                raise

        if _refusal(address.key) is not None or _is_too_long(address.key):
            return None
        found = self._call("An object cannot be looked at", path, look)
        if found is None:
            self._require_bucket(address, path)
        return found

    def _require_bucket(self, address: _Address, path: str) -> None:
        # A HEAD answers 404 for a missing bucket too, and "no such file" must not be said of a store that is gone.
        if address.bucket in self._buckets:
            return

        def look() -> None:
            try:
                self.client.head_bucket(Bucket=address.bucket)
            except ClientError as error:
                if _status(error) != 403:  # It is there, and not ours to list.
                    raise

        self._call(f"The bucket {address.bucket} cannot be reached", path, look)
        self._buckets.add(address.bucket)

    # --- reading

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", io.BufferedReader(_Reader(self, path), CHUNK))

    def read(self, path: str, limits: ReadLimits) -> bytes:
        address = _address(path)

        def get() -> bytes:
            answer = self.client.get_object(Bucket=address.bucket, Key=address.key)
            with closing(answer["Body"]) as body:
                limits.require(answer["ContentLength"], path)
                return cast("bytes", body.read())

        return self._call("An object cannot be read", path, get)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        address = _address(path)

        def get() -> bytes:
            try:
                answer = self.client.get_object(
                    Bucket=address.bucket, Key=address.key, Range=f"bytes={offset}-{offset + length - 1}"
                )
            except ClientError as error:
                if _code(error) == "InvalidRange" or _status(error) == 416:
                    return b""
                raise
            data = cast("bytes", answer["Body"].read())
            whole = answer["ResponseMetadata"]["HTTPStatusCode"] == 200  # A server may ignore the range.
            return data[offset : offset + length] if whole else data

        return self._call("An object cannot be read", path, get) if length > 0 else b""

    # --- writing

    def write(self, path: str, data: bytes, *, overwrite: bool, storage_class: str | None) -> StoredFile:
        """`last_modified` of the answer is None: S3 does not tell it on a write."""
        address = _address(path)
        write_id = uuid.uuid4().hex
        conditions = {} if overwrite else {"IfNoneMatch": "*"}

        def put() -> bool:
            try:
                self._put(address, data, storage_class, Metadata={_WRITE_ID: write_id}, **conditions)
            except ClientError as error:
                if overwrite or _status(error) != 412:
                    raise
                return False
            return True

        if not self._call("An object cannot be written", path, put):
            # A retry whose first attempt had arrived, though its answer was lost, meets its own object.
            found = self._head(path)
            if found is None or found.get("Metadata", {}).get(_WRITE_ID) != write_id:
                raise existing(path)
        return StoredFile(path, len(data), None)

    def _put(self, address: _Address, data: bytes | bytearray, storage_class: str | None, **more: Any) -> str:
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        answer = self.client.put_object(
            Bucket=address.bucket, Key=address.key, Body=data, ContentMD5=digest, **_class(storage_class), **more
        )
        return cast("str", answer["ETag"])

    def put_stream(
        self,
        path: str,
        chunks: Iterable[bytes],
        *,
        size: int,
        storage_class: str | None,
        verify: Callable[[int, str], None],
    ) -> None:
        address = _address(path)
        part_size = self._part_size(size)
        parts = _parts(chunks, part_size)
        what = "An object cannot be written"
        if size <= part_size:
            only = next(parts, bytearray())
            etag = self._call(what, path, lambda: self._put(address, only, storage_class))
            next(parts, None)  # A source that has grown shows it here, and `verify` will see it.
        else:

            def upload(upload_id: str) -> Iterator[str]:
                for number, part in enumerate(parts, start=1):
                    yield self._call(what, path, lambda: self._put_part(address, upload_id, number, part))  # noqa: B023

            etag = self._multipart(address, path, storage_class, upload)
        self._verify(path, etag, verify)

    def _put_part(self, address: _Address, upload_id: str, number: int, part: bytearray) -> str:
        digest = base64.b64encode(hashlib.md5(part, usedforsecurity=False).digest()).decode()
        answer = self.client.upload_part(
            Bucket=address.bucket,
            Key=address.key,
            UploadId=upload_id,
            PartNumber=number,
            Body=part,
            ContentMD5=digest,
        )
        return cast("str", answer["ETag"])

    def copy_within(
        self, source: str, destination: str, *, storage_class: str | None, verify: Callable[[int, str], None]
    ) -> bool:
        """Have the server copy; False when it will not, and the bytes must be carried. `verify` as in `put_stream`."""
        found = self._head_or_none_if_refused(source)
        etag = None if found is None else self._copied(source, destination, found, storage_class)
        if etag is None:
            return False
        self._verify(destination, etag, verify)
        return True

    def _copied(
        self, source: str, destination: str, found: dict[str, Any], storage_class: str | None, **more: Any
    ) -> str | None:
        """The ETag of what the server made of the source, whose head is `found`; None when it will not copy."""
        origin, target = _address(source), _address(destination)
        size = found["ContentLength"]
        copy_source = {
            "CopySource": {"Bucket": origin.bucket, "Key": origin.key},
            "CopySourceIfMatch": found["ETag"],
            "Bucket": target.bucket,
            "Key": target.key,
        }
        what = "An object cannot be copied"

        def in_one() -> str | None:
            try:
                answer = self.client.copy_object(**copy_source, **_class(storage_class))
            except ClientError as error:
                if _code(error) in _CANNOT_COPY_WITHIN:
                    return None
                raise
            return cast("str", answer["CopyObjectResult"]["ETag"])

        if size <= self._settings.multipart_bytes:
            return self._call(what, destination, in_one)

        part_size = self._part_size(size)

        def upload(upload_id: str) -> Iterator[str]:
            for number, start in enumerate(range(0, size, part_size), start=1):
                span = f"bytes={start}-{min(start + part_size, size) - 1}"
                request = {**copy_source, "CopySourceRange": span, "UploadId": upload_id, "PartNumber": number}
                answer = self._call(what, destination, lambda: self.client.upload_part_copy(**request))  # noqa: B023
                yield answer["CopyPartResult"]["ETag"]

        try:
            return self._multipart(target, destination, storage_class, upload, **more)
        except StorageError as error:
            if isinstance(error.__cause__, ClientError) and _code(error.__cause__) in _CANNOT_COPY_WITHIN:
                return None
            raise

    def _head_or_none_if_refused(self, path: str) -> dict[str, Any] | None:
        try:
            return self._head(path)
        except StorageError as error:
            if isinstance(error.__cause__, ClientError) and _status(error.__cause__) == 403:
                return None
            raise

    def _part_size(self, size: int) -> int:
        least = -(-size // _PARTS)
        return max(self._settings.multipart_bytes, -(-least // MIB) * MIB)

    def _multipart(
        self,
        address: _Address,
        path: str,
        storage_class: str | None,
        upload: Callable[[str], Iterator[str]],
        **more: Any,
    ) -> str:
        """Make one object of the parts whose ETags `upload(upload_id)` yields. Nothing shows before the last step; a
        process that is killed leaves an unfinished upload, which a bucket's lifecycle rule should abort."""
        where = {"Bucket": address.bucket, "Key": address.key}
        what = "An object cannot be written in parts"
        options = {**where, **_class(storage_class), **more}
        begun = self._call(what, path, lambda: self.client.create_multipart_upload(**options))
        upload_id = begun["UploadId"]
        try:
            parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(upload(upload_id), start=1)]

            def finish() -> str:
                try:
                    answer = self.client.complete_multipart_upload(
                        **where, UploadId=upload_id, MultipartUpload={"Parts": parts}
                    )
                except ClientError as error:
                    found = self._head(path) if _code(error) == "NoSuchUpload" else None
                    if found is None:
                        raise
                    # Finished before, and the answer was lost. The caller reads it all back in any case.
                    return cast("str", found["ETag"])
                return cast("str", answer["ETag"])

            return self._call(what, path, finish)
        except BaseException:
            with suppress(ClientError, BotoCoreError):
                self.client.abort_multipart_upload(**where, UploadId=upload_id)
            raise

    def _verify(self, path: str, etag: str, verify: Callable[[int, str], None]) -> None:
        """Read the object back; one that `verify` refuses is removed, unless another writer has replaced it."""
        digest = hashlib.sha256()
        size = 0
        with self.open(path) as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
        try:
            verify(size, f"sha256:{digest.hexdigest()}")
        except Exception:
            address = _address(path)
            with suppress(StorageError, ClientError, BotoCoreError):
                found = self._head(path)
                if found is not None and found["ETag"] == etag:
                    self.client.delete_object(Bucket=address.bucket, Key=address.key)
            raise

    # --- deleting

    def delete(self, paths: Sequence[str], *, until: float | None) -> Outcomes:
        outcomes: dict[str, DeleteOutcome] = {}
        buckets: dict[str, dict[str, list[str]]] = {}
        for path in dict.fromkeys(paths):
            try:
                address = _address(path)
            except StorageError as error:
                outcomes[path] = DeleteOutcome(path, "failed", error.what)
                continue
            refusal = _refusal(address.key)
            if refusal is not None:
                outcomes[path] = DeleteOutcome(path, "failed", refusal)
            elif _is_too_long(address.key):
                outcomes[path] = DeleteOutcome(path, "absent")
            else:
                # One key may have several spellings: s3://b/k and s3a://b/k.
                buckets.setdefault(address.bucket, {}).setdefault(address.key, []).append(path)
        for bucket, spelled in buckets.items():
            errors = self._delete_keys(bucket, list(spelled), until)
            for key, spellings in spelled.items():
                reason = errors.get(key)
                for path in spellings:
                    outcomes[path] = DeleteOutcome(path, "deleted" if reason is None else "failed", reason)
        return [outcomes[path] for path in paths]

    def remove(self, paths: pa.Array, *, until: float | None) -> Removals:
        """`delete` of an Arrow array of strings, of whose plain keys Python makes no more objects than the requests
        need."""
        removals = Removals(np.zeros(len(paths), np.int8))
        parts = pc.extract_regex(paths, _PLAIN)
        keys, buckets = pc.struct_field(parts, "key"), pc.struct_field(parts, "bucket")
        plain = pc.fill_null(pc.less_equal(pc.binary_length(keys), _LONGEST_KEY), False)
        for bucket in pc.unique(buckets.filter(plain)).to_pylist():
            here = pc.and_(plain, pc.equal(buckets, bucket))
            errors = self._delete_keys(bucket, pc.unique(keys.filter(here)).to_pylist(), until)
            if errors:
                failed = pc.and_(here, pc.is_in(keys, pa.array(list(errors), pa.string())))
                rows = np.flatnonzero(failed.to_numpy(zero_copy_only=False))
                removals.outcomes[rows] = FAILED
                removals.errors.update({int(row): errors[keys[row].as_py()] for row in rows})
        odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
        for row, answer in zip(odd, self.delete(paths.take(odd).to_pylist(), until=until), strict=True):
            removals.put(int(row), answer)
        return removals

    def _delete_keys(self, bucket: str, keys: Sequence[str], until: float | None) -> dict[str, str]:
        """Delete different keys; the reason for each of which it is not known that it went."""
        together: list[str] = []
        alone: list[list[str]] = []
        for key in keys:
            if _ALONE.search(key) is None:
                together.append(key)
            else:
                alone.append([key])
        batches = [together[i : i + _DELETES_PER_REQUEST] for i in range(0, len(together), _DELETES_PER_REQUEST)]
        batches += alone
        errors: dict[str, str] = {}
        for refused in threaded(lambda batch: self._delete_batch(bucket, batch, until), batches, _DELETERS):
            errors.update(refused)
        return errors

    def _delete_batch(self, bucket: str, keys: Sequence[str], until: float | None) -> dict[str, str]:
        """Delete up to a thousand keys; the reason for each that stays. Keys that the server was too busy for are asked
        for again, and only those. No request goes out once `instants.elapsed` is `until`: not after a wait for the
        pace either, nor after one between two tries, in which a process may be stopped."""
        left = list(keys)
        reasons: dict[str, str] = {}

        def once() -> None:
            nonlocal left
            with _only_until(until):
                refused = self._ask_to_delete(bucket, left)
            for key in left:
                reasons.pop(key, None)
            reasons.update({key: f"{code}: {message}".rstrip(": ") for key, (code, message) in refused.items()})
            left = [key for key, (code, _) in refused.items() if code in _TRANSIENT_CODES]
            if left:
                raise _BusyKeys

        try:
            self._call("Objects cannot be deleted", f"s3://{bucket}", once)
        except _BusyKeys:
            pass  # Out of attempts; `reasons` has what the server said last.
        except _TimeIsOver:
            for key in left:
                said = reasons.get(key)
                reasons[key] = NOT_TRIED if said is None else f"{NOT_TRIED} (before: {said})"
        except StorageError as error:
            reasons.update(dict.fromkeys(left, error.what))
        return reasons

    def _ask_to_delete(self, bucket: str, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
        """One request; (code, message) of each key that the server did not delete."""
        if len(keys) == 1 and _ALONE.search(keys[0]) is not None:
            self.client.delete_object(Bucket=bucket, Key=keys[0])
            return {}
        answer = self.client.delete_objects(
            Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
        )
        refused = {
            problem.get("Key", ""): (problem.get("Code", ""), problem.get("Message", ""))
            for problem in answer.get("Errors", ())
            if problem.get("Code") not in ("NoSuchKey", "NoSuchVersion")
        }
        strangers = refused.keys() - set(keys)
        if strangers:
            # Which of ours it means cannot be told, so none of ours counts as deleted.
            code, message = refused[min(strangers)]
            return dict.fromkeys(keys, (code, f"{message} (for another key than asked: {min(strangers)!r})"))
        return refused

    def touch(self, path: str, last_modified: datetime) -> None:
        raise StorageError(
            "S3 sets the time of an object by itself",
            path=path,
            untouched="the object",
            hint="set times on a local warehouse, or give the listing its times as a DataFrame",
        )

    # --- archive classes

    def archive(self, path: str, storage_class: str) -> bool:
        found = self._head(path)
        if found is None:
            raise missing(path)
        if found.get("StorageClass") in ARCHIVE_CLASSES:
            return False
        # Onto itself, and only what was looked at: a copy in one request keeps the object's own metadata, one in parts
        # has to be told.
        if self._copied(path, path, found, storage_class, Metadata=found.get("Metadata", {})) is None:
            raise StorageError(
                "The S3 server will not copy the object onto itself, so that it cannot change its storage class",
                path=path,
                untouched="the object",
                hint="allow s3:PutObject and s3:GetObject on the cold bucket, or set cold_tier.then to keep",
            )
        now = self._head(path) or {}
        if now.get("StorageClass") != storage_class or now.get("ContentLength") != found["ContentLength"]:
            raise StorageError(
                f"The object should have {found['ContentLength']} bytes in storage class {storage_class}, and has "
                f"{now.get('ContentLength')} in {now.get('StorageClass', 'STANDARD')}",
                path=path,
                untouched="all other objects",
                hint="see whether this server knows storage classes; if not, set cold_tier.then to keep",
            )
        return True

    def thaw(self, path: str, days: int, retrieval: str) -> None:
        address = _address(path)
        request = {"Days": days, "GlacierJobParameters": {"Tier": retrieval}}

        def ask() -> None:
            try:
                self.client.restore_object(Bucket=address.bucket, Key=address.key, RestoreRequest=request)
            except ClientError as error:
                # In no archive class, or asked for before.
                if _code(error) not in ("InvalidObjectState", "RestoreAlreadyInProgress"):
                    raise

        self._call("An object cannot be thawed", path, ask)

    def end_thaw(self, path: str) -> None:
        """S3 does that by itself."""

    def archive_state(self, path: str) -> ArchiveState | None:
        found = self._head(path)
        if found is None:
            return None
        if found.get("StorageClass") not in ARCHIVE_CLASSES:
            return ArchiveState(archived=False, readable=True)
        told = found.get("Restore", "")
        until = re.search(r'expiry-date="([^"]+)"', told)
        return ArchiveState(
            archived=True,
            readable='ongoing-request="false"' in told,
            thawing='ongoing-request="true"' in told,
            readable_until=None if until is None else parsedate_to_datetime(until[1]).astimezone(UTC),
        )

    # --- calls and their errors

    def _call(self, what: str, path: str | None, operation: Callable[[], T]) -> T:
        """Run one request, again with full jitter while the server is busy or the line is bad; then StorageError."""
        settings = self._settings
        retrying = Retrying(
            retry=retry_if_exception(transient),
            wait=wait_random_exponential(multiplier=0.2, max=settings.max_wait_seconds),
            stop=stop_after_attempt(settings.attempts) | stop_after_delay(settings.deadline_seconds),
            reraise=True,
        )
        try:
            return retrying(operation)
        except (ClientError, BotoCoreError, FlexibleChecksumError, OSError) as error:
            self._fail(what, path, error)

    def _fail(self, what: str, path: str | None, error: Exception) -> NoReturn:
        code = _code(error) if isinstance(error, ClientError) else ""
        if code == "NoSuchKey" and path is not None:  # A bare 404 may as well come from a proxy, or mean the bucket.
            raise missing(path) from error
        reason = str(error)
        if isinstance(error, ClientError):
            message = error.response.get("Error", {}).get("Message", "")
            reason = f"{code}: {message}".rstrip(": ")
        for secret in self._settings.secrets():
            reason = reason.replace(secret, "***")
        do = "look into the S3 server and the network, then run this again"
        if isinstance(error, NoCredentialsError):
            do = "give the catalog s3.access-key-id and s3.secret-access-key, or the process AWS credentials"
        elif code in ("AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"):
            do = "check the catalog's S3 credentials and what they are allowed, then run this again"
        elif code == "InvalidObjectState":
            do = "have the object restored from its archive class, then run this again"
        elif code == "NoSuchBucket":
            do = "check the bucket's name and the catalog's s3.endpoint"
        shown = any(secret in str(error) for secret in self._settings.secrets())
        raise StorageError(f"{what}: {reason}", path=path, untouched="whatever was there", hint=do) from (
            None if shown else error
        )


class _TimeIsOver(Exception):  # noqa: N818  (control flow inside a delete)
    """A request may not go out any more."""


_limit = threading.local()


@contextmanager
def _only_until(end: float | None) -> Iterator[None]:
    """Requests of this thread go out only until then (by `instants.elapsed`)."""
    _limit.end = end
    try:
        _require_time()
        yield
    finally:
        _limit.end = None


def _require_time() -> None:
    end = getattr(_limit, "end", None)
    if end is not None and elapsed() >= end:
        raise _TimeIsOver


class _BusyKeys(Exception):  # noqa: N818  (control flow inside a bulk delete)
    """Some keys of a bulk delete are to be asked for again."""


def _refusal(key: str) -> str | None:
    if not key:
        return "it names a bucket and no object"
    try:
        key.encode()
    except UnicodeEncodeError:
        return "its name is no Unicode text"
    return None


def _is_too_long(key: str) -> bool:
    """Whether S3 has no object under the key, whatever it answers to a question after it."""
    return len(key.encode()) > _LONGEST_KEY


def _class(storage_class: str | None) -> dict[str, str]:
    return {} if storage_class is None else {"StorageClass": storage_class}


def _parts(chunks: Iterable[bytes], size: int) -> Iterator[bytearray]:
    """The same bytes in pieces of exactly `size`, the last one shorter."""
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


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def transient(error: BaseException) -> bool:
    """Whether the same request may well succeed a little later."""
    if isinstance(error, ClientError):
        return _code(error) in _TRANSIENT_CODES or _status(error) in _TRANSIENT_STATUS
    kinds = (HTTPClientError, IncompleteReadError, FlexibleChecksumError, ConnectionError, TimeoutError, _BusyKeys)
    return isinstance(error, kinds)


class _Reader(io.RawIOBase):
    """An object as a seekable stream. A line that breaks is taken up where it broke, on the same object's version."""

    def __init__(self, store: S3Store, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._address = _address(path)
        self._position = 0
        self._body: Any = None
        self._etag = ""
        self._size = 0
        store._call("An object cannot be opened", path, self._first)

    def _first(self) -> None:
        answer = self._store.client.get_object(Bucket=self._address.bucket, Key=self._address.key)
        self._size, self._etag, self._body = answer["ContentLength"], answer["ETag"], answer["Body"]

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

    def readinto(self, buffer: Any, /) -> int:
        if self._position >= self._size or not len(buffer):
            return 0
        data = self._store._call("An object cannot be read to its end", self._path, lambda: self._some(len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _some(self, length: int) -> bytes:
        try:
            if self._body is None:
                answer = self._store.client.get_object(
                    Bucket=self._address.bucket,
                    Key=self._address.key,
                    Range=f"bytes={self._position}-{self._size - 1}",
                    IfMatch=self._etag,
                )
                self._body = answer["Body"]
                if self._position and answer["ResponseMetadata"]["HTTPStatusCode"] != 206:
                    raise StorageError(
                        "The S3 server ignores the range of a request",
                        path=self._path,
                        hint="look into the server, or a proxy in front of it",
                    )
            data = cast("bytes", self._body.read(min(length, self._size - self._position)))
        except Exception:
            self._drop()
            raise
        if not data:
            self._drop()
            raise IncompleteReadError(actual_bytes=self._position, expected_bytes=self._size)
        return data

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()
