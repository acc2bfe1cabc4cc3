"""Reading metadata into the index: manifest lists into who lists which manifest, manifests into segments of rows.
Belongs here: what runs once per file, in threads of the driver or on executors. Does not belong: what is read when.

A segment is one file of the index with the live entries of some manifests: for each manifest a block of paths, sizes
and kinds, and for all of them together the hashes of locations, sorted, each with its manifest's place in the segment.
Sorted runs merge: any two segments, and any set of wanted hashes, are compared in one pass.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.errors import UnreadableMetadata
from artemis_lifecycle.metadata.manifest_lists import listed_manifests
from artemis_lifecycle.metadata.manifests import LiveFiles, live_files
from artemis_lifecycle.metadata.types import UNKNOWN_SNAPSHOT, ManifestListEntry, Snapshot
from artemis_lifecycle.reachability.index.files import DamagedIndex, Section, encode
from artemis_lifecycle.storage.location import LocationRules
from artemis_lifecycle.storage.location_hash import hash_paths
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from artemis_lifecycle.reachability.index.index import ManifestIndex


SEGMENT_ROWS = 500_000
"""A segment is closed at so many rows: what one writer holds in memory, about 70 MB."""


# --- manifest lists -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Manifests:
    """Distinct manifests as lists record them: path (bytes in `data` between `offsets`), length, content, the snapshot
    that added them, counts.

    An unknown length or count is -1, an unknown snapshot UNKNOWN_SNAPSHOT.
    """

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    contents: NDArray[np.int8]
    added_by: NDArray[np.int64]
    existing: NDArray[np.int64]
    added: NDArray[np.int64]
    deleted: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    def path(self, row: int) -> str:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes().decode("utf-8", "surrogatepass")

    def entry(self, row: int) -> ManifestListEntry:
        """The manifest as `live_files` wants it."""
        known = [None if count < 0 else count for count in self._counts(row)]
        added_by = int(self.added_by[row])
        return ManifestListEntry(
            manifest_path=self.path(row),
            manifest_length=int(self.lengths[row]),
            partition_spec_id=0,
            content=int(self.contents[row]),
            sequence_number=0,
            min_sequence_number=0,
            added_snapshot_id=None if added_by == UNKNOWN_SNAPSHOT else added_by,
            added_files_count=known[1],
            existing_files_count=known[0],
            deleted_files_count=known[2],
        )

    def _counts(self, row: int) -> tuple[int, int, int]:
        return int(self.existing[row]), int(self.added[row]), int(self.deleted[row])

    def keys(self) -> NDArray[np.uint64]:
        """A 64-bit key of each manifest's path and length; equal keys are compared byte by byte before they count."""
        import numpy as np

        from artemis_lifecycle.storage.hash_kernels import hash_slices

        out = np.empty(len(self), np.uint64)
        hash_slices(self.data, self.offsets[:-1], np.diff(self.offsets), self.lengths.view(np.uint64), out)
        return out


@dataclass(frozen=True)
class ListChunk:
    """Some manifest lists: list `i` names the manifests `numbers[bounds[i]:bounds[i + 1]]`, rows of `manifests`."""

    sizes: NDArray[np.int64]
    bounds: NDArray[np.int64]
    numbers: NDArray[np.int64]
    manifests: Manifests


def read_lists(stores: Stores, snapshots: Sequence[Snapshot], threads: int = 1) -> ListChunk:
    """Read the manifest lists of `snapshots`, so many at once. Raises UnreadableMetadata, EncryptedTable.

    Also when two lists do not agree on what a manifest of one path and length holds.
    """
    import numpy as np

    from artemis_lifecycle.metadata.avro.scan_kernels import gather

    lists = list(threaded(lambda snapshot: listed_manifests(stores, snapshot), snapshots, threads))
    counts = [len(listed) for listed in lists]
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    pieces: list[NDArray[np.uint8]] = []
    for listed in lists:
        out = np.empty(int(listed.sizes.sum()), np.uint8)
        rows = np.arange(len(listed), dtype=np.int64)
        gather(listed.data, listed.starts, listed.sizes, rows, out, np.empty(len(listed) + 1, np.int64))
        pieces.append(out)

    def column(name: str) -> NDArray[np.int64]:
        columns = [getattr(listed, name) for listed in lists]
        return np.concatenate(columns) if columns else np.empty(0, np.int64)

    every = Manifests(
        np.concatenate([[0], np.cumsum(column("sizes"))]).astype(np.int64),
        np.concatenate(pieces) if pieces else np.empty(0, np.uint8),
        column("lengths"),
        column("contents").astype(np.int8),
        column("added_by"),
        column("existing"),
        column("added"),
        column("deleted"),
    )
    distinct, numbers = _distinct(every)
    sizes = np.array([listed.size_in_bytes for listed in lists], np.int64)
    return ListChunk(sizes, bounds, numbers, distinct)


