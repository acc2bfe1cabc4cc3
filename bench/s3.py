"""An S3 server for benches: a versitygw on loopback, which keeps objects as files on this disk, and before it a proxy,
a process of its own (`python -m bench.s3 PORT MILLISECONDS ROOT CHECKSUMS`).

Through the proxy no answer begins earlier than so many milliseconds after its request; what the server itself needs is
within that time. Requests are counted. One condition is the proxy's own: S3 refuses a copy with `If-None-Match: *`
onto an object, and versitygw 1.8 does not look at it. Without `checksums`, the SHA-256 that it computes of a copy is
left out of its answers, as by a server that computes none.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

KEYS = {"ROOT_ACCESS_KEY": "benchaccess", "ROOT_SECRET_KEY": "benchsecret"}
BUCKET = "bench"

# --- the server -------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """One request: what it is (HEAD, GET, LIST, PUT, COPY, DELETE, POST), its path, and when it and its answer began
    (`time.monotonic`)."""

    kind: str
    path: str
    began: float
    answered: float


@dataclass
class Server:
    endpoint: str
    proxy: subprocess.Popen[str] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """How a catalog reaches it."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": KEYS["ROOT_ACCESS_KEY"],
            "s3.secret-access-key": KEYS["ROOT_SECRET_KEY"],
            "s3.path-style-access": "true",
        }

    def take(self) -> list[Request]:
        """Return the requests since the last call; none without a proxy."""
        if self.proxy is None:
            return []
        assert self.proxy.stdin is not None and self.proxy.stdout is not None
        self.proxy.stdin.write("\n")
        self.proxy.stdin.flush()
        return [Request(*each) for each in json.loads(self.proxy.stdout.readline())]


