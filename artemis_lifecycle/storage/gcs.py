"""Requests to Google Cloud Storage: paths with `gs:`.

An object's token is its generation, which each write changes. Its time is when that generation was made: a change of
metadata or storage class leaves both.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeVar

import requests

from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle.storage.objects import Address, Call, Item, Page, Refusal, Writing, pieces
from artemis_lifecycle.storage.settings import GcsSettings, StoreSettings

try:
    from google.api_core.client_options import ClientOptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.storage import Blob, Client
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from google.oauth2.credentials import Credentials
except ImportError as error:
    raise EnvironmentMissing(
        "Google Cloud Storage needs google-cloud-storage, which is not installed",
        hint="pip install 'artemis-lifecycle[gcs]'",
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
    credentials = "credentials (gcs.oauth2.token, or application default credentials)"
    classes: Mapping[str, str | None] = MappingProxyType({"GLACIER_IR": "COLDLINE"})
    wrong_token = "1"

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        # The library's own retries know nothing of the budget.
        self._options: dict[str, Any] = {
            "timeout": (settings.s3_connect_timeout, settings.s3_read_timeout),
            "retry": None,
        }

    def refused_key(self, key: str) -> str | None:
        return "Google Cloud Storage has no such names" if key in (".", "..") or "\n" in key or "\r" in key else None

    def server(self, bucket: str) -> str:
        return self._settings.gcs.endpoint or ""

    @property
    def _client(self) -> Client:
        with _refusals():
            return _client(os.getpid(), self._settings.gcs)

    def _blob(self, at: Address, how: Writing | None = None) -> Blob:
        blob = self._client.bucket(at.bucket).blob(at.key)
        if how is not None and how.storage_class is not None:
            blob.storage_class = how.storage_class
        return blob

    def _new(self, at: Address, how: Writing) -> Blob:
        blob = self._blob(at, how)
        blob.metadata = {_WRITE_ID: how.write_id}
        return blob

    # --- requests

    def require_bucket(self, bucket: str) -> None:
        self.page(bucket, "", deep=False, after=None)

    def page(self, bucket: str, prefix: str, *, deep: bool, after: Any) -> Page:
        with _refusals():
            listing = self._client.list_blobs(
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

    def head(self, at: Address) -> Item:
        with _refusals():
            blob = self._blob(at)
            blob.reload(**self._options)
            return _item(blob)

    def get(self, at: Address, start: int, length: int, token: str | None) -> bytes:
        span = {"start": start, "end": start + length - 1, "raw_download": True}
        with _refusals():
            blob = self._blob(at)
            return bytes(blob.download_as_bytes(**span, if_generation_match=_number(token), **self._options))

    def put(self, at: Address, data: bytes | bytearray, how: Writing) -> str:
        with _refusals():
            blob = self._new(at, how)
            blob.upload_from_string(bytes(data), if_generation_match=_if_new(how), **self._options)
            return str(blob.generation)

    def put_parts(self, at: Address, parts: Iterable[bytearray], how: Writing, call: Call) -> str:
        with _refusals():
            blob = self._new(at, how)
            blob.chunk_size = _CHUNK
            # Each chunk is a request, and waits for its turn.
            stream = _Stream(parts, lambda: call(lambda: None, "writes", _CHUNK))
            blob.upload_from_file(stream, if_generation_match=_if_new(how), timeout=self._options["timeout"])
            return str(blob.generation)

    def copy(
        self, source: Address, at: Address, token: str, size: int, how: Writing, call: Call
    ) -> tuple[str, str | None]:
        origin, blob = self._blob(source), self._blob(at, how)
        options = {"if_generation_match": _if_new(how), "if_source_generation_match": _number(token)} | self._options

        def rewrite(more: str | None) -> str | None:
            with _refusals():
                following: str | None = blob.rewrite(origin, token=more, **options)[0]
                return following

        more = call(lambda: rewrite(None), "writes")
        while more is not None:
            more = call(partial(rewrite, more), "writes")
        return str(blob.generation), None

    def delete(self, at: Address, token: str | None) -> None:
        with _refusals():
            self._blob(at).delete(if_generation_match=_number(token), **self._options)


@cache
def _client(process: int, gcs: GcsSettings) -> Client:
    """Return the client of a process: a fork must not share sockets."""
    return Client(
        # It only creates buckets by its project; without one it asks the machine for it.
        project=gcs.project or "none",
        credentials=gcs.token and Credentials(gcs.token),  # type: ignore[no-untyped-call]
        client_options=ClientOptions(api_endpoint=gcs.endpoint) if gcs.endpoint else None,
    )


class _Stream(io.RawIOBase):
    """Parts as a file, read in order, a chunk at a time, whatever size is asked for. Calls `ask` before each read."""

    def __init__(self, parts: Iterable[bytearray], ask: Callable[[], None]) -> None:
        super().__init__()
        self._chunks, self._ask, self._at = pieces(parts, _CHUNK), ask, 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        self._ask()
        chunk = bytes(next(self._chunks, b""))
        self._at += len(chunk)
        return chunk


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


def _if_new(how: Writing) -> int | None:
    return 0 if how.new else None


def _number(token: str | None) -> int | None:
    return None if token is None else int(token)
