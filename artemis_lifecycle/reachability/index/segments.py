"""Segments: the live entries of manifests, read once.

A segment is one file of the index with the live entries of some manifests. Each manifest has a block of paths, sizes
and kinds. All together have the sorted hashes of locations, each with its manifest's place in the segment. Sorted runs
can be merged: any two segments, and any set of wanted hashes, are compared in one pass.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from artemis_lifecycle.metadata.manifests import LiveFiles, live_files
from artemis_lifecycle.metadata.types import ManifestListEntry
from artemis_lifecycle.reachability.index.array_file import DamagedIndex, Section, encode
from artemis_lifecycle.reachability.index.index import ManifestIndex
from artemis_lifecycle.storage.location import LocationRules, hash_column, text_buffers
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.threads import threaded

SEGMENT_ROWS = 500_000
"""A segment is closed at this many rows. A writer then uses about 70 MB of memory."""


@dataclass(frozen=True)
class Segment:
    """A segment's file, by its name in the index's folder, with its rows and manifests, and where its columns are.

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
    """Where the rows of each manifest are in a segment's file, with the block's xxh3-64 checksum.

    `numbers` are the index's numbers of the manifests, in the order of their places in the segment.
    """

    numbers: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    checksums: NDArray[np.uint64]
    counts: NDArray[np.int64]
    """(manifests, 3): existing, added and deleted entries, as found."""


@dataclass(frozen=True)
class Rows:
    """Entries: paths (large_string), sizes in bytes, kinds (indexes into ENTRY_KINDS)."""

    paths: pa.Array
    sizes: NDArray[np.int64]
    kinds: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class ReadManifest:
    """A manifest that was read: its block, its sorted hashes with the sizes of their files, its counts by status
    (existing, added, deleted)."""

    number: int
    block: bytes
    hashes: NDArray[np.uint64]
    sizes: NDArray[np.int64]
    counts: tuple[int, int, int]


def read_manifest(stores: Stores, number: int, entry: ManifestListEntry, rules: LocationRules) -> ReadManifest:
    """Read one manifest, and verify it against its entry in the list. Raises UnreadableMetadata, EncryptedTable."""
    live = live_files(stores, entry)
    hashes = hash_column(live.paths, rules)
    order = np.argsort(hashes)
    return ReadManifest(number, _block(live), hashes[order], live.sizes[order], live.counts)


# Half the time of zstd for a third more bytes; every plan waits for it once per new entry.
_CODEC = "lz4_raw"
_LZ4_RATIO = 256  # Of its raw format: a byte expands to at most 255.


def _block(live: LiveFiles) -> bytes:
    if not len(live):
        return b""
    offsets, data = text_buffers(live.paths)
    raw = b"".join(
        (
            len(live).to_bytes(4, "little"),
            np.ascontiguousarray(live.sizes).tobytes(),
            np.diff(offsets).astype(np.uint32).tobytes(),
            live.kinds.tobytes(),
            data[offsets[0] : offsets[-1]].tobytes(),
        )
    )
    return len(raw).to_bytes(8, "little") + bytes(pa.Codec(_CODEC).compress(raw))


def checksum_of(block: bytes) -> int:
    """Return the xxh3-64 of a block."""
    checksum: int = xxhash.xxh3_64_intdigest(block)
    return checksum


def read_block(block: bytes, checksum: int) -> Rows:
    """Return the rows of one manifest. Raises DamagedIndex."""
    if not block:
        return Rows(pa.array([], pa.large_string()), np.empty(0, np.int64), np.empty(0, np.int8))
    if checksum_of(block) != checksum:
        raise DamagedIndex("a block differs from its checksum")
    size = int.from_bytes(block[:8], "little")
    if size > _LZ4_RATIO * len(block):
        raise DamagedIndex("a block claims more than its codec can produce")
    try:
        raw = pa.Codec(_CODEC).decompress(block[8:], decompressed_size=size)
    except (OSError, pa.ArrowInvalid) as error:
        raise DamagedIndex(f"a block cannot be decompressed: {error}") from error
    count = int.from_bytes(raw[:4], "little")
    sizes = np.frombuffer(raw, np.int64, count, 4)
    lengths = np.frombuffer(raw, np.uint32, count, 4 + 8 * count)
    kinds = np.frombuffer(raw, np.int8, count, 4 + 12 * count)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    texts = raw.slice(4 + 13 * count)
    if int(offsets[-1]) != len(texts):
        raise DamagedIndex(f"a block has {len(texts)} bytes of paths, but needs {offsets[-1]}")
    return Rows(large_texts(offsets, texts), sizes, kinds)


def large_texts(offsets: NDArray[np.int64], data: pa.Buffer) -> pa.Array:
    """Return consecutive UTF-8 texts in `data`, without a copy. `offsets` has one more entry than there are texts."""
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, [None, pa.py_buffer(offsets), data])


class SegmentWriter:
    """Collects manifests and writes segments of about SEGMENT_ROWS rows to the index's folder."""

    def __init__(self, index: ManifestIndex) -> None:
        self._index = index
        self._manifests: list[ReadManifest] = []
        self._rows = 0

    def add(self, manifest: ReadManifest) -> Iterator[tuple[Segment, Blocks]]:
        """Add one manifest; yield a segment whenever one is full."""
        self._manifests.append(manifest)
        self._rows += len(manifest.hashes)
        if self._rows >= SEGMENT_ROWS:
            yield self._write()

    def finish(self) -> Iterator[tuple[Segment, Blocks]]:
        if self._manifests:
            yield self._write()

    def _write(self) -> tuple[Segment, Blocks]:
        manifests, self._manifests, rows, self._rows = self._manifests, [], self._rows, 0
        hashes = np.concatenate([manifest.hashes for manifest in manifests])
        owners = np.repeat(np.arange(len(manifests), dtype=np.uint32), [len(manifest.hashes) for manifest in manifests])
        # Stable, so that equal hashes keep their manifests' order: the same rows produce the same file.
        order = np.argsort(hashes, kind="stable")
        lengths = np.array([len(manifest.block) for manifest in manifests], np.int64)
        data, sections = encode(
            self._index.identity,
            {
                "hashes": hashes[order],
                "owners": owners[order],
                "sizes": np.concatenate([manifest.sizes for manifest in manifests])[order],
                "blocks": b"".join(manifest.block for manifest in manifests),
            },
        )
        name = f"segment-{uuid.uuid4().hex}"
        self._index.files.write(f"{self._index.folder}/{name}", data)
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
    """Read the numbered manifests into segments, in their order, with `threads` threads."""
    writer = SegmentWriter(index)
    for manifest in threaded(
        lambda item: read_manifest(index.stores, item[0], item[1], index.rules), manifests, threads
    ):
        yield from writer.add(manifest)
    yield from writer.finish()
