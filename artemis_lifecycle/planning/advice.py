"""What maintenance would spare this query, estimated from its plan.

Each estimate has its counts and bytes, so that a reader with other costs can price them again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from artemis_lifecycle.metadata.types import ManifestListEntry
from artemis_lifecycle.planning.pruning import PartitionKey, Selected

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
    """What a plan knows: manifests and which are read, entries that match by their partition; the selected data files,
    and the sizes of the delete files that each of them opens; the sizes of all delete files that apply to any."""

    manifests: Sequence[ManifestListEntry]
    selected: Sequence[ManifestListEntry]
    in_partition: int
    files: Sequence[Selected]
    deletes: Sequence[Sequence[int]]
    delete_sizes: Sequence[int]


def advice(found: Found, targets: Targets) -> tuple[Advice, ...]:
    """Return what would spare this query anything, the largest saving first."""
    every = (_manifests(found, targets), _files(found, targets), _deletes(found))
    worth = [each for each in every if each is not None and each.seconds_saved > 0]
    return tuple(sorted(worth, key=lambda each: -each.seconds_saved))


def _manifests(found: Found, targets: Targets) -> Advice | None:
    """Manifests sorted by partition and of the target size: what matches would be consecutive, and touch one more
    manifest at each end of its range."""
    data = [each for each in found.manifests if each.content == 0]
    read = [each for each in found.selected if each.content == 0]
    entries = sum((each.added_files_count or 0) + (each.existing_files_count or 0) for each in data)
    size, bytes_now = (sum(max(each.manifest_length, 0) for each in some) for some in (data, read))
    now = len(read)
    if not entries or now < 2:
        return None
    per_entry = size / entries
    all_then = math.ceil(size / targets.manifest_bytes)
    then = min(now, all_then, math.ceil(found.in_partition * per_entry / targets.manifest_bytes) + 1)
    return Advice(
        "manifests",
        "artemis compact TABLE --manifests",
        f"{now:,} manifests are read for {found.in_partition:,} entries of matching partitions",
        now,
        then,
        bytes_now,
        min(bytes_now, round(size * then / all_then)),
    )


def _files(found: Found, targets: Targets) -> Advice | None:
    """Small files of one partition become files of the target size, where there are enough of them."""
    by_partition: dict[PartitionKey, list[int]] = {}
    for file in found.files:
        if file.live.size_in_bytes < targets.small_bytes:
            by_partition.setdefault(file.partition.key, []).append(file.live.size_in_bytes)
    worth = [sizes for sizes in by_partition.values() if len(sizes) >= targets.min_input_files]
    if not worth:
        return None
    small = sum(map(len, worth))
    left = sum(min(math.ceil(sum(sizes) / targets.file_bytes), len(sizes)) for sizes in worth)
    now, total = len(found.files), sum(file.live.size_in_bytes for file in found.files)
    return Advice(
        "data files",
        "artemis compact TABLE",
        f"{small:,} of {now:,} selected files are small, in {len(worth):,} partitions that "
        f"have at least {targets.min_input_files}",
        now,
        now - small + left,
        total,
        total,
    )


def _deletes(found: Found) -> Advice | None:
    opens = sum(map(len, found.deletes))
    if not opens:
        return None
    return Advice(
        "deletes",
        "artemis compact TABLE",
        f"{len(found.delete_sizes):,} delete files apply to {sum(map(bool, found.deletes)):,} of "
        f"{len(found.files):,} selected files, which open them {opens:,} times",
        opens,
        0,
        sum(map(sum, found.deletes)),
        0,
    )
