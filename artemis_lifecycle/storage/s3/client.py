"""S3 clients: built from settings, shared within a process, rate-limited, and without credentials in botocore's log."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn, TypeVar, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError, NoCredentialsError
from botocore.httpchecksum import FlexibleChecksumError

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.objects import Address, address_of, refusal, retrying
from artemis_lifecycle.storage.pace import pace_of
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.types import missing

# --- addresses --------------------------------------------------------------------------------------------------------
# Buckets and keys of S3 paths.

LONGEST_KEY = 1024


def folder_key(address: Address) -> str:
    return address.key if not address.key or address.key.endswith("/") else address.key + "/"


def is_too_long(key: str) -> bool:
    """Return True if the key is too long for S3, so that no object can have it, whatever S3 answers."""
    return len(key.encode()) > LONGEST_KEY


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
    """Return an S3 client for `settings`. It does not retry: `S3Store` does so for every client."""
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
        pace, kind, count = pace_of(*settings.paced_by), "reads" if request.method in ("GET", "HEAD") else "writes", 1
        if event_name.endswith(".DeleteObjects"):
            count = (request.body if isinstance(request.body, bytes) else request.body.encode()).count(b"<Key>")
        pace.take(kind, count)
        pace.take("bytes", int(request.headers.get("Content-Length") or 0))
        try:
            require_time()
        except TimeIsOver:
            pace.put_back(kind, count)
            raise

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


class _Redact(logging.Filter):
    """botocore logs requests at DEBUG, including session token and signature."""

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


def silence_credentials() -> None:
    for name in ("botocore.auth", "botocore.endpoint", "botocore.awsrequest", "botocore.httpsession", "botocore.hooks"):
        logging.getLogger(name).addFilter(_REDACT)


class TimeIsOver(Exception):  # noqa: N818  (control flow inside a delete)
    """The time limit for requests is over."""


_limit = threading.local()


@contextmanager
def only_until(end: float | None) -> Iterator[None]:
    """Allow requests of this thread only until `end` (by `instants.elapsed`)."""
    _limit.end = end
    try:
        require_time()
        yield
    finally:
        _limit.end = None


def require_time() -> None:
    end = getattr(_limit, "end", None)
    if end is not None and elapsed() >= end:
        raise TimeIsOver


# --- connection -------------------------------------------------------------------------------------------------------
# Requests to S3: retried while the server is busy, and turned into StorageError when they fail.

T = TypeVar("T")

_TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}
TRANSIENT_CODES = {
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


class Connection:
    """S3 with `settings`, or with the client that `client_factory` makes in this process."""

    def __init__(self, settings: StoreSettings, client_factory: Callable[[], Any] | None) -> None:
        self.settings = settings
        self._factory = client_factory
        self._made: Any = None
        self._buckets: set[str] = set()

    @property
    def client(self) -> Any:
        if self._made is None:
            silence_credentials()
            try:
                made = shared_client(self.settings) if self._factory is None else self._factory()
                self._made = prepared(made, self.settings)
            except (BotoCoreError, ValueError) as error:
                self.fail("The S3 client cannot be created", None, error)
        return self._made

    def call(self, what: str, path: str | None, operation: Callable[[], T]) -> T:
        """Run one request. Retry with full jitter while the server is busy or the connection fails, then raise
        StorageError."""
        try:
            return retrying(self.settings, transient)(operation)
        except (ClientError, BotoCoreError, FlexibleChecksumError, OSError) as error:
            self.fail(what, path, error)

    def fail(self, what: str, path: str | None, error: Exception) -> NoReturn:
        code = code_of(error) if isinstance(error, ClientError) else ""
        if code == "NoSuchKey" and path is not None:  # A bare 404 may come from a proxy, or refer to the bucket.
            raise missing(path) from error
        reason = str(error)
        if isinstance(error, ClientError):
            message = error.response.get("Error", {}).get("Message", "")
            reason = f"{code}: {message}".rstrip(": ")
        for secret in self.settings.secrets():
            reason = reason.replace(secret, "***")
        do = "check the S3 server and the network, then retry"
        if isinstance(error, NoCredentialsError):
            do = "set s3.access-key-id and s3.secret-access-key in the catalog, or give the process AWS credentials"
        elif code in ("AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"):
            do = "check the catalog's S3 credentials and their permissions, then retry"
        elif code == "InvalidObjectState":
            do = "have the object restored from its archive class, then retry"
        elif code == "PreconditionFailed":
            do = "another file took its place meanwhile: run the step again"
        elif code == "NoSuchBucket":
            do = "check the bucket name and the catalog's s3.endpoint"
        shown = any(secret in str(error) for secret in self.settings.secrets())
        raise StorageError(f"{what}: {reason}", path=path, untouched="the existing objects", hint=do) from (
            None if shown else error
        )

    def head(self, path: str) -> dict[str, Any] | None:
        address = address_of(path)

        def head() -> dict[str, Any] | None:
            try:
                return cast("dict[str, Any]", self.client.head_object(Bucket=address.bucket, Key=address.key))
            except ClientError as error:
                if status_of(error) == 404:
                    return None
                raise

        if refusal(address.key) is not None or is_too_long(address.key):
            return None
        found = self.call("An object's status cannot be read", path, head)
        if found is None:
            self._require_bucket(address, path)
        return found

    def _require_bucket(self, address: Address, path: str) -> None:
        # A HEAD also answers 404 for a missing bucket. "No such file" must not be reported for a missing store.
        if address.bucket in self._buckets:
            return

        def head() -> None:
            try:
                self.client.head_bucket(Bucket=address.bucket)
            except ClientError as error:
                if status_of(error) != 403:  # It exists, but listing it is not allowed.
                    raise

        self.call(f"The bucket {address.bucket} cannot be reached", path, head)
        self._buckets.add(address.bucket)


class BusyKeys(Exception):  # noqa: N818  (control flow inside a bulk delete)
    """Some keys of a bulk delete need another request."""


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def transient(error: BaseException) -> bool:
    """Return True if the same request may succeed a little later."""
    if isinstance(error, ClientError):
        return code_of(error) in TRANSIENT_CODES or status_of(error) in _TRANSIENT_STATUS
    kinds = (HTTPClientError, IncompleteReadError, FlexibleChecksumError, ConnectionError, TimeoutError, BusyKeys)
    return isinstance(error, kinds)
