"""Requests to S3 and servers like it: paths with `s3:`, `s3a:` or `s3n:`, through boto3.

A key is exactly the text after the bucket: `s3://b/a//c` and `s3://b/a/c` are two objects here, although they have the
same location. Every client comes from `make_client`, or from a factory that the user provides, and waits for its turn
before each request that leaves, its own retries included.

One file: the clients, the requests, and the store that has what only S3 has are one way to a server.

boto3's managed transfers could move the bytes, but they return no ETag, which is needed to remove a copy that reads
back wrong without removing another writer's object. Their parts also ignore the store's budget.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError, NoCredentialsError
from botocore.httpchecksum import FlexibleChecksumError

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.instants import is_late
from artemis_lifecycle.storage.objects import (
    LONGEST_KEY,
    READABLE,
    Address,
    Call,
    Item,
    ObjectStore,
    Outcome,
    Page,
    Place,
    Refusal,
    SeekableObject,
    T,
    Writing,
    address_of,
    content_md5,
    hiding,
    part_bytes,
    refusal,
)
from artemis_lifecycle.storage.pace import TimeIsOver, pace_of
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.stems import Stems
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import ARCHIVE_CLASSES, NOT_TRIED, ArchiveState, Heads, Span, Spans, StoredFile

_PAGE = 1000
_PAGE_PAYS_FROM = 12
"""Objects for which a page of a listing costs no more than asking for each."""

_WRITE_ID = "artemis-write"
_DELETES_PER_REQUEST = 1000
_DELETERS = 4  # With more at once, at a thousand keys each, S3 answers 503.
# Characters that XML cannot represent would break a bulk request for a thousand others. Carriage returns and outer
# blanks, which a parser changes, would name another object. Such a key needs a separate request, with the key in its
# URL.
_ALONE = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|\A\s|\s\Z")

_BUSY = {
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
_STATUS = {**dict.fromkeys(_BUSY, 503), "InvalidRange": 416, "ExpiredToken": 401}
"""By code, whatever the server's own is."""
_ARCHIVED = ArchiveState(archived=True, readable=False)
"""As far as a listing says."""

_PASSING = (HTTPClientError, IncompleteReadError, FlexibleChecksumError, ConnectionError, TimeoutError)

# --- clients ----------------------------------------------------------------------------------------------------------
# Built from settings, shared within a process, rate-limited, and without credentials in botocore's log.

_DELETED = re.compile(rb"<Deleted>.*?</Deleted>", re.DOTALL)
_FIELDS = re.compile("<(Key|LastModified|ETag|Size|StorageClass)>([^<&]*)</")


