"""The commit hash in the project's own commits names the code that ran."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
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


def test_its_content_is_the_same_in_a_wheel_and_in_a_zip(tmp_path: Path) -> None:
    package = Path(code_version.__file__).parent
    wheel = tmp_path / "wheel" / package.name
    shutil.copytree(package, wheel, ignore=shutil.ignore_patterns("__pycache__", "*.java"))
    (wheel / "examples" / "mission").mkdir(parents=True)
    (wheel / "examples" / "mission" / "report.py").write_text("a = 1\n")
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", wheel.parent)
    code = f"from {package.name} import code_version as it; print(it.__file__, it.content_hash())"
    for place in (str(wheel.parent), archive):
        said = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={"PYTHONPATH": place},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert said[0].startswith(place) and said[1] == code_version.content_hash()
