"""Random tables of metadata alone: whole histories of small manifest lists and manifests, real files in a folder.

A table is a list of bytestrings, one to an operation; an operation takes its decisions from its own bytes, and plain
ones when they run out. So hypothesis draws little, and shrinks to few operations without oddities.

The model knows each physical file as one `File`, however its paths are spelt: no normalizer is asked which are one.
"""

from __future__ import annotations

import itertools
import json
import os
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from hypothesis import strategies as st

from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.metadata.types import FOREVER_MS, Ref, TableMetadata
from artemis_lifecycle.storage.location import DEFAULT_RULES, LocationRules
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle.storage.types import Children, StoredFile
from artemis_lifecycle_tests.metadata.metadata_json import metadata_node, snapshot_node
from artemis_lifecycle_tests.reachability.avro_by_hand import CHUNKS, CODECS
from artemis_lifecycle_tests.reachability.writers import (
    ADDED,
    DATA,
    DELETED,
    DELETES,
    EXISTING,
    EXTRAS,
    ORDERS,
    SPECS,
    Entry,
    Listed,
    Writer,
    manifest_file,
    manifest_list_file,
)
from artemis_lifecycle_tests.retention.histories import MINUTE, TableModel

STRICT_RULES = LocationRules(equal_schemes={})
"""Under these s3://b/x and s3a://b/x are two files."""
NAMENODE_RULES = LocationRules(equal_authorities={"nn1:8020,nn2:8020": "nameservice"})
RULES = (DEFAULT_RULES, NAMENODE_RULES, STRICT_RULES)

MAX_SNAPSHOTS = 12


class Tape:
    """Decisions, read from bytes: each call takes one. When they run out, every answer is 0: the plainest."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, count: int) -> int:
        if self._at >= len(self._data) or count < 2:
            return 0
        self._at += 1
        return self._data[self._at - 1] % count

    def once_in(self, count: int) -> bool:
        return self.below(count) == count - 1

    def of(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]


# --- stores -----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here, as far as the code under test can tell."""


