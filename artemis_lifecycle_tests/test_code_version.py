"""The commit hash in the project's own commits names the code that ran."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from artemis_lifecycle import code_version


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    code_version.commit_hash.cache_clear()
    yield
    code_version.commit_hash.cache_clear()


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTEMIS_COMMIT_HASH", "a1b2c3d")
    assert code_version.commit_hash() == "a1b2c3d"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git, which an installed wheel does not")
def test_it_is_head_until_a_file_changes_and_then_the_files_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARTEMIS_COMMIT_HASH", raising=False)
    package = tmp_path / "package"
    package.mkdir()
    (package / "code_version.py").write_text("a = 1\n")
    monkeypatch.setattr(code_version, "_PACKAGE", package)
    monkeypatch.setattr(code_version, "BUILT_FROM", package / "_commit.txt")
    outside = code_version.commit_hash()
    assert re.fullmatch("[0-9a-f]{64}", outside)
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "first")
    code_version.commit_hash.cache_clear()
    assert code_version.commit_hash() == _git(tmp_path, "rev-parse", "HEAD")
    (package / "code_version.py").write_text("a = 2\n")
    code_version.commit_hash.cache_clear()
    assert code_version.commit_hash() not in (outside, _git(tmp_path, "rev-parse", "HEAD"))
    (package / "_commit.txt").write_text("0123abc\n")
    code_version.commit_hash.cache_clear()
    assert code_version.commit_hash() == "0123abc"
