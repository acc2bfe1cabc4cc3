"""Which of very many listed files need a verdict of their own. Belongs here: leaving out, by hashes of locations, what
the table reaches, and finding the known files that can matter to the rest. Does not belong: the verdicts.

Nearly every listed file is reachable, and the manifest index holds the hashes of all that is. A listing is therefore
read twice by this process, part by part: for the hashes of its paths (eight bytes for each file), and for the few rows
that the index does not have. No path of a reachable file is compared as text, or travels to an executor.

A file that is not reachable may have a twin, a known file with the same path under another scheme or authority. Twins
are looked up by hash as well: what follows the authority is put behind each scheme and authority that the known files
have. Two locations of one hash count as one: that only keeps a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artemis_lifecycle.deletion.last_look import hash_subjects
from artemis_lifecycle.orphans.verdicts import split_location, split_paths
from artemis_lifecycle.reachability.index import IndexView
from artemis_lifecycle.reachability.index.files import DamagedIndex
from artemis_lifecycle.storage.frames import map_parts
from artemis_lifecycle.storage.location import LocationRules, normalise, split
from artemis_lifecycle.storage.location_hash import distinct, hash_column, text_buffers
from artemis_lifecycle.storage.stores import Stores

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

CANDIDATES_HERE = 500_000
"""Up to as many files get their verdicts in this process: about 300 MB."""

_HASHES_AT_ONCE = 8_000_000
_SPELLINGS = 64  # More ways of beginning a path than this are not looked for one by one.


def listed_hashes(folder: str, stores: Stores, rules: LocationRules) -> list[NDArray[np.uint64]]:
    """The location hashes of what each part of a sealed listing names, in order."""
    import numpy as np

    def hashed(_: int, batches: Iterator[pa.RecordBatch]) -> NDArray[np.uint64]:
        found = [hash_subjects(batch.column("path"), rules) for batch in batches]
        return np.concatenate(found) if found else np.empty(0, np.uint64)

    return list(map_parts(folder, stores, hashed, ["path"]))


def unreached(folder: str, stores: Stores, view: IndexView, parts: Sequence[NDArray[np.uint64]]) -> pa.Table | None:
    """The rows of the sealed listing in `folder` (its `listed_hashes`: `parts`) whose file `view` does not reach; None
    when they are very many."""
    import numpy as np
    import pyarrow as pa

    hashes = np.concatenate([np.empty(0, np.uint64), *parts])
    # By the slice, so that sorting them takes no more than this.
    slices = [hashes[start : start + _HASHES_AT_ONCE] for start in range(0, len(hashes), _HASHES_AT_ONCE)]
    open_rows = ~np.concatenate([np.empty(0, np.bool_), *(view.reaches(some) for some in slices)])
    if int(open_rows.sum()) > CANDIDATES_HERE:
        return None
    wanted = np.split(open_rows, np.cumsum([len(part) for part in parts])[:-1])

    def taken(number: int, batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        mask, start, kept = wanted[number], 0, []
        for batch in batches:
            rows = mask[start : start + batch.num_rows]
            start += batch.num_rows
            if rows.any():
                kept.append(batch.filter(pa.array(rows)))
        return kept

    numbers = [number for number, mask in enumerate(wanted) if mask.any()]
    names = ["path", "last_modified", "size_in_bytes"]
    batches = [batch for kept in map_parts(folder, stores, taken, names, numbers) for batch in kept]
    schema = pa.schema(
        [("path", pa.string()), ("last_modified", pa.timestamp("us", "UTC")), ("size_in_bytes", pa.int64())]
    )
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


@dataclass(frozen=True)
class Known:
    """Files that are known for one reason, as hashes: `has` says which location hashes are among them, `prefixes` are
    the schemes and authorities that their locations have."""

    reason: str
    has: Callable[[NDArray[np.uint64]], NDArray[np.bool_]]
    prefixes: frozenset[str]

    @classmethod
    def reached_by(cls, view: IndexView, reason: str) -> Known | None:
        """All that any snapshot reaches; None where paths begin in too many ways."""
        prefixes = _Prefixes(view.index.rules)
        ids = [snapshot.snapshot_id for snapshot in view.metadata.snapshots]
        above = view.reachable(ids, entries=False).column("location").to_pylist()
        prefixes.add_locations(above)
        try:
            _add_entries(view, prefixes)
        except DamagedIndex:
            view = view.index.rebuild(view.metadata, view.spark)
            _add_entries(view, prefixes)
        return None if prefixes.too_many else cls(reason, view.reaches, frozenset(prefixes.found))

    @classmethod
    def sealed_in(cls, folder: str, stores: Stores, reason: str, rules: LocationRules) -> Known | None:
        """The paths of a sealed frame; None where they begin in too many ways."""
        import numpy as np

        def read(_: int, batches: Iterator[pa.RecordBatch]) -> tuple[NDArray[np.uint64], _Prefixes]:
            prefixes, hashes = _Prefixes(rules), [np.empty(0, np.uint64)]
            for batch in batches:
                paths = batch.column("path")
                starts, data = text_buffers(paths)
                prefixes.add_paths(data, starts)
                hashes.append(hash_column(paths, rules))
            return np.concatenate(hashes), prefixes

        parts = list(map_parts(folder, stores, read, ["path"]))
        known = distinct(np.concatenate([np.empty(0, np.uint64), *(hashes for hashes, _ in parts)]))
        if any(prefixes.too_many for _, prefixes in parts):
            return None
        found = frozenset(prefix for _, prefixes in parts for prefix in prefixes.found)
        return cls(reason, lambda hashes: np.isin(hashes, known), found)

    def beside(self, keys: pa.Array, rules: LocationRules) -> Iterator[tuple[str, str]]:
        """(location, reason) of the known files whose location ends in one of `keys` behind its authority."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for prefix in sorted(self.prefixes):
            locations = pc.binary_join_element_wise(pa.scalar(prefix), keys, "")
            there = locations.filter(pa.array(self.has(hash_column(locations, rules))))
            yield from ((location, self.reason) for location in there.to_pylist())


