"""Which code runs: the commit hash that the project's own commits to tables record as `writer.commit_hash`."""

from __future__ import annotations

import hashlib
import os
import subprocess
from functools import cache
from importlib.metadata import version
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
    """Return the SHA-256 of the package's Python files."""
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*.py")):
        digest.update(f"{file.relative_to(_PACKAGE).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
