"""Physical identity: whether two folders or two files with different names are the same one.

A location compares text. A symbolic link, a bind mount or a second mount of the same export gives a folder a different
text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations

from artemis_lifecycle.errors import ConfigError, StorageError
from artemis_lifecycle.storage.local.store import local_path
from artemis_lifecycle.storage.location import LocationRules, normalize, overlap, resolve_dots, split

_MOUNTS = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")

Place = tuple[str, str]
"""A file system object's identity, and the path below it."""


def require_apart(roots: Mapping[str, str | None], rules: LocationRules, shared: Collection[str] = frozenset()) -> None:
    """Raise ConfigError if two of `roots` (by configuration key) are equal or nested, or if that cannot be determined.
    Those in `shared` may overlap one another.
    They are compared by location on every store, with `.` and `..` resolved, and physically on this machine's disk.

    Links and mounts can appear later: call this again before each step that relies on the result.
    """
    named = {key: root for key, root in roots.items() if root is not None}
    places = {key: dict(_places(key, root)) for key, root in named.items()}
    for one, other in combinations(named, 2):
        if one in shared and other in shared:
            continue
        a, b = (resolve_dots(normalize(named[key], rules)) for key in (one, other))
        if overlap(a, b, rules):
            raise _one_place(one, named[one], other, named[other], "by their names")
        for identity in places[one].keys() & places[other].keys():
            if _nested(places[one][identity], places[other][identity]):
                raise _one_place(one, named[one], other, named[other], "on the disk, through a link or a mount")


def same_file(one: str, other: str, rules: LocationRules) -> bool:
    """Return True if two paths name the same file: by location on every store, by device and inode on this machine's
    disk.

    Raises StorageError if the disk does not answer.
    """
    if normalize(one, rules) == normalize(other, rules):
        return True
    if not (_is_local_file(one, rules) and _is_local_file(other, rules)):
        return False
    first, second = _identity(local_path(one)), _identity(local_path(other))
    return first is not None and first == second


def _is_local_file(path: str, rules: LocationRules) -> bool:
    parts = split(normalize(path, rules))
    return parts.scheme == "file" and not parts.authority


def _places(key: str, root: str) -> Iterator[Place]:
    """Yield each existing folder at or above a local root by device and inode, and the root by its mount. Nothing for
    others."""
    parts = split(normalize(root))
    if parts.scheme != "file" or parts.authority:
        return
    try:
        real = os.path.realpath(local_path(root))
        yield from _in_file_system(real)
        above, below = real, ""
        while True:
            identity = _identity(above)
            if identity is not None:
                yield identity, below
            folder, name = os.path.split(above)
            if folder == above:
                return
            above, below = folder, f"{name}/{below}" if below else name
    except (OSError, StorageError) as error:
        raise ConfigError(
            f"{key} cannot be compared with the other roots: {error}",
            path=root,
            untouched="all tiers",
            hint="make the folder and those above it readable, then rerun",
        ) from error


def _identity(where: str) -> str | None:
    try:
        status = os.stat(where)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(
            f"The file system does not identify this file: {error.strerror}",
            path=where,
            hint="make the path readable, then rerun",
        ) from error
    return f"{status.st_dev}:{status.st_ino}"


def _in_file_system(real: str) -> Iterator[Place]:
    """Yield a path's position inside its file system, from the kernel's list of mounts. Needed for bind mounts, whose
    parent differs."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    found: tuple[str, str, str] | None = None
    for line in lines:
        fields = [_ESCAPED.sub(lambda match: chr(int(match[1], 8)), field) for field in line.split(" ")[2:5]]
        device, inside, mounted = fields
        holds = real == mounted or real.startswith(mounted.rstrip("/") + "/")
        # Of two mounts at the same place, the later one is visible.
        if holds and (found is None or len(mounted) >= len(found[2])):
            found = device, inside, mounted
    if found is not None:
        device, inside, mounted = found
        yield f"device {device}", f"{inside.strip('/')}/{real[len(mounted) :].strip('/')}".strip("/")


def _nested(one: str, other: str) -> bool:
    return one == other or not one or not other or one.startswith(other + "/") or other.startswith(one + "/")


def _one_place(key: str, root: str, other_key: str, other: str, how: str) -> ConfigError:
    return ConfigError(
        f"{key} and {other_key} are equal or nested {how}: {root}, {other}",
        path=root,
        untouched="all tiers",
        hint="give each a separate folder, with no link or mount between them",
    )