def _shorten(
    operation_model: Any, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Take a thousand keys out of an answer before botocore parses it, which takes longer than the request. Of a
    listing, read them here; if the server writes them in another form, leave them to botocore. Of a bulk delete, drop
    them: some servers include the deleted keys against the request."""
    if operation_model.name == "DeleteObjects":
        response_dict["body"] = _DELETED.sub(b"", response_dict["body"])
    if operation_model.name != "ListObjectsV2":
        return
    try:
        head, *rest = response_dict["body"].decode().split("<Contents>")
        objects = [dict(_FIELDS.findall(each.replace("&quot;", '"'))) for each in rest]
        for each in objects:
            each.update(LastModified=datetime.fromisoformat(each["LastModified"]), Size=int(each["Size"]))
    except (KeyError, ValueError):
        return
    left = "".join((head, *(each.partition("</Contents>")[2] for each in rest)))
    if objects and "Contents" not in left and all("Key" in each and "ETag" in each for each in objects):
        customized_response_dict["Contents"], response_dict["body"] = objects, left.encode()


def make_client(settings: StoreSettings) -> Any:
    """Return an S3 client for `settings`. It does not retry: `ObjectStore` does so."""
    own_server = settings.s3_endpoint is not None
    path_style = settings.s3_path_style if settings.s3_path_style is not None else own_server
    options: dict[str, Any] = {}
    if own_server:
        # Servers other than AWS reject the checksums that newer clients add by default.
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
_limit = threading.local()
"""`until` of the request that the thread sends."""


def shared_client(settings: StoreSettings) -> Any:
    """Return the only client of this process for `settings`, so that a Spark task that unpickles its stores can reuse
    it."""
    key = (settings, os.getpid())  # A fork must not share sockets.
    with _clients_lock:
        if key not in _clients:
            _clients[key] = make_client(settings)
        return _clients[key]


def prepared(client: Any, settings: StoreSettings) -> Any:
    """Rate-limit `client`: each request (a page, a part, a retry), each key of a bulk delete, and their bytes wait for
    their turn."""
    if getattr(client.meta, "artemis_pace", None) == settings.paced_by:
        return client

    def ask(request: Any, event_name: str, **_: Any) -> None:
        kind, count = "reads" if request.method in ("GET", "HEAD") else "writes", 1
        if event_name.endswith(".DeleteObjects"):
            count = (request.body if isinstance(request.body, bytes) else request.body.encode()).count(b"<Key>")
        size = int(request.headers.get("Content-Length") or 0)
        pace_of(*settings.paced_by).turn(kind, count, size, getattr(_limit, "until", None))

    def answered(response_dict: dict[str, Any] | None, **_: Any) -> None:
        # The size of the response is known only now; the next request pays for it.
        if response_dict is not None and response_dict.get("body"):  # A HEAD names a length and has none.
            pace_of(*settings.paced_by).take("bytes", int(response_dict["headers"].get("content-length") or 0))

    events = client.meta.events
    # Before botocore's own handlers for S3, of which one parses the whole body: handlers for any service come first.
    events.register("before-parse.*", _shorten, unique_id="artemis-shorten")
    events.register("before-send.s3", ask, unique_id="artemis-pace")
    events.register("response-received.s3", answered, unique_id="artemis-pace-bytes")
    client.meta.artemis_pace = settings.paced_by
    return client


_WITHOUT_CREDENTIALS = hiding(
    re.compile(
        r"((?:x-amz-security-token|authorization|x-amz-server-side-encryption-customer-key)['\"]?\s*[:=]\s*b?)"
        r"(?:'[^']*'|\"[^\"]*\"|[^\n]*)",
        re.IGNORECASE,
    )
)
"""botocore logs requests at DEBUG, including session token and signature."""


def _silence_credentials() -> None:
    for name in ("auth", "endpoint", "awsrequest", "httpsession", "hooks"):
        logging.getLogger(f"botocore.{name}").addFilter(_WITHOUT_CREDENTIALS)


# --- requests ---------------------------------------------------------------------------------------------------------


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise Refusal for boto3's errors."""
    try:
        yield
    except ClientError as error:
        said = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code, message = str(said.get("Code", "")), str(said.get("Message", ""))
        if status == 404 and code not in ("NoSuchKey", "NoSuchBucket") and not error.operation_name.startswith("Head"):
            status = 409  # A bare 404 may come from a proxy. Only a HEAD has no more to say.
        hint = "have the object restored from its archive class, then retry" if code == "InvalidObjectState" else None
        raise Refusal(_STATUS.get(code, status or 400), message, code=code, hint=hint) from error
    except NoCredentialsError as error:
        do = "set s3.access-key-id and s3.secret-access-key in the catalog, or give the process AWS credentials"
        raise Refusal(0, str(error), settled=True, hint=do) from error
    except (BotoCoreError, FlexibleChecksumError, OSError) as error:
        raise Refusal(0, str(error), settled=not isinstance(error, _PASSING)) from error


class S3Requests:
    """S3 with `settings`, or with the client that `client_factory` makes in this process."""

    kind = "S3"
    credentials = "S3 credentials"
    classes: Mapping[str, str | None] = MappingProxyType({})
    wrong_token = f'"{"0" * 32}"'

    def __init__(self, settings: StoreSettings, client_factory: Callable[[], Any] | None) -> None:
        self._settings, self._factory = settings, client_factory
        self._made: Any = None
        self._digests = True

    @property
    def client(self) -> Any:
        if self._made is None:
            _silence_credentials()
            try:
                made = shared_client(self._settings) if self._factory is None else self._factory()
                self._made = prepared(made, self._settings)
            except (BotoCoreError, ValueError) as error:
                raise StorageError(
                    f"The S3 client cannot be created: {self._settings.without_secrets(str(error))}",
                    untouched="the existing objects",
                    hint="check the catalog's properties of S3, then retry",
                ) from None
        return self._made

    def refused_key(self, key: str) -> str | None:
        return None

    def server(self, bucket: str) -> str:
        return str(self.client.meta.endpoint_url)

    def ask(self, operation: str, at: Address, **request: Any) -> dict[str, Any]:
        """Send a request for an object, or for its bucket if it has no key, without what is None in it."""
        given = {"Bucket": at.bucket, "Key": at.key or None, **request}
        with _refusals():
            answer = getattr(self.client, operation)(**{name: each for name, each in given.items() if each is not None})
            return cast("dict[str, Any]", answer)

    def require_bucket(self, bucket: str) -> None:
        self.ask("head_bucket", Address("", bucket, ""))

    def page(self, bucket: str, prefix: str, *, deep: bool, after: Any, most: int | None = None) -> Page:
        """`after` are fields of the request: StartAfter, or the token of the page before."""
        request = {"Prefix": prefix, "Delimiter": None if deep else "/", "MaxKeys": most or _PAGE, **(after or {})}
        answer = self.ask("list_objects_v2", Address("", bucket, ""), **request)
        return (
            [each["Prefix"] for each in answer.get("CommonPrefixes", ())],
            [
                Item(
                    each["Key"],
                    each["Size"],
                    each["LastModified"],
                    each.get("ETag"),
                    state=_ARCHIVED if each.get("StorageClass") in ARCHIVE_CLASSES else READABLE,
                )
                for each in answer.get("Contents", ())
            ],
            {"ContinuationToken": answer["NextContinuationToken"]} if answer.get("IsTruncated") else None,
        )

    def head(self, at: Address) -> Item:
        return self.described(at, self.ask("head_object", at))

    def described(self, at: Address, said: dict[str, Any]) -> Item:
        """Return what the answer to a HEAD or GET says of the object."""
        restore, archived = said.get("Restore", ""), said.get("StorageClass") in ARCHIVE_CLASSES
        until = re.search(r'expiry-date="([^"]+)"', restore) if archived else None
        state = ArchiveState(
            archived=archived,
            readable=not archived or 'ongoing-request="false"' in restore,
            thawing=archived and 'ongoing-request="true"' in restore,
            readable_until=None if until is None else parsedate_to_datetime(until[1]).astimezone(UTC),
        )
        write_id = said.get("Metadata", {}).get(_WRITE_ID)
        return Item(at.key, said["ContentLength"], said["LastModified"], said.get("ETag"), write_id, state, said)

    def get(self, at: Address, start: int, length: int, token: str | None) -> bytes:
        answer = self.ask("get_object", at, Range=f"bytes={start}-{start + length - 1}", IfMatch=token)
        with _refusals():
            data = cast("bytes", answer["Body"].read())
        whole = answer["ResponseMetadata"]["HTTPStatusCode"] == 200  # Some servers ignore the range.
        return data[start : start + length] if whole else data

    def put(self, at: Address, data: bytes | bytearray, how: Writing) -> str:
        written = {
            "Metadata": {_WRITE_ID: how.write_id},
            "StorageClass": how.storage_class,
            "IfNoneMatch": _if_new(how),
        }
        return _token(self.ask("put_object", at, Body=data, ContentMD5=content_md5(data), **written))

    def put_parts(self, at: Address, parts: Iterable[bytearray], how: Writing, call: Call) -> str:
        sends = (partial(self.ask, "upload_part", at, Body=part, ContentMD5=content_md5(part)) for part in parts)
        return self._in_parts(at, sends, how, {_WRITE_ID: how.write_id}, call)

    def copy(
        self,
        source: Address,
        at: Address,
        token: str,
        size: int,
        how: Writing,
        call: Call,
        metadata: Mapping[str, str] | None = None,
    ) -> tuple[str, str | None]:
        """With `metadata`, the object's own, copy it onto itself: a copy in one request keeps it."""
        origin = {"CopySource": {"Bucket": source.bucket, "Key": source.key}, "CopySourceIfMatch": token}
        if size > self._settings.multipart_bytes:
            part = part_bytes(self._settings, size)
            spans = (f"bytes={start}-{min(start + part, size) - 1}" for start in range(0, size, part))
            sends = (partial(self.ask, "upload_part_copy", at, CopySourceRange=span, **origin) for span in spans)
            kept = {_WRITE_ID: how.write_id} if metadata is None else metadata
            return self._in_parts(at, sends, how, kept, call), None
        digest = "SHA256" if metadata is None and self._digests else None
        written = {"StorageClass": how.storage_class, "IfNoneMatch": _if_new(how), "ChecksumAlgorithm": digest}
        try:
            answer = call(partial(self.ask, "copy_object", at, **origin, **written))["CopyObjectResult"]
        except Refusal as error:
            if digest is None or error.status not in (400, 501):
                raise
            self._digests = False
            return self.copy(source, at, token, size, how, call)
        return _token(answer), answer.get("ChecksumSHA256")

    def _in_parts(
        self,
        at: Address,
        sends: Iterable[Callable[..., dict[str, Any]]],
        how: Writing,
        metadata: Mapping[str, str],
        call: Call,
    ) -> str:
        """Combine the parts that `sends` send into one object. Nothing is visible before the last step. A killed
        process leaves an unfinished upload, which a lifecycle rule of the bucket should abort."""
        begin = partial(self.ask, "create_multipart_upload", at, StorageClass=how.storage_class, Metadata=metadata)
        upload, parts = {"UploadId": call(begin)["UploadId"]}, []
        try:
            for number, send in enumerate(sends, start=1):
                sent = call(partial(send, **upload, PartNumber=number))
                parts.append({"PartNumber": number, "ETag": _token(sent.get("CopyPartResult", sent))})
            finish = partial(self.ask, "complete_multipart_upload", at, **upload, IfNoneMatch=_if_new(how))
            try:
                return _token(call(partial(finish, MultipartUpload={"Parts": parts})))
            except Refusal as error:
                if error.code == "NoSuchUpload":  # Finished before, but the answer was lost?
                    with suppress(Refusal):
                        there = call(lambda: self.head(at))
                        if there.write_id == metadata.get(_WRITE_ID) and there.token is not None:
                            return there.token
                raise
        except BaseException:
            with suppress(Refusal):
                self.ask("abort_multipart_upload", at, **upload)
            raise

    def delete(self, at: Address, token: str | None) -> None:
        for code, message in self.delete_keys(at.bucket, [at.key], {} if token is None else {at.key: token}).values():
            raise Refusal(_STATUS.get(code, 409), message, code=code)

    def delete_keys(self, bucket: str, keys: Sequence[str], only: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Delete up to a thousand keys; those in `only` if they have that ETag. Return (code, message) of each key that
        the server did not delete."""
        if len(keys) == 1 and _ALONE.search(keys[0]) is not None:
            self.ask("delete_object", Address("", bucket, keys[0]), IfMatch=only.get(keys[0]))
            return {}
        objects = [{"Key": key, "ETag": only[key]} if key in only else {"Key": key} for key in keys]
        answer = self.ask("delete_objects", Address("", bucket, ""), Delete={"Objects": objects, "Quiet": True})
        refused = {
            problem.get("Key", ""): (problem.get("Code", ""), problem.get("Message", ""))
            for problem in answer.get("Errors", ())
            if problem.get("Code") not in ("NoSuchKey", "NoSuchVersion")
        }
        strangers = refused.keys() - set(keys)
        if strangers:
            # It is unknown which of these keys the server means, so none of them counts as deleted.
            code, message = refused[min(strangers)]
            return dict.fromkeys(keys, (code, f"{message} (for a key that was not requested: {min(strangers)!r})"))
        return refused


def _token(answer: Mapping[str, Any]) -> str:
    """Return the ETag in an answer. Raises Refusal if a server, or a proxy in front of it, leaves it out."""
    if answer.get("ETag") is None:
        do = "check the server, or a proxy in front of it that removes headers"
        raise Refusal(0, "the answer has no ETag, so that it may be of another object", settled=True, hint=do)
    return str(answer["ETag"])


def _if_new(how: Writing) -> str | None:
    return "*" if how.new else None


# --- store ------------------------------------------------------------------------------------------------------------


class S3Store(ObjectStore):
    """`ObjectStore` for S3: with listings in pieces, many statuses from one page, bulk deletes, and archive classes."""

    threads = 16

    def __init__(self, settings: StoreSettings, client_factory: Callable[[], Any] | None = None) -> None:
        self.s3 = S3Requests(settings, client_factory)
        super().__init__(settings, self.s3)

    def in_turn(self, send: Callable[[], T], kind: str, size: int, until: float | None) -> T:
        if is_late(until):  # Else the client would wait for its turn first.
            raise TimeIsOver
        _limit.until = until
        try:
            return send()
        finally:
            _limit.until = None

    def is_too_long(self, key: str) -> bool:
        return len(key.encode()) > LONGEST_KEY

    # --- listing and status

    def list_span(self, span: Span) -> Iterator[StoredFile]:
        until = None if span.until is None else address_of(span.until).key
        after = None if span.after is None else address_of(span.after).key
        stem = len(address_of(span.prefix).stem) + 1
        last = after or ""
        for _, files in self.pages(span.prefix, deep=True, after={"StartAfter": after} if after else None):
            for file in files:
                # Python compares strings by code point, which is the order of their UTF-8 bytes.
                key = file.path[stem:]
                if key <= last:
                    raise StorageError(
                        "The server does not list in the order of keys, so a prefix cannot be listed in pieces",
                        path=file.path,
                        hint="choose a location with fewer files, or provide a listing to the scan",
                    )
                if until is not None and key > until:
                    return
                last = key
                yield file

    def split(self, span: Span, wanted: int) -> Spans:
        address = address_of(span.prefix)
        folder = address.key and address.key.removesuffix("/") + "/"
        after = folder if span.after is None else address_of(span.after).key
        until = None if span.until is None else address_of(span.until).key

        def first(behind: str) -> str | None:
            """Return the first key of the span after `behind`."""
            start = {"StartAfter": max(behind, after)}
            _, items, _ = self.page(span.prefix, folder, deep=True, after=start, most=1)
            key = items[0].key if items else None
            return None if key is None or (until is not None and key > until) else key

        stems = Stems(first, folder).found(wanted)
        # A stem that is itself a key is the last key of the piece before it.
        cuts = [None, *(f"{address.stem}/{stem}" for stem in stems[1:]), None]
        pieces = [Span(span.prefix, cut or span.after, following or span.until) for cut, following in pairwise(cuts)]
        return pieces or [span]

    def heads(self, paths: Sequence[str]) -> Heads:
        found = self._by_listing(paths) if len(paths) >= _PAGE_PAYS_FROM else {}
        left = [path for path in paths if path not in found]
        found.update(zip(left, super().heads(left), strict=True))
        return [found[path] for path in paths]

    def _by_listing(self, paths: Sequence[str]) -> dict[str, StoredFile | None]:
        """Return the statuses of those objects that are so close to each other that listing them is cheaper."""
        found: dict[str, StoredFile | None] = {}
        stems: dict[str, dict[str, str]] = {}
        for path in paths:
            address = address_of(path)
            if refusal(address.key) is None and not self.is_too_long(address.key) and not address.key.endswith("/"):
                stems.setdefault(address.stem, {})[address.key] = path
        runs = [
            (stem, wanted, keys[at : at + _PAGE])
            for stem, wanted in stems.items()
            for keys in [sorted(wanted)]
            for at in range(0, len(keys), _PAGE)
        ]
        for part in threaded(lambda run: self._listed_between(*run), runs, self.threads):
            found.update(part)
        return found

    def _listed_between(
        self, stem: str, wanted: Mapping[str, str], keys: Sequence[str]
    ) -> dict[str, StoredFile | None]:
        """Return the statuses of objects with sorted keys, as far as listing them page by page is cheaper."""
        found: dict[str, StoredFile | None] = {}
        common = os.path.commonprefix([keys[0], keys[-1]]).rpartition("/")  # noqa: RUF071  (keys are text)
        while len(keys) >= _PAGE_PAYS_FROM:
            prefix, start = "".join(common[:2]), {"StartAfter": keys[0][:-1]}
            try:
                _, items, following = self.page(f"{stem}/{prefix}", prefix, deep=True, after=start)
            except StorageError:
                break  # Single requests show whether the objects can be read.
            listed = {item.key: item for item in items}
            names = list(listed)
            # An empty page that goes on says nothing, nor does one that is not in the order of keys.
            if names != sorted(names) or (following is not None and not names):
                break
            covered = len(keys) if following is None else bisect_right(keys, names[-1])
            for key in keys[:covered]:
                item = listed.get(key)
                found[wanted[key]] = None if item is None else self.stored(stem, item)
            keys = keys[covered:]
            if covered < _PAGE_PAYS_FROM:
                break
        return found

    # --- reading

    def stream(self, path: str) -> SeekableObject:
        return _Stream(self, path)

    def read(self, path: str, limits: ReadLimits) -> bytes:
        address = self.usable(path)

        def get() -> bytes:
            answer = self.s3.ask("get_object", address)
            with _refusals(), closing(answer["Body"]) as body:
                limits.require(answer["ContentLength"], path)
                return cast("bytes", body.read())

        return self.call("An object cannot be read", path, get)

    # --- deleting

    def deletes_at_once(self) -> int:
        """Return the keys of one second, at most a request for each thread, and whole requests if there is one."""
        keys = min(super().deletes_at_once(), _DELETERS * _DELETES_PER_REQUEST)
        return keys // _DELETES_PER_REQUEST * _DELETES_PER_REQUEST or keys

    def delete_all(
        self, objects: Mapping[Place, Sequence[str]], tokens: Mapping[Place, str], until: float | None
    ) -> Iterator[tuple[Place, tuple[Outcome, str | None]]]:
        together: dict[str, list[str]] = {}
        batches: list[tuple[str, list[str]]] = []
        for bucket, key in objects:
            if _ALONE.search(key) is None:
                together.setdefault(bucket, []).append(key)
            else:
                batches.append((bucket, [key]))
        for bucket, keys in together.items():
            at = range(0, len(keys), _DELETES_PER_REQUEST)
            batches += [(bucket, keys[start : start + _DELETES_PER_REQUEST]) for start in at]
        done = threaded(lambda batch: self._delete_batch(batch[0], batch[1], tokens, until), batches, _DELETERS)
        for (bucket, keys), reasons in zip(batches, done, strict=True):
            for key in keys:
                yield (bucket, key), ("failed" if key in reasons else "deleted", reasons.get(key))

    def _delete_batch(
        self, bucket: str, keys: Sequence[str], tokens: Mapping[Place, str], until: float | None
    ) -> dict[str, str]:
        """Delete up to a thousand keys. Return the reason for each that remains. Retries only the keys for which the
        server was too busy. No request is sent once `instants.elapsed` is `until`, not even after a wait for the rate
        limit or between two retries, in which the process may be suspended."""
        left = list(keys)
        only = {key: tokens[bucket, key] for key in keys if (bucket, key) in tokens} if tokens else {}
        reasons: dict[str, str] = {}

        def once() -> None:
            nonlocal left
            refused = self.s3.delete_keys(bucket, left, only)
            for key in left:
                reasons.pop(key, None)
            reasons.update({key: f"{code}: {message}".rstrip(": ") for key, (code, message) in refused.items()})
            left = [key for key, (code, _) in refused.items() if code in _BUSY]
            if left:
                raise _BusyKeys(503, "")

        try:
            self.send(once, until=until)
        except _BusyKeys:
            pass  # Out of attempts; `reasons` has the server's last answer.
        except TimeIsOver:
            for key in left:
                said = reasons.get(key)
                reasons[key] = NOT_TRIED if said is None else f"{NOT_TRIED} (before: {said})"
        except Refusal as error:
            reasons.update(dict.fromkeys(left, f"Objects cannot be deleted: {self.reason(error)}"))
        return reasons

    # --- archive classes: moving objects to them, and thawing the objects ("restoring" in S3's terms)

    def archive(self, path: str, storage_class: str) -> bool:
        found, at = self.require_token(path), address_of(path)
        if found.state.archived:
            return False
        try:
            self._to_class(at, found, storage_class)
        except Refusal as error:
            if error.code not in ("AccessDenied", "NotImplemented", "MethodNotAllowed"):
                self.fail("An object cannot be copied", path, error)
            raise StorageError(
                "The S3 server does not copy the object onto itself, so its storage class cannot change",
                path=path,
                untouched="the object",
                hint="allow s3:PutObject and s3:GetObject on the cold bucket, or set cold_tier.then to keep",
            ) from None
        there = self.item(path)
        now = {} if there is None else there.said
        if now.get("StorageClass") != storage_class or now.get("ContentLength") != found.size:
            raise StorageError(
                f"The object should have {found.size} bytes in storage class {storage_class}, but has "
                f"{now.get('ContentLength')} in {now.get('StorageClass', 'STANDARD')}",
                path=path,
                untouched="all other objects",
                hint="check whether this server supports storage classes; if not, set cold_tier.then to keep",
            )
        return True

    def thaw(self, path: str, days: int, retrieval: str) -> None:
        at, request = self.usable(path), {"Days": days, "GlacierJobParameters": {"Tier": retrieval}}
        try:
            self.send(partial(self.s3.ask, "restore_object", at, RestoreRequest=request))
        except Refusal as error:
            if error.code in ("MethodNotAllowed", "NotImplemented"):
                # A server that takes the class for a name, and archives nothing.
                self._leave_class(path, at)
            # The object is not in an archive class, or a thaw was requested before.
            elif error.code not in ("InvalidObjectState", "RestoreAlreadyInProgress"):
                self.fail("An object cannot be thawed", path, error)

    def _leave_class(self, path: str, at: Address) -> None:
        try:
            self._to_class(at, self.require_token(path), "STANDARD")
        except Refusal as error:
            self.fail("An object cannot be thawed", path, error)

    def _to_class(self, at: Address, found: Item, storage_class: str) -> None:
        """Copy an object onto itself, only the version that was `found`. Raises Refusal."""
        how, metadata = Writing(False, storage_class), found.said.get("Metadata", {})
        self.s3.copy(at, at, str(found.token), found.size, how, self.send, metadata)


class _BusyKeys(Refusal):
    """Some keys of a bulk delete need another request."""


class _Stream(SeekableObject):
    """An object as a seekable stream. After a broken connection, it resumes at the same position and object version."""

    def __init__(self, store: S3Store, path: str) -> None:
        super().__init__()
        self._store, self._path, self._address = store, path, store.usable(path)
        what = "An object cannot be opened"
        self._first = store.call(what, path, partial(store.s3.ask, "get_object", self._address))
        self._size, self._body = self._first["ContentLength"], self._first["Body"]
        self._etag = store.call(what, path, partial(_token, self._first))

    def item(self) -> Item:
        return self._store.s3.described(self._address, self._first)

    def readinto(self, buffer: Any, /) -> int:
        if self._position >= self._size or not len(buffer):
            return 0
        data = self._store.call("An object cannot be read to its end", self._path, lambda: self._some(len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _some(self, length: int) -> bytes:
        try:
            if self._body is None:
                span = f"bytes={self._position}-{self._size - 1}"
                answer = self._store.s3.ask("get_object", self._address, Range=span, IfMatch=self._etag)
                self._body = answer["Body"]
                if self._position and answer["ResponseMetadata"]["HTTPStatusCode"] != 206:
                    raise StorageError(
                        "The S3 server ignores the range of a request",
                        path=self._path,
                        hint="check the server, or a proxy in front of it",
                    )
            with _refusals():
                data = cast("bytes", self._body.read(min(length, self._size - self._position)))
                if not data:
                    raise IncompleteReadError(actual_bytes=self._position, expected_bytes=self._size)
                return data
        except Exception:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()
