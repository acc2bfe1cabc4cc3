"""The wheel: one version, the same bytes from each build, and an environment that has nothing else of this project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from email.parser import HeaderParser
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

import artemis_lifecycle
from artemis_lifecycle.embedded.jars import ICEBERG, ICEBERG_AWS, POSTGRES, resolve
from artemis_lifecycle.embedded.java_classes import CLASS_PATHS
from artemis_lifecycle_tests.deploy import environments

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
JARS = REPOSITORY / ".artemis" / "jars"

needs_javac = pytest.mark.skipif(shutil.which("javac") is None, reason="a wheel's classes are compiled by a JDK")


def test_there_is_one_version() -> None:
    image = subprocess.run(["make", "-n", "image"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    (newest, *_) = re.findall(r"^## (\S+?)(?=,| |$)", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    found = {
        "wheel": PROJECT["version"],
        "installed": version("artemis-lifecycle"),
        "package": artemis_lifecycle.__version__,
        "changelog": newest,
        **dict(re.findall(r"--(build-arg VERSION=|tag artemis-lifecycle:)(\S+)", image)),
    }
    assert len(found) == 6 and set(found.values()) == {PROJECT["version"]}, found
    # Neither a wheel nor an image starts the embedded Postgres.
    assert "artemis_lifecycle.embedded jars" in image and "artemis_lifecycle.embedded setup" not in image
    assert 'org.opencontainers.image.version="${VERSION}"' in (REPOSITORY / "deploy" / "Dockerfile").read_text()


def test_what_workflows_use_is_pinned_by_commit() -> None:
    texts = {each.name: each.read_text() for each in (REPOSITORY / ".github" / "workflows").glob("*.yml")}
    used = [(name, line) for name, text in texts.items() for line in re.findall(r"uses: (.*)", text)]
    assert len(used) > 10
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", each[1])] == []
    # One version of each, everywhere.
    assert len({line for _, line in used}) == len({line.partition("@")[0] for _, line in used})


def _build(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=REPOSITORY,
        env={**os.environ, "ARTEMIS_JARS": str(JARS), "JAVA_HOME": "", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def _wheel(target: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return _build("hatchling", "build", "--target", "wheel", "--directory", str(target), **environment)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution, and the wheel that is built from it alone, as `make wheel` makes them."""
    resolve(REPOSITORY / ".artemis", (ICEBERG, POSTGRES, ICEBERG_AWS))
    target = tmp_path_factory.mktemp("dist")
    done = _build("build", "--no-isolation", "--outdir", str(target))
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of an environment that has the wheel, what it requires, and nothing else of this project."""
    home = tmp_path_factory.mktemp("environment")
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--offline", "--python", sys.executable, home / "env"], check=True)
    (packages,) = (home / "env" / "lib").glob("python*/site-packages")
    # Files named in a .pth are not read for more of them: the clone, which is one line there, is not found.
    (packages / "required.pth").write_text(sysconfig.get_path("purelib"))
    install = ["pip", "install", "--quiet", "--offline", "--no-deps", "--python", home / "env", wheel]
    subprocess.run([uv, *install], check=True)
    return packages


@needs_javac
@pytest.mark.slow
def test_two_builds_and_the_wheel_of_the_source_have_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    done = _wheel(tmp_path, TZ="Asia/Tokyo", LC_ALL="C")
    assert done.returncode == 0, done.stderr
    (again,) = tmp_path.glob("*.whl")
    assert again.name == wheel.name and again.read_bytes() == wheel.read_bytes()


@needs_javac
@pytest.mark.slow
def test_a_wheel_has_the_package_its_compiled_classes_and_the_demo_and_no_more(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    tracked = ["git", "ls-files", "artemis_lifecycle", "examples/mission"]
    forced = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    listed = subprocess.run(tracked, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    expected = {re.sub("^examples", "artemis_lifecycle/examples", name) for name in listed}
    expected |= {to for to in forced["force-include"].values() if to.endswith(".yaml")}
    expected |= {f"artemis_lifecycle/spark/java/{folder}.jar" for folder in CLASS_PATHS}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert len(names) == len(set(names))


@needs_javac
@pytest.mark.slow
def test_the_description_stands_alone_and_its_links_lead_to_pages_of_the_documentation(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    home = PROJECT["urls"]["Documentation"]
    assert f"site_url: {home}\n" in (REPOSITORY / "mkdocs.yml").read_text()
    assert metadata["Author"] == "the Artemis Lifecycle developers"
    links = re.findall(r"\]\(([^)]*)\)", metadata.get_payload())
    assert [link for link in links if not link.startswith("https://")] == []
    own = [link.removeprefix(home).partition("#")[0] for link in links if link.startswith(home)]
    pages = [re.sub("html$", "md", each) for each in own]
    assert len(own) > 30 and [each for each in pages if not (REPOSITORY / "docs" / each).is_file()] == []
    assert "![Each step of a table's life is a Dagster asset]" in metadata.get_payload()


@needs_javac
@pytest.mark.slow
def test_an_installed_wheel_answers_and_compiles_no_classes(site: Path, tmp_path: Path) -> None:
    environments.answers(site.parents[2], tmp_path)
    code = f"""
from pathlib import Path
import artemis_lifecycle.definitions
from artemis_lifecycle.embedded.jars import ICEBERG, ICEBERG_AWS, POSTGRES, resolve
print(*resolve(Path({str(tmp_path / "home")!r}), (ICEBERG, POSTGRES, ICEBERG_AWS))[-2:], sep="\\n")
"""
    said = environments.run(site.parents[2], tmp_path, "python", "-c", code, environment={"ARTEMIS_JARS": str(JARS)})
    java = site / "artemis_lifecycle" / "spark" / "java"
    assert said.stdout.split() == [str(java / f"{folder}.jar") for folder in CLASS_PATHS]
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_without_javac_or_jars_no_wheel_is_built(tmp_path: Path) -> None:
    for environment, lacking in ({"JAVA_HOME": str(tmp_path)}, "javac"), ({"ARTEMIS_JARS": str(tmp_path)}, "jar"):
        built = _wheel(tmp_path, **environment)
        assert built.returncode != 0 and not list(tmp_path.glob("*.whl"))
        assert re.search(rf"there is no .*{lacking}.*make wheel", built.stdout + built.stderr, re.DOTALL)


@pytest.mark.nightly
@pytest.mark.parametrize("python", environments.PYTHONS)
def test_fresh_environments_with_each_extra_alone(dist: Path, python: str) -> None:
    assert environments.main([str(dist), python]) == 0