def merged(chunks: Sequence[ListChunk]) -> ListChunk:
    """All lists of the chunks, in order, as one chunk. Raises UnreadableMetadata when their lists do not agree."""
    import numpy as np

    every = joined(*(chunk.manifests for chunk in chunks))
    distinct, numbers = _distinct(every)
    manifests = np.cumsum([0, *(len(chunk.manifests) for chunk in chunks)])
    entries = np.cumsum([0, *(len(chunk.numbers) for chunk in chunks)])
    return ListChunk(
        np.concatenate([chunk.sizes for chunk in chunks]),
        np.concatenate(
            [[0], *(chunk.bounds[1:] + start for chunk, start in zip(chunks, entries[:-1], strict=True))]
        ).astype(np.int64),
        np.concatenate([numbers[chunk.numbers + start] for chunk, start in zip(chunks, manifests[:-1], strict=True)]),
        distinct,
    )


def _distinct(every: Manifests) -> tuple[Manifests, NDArray[np.int64]]:
    """Each manifest once, and which of them every row is. Raises UnreadableMetadata when two rows do not agree."""
    import numpy as np

    _, first, numbers = np.unique(every.keys(), return_index=True, return_inverse=True)
    same = same_manifests(every, np.arange(len(every), dtype=np.int64), every, first[numbers])
    if not same.all():
        raise _disagreement(every.path(int(np.flatnonzero(~same)[0])))
    found = taken(every, first)
    counts: dict[str, Any] = {}
    for name in ("existing", "added", "deleted"):
        # A list of an old writer may leave a count out that another list has.
        given, best = getattr(every, name), np.full(len(first), -1, np.int64)
        np.maximum.at(best, numbers, given)
        differing = np.flatnonzero((given >= 0) & (given != best[numbers]))
        if len(differing):
            raise _disagreement(every.path(int(differing[0])))
        counts[name] = best
    # Lists that name two snapshots for one manifest leave open which of them its entries must name.
    differing = every.added_by != found.added_by[numbers]
    if differing.any():
        counts["added_by"] = found.added_by.copy()
        counts["added_by"][numbers[differing]] = UNKNOWN_SNAPSHOT
    return replace(found, **counts), numbers.astype(np.int64)


def taken(manifests: Manifests, rows: NDArray[np.int64]) -> Manifests:
    """The given rows, in that order."""
    import numpy as np

    from artemis_lifecycle.metadata.avro.scan_kernels import gather

    sizes = np.diff(manifests.offsets)
    out = np.empty(int(sizes[rows].sum()), np.uint8)
    offsets = np.empty(len(rows) + 1, np.int64)
    gather(manifests.data, manifests.offsets[:-1], sizes, rows.astype(np.int64), out, offsets)
    return Manifests(
        offsets,
        out,
        manifests.lengths[rows],
        manifests.contents[rows],
        manifests.added_by[rows],
        manifests.existing[rows],
        manifests.added[rows],
        manifests.deleted[rows],
    )


def joined(*parts: Manifests) -> Manifests:
    """The rows of all, one behind the other."""
    import numpy as np

    starts = np.cumsum([0, *(int(part.offsets[-1]) for part in parts)])
    return Manifests(
        np.concatenate(
            [np.zeros(1, np.int64), *(part.offsets[1:] + start for part, start in zip(parts, starts[:-1], strict=True))]
        ),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("data", "lengths", "contents", "added_by", "existing", "added", "deleted")
        ),
    )


