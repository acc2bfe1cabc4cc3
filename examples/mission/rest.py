"""The third way into the demo's catalog: a REST server over it, and `artemis gate serve` in front. Belongs here:
starting both, and what a client commits through them. Does not belong: judging it.

The server is Iceberg's own REST adapter on Jetty (RestServer.java). Its catalog is the project's GatedJdbcCatalog: the
gate in the database knows commits by their pass, and nobody but the server can request one for the metadata file that
the server writes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from artemis_lifecycle.catalogs.identifier import parse
from artemis_lifecycle.catalogs.settings import catalog_conf
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import POSTGRES, Jar, compiled, require_java, resolve, spark_home
from artemis_lifecycle.embedded.java_classes import SOURCES
from artemis_lifecycle.errors import EnvironmentMissing

from . import ivy
from .history import compressed_bytes

_ICEBERG, _JETTY = "1.10.0", "11.0.26"
"""Iceberg 1.11 needs a Jetty with a newer servlet API than the one among Spark's jars."""

# Iceberg's runtime for Spark has its libraries under other names; the server's classes want the original ones.
JARS = (
    *(
        Jar("org.apache.iceberg", artifact, _ICEBERG, digest, classifier)
        for artifact, digest, classifier in (
            ("iceberg-core", "54091489dbdcb31b5a4514372abfc908a7b0be69f76e785f1e82279be4fbd6cc", ""),
            ("iceberg-core", "caa79473e760a6ea0740888832d85868359142640d34f472cd565763bb9b90c7", "tests"),
            ("iceberg-api", "627061d401dba9d1a8cada2da6394640c2e803102bb676fb34e5f65503cf2c51", ""),
            ("iceberg-common", "5ce6ec8262b4c6f8151d9e36ebe013bd23ec0f310508173f72c43bc073d5f519", ""),
            ("iceberg-bundled-guava", "05b79072e19071b1bcf7a4e382d624b3b2ccad6eaf79627676219bb48e4e834d", ""),
        )
    ),
    *(
        Jar("org.eclipse.jetty", artifact, _JETTY, digest)
        for artifact, digest in (
            ("jetty-server", "3cc3b203b96c7115151ea94cad8af43c0914bfb6fe20cf2ca8378ec6822fa471"),
            ("jetty-servlet", "c09469f1045f9e207732692b3bc56e8fe4d0599de52d3bd593927c4a9060e679"),
            ("jetty-security", "1f0a1b58304741f243e2f6ac694e6506b1e26bb079cfc2baaa3f2a6ed4bf2d9f"),
            ("jetty-http", "de738c8cfd5701627b5373c42376453beb8276f989d75e5258e3b1ffe217e938"),
            ("jetty-io", "ce0ef76071e361d97f102e5cb48928b3cc66ac899d12be3ef0af8d06b4f768a1"),
            ("jetty-util", "1b61b875a6d40e8fd44cffb307bdb66f3459370a152a50a092a698c3737eeca9"),
        )
    ),
    *(
        Jar("org.apache.httpcomponents." + group, artifact, version, digest)
        for group, artifact, version, digest in (
            ("client5", "httpclient5", "5.5", "496b4b0e8d5f3a8139a5d2638486d304758bac3a9c39d76989f663cfd9354fc9"),
            ("core5", "httpcore5", "5.3.4", "f2b2fd7a0164e8c3120cd8437bc9fea439239e165c17262b3e907daa7e979f80"),
        )
    ),
    Jar(
        "com.github.ben-manes.caffeine",
        "caffeine",
        "2.9.3",
        "1e0a7bbef1dd791653143f3f05d0e489934bf5481e58a87c9e619cd46b68729b",
    ),
)

WRITER = "rest-client"
"""The `writer.id` of the commit that passes."""

_FETCH_SECONDS = 120
_START_SECONDS = 60


@contextmanager
def rest_gate(config: LifecycleConfig, config_path: Path, folder: Path) -> Iterator[str]:
    """Serve the live catalog of `config` over REST, behind the gate; gives the gate's address.

    Both are processes on loopback that end with the block, and write what they say into `folder`. Raises
    EnvironmentMissing when jars cannot be fetched, or one of the two does not start.
    """
    with server(config, folder / "rest-server.log") as upstream, proxy(upstream, config_path, folder) as address:
        yield address


