"""Paths and locations (docs/architecture.md, "Words"). Belongs here: the only rule that decides whether two paths name
the same file. Pure: no I/O.

A path is the string exactly as metadata records it. A location is its normal form:

- a path without a scheme that starts with `/` is a local file, and `file:/x` becomes `file:///x`;
- the scheme is in lower case, equal schemes and equal authorities are replaced, an Azure account has one host
  (dfs), repeated slashes become one;
- in local paths `.` and `..` are resolved as text, as Hadoop's `Path` does before it opens a file; on S3 they are
  ordinary names and stay;
- in object stores a path ends before its first `?` or `#`, as Iceberg's S3FileIO and GCSFileIO and pyiceberg read it;
- no percent-decoding, no case folding except for the scheme, no Unicode normalization: names that only look alike are
  different files.

Two paths with the same location are the same file. Locations are only for comparison. I/O uses the path, because S3
distinguishes `a//b` from `a/b`. Relative paths have no location and are returned unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from artemis_lifecycle.config.schemes import AZURE_SCHEMES, EQUAL_SCHEMES, kind_of, one_authority
from artemis_lifecycle.errors import ConfigError

if TYPE_CHECKING:
    from artemis_lifecycle.config.policies import Orphans


NORMALIZER_VERSION = 4
"""Incremented whenever `normalize` changes its result for any path. Hashes of another version are rebuilt."""

# Patterns that Python, Java and Rust interpret the same way: no `.`, whose line terminators differ, and no lookaround.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.\-]*"
_PREFIX = re.compile(rf"({_SCHEME}):(?://([^/]*)|(?=/))")
_SLASHES = re.compile("/{2,}")
_DOTS = re.compile(r"/\.\.?(?:/|\Z)")


def _expand(equal: Mapping[str, str], *, what: str) -> dict[str, str]:
    """Split comma-joined keys, and follow chains (s3n -> s3a -> s3) to their end, so that a single pass is
    sufficient."""
    single = {name.strip(): target.strip() for names, target in equal.items() for name in names.split(",")}
    settled: dict[str, str] = {}
    for name in single:
        target, seen = single[name], {name}
        while target in single and single[target] != target:
            if target in seen:
                raise ConfigError(
                    f"The equal {what} go round in a circle at {name!r}",
                    hint=f"choose one of them as the target of the others in orphans.equal_{what}",
                )
            seen.add(target)
            target = single[target]
        settled[name] = target
    return {name: target for name, target in sorted(settled.items()) if name != target}


@dataclass(frozen=True)
class LocationRules:
    """Which schemes and authorities are equal. Each maps a name, or comma-joined names, to the name that replaces them.

    Raises ConfigError for a cycle, and for a name that cannot be a scheme or an authority.
    """

    equal_schemes: Mapping[str, str] = field(default_factory=lambda: dict(EQUAL_SCHEMES))
    equal_authorities: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lowered = {names.lower(): target.lower() for names, target in self.equal_schemes.items()}
        schemes = _expand(lowered, what="schemes")
        azure = AZURE_SCHEMES[0]
        given = {
            ",".join(one_authority(azure, name.strip()) for name in names.split(",")): one_authority(azure, target)
            for names, target in self.equal_authorities.items()
        }
        authorities = _expand(given, what="authorities")
        for name in [*schemes, *schemes.values()]:
            if re.fullmatch(_SCHEME, name) is None:
                raise ConfigError(f"{name!r} is not a scheme of a path", hint="see orphans.equal_schemes")
        for name in [*authorities, *authorities.values()]:
            if "/" in name:
                raise ConfigError(
                    f"{name!r} is not an authority of a path: it has a slash", hint="see orphans.equal_authorities"
                )
        object.__setattr__(self, "equal_schemes", schemes)
        object.__setattr__(self, "equal_authorities", authorities)

    def __hash__(self) -> int:
        return hash((tuple(self.equal_schemes.items()), tuple(self.equal_authorities.items())))

    @classmethod
    def from_config(cls, orphans: Orphans) -> LocationRules:
        """Return the rules of lifecycle.yaml. As in Iceberg, s3a and s3n equal s3 by default."""
        given = {name.strip(): target for names, target in orphans.equal_schemes.items() for name in names.split(",")}
        return cls({**EQUAL_SCHEMES, **given}, orphans.equal_authorities)

    def fingerprint(self) -> str:
        """Identifies the normalizer's version and the equalities, for the header of files that store locations or
        hashes."""
        return json.dumps(
            {
                "normalizer": NORMALIZER_VERSION,
                "schemes": dict(self.equal_schemes),
                "authorities": dict(self.equal_authorities),
            },
            sort_keys=True,
        )


DEFAULT_RULES = LocationRules()


@dataclass(frozen=True)
class PathParts:
    """`scheme` is in lower case, or "" if the path has none. `path` keeps its spelling and its leading slash."""

    scheme: str
    authority: str
    path: str


def split(path: str) -> PathParts:
    """Split a path into its parts. Only the scheme's case is normalized."""
    match = _PREFIX.match(path)
    if match is None:
        return PathParts("", "", path)
    return PathParts(match[1].lower(), match[2] or "", path[match.end() :])