@contextmanager
def serving(binary: str, root: Path, latency: float = 0, *, checksums: bool = True) -> Iterator[Server]:
    """A server that keeps its buckets as folders under `root`, with BUCKET, behind a proxy if there is any `latency`
    (milliseconds)."""
    (root / BUCKET).mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary, "--port", f"127.0.0.1:{port}", "--keep-alive", "posix", str(root)]
    with subprocess.Popen(command, env={**os.environ, **KEYS}, stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                with socket.socket() as wire:
                    if wire.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            if not latency:
                yield Server(f"http://127.0.0.1:{port}")
                return
            before = [sys.executable, "-m", "bench.s3", str(port), str(latency), str(root), str(int(checksums))]
            with subprocess.Popen(before, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
                try:
                    assert proxy.stdout is not None
                    yield Server(f"http://127.0.0.1:{int(proxy.stdout.readline())}", proxy)
                finally:
                    proxy.kill()
        finally:
            server.terminate()


# --- what requests say ------------------------------------------------------------------------------------------------


def counts(requests: Iterable[Request]) -> dict[str, int]:
    return dict(sorted(Counter(each.kind for each in requests).items()))


def in_flight(requests: Sequence[Request], began: float, ended: float) -> dict[str, float]:
    """Return the seconds between two instants with no request under way, with one (whoever sent it waited for it
    alone), and with more."""
    inside = [each for each in requests if each.answered > began and each.began < ended]
    edges = sorted(
        [(max(each.began, began), 1) for each in inside] + [(min(each.answered, ended), -1) for each in inside]
    )
    found, now, last = {"none": 0.0, "one": 0.0, "more": 0.0}, 0, began
    for at, step in (*edges, (ended, 0)):
        found["none" if now == 0 else "one" if now == 1 else "more"] += at - last
        now, last = now + step, at
    return {name: round(seconds, 3) for name, seconds in found.items()}


# --- the proxy --------------------------------------------------------------------------------------------------------

_METHOD = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1\.1\r\n")
_COPY = re.compile(rb"\r\nx-amz-copy-source:", re.IGNORECASE)
_ONLY_NEW = re.compile(rb"\r\nif-none-match: *\*", re.IGNORECASE)
_DIGEST = re.compile(rb"<ChecksumSHA256>[^<]*</ChecksumSHA256>")
_END = b"\r\n\r\n"
_TAKEN = b"<Error><Code>PreconditionFailed</Code><Message>It is there</Message></Error>"
_REFUSED = b"HTTP/1.1 412 Precondition Failed\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s"


def _kind(method: str, target: str, head: bytes) -> str:
    path, _, query = target.partition("?")
    if method == "GET" and "/" not in path.strip("/"):
        return "LIST"
    if method == "POST" and query.split("=")[0] == "delete":
        return "DELETE"
    return "COPY" if method == "PUT" and _COPY.search(head) else method


@dataclass
class _Proxy:
    port: int
    delay: float
    root: Path
    digests: bool
    seen: list[Request] = field(default_factory=list)
    copying: set[Path] = field(default_factory=set)

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Client(self), "127.0.0.1", 0, backlog=512)
        loop.add_reader(sys.stdin.fileno(), self.told)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    def told(self) -> None:
        if not sys.stdin.readline():
            raise SystemExit
        print(json.dumps(self.seen), flush=True)
        self.seen.clear()


class _Client(asyncio.Protocol):
    """A connection of a client, and its own to the server. Clients wait for an answer before they ask again, so that
    what arrives after an answer began is the next request."""

    def __init__(self, proxy: _Proxy) -> None:
        self.proxy, self.loop = proxy, asyncio.get_running_loop()
        self.server: asyncio.Transport | None = None
        self.unsent: list[bytes] = []
        self.head, self.asked, self.began = b"", False, 0.0
        self.kind, self.path, self.new = "", "", Path()
        self.held: list[bytes] | None = None
        self.over = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.connecting = self.loop.create_task(self.connect())

    async def connect(self) -> None:
        self.server, _ = await self.loop.create_connection(lambda: _Answers(self), "127.0.0.1", self.proxy.port)
        self.server.writelines(self.unsent)

    def connection_lost(self, error: Exception | None) -> None:
        self.connecting.cancel()
        self.proxy.copying.discard(self.new)
        if self.server is not None:
            self.server.close()

    def data_received(self, data: bytes) -> None:
        if not self.asked:
            self.began = self.began if self.head else self.loop.time()
            self.head += data
            begun = _METHOD.match(self.head)
            if begun is not None and _END not in self.head:
                return
            data, self.head = self.head, b""
            # Else the rest of a body that the server answered before its end.
            if begun is not None:
                self.asked = True
                if not self.admitted(begun[1].decode(), begun[2].decode(), data.partition(_END)[0]):
                    return
        if self.server is None:
            self.unsent.append(data)
        else:
            self.server.write(data)

    def admitted(self, method: str, target: str, head: bytes) -> bool:
        self.kind, self.path = _kind(method, target, head), target
        if self.kind == "COPY" and _ONLY_NEW.search(head):
            self.new = self.proxy.root / unquote(target.partition("?")[0]).lstrip("/")
            if self.new in self.proxy.copying or self.new.exists():
                self.new = Path()
                self.answer(_REFUSED % (len(_TAKEN), _TAKEN))
                return False
            self.proxy.copying.add(self.new)
        return True

    def answer(self, data: bytes) -> None:
        """Pass on what the server says, its first byte not before the time."""
        if self.asked and not data.startswith(b"HTTP/1.1 100 "):
            self.asked = False
            self.proxy.copying.discard(self.new)
            if self.kind == "COPY" and not self.proxy.digests:
                data = _DIGEST.sub(lambda found: b" " * len(found[0]), data)
            self.held = [data]
            self.loop.call_at(self.began + self.proxy.delay, self.release)
        elif self.held is not None:
            self.held.append(data)
        else:
            self.transport.write(data)

    def release(self) -> None:
        self.proxy.seen.append(Request(self.kind, self.path, self.began, self.loop.time()))
        held, self.held = self.held or [], None
        self.transport.writelines(held)
        if self.over:
            self.transport.close()

    def end(self) -> None:
        self.over = True
        if self.held is None:
            self.transport.close()


class _Answers(asyncio.Protocol):
    """The server's side of a connection."""

    def __init__(self, client: _Client) -> None:
        self.client = client

    def data_received(self, data: bytes) -> None:
        self.client.answer(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.client.end()


if __name__ == "__main__":
    at, milliseconds, folder, with_digests = sys.argv[1:]
    asyncio.run(_Proxy(int(at), float(milliseconds) / 1000, Path(folder), with_digests == "1").serve())
