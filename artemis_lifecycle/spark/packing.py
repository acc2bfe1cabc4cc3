"""The driver's packages as an archive for `spark.archives`, which Spark unpacks beside each executor.

Not by venv-pack2: it refuses an environment with a clone in it, and packs all that is installed, Spark's jars included.
"""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from isal import igzip
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from artemis_lifecycle.errors import BadInput, EnvironmentMissing

SETTINGS = """\
spark:
  python: ./environment/bin/python
  conf:
    spark.archives: {archive}#environment"""
"""What lifecycle.yaml says for executors to use the archive."""

_PACKAGE = Path(__file__).parents[1]
_PROJECT = _PACKAGE.name.replace("_", "-")
_EXTRAS = ("azure", "gcs")
"""The extras that tasks import, where they are installed."""

_NOT_FOR_TASKS = ("pyspark", "dagster")
"""Spark gives executors a pyspark of its own, and no task loads Dagster."""


def pack_environment(archive: Path, python: Path | None = None) -> tuple[str, ...]:
    """Write this package and what it requires, in the versions of this process, as an environment with `bin/python`;
    return their names. That is a link to `python`, which executors' machines must have: by default, the interpreter
    that this process's environment was made of.

    Raises BadInput for a name by which Spark would not unpack the archive, EnvironmentMissing for a requirement that is
    not installed.
    """
    if not archive.name.endswith((".tar.gz", ".tgz")):
        # Of a .tar, Spark would lose the links and the modes (SPARK-38632).
        raise BadInput(f"{archive} is not a .tar.gz file", hint="Spark knows archives by their names: use NAME.tar.gz")
    interpreter, unfinished = python or Path(os.path.realpath(sys.executable)), archive.with_name(f".{archive.name}")
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    found = _required()
    try:
        # Python's own gzip takes three times as long.
        file: BinaryIO = igzip.open(unfinished, "wb", 1)  # type: ignore[no-untyped-call]
        with file, tarfile.open(fileobj=file, mode="w") as tar:
            link, settings = tarfile.TarInfo("bin/python"), tarfile.TarInfo("pyvenv.cfg")
            link.type, link.linkname = tarfile.SYMTYPE, str(interpreter)
            text = f"home = {interpreter.parent}\ninclude-system-site-packages = false\n".encode()
            settings.size = len(text)
            tar.addfile(link)
            tar.addfile(settings, BytesIO(text))
            for name, place in _files(found):
                tar.add(place, f"{packages}/{name}")
        os.replace(unfinished, archive)
    finally:
        unfinished.unlink(missing_ok=True)
    return tuple(sorted(found))


def _required() -> dict[str, Distribution]:
    """Return this package and what it requires for tasks, by name."""
    found: dict[str, Distribution] = {}
    left, seen = [Requirement(f"{_PROJECT}[{','.join(_EXTRAS)}]")], set[tuple[str, str]]()
    while left:
        asked = left.pop()
        for extra in {"", *asked.extras} - {extra for name, extra in seen if name == asked.name}:
            seen.add((asked.name, extra))
            try:
                found[canonicalize_name(asked.name)] = own = distribution(asked.name)
            except PackageNotFoundError as error:
                raise EnvironmentMissing(
                    f"{asked} is required and not installed", hint="artemis doctor compares all that is installed"
                ) from error
            for each in map(Requirement, own.requires or ()):
                is_wanted = each.marker is None or each.marker.evaluate({"extra": extra})
                if (
                    is_wanted
                    and not each.name.startswith(_NOT_FOR_TASKS)
                    and (not extra or any(distributions(name=each.name)))
                ):
                    left.append(each)
    return found


def _files(found: dict[str, Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield the files of packages, by their names in the folder of all packages."""
    for name, own in found.items():
        if own.files is None:
            raise EnvironmentMissing(f"The installed {name} has no list of its files", hint=f"install {name} by pip")
        for file in own.files:
            place = Path(str(own.locate_file(file)))
            # Of this package only what names its version: a clone is a line in a .pth file.
            is_taken = file.parts[0] != ".." and (name != _PROJECT or file.parts[0].endswith(".dist-info"))
            if is_taken and place.is_file():
                yield file.as_posix(), place
    yield _PACKAGE.name, _PACKAGE
