"""An S3 server for tests of every room: one in this process (moto), or, for the whole walk, another that is running at
`$ARTEMIS_TEST_S3` (an endpoint) and takes ACCESS_KEY and SECRET_KEY.
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from artemis_lifecycle.storage.s3 import make_client, shared_client
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.lookups import parse_models_once

parse_models_once()

_numbers = itertools.count(1)

# Read before the fixture of the tests' conftest takes such variables away.
_ANOTHER = os.environ.get("ARTEMIS_TEST_S3")

ACCESS_KEY = "AKIDTESTARTEMIS"
SECRET_KEY = "wJalrXUtnFEMI-K7MDENG-never-show-this"
SESSION_TOKEN = "FwoGZXIvYXdzE-never-show-this-either"


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    knows_classes: bool = True
    """Whether it has storage classes, as S3 has them; servers that keep objects on a disk do not."""
    session_token: str | None = SESSION_TOKEN

    def settings(self, **changes: Any) -> StoreSettings:
        base = StoreSettings(
            s3_endpoint=self.endpoint,
            s3_region="us-east-1",
            s3_access_key_id=ACCESS_KEY,
            s3_secret_access_key=SECRET_KEY,
            s3_session_token=self.session_token,
            max_wait_seconds=0.02,
        )
        return replace(base, **changes)

    def stores(self, **changes: Any) -> Stores:
        return Stores(self.settings(**changes))

    def client(self) -> Any:
        return shared_client(self.settings())

    def bucket(self) -> str:
        """A new, empty bucket's name."""
        name = f"bucket-{next(_numbers)}" + ("" if self.knows_classes else f"-{uuid.uuid4().hex[:8]}")
        self.client().create_bucket(Bucket=name)
        return name

    def fill(self, bucket: str, keys: Iterable[str]) -> None:
        """Objects of one byte each, by the thousand: put straight into the server, which shares this process."""
        from moto.core.models import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for key in keys:
            backend.put_object(bucket, key, b"1")


@contextmanager
def running_anywhere() -> Iterator[S3Server]:
    """The server at `$ARTEMIS_TEST_S3`, or else one in this process."""
    if _ANOTHER is None:
        with running() as server:
            yield server
    else:
        yield S3Server(_ANOTHER, knows_classes=False, session_token=None)


@contextmanager
def running() -> Iterator[S3Server]:
    """A server on a free loopback port."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        with _conditions_hold():
            yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()


@contextmanager
def _conditions_hold() -> Iterator[None]:
    """S3 decides a conditional PUT and stores its object in one step. moto checks first and stores later, and of two
    writers at once both could win. Here it takes one PUT after the other."""
    from moto.s3.responses import S3Response

    lock, put_object = threading.RLock(), S3Response.put_object

    def one_at_a_time(self: S3Response) -> Any:
        with lock:
            return put_object(self)

    with patch.object(S3Response, "put_object", one_at_a_time):
        yield


@dataclass
class Injected:
    """A client whose requests can be answered, or broken, before they leave. Use as a `s3_client_factory`."""

    client: Any
    requests: list[str]

    @classmethod
    def around(cls, settings: StoreSettings) -> Injected:
        injected = cls(make_client(settings), [])

        def note(model: Any, **_: Any) -> None:
            injected.requests.append(model.name)

        injected.client.meta.events.register("before-call.s3", note)
        return injected

    def __call__(self) -> Any:
        return self.client

    def answer(self, operation: str, reply: Callable[[Any], Any]) -> None:
        """`reply(request)` returns an AWSResponse, raises, or returns None to let the request go on."""
        self.client.meta.events.register_first(f"before-send.s3.{operation}", lambda request, **_: reply(request))

    def after(self, operation: str, change: Callable[[dict[str, Any]], None]) -> None:
        """`change(parsed)` may alter, or raise instead of, an answer that the server has given."""
        self.client.meta.events.register(f"after-call.s3.{operation}", lambda parsed, **_: change(parsed))


def refusal(status: int, code: str, message: str = "", url: str = "http://s3") -> Any:
    """An answer as S3 words its errors."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message or code}</Message></Error>'
    return reply(status, {"content-type": "application/xml"}, body.encode(), url)


def reply(status: int, headers: dict[str, str], body: bytes = b"", url: str = "http://s3") -> Any:
    """Any answer."""
    import io

    from botocore.awsrequest import AWSResponse, HeadersDict

    lowered: Any = HeadersDict(headers)

    class Raw(io.BytesIO):
        def stream(self, amt: int = 1024, decode_content: bool | None = None) -> Iterator[bytes]:
            while chunk := self.read(amt):
                yield chunk

    return AWSResponse(url, status, lowered, Raw(body))
