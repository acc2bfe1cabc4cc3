"""Jars of the demo's servers and their libraries, fetched by the Ivy among Spark's jars. Spark's own resolution
(`artemis_lifecycle.embedded.jars`) supports no classifiers.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory

from artemis_lifecycle.embedded.jars import JARS_VARIABLE, Jar, require_java, spark_home
from artemis_lifecycle.embedded.locks import file_lock
from artemis_lifecycle.errors import EnvironmentMissing

# The first two resolvers of Spark.
_SETTINGS = """
<ivysettings>
  <settings defaultResolver="both"/>
  <resolvers>
    <chain name="both" returnFirst="true">
      <ibiblio name="local" m2compatible="true" root="file://${user.home}/.m2/repository/"/>
      <ibiblio name="central" m2compatible="true"/>
    </chain>
  </resolvers>
</ivysettings>
"""


def fetch(home: Path, jars: Sequence[Jar], *, seconds: float = 600) -> list[Path]:
    """Return the files of `jars`, in their order and without what they depend on.

    They are in `<home>/jars/servers`, fetched at first use, or in the folder that ARTEMIS_JARS names. Raises
    EnvironmentMissing when one cannot be fetched in `seconds`, or is not the file that it should be.
    """
    given = os.environ.get(JARS_VARIABLE)
    folder = Path(given) if given else home.resolve() / "jars" / "servers"
    files = [folder / jar.file_name for jar in jars]
    if all(file.exists() for file in files):
        return files
    if given:
        absent = next(file.name for file in files if not file.exists())
        raise EnvironmentMissing(f"{JARS_VARIABLE} names a folder without {absent}", path=given, hint="put it there")
    with file_lock(folder / "lock", timeout=seconds):
        missing = [jar for jar in jars if not (folder / jar.file_name).exists()]
        if missing:
            _fetch(missing, folder, seconds)
    return files


def _fetch(jars: Sequence[Jar], folder: Path, seconds: float) -> None:
    (ivy,) = Path(spark_home(), "jars").glob("ivy-*.jar")
    with TemporaryDirectory(prefix="ivy-", dir=folder) as work:
        module, settings = Path(work, "ivy.xml"), Path(work, "settings.xml")
        module.write_text(_module(jars))
        settings.write_text(_SETTINGS)
        command = [
            *(str(require_java()), "-jar", str(ivy), "-ivy", str(module), "-settings", str(settings)),
            *("-cache", f"{work}/cache", "-retrieve", f"{work}/[artifact]-[revision](-[classifier]).[ext]"),
        ]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            raise _unfetched(jars[0], f"no answer in {seconds:.0f} s") from error
        for jar in jars:
            fetched = Path(work, jar.file_name)
            if not fetched.exists():
                raise _unfetched(jar, _reason(done.stdout + done.stderr))
            with fetched.open("rb") as file:
                digest = file_digest(file, "sha256").hexdigest()
            if digest != jar.sha256:
                raise _unfetched(jar, f"it has sha256 {digest} and not {jar.sha256}")
        for jar in jars:
            Path(work, jar.file_name).replace(folder / jar.file_name)


def _module(jars: Sequence[Jar]) -> str:
    # Ivy takes each module once, with all artifacts that are wanted of it.
    modules: dict[tuple[str, str, str], list[Jar]] = defaultdict(list)
    for jar in jars:
        modules[jar.group, jar.artifact, jar.version].append(jar)
    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false">'
        + "".join(
            f'<artifact name="{name}" type="jar" ext="jar"'
            + (f' m:classifier="{jar.classifier}"/>' if jar.classifier else "/>")
            for jar in wanted
        )
        + "</dependency>"
        for (group, name, version), wanted in modules.items()
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="artemis" '
        f'module="servers"/><dependencies>{dependencies}</dependencies></ivy-module>'
    )


def _reason(output: str) -> str:
    telling = [line.strip() for line in output.splitlines() if "not found" in line or "Exception" in line]
    return (telling or ["Ivy did not fetch it"])[0]


def _unfetched(jar: Jar, reason: str) -> EnvironmentMissing:
    return EnvironmentMissing(
        f"Ivy cannot fetch {jar.coordinates}: {reason}", hint="check the network, or put the jar into ~/.m2"
    )
