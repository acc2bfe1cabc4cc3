"""Writing objects: in one request, in parts, or by a server-side copy. Each object is verified by reading it back.

boto3's managed transfers could move the bytes, but they return no ETag. The ETag is needed to remove a copy that reads
back wrong without removing another writer's object. Their parts also ignore the store's budget.
"""

from __future__ import annotations

import base64
import hashlib
import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, cast

from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError

from artemis_lifecycle.errors import ExistingFile, MissingFile, StorageError
from artemis_lifecycle.storage.objects import Address, SeekableObject, address_of, pieces
from artemis_lifecycle.storage.s3.client import Connection, code_of, status_of
from artemis_lifecycle.storage.settings import MIB
from artemis_lifecycle.storage.types import CHUNK, StoredFile, existing

# --- reader -----------------------------------------------------------------------------------------------------------
# Reading one object as a stream.


class ObjectReader(SeekableObject):
    """An object as a seekable stream. After a broken connection, it resumes at the same position and object version."""

    def __init__(self, connection: Connection, path: str) -> None:
        super().__init__()
        self._s3 = connection
        self._path = path
        self._address = address_of(path)
        self._body: Any = None
        self._etag = ""
        connection.call("An object cannot be opened", path, self._first)

    def _first(self) -> None:
        answer = self._s3.client.get_object(Bucket=self._address.bucket, Key=self._address.key)
        self._size, self._etag, self._body = answer["ContentLength"], answer["ETag"], answer["Body"]

    def readinto(self, buffer: Any, /) -> int:
        if self._position >= self._size or not len(buffer):
            return 0
        data = self._s3.call("An object cannot be read to its end", self._path, lambda: self._some(len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _some(self, length: int) -> bytes:
        try:
            if self._body is None:
                answer = self._s3.client.get_object(
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
                        hint="check the server, or a proxy in front of it",
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


_PARTS = 10_000
_WRITE_ID = "artemis-write"
_CANNOT_COPY_WITHIN = {"AccessDenied", "NotImplemented", "MethodNotAllowed"}


Answer = TypeVar("Answer")

_IF_NEW = {"IfNoneMatch": "*"}


def _if_new(request: Callable[[], Answer], path: str, new: Mapping[str, str]) -> Answer:
    """Send a request that may have the condition `_IF_NEW`. Raises ExistingFile if the store says that it is not."""
    try:
        return request()
    except ClientError as error:
        if new and status_of(error) == 412:
            raise existing(path) from error
        raise


class Uploads:
    """Writes objects of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._s3 = connection
        self._digests = True

    def write(self, path: str, data: bytes, *, overwrite: bool, storage_class: str | None) -> StoredFile:
        """`last_modified` of the result is None: S3 does not report it on a write."""
        write_id, new = uuid.uuid4().hex, {} if overwrite else _IF_NEW
        put = partial(self._put, address_of(path), data, storage_class, Metadata={_WRITE_ID: write_id}, **new)
        try:
            self._s3.call("An object cannot be written", path, lambda: _if_new(put, path, new))
        except ExistingFile:
            # If the first attempt succeeded but its answer was lost, the retry finds its own object.
            found = self._s3.head(path)
            if found is None or found.get("Metadata", {}).get(_WRITE_ID) != write_id:
                raise
        return StoredFile(path, len(data), None)

    def _put(self, address: Address, data: bytes | bytearray, storage_class: str | None, **more: Any) -> str:
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        answer = self._s3.client.put_object(
            Bucket=address.bucket,
            Key=address.key,
            Body=data,
            ContentMD5=digest,
            **storage_class_of(storage_class),
            **more,
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
        overwrite: bool,
    ) -> None:
        address, new = address_of(path), ({} if overwrite else _IF_NEW)
        part_size = self._part_size(size)
        parts = pieces(chunks, part_size)
        what = "An object cannot be written"
        if size <= part_size:
            only = next(parts, bytearray())
            next(parts, None)  # Detects a source that has grown, so that `verify` fails.
            put = partial(self._put, address, only, storage_class, **new)
            etag = self._s3.call(what, path, lambda: _if_new(put, path, new))
        else:

            def upload(upload_id: str) -> Iterator[str]:
                for number, part in enumerate(parts, start=1):
                    yield self._s3.call(what, path, lambda: self._put_part(address, upload_id, number, part))  # noqa: B023

            etag = self._multipart(address, path, storage_class, upload, new)
        self._verify(path, etag, verify)

    def _put_part(self, address: Address, upload_id: str, number: int, part: bytearray) -> str:
        digest = base64.b64encode(hashlib.md5(part, usedforsecurity=False).digest()).decode()
        answer = self._s3.client.upload_part(
            Bucket=address.bucket,
            Key=address.key,
            UploadId=upload_id,
            PartNumber=number,
            Body=part,
            ContentMD5=digest,
        )
        return cast("str", answer["ETag"])

    def copy_within(
        self,
        source: str,
        destination: str,
        *,
        size: int,
        source_etag: str,
        checksum: str,
        storage_class: str | None,
        verify: Callable[[int, str], None],
        overwrite: bool,
    ) -> bool:
        """Copy on the server, and only the object with `source_etag`, whose bytes have this checksum. Return False if
        the server refuses or does not find it, so that the bytes must be transferred. `verify` as in `put_stream`,
        unless the server computes the same checksum of its copy."""
        found = {"ContentLength": size, "ETag": source_etag}
        try:
            copy = self.copied(source, destination, found, storage_class, {} if overwrite else _IF_NEW, digest=True)
        except MissingFile:
            return False
        if copy is None:
            return False
        if copy.get("ChecksumSHA256") != base64.b64encode(bytes.fromhex(checksum.removeprefix("sha256:"))).decode():
            self._verify(destination, copy["ETag"], verify)
        return True

    def copied(
        self,
        source: str,
        destination: str,
        found: dict[str, Any],
        storage_class: str | None,
        new: Mapping[str, str] = MappingProxyType({}),
        *,
        digest: bool = False,
        **more: Any,
    ) -> dict[str, Any] | None:
        """Return what the server says of its copy of the source, whose head is `found`: the ETag and, with `digest`,
        the SHA-256 if it computes one. None if it refuses."""
        origin, target = address_of(source), address_of(destination)
        size = found["ContentLength"]
        copy_source = {
            "CopySource": {"Bucket": origin.bucket, "Key": origin.key},
            "CopySourceIfMatch": found["ETag"],
            "Bucket": target.bucket,
            "Key": target.key,
        }
        what = "An object cannot be copied"

        def in_one() -> dict[str, Any] | None:
            asked = {"ChecksumAlgorithm": "SHA256"} if digest and self._digests else {}
            try:
                request = {**copy_source, **storage_class_of(storage_class), **new, **asked}
                answer = _if_new(partial(self._s3.client.copy_object, **request), destination, new)
            except ClientError as error:
                if asked and status_of(error) in (400, 501):
                    self._digests = False
                    return in_one()
                if code_of(error) in _CANNOT_COPY_WITHIN:
                    return None
                raise
            return cast("dict[str, Any]", answer["CopyObjectResult"])

        if size <= self._s3.settings.multipart_bytes:
            return self._s3.call(what, destination, in_one)

        part_size = self._part_size(size)

        def upload(upload_id: str) -> Iterator[str]:
            for number, start in enumerate(range(0, size, part_size), start=1):
                span = f"bytes={start}-{min(start + part_size, size) - 1}"
                request = {**copy_source, "CopySourceRange": span, "UploadId": upload_id, "PartNumber": number}
                answer = self._s3.call(what, destination, lambda: self._s3.client.upload_part_copy(**request))  # noqa: B023
                yield answer["CopyPartResult"]["ETag"]

        try:
            return {"ETag": self._multipart(target, destination, storage_class, upload, new, **more)}
        except StorageError as error:
            if isinstance(error.__cause__, ClientError) and code_of(error.__cause__) in _CANNOT_COPY_WITHIN:
                return None
            raise

    def _part_size(self, size: int) -> int:
        least = -(-size // _PARTS)
        return max(self._s3.settings.multipart_bytes, -(-least // MIB) * MIB)

    def _multipart(
        self,
        address: Address,
        path: str,
        storage_class: str | None,
        upload: Callable[[str], Iterator[str]],
        new: Mapping[str, str] = MappingProxyType({}),
        **more: Any,
    ) -> str:
        """Combine the parts whose ETags `upload(upload_id)` yields into one object. Nothing is visible before the last
        step. A killed process leaves an unfinished upload, which a lifecycle rule of the bucket should abort."""
        where = {"Bucket": address.bucket, "Key": address.key}
        what = "An object cannot be written in parts"
        options = {**where, **storage_class_of(storage_class), **more}
        begun = self._s3.call(what, path, lambda: self._s3.client.create_multipart_upload(**options))
        upload_id = begun["UploadId"]
        try:
            parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(upload(upload_id), start=1)]

            def finish() -> str:
                try:
                    complete = partial(self._s3.client.complete_multipart_upload, **where, UploadId=upload_id, **new)
                    answer = _if_new(partial(complete, MultipartUpload={"Parts": parts}), path, new)
                except ClientError as error:
                    found = self._s3.head(path) if code_of(error) == "NoSuchUpload" else None
                    if found is None:
                        raise
                    # Finished before, but the answer was lost. The caller reads the object back in any case.
                    return cast("str", found["ETag"])
                return cast("str", answer["ETag"])

            return self._s3.call(what, path, finish)
        except BaseException:
            with suppress(ClientError, BotoCoreError):
                self._s3.client.abort_multipart_upload(**where, UploadId=upload_id)
            raise

    def _verify(self, path: str, etag: str, verify: Callable[[int, str], None]) -> None:
        """Read the object back. If `verify` refuses it, remove it, unless another writer has replaced it."""
        with io.BufferedReader(ObjectReader(self._s3, path), CHUNK) as file:
            digest, size = hashlib.file_digest(file, "sha256"), file.tell()
        try:
            verify(size, f"sha256:{digest.hexdigest()}")
        except Exception:
            address = address_of(path)
            with suppress(StorageError, ClientError, BotoCoreError):
                found = self._s3.head(path)
                # Some servers write it with quotes in one answer and without in another.
                if found is not None and found["ETag"].strip('"') == etag.strip('"'):
                    self._s3.client.delete_object(Bucket=address.bucket, Key=address.key)
            raise


def storage_class_of(storage_class: str | None) -> dict[str, str]:
    return {} if storage_class is None else {"StorageClass": storage_class}
