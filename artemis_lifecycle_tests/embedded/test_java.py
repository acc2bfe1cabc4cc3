"""One clear line when Java is missing or too old."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from artemis_lifecycle.embedded import jars as java_module
from artemis_lifecycle.embedded.jars import java_version, require_java
from artemis_lifecycle.errors import EnvironmentMissing


def install(home: Path, says: str, code: int = 0) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_401"', 8),
        ('openjdk version "11.0.2" 2019-01-15 LTS', 11),
    ],
)
def test_the_version_is_read_as_java_writes_it(tmp_path: Path, says: str, version: int) -> None:
    assert java_version(install(tmp_path, says)) == version


def test_java_home_beats_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = install(tmp_path / "seventeen", 'openjdk version "17.0.1"')
    old = install(tmp_path / "eight", 'java version "1.8.0_401"')
    monkeypatch.setenv("PATH", str(old.parent), prepend=":")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "seventeen"))
    assert require_java() == java


@pytest.mark.parametrize(
    "says", ['java version "1.8.0_401"', 'openjdk version "11.0.2"', 'openjdk version "25.0.1"', "who knows"]
)
def test_a_java_that_does_not_fit_is_refused_in_one_line_that_says_how_to_install_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    install(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentMissing) as refused:
        require_java()
    text = str(refused.value)
    assert "\n" not in text
    assert "apt-get install openjdk-17-jre-headless" in text
    assert "brew install openjdk@17" in text


def test_an_installed_package_replaces_an_unfit_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = install(tmp_path / "newest", 'openjdk version "25.0.1"')
    install(tmp_path / "jvm" / "java-11", 'openjdk version "11.0.2"')
    fits = install(tmp_path / "jvm" / "java-17", 'openjdk version "17.0.15"')
    monkeypatch.setattr(java_module, "_INSTALLED", ((tmp_path / "jvm", "*/bin/java"),))
    monkeypatch.setenv("PATH", str(newer.parent), prepend=":")
    monkeypatch.setenv("JAVA_HOME", "")
    assert java_module.export_java() == fits
    assert os.environ["JAVA_HOME"] == str(fits.parent.parent)


def test_a_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "_INSTALLED", ())
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentMissing, match="no java on the path"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(EnvironmentMissing, match="JAVA_HOME"):
        require_java()


def test_a_java_that_does_not_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "No Java runtime present, requesting install.", code=1)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentMissing, match="does not run"):
        require_java()
