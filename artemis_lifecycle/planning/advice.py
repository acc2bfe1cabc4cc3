"""What maintenance would spare this query, estimated from its plan. Belongs here: the estimates, and the costs of
requests and bytes that they rest on. Does not belong here: whether the table as a whole needs maintenance (`health`).

Each estimate has its counts and bytes, so that a reader with other costs can price them again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.metadata.summaries import SummarizedManifests

SECONDS_PER_REQUEST = 0.1
"""The time to the first byte of a GET: 100 to 200 ms (Amazon S3 User Guide, "Performance design patterns")."""

BYTES_PER_SECOND = 85_000_000
"""The throughput of one request: 85 to 90 MB/s (the same page)."""


@dataclass(frozen=True)
class Targets:
    """The sizes in bytes that the table's writers aim at; below `small_bytes` a data file is small, and fewer than
    `min_input_files` small files of a partition are not compacted."""

    file_bytes: int
    manifest_bytes: int
    small_bytes: int
    min_input_files: int


@dataclass(frozen=True)
class Advice:
    """One kind of maintenance, and what it would spare this query. `now` and `then` count what is read: manifests, data
    files, or delete files (once for each data file that opens them). `seconds` are those of one connection that reads
    one after another; a reader with n connections needs an nth of them."""

    kind: str
    command: str
    what: str
    now: int
    then: int
    bytes_now: int
    bytes_then: int

    @property
    def requests_saved(self) -> int:
        return self.now - self.then

    @property
    def bytes_saved(self) -> int:
        return self.bytes_now - self.bytes_then

    @property
    def seconds_saved(self) -> float:
        return self.requests_saved * SECONDS_PER_REQUEST + self.bytes_saved / BYTES_PER_SECOND


@dataclass(frozen=True)
class Found:
    """What a plan knows: manifests and which are read, entries that match by their partition; the sizes and partition
    numbers of the selected files; and the deletes that apply to them."""

    manifests: SummarizedManifests | None
    selected: NDArray[np.bool_]
    in_partition: int
    sizes: NDArray[np.int64]
    groups: NDArray[np.int64]
    delete_files: int
    delete_bytes: int
    delete_opens: int
    opened_delete_bytes: int
    files_with_deletes: int


def advice(found: Found, targets: Targets) -> tuple[Advice, ...]:
    """Return what would spare this query anything, the largest saving first."""
    every = (_manifests(found, targets), _files(found, targets), _deletes(found))
    worth = [each for each in every if each is not None and each.seconds_saved > 0]
    return tuple(sorted(worth, key=lambda each: -each.seconds_saved))


def _manifests(found: Found, targets: Targets) -> Advice | None:
    """Manifests sorted by partition and of the target size: what matches would be consecutive, and touch one more
    manifest at each end of its range."""
    if found.manifests is None:
        return None
    listed = found.manifests.listed
    data = listed.contents == 0
    read = found.selected & data
    live = np.maximum(listed.added, 0) + np.maximum(listed.existing, 0)
    lengths = np.maximum(listed.lengths, 0)
    entries, size = int(live[data].sum()), int(lengths[data].sum())
    now, bytes_now = int(read.sum()), int(lengths[read].sum())
    if not entries or now < 2:
        return None
    per_entry = size / entries
    all_then = math.ceil(size / targets.manifest_bytes)
    then = min(now, all_then, math.ceil(found.in_partition * per_entry / targets.manifest_bytes) + 1)
    bytes_then = min(bytes_now, round(size * then / all_then))
    return Advice(
        "manifests",
        "artemis compact TABLE --manifests",
        f"{now:,} manifests are read for {found.in_partition:,} entries of matching partitions",
        now,
        then,
        bytes_now,
        bytes_then,
    )


def _files(found: Found, targets: Targets) -> Advice | None:
    """Small files of one partition become files of the target size, where there are enough of them."""
    small = found.sizes < targets.small_bytes
    groups, codes = np.unique(found.groups[small], return_inverse=True)
    counts = np.bincount(codes, minlength=len(groups))
    sizes = np.bincount(codes, found.sizes[small].astype(np.float64), len(groups))
    worth = counts >= targets.min_input_files
    if not worth.any():
        return None
    left = np.minimum(np.ceil(sizes[worth] / targets.file_bytes), counts[worth]).sum()
    now, total = len(found.sizes), int(found.sizes.sum())
    return Advice(
        "data files",
        "artemis compact TABLE",
        f"{int(counts[worth].sum()):,} of {now:,} selected files are small, in {int(worth.sum()):,} partitions that "
        f"have at least {targets.min_input_files}",
        now,
        now - int(counts[worth].sum()) + int(left),
        total,
        total,
    )


def _deletes(found: Found) -> Advice | None:
    if not found.delete_opens:
        return None
    return Advice(
        "deletes",
        "artemis compact TABLE",
        f"{found.delete_files:,} delete files apply to {found.files_with_deletes:,} of {len(found.sizes):,} selected "
        f"files, which open them {found.delete_opens:,} times",
        found.delete_opens,
        0,
        found.opened_delete_bytes,
        0,
    )