def same_manifests(
    one: Manifests, rows: NDArray[np.int64], other: Manifests, others: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether row `rows[i]` of `one` has the path, the length and the content of row `others[i]` of `other`."""
    import numpy as np

    from artemis_lifecycle.reachability.index.kernels import equal_slices

    same = np.empty(len(rows), np.bool_)
    equal_slices(one.data, one.offsets, rows.astype(np.int64), other.data, other.offsets, others.astype(np.int64), same)
    alike: NDArray[np.bool_] = (
        same & (one.lengths[rows] == other.lengths[others]) & (one.contents[rows] == other.contents[others])
    )
    return alike


def _disagreement(path: str) -> UnreadableMetadata:
    return UnreadableMetadata(
        "Two manifest lists do not agree on what a manifest holds",
        path=path,
        untouched="the table and all its files",
        hint="find out which list is damaged; nothing of this table is planned or deleted until they agree",
    )


# --- manifests ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """A segment's file, by its name in the index's folder; its rows and manifests, and where its columns stand.

    All columns are in the order of the hashes: `owners` are places of manifests, `sizes` bytes.
    """

    name: str
    rows: int
    manifests: int
    hashes: Section
    owners: Section
    sizes: Section

    @property
    def columns(self) -> tuple[Section, Section, Section]:
        return self.hashes, self.owners, self.sizes


COLUMNS = ("<u8", "<u4", "<i8")
"""The dtypes of a segment's columns."""


@dataclass(frozen=True)
class Blocks:
    """Where the rows of each manifest stand in a segment's file, with the block's xxh3-64 checksum.

    `numbers` are the index's numbers of the manifests, in the order of their places in the segment.
    """

    numbers: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    checksums: NDArray[np.uint64]
    counts: NDArray[np.int64]
    """(manifests, 3): existing, added and deleted entries, as they were found."""


@dataclass(frozen=True)
class Rows:
    """Entries: paths (bytes in `data` between `offsets`), sizes in bytes, kinds (indexes into ENTRY_KINDS)."""

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    kinds: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.sizes)

    def paths(self) -> pa.Array:
        """The paths as a string array."""
        import pyarrow as pa

        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_string(), len(self), buffers).cast(pa.string())


@dataclass(frozen=True)
class ReadManifest:
    """One manifest, read: its block, its hashes, sorted, with the sizes of their files, its counts by status (existing,
    added, deleted)."""

    number: int
    block: bytes
    hashes: NDArray[np.uint64]
    sizes: NDArray[np.int64]
    counts: tuple[int, int, int]


def read_manifest(stores: Stores, number: int, entry: ManifestListEntry, rules: LocationRules) -> ReadManifest:
    """Read one manifest, held against its entry in the list. Raises UnreadableMetadata, EncryptedTable."""
    import numpy as np

    live = live_files(stores, entry)
    hashes = hash_paths(live.data, live.starts, live.lengths, rules)
    order = np.argsort(hashes)
    return ReadManifest(number, _block(live, entry.manifest_path), hashes[order], live.sizes[order], live.counts)


def _block(live: LiveFiles, path: str) -> bytes:
    import numpy as np
    import pyarrow as pa

    from artemis_lifecycle.metadata.avro.scan_kernels import gather

    count = len(live)
    if not count:
        return b""
    out = np.empty(int(live.lengths.sum()), np.uint8)
    offsets = np.empty(count + 1, np.int64)
    gather(live.data, live.starts, live.lengths, np.arange(count, dtype=np.int64), out, offsets)
    try:
        texts = pa.Array.from_buffers(pa.large_string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(out)])
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UnreadableMetadata(
            "A path of the manifest is no text",
            path=path,
            untouched="the table and all its files",
            hint="restore the file; nothing of this table is planned or deleted until it reads",
        ) from error
    raw = b"".join(
        (
            count.to_bytes(4, "little"),
            np.ascontiguousarray(live.sizes).tobytes(),
            live.lengths.astype(np.uint32).tobytes(),
            live.kinds.tobytes(),
            out.tobytes(),
        )
    )
    return len(raw).to_bytes(8, "little") + bytes(_codec().compress(raw))


def _codec() -> Any:
    import pyarrow as pa

    # Half the time of zstd for a third more bytes, and every plan waits for it once per new entry.
    return pa.Codec("lz4_raw")


