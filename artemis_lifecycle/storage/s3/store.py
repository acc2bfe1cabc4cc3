"""Objects on S3 and compatible servers: paths with `s3:`, `s3a:` or `s3n:`."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO, cast

from botocore.exceptions import ClientError

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.identity import object_tag
from artemis_lifecycle.storage.s3.addresses import address_of, folder_key, is_too_long, refusal
from artemis_lifecycle.storage.s3.archive import Archive
from artemis_lifecycle.storage.s3.connection import Connection, code_of, status_of
from artemis_lifecycle.storage.s3.deletes import Deletes
from artemis_lifecycle.storage.s3.key_space import Stems
from artemis_lifecycle.storage.s3.reader import ObjectReader
from artemis_lifecycle.storage.s3.uploads import Uploads
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import (
    CHUNK,
    Children,
    Heads,
    Span,
    Spans,
    StoredFile,
)

_HEADS = 16
_PAGE = 1000


_PAGE_PAYS_FROM = 12
"""Objects for which a page of a listing costs no more than asking for each."""


class S3Store:
    """S3 with `settings`, or with the client that `client_factory` makes in this process."""

    def __init__(self, settings: StoreSettings, client_factory: Callable[[], Any] | None = None) -> None:
        self._s3 = Connection(settings, client_factory)
        uploads, deletes = Uploads(self._s3), Deletes(self._s3)
        archive = Archive(self._s3, uploads)
        self.write, self.put_stream, self.copy_within = uploads.write, uploads.put_stream, uploads.copy_within
        self.delete, self.remove = deletes.delete, deletes.remove
        self.archive, self.thaw, self.archive_state = archive.archive, archive.thaw, archive.state

    @property
    def client(self) -> Any:
        return self._s3.client

    def same_endpoint(self, other: S3Store) -> bool:
        return bool(self.client.meta.endpoint_url == other.client.meta.endpoint_url)

    # --- listing and status

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
        until = None if span.until is None else address_of(span.until).key
        after = None if span.after is None else address_of(span.after).key
        stem = len(address_of(span.prefix).stem) + 1
        last = after or ""
        for _, files in self._pages(span.prefix, delimiter=None, after=after):
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
        folder = folder_key(address)
        after = folder if span.after is None else address_of(span.after).key
        until = None if span.until is None else address_of(span.until).key

        def first(behind: str) -> str | None:
            """Return the first key of the span after `behind`."""
            keys = self._s3.call(
                "A prefix cannot be listed",
                span.prefix,
                lambda: self._s3.client.list_objects_v2(
                    Bucket=address.bucket, Prefix=folder, StartAfter=max(behind, after), MaxKeys=1
                ),
            ).get("Contents", ())
            key = keys[0]["Key"] if keys else None
            return None if key is None or (until is not None and key > until) else key

        stems = Stems(first, folder).found(wanted)
        # A stem that is itself a key is the last key of the piece before it.
        cuts = [None, *(f"{address.stem}/{stem}" for stem in stems[1:]), None]
        pieces = [Span(span.prefix, cut or span.after, following or span.until) for cut, following in pairwise(cuts)]
        return pieces or [span]

    def _pages(self, prefix: str, *, delimiter: str | None, after: str | None = None) -> Iterator[Children]:
        address = address_of(prefix)
        request: dict[str, Any] = {"Bucket": address.bucket, "Prefix": folder_key(address), "MaxKeys": _PAGE}
        if delimiter is not None:
            request["Delimiter"] = delimiter
        if after:
            request["StartAfter"] = after
        while True:
            page = self._s3.call(
                "A prefix cannot be listed", prefix, lambda: self._s3.client.list_objects_v2(**request)
            )
            yield (
                [f"{address.stem}/{common['Prefix']}" for common in page.get("CommonPrefixes", ())],
                [
                    _stored(f"{address.stem}/{item['Key']}", item["Size"], item)
                    for item in page.get("Contents", ())
                    if item["Size"] or not item["Key"].endswith("/")
                ],
            )
            if not page.get("IsTruncated"):
                return
            if request.get("ContinuationToken") == page["NextContinuationToken"]:
                raise StorageError(
                    "A listing does not end: the server repeats its page",
                    path=prefix,
                    hint="check the S3 server; no part of this listing was used",
                )
            request["ContinuationToken"] = page["NextContinuationToken"]

    def head(self, path: str) -> StoredFile | None:
        found = self._s3.head(path)
        return None if found is None else _stored(path, found["ContentLength"], found)

    def heads(self, paths: Sequence[str]) -> Heads:
        found = self._by_listing(paths) if len(paths) >= _PAGE_PAYS_FROM else {}
        left = [path for path in paths if path not in found]
        found.update(zip(left, threaded(self.head, left, _HEADS), strict=True))
        return [found[path] for path in paths]

    def _by_listing(self, paths: Sequence[str]) -> dict[str, StoredFile | None]:
        """Return the statuses of those objects that are so close to each other that listing them is cheaper."""
        found: dict[str, StoredFile | None] = {}
        stems: dict[str, dict[str, str]] = {}
        for path in paths:
            address = address_of(path)
            if refusal(address.key) is None and not is_too_long(address.key) and not address.key.endswith("/"):
                stems.setdefault(address.stem, {})[address.key] = path
        for stem, wanted in stems.items():
            keys, bucket = sorted(wanted), address_of(f"{stem}/").bucket
            common = os.path.commonprefix([keys[0], keys[-1]]).rpartition("/")  # noqa: RUF071  (keys are text)
            while len(keys) >= _PAGE_PAYS_FROM:
                request = {"Bucket": bucket, "Prefix": "".join(common[:2]), "StartAfter": keys[0][:-1]}
                try:
                    page = self._s3.call(
                        "A prefix cannot be listed",
                        f"{stem}/{request['Prefix']}",
                        partial(self._s3.client.list_objects_v2, MaxKeys=_PAGE, **request),
                    )
                except StorageError:
                    break  # Single requests show whether the objects can be read.
                listed = {item["Key"]: item for item in page.get("Contents", ())}
                names = list(listed)
                if names != sorted(names):
                    break  # Not in the order of keys: one that is not listed may come later.
                covered = bisect_right(keys, names[-1]) if page.get("IsTruncated") and names else len(keys)
                for key in keys[:covered]:
                    item, path = listed.get(key), wanted[key]
                    found[path] = None if item is None else _stored(path, item["Size"], item)
                keys = keys[covered:]
                if covered < _PAGE_PAYS_FROM:
                    break
        return found

    # --- reading

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", io.BufferedReader(ObjectReader(self._s3, path), CHUNK))

    def read(self, path: str, limits: ReadLimits) -> bytes:
        address = address_of(path)

        def get() -> bytes:
            answer = self._s3.client.get_object(Bucket=address.bucket, Key=address.key)
            with closing(answer["Body"]) as body:
                limits.require(answer["ContentLength"], path)
                return cast("bytes", body.read())

        return self._s3.call("An object cannot be read", path, get)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        address = address_of(path)

        def get() -> bytes:
            try:
                answer = self._s3.client.get_object(
                    Bucket=address.bucket, Key=address.key, Range=f"bytes={offset}-{offset + length - 1}"
                )
            except ClientError as error:
                if code_of(error) == "InvalidRange" or status_of(error) == 416:
                    return b""
                raise
            data = cast("bytes", answer["Body"].read())
            whole = answer["ResponseMetadata"]["HTTPStatusCode"] == 200  # Some servers ignore the range.
            return data[offset : offset + length] if whole else data

        return self._s3.call("An object cannot be read", path, get) if length > 0 else b""

    def touch(self, path: str, last_modified: datetime) -> None:
        raise StorageError(
            "S3 sets the modification time of an object by itself",
            path=path,
            untouched="the object",
            hint="set times on a local warehouse, or provide a listing with times as a DataFrame",
        )

    def end_thaw(self, path: str) -> None:
        """Do nothing: S3 ends thaws by itself."""


def _stored(path: str, size: int, answer: Mapping[str, Any]) -> StoredFile:
    """Return what a listing or a HEAD says. Some servers list fractions of a second, and a HEAD never has them; and
    listings have no version, so that the ETag alone is the token."""
    etag = answer.get("ETag")
    return StoredFile(path, size, answer["LastModified"].astimezone(UTC).replace(microsecond=0), object_tag(etag), etag)