def keys_of(files: pa.Table, rules: LocationRules) -> pa.Array:
    """What follows scheme and authority in the locations that `files` are about, each once, as Arrow text."""
    import pyarrow as pa

    _, keys = split_paths(files.column("path").combine_chunks(), rules)
    return pa.array(list(dict.fromkeys(keys)), pa.string())


def _add_entries(view: IndexView, prefixes: _Prefixes) -> None:
    import numpy as np

    everything = view.chosen([snapshot.snapshot_id for snapshot in view.metadata.snapshots])
    manifests = np.flatnonzero(view.state.listed_by(everything))
    for _, rows in view.index.rows_of(view.state, manifests):
        prefixes.add_paths(rows.data, rows.offsets)
        if prefixes.too_many:
            return


class _Prefixes:
    """Collects the schemes and authorities (normal form) of many paths, comparing how these begin as they are spelled.

    A path without a scheme begins with its slash; one with `//` names its authority up to the next slash. Of `file:/x`
    the byte after the slash tells that it names none.
    """

    def __init__(self, rules: LocationRules) -> None:
        self.rules = rules
        self.found: set[str] = set()
        self._spelled: list[bytes] = []
        self._steps = 0

    @property
    def too_many(self) -> bool:
        return self._steps > _SPELLINGS

    def add_locations(self, locations: Iterable[str]) -> None:
        self.found.update(split_location(location)[0] for location in locations)

    def add_paths(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        """Paths are the bytes of `data` between `offsets`."""
        import numpy as np

        left = np.arange(len(offsets) - 1, dtype=np.int64)
        for spelled in self._spelled:
            left = _not_beginning(data, offsets, left, spelled)
        while len(left) and not self.too_many:
            self._steps += 1
            row = int(left[0])
            path = data[int(offsets[row]) : int(offsets[row + 1])].tobytes().decode("utf-8", "surrogatepass")
            self.found.add(split_location(normalise(path, self.rules))[0])
            rest = split(path).path
            left = left[1:]
            if rest.startswith("/"):
                spelled = path[: len(path) - len(rest)].encode("utf-8", "surrogatepass")
                self._spelled.append(spelled)
                left = _not_beginning(data, offsets, left, spelled)


def _not_beginning(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], rows: NDArray[np.int64], spelled: bytes
) -> NDArray[np.int64]:
    """Those of `rows` that do not begin with `spelled` as their scheme and authority."""
    import numpy as np

    from artemis_lifecycle.orphans.kernels import not_beginning

    wanted = np.frombuffer(spelled + b"/", np.uint8)
    left: NDArray[np.int64] = not_beginning(data, offsets, rows, wanted, spelled.endswith(b":"))
    return left