def append(address: str, table: str, lineage: Mapping[str, str]) -> None:
    """Append a row, which the table has already, by pyiceberg's REST client; no `lineage` records nothing."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("rest", type="rest", uri=address)
    try:
        found = catalog.load_table(parse(table).parts)
        rows = found.scan(limit=1).to_arrow()
        read = {"input.row_count": str(rows.num_rows), "input.bytes_compressed": str(compressed_bytes(rows))}
        found.append(rows, snapshot_properties={**lineage, **read} if lineage else {})
    finally:
        catalog.close()


def refusal(address: str, table: str) -> str:
    """Return how the gate refused an append that records nothing; empty if it did not.

    The server's own refusal, which is of another type, does not count: the gate lets nothing get that far.
    """
    from pyiceberg.exceptions import ForbiddenError

    try:
        append(address, table, {})
    except ForbiddenError as error:
        text = " ".join(str(error).split())
        return text if text.startswith("LineageRejected: ") else ""
    return ""


@contextmanager
def server(config: LifecycleConfig, log: Path) -> Iterator[str]:
    """Serve the live catalog of `config` over REST, on loopback; gives the address. Raises EnvironmentMissing."""
    live = config.catalogs.live
    fetched = ivy.fetch(config.home, JARS, seconds=_FETCH_SECONDS)
    (driver,) = (file for file in resolve(config.home, (POSTGRES,)) if POSTGRES.artifact in file.name)
    path = [_classes(config.home, fetched), *fetched, driver, Path(spark_home(), "jars", "*")]
    prefix = f"spark.sql.catalog.{live.name}."
    properties = {
        key.removeprefix(prefix): value
        for key, value in catalog_conf(live, gated=True).items()
        if key.startswith(prefix)
    }
    command = [
        *(str(require_java()), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *("-classpath", ":".join(map(str, path)), "artemis.demo.RestServer"),
    ]
    with log.open("w") as output:
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdin is not None
        server.stdin.write("\n".join([live.name, *(f"{key}={value}" for key, value in properties.items()), "", ""]))
        server.stdin.flush()
        yield _said(server, log, "Listening on: ").rstrip("/")
    finally:
        _end(server)


@contextmanager
def proxy(upstream: str, config_path: Path, folder: Path) -> Iterator[str]:
    """Run `artemis gate serve` before `upstream`; gives the gate's address. Raises EnvironmentMissing."""
    log = folder / "gate.log"
    command = [sys.executable, "-m", "artemis_lifecycle.cli", "gate", "serve", "--upstream", upstream, "--port", "0"]
    with log.open("w") as output:
        gate = subprocess.Popen(
            [*command, "--config", str(config_path), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield json.loads("{" + _said(gate, log, "{"))["serving"]
    finally:
        _end(gate)


def _said(process: subprocess.Popen[str], log: Path, start: str) -> str:
    """Return the rest of the first line of `log` that begins with `start`, as soon as it is there."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_text().splitlines(keepends=True):
            if line.startswith(start) and line.endswith("\n"):
                return line.removeprefix(start).strip()
        time.sleep(0.05)
    raise EnvironmentMissing("The server did not start", path=str(log), hint="see what it says in there")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _classes(home: Path, libraries: list[Path]) -> Path:
    """The server and the project's gated catalog, compiled against Iceberg with the original names of Jackson."""
    given = Path(spark_home(), "jars")
    names = ("hadoop-client-*", "jackson-core", "jackson-databind", "jackson-annotations", "jakarta.servlet-api")
    with TemporaryDirectory() as work:
        folder = Path(work, "rest")
        folder.mkdir()
        for source in (Path(__file__).with_name("RestServer.java"), *(SOURCES / "gate").glob("*.java")):
            text = source.read_text().replace("org.apache.iceberg.shaded.", "")
            (folder / source.name).write_text(text)
        beside = [file for name in names for file in sorted(given.glob(f"{name}-[0-9]*.jar"))]
        return compiled(home, folder, [*libraries, *beside])
