"""Reading one object as a stream."""

from __future__ import annotations

import io
from typing import Any, cast

from botocore.exceptions import IncompleteReadError

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.s3.addresses import address_of
from artemis_lifecycle.storage.s3.connection import Connection


class ObjectReader(io.RawIOBase):
    """An object as a seekable stream. After a broken connection, it resumes at the same position and object version."""

    def __init__(self, connection: Connection, path: str) -> None:
        super().__init__()
        self._s3 = connection
        self._path = path
        self._address = address_of(path)
        self._position = 0
        self._body: Any = None
        self._etag = ""
        self._size = 0
        connection.call("An object cannot be opened", path, self._first)

    def _first(self) -> None:
        answer = self._s3.client.get_object(Bucket=self._address.bucket, Key=self._address.key)
        self._size, self._etag, self._body = answer["ContentLength"], answer["ETag"], answer["Body"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        position = max(0, start + offset)
        if position != self._position:
            self._drop()
            self._position = position
        return position

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
