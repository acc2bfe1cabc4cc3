"""Twins: files with the same path under two schemes or authorities. Belongs here: finding, by hashes alone, which files
have a known file as a twin. Where two names meant one store, twins made every live file an orphan (iceberg 4194).

The text after a file's authority is appended to each scheme and authority of the known files, and looked up by hash.
Two locations with one hash count as one, which can only keep a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from artemis_lifecycle.errors import Refused
from artemis_lifecycle.protection.ownership import subject
from artemis_lifecycle.reachability.files import ReachedFiles
from artemis_lifecycle.storage.frames import map_parts
from artemis_lifecycle.storage.location import ByFolder, LocationRules, normalize, split
from artemis_lifecycle.storage.location_hash import among, distinct, hash_column
from artemis_lifecycle.storage.stores import Stores

_SPELLINGS = 1_000
"""Paths that begin in more ways than this are not compared: each way needs a pass over them."""

_PREFIX = re.compile(r"\A[A-Za-z][A-Za-z0-9+.\-]*://[^/]*")
"""Scheme and authority of a location."""


@dataclass(frozen=True)
class Known:
    """Known files as hashes: `has` says which location hashes are among them; `prefixes` are the schemes and
    authorities of their locations."""

    has: Callable[[NDArray[np.uint64]], NDArray[np.bool_]]
    prefixes: frozenset[str]

    @classmethod
    def reached_by(cls, files: ReachedFiles, rules: LocationRules) -> Known:
        """Everything that any snapshot reaches."""
        prefixes = _Prefixes(rules)

        def add(paths: pa.Array) -> None:
            prefixes.add_paths(paths)

        files.visit(add)
        return cls(files.reaches, frozenset(prefixes.found))

    @classmethod
    def sealed_in(cls, folder: str, stores: Stores, rules: LocationRules) -> Known:
        """The paths of a sealed frame."""

        def read(batches: Iterator[pa.RecordBatch]) -> tuple[NDArray[np.uint64], _Prefixes]:
            prefixes, hashes = _Prefixes(rules), [np.empty(0, np.uint64)]
            for batch in batches:
                paths = batch.column("path")
                prefixes.add_paths(paths)
                hashes.append(hash_column(paths, rules))
            return np.concatenate(hashes), prefixes

        parts = list(map_parts(folder, stores, read, ["path"]))
        known = distinct(np.concatenate([np.empty(0, np.uint64), *(hashes for hashes, _ in parts)]))
        found = frozenset(prefix for _, prefixes in parts for prefix in prefixes.found)
        return cls(lambda hashes: among(known, hashes), found)

    @classmethod
    def at(cls, locations: Iterable[str], rules: LocationRules) -> Known:
        """Single locations."""
        named = list(locations)
        known = distinct(np.asarray(hash_column(pa.array(named, pa.string()), rules)))
        return cls(lambda hashes: among(known, hashes), frozenset(split_location(each)[0] for each in named))


def twins(paths: pa.Array, known: Sequence[Known], rules: LocationRules) -> Iterator[tuple[int, str]]:
    """Yield the rows of `paths` that have a known twin, with its location; one result for each twin."""
    prefixes, keys = (pa.array(each, pa.string()) for each in split_paths(paths, rules))
    for each in known:
        for prefix in sorted(each.prefixes):
            rows = np.flatnonzero(np.asarray(pc.not_equal(prefixes, prefix)))
            locations = pc.binary_join_element_wise(pa.scalar(prefix), keys.take(pa.array(rows)), "")
            reached = np.flatnonzero(each.has(hash_column(locations, rules)))
            yield from ((int(rows[row]), locations[row].as_py()) for row in reached.tolist())


def split_location(location: str) -> tuple[str, str]:
    """Return (scheme and authority, the rest) of a location."""
    match = _PREFIX.match(location)
    prefix = match[0] if match else ""
    return prefix, location[len(prefix) :]


def split_paths(paths: pa.Array, rules: LocationRules) -> tuple[list[str], list[str]]:
    """`split_location` for the location to which each path of an Arrow array belongs: the first parts, and the
    second."""
    files, texts = ByFolder.of(paths), paths.to_pylist()
    prefixes: list[str] = []
    keys: list[str] = []
    for low, high in pairwise([*files.starts.tolist(), len(texts)]):
        folder = files.folder(low)
        if folder is None:
            prefix, key = split_location(normalize(texts[low], rules))
            prefixes.append(prefix)
            keys.append(key)
            continue
        prefix, key = split_location(normalize(f"{folder}/x", rules)[:-1])
        behind = len(folder) + 1
        prefixes += [prefix] * (high - low)
        keys += [key + text[behind:] for text in texts[low:high]]
    for row in pc.indices_nonzero(pc.ends_with(paths, ".crc")).to_pylist():
        prefixes[row], keys[row] = split_location(normalize(subject(texts[row]), rules))
    return prefixes, keys


class _Prefixes:
    """Collects the schemes and authorities (normal form) of many paths, by comparing their beginnings as spelled.

    A path without a scheme begins with its slash; one with `//` has its authority up to the next slash. For `file:/x`,
    the byte after the slash shows that there is no authority.
    """

    def __init__(self, rules: LocationRules) -> None:
        self.rules = rules
        self.found: set[str] = set()
        self._spelled: list[bytes] = []
        self._steps = 0

    def add_paths(self, paths: pa.Array) -> None:
        """Add paths, an Arrow array of strings without nulls."""
        left = paths.cast(pa.large_binary())
        for spelled in self._spelled:
            left = _not_beginning(left, spelled)
        while len(left):
            self._steps += 1
            if self._steps > _SPELLINGS:
                raise Refused(
                    f"Paths begin in more than {_SPELLINGS} ways: whether they refer to one store cannot be determined",
                    path=split_location(next(iter(self.found), ""))[0],
                    untouched="all files",
                    hint="check which schemes and authorities the table's paths have, and set equal ones in "
                    "orphans.equal_schemes and equal_authorities",
                )
            path = left[0].as_py().decode("utf-8", "surrogatepass")
            self.found.add(split_location(normalize(path, self.rules))[0])
            rest = split(path).path
            left = left[1:]
            if rest.startswith("/"):
                spelled = path[: len(path) - len(rest)].encode("utf-8", "surrogatepass")
                self._spelled.append(spelled)
                left = _not_beginning(left, spelled)


def _not_beginning(paths: pa.Array, spelled: bytes) -> pa.Array:
    """Return those of `paths` that do not begin with `spelled` as their scheme and authority."""
    wanted = spelled + b"/"
    begins = pc.starts_with(paths, pattern=wanted)
    if spelled.endswith(b":"):
        named = pc.and_not(
            pc.greater(pc.binary_length(paths), len(wanted)), pc.starts_with(paths, pattern=wanted + b"/")
        )
        begins = pc.and_(begins, named)
    return paths.filter(pc.invert(begins))
