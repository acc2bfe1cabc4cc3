"""Requests to Google Cloud Storage: paths with `gs:`.

An object's token is its generation, which each write changes. Its time is when that generation was made: a change of
metadata or storage class leaves both.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import requests

from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.objects import Address, Call, Item, Page, Refusal
from artemis_lifecycle.storage.settings import StoreSettings

try:
    from google.api_core.client_options import ClientOptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.storage import Blob, Bucket, Client
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from google.oauth2.credentials import Credentials
except ImportError as error:
    raise EnvironmentMissing(
        "Google Cloud Storage needs google-cloud-storage, which is not installed",
        hint='pip install "artemis-lifecycle[gcs]"',
    ) from error

T = TypeVar("T")

_WRITE_ID = "artemis-write"
_PAGE = 1000
_CHUNK = 8 << 20
"""Bytes of each request of a large write: a multiple of 256 KiB."""

_FIELDS = "items(name,size,timeCreated,generation),prefixes,nextPageToken"


class GcsRequests:
    """The buckets of one endpoint."""

    kind = "Google Cloud Storage"
    credentials = "gcs.oauth2.token, or application default credentials"
    classes: Mapping[str, str | None] = MappingProxyType({"GLACIER_IR": "COLDLINE"})
    wrong_token = "1"

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._clients: dict[int, Client] = {}
        self._lock = threading.Lock()
        # The library's own retries know nothing of the budget.
        self._options: dict[str, Any] = {
            "timeout": (settings.s3_connect_timeout, settings.s3_read_timeout),
            "retry": None,
        }

    def refused_key(self, key: str) -> str | None:
        return "Google Cloud Storage has no such names" if key in (".", "..") or "\n" in key or "\r" in key else None

    def server(self, bucket: str) -> str:
        return self._settings.gcs.endpoint or ""

    def _client(self) -> Client:
        with self._lock:
            # A fork must not share sockets.
            if os.getpid() not in self._clients:
                gcs = self._settings.gcs
                token: Any = gcs.token and Credentials(gcs.token)  # type: ignore[no-untyped-call]
                self._clients[os.getpid()] = Client(
                    # It only creates buckets by its project; without one it asks the machine for it.
                    project=gcs.project or "none",
                    credentials=token,
                    client_options=ClientOptions(api_endpoint=gcs.endpoint) if gcs.endpoint else None,
                )
            return self._clients[os.getpid()]

    def _bucket(self, bucket: str) -> Bucket:
        return self._client().bucket(bucket)

    def _blob(self, bucket: str, key: str) -> Blob:
        return self._bucket(bucket).blob(key)

    # --- requests

    def page(self, bucket: str, prefix: str, *, deep: bool, after: Any) -> Page:
        with _refusals():
            listing = self._client().list_blobs(
                bucket,
                prefix=prefix or None,
                delimiter=None if deep else "/",
                page_token=after,
                page_size=_PAGE,
                fields=_FIELDS,
                **self._options,
            )
            items = [_item(blob) for blob in next(listing.pages, ())]
            return sorted(listing.prefixes), items, listing.next_page_token

    def head(self, bucket: str, key: str) -> Item:
        with _refusals():
            blob = self._blob(bucket, key)
            blob.reload(**self._options)
            return _item(blob)

    def get(self, bucket: str, key: str, start: int, length: int | None, token: str | None) -> bytes:
        end = None if length is None else start + length - 1
        with _refusals():
            return bytes(
                self._blob(bucket, key).download_as_bytes(
                    start=start, end=end, raw_download=True, if_generation_match=_number(token), **self._options
                )
            )

    def whole(self, bucket: str, key: str, limits: ReadLimits, path: str) -> bytes:
        try:
            # One byte more than allowed shows that there is more.
            data = self.get(bucket, key, 0, limits.max_bytes + 1, None)
        except Refusal as error:
            if error.status != 416:
                raise
            return b""
        limits.require(len(data), path)
        return data

    def put(
        self, bucket: str, key: str, data: bytes | bytearray, *, new: bool, storage_class: str | None, write_id: str
    ) -> str:
        with _refusals():
            blob = self._new(bucket, key, storage_class, write_id)
            blob.upload_from_string(bytes(data), if_generation_match=0 if new else None, **self._options)
            return str(blob.generation)

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
        blob = self._new(bucket, key, storage_class, write_id)
        blob.chunk_size = _CHUNK
        with _refusals():
            blob.upload_from_file(
                # Each chunk is a request, and waits for its turn.
                _Stream(iter(parts), lambda: call(lambda: None, "writes", _CHUNK)),
                if_generation_match=0 if new else None,
                timeout=self._options["timeout"],
            )
        return str(blob.generation)

    def _new(self, bucket: str, key: str, storage_class: str | None, write_id: str | None = None) -> Blob:
        blob = self._blob(bucket, key)
        if write_id is not None:
            blob.metadata = {_WRITE_ID: write_id}
        if storage_class is not None:
            blob.storage_class = storage_class
        return blob

    def copy(
        self, source: Address, target: Address, token: str | None, *, new: bool, storage_class: str | None, call: Call
    ) -> str:
        origin, blob = self._blob(source.bucket, source.key), self._new(target.bucket, target.key, storage_class)

        def rewrite(more: str | None) -> str | None:
            with _refusals():
                following: str | None = blob.rewrite(
                    origin,
                    token=more,
                    if_generation_match=0 if new else None,
                    if_source_generation_match=_number(token),
                    **self._options,
                )[0]
                return following

        more = call(lambda: rewrite(None), "writes")
        while more is not None:
            more = call(partial(rewrite, more), "writes")
        return str(blob.generation)

    def delete(self, bucket: str, key: str, token: str | None) -> None:
        with _refusals():
            self._blob(bucket, key).delete(if_generation_match=_number(token), **self._options)


class _Stream(io.RawIOBase):
    """Parts as a file, read in order. Calls `ask` before each read."""

    def __init__(self, parts: Iterator[bytearray], ask: Callable[[], None]) -> None:
        super().__init__()
        self._parts, self._ask, self._left, self._at = parts, ask, memoryview(b""), 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        self._ask()
        taken = bytearray()
        while size < 0 or len(taken) < size:
            if not self._left:
                part = next(self._parts, None)
                if part is None:
                    break
                self._left = memoryview(bytes(part))
            wanted = len(self._left) if size < 0 else size - len(taken)
            taken += self._left[:wanted]
            self._left = self._left[wanted:]
        self._at += len(taken)
        return bytes(taken)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise Refusal for the library's errors."""
    try:
        yield
    except GoogleAPICallError as error:
        raise Refusal(int(error.code or 0), str(error.message)) from None
    except InvalidResponse as error:
        raise Refusal(error.response.status_code, str(error)) from None
    except GoogleAuthError as error:
        raise Refusal(401, f"{type(error).__name__}: {error}") from None
    except (requests.RequestException, DataCorruption, OSError) as error:
        raise Refusal(0, str(error)) from None


def _item(blob: Blob) -> Item:
    if blob.size is None or blob.time_created is None:
        raise Refusal(502, "the answer has no size or no time", settled=True)
    generation = None if blob.generation is None else str(blob.generation)
    return Item(blob.name, blob.size, blob.time_created, generation, (blob.metadata or {}).get(_WRITE_ID))


def _number(token: str | None) -> int | None:
    return None if token is None else int(token)
