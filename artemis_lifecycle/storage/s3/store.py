"""Objects on S3 and compatible servers: paths with `s3:`, `s3a:` or `s3n:`."""

from __future__ import annotations

import io
import os
import re
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO, cast

from botocore.exceptions import ClientError

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.objects import address_of, refusal
from artemis_lifecycle.storage.pace import pace_of
from artemis_lifecycle.storage.s3.client import (
    TRANSIENT_CODES,
    BusyKeys,
    Connection,
    TimeIsOver,
    code_of,
    folder_key,
    is_too_long,
    only_until,
    status_of,
)
from artemis_lifecycle.storage.s3.objects import ObjectReader, Uploads
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.threads import threaded
from artemis_lifecycle.storage.types import (
    ARCHIVE_CLASSES,
    CHUNK,
    NOT_TRIED,
    ArchiveState,
    Children,
    DeleteOutcome,
    Heads,
    Outcomes,
    Span,
    Spans,
    StoredFile,
    missing,
    object_tag,
)

# --- archive ----------------------------------------------------------------------------------------------------------
# Archive storage classes: moving objects to them, and thawing the objects ("restoring" in S3's terms).


class Archive:
    """Archive classes for one connection's objects."""

    def __init__(self, connection: Connection, uploads: Uploads) -> None:
        self._s3 = connection
        self._uploads = uploads

    def archive(self, path: str, storage_class: str) -> bool:
        found = self._s3.head(path)
        if found is None:
            raise missing(path)
        if found.get("StorageClass") in ARCHIVE_CLASSES:
            return False
        # Copy the object onto itself, and only the version that was checked. A copy in one request keeps the object's
        # metadata; a multipart copy needs it as an argument.
        if self._uploads.copied(path, path, found, storage_class, Metadata=found.get("Metadata", {})) is None:
            raise StorageError(
                "The S3 server does not copy the object onto itself, so its storage class cannot change",
                path=path,
                untouched="the object",
                hint="allow s3:PutObject and s3:GetObject on the cold bucket, or set cold_tier.then to keep",
            )
        now = self._s3.head(path) or {}
        if now.get("StorageClass") != storage_class or now.get("ContentLength") != found["ContentLength"]:
            raise StorageError(
                f"The object should have {found['ContentLength']} bytes in storage class {storage_class}, but has "
                f"{now.get('ContentLength')} in {now.get('StorageClass', 'STANDARD')}",
                path=path,
                untouched="all other objects",
                hint="check whether this server supports storage classes; if not, set cold_tier.then to keep",
            )
        return True

    def thaw(self, path: str, days: int, retrieval: str) -> None:
        address = address_of(path)
        request = {"Days": days, "GlacierJobParameters": {"Tier": retrieval}}

        def ask() -> None:
            try:
                self._s3.client.restore_object(Bucket=address.bucket, Key=address.key, RestoreRequest=request)
            except ClientError as error:
                # The object is not in an archive class, or a thaw was requested before.
                if code_of(error) not in ("InvalidObjectState", "RestoreAlreadyInProgress"):
                    raise

        self._s3.call("An object cannot be thawed", path, ask)

    def state(self, path: str) -> ArchiveState | None:
        found = self._s3.head(path)
        if found is None:
            return None
        if found.get("StorageClass") not in ARCHIVE_CLASSES:
            return ArchiveState(archived=False, readable=True)
        restore = found.get("Restore", "")
        until = re.search(r'expiry-date="([^"]+)"', restore)
        return ArchiveState(
            archived=True,
            readable='ongoing-request="false"' in restore,
            thawing='ongoing-request="true"' in restore,
            readable_until=None if until is None else parsedate_to_datetime(until[1]).astimezone(UTC),
        )


# --- deletes ----------------------------------------------------------------------------------------------------------
# Deleting objects, up to a thousand per request.

_DELETES_PER_REQUEST = 1000
_DELETERS = 4  # With more at once, at a thousand keys each, S3 answers 503.
# Characters that XML cannot represent would break a bulk request for a thousand others. Carriage returns and outer
# blanks, which a parser changes, would name another object. Such a key needs a separate request, with the key in its
# URL.
_ALONE = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|\A\s|\s\Z")
_PROBE = "artemis-probe-"
_ANY: Mapping[Any, str] = {}


