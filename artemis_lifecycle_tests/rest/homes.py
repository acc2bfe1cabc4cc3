"""The catalogs of the contract (test_contract.py): how each is started, and where a proxy can stand before it."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from artemis_lifecycle_tests.catalogs.cutting_proxy import CuttingProxy
from artemis_lifecycle_tests.nessie import server as nessie_server
from artemis_lifecycle_tests.rest.servers import Proxy, Server
from artemis_lifecycle_tests.storage import s3_server

_METASTORE = Path(__file__).parent / "metastore" / "Metastore.java"


@dataclass(frozen=True)
class Home:
    """A running catalog: `live` is its section in lifecycle.yaml, `upstream` the address that commits go to."""

    name: str
    live: Mapping[str, Any] = field(default_factory=dict)
    upstream: str = ""
    root: str | None = None

    def behind(self, address: str) -> Home:
        """The same catalog, whose clients use another address for it."""
        properties = self.live.get("properties") or {}
        if self.name == "glue":
            return replace(self, live={**self.live, "properties": {**properties, "glue.endpoint": address}})
        return replace(self, live={**self.live, "uri": address})


SQL = Home("sql")


def of_rest(name: str, server: Server, state: Path) -> Home:
    live = server.catalog().model_dump(include={"type", "uri", "warehouse", "properties"})
    managed = server.warehouse.startswith("s3:")
    return Home(name, live | {"managed": managed}, server.uri, f"file://{state}")


@dataclass
class ThriftProxy:
    """As `Proxy`, before a metastore, of whose protocol it knows one call: a fault cuts the connection, before the
    server has a commit or after it did it."""

    upstream: str
    fault: Any = None

    @property
    def commits(self) -> list[bytes]:
        return self.cutting.calls

    @contextmanager
    def serving(self) -> Iterator[str]:
        host, _, port = self.upstream.partition(":")
        self.cutting = CuttingProxy((host, int(port)), call=b"alter_table_with_environment_context")
        with self.cutting.serving() as listening:
            yield f"thrift://{host}:{listening}"

    def next_commit(self, what: str) -> None:
        when = "after" if what in ("500", "lose", "cut") else "before"
        left = [what != "slow"]

        class Once(random.Random):
            def random(self) -> float:
                return 0.0 if left and left.pop() else 1.0

        self.cutting.dice, self.cutting.before, self.cutting.after = Once(), 0.0, 0.0
        setattr(self.cutting, when, 0.5)


def proxy_before(home: Home) -> Any:
    return ThriftProxy(home.upstream) if home.name == "hive" else Proxy(home.upstream)


@contextmanager
def glue() -> Iterator[Home]:
    """Glue and S3 by moto, with one pair of keys, without what other tests left there: moto's Glue is that of the whole
    process. moto takes any VersionId; Glue updates a table only from the version that the request names."""
    from moto.glue.exceptions import ConcurrentRunsExceededException
    from moto.glue.models import glue_backends
    from moto.glue.responses import GlueResponse

    lock, update_table = threading.Lock(), GlueResponse.update_table

    def from_the_named_version(self: Any) -> Any:
        with lock:
            given = self.parameters.get("TableInput")
            table = self.glue_backend.get_table(self.parameters.get("DatabaseName"), given["Name"])
            if self.parameters.get("VersionId") != table.as_dict()["VersionId"]:
                error: Any = ConcurrentRunsExceededException("Update table failed due to concurrent modifications")
                error.error_type = error.code = "ConcurrentModificationException"
                raise error
            return update_table(self)

    glue_backends.reset()
    given = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("AWS_")}
    with patch.object(GlueResponse, "update_table", from_the_named_version), s3_server.running() as server:
        bucket = server.bucket()
        properties = {
            "s3.endpoint": server.endpoint,
            "glue.endpoint": server.endpoint,
            "client.region": "us-east-1",
            "client.access-key-id": s3_server.ACCESS_KEY,
            "client.secret-access-key": s3_server.SECRET_KEY,
        }
        warehouse = f"s3://{bucket}/live"
        live = {"type": "glue", "uri": None, "warehouse": warehouse, "properties": properties}
        yield Home("glue", live, server.endpoint, f"s3://{bucket}/state")
    os.environ.update(given)


@contextmanager
def nessie(folder: Path) -> Iterator[Home]:
    with s3_server.running() as server, nessie_server.running(server, folder) as running:
        properties = {"s3.endpoint": server.endpoint, "s3.region": "us-east-1", **running.files}
        live = {"type": "rest", "uri": running.uri, "warehouse": "tests", "properties": properties}
        roots = [f"s3://{running.bucket}/warehouse"]
        yield Home("nessie", live | {"roots": roots, "managed": True}, running.uri, f"file://{folder}/state")


@contextmanager
def hive(folder: Path) -> Iterator[Home]:
    """A metastore of pyspark's own jars, over Derby. It listens on all interfaces."""
    pytest.importorskip("thrift", reason="pyiceberg[hive] is not installed")
    import pyspark

    jars = f"{Path(pyspark.__file__).parent}/jars/*"
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/db;create=true",
        "datanucleus.connectionPoolingType": "hikaricp",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.async.log.enabled": "false",
        "hive.metastore.warehouse.dir": f"file://{folder}/warehouse",
        "hive.metastore.disallow.incompatible.col.type.changes": "false",
    }
    rows = (f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items())
    (folder / "hive-site.xml").write_text(f"<configuration>{''.join(rows)}</configuration>")
    shutil.copy(_METASTORE, folder)
    subprocess.run(["javac", "-cp", jars, "-d", str(folder), str(_METASTORE)], check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = ["java", "-Xmx384m", "-cp", f"{folder}:{jars}", "Metastore", "-p", str(port)]
    with (folder / "metastore.log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        ends = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < ends, (folder / "metastore.log").read_text()[-2000:]
                time.sleep(0.2)
        live = {"type": "hive", "uri": f"thrift://127.0.0.1:{port}", "warehouse": f"file://{folder}/warehouse"}
        yield Home("hive", live, f"127.0.0.1:{port}", f"file://{folder}/state")
    finally:
        server.terminate()
        server.wait(30)