def checksum_of(block: bytes) -> int:
    """xxh3-64 of a block."""
    import xxhash

    checksum: int = xxhash.xxh3_64_intdigest(block)
    return checksum


_LZ4_RATIO = 256  # Of its raw format: a byte says at most 255.


def read_block(block: bytes, checksum: int) -> Rows:
    """The rows of one manifest. Raises DamagedIndex."""
    import numpy as np
    import pyarrow as pa

    if not block:
        return Rows(np.zeros(1, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int8))
    if checksum_of(block) != checksum:
        raise DamagedIndex("a block does not have its checksum")
    size = int.from_bytes(block[:8], "little")
    if size > _LZ4_RATIO * len(block):
        raise DamagedIndex("a block claims more than its codec can give")
    try:
        raw = _codec().decompress(block[8:], decompressed_size=size)
    except (OSError, pa.ArrowInvalid) as error:
        raise DamagedIndex(f"a block cannot be undone: {error}") from error
    count = int.from_bytes(raw[:4], "little")
    sizes = np.frombuffer(raw, np.int64, count, 4) if count else np.empty(0, np.int64)
    lengths = np.frombuffer(raw, np.uint32, count, 4 + 8 * count)
    kinds = np.frombuffer(raw, np.int8, count, 4 + 12 * count)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = np.frombuffer(raw, np.uint8, int(offsets[-1]), 4 + 13 * count)
    return Rows(offsets, data, sizes, kinds)


class SegmentWriter:
    """Collects manifests and writes segments of about SEGMENT_ROWS rows under `folder`."""

    def __init__(self, stores: Stores, folder: str, identity: Mapping[str, object]) -> None:
        self._stores = stores
        self._folder = folder
        self._identity = identity
        self._manifests: list[ReadManifest] = []
        self._rows = 0

    def add(self, manifest: ReadManifest) -> Iterator[tuple[Segment, Blocks]]:
        """Take one manifest; yields a segment whenever one is full."""
        self._manifests.append(manifest)
        self._rows += len(manifest.hashes)
        if self._rows >= SEGMENT_ROWS:
            yield self._write()

    def finish(self) -> Iterator[tuple[Segment, Blocks]]:
        if self._manifests:
            yield self._write()

    def _write(self) -> tuple[Segment, Blocks]:
        import numpy as np

        manifests, self._manifests, rows, self._rows = self._manifests, [], self._rows, 0
        hashes = np.concatenate([manifest.hashes for manifest in manifests])
        owners = np.repeat(np.arange(len(manifests), dtype=np.uint32), [len(manifest.hashes) for manifest in manifests])
        # Stable, so that equal hashes keep their manifests' order: the same rows make the same file.
        order = np.argsort(hashes, kind="stable")
        lengths = np.array([len(manifest.block) for manifest in manifests], np.int64)
        data, sections = encode(
            self._identity,
            {
                "hashes": hashes[order],
                "owners": owners[order],
                "sizes": np.concatenate([manifest.sizes for manifest in manifests])[order],
                "blocks": b"".join(manifest.block for manifest in manifests),
            },
        )
        name = f"segment-{uuid.uuid4().hex}"
        self._stores.write(f"{self._folder}/{name}", data)
        blocks = Blocks(
            np.array([manifest.number for manifest in manifests], np.int64),
            sections["blocks"].offset + np.cumsum(lengths) - lengths,
            lengths,
            np.array([checksum_of(manifest.block) for manifest in manifests], np.uint64),
            np.array([manifest.counts for manifest in manifests], np.int64).reshape(-1, 3),
        )
        columns = (sections[name] for name in ("hashes", "owners", "sizes"))
        return Segment(name, rows, len(manifests), *columns), blocks


def write_segments(
    index: ManifestIndex, manifests: Sequence[tuple[int, ManifestListEntry]], threads: int
) -> Iterator[tuple[Segment, Blocks]]:
    """Read the numbered manifests into segments, in their order, so many at once."""
    writer = SegmentWriter(index.files, index.folder, index.identity)
    for manifest in threaded(
        lambda item: read_manifest(index.stores, item[0], item[1], index.rules), manifests, threads
    ):
        yield from writer.add(manifest)
    yield from writer.finish()