class FolderStores(Stores):
    """The local store, with buckets as folders below `buckets`. `reads` are the paths that were opened or read whole.

    `dies_at`: so many writes from now on the process is killed, before the write or with half of it done.
    """

    def __init__(self, buckets: Path | str) -> None:
        super().__init__()
        self.buckets = str(buckets)
        self.reads: list[str] = []
        self.dies_at: int | None = None
        self.leaves_half = False

    def on_disk(self, path: str) -> str:
        scheme, found, rest = path.partition("://")
        return f"{self.buckets}/{rest}" if found and scheme.lower() in ("s3", "s3a", "s3n") else path

    def read(self, path: str) -> bytes:
        self.reads.append(path)
        return super().read(self.on_disk(path))

    def open(self, path: str) -> BinaryIO:
        self.reads.append(path)
        return super().open(self.on_disk(path))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return super().read_range(self.on_disk(path), offset, length)

    def head(self, path: str) -> StoredFile | None:
        return super().head(self.on_disk(path))

    def children(self, prefix: str, most: int | None = None) -> Children:
        return super().children(self.on_disk(prefix), most)

    def write(self, path: str, data: bytes, *, overwrite: bool = False, storage_class: str | None = None) -> StoredFile:
        if self.dies_at is not None:
            self.dies_at -= 1
            if self.dies_at < 0:
                self.dies_at = None
                if self.leaves_half:
                    super().write(path, data[: len(data) // 2], overwrite=overwrite)
                raise Killed(path)
        return super().write(self.on_disk(path), data, overwrite=overwrite, storage_class=storage_class)


# --- the model --------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class File:
    """One physical file. `spellings` are prefixes, all of one folder; with `name` each makes a path of it."""

    number: int
    kind: str
    size: int
    spellings: tuple[str, ...]
    name: str
    content: int = 0
    format: str = "PARQUET"
    referenced: str | None = None
    real: str | None = None
    """Where it lies on the disk; None for files that nothing here reads."""

    def __repr__(self) -> str:
        return f"{self.kind} {self.spellings[0]}{self.name}"

    def path(self, tape: Tape | None = None) -> str:
        if tape is None or not tape.once_in(2):
            return self.spellings[0] + self.name
        prefix: str = tape.of(self.spellings)
        odd = tape.below(8)
        if odd == 7 and prefix.lower().startswith(("file:", "/")):
            # Hadoop resolves these names in local paths, and only there.
            return f"{prefix}/./{self.name}" if tape.once_in(2) else f"{prefix}/gone/..{self.name}"
        return prefix + (self.name.replace("/", "//", 1) if odd > 4 else self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    file: File
    content: int
    spec: int
    entries: tuple[tuple[Entry, File], ...]
    version: int
    sequence_number: int
    snapshot_id: int

    @property
    def live(self) -> list[tuple[Entry, File]]:
        return [pair for pair in self.entries if pair[0].status != DELETED]

    @property
    def counts(self) -> tuple[int, int, int]:
        statuses = [entry.status for entry, _ in self.entries]
        return (statuses.count(EXISTING), statuses.count(ADDED), statuses.count(DELETED))


@dataclass(eq=False, slots=True)
class SnapshotFiles:
    """What a snapshot names: its list (None: manifests inline, as old format 1 has it) and its manifests."""

    list_file: File | None
    list_path: str | None
    manifests: list[tuple[Manifest, str]]
    version: int
    sequence_number: int
    totals: dict[str, str]
    schema_id: int
    counts_recorded: bool


@dataclass(frozen=True, slots=True)
class Statistics:
    snapshot_id: int
    file: File
    path: str
    kind: str


# Names that only look alike, and names that trip up whoever decodes, folds, trims or splits.
_LOOKALIKES = (
    "{n}.parquet",
    "{n}.PARQUET",
    "{n}%20a.parquet",
    "{n} a.parquet",
    "{n}+a.parquet",
    "é{n}.parquet",
    unicodedata.normalize("NFD", "é{n}.parquet"),
    "{n}.parquet ",
    "ключ=значение/{n}.orc",
    "day=2024-01-01 00%3A00/{n}.parquet",
    "\U0001f6f0\ufe0f{n}\u200d.avro",
    "{n}\t\n'\"\\;,=&{{}}.parquet",
    "..{n}..parquet",
    "{n}.parquet.crc",
    "{n}:a.parquet",
    "long" * 60 + "{n}.parquet",
    "{n}#frag?version=2.parquet",
    "/{n}/deep/er/x.parquet",
)
OPERATIONS = (
    *["append"] * 6,
    *["delete"] * 3,
    *["overwrite", "rewrite", "rewrite", "row_delta", "row_delta", "row_delta", "compact", "readd", "twice"],
    *["replace", "stage", "cherry_pick", "rollback", "rollback", "branch", "branch", "tag", "append_branch"],
    *["append_branch", "forward", "drop_ref", "expire", "expire", "upgrade", "upgrade", "evolve_spec"],
    *["evolve_schema", "writer", "writer", "statistics", "statistics", "statistics", "data_path", "properties"],
    *["empty", "vectors", "vectors", "reorder"],
)


_Change = Callable[[int, list[tuple["Manifest", str]]], list[tuple["Manifest", str]]]
"""From a snapshot's id and the manifests of its base to its own manifests."""


@dataclass
class MetadataTable(TableModel):
    """A table under a folder, which must exist. `opening` decides what it starts as."""

    folder: str = ""
    opening: bytes = b""
    rules: LocationRules = DEFAULT_RULES
    table_uuid: str = ""
    files: list[File] = field(default_factory=list)
    content_files: list[File] = field(default_factory=list)
    held: dict[int, SnapshotFiles] = field(default_factory=dict)
    every_snapshot: list[SnapshotFiles] = field(default_factory=list)
    """Of all times; `held` are those of the snapshots that are there."""
    statistics: list[Statistics] = field(default_factory=list)
    sequence_number: int = 0
    metadata_written: int = 0

    def __post_init__(self) -> None:
        tape = Tape(self.opening)
        self.version = (2, 1, 3)[tape.below(3)]
        self.first_version = self.version
        self.remote = tape.once_in(3)
        self.writer = self._some_writer(tape)
        self.inline = tape.once_in(2) and self.version == 1
        self.odd_folder = ("metadata", "méta data%20")[tape.below(2)]
        self.object_layout = tape.once_in(3)
        self.data_root = tape.below(6) if tape.once_in(2) else 0
        self.spec = tape.below(SPECS)
        self.schema_id = 0
        self.write_refs = not tape.once_in(4)
        self.table_uuid = self.table_uuid or str(uuid.UUID(bytes=(self.opening + b"\x01" * 16)[:16], version=4))
        strict = self.rules is STRICT_RULES
        if self.remote:
            schemes = ("s3", "S3") if strict else ("s3", "s3a", "s3n", "S3a")
            self.home = (*(f"{scheme}://bucket/wh/t" for scheme in schemes), f"{schemes[0]}://bucket//wh///t")
            self.disk_home = f"{self.folder}/bucket/wh/t"
        else:
            where = f"{self.folder}/wh/t"
            self.home = (f"file:{where}", where, f"file://{where}", f"FILE:{where}", f"file:///{where}", f"/{where}")
            self.disk_home = where
        namenodes = ("nn1:8020", "nn2:8020", "nameservice") if self.rules is NAMENODE_RULES else ("nn1:8020",)
        self.roots: tuple[tuple[str, ...], ...] = (
            tuple(f"{home}/data" for home in self.home),
            # Custom write.data.path. Under strict rules the scheme alone tells two folders apart.
            ("s3://Other-bucket/d",) if strict else ("s3://Other-bucket/d", "s3a://Other-bucket/d"),
            ("s3a://Other-bucket/d",) if strict else ("s3n://other-bucket/d/e", "s3://other-bucket//d//e"),
            tuple(f"hdfs://{name}/d" for name in namenodes),
            ("abfss://c@account.dfs.core.windows.net/d", "ABFSS://c@account.dfs.core.windows.net/d"),
            ("s3://other-bucket/d",),
        )
        os.makedirs(f"{self.disk_home}/{self.odd_folder}")
        self.stores = FolderStores(self.folder)
        self.encrypted: str | None = None
        self.may_reorder = True

    def _some_writer(self, tape: Tape) -> Writer:
        return Writer(
            codec=tape.of(CODECS),
            block_records=(1_000, 1, 2)[tape.below(3)],
            empty_block=tape.once_in(5),
            chunks=tape.of(CHUNKS),
            ids=not tape.once_in(4),
            counts=not tape.once_in(4),
            null_first=not tape.once_in(5),
            lean=tape.once_in(3),
            order=tape.below(ORDERS),
            extras=tape.below(EXTRAS),
            upper_format=not tape.once_in(3),
            totals=not tape.once_in(3),
            names=tape.below(3),
        )

    # --- files --------------------------------------------------------------------------------------------------------

    def _new_file(self, kind: str, spellings: tuple[str, ...], name: str, size: int, **fields: Any) -> File:
        made = File(len(self.files), kind, size, spellings, name, **fields)
        self.files.append(made)
        return made

    def _metadata_file(self, kind: str, prefix: str, data: bytes) -> File:
        name = f"/{self.odd_folder}/{prefix}-{len(self.files)}.avro"
        made = self._new_file(kind, self.home, name, len(data), real=self.disk_home + name)
        _write(made.real, data)
        return made

    def _content_file(self, tape: Tape, kind: str = "data") -> File:
        number = len(self.content_files)
        look = tape.below(2 * len(_LOOKALIKES)) if tape.once_in(2) else 0
        # Files in turn share a stem, so that names which only look alike really meet.
        name = _LOOKALIKES[look % len(_LOOKALIKES)].format(n=number // 3)
        if self.object_layout:
            hashed = f"{number * 2_654_435_761 % 2**20:020b}"
            name = f"{hashed[:4]}/{hashed[4:8]}/{hashed[8:12]}/{hashed[12:]}/{name}"
        root = self.roots[self.data_root]
        taken = {(file.spellings[0], _single(file.name)) for file in self.content_files}
        unique = next(n for n in _names(f"/{name}") if (root[0], _single(n)) not in taken)
        content = {"data": 0, "equality_deletes": 2}.get(kind, 1)
        spelt = {"deletion_vectors": "puffin"}.get(kind, tape.of(("parquet", "avro", "orc")))
        made = self._new_file(kind, root, unique, 1_000 + 7 * number, content=content, format=spelt)
        self.content_files.append(made)
        return made

    def _entry(self, tape: Tape, file: File, snapshot_id: int, **fields: Any) -> tuple[Entry, File]:
        spelt = file.format.upper() if self.writer.upper_format else file.format
        path = file.path(tape)
        entry = Entry(
            ADDED, path, file.content, spelt, file.size, snapshot_id, self.sequence_number, file.number, **fields
        )
        return entry, file

    def _manifest(
        self, tape: Tape, snapshot_id: int, entries: Sequence[tuple[Entry, File]], content: int, spec: int | None = None
    ) -> tuple[Manifest, str]:
        spec = self.spec if spec is None else spec
        writer = replace(self.writer, key=b"key", lean=False) if self.encrypted == "file" else self.writer
        data = manifest_file(writer, self.version, [entry for entry, _ in entries], content, spec, self.schema_id)
        file = self._metadata_file("manifest", "m", data)
        manifest = Manifest(file, content, spec, tuple(entries), self.version, self.sequence_number, snapshot_id)
        return manifest, file.path(tape)

    # --- commits ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.sequence_number += self.version > 1

    def _base(self, tape: Tape, parent: int | None) -> list[tuple[Manifest, str]]:
        if parent is None:
            return []
        # Iceberg drops manifests of deleted entries alone with the next commit; other writers need not.
        drop = not tape.once_in(3)
        return [pair for pair in self.held[parent].manifests if not drop or pair[0].live]

    def _finish(
        self, tape: Tape, snapshot_id: int, manifests: list[tuple[Manifest, str]], *, inline: bool = False
    ) -> None:
        writer = self.writer
        list_file = list_path = None
        if not (inline or (self.inline and self.version == 1)):
            entries = [
                Listed(path, m.file.size, m.spec, m.content, m.sequence_number, m.snapshot_id, m.counts)
                for m, path in manifests
            ]
            if self.encrypted == "manifest":
                writer = replace(writer, key=b"key", lean=False)
            data = manifest_list_file(writer, self.version, entries, snapshot_id)
            list_file = self._metadata_file("manifest_list", f"snap-{snapshot_id}", data)
            list_path = list_file.path(tape)
        totals = {}
        if writer.totals:
            live = [len(manifest.live) for manifest, _ in manifests if manifest.content == DATA]
            deletes = [len(manifest.live) for manifest, _ in manifests if manifest.content == DELETES]
            totals = {"total-data-files": str(sum(live)), "total-delete-files": str(sum(deletes))}
        held = SnapshotFiles(
            list_file,
            list_path,
            manifests,
            self.version,
            self.sequence_number,
            totals,
            self.schema_id,
            self.version > 1 or writer.counts,
        )
        self.held[snapshot_id] = held
        self.every_snapshot.append(held)

    def _commit(
        self,
        tape: Tape,
        target: str | None,
        change: _Change,
        *,
        orphaned: bool = False,
    ) -> int:
        """A snapshot on branch `target` (None: staged, on top of the current one). `change` makes its manifests."""
        head = self.refs[target].snapshot_id if target in self.refs else self.current
        parent = None if orphaned else head
        base = self._base(tape, parent)
        self._start()
        snapshot_id = self._new(parent)
        self._finish(tape, snapshot_id, change(snapshot_id, base))
        if target == "main" or (target is not None and target not in self.refs):
            self.set_main(snapshot_id)
        elif target is not None:
            old = self.refs[target]
            self.refs[target] = Ref(
                target, snapshot_id, "branch", old.min_snapshots_to_keep, old.max_snapshot_age_ms, old.max_ref_age_ms
            )
        return snapshot_id

    def _added(self, tape: Tape, snapshot_id: int, kind: str = "data") -> list[tuple[Entry, File]]:
        return [self._entry(tape, self._content_file(tape, kind), snapshot_id) for _ in range(1 + tape.below(3))]

    def _appending(self, tape: Tape) -> _Change:
        def change(snapshot_id: int, base: list[tuple[Manifest, str]]) -> list[tuple[Manifest, str]]:
            added = self._added(tape, snapshot_id)
            if not tape.once_in(3):
                return [self._manifest(tape, snapshot_id, added, DATA), *base]
            # A merge append: what it merges becomes EXISTING, and deleted entries of earlier snapshots go.
            merged = [pair for pair in base if pair[0].content == DATA and pair[0].spec == self.spec]
            entries = added + [existing(pair) for manifest, _ in merged for pair in manifest.live]
            left = [pair for pair in base if pair not in merged]
            return [self._manifest(tape, snapshot_id, entries, DATA), *left]

        return change

    def _deleting(self, tape: Tape, count: int, replacement: int | None = None) -> _Change:
        """Deletes up to `count` entries of any content by writing their manifests anew; `replacement` files come."""

        def change(snapshot_id: int, base: list[tuple[Manifest, str]]) -> list[tuple[Manifest, str]]:
            live = [(m, number) for m, _ in base for number, (e, _) in enumerate(m.entries) if e.status != DELETED]
            doomed = {live[(tape.below(64) + step) % len(live)] for step in range(count)} if live else set()
            out = []
            for manifest, path in base:
                gone = {number for m, number in doomed if m is manifest}
                if not gone:
                    out.append((manifest, path))
                    continue
                entries = [
                    deleted(pair, snapshot_id) if number in gone else existing(pair)
                    for number, pair in enumerate(manifest.entries)
                    if pair[0].status != DELETED
                ]
                out.append(self._manifest(tape, snapshot_id, entries, manifest.content, manifest.spec))
            if replacement:
                added = [self._entry(tape, self._content_file(tape), snapshot_id) for _ in range(replacement)]
                out.insert(0, self._manifest(tape, snapshot_id, added, DATA))
            return out

        return change

    def _rewriting(self, tape: Tape) -> _Change:
        def change(snapshot_id: int, base: list[tuple[Manifest, str]]) -> list[tuple[Manifest, str]]:
            out = []
            for key in sorted({(manifest.content, manifest.spec) for manifest, _ in base}):
                live = [existing(p) for m, _ in base if (m.content, m.spec) == key for p in m.live]
                groups = 1 + tape.below(3)
                out += [
                    self._manifest(tape, snapshot_id, live[start::groups], *key)
                    for start in range(groups)
                    if live[start::groups]
                ]
            return out

        return change

    def _row_delta(self, tape: Tape) -> _Change:
        def change(snapshot_id: int, base: list[tuple[Manifest, str]]) -> list[tuple[Manifest, str]]:
            kind = tape.of(("position_deletes", "equality_deletes"))
            if self.version < 3 or tape.once_in(4):
                return [*base, self._manifest(tape, snapshot_id, self._added(tape, snapshot_id, kind), DELETES)]
            data = [e.path for m, _ in base for e, _ in m.live if e.content == 0] or ["s3://elsewhere/d.parquet"]
            others = [file for file in self.content_files if file.format == "puffin"]
            puffin = tape.of(others) if others and tape.once_in(3) else self._content_file(tape, "deletion_vectors")
            entries = [
                self._entry(tape, puffin, snapshot_id, offset=4 + 40 * number, referenced=tape.of(data))
                for number in range(1 + tape.below(4))
            ]
            cuts = len(entries) if tape.once_in(2) else tape.below(len(entries))
            parts = [part for part in (entries[:cuts], entries[cuts:]) if part]
            return [*base, *(self._manifest(tape, snapshot_id, part, DELETES) for part in parts)]

        return change

    def _of_files(self, tape: Tape, files: list[File]) -> _Change:
        """Adds files that have been there before, perhaps spelt otherwise, perhaps still live."""

        def change(snapshot_id: int, base: list[tuple[Manifest, str]]) -> list[tuple[Manifest, str]]:
            out = list(base)
            for content in (DATA, DELETES):
                again = [file for file in files if min(file.content, 1) == content]
                entries = [
                    self._entry(tape, file, snapshot_id, offset=4 if file.format == "puffin" else None)
                    for file in again
                ]
                if entries and tape.once_in(2):
                    out.append(self._manifest(tape, snapshot_id, entries * 2, content))
                elif entries:
                    out.append(self._manifest(tape, snapshot_id, entries, content))
            return out

        return change

    # --- operations ---------------------------------------------------------------------------------------------------

    def step(self, decisions: bytes) -> bool:
        """One operation. Whether the table's metadata is another than before, and must be written."""
        tape = Tape(decisions)
        operation = tape.of(OPERATIONS)
        self.clock += (tape.below(4) or 1) * MINUTE
        branches = sorted(name for name, ref in self.refs.items() if ref.is_branch and name != "main")
        target: str | None = "main"
        if operation not in ("stage", "cherry_pick") and branches and tape.once_in(4):
            target = tape.of(branches)
        ids = self.ids()
        committing: dict[str, Callable[[], _Change]] = {
            "append": lambda: self._appending(tape),
            "delete": lambda: self._deleting(tape, 1 + tape.below(2)),
            "overwrite": lambda: self._deleting(tape, 1 + tape.below(3), 1),
            "compact": lambda: self._deleting(tape, 6, 1),
            "rewrite": lambda: self._rewriting(tape),
            "row_delta": lambda: self._row_delta(tape) if self.version > 1 else self._appending(tape),
            "vectors": lambda: self._row_delta(tape) if self.version > 2 else self._deleting(tape, 1),
            "readd": lambda: self._of_files(tape, self._some_files(tape)),
            "twice": lambda: self._of_files(tape, self._some_files(tape) * 2),
            "empty": lambda: lambda _, base: list(base),
        }
        if operation in committing:
            if len(self.snapshots) < MAX_SNAPSHOTS:
                self._commit(tape, target, committing[operation]())
                return True
            operation = "expire"
        if operation in ("replace", "stage", "append_branch", "cherry_pick") and len(self.snapshots) >= MAX_SNAPSHOTS:
            operation = "expire"
        if operation == "replace":
            self._commit(tape, "main", self._appending(tape), orphaned=True)
        elif operation == "stage":
            self._commit(tape, None, self._appending(tape))
        elif operation == "append_branch" and branches:
            self._commit(tape, tape.of(branches), self._appending(tape))
        elif operation == "cherry_pick":
            self._cherry_pick(tape)
        elif operation == "rollback" and ids:
            self.set_main(tape.of(ids))
        elif operation in ("branch", "tag") and ids:
            self._set_ref(tape, operation, tape.of(ids))
        elif operation == "forward" and branches:
            self.set_main(self.refs[tape.of(branches)].snapshot_id)
        elif operation == "drop_ref" and len(self.refs) > 1:
            self.refs.pop(tape.of(sorted(name for name in self.refs if name != "main")), None)
        elif operation == "expire" and ids:
            self.expire([i for i in ids if not tape.once_in(2)], dangling=tape.once_in(2))
        elif operation == "reorder" and self.may_reorder:
            # Writers that keep snapshots by id need not write them in the order of their commits.
            turn = tape.below(len(ids) or 1)
            self.snapshots = self.snapshots[turn:] + self.snapshots[:turn]
        elif operation == "upgrade":
            self.version = min(self.version + 1, 3)
        elif operation == "evolve_spec":
            self.spec = (self.spec + 1) % SPECS
        elif operation == "evolve_schema":
            self.schema_id += 1
        elif operation == "writer":
            self.writer = self._some_writer(tape)
        elif operation == "statistics" and ids:
            for _ in range(1 + tape.below(3)):
                self._add_statistics(tape, tape.of(ids))
        elif operation == "data_path":
            self.data_root = (self.data_root + 1 + tape.below(len(self.roots) - 1)) % len(self.roots)
            self.object_layout = tape.once_in(2)
        elif operation == "properties":
            self._set_properties(tape)
        return True

    def _some_files(self, tape: Tape) -> list[File]:
        choice = [file for file in self.content_files if self.version > 1 or file.content == 0]
        return [tape.of(choice) for _ in range(1 + tape.below(2))] if choice else []

    def _cherry_pick(self, tape: Tape) -> None:
        """Publish a staged snapshot: by moving main to it, or as a new one with its manifests, or with its files."""
        referenced = {ref.snapshot_id for ref in self.refs.values()} | {s.parent_id for s in self.snapshots}
        staged = [s for s in self.snapshots if s.snapshot_id not in referenced]
        if not staged:
            return
        picked = tape.of(staged)
        mine = self.held[picked.snapshot_id].manifests
        new = [pair for pair in mine if pair[0].snapshot_id == picked.snapshot_id]
        if tape.once_in(3):
            self.set_main(picked.snapshot_id)
        elif tape.once_in(2):
            self._commit(tape, "main", lambda _, base: [*new, *(pair for pair in base if pair[0] not in dict(new))])
        else:
            files = [file for manifest, _ in new for entry, file in manifest.entries if entry.status == ADDED]
            self._commit(tape, "main", self._of_files(tape, files))

    def _set_ref(self, tape: Tape, kind: str, snapshot_id: int) -> None:
        name = f"{kind}{tape.below(3)}"
        age = (None, FOREVER_MS, 3 * MINUTE, 10 * MINUTE)[tape.below(4)]
        count, old = None, None
        if kind == "branch":
            count, old = (None, 1, 2, 3)[tape.below(4)], (None, 2 * MINUTE, 8 * MINUTE)[tape.below(3)]
        self.refs[name] = Ref(name, snapshot_id, kind, count, old, max_ref_age_ms=age)  # type: ignore[arg-type]

    def _set_properties(self, tape: Tape) -> None:
        options = {
            "history.expire.max-snapshot-age-ms": str(tape.below(12) * MINUTE),
            "history.expire.min-snapshots-to-keep": str(1 + tape.below(4)),
            "history.expire.max-ref-age-ms": str(tape.below(20) * MINUTE),
        }
        self.properties = {key: value for key, value in options.items() if tape.once_in(2)}

    def _add_statistics(self, tape: Tape, snapshot_id: int) -> None:
        kind = tape.of(("statistics", "partition_statistics"))
        known = [each for each in self.statistics if each.kind == kind]
        puffins = [file for file in self.content_files if file.format == "puffin"]
        if known and tape.once_in(2):
            file = tape.of(known).file
        elif puffins and kind == "statistics" and not tape.once_in(3):
            # A Puffin file may hold statistics beside deletion vectors.
            file = tape.of(puffins)
        else:
            number = len(self.files)
            suffix = "puffin" if kind == "statistics" else "parquet"
            file = self._new_file(kind, self.home, f"/{self.odd_folder}/{number} stats%.{suffix}", 500 + number)
        if tape.once_in(6):
            # A careless writer leaves the entry of a snapshot that has gone.
            snapshot_id = 77
        self.statistics.append(Statistics(snapshot_id, file, file.path(tape), kind))

    def expire(self, gone: Iterable[int], *, dangling: bool = False) -> None:
        """As Iceberg's own expiration: of `gone`, what no ref names goes, with the metadata files that only it reached.

        `dangling` leaves the statistics entries of what went, as careless writers do.
        """
        heads = {ref.snapshot_id for ref in self.refs.values()}
        removed = set(gone) - heads
        self.remove(removed)
        if not dangling:
            self.statistics = [each for each in self.statistics if each.snapshot_id not in removed]
        before = set(self.metadata_files())
        for snapshot_id in removed:
            self.held.pop(snapshot_id, None)
        for file in before - set(self.metadata_files()):
            assert file.real is not None
            os.unlink(file.real)

    def metadata_files(self) -> Iterator[File]:
        """The lists and manifests of all snapshots, some more than once."""
        for held in self.held.values():
            if held.list_file is not None:
                yield held.list_file
            yield from (manifest.file for manifest, _ in held.manifests)

    # --- the metadata file --------------------------------------------------------------------------------------------

    def node(self) -> dict[str, Any]:
        """The metadata file's JSON."""
        node = metadata_node(
            [self._snapshot_node(each.snapshot_id, each.parent_id, each.timestamp_ms) for each in self.snapshots],
            current=self.current,
            refs=TableModel.metadata(self)["refs"],
            log=[(entry.timestamp_ms, entry.snapshot_id) for entry in self.log],
            properties=self.properties,
            format_version=self.version,
            last_updated_ms=self.clock,
            location=self.home[0],
            table_uuid=self.table_uuid,
            statistics=[_statistics_node(each) for each in self.statistics if each.kind == "statistics"],
            partition_statistics=[_statistics_node(each) for each in self.statistics if each.kind != "statistics"],
        )
        if self.version > 1:
            node["last-sequence-number"] = self.sequence_number
        node["schemas"] = [{**node["schemas"][0], "schema-id": number} for number in range(self.schema_id + 1)]
        node["current-schema-id"] = self.schema_id
        node["partition-specs"] = [{"spec-id": number, "fields": []} for number in range(SPECS)]
        if not self.write_refs and set(node["refs"]) <= {"main"}:
            main = node["refs"].get("main", {})
            if set(main) <= {"snapshot-id", "type"}:
                del node["refs"]
        return node

    def _snapshot_node(self, snapshot_id: int, parent: int | None, timestamp_ms: int) -> dict[str, Any]:
        held = self.held[snapshot_id]
        inline = held.list_path is None
        return snapshot_node(
            snapshot_id,
            parent,
            timestamp_ms,
            sequence_number=held.sequence_number if held.version > 1 else None,
            summary={"operation": "append", **held.totals},
            manifest_list=held.list_path,
            manifests=[path for _, path in held.manifests] if inline else None,
            schema_id=held.schema_id,
            key_id="key-1" if self.encrypted == "list" else None,
        )

    def write_metadata(self) -> str:
        """Write the next metadata file. Its path."""
        name = f"{self.odd_folder}/{self.metadata_written:05d}.metadata.json"
        self.metadata_written += 1
        _write(f"{self.disk_home}/{name}", json.dumps(self.node()).encode())
        return f"{self.home[0]}/{name}"

    def read_metadata(self) -> TableMetadata:
        """Write the next metadata file, and read it as the project does."""
        return read_table_metadata(self.stores, self.write_metadata())


def existing(pair: tuple[Entry, File]) -> tuple[Entry, File]:
    return pair[0]._replace(status=EXISTING), pair[1]


def deleted(pair: tuple[Entry, File], snapshot_id: int) -> tuple[Entry, File]:
    return pair[0]._replace(status=DELETED, snapshot_id=snapshot_id), pair[1]


def _names(name: str) -> Iterator[str]:
    yield name
    stem, dot, suffix = name.rpartition("/")
    yield from (f"{stem}{dot}{number}{suffix}" for number in itertools.count())


def _single(name: str) -> str:
    while "//" in name:
        name = name.replace("//", "/")
    return name


def _statistics_node(each: Statistics) -> dict[str, Any]:
    node = {
        "snapshot-id": each.snapshot_id,
        "statistics-path": each.path,
        "file-size-in-bytes": each.file.size,
        "file-footer-size-in-bytes": 10,
        "blob-metadata": [],
    }
    return node if each.kind == "statistics" else {k: node[k] for k in list(node)[:3]}


def _write(path: str | None, data: bytes) -> None:
    assert path is not None
    with open(path, "xb") as file:
        file.write(data)


def delete_folder(folder: str) -> None:
    """`shutil.rmtree`, without the care that a test's own folder does not need."""
    for root, folders, names in os.walk(folder, topdown=False):
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(f"{root}/{name}")
        for name in folders:
            os.rmdir(f"{root}/{name}")
    os.rmdir(folder)


# --- strategies -------------------------------------------------------------------------------------------------------

STEPS = st.lists(st.binary(min_size=64, max_size=64), min_size=4, max_size=16)
OPENINGS = st.binary(min_size=32, max_size=32)


def built(opening: bytes, steps: Iterable[bytes], folder: str, rules: LocationRules = DEFAULT_RULES) -> MetadataTable:
    """The table after all its steps."""
    table = MetadataTable(1_700_000_000_000, folder=folder, opening=opening, rules=rules)
    for decisions in steps:
        table.step(decisions)
    return table


def locations_differ(files: Iterable[File], locate: Callable[[str], str]) -> bool:
    """Whether `locate` tells all these files apart."""
    found = [locate(file.path()) for file in files]
    return len(set(found)) == len(found)
