"""Find a Java that Spark supports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from artemis_lifecycle.errors import EnvironmentMissing

SUPPORTED = range(17, 24)
"""Spark 4.1 needs 17; its Hadoop needs a method that Java 24 removed (`Subject.getSubject`)."""

INSTALL_JAVA = (
    "install Java 17: `sudo apt-get install openjdk-17-jre-headless` (Debian, Ubuntu) or `brew install openjdk@17` "
    "(macOS); JAVA_HOME chooses one of several"
)

# Installation folders of packages: Debian and Red Hat; macOS; Homebrew on Arm and Intel.
_INSTALLED = (
    (Path("/usr/lib/jvm"), "*/bin/java"),
    (Path("/Library/Java/JavaVirtualMachines"), "*/Contents/Home/bin/java"),
    (Path("/opt/homebrew/opt"), "openjdk*/bin/java"),
    (Path("/usr/local/opt"), "openjdk*/bin/java"),
)


def require_java() -> Path:
    """Return a `java` that Spark supports: `$JAVA_HOME/bin/java` if that is set; else the first on the path or, if its
    version is wrong, an installed package.

    Raises EnvironmentMissing, with the command that installs it, if there is none.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        java = Path(java_home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise EnvironmentMissing(
                "JAVA_HOME names a folder without bin/java", path=java_home, hint=f"unset JAVA_HOME, or {INSTALL_JAVA}"
            )
        return _require_supported(java)
    on_path = shutil.which("java")
    try:
        if on_path is None:
            raise EnvironmentMissing("Spark needs Java 17 and there is no java on the path", hint=INSTALL_JAVA)
        return _require_supported(Path(on_path))
    except EnvironmentMissing:
        for java in _installed():
            if java_version(java) in SUPPORTED:
                return java
        raise


def export_java() -> Path:
    """Return `require_java()`, and set JAVA_HOME of this process to it for Spark's own scripts."""
    java = require_java()
    if not os.environ.get("JAVA_HOME"):
        os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    return java


@cache
def java_version(java: Path) -> int:
    """Return the feature release of `java`, such as 17; 8 for version 1.8. 0 if it does not run or has no version
    (macOS has a `java` that only suggests an installation)."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match else 0


def _require_supported(java: Path) -> Path:
    version = java_version(java)
    if version not in SUPPORTED:
        which = f"is {version}" if version else "does not run"
        raise EnvironmentMissing(
            f"Spark needs Java {SUPPORTED[0]} to {SUPPORTED[-1]}, and this one {which}",
            path=str(java),
            hint=INSTALL_JAVA,
        )
    return java


def _installed() -> Iterator[Path]:
    for folder, pattern in _INSTALLED:
        yield from sorted(java for java in folder.glob(pattern) if os.access(java, os.X_OK))