def normalize(path: str, rules: LocationRules = DEFAULT_RULES) -> str:
    """Return the location of `path`. Idempotent."""
    match = _PREFIX.match(path)
    if match is not None:
        scheme, authority, rest = match[1].lower(), match[2] or "", path[match.end() :]
    elif path.startswith("/"):
        scheme, authority, rest = "file", "", path
    else:
        return path
    if "//" in rest:
        rest = _SLASHES.sub("/", rest)
    spelled, scheme = scheme, rules.equal_schemes.get(scheme, scheme)
    if ("?" in rest or "#" in rest) and _is_cut(spelled, scheme):
        rest = rest.partition("?")[0].partition("#")[0]
    # Also if the scheme maps to file, or file maps to it: a location must be its own location.
    if "/." in rest and "file" in (spelled, scheme) and _DOTS.search(rest):
        rest = _resolve_dots(rest)
    authority = one_authority(scheme, authority)
    authority = rules.equal_authorities.get(authority, authority)
    return f"{scheme}://{authority}{rest}"


def _is_cut(*schemes: str) -> bool:
    return any(kind_of(f"{scheme}:") is not None for scheme in schemes)


FOLDERS_KEPT = 50_000
"""Maximum number of remembered folders. Memory must stay bounded, and caching does not help if every file has a
different folder."""


def folder_and_name(path: str) -> tuple[str, str] | None:
    """Return the folder of a path and a plain name in it. None if folder and name cannot be interpreted separately
    (`s3://b`, `a//b`, `.`)."""
    folder, _, name = path.rpartition("/")
    if not folder or folder[-1] == "/" or name in ("", ".", ".."):
        return None
    return folder, name


_NAMED = r"[^/]/([^/.]|\.[^/.]|\.\.[^/])[^/]*$"
"""The end of a path that `folder_and_name` separates."""


@dataclass(frozen=True)
class ByFolder:
    """The folders of many paths (`folder_and_name`; null if it is None), and `starts`, the rows at which the folder
    changes. `cut` are the paths with `?` or `#` in their names, where some readers cut them."""

    folders: pa.Array
    starts: NDArray[np.int64]
    cut: NDArray[np.bool_]

    @classmethod
    def of(cls, paths: pa.Array) -> Self:
        """From an Arrow array of strings without nulls."""
        spelled = pc.replace_substring_regex(paths, "/[^/]*$", "")
        folders = pc.if_else(pc.match_substring_regex(paths, _NAMED), spelled, None)
        same = pc.fill_null(pc.equal(folders[1:], folders[:-1]), False)
        starts = np.flatnonzero(np.concatenate([np.ones(min(len(paths), 1), np.bool_), ~np.asarray(same)]))
        return cls(folders, starts, np.asarray(pc.match_substring_regex(paths, "[?#][^/]*$")))

    def folder(self, row: int) -> str | None:
        """Return the folder of a path without its trailing slash. None if it cannot be separated."""
        found: str | None = self.folders[row].as_py()
        return found


def resolve_dots(location: str) -> str:
    """Return a location without `.` and `..`, even where they are ordinary names, because some reader may resolve
    them."""
    scheme, separator, rest = location.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority}{_resolve_dots(slash + path)}" if separator and slash else location