class Deletes:
    """Deletes objects of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._s3 = connection
        self._conditional: dict[str, bool] = {}

    def delete(self, paths: Sequence[str], *, until: float | None, etags: Mapping[int, str] = _ANY) -> Outcomes:
        """`Stores.delete`. Where the server honors it, a row with one of `etags` is deleted only if the object still
        has it."""
        outcomes: dict[str, DeleteOutcome] = {}
        buckets: dict[str, dict[str, list[str]]] = {}
        only: dict[str, dict[str, str]] = {}
        for path, row in {path: row for row, path in enumerate(paths)}.items():
            try:
                address = address_of(path)
            except StorageError as error:
                outcomes[path] = DeleteOutcome(path, "failed", error.what)
                continue
            refused = refusal(address.key)
            if refused is not None:
                outcomes[path] = DeleteOutcome(path, "failed", refused)
            elif is_too_long(address.key):
                outcomes[path] = DeleteOutcome(path, "absent")
            else:
                # One key may have several spellings: s3://b/k and s3a://b/k.
                buckets.setdefault(address.bucket, {}).setdefault(address.key, []).append(path)
                if row in etags:
                    only.setdefault(address.bucket, {})[address.key] = etags[row]
        for bucket, spelled in buckets.items():
            tags = only.get(bucket, {})
            errors = self._delete_keys(
                bucket, list(spelled), until, tags if tags and self._honors(bucket, next(iter(spelled))) else _ANY
            )
            for key, spellings in spelled.items():
                reason = errors.get(key)
                for path in spellings:
                    outcomes[path] = DeleteOutcome(path, "deleted" if reason is None else "failed", reason)
        return [outcomes[path] for path in paths]

    def at_once(self) -> int:
        """Return the keys of one second, at most a request for each thread, and whole requests if there is one."""
        most, rate = _DELETERS * _DELETES_PER_REQUEST, pace_of(*self._s3.settings.paced_by).rate("writes")
        keys = most if rate is None else max(1, min(most, int(rate)))
        return keys // _DELETES_PER_REQUEST * _DELETES_PER_REQUEST or keys

    def reserve(self, keys: int) -> None:
        pace_of(*self._s3.settings.paced_by).reserve("writes", keys)

    def _honors(self, bucket: str, beside: str) -> bool:
        """Return True if the server deletes by ETag, as an object shows that is put `beside` a key: it survives a wrong
        ETag, and goes with the right one. Asked once for each bucket."""
        if bucket not in self._conditional:
            key = f"{beside.rpartition('/')[0]}/{_PROBE}{uuid.uuid4().hex}".lstrip("/")
            client, path = self._s3.client, f"s3://{bucket}/{key}"

            def ask() -> bool:
                etag = client.put_object(Bucket=bucket, Key=key, Body=b"May this be deleted?")["ETag"]
                self._ask_to_delete(bucket, [key], {key: f'"{"0" * 32}"'})
                survived = self._s3.head(path) is not None
                self._ask_to_delete(bucket, [key], {key: etag})
                return survived and self._s3.head(path) is None

            try:
                self._conditional[bucket] = self._s3.call("Conditional deletes cannot be tried", path, ask)
            except StorageError:
                self._conditional[bucket] = False
            if not self._conditional[bucket]:
                self.delete([path], until=None)
        return self._conditional[bucket]

    def _delete_keys(
        self, bucket: str, keys: Sequence[str], until: float | None, only: Mapping[str, str] = _ANY
    ) -> dict[str, str]:
        """Delete distinct keys; those in `only` if they have that ETag. Return the reason for each key whose deletion
        is not confirmed."""
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
        for refused in threaded(lambda batch: self._delete_batch(bucket, batch, until, only), batches, _DELETERS):
            errors.update(refused)
        return errors

    def _delete_batch(
        self, bucket: str, keys: Sequence[str], until: float | None, only: Mapping[str, str]
    ) -> dict[str, str]:
        """Delete up to a thousand keys. Return the reason for each that remains. Retries only the keys for which the
        server was too busy. No request is sent once `instants.elapsed` is `until`, not even after a wait for the rate
        limit or between two retries, in which the process may be suspended."""
        left = list(keys)
        reasons: dict[str, str] = {}

        def once() -> None:
            nonlocal left
            with only_until(until):
                refused = self._ask_to_delete(bucket, left, only)
            for key in left:
                reasons.pop(key, None)
            reasons.update({key: f"{code}: {message}".rstrip(": ") for key, (code, message) in refused.items()})
            left = [key for key, (code, _) in refused.items() if code in TRANSIENT_CODES]
            if left:
                raise BusyKeys

        try:
            self._s3.call("Objects cannot be deleted", f"s3://{bucket}", once)
        except BusyKeys:
            pass  # Out of attempts; `reasons` has the server's last answer.
        except TimeIsOver:
            for key in left:
                said = reasons.get(key)
                reasons[key] = NOT_TRIED if said is None else f"{NOT_TRIED} (before: {said})"
        except StorageError as error:
            reasons.update(dict.fromkeys(left, error.what))
        return reasons

    def _ask_to_delete(self, bucket: str, keys: Sequence[str], only: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Send one request. Return (code, message) of each key that the server did not delete."""
        if len(keys) == 1 and _ALONE.search(keys[0]) is not None:
            self._s3.client.delete_object(Bucket=bucket, Key=keys[0])
            return {}
        objects = [{"Key": key, "ETag": only[key]} if key in only else {"Key": key} for key in keys]
        answer = self._s3.client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
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


