"""A real Nessie server: an Iceberg REST catalog too, if it gets an S3 server for the files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from artemis_lifecycle_tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from examples.mission.nessie_server import nessie_server

_HOME = Path(__file__).parents[2] / ".artemis"


@dataclass(frozen=True)
class Nessie:
    """A running server. `uri` is that of its REST catalog, `api` that of its own API; `files` is what clients need to
    reach its files, in `bucket`."""

    uri: str
    api: str
    pid: int
    files: dict[str, str]
    bucket: str = ""


@contextmanager
def running(s3: S3Server | None, folder: Path) -> Iterator[Nessie]:
    """A server on a free loopback port, with an empty warehouse in `s3`, or none."""
    files = {"s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
    bucket = "" if s3 is None else s3.bucket()
    with nessie_server(_HOME, folder, {} if s3 is None else _catalog_on(s3, bucket)) as server:
        yield Nessie(server.iceberg, server.api, server.pid, files, bucket)


def _catalog_on(s3: S3Server, bucket: str) -> dict[str, str]:
    options = "nessie.catalog.service.s3.default-options"
    return {
        "nessie.catalog.default-warehouse": "tests",
        "nessie.catalog.warehouses.tests.location": f"s3://{bucket}/warehouse",
        f"{options}.endpoint": s3.endpoint,
        f"{options}.region": "us-east-1",
        f"{options}.path-style-access": "true",
        f"{options}.request-signing-enabled": "false",
        f"{options}.access-key": "urn:nessie-secret:quarkus:artemis-tests.s3",
        "artemis-tests.s3.name": ACCESS_KEY,
        "artemis-tests.s3.secret": SECRET_KEY,
    }
