"""Which code runs: the commit hash that the project's own commits to tables record as `writer.commit_hash`."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

BUILT_FROM = _PACKAGE / "_commit.txt"
"""Written into a wheel when it is built from a git checkout."""


@cache
def commit_hash() -> str:
    """Return the git commit of this code: `$ARTEMIS_COMMIT_HASH`, the commit that the wheel was built from, or the
    checkout's HEAD if the package's files are unchanged. Otherwise the SHA-256 of the package's Python files, which
    also identifies the code."""
    given = os.environ.get("ARTEMIS_COMMIT_HASH")
    if given:
        return given
    if BUILT_FROM.exists():
        return BUILT_FROM.read_text(encoding="ascii").strip()
    return _head() or content_hash()


@cache
def package_version() -> str:
    """Return the version of the installed package, the `dagster.code_version` of its commits in a Dagster run."""
    return version("artemis-lifecycle")


def _head() -> str | None:
    """Return the checkout's HEAD; None outside a checkout, without git, or if a file of the package differs."""
    try:
        changed = _git("status", "--porcelain", "--untracked-files=normal", "--", ".")
        tracked = _git("ls-files", "--", Path(__file__).name)
        return _git("rev-parse", "HEAD") if tracked and not changed else None
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_PACKAGE, check=True, capture_output=True, text=True, timeout=10)
    return done.stdout.strip()


def content_hash() -> str:
    """Return the SHA-256 of the package's Python files: the same in a clone, from a wheel, and in a zip on the path."""
    # Only importlib reads a package within a zip.
    package = _PACKAGE if _PACKAGE.is_dir() else files(__name__.partition(".")[0])
    digest = hashlib.sha256()
    for name, file in sorted(_python_files(package), key=lambda each: each[0]):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _python_files(folder: Traversable, within: str = "") -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        name = f"{within}{each.name}"
        if each.name.endswith(".py"):
            yield name, each
        # A wheel has a copy of the demo.
        elif name != "examples" and each.is_dir():
            yield from _python_files(each, f"{name}/")
