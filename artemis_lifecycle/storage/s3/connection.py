"""Requests to S3: retried while the server is busy, and turned into StorageError when they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError, NoCredentialsError
from botocore.httpchecksum import FlexibleChecksumError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.s3.addresses import Address, address_of, is_too_long, refusal
from artemis_lifecycle.storage.s3.client import prepared, shared_client, silence_credentials
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.types import missing

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
        settings = self.settings
        retrying = Retrying(
            retry=retry_if_exception(transient),
            wait=wait_random_exponential(multiplier=0.2, max=settings.max_wait_seconds),
            stop=stop_after_attempt(settings.attempts) | stop_after_delay(settings.deadline_seconds),
            reraise=True,
        )
        try:
            return retrying(operation)
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