def _resolve_dots(path: str) -> str:
    kept: list[str] = []
    for segment in path.split("/")[1:]:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    return "/" + "/".join(kept)


def with_locations(rules: LocationRules, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with a column `location` for their `path`."""
    for batch in batches:
        found = [normalize(path, rules) for path in batch.column("path").to_pylist()]
        yield batch.append_column("location", pa.array(found, pa.string()))


def relative_to(path: str, root: str, rules: LocationRules = DEFAULT_RULES) -> str | None:
    """Return what follows `root/` in the location of `path`. None if `path` is not under `root`, or leaves it through
    `..`."""
    location, base = normalize(path, rules), _folder(root, rules)
    if not location.startswith(base):
        return None
    rest = location[len(base) :]
    # Dots are resolved only in local paths. On other stores, the store or a proxy may still resolve them.
    return None if not rest or ".." in rest.split("/") else rest


def _folder(root: str, rules: LocationRules) -> str:
    location = normalize(root, rules)
    return location if location.endswith("/") else location + "/"


def is_under(location: str, root: str, rules: LocationRules = DEFAULT_RULES) -> bool:
    """Return True if `location` is below the folder `root`, not `root` itself, and does not leave it through `..`."""
    return relative_to(location, root, rules) is not None


def overlap(one: str, other: str, rules: LocationRules = DEFAULT_RULES) -> bool:
    """Return True if two folders are equal or nested."""
    first, second = _folder(one, rules), _folder(other, rules)
    return first.startswith(second) or second.startswith(first)


def parent(path: str) -> str:
    """Return the folder of `path` in its original spelling: `s3://b` for `s3://b/x`, `/` for `/x`."""
    match = _PREFIX.match(path)
    start = match.end() if match else 0
    rest = "/" + path[start:].strip("/") if path[start:].startswith("/") else path[start:].rstrip("/")
    folder = rest[: rest.rfind("/")] if "/" in rest else ""
    prefix = path[:start]
    return prefix + (folder or ("/" if rest.startswith("/") and not (match and match[2]) else ""))


def ambiguity(path: str, rules: LocationRules = DEFAULT_RULES) -> str | None:
    """Return why engines may disagree on which file `path` names. None for an ordinary path.

    Iceberg's S3FileIO and GCSFileIO cut a path at `?` and `#`; other readers do not. In object stores, `.` and `..`
    are ordinary names, but Hadoop's S3A resolves them, and so do Azure's addresses. Deletion should not touch such a
    path, nor trust that a listing shows it under that name.
    """
    parts = split(path)
    if not parts.scheme and not path.startswith("/"):
        return "it is relative"
    kind = kind_of(f"{rules.equal_schemes.get(parts.scheme, parts.scheme)}://")
    if kind is not None:
        if "?" in parts.path or "#" in parts.path:
            return "S3FileIO cuts it at ? and #" if kind == "s3" else "some readers cut it at ? and #"
        if _DOTS.search(parts.path):
            return "it has . or .. as a name"
    return None


# --- location hash ----------------------------------------------------------------------------------------------------
# A 64-bit hash of locations: Spark's `xxhash64` of the location's UTF-8 bytes.
#
# Spark SQL computes xxHash64 with seed 42, so executors, the driver and queries agree. Source: the xxHash
# specification (XXH64), Spark's `XxHash64Function`.

_Number = TypeVar("_Number", bound="np.generic")

HASH_NAME = "xxhash64/42"
"""Identifies the hash in the header of files that store its values."""

SEED = 42
_AT_ONCE = 65_536


def hash_location(location: str) -> int:
    """Return the hash of one location, unsigned."""
    return xxhash.xxh64_intdigest(location.encode("utf-8", "surrogatepass"), SEED)


def hash_column(paths: pa.Array, rules: LocationRules) -> NDArray[np.uint64]:
    """Return the hash of each path's location, for an Arrow array of strings without nulls."""
    found = np.empty(len(paths), np.uint64)
    for start in range(0, len(paths), _AT_ONCE):
        _hash_into(found[start : start + _AT_ONCE], _binary(paths.slice(start, _AT_ONCE)), rules)
    return found


def _hash_into(found: NDArray[np.uint64], paths: pa.Array, rules: LocationRules) -> None:
    # Most paths of a table differ from their location in scheme and authority only: these need no `normalize`.
    spelled, settled, odd = _prefixes(_text(paths[0].as_py()), rules)
    plain = np.zeros(len(paths), np.bool_)
    if spelled:
        offsets, data = text_buffers(paths.view(pa.large_string()))
        # A path with more pairs than its prefix has one behind it. Pairs overlap: `///` has two.
        pairs = sum(spelled.startswith(b"//", at) for at in range(len(spelled)))
        plain = np.asarray(pc.starts_with(paths, spelled)) & (_count(offsets, data, b"//") == pairs)
        for each in odd:
            plain &= _count(offsets, data, each) == 0
    if not plain.all():
        others = paths.filter(pa.array(~plain)).to_pylist()
        found[~plain] = [hash_location(normalize(_text(path), rules)) for path in others]
        paths = paths.filter(pa.array(plain))
    if spelled != settled:
        paths = pc.binary_replace_slice(paths, 0, len(spelled), settled)
    found[plain] = [xxhash.xxh64_intdigest(path, SEED) for path in paths.to_pylist()]


def _count(offsets: NDArray[np.int64], data: NDArray[np.uint8], sought: bytes) -> NDArray[np.int64]:
    """Return how often each text of these buffers has one or two bytes, at least: the second may be the next text's."""
    data = data[offsets[0] : offsets[-1]]
    here = data == sought[0]
    if len(sought) == 2:
        here = here[:-1] & (data[1:] == sought[1])
    places = np.flatnonzero(here) + offsets[0]
    return np.bincount(np.searchsorted(offsets[1:], places, side="right"), minlength=len(offsets) - 1)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogatepass")


def hash_strings(texts: pa.Array) -> NDArray[np.uint64]:
    """Return the hash of each string of an Arrow array without nulls, in its original spelling."""
    return np.fromiter((xxhash.xxh64_intdigest(text, SEED) for text in _encoded(texts)), np.uint64, len(texts))


def _encoded(texts: pa.Array) -> Iterator[bytes]:
    for start in range(0, len(texts), _AT_ONCE):
        yield from _binary(texts.slice(start, _AT_ONCE)).to_pylist()


def _binary(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.large_string()).view(pa.large_binary())


def distinct(numbers: NDArray[_Number]) -> NDArray[_Number]:
    """Return the distinct numbers in ascending order. From version 2.3, `numpy.unique` uses a hash table for numbers:
    fifty times slower for millions of mostly distinct ones."""
    ordered = np.sort(numbers)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def among(hashes: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which of `wanted` are in `hashes`, which must be sorted."""
    if not len(hashes):
        return np.zeros(len(wanted), np.bool_)
    places = np.minimum(hashes.searchsorted(wanted), len(hashes) - 1)
    return np.asarray(hashes[places] == wanted)


def text_buffers(texts: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the offsets (one more than rows) and the bytes of a string array, without a copy. A null has no bytes."""
    large = texts.cast(pa.large_string())
    _, offsets, data = large.buffers()
    if not len(large):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    starts = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
    return starts, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


_OF_FILES, _OF_OBJECTS = (b"/.",), (b"?", b"#")


def _prefixes(path: str, rules: LocationRules) -> tuple[bytes, bytes, tuple[bytes, ...]]:
    """Return the path's scheme and authority with the following slash, in the original spelling and in its location,
    and what else in a path needs `normalize`. Empty for a path without them."""
    rest = split(path).path
    if not rest.startswith("/"):
        # Relative, or an authority without a path: too rare for a special rule.
        return b"", b"", ()
    spelled = path[: len(path) - len(rest)] + "/"
    settled = normalize(f"{spelled}x", rules)[:-1]
    schemes = {split(f"{spelled}x").scheme, split(f"{settled}x").scheme}
    before, after = (each.encode("utf-8", "surrogatepass") for each in (spelled, settled))
    if _is_cut(*schemes):
        # Where they are files by other rules: nothing is known of such a path without `normalize`.
        return (b"", b"", ()) if not schemes.isdisjoint(("", "file")) else (before, after, _OF_OBJECTS)
    return before, after, () if schemes.isdisjoint(("", "file")) else _OF_FILES
