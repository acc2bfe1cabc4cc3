"""Jars are resolved once, by Spark itself, and are the files they should be. The repository is a folder here."""

from __future__ import annotations

import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded import jars as jars_module
from artemis_lifecycle.embedded.jars import (
    GATED_CATALOG,
    GIVEN_CREDENTIALS,
    ICEBERG,
    ICEBERG_AWS,
    ICEBERG_AZURE,
    ICEBERG_GCP,
    PACED_CLIENTS,
    POSTGRES,
    Jar,
    compiled,
    needed,
    resolve,
)
from artemis_lifecycle.embedded.java_classes import SOURCES
from artemis_lifecycle.errors import EnvironmentMissing
from artemis_lifecycle_tests.conftest import REPOSITORY
from examples.mission import ivy

pytestmark = pytest.mark.slow

CONTENT = b"a jar, as far as resolution is concerned"
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>test.artemis</groupId><artifactId>thing</artifactId><version>1.0</version></project>"""


@pytest.fixture
def thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jar:
    """An artifact in a `~/.m2` of its own, which Spark looks into before any network."""
    folder = tmp_path / "user" / ".m2" / "repository" / "test" / "artemis" / "thing" / "1.0"
    folder.mkdir(parents=True)
    (folder / "thing-1.0.pom").write_text(POM)
    (folder / "thing-1.0.jar").write_bytes(CONTENT)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Duser.home={tmp_path / 'user'}")
    return Jar("test.artemis", "thing", "1.0", sha256(CONTENT).hexdigest())


@pytest.mark.nightly
def test_what_is_resolved_once_is_not_resolved_again(
    thing: Jar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = resolve(tmp_path / "home", [thing])
    assert file.read_bytes() == CONTENT
    assert {path.name for path in file.parent.iterdir()} == {"thing-1.0.jar", "lock"}

    def nothing_is_fetched(*_: object) -> None:
        raise AssertionError("resolved again")

    monkeypatch.setattr(jars_module, "_fetch", nothing_is_fetched)
    assert resolve(tmp_path / "home", [thing]) == [file]


@pytest.mark.nightly
def test_another_file_under_the_right_name_is_refused(thing: Jar, tmp_path: Path) -> None:
    expected = Jar(thing.group, thing.artifact, thing.version, "0" * 64)
    with pytest.raises(EnvironmentMissing, match="sha256"):
        resolve(tmp_path / "home", [expected])
    assert not (tmp_path / "home" / "jars" / thing.file_name).exists()


def test_a_jar_with_a_classifier_is_fetched_once_beside_the_one_without(thing: Jar, tmp_path: Path) -> None:
    place = tmp_path / "user" / ".m2" / "repository" / "test" / "artemis" / "thing" / "1.0"
    (place / "thing-1.0-tests.jar").write_bytes(b"its tests")
    tests = replace(thing, classifier="tests", sha256=sha256(b"its tests").hexdigest())
    with pytest.raises(EnvironmentMissing, match="tests: it has sha256"):
        ivy.fetch(tmp_path / "home", [thing, replace(tests, sha256="0" * 64)])
    assert not list((tmp_path / "home" / "jars" / "servers").glob("*.jar"))
    files = ivy.fetch(tmp_path / "home", [tests, thing])
    assert [file.read_bytes() for file in files] == [b"its tests", CONTENT]
    shutil.rmtree(place)
    assert ivy.fetch(tmp_path / "home", [thing, tests]) == files[::-1]


def test_the_reason_why_nothing_was_resolved_is_reported(tmp_path: Path) -> None:
    absent = Jar("test.artemis", "absent", "0.0.0-nowhere", "0" * 64)
    with pytest.raises(EnvironmentMissing) as refused:
        resolve(tmp_path, [absent])
    text = str(refused.value)
    assert "test.artemis:absent:0.0.0-nowhere" in text
    assert "ARTEMIS_JARS" in text
    assert "\n" not in text


def test_a_folder_of_ones_own_needs_no_resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars_module, "CLASS_PATHS", {})
    monkeypatch.setenv("ARTEMIS_JARS", str(tmp_path))
    (tmp_path / "iceberg-spark-runtime-4.1_2.13-1.13.0.jar").touch()
    with pytest.raises(EnvironmentMissing, match="without postgresql"):
        resolve(tmp_path)
    (tmp_path / "org.postgresql_postgresql-42.7.9.jar").touch()
    (tmp_path / "artemis-gate-0123456789ab.jar").touch()  # What another release compiled.
    assert len(resolve(tmp_path / "unused")) == 2


CLASSES = {
    folder: {f"{name.replace('.', '/')}.class" for name in names}
    for folder, names in {
        "aws": (PACED_CLIENTS, GIVEN_CREDENTIALS),
        "gate": (GATED_CATALOG, "org.apache.iceberg.jdbc.GatedJdbcTableOperations"),
    }.items()
}


@pytest.mark.parametrize("folder", CLASSES)
def test_the_project_s_own_jars_are_compiled_once_against_what_was_resolved(tmp_path: Path, folder: str) -> None:
    libraries = resolve(REPOSITORY / ".artemis", (ICEBERG, POSTGRES, ICEBERG_AWS))[:3]
    first, second = (compiled(tmp_path / home, SOURCES / folder, libraries) for home in ("one", "two"))
    assert first.name == second.name and first.read_bytes() == second.read_bytes()
    assert CLASSES[folder] <= set(ZipFile(first).namelist())
    written = first.stat().st_mtime_ns
    assert compiled(tmp_path / "one", SOURCES / folder, libraries).stat().st_mtime_ns == written


def test_jars_that_it_cannot_be_compiled_against_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTEMIS_JARS", str(tmp_path))
    for jar in (ICEBERG, POSTGRES, ICEBERG_AWS):
        with ZipFile(tmp_path / jar.file_name, "w") as empty:
            empty.writestr("nothing", "")
    with pytest.raises(EnvironmentMissing, match=r"does not compile.*of the versions"):
        resolve(tmp_path / "home", (ICEBERG, POSTGRES, ICEBERG_AWS))
    assert not list((tmp_path / "home" / "jars").glob("*.jar"))


@pytest.mark.parametrize(
    ("warehouse", "bundle"),
    [
        ("s3a://bucket/cold", ICEBERG_AWS),
        ("wasbs://container@account.blob.core.windows.net/cold", ICEBERG_AZURE),
        ("gs://bucket/cold", ICEBERG_GCP),
    ],
)
def test_a_warehouse_in_an_object_store_needs_its_bundle(warehouse: str, bundle: Jar) -> None:
    config = LifecycleConfig.model_validate(
        {
            "catalogs": {"cold": {"name": "cold", "warehouse": warehouse}},
            "defaults": {"cold_tier": {"then": "keep"}},
        }
    )
    assert needed(LifecycleConfig()) == (ICEBERG, POSTGRES)
    assert needed(config) == (ICEBERG, POSTGRES, bundle)
