"""The index's files: named arrays in one file, each with a checksum.

Layout: 8 bytes of magic, the header's length (4 bytes, little endian), the header (JSON), its xxh3-64 checksum (8
bytes), then consecutive sections. The header lists its sections (dtype, offset, length, checksum) and what the file
belongs to. A reader rejects a file with another identity.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.stores import StoredFile, Stores
from artemis_lifecycle.storage.types import missing

MAGIC = b"ARTINDX1"


class DamagedIndex(Exception):  # noqa: N818  (handled inside this package)
    """A file of the index is missing, damaged or belongs to another one: rebuild it. Never leaves this package."""


class IndexInMemory:
    """The files of indexes that are stored nowhere: for one answer, of who may only read. About 60 bytes for each entry
    of a manifest."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def list(self, folder: str) -> Iterator[StoredFile]:
        found = [each for each in self._files if each.startswith(f"{folder}/")]
        return (StoredFile(each, len(self._files[each]), None) for each in found)

    def read(self, path: str) -> bytes:
        if path not in self._files:
            raise missing(path)
        return self._files[path]

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self.read(path)[offset : offset + length]

    def write(self, path: str, data: bytes) -> None:
        self._files[path] = data

    def delete(self, paths: Collection[str]) -> None:
        for path in paths:
            self._files.pop(path, None)

    def readers(self, path: str, most: int) -> int:
        return 1

    def shared_by(self, tasks: int) -> IndexInMemory:
        return self


@dataclass(frozen=True)
class Section:
    """Where an array is in its file (offset from the file's start, bytes), its dtype, and its xxh3-64 checksum."""

    dtype: str
    offset: int
    length: int
    checksum: int


def encode(identity: Mapping[str, object], arrays: Mapping[str, Any]) -> tuple[bytes, Mapping[str, Section]]:
    """Return one file of `arrays` (one-dimensional numpy arrays, or bytes), and the section of each."""
    views: dict[str, Any] = {}
    places: dict[str, tuple[str, int, int, int]] = {}
    end = 0
    for name, array in arrays.items():
        raw = isinstance(array, bytes | bytearray)
        view = memoryview(array if raw else np.ascontiguousarray(array).view(np.uint8).data)
        places[name] = "bytes" if raw else array.dtype.str, end, view.nbytes, xxhash.xxh3_64_intdigest(view)
        views[name] = view
        end += view.nbytes
    header = json.dumps({"identity": dict(identity), "sections": places}).encode()
    start = len(MAGIC) + 4 + len(header) + 8
    head = MAGIC + len(header).to_bytes(4, "little") + header + xxhash.xxh3_64_intdigest(header).to_bytes(8, "little")
    sections = {
        name: Section(dtype, start + offset, length, checksum)
        for name, (dtype, offset, length, checksum) in places.items()
    }
    return b"".join((head, *views.values())), sections


def decode(data: bytes, identity: Mapping[str, object]) -> dict[str, Any]:
    """Return the arrays of a complete file. Raises DamagedIndex if it is damaged or has another identity."""
    sections, end = _header(data, identity)
    if end != len(data):
        raise DamagedIndex(f"the file has {len(data)} bytes, but its header says {end}")
    return {name: checked(data[part.offset : part.offset + part.length], part) for name, part in sections.items()}


def read_whole(stores: Stores | IndexInMemory, path: str, identity: Mapping[str, object]) -> dict[str, Any]:
    """Return all arrays of the file at `path`. Raises DamagedIndex."""
    try:
        return decode(stores.read(path), identity)
    except StorageError as error:
        raise DamagedIndex(f"{path}: {error.what}") from error


def _header(data: bytes, identity: Mapping[str, object]) -> tuple[dict[str, Section], int]:
    at = len(MAGIC) + 4
    if data[: len(MAGIC)] != MAGIC or len(data) < at:
        raise DamagedIndex("the file is not an index file")
    size = int.from_bytes(data[len(MAGIC) : at], "little")
    header, checksum = data[at : at + size], data[at + size : at + size + 8]
    if len(checksum) != 8 or xxhash.xxh3_64_intdigest(header) != int.from_bytes(checksum, "little"):
        raise DamagedIndex("the header is damaged")
    content = json.loads(header)
    if content["identity"] != json.loads(json.dumps(dict(identity))):
        raise DamagedIndex("the file belongs to another table, or was built under other rules")
    start = at + size + 8
    sections = {
        name: Section(dtype, start + offset, length, checksum)
        for name, (dtype, offset, length, checksum) in content["sections"].items()
    }
    return sections, max((part.offset + part.length for part in sections.values()), default=start)


def checked(data: bytes, section: Section) -> Any:
    """Return a section's bytes as its array. Raises DamagedIndex if they have changed."""
    if len(data) != section.length or xxhash.xxh3_64_intdigest(data) != section.checksum:
        raise DamagedIndex("a section differs from its checksum")
    return data if section.dtype == "bytes" else np.frombuffer(data, np.dtype(section.dtype))
