"""What a file is, besides its name: its size, its modification time, and its store's own token for it.

A path is only where a file was. Whoever acts on a file later than it was seen compares identities: a writer may have
put another file at the same path in the meantime.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_TIME = -(2**63)
"""Represents a time that the store does not report."""

NO_TAG = 0
"""Represents a token that the store does not report."""

_MASK = 2**64 - 1
_MAJOR = 0xFFFFF000000FFF00
_DEVICE, _INODE, _TIME = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9


class Sameness(Enum):
    """How two identities of one path compare. UNSURE: the size agrees, but time or token differ, so only the content
    can tell (replication, re-encryption and a change of storage class change them, too)."""

    SAME = "same"
    UNSURE = "unsure"
    OTHER = "other"


@dataclass(frozen=True)
class FileIdentity:
    """A file's size in bytes, its modification time in microseconds since 1970 (NO_TIME if unknown), and a 64-bit hash
    (as a signed integer) of its store's token for it (NO_TAG if unknown): on S3 the ETag and version, on a local disk
    device, inode and nanoseconds."""

    size_in_bytes: int
    modified: int = NO_TIME
    tag: int = NO_TAG

    def compare(self, now: FileIdentity) -> Sameness:
        """Compare this recorded identity with the current one of the same path."""
        return (Sameness.SAME, Sameness.UNSURE, Sameness.OTHER)[
            int(
                compare(
                    *(np.array([value]) for value in (self.size_in_bytes, self.modified, self.tag)),
                    *(np.array([value]) for value in (now.size_in_bytes, now.modified, now.tag)),
                )[0]
            )
        ]


SAME, UNSURE, OTHER = 0, 1, 2
"""`Sameness` in arrays."""


def compare(
    sizes: NDArray[np.int64],
    modified: NDArray[np.int64],
    tags: NDArray[np.int64],
    now_sizes: NDArray[np.int64],
    now_modified: NDArray[np.int64],
    now_tags: NDArray[np.int64],
) -> NDArray[np.int8]:
    """Return SAME, UNSURE or OTHER for each row of recorded and current identities. What either side does not know is
    not compared; if nothing but the size is known, the row is UNSURE."""
    times = (modified != NO_TIME) & (now_modified != NO_TIME)
    tokens = (tags != NO_TAG) & (now_tags != NO_TAG)
    differs = (times & (modified != now_modified)) | (tokens & (tags != now_tags))
    result = np.where(differs | ~(times | tokens), UNSURE, SAME).astype(np.int8)
    result[sizes != now_sizes] = OTHER
    return result


def object_tag(*tokens: str | None) -> int:
    """Return the tag of an object from its store's tokens, such as ETag and version. NO_TAG if there is none."""
    known = [token for token in tokens if token]
    if not known:
        return NO_TAG
    digest = hashlib.blake2b("\0".join(known).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def disk_tag(device: Any, inode: Any, nanoseconds: Any) -> Any:
    """Return the tag of a file on a local disk, for integers or arrays of them (uint64). `device` is of
    `os.stat_result.st_dev`. It counts only for block devices: each machine numbers a network file system by itself."""
    device = device * ((device & _MAJOR) != 0)
    tag = (device * _DEVICE) ^ (inode * _INODE) ^ (nanoseconds * _TIME)
    if isinstance(tag, int):
        tag &= _MASK
        return tag - 2**64 if tag >= 2**63 else tag
    return tag.view(np.int64)
