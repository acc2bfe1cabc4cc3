"""Java, which Spark needs. Belongs here: finding one that fits and saying how to install it. Does not belong: starting
Spark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from artemis_lifecycle.errors import EnvironmentMissing

FITTING = range(17, 24)
"""Spark 4.1 needs 17, and the Hadoop in it a call that Java 24 took away (`Subject.getSubject`)."""

INSTALL_JAVA = (
    "install Java 17: `sudo apt-get install openjdk-17-jre-headless` (Debian, Ubuntu) or `brew install openjdk@17` "
    "(macOS); JAVA_HOME chooses one of several"
)

# Where packages put what is not, or not first, on the path: Debian, Red Hat; macOS; Homebrew on its two processors.
_INSTALLED = (
    (Path("/usr/lib/jvm"), "*/bin/java"),
    (Path("/Library/Java/JavaVirtualMachines"), "*/Contents/Home/bin/java"),
    (Path("/opt/homebrew/opt"), "openjdk*/bin/java"),
    (Path("/usr/local/opt"), "openjdk*/bin/java"),
)


def require_java() -> Path:
    """A `java` that Spark runs on: `$JAVA_HOME/bin/java` where that is set; else the first on the path, or, where that
    does not fit, one that the system's packages installed.

    Raises EnvironmentMissing, with the one line that installs it, when there is none.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        java = Path(java_home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise EnvironmentMissing(
                "JAVA_HOME names a folder without bin/java", path=java_home, hint=f"unset JAVA_HOME, or {INSTALL_JAVA}"
            )
        return _fitting(java)
    on_path = shutil.which("java")
    try:
        if on_path is None:
            raise EnvironmentMissing("Spark needs Java 17 and there is no java on the path", hint=INSTALL_JAVA)
        return _fitting(Path(on_path))
    except EnvironmentMissing:
        for java in _installed():
            if java_version(java) in FITTING:
                return java
        raise


def export_java() -> Path:
    """`require_java`, with JAVA_HOME set in this process to what it found, for Spark's own scripts to start."""
    java = require_java()
    if not os.environ.get("JAVA_HOME"):
        os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    return java


@cache
def java_version(java: Path) -> int:
    """The feature release of `java`, such as 17; 8 for what calls itself 1.8. 0 where it does not run or says none
    (macOS ships a `java` that only asks for an installation)."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match else 0


def _fitting(java: Path) -> Path:
    version = java_version(java)
    if version not in FITTING:
        which = f"is {version}" if version else "does not run"
        raise EnvironmentMissing(
            f"Spark needs Java {FITTING[0]} to {FITTING[-1]}, and this one {which}", path=str(java), hint=INSTALL_JAVA
        )
    return java


def _installed() -> Iterator[Path]:
    for folder, pattern in _INSTALLED:
        yield from sorted(java for java in folder.glob(pattern) if os.access(java, os.X_OK))
