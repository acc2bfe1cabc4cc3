"""A small HTTP server in the catalog's place, for what a real one cannot be made to do: it records each request as it
came, and answers as a test says. And the gate before it, in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.update import AddSnapshotUpdate

from artemis_lifecycle.commits import server
from artemis_lifecycle.commits.proxy import Gate
from artemis_lifecycle.commits.requests import Finding, Rules
from artemis_lifecycle.config.models import LifecycleConfig

Headers = list[tuple[str, str]]


@dataclass(frozen=True)
class Seen:
    method: str
    target: str
    headers: Headers
    body: bytes


@dataclass
class Answer:
    """`chunked`: the sizes of the chunks it is sent in; empty: with its length."""

    status: int = 200
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    chunked: tuple[int, ...] = ()


@dataclass
class Upstream:
    """`act`, if set, is called with the handler instead of answering."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    answer: Answer = field(default_factory=Answer)
    act: Callable[[BaseHTTPRequestHandler], None] | None = None


@contextmanager
def listening() -> Iterator[Upstream]:
    upstream = Upstream()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            if upstream.act is not None:
                upstream.act(self)
                return
            body = read_body(self)
            upstream.seen.append(Seen(self.command, self.path, list(self.headers.items()), body))
            answer = upstream.answer
            head = f"HTTP/1.1 {answer.status} Fine\r\n" + "".join(f"{k}: {v}\r\n" for k, v in answer.headers)
            bodiless = self.command == "HEAD" or answer.status in (204, 304)
            if answer.chunked and not bodiless:
                head += "Transfer-Encoding: chunked\r\n"
            elif answer.status not in (204, 304):
                head += f"Content-Length: {len(answer.body)}\r\n"
            self.wfile.write(f"{head}\r\n".encode("latin-1"))
            if bodiless:
                return
            self.wfile.write(b"".join(_chunks(answer.body, answer.chunked)) if answer.chunked else answer.body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    double = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    double.daemon_threads = True
    thread = threading.Thread(target=double.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    upstream.port = double.server_address[1]
    try:
        yield upstream
    finally:
        double.shutdown()
        thread.join()
        double.server_close()


def rest_server(catalog: Catalog, arrived: list[AddSnapshotUpdate]) -> Callable[[BaseHTTPRequestHandler], None]:
    """What makes an `Upstream` a REST server over another catalog: `loadTable` and `updateTable`. `arrived` receives
    every new snapshot that a client sends."""

    def answer(handler: BaseHTTPRequestHandler) -> tuple[int, str]:
        body, parts = read_body(handler), handler.path.split("/")
        if parts[-1] == "config":
            return 200, '{"defaults": {}, "overrides": {}}'
        try:
            table = catalog.load_table((parts[3], parts[5]))
            if handler.command == "GET":
                metadata = table.metadata.model_dump_json()
                return (
                    200,
                    f'{{"metadata-location": "{table.metadata_location}", "metadata": {metadata}, "config": {{}}}}',
                )
            request = CommitTableRequest.model_validate_json(body)
            arrived.extend(each for each in request.updates if isinstance(each, AddSnapshotUpdate))
            return 200, catalog.commit_table(table, request.requirements, request.updates).model_dump_json()
        except CommitFailedException as error:
            said = {"message": str(error), "type": "CommitFailedException", "code": 409}
            return 409, json.dumps({"error": said})

    def act(handler: BaseHTTPRequestHandler) -> None:
        status, text = answer(handler)
        content = text.encode()
        head = f"HTTP/1.1 {status} Fine\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        handler.wfile.write(head.encode() + content)

    return act


def read_body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("Transfer-Encoding") == "chunked":
        parts = []
        while size := int(handler.rfile.readline(), 16):
            parts.append(handler.rfile.read(size))
            handler.rfile.readline()
        handler.rfile.readline()
        return b"".join(parts)
    return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))


def _chunks(body: bytes, sizes: tuple[int, ...]) -> Iterator[bytes]:
    at, turn = 0, 0
    while at < len(body):
        part = body[at : at + sizes[turn % len(sizes)]]
        yield f"{len(part):x}\r\n".encode() + part + b"\r\n"
        at, turn = at + len(part), turn + 1
    yield b"0\r\n\r\n"


@dataclass
class Served:
    """A gate in this process, at `port`, and what it found."""

    port: int
    found: list[tuple[Finding, str]]


@contextmanager
def gate_before(address: str, config: LifecycleConfig) -> Iterator[Served]:
    found: list[tuple[Finding, str]] = []
    gate = Gate(httpx.URL(address), Rules(config), lambda finding, who: found.append((finding, who)))
    with server.listening("127.0.0.1", 0) as listener:
        running = server.http_server(gate)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Served(listener.getsockname()[1], found)
        finally:
            running.should_exit = True
            thread.join()
