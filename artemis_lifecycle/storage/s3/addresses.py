"""Buckets and keys of S3 paths."""

from __future__ import annotations

from dataclasses import dataclass

from artemis_lifecycle.errors import StorageError
from artemis_lifecycle.storage.location import split

LONGEST_KEY = 1024


@dataclass(frozen=True)
class Address:
    """`stem` is the path up to and including the bucket, in the user's spelling. All returned paths begin with it."""

    stem: str
    bucket: str
    key: str


def address_of(path: str) -> Address:
    parts = split(path)
    if not parts.authority:
        raise StorageError("The path names no bucket", path=path, hint="write it as s3://bucket/key")
    return Address(path[: len(path) - len(parts.path)], parts.authority, parts.path[1:])


def folder_key(address: Address) -> str:
    return address.key if not address.key or address.key.endswith("/") else address.key + "/"


def refusal(key: str) -> str | None:
    if not key:
        return "it names a bucket and no object"
    try:
        key.encode()
    except UnicodeEncodeError:
        return "its name is not Unicode text"
    return None


def is_too_long(key: str) -> bool:
    """Return True if the key is too long for S3, so that no object can have it, whatever S3 answers."""
    return len(key.encode()) > LONGEST_KEY
