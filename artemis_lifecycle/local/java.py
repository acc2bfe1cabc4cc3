"""Java, which Spark needs. Belongs here: finding it and saying how to install it. Does not belong: starting Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from artemis_lifecycle.errors import EnvironmentMissing

OLDEST_JAVA = 17
"""What Spark 4.1 runs on at the least."""

INSTALL_JAVA = (
    "install Java 17: `sudo apt-get install openjdk-17-jre-headless` (Debian, Ubuntu) or `brew install openjdk@17` "
    "(macOS), and set JAVA_HOME where several are installed"
)


def require_java() -> Path:
    """The `java` that Spark will start: `$JAVA_HOME/bin/java` where that is set, else the first on the path.

    Raises EnvironmentMissing, with the one line that installs it, when there is none or it is older than Java 17.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        java = Path(java_home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise EnvironmentMissing(
                "JAVA_HOME names a folder without bin/java",
                path=java_home,
                do=f"unset or mend JAVA_HOME, or {INSTALL_JAVA}",
            )
    else:
        found = shutil.which("java")
        if found is None:
            raise EnvironmentMissing("Spark needs Java 17 or newer and there is no java on the path", do=INSTALL_JAVA)
        java = Path(found)
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise EnvironmentMissing(
            f"Spark needs Java 17 or newer and this one is {version}", path=str(java), do=INSTALL_JAVA
        )
    return java


@cache
def java_version(java: Path) -> int:
    """The feature release of `java`, such as 17; 8 for what calls itself 1.8. 0 where it says none.

    Raises EnvironmentMissing when it does not run (macOS ships a `java` that only asks for an installation).
    """
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentMissing(f"java does not run: {error}", path=str(java), do=INSTALL_JAVA) from error
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match else 0
