"""Synthetic tables: histories of commits as Iceberg's writers make them, and the metadata files that they leave.

A table is simulated commit by commit (append, RewriteFiles, manifest merging as in Iceberg's ManifestMergeManager),
then its manifests, lists and metadata files are written by several processes. No data file exists: planning reads
metadata only. Everything follows from the parameters, and a finished table is kept under a name made of them.

Shapes:
- `daily`: 96 appends of 600 files a day, and a compaction that replaces the day's files by 225; no manifest merging.
- `many-small-commits`: a commit of one to three files each minute, manifests merged at Iceberg's defaults, and a
  compaction a day. Without the compaction the merged manifests alone would hold 20 million entries.
- `merged-manifests`: as `daily`, with manifest merging at Iceberg's defaults.
- `fleet`: one of many small tables: 39 appends of 8 files and a compaction a day.

A table has `days` of history, of which the first `expire` leave at the first plan; then, for each further day, a
metadata file as it is after that expiration and one more day of commits: the window slides by a day.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import encoding
from bench.encoding import ADDED, DELETED, EXISTING, Bytes

GENERATOR = 2
"""Part of a table's folder name: tables of another generator are not used."""

DAY_MS = 86_400_000
_FIRST_SEQUENCE = 10_000  # The table is older than its history; and all sequence numbers take three bytes.
_SMALL, _LARGE = 0, 1
_ESTIMATED_ENTRY = 165  # Bytes of a deflated manifest entry, by which merging fills its bins before there are files.
_CACHED_BYTES = 300_000_000


@dataclass(frozen=True)
class Shape:
    """What a table's days are like. `files` are the chances of a commit to add 1, 2, … files, or one fixed number."""

    name: str
    days: int
    expire: int
    further_days: int
    appends: int
    files: int | tuple[float, ...]
    compacted: int
    merge: bool
    seed: int = 0
    tags: int = 0
    deletions: bool = True
    """Whether manifests of nothing but deleted entries have these. No step opens such a manifest."""

    @property
    def key(self) -> str:
        files = self.files if isinstance(self.files, int) else f"few-{self.compacted}c"
        tags = f"-tags{self.tags}" if self.tags else ""
        return (
            f"{self.name}-{self.days}d-{self.appends}x{files}-{self.expire}e{self.further_days}f-s{self.seed}{tags}"
            f"-g{GENERATOR}"
        )


