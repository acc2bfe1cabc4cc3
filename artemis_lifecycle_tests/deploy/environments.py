"""Fresh environments with the wheel and one extra each, on every Python that the project knows:
`python -m artemis_lifecycle_tests.deploy.environments DIST [PYTHON …]`.

Each gets what a registry has today for the wheel's requirements, not what the lock names. It must print its help, say
what a first user lacks (`artemis doctor`), and import all that the package and the extra promise. First, twine checks
DIST.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from artemis_lifecycle_tests.test_extras import PACKAGES

REPOSITORY = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")

MODULES = {
    "gate": ["artemis_lifecycle.commits.proxy", "artemis_lifecycle.commits.server"],
    "gcs": ["artemis_lifecycle.storage.gcs"],
}
"""Modules that cannot be imported without an extra."""

WITHOUT = """
import importlib, pkgutil, sys
import artemis_lifecycle
assert artemis_lifecycle.__file__.startswith(sys.prefix), artemis_lifecycle.__file__
# Alembic runs its environment itself.
left_out = {*sys.argv[1:], "artemis_lifecycle.operations.migrations.env"}
for each in pkgutil.walk_packages(artemis_lifecycle.__path__, "artemis_lifecycle."):
    if each.name not in left_out and not each.name.endswith("__main__"):
        importlib.import_module(each.name)
"""

WITH = """
import importlib, sys
for each in sys.argv[1:]:
    importlib.import_module(each)
"""


def imports(extra: str) -> tuple[str, ...]:
    """Return the arguments of Python that import what an extra promises; without one, every other module."""
    if not extra:
        return "-c", WITHOUT, *(name for names in MODULES.values() for name in names)
    brought = ("embedded", "gate", "ui", "demo") if extra == "demo" else (extra,)
    return "-c", WITH, *(name for each in brought for name in (*PACKAGES[each], *MODULES.get(each, ())))


def run(
    environment_folder: Path,
    folder: Path,
    command: str,
    *arguments: str,
    environment: Mapping[str, str] = {},
    codes: Sequence[int] = (0,),
) -> subprocess.CompletedProcess[str]:
    """Run a command of an environment, in a folder where nothing of this project is. Raises AssertionError for another
    exit code."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("ARTEMIS_", "PYTHON", "DAGSTER_"))}
    done = subprocess.run(
        [environment_folder / "bin" / command, *arguments],
        cwd=folder,
        env=clean | {"ARTEMIS_EMBEDDED": "never"} | dict(environment),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done


def answers(environment_folder: Path, folder: Path, environment: Mapping[str, str] = {}) -> None:
    """Raise AssertionError if the installed wheel does not know its version, its help and what a first user lacks."""

    def said(*command: str, codes: Sequence[int] = (0,)) -> str:
        return run(environment_folder, folder, *command, environment=environment, codes=codes).stdout

    stated = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert said("artemis", "--version").strip() == stated
    assert "scan-orphans" in said("artemis", "--help")
    doctor = said("artemis", "doctor", codes=(1,))
    assert "set catalogs.live.uri" in doctor and "libraries as required" in doctor, doctor


def interpreter(version: str) -> str:
    """Return an installed Python of that version, or the version, for which uv looks elsewhere or installs one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    return str(next(pyenv.glob(f"{version}.*/bin/python3"), version))


def main(arguments: Sequence[str]) -> int:
    (wheel,), uv = Path(arguments[0]).glob("*.whl"), str(Path(sys.executable).with_name("uv"))
    checked = [*map(str, Path(arguments[0]).glob("artemis_lifecycle-*"))]
    subprocess.run([uv, "tool", "run", "twine", "check", "--strict", *checked], check=True)
    wanted = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    failed = []
    for python in arguments[1:] or PYTHONS:
        with tempfile.TemporaryDirectory(prefix="artemis-environment-") as place:
            # It comes as source alone, and would be built for each environment.
            spark = [
                "wheel",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                "-w",
                place,
                f"pyspark=={version('pyspark')}",
            ]
            subprocess.run([sys.executable, "-m", "pip", *spark], check=True)
            # Compiled once for all that have the same package at the same path.
            compiled = {"PYTHONPYCACHEPREFIX": f"{place}/compiled", "NUMBA_CACHE_DIR": f"{place}/loops"}
            for extra in ("", *(each for each in wanted if each not in ("dev", "docs"))):
                began, home, named = time.monotonic(), Path(place, "env"), f"{wheel}[{extra}]" if extra else str(wheel)
                shutil.rmtree(home, ignore_errors=True)
                subprocess.run([uv, "venv", "--quiet", "--python", interpreter(python), str(home)], check=True)
                install = ["pip", "install", "--quiet", "--find-links", place, "--python", str(home), named]
                subprocess.run([uv, *install], check=True)
                try:
                    answers(home, Path(place), compiled)
                    run(home, Path(place), "python", *imports(extra), environment=compiled)
                    said = "passed"
                except AssertionError as error:
                    failed.append(f"{python} [{extra}]")
                    said = f"FAILED: {error}\n"
                print(f"{python} [{extra}] {said} in {time.monotonic() - began:.0f} s", flush=True)
    print("failed:", *failed or ["none"])
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
