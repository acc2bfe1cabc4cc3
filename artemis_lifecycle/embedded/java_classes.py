"""Compile the project's own Java classes into jars. The build of a wheel (`hatch_build.py`) loads this file by its path
before anything is installed, so it imports the standard library only.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from zipfile import ZipFile, ZipInfo

SOURCES = Path(__file__).parents[1] / "spark" / "java"
"""One folder per jar; a wheel has the compiled jar beside its folder (`aws.jar` beside `aws/`)."""

CLASS_PATHS = {
    "aws": ("iceberg-spark-runtime-4.1_2.13", "iceberg-aws-bundle"),
    "gate": ("iceberg-spark-runtime-4.1_2.13",),
}
"""The artifacts that each folder of SOURCES is compiled against; sessions without one of them do not get the jar."""

COMPILE_SECONDS = 900


def class_path(folder: str, jars: Iterable[Path]) -> list[Path]:
    """Return the files of `jars` that `folder` is compiled against; empty if one of its artifacts is missing."""
    files = list(jars)
    found = [[jar for jar in files if f"{artifact}-" in jar.name] for artifact in CLASS_PATHS[folder]]
    return [jar for same in found for jar in same] if all(found) else []


def compile_folder(folder: Path, compiler: Sequence[str], libraries: Sequence[Path], jar: Path) -> str:
    """Compile `folder` to `jar` with `compiler`, a command with javac's options `-d` and `-classpath`.

    Returns the compiler's output if it failed, without writing the jar; "" on success. The same classes always make the
    same bytes.
    """
    sources = sorted(folder.glob("*.java"))
    with tempfile.TemporaryDirectory(prefix="classes-", dir=jar.parent) as work:
        classes = Path(work) / "classes"
        classes.mkdir()
        done = subprocess.run(
            [*compiler, "-d", str(classes), "-classpath", os.pathsep.join(map(str, libraries)), *map(str, sources)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMPILE_SECONDS,
        )
        written = sorted(classes.rglob("*.class"))
        # Janino exits with 0 on errors too, and keeps the classes that it compiled before.
        left = {file.stem for file in sources} - {file.stem for file in written}
        if done.returncode != 0 or left or "Exception" in done.stdout:
            return done.stdout or f"exit code {done.returncode}"
        packed = Path(work) / jar.name
        with ZipFile(packed, "w") as archive:
            for file in written:
                # One constant date, so that the same source makes the same jar.
                archive.writestr(ZipInfo(file.relative_to(classes).as_posix()), file.read_bytes())
        packed.replace(jar)
    return ""
