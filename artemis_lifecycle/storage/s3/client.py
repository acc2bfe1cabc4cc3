"""S3 clients: built from settings, shared within a process, rate-limited, and without credentials in botocore's log."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config

from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.pace import TokenBucket, shared_pace
from artemis_lifecycle.storage.settings import StoreSettings

_DELETED = re.compile(rb"<Deleted>.*?</Deleted>", re.DOTALL)


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


_paces: dict[tuple[float | None, int], TokenBucket] = {}


def _own_pace(rate: float | None) -> TokenBucket:
    """Return the only bucket of this process for a rate."""
    with _clients_lock:
        return _paces.setdefault((rate, os.getpid()), TokenBucket(rate))


def prepared(client: Any, settings: StoreSettings) -> Any:
    """Rate-limit `client`: each request (a page, a part, a retry) and its bytes wait for their turn. Removes deleted
    keys from the answer to a bulk delete, which some servers include against the request: for a thousand files, parsing
    them takes as long as the request."""
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
        require_time()

    def answered(response_dict: dict[str, Any] | None, **_: Any) -> None:
        # The size of the response is known only now; the next request pays for it.
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