_QUESTIONS, _MOST_QUESTIONS = 8, 400
"""Maximum requests per piece, and in total."""


# --- key space --------------------------------------------------------------------------------------------------------
# Splitting the keys of a prefix into pieces that can be listed in parallel.


class Stems:
    """Key prefixes that are far enough apart to list the keys between them in parallel. Each is found by requesting the
    first key after a position; the number of keys in each is unknown."""

    def __init__(self, first: Callable[[str], str | None], folder: str) -> None:
        self._first = first
        self._folder = folder
        self._asked = 0

    def found(self, wanted: int) -> list[str]:
        """Return the stems in ascending order. Every key is equal to or after the first of them."""
        # Each with its first key; without one, there is nothing to divide.
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
        """Yield the stems at which the keys beginning with `stem` diverge, each with its first key; `first` is the very
        first one. Nothing if there is only one key."""
        shared = first[: self._shared(stem, first)]
        key: str | None = first
        while key is not None and key.startswith(stem):
            if len(key) == len(shared):  # The stem itself is a key: it comes before the longer ones.
                key = self._ask(key)
                continue
            one = key[: len(shared) + 1]
            yield one, key
            key = self._ask_behind(one)

    def _shared(self, stem: str, key: str) -> int:
        """Return how many leading characters all keys beginning with `stem` share; `key` is the first of them."""

        def all_begin(length: int) -> bool:
            following = self._ask_behind(key[:length])
            return following is None or not following.startswith(stem)

        least, most = len(stem), len(key)
        # Usually they diverge at once.
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
    """Return a text after all texts that begin with `stem`; None at the end of Unicode."""
    code = ord(stem[-1]) + 1
    if 0xD800 <= code <= 0xDFFF:  # Surrogates are not valid in text.
        code = 0xE000
    return None if code > 0x10FFFF else stem[:-1] + chr(code)


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
        self.delete, self.deletes_at_once, self.reserve_deletes = deletes.delete, deletes.at_once, deletes.reserve
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
        runs = [
            (stem, wanted, keys[at : at + _PAGE])
            for stem, wanted in stems.items()
            for keys in [sorted(wanted)]
            for at in range(0, len(keys), _PAGE)
        ]
        for part in threaded(lambda run: self._listed_between(*run), runs, _HEADS):
            found.update(part)
        return found

    def _listed_between(
        self, stem: str, wanted: Mapping[str, str], keys: Sequence[str]
    ) -> dict[str, StoredFile | None]:
        """Return the statuses of objects with sorted keys, as far as listing them page by page is cheaper."""
        found: dict[str, StoredFile | None] = {}
        bucket = address_of(f"{stem}/").bucket
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

    def end_thaw(self, path: str) -> None:
        """Do nothing: S3 ends thaws by itself."""


def _stored(path: str, size: int, answer: Mapping[str, Any]) -> StoredFile:
    """Return what a listing or a HEAD says. Some servers list fractions of a second, and a HEAD never has them; and
    listings have no version, so that the ETag alone is the token."""
    etag = answer.get("ETag")
    return StoredFile(path, size, answer["LastModified"].astimezone(UTC).replace(microsecond=0), object_tag(etag), etag)