def daily(scale: float, *, further_days: int = 5, merge: bool = False, tags: int = 0) -> Shape:
    """`scale` million files: more or fewer days of 57,825 files each, at least five; only below 0.25, smaller days."""
    per_append = 600 if scale >= 0.25 else max(1, round(scale * 1e6 / 5 / 96))
    a_day = per_append * 96 + max(1, per_append * 96 // 256)
    days = max(5, round(scale * 1e6 / a_day))
    return Shape(
        "merged-manifests" if merge else "daily",
        days=days,
        expire=min(5, max(1, days // 7)),
        further_days=further_days,
        appends=96,
        files=per_append,
        compacted=max(1, per_append * 96 // 256),
        merge=merge,
        tags=tags,
    )


def warm_up(*, merge: bool = False) -> Shape:
    """A small table of the daily shape, on which both sides warm up: every kind of step, little of each."""
    return Shape("warm-up", days=3, expire=1, further_days=2, appends=24, files=600, compacted=56, merge=merge)


def many_small_commits(snapshots: int = 50_400, *, further_days: int = 5) -> Shape:
    """A commit a minute for 35 days, the day's last one a compaction; fewer snapshots mean fewer a day."""
    a_day = max(3, round(snapshots / 35))
    return Shape(
        "many-small-commits",
        days=35,
        expire=5,
        further_days=further_days,
        appends=a_day - 1,
        files=(0.75, 0.20, 0.05),
        compacted=max(1, a_day // 180),
        merge=True,
    )


def fleet(tables: int = 200, *, snapshots: int = 1_200, further_days: int = 1) -> list[Shape]:
    return [
        Shape(
            "fleet",
            days=max(5, snapshots // 40),
            expire=3,
            further_days=further_days,
            appends=39,
            files=8,
            compacted=1,
            merge=True,
            seed=number,
        )
        for number in range(tables)
    ]


@dataclass(frozen=True)
class Stage:
    """One metadata file of a table, and the cutoff (ms) of the plan that is made on it."""

    metadata_location: str
    cutoff_ms: int
    now_ms: int
    snapshots: int
    expired: int


@dataclass(frozen=True)
class Table:
    """A generated table. `stages[0]` is the first plan's base; `stages[n]` that of the n-th day after."""

    folder: str
    location: str
    table_uuid: str
    shape: Shape
    stages: tuple[Stage, ...]
    data_files: int
    manifests: int
    manifest_bytes: int
    lists: int
    list_bytes: int
    raw_manifest_bytes: int
    entries: int
    seconds: float


# --- the simulated writer -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Segment:
    """Rows `low` to `high` of one day's small or large files, with one status."""

    kind: int
    day: int
    low: int
    high: int
    status: int


@dataclass(slots=True, eq=False)
class Manifest:
    number: int
    commit: int
    name: str
    segments: list[Segment]
    files: tuple[int, int, int] = (0, 0, 0)
    rows: tuple[int, int, int] = (0, 0, 0)
    min_sequence: int = 0
    days: tuple[int, int] = (0, 0)

    @property
    def live(self) -> bool:
        return self.files[0] + self.files[1] > 0

    @property
    def weight(self) -> int:
        return 7_000 + _ESTIMATED_ENTRY * sum(self.files)


@dataclass(slots=True, eq=False)
class Commit:
    index: int
    day: int
    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    uuid: str
    summary: str = ""
    manifests: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))


class Files:
    """The files of each day, by seed: their sizes, record counts and encoded rows."""

    def __init__(self, shape: Shape, location: str) -> None:
        self.shape = shape
        self.location = location
        # Of the whole shape, so that no two tables share a uuid or a snapshot id.
        self._seed = int.from_bytes(hashlib.sha256(shape.key.encode()).digest()[:8], "big")
        self._cache: OrderedDict[tuple[str, int, int], Any] = OrderedDict()
        self._cached = 0

    def rng(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *what])

    def offsets(self, day: int) -> NDArray[np.int64]:
        """Where the files of each append of `day` begin in the day's rows; one more for the end."""
        files = self.shape.files
        if isinstance(files, int):
            return np.arange(self.shape.appends + 1, dtype=np.int64) * files
        drawn = self.rng(day, 1).choice(len(files), self.shape.appends, p=files) + 1
        return np.concatenate([[0], np.cumsum(drawn)]).astype(np.int64)

    def sizes(self, kind: int, day: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Record counts and sizes in bytes. Compaction keeps the records and loses a tenth of the bytes."""
        if kind == _SMALL:
            rng, rows = self.rng(day, 2), int(self.offsets(day)[-1])
            records = rng.integers(9_000, 19_000, rows)
            return records, records * 150 + rng.integers(0, 65_536, rows)
        records, sizes = self.sizes(_SMALL, day)
        starts = np.arange(self.shape.compacted, dtype=np.int64) * len(records) // self.shape.compacted
        merged, size = np.add.reduceat(records, starts), np.add.reduceat(sizes, starts) * 9 // 10
        # Only days scaled down for tests have compacted files below this; varints must have their width all the same.
        return np.maximum(merged, 1 << 20), np.maximum(size, 1 << 27)

    def body(self, kind: int, day: int) -> Bytes:
        return self._kept(("body", kind, day), lambda: self._body(kind, day))

    def _body(self, kind: int, day: int) -> Bytes:
        records, sizes = self.sizes(kind, day)
        return encoding.bodies(
            day=day,
            paths=self.paths(kind, day),
            records=records,
            sizes=sizes,
            widths=encoding.SMALL if kind == _SMALL else encoding.LARGE,
            rng=self.rng(day, 3 + kind),
        )

    def paths(self, kind: int, day: int) -> Bytes:
        """The paths of the day's files, a row of bytes each."""
        if kind == _SMALL:
            offsets = self.offsets(day)
            counts = np.diff(offsets)
            partitions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
            uuids = [self.operation(day, append) for append in range(self.shape.appends)]
        else:
            counts = np.array([self.shape.compacted])
            partitions = np.arange(self.shape.compacted)
            uuids = [self.operation(day, self.shape.appends)]
        names = np.frombuffer("".join(uuids).encode(), np.uint8).reshape(-1, 36)
        return encoding.paths(
            location=self.location,
            day=day,
            partitions=partitions,
            tasks=100_000 + np.arange(len(partitions)) % 800_000,
            operations=np.repeat(names, counts, axis=0),
        )

    def operation(self, day: int, append: int) -> str:
        return str(uuid.UUID(bytes=self.rng(day, 5, append).bytes(16), version=4))

    def heads(self, kind: int, day: int, commits: Sequence[Commit], first_commit: int) -> Bytes:
        """The heads of the day's files as existing entries."""

        def made() -> Bytes:
            if kind == _SMALL:
                added = [commits[first_commit + append] for append in range(self.shape.appends)]
                counts = np.diff(self.offsets(day))
            else:
                added, counts = [commits[first_commit + self.shape.appends]], np.array([self.shape.compacted])
            ids = np.repeat(np.array([commit.snapshot_id for commit in added], np.int64), counts)
            sequences = np.repeat(np.array([commit.sequence_number for commit in added], np.int64), counts)
            return encoding.committed_heads(ids, sequences)

        return self._kept(("heads", kind, day), made)

    def _kept(self, key: tuple[str, int, int], make: Any) -> Bytes:
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = make()
            self._cached += found.nbytes
            while self._cached > _CACHED_BYTES and len(self._cache) > 1:
                _, dropped = self._cache.popitem(last=False)
                self._cached -= dropped.nbytes
        else:
            self._cache.move_to_end(key)
        return found


class History:
    """A table's commits and manifests, as numbers; nothing of it is written yet."""

    def __init__(self, shape: Shape, location: str) -> None:
        self.shape = shape
        self.location = location
        self.files = Files(shape, location)
        self.commits: list[Commit] = []
        self.manifests: list[Manifest] = []
        self._live: list[Manifest] = []
        self._totals = [0, 0, 0]  # files, records, bytes
        self._sums: dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        commits_a_day = self.commits_a_day
        rng = self.files.rng(0)
        count = (shape.days + shape.further_days) * commits_a_day
        self._ids = rng.integers(1 << 62, (1 << 63) - 1, count, dtype=np.int64)
        for day in range(shape.days + shape.further_days):
            self._day(day)

    @property
    def commits_a_day(self) -> int:
        return self.shape.appends + (1 if self.shape.compacted else 0)

    def _day(self, day: int) -> None:
        # Sums of the day before serve merging no more than these two; older ones only where nothing is compacted.
        offsets = self.files.offsets(day)
        for append in range(self.shape.appends):
            commit = self._begin(day, append)
            low, high = int(offsets[append]), int(offsets[append + 1])
            new = self._manifest(commit, 0, [Segment(_SMALL, day, low, high, ADDED)])
            records, size = self._sum(new.segments[0])
            before = [manifest for manifest in self._live if manifest.live]
            self._finish(commit, self._merged(commit, new, [new, *before]), "append", (high - low, records, size))
        if self.shape.compacted:
            self._compact(day)
            for key in [key for key in self._sums if key[0] == _SMALL and key[1] < day]:
                del self._sums[key]

    def _begin(self, day: int, position: int) -> Commit:
        index = len(self.commits)
        step = DAY_MS // (self.commits_a_day + 1)
        commit = Commit(
            index=index,
            day=day,
            snapshot_id=int(self._ids[index]),
            sequence_number=_FIRST_SEQUENCE + index,
            timestamp_ms=encoding.day_number(day) * DAY_MS + (position + 1) * step,
            uuid=str(uuid.UUID(bytes=self.files.rng(day, 6, position).bytes(16), version=4)),
        )
        self.commits.append(commit)
        return commit

    def _compact(self, day: int) -> None:
        commit = self._begin(day, self.shape.appends)
        new = self._manifest(commit, 0, [Segment(_LARGE, day, 0, self.shape.compacted, ADDED)])
        kept: list[Manifest] = []
        names = 1
        for manifest in self._live:
            if not manifest.live:
                continue
            if not any(s.kind == _SMALL and s.day == day and s.status != DELETED for s in manifest.segments):
                kept.append(manifest)
                continue
            segments = [
                Segment(s.kind, s.day, s.low, s.high, DELETED if (s.kind, s.day) == (_SMALL, day) else EXISTING)
                for s in manifest.segments
                if s.status != DELETED
            ]
            kept.append(self._manifest(commit, names, _coalesced(segments)))
            names += 1
        removed = self._sum(Segment(_SMALL, day, 0, int(self.files.offsets(day)[-1]), DELETED))
        added = self._sum(new.segments[0])
        files = int(self.files.offsets(day)[-1])
        self._finish(
            commit,
            self._merged(commit, new, [new, *kept], names),
            "replace",
            (self.shape.compacted, *added),
            (files, *removed),
        )

    def _sum(self, segment: Segment) -> tuple[int, int]:
        """Records and bytes of the segment's files."""
        key = (segment.kind, segment.day)
        if key not in self._sums:
            zero = np.zeros(1, np.int64)
            self._sums[key] = tuple(  # type: ignore[assignment]
                np.concatenate([zero, np.cumsum(values)]) for values in self.files.sizes(*key)
            )
        records, sizes = self._sums[key]
        low, high = segment.low, segment.high
        return int(records[high] - records[low]), int(sizes[high] - sizes[low])

    def _manifest(self, commit: Commit, name: int, segments: list[Segment]) -> Manifest:
        files, rows = [0, 0, 0], [0, 0, 0]
        sequence = commit.sequence_number
        order = {ADDED: 0, EXISTING: 1, DELETED: 2}
        for segment in segments:
            slot = order[segment.status]
            files[slot] += segment.high - segment.low
            rows[slot] += self._sum(segment)[0]
            if segment.status == EXISTING:
                sequence = min(sequence, self._added_by(segment))
        days = [segment.day for segment in segments]
        manifest = Manifest(
            number=len(self.manifests),
            commit=commit.index,
            name=f"{commit.uuid}-m{name}.avro",
            segments=segments,
            files=tuple(files),  # type: ignore[arg-type]
            rows=tuple(rows),  # type: ignore[arg-type]
            min_sequence=sequence,
            days=(min(days), max(days)),
        )
        self.manifests.append(manifest)
        return manifest

    def _added_by(self, segment: Segment) -> int:
        """The sequence number of the commit that added the segment's first file."""
        position = self.shape.appends
        if segment.kind == _SMALL:
            position = int(np.searchsorted(self.files.offsets(segment.day), segment.low, side="right")) - 1
        return _FIRST_SEQUENCE + segment.day * self.commits_a_day + position

    def _merged(self, commit: Commit, first: Manifest, manifests: list[Manifest], names: int = 1) -> list[Manifest]:
        """Iceberg's ManifestMergeManager: bins of 8 MB packed from the end; the one with the new manifest is merged
        from 100 manifests on, every other one of two or more always."""
        if not self.shape.merge:
            return manifests
        bins: list[list[Manifest]] = []
        weight = 0
        for manifest in reversed(manifests):
            if not bins or weight + manifest.weight > 8 * 1024 * 1024:
                bins.append([])
                weight = 0
            bins[-1].append(manifest)
            weight += manifest.weight
        out: list[Manifest] = []
        replaced: set[int] = set()
        for packed in reversed(bins):
            packed.reverse()
            if len(packed) == 1 or (first in packed and len(packed) < 100):
                out += packed
                continue
            segments: list[Segment] = []
            for manifest in packed:
                own = manifest.commit == commit.index
                for s in manifest.segments:
                    if s.status == DELETED and not own:
                        continue
                    status = s.status if own else EXISTING
                    segments.append(Segment(s.kind, s.day, s.low, s.high, status))
            replaced |= {manifest.number for manifest in packed if manifest.commit == commit.index}
            out.append(self._manifest(commit, names, _coalesced(segments)))
            names += 1
        if replaced:
            # Manifests of this very commit that went into a merge are never committed, so never written.
            self._drop(replaced)
        return out

    def _drop(self, numbers: set[int]) -> None:
        kept = [manifest for manifest in self.manifests[min(numbers) :] if manifest.number not in numbers]
        del self.manifests[min(numbers) :]
        for manifest in kept:
            manifest.number = len(self.manifests)
            self.manifests.append(manifest)

    def _finish(
        self,
        commit: Commit,
        manifests: list[Manifest],
        operation: str,
        added: tuple[int, int, int],
        removed: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        own = sum(1 for manifest in manifests if manifest.commit == commit.index)
        replaced = len(self._live) + own - len(manifests)
        self._live = manifests
        self._totals = [total + plus - minus for total, plus, minus in zip(self._totals, added, removed, strict=True)]
        commit.manifests = np.array([manifest.number for manifest in manifests], np.int32)
        summary = {
            "operation": operation,
            "spark.app.id": f"application_{1_700_000_000_000 + commit.day}_{commit.index:04d}",
            "manifests-created": own,
            "manifests-kept": len(manifests) - own,
            "manifests-replaced": max(0, replaced),
            "added-data-files": added[0],
            **({"deleted-data-files": removed[0]} if removed[0] else {}),
            "added-records": added[1],
            **({"deleted-records": removed[1]} if removed[0] else {}),
            "added-files-size": added[2],
            **({"removed-files-size": removed[2]} if removed[0] else {}),
            "changed-partition-count": 1,
            "total-records": self._totals[1],
            "total-files-size": self._totals[2],
            "total-data-files": self._totals[0],
            "total-delete-files": 0,
            "total-position-deletes": 0,
            "total-equality-deletes": 0,
            "engine-version": "4.1.1",
            "app-id": f"application_{1_700_000_000_000 + commit.day}_{commit.index:04d}",
            "engine-name": "spark",
            "iceberg-version": "Apache Iceberg 1.12.0 (commit 212aa894e919ff9fdf89160da4aadcbe6858ac01)",
        }
        commit.summary = json.dumps({key: str(value) for key, value in summary.items()}, separators=(",", ":"))

    @cached_property
    def entries(self) -> int:
        return sum(sum(manifest.files) for manifest in self.manifests)


def _coalesced(segments: list[Segment]) -> list[Segment]:
    """Neighboring segments of one status as one. The order of entries in a manifest says nothing."""
    out: list[Segment] = []
    for segment in sorted(segments, key=lambda s: (s.status, s.kind, s.day, s.low)):
        last = out[-1] if out else None
        if last is not None and (last.status, last.kind, last.day, last.high) == (
            segment.status,
            segment.kind,
            segment.day,
            segment.low,
        ):
            last.high = segment.high
        else:
            out.append(Segment(segment.kind, segment.day, segment.low, segment.high, segment.status))
    return out


# --- writing --------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes the manifests and lists of a history; lives in the parent and, forked, in each worker."""

    def __init__(self, history: History, folder: Path) -> None:
        self.history = history
        self.folder = folder / "metadata"
        self.location = f"{history.location}/metadata"
        self.header = encoding.manifest_header()
        self.encoded: list[bytes] = []

    def manifests(self, numbers: Sequence[int]) -> list[tuple[int, int, int]]:
        """Write them; (number, length, bytes before deflation) of each."""
        return [self._manifest(self.history.manifests[number]) for number in numbers]

    def _manifest(self, manifest: Manifest) -> tuple[int, int, int]:
        history, commit = self.history, self.history.commits[manifest.commit]
        raw: list[bytes] = []
        lengths: list[NDArray[np.int64]] = []
        for s in manifest.segments if manifest.live or history.shape.deletions else ():
            body = history.files.body(s.kind, s.day)[s.low : s.high]
            rows = s.high - s.low
            if s.status == ADDED:
                head = encoding.added_head(commit.snapshot_id, rows)
            else:
                first = s.day * history.commits_a_day
                head = history.files.heads(s.kind, s.day, history.commits, first)[s.low : s.high]
                if s.status == DELETED:
                    head = encoding.deleted_heads(head, commit.snapshot_id)
            block = np.hstack([head, body])
            raw.append(block.tobytes())
            lengths.append(np.full(rows, block.shape[1], np.int64))
        joined = b"".join(raw)
        sync = encoding.sync_marker(manifest.name)
        ends = np.cumsum(np.concatenate([np.empty(0, np.int64), *lengths]))
        data = encoding.container(self.header, sync, joined, ends)
        (self.folder / manifest.name).write_bytes(data)
        return manifest.number, len(data), len(joined)

    def lists(self, indices: Sequence[int]) -> int:
        """Write the manifest lists of these commits; their bytes."""
        return sum(self._list(self.history.commits[index]) for index in indices)

    def _list(self, commit: Commit) -> int:
        entries = [self.encoded[number] for number in commit.manifests]
        parent = self.history.commits[commit.index - 1].snapshot_id if commit.index else None
        header = encoding.list_header(commit.snapshot_id, parent, commit.sequence_number)
        ends = np.cumsum(np.array([len(entry) for entry in entries], np.int64))
        data = encoding.container(header, encoding.sync_marker(commit.uuid), b"".join(entries), ends)
        (self.folder / list_name(commit)).write_bytes(data)
        return len(data)

    def encode(self, lengths: Sequence[int]) -> None:
        commits = self.history.commits
        self.encoded = [
            encoding.list_entry(
                path=f"{self.location}/{manifest.name}",
                length=length,
                sequence_number=commits[manifest.commit].sequence_number,
                min_sequence_number=manifest.min_sequence,
                snapshot_id=commits[manifest.commit].snapshot_id,
                files=manifest.files,
                rows=manifest.rows,
                first_day=manifest.days[0],
                last_day=manifest.days[1],
            )
            for manifest, length in zip(self.history.manifests, lengths, strict=True)
        ]


_writer: _Writer


def _write_manifests(numbers: Sequence[int]) -> list[tuple[int, int, int]]:
    return _writer.manifests(numbers)


def _write_lists(indices: Sequence[int]) -> int:
    return _writer.lists(indices)


def list_name(commit: Commit) -> str:
    return f"snap-{commit.snapshot_id}-1-{commit.uuid}.avro"


def generate(shape: Shape, work: Path, *, processes: int = 2, location: str | None = None) -> Table:
    """The table of `shape` under `work`, written if it is not there yet. `location` is where it will stand if it is
    moved before it is read."""
    folder = work.resolve() / shape.key
    done = folder / "bench.json"
    if done.exists():
        found = load(folder)
        if found.folder == str(folder) and location in (None, found.location):
            return found
    global _writer
    began = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "metadata").mkdir(parents=True)
    location = location or f"file://{folder}"
    history = History(shape, location)
    _writer = _Writer(history, folder)
    manifests = history.manifests
    by_day: dict[int, list[int]] = {}
    for manifest in manifests:
        by_day.setdefault(history.commits[manifest.commit].day, []).append(manifest.number)
    lengths, raw_bytes = [0] * len(manifests), 0
    for number, length, raw in over(_write_manifests, list(by_day.values()), processes):
        lengths[number] = length
        raw_bytes += raw
    _writer.encode(lengths)
    indices = range(len(history.commits))
    chunks = [indices[start : start + 200] for start in range(0, len(indices), 200)]
    list_bytes = sum(over(_write_lists, chunks, processes))
    stages = tuple(_stages(history, folder))
    table = Table(
        folder=str(folder),
        location=location,
        table_uuid=_uuid(history),
        shape=shape,
        stages=stages,
        data_files=sum(int(history.files.offsets(day)[-1]) + shape.compacted for day in range(shape.days)),
        manifests=len(manifests),
        manifest_bytes=sum(lengths),
        lists=len(history.commits),
        list_bytes=list_bytes,
        raw_manifest_bytes=raw_bytes,
        entries=history.entries,
        seconds=round(time.perf_counter() - began, 1),
    )
    done.write_text(json.dumps(asdict(table), indent=1))
    return table


def over(work: Any, items: Sequence[Any], processes: int) -> Iterator[Any]:
    """The results for all items from so many processes, in any order; those in a list one by one."""
    if processes == 1 or len(items) == 1:
        results: Iterable[Any] = map(work, items)
        yield from _flat(results)
        return
    with multiprocessing.get_context("fork").Pool(min(processes, len(items))) as pool:
        yield from _flat(pool.imap_unordered(work, items))


def _flat(results: Iterable[Any]) -> Iterator[Any]:
    for result in results:
        if isinstance(result, list):
            yield from result
        else:
            yield result


def load(folder: Path) -> Table:
    """The table that `generate` left under `folder`."""
    content = json.loads((folder / "bench.json").read_text())
    shape = content.pop("shape")
    if isinstance(shape["files"], list):
        shape["files"] = tuple(shape["files"])
    stages = tuple(Stage(**stage) for stage in content.pop("stages"))
    return Table(**content, shape=Shape(**shape), stages=stages)


def _uuid(history: History) -> str:
    return str(uuid.UUID(bytes=history.files.rng(9).bytes(16), version=4))


def _stages(history: History, folder: Path) -> Iterator[Stage]:
    shape, per_day = history.shape, history.commits_a_day
    tagged = _tagged(history)
    for number in range(shape.further_days + 1):
        # After the first plan's commit the window holds days - expire days, and each further day slides it by one.
        first_day = 0 if number == 0 else shape.expire + number - 1
        end_day = shape.days + number
        cutoff_day = shape.expire + number
        kept = [index for index in tagged if index < first_day * per_day]
        indices = [*kept, *range(first_day * per_day, end_day * per_day)]
        name = f"{100 + number * (per_day + 1):05d}-{uuid.UUID(bytes=history.files.rng(10, number).bytes(16))}"
        path = folder / "metadata" / f"{name}.metadata.json"
        path.write_text(metadata_json(history, indices, log_from=first_day * per_day, tags=tagged))
        yield Stage(
            metadata_location=f"{history.location}/metadata/{path.name}",
            cutoff_ms=encoding.day_number(cutoff_day) * DAY_MS,
            now_ms=encoding.day_number(end_day) * DAY_MS,
            snapshots=len(indices),
            expired=sum(1 for index in range(first_day * per_day, cutoff_day * per_day) if index not in set(tagged)),
        )


def _tagged(history: History) -> list[int]:
    """The commits that tags name: evenly spread over the history that the first plan sees."""
    count = history.shape.tags
    span = history.shape.days * history.commits_a_day
    return [span * (2 * number + 1) // (2 * count) for number in range(count)]


def metadata_json(history: History, indices: Sequence[int], *, log_from: int, tags: Sequence[int]) -> str:
    """The text of a metadata file with the snapshots of these commits, oldest first."""
    commits = history.commits
    last = commits[indices[-1]]
    snapshots = []
    for index in indices:
        commit = commits[index]
        parent = f'"parent-snapshot-id":{commits[index - 1].snapshot_id},' if index else ""
        snapshots.append(
            f'{{"sequence-number":{commit.sequence_number},"snapshot-id":{commit.snapshot_id},{parent}'
            f'"timestamp-ms":{commit.timestamp_ms},"summary":{commit.summary},'
            f'"manifest-list":"{history.location}/metadata/{list_name(commit)}","schema-id":0}}'
        )
    log = [
        f'{{"timestamp-ms":{commits[i].timestamp_ms},"snapshot-id":{commits[i].snapshot_id}}}'
        for i in indices
        if i >= log_from
    ]
    previous = [
        {
            "timestamp-ms": commits[i].timestamp_ms,
            "metadata-file": f"{history.location}/metadata/{i:05d}-{commits[i].uuid}.metadata.json",
        }
        for i in indices[-101:-1]
    ]
    refs: dict[str, object] = {"main": {"snapshot-id": last.snapshot_id, "type": "branch"}}
    refs |= {f"tag-{n:02d}": {"snapshot-id": commits[i].snapshot_id, "type": "tag"} for n, i in enumerate(tags)}
    merge = {} if history.shape.merge else {"commit.manifest-merge.enabled": "false"}
    head = {
        "format-version": 2,
        "table-uuid": _uuid(history),
        "location": history.location,
        "last-sequence-number": last.sequence_number,
        "last-updated-ms": last.timestamp_ms,
        "last-column-id": 8,
        "current-schema-id": 0,
        "schemas": [encoding.SCHEMA],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": encoding.SPEC_FIELDS}],
        "last-partition-id": 1000,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"owner": "bench", "write.parquet.compression-codec": "zstd", **merge},
        "current-snapshot-id": last.snapshot_id,
        "refs": refs,
    }
    text = json.dumps(head, separators=(",", ":"))[:-1]
    return (
        f'{text},"snapshots":[{",".join(snapshots)}],"statistics":[],"partition-statistics":[],'
        f'"snapshot-log":[{",".join(log)}],"metadata-log":{json.dumps(previous, separators=(",", ":"))}}}'
    )
