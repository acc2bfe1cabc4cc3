"""A proxy before an S3 server that fails on purpose, as a process of its own. Every failure is one of real HTTP.

    python -m artemis_lifecycle_tests.soak.proxy UPSTREAM PORT-FILE LOG SEED

`PUT /.storm` takes the faults' shares as JSON; `GET /.storm` tells how often each was injected. Requests that change
something are written to LOG: time, who, what, key, the answer and the fault.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from urllib.parse import unquote

SLOW_DOWN = "503"
"""Refused, nothing done."""
BROKEN = "500"
"""Failed, nothing done."""
TIMEOUT = "timeout"
"""No answer until the client's patience is over; nothing done."""
LOST = "lost response"
"""Done, and the connection closed before the answer."""
LATE = "lost response, late"
"""Done, and no answer until the client's patience is over."""
CUT = "cut response"
"""Half of what was read, and the connection closed."""
SLOW = "slow listing"

KINDS = (SLOW_DOWN, BROKEN, TIMEOUT, LOST, LATE, CUT, SLOW)

PATIENCE = 30.0
"""Seconds; every client here gives up before."""

_SLOWEST = 4.0
_LIMIT = 64 * 1024 * 1024
_HEAD = b"\r\n\r\n"


@dataclass
class Message:
    """A request or an answer, read whole. `start` is its first line."""

    start: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    def head(self) -> bytes:
        return "".join([f"{self.start}\r\n", *(f"{key}: {value}\r\n" for key, value in self.headers), "\r\n"]).encode(
            "latin-1"
        )


@dataclass
class Proxy:
    host: str
    port: int
    log: TextIO
    dice: random.Random
    rates: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while (request := await _request(reader, writer)) is not None:
                method, target, _ = request.start.split(" ", 2)
                if target == "/.storm":
                    writer.write(self._control(method, request.body))
                    await writer.drain()
                    continue
                fault = self._fault(method, target)
                if fault is not None:
                    self.counts[fault] += 1
                if fault in (SLOW_DOWN, BROKEN):
                    self._note(request, method, target, fault, fault)
                    writer.write(_refusal(fault, method))
                    await writer.drain()
                    continue
                if fault == TIMEOUT:
                    self._note(request, method, target, "", fault)
                    await self._outlast(reader)
                    return
                if fault == SLOW:
                    await asyncio.sleep(self.dice.uniform(0.2, _SLOWEST))
                answer, upstream = await self._forward(request, method, upstream)
                self._note(request, method, target, answer.start.split(" ", 2)[1], fault)
                if fault == LATE:
                    await self._outlast(reader)
                if fault in (LOST, LATE):
                    return
                if fault == CUT and len(answer.body) > 1:
                    writer.write(answer.head() + answer.body[: len(answer.body) // 2])
                    await writer.drain()
                    return
                writer.write(answer.head() + answer.body)
                await writer.drain()
                if answer.header("connection").lower() == "close":
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # The client is gone: killed, or out of patience.
        finally:
            for each in (writer, *(() if upstream is None else (upstream[1],))):
                each.close()

    async def _outlast(self, reader: asyncio.StreamReader) -> None:
        """Until the client closes, or its patience must be over."""
        try:
            await asyncio.wait_for(reader.read(1), PATIENCE)
        except TimeoutError:
            return

    async def _forward(
        self, request: Message, method: str, upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None
    ) -> tuple[Message, tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]:
        for fresh in (False, True):
            if upstream is None or fresh:
                upstream = await asyncio.open_connection(self.host, self.port, limit=_LIMIT)
            reader, writer = upstream
            try:
                writer.write(request.head() + request.body)
                await writer.drain()
                answer = await _answer(reader, method)
            except (ConnectionError, asyncio.IncompleteReadError):
                # A kept connection that the server closed meanwhile; it has not read the request.
                writer.close()
                if fresh:
                    raise
                continue
            if answer.header("connection").lower() == "close":
                writer.close()
                return answer, None
            return answer, upstream
        raise AssertionError("the second try answers or raises")

    def _fault(self, method: str, target: str) -> str | None:
        draw = self.dice.random()
        for kind in (SLOW_DOWN, BROKEN, TIMEOUT, LOST, LATE):
            draw -= self.rates.get(kind, 0.0)
            if draw < 0:
                return kind
        listing = "list-type=2" in target
        if listing and self.dice.random() < self.rates.get(SLOW, 0.0):
            return SLOW
        if method == "GET" and self.dice.random() < self.rates.get(CUT, 0.0):
            return CUT
        return None

    def _control(self, method: str, body: bytes) -> bytes:
        if method == "PUT":
            self.rates = json.loads(body)
        answer = json.dumps({"requests": self.counts["requests"], **self.counts}).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer

    def _note(self, request: Message, method: str, target: str, status: str, fault: str | None) -> None:
        self.counts["requests"] += 1
        path, _, query = target.partition("?")
        if method in ("GET", "HEAD") or (method == "POST" and "delete" not in query.split("&")[0]):
            return
        keys = [unquote(path)]
        if method == "POST":
            keys = [f"{keys[0].rstrip('/')}/{key}" for key in re.findall("<Key>(.*?)</Key>", request.body.decode())]
            method = "DELETE"
        copied = " copy" if request.header("x-amz-copy-source") else ""
        who = re.split(r"[/ ]", request.header("user-agent"), maxsplit=1)[0]
        for key in keys:
            self.log.write(f"{time.time():.3f}\t{who}\t{method}{copied}\t{status}\t{fault or ''}\t{key}\n")
        self.log.flush()


async def _head(reader: asyncio.StreamReader) -> Message:
    text = (await reader.readuntil(_HEAD)).decode("latin-1")
    start, *lines = text.rstrip("\r\n").split("\r\n")
    return Message(start, [(key, value.strip()) for key, _, value in (line.partition(":") for line in lines)])


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Message | None:
    try:
        request = await _head(reader)
    except asyncio.IncompleteReadError:
        return None
    if request.header("expect").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        request.headers = [each for each in request.headers if each[0].lower() != "expect"]
    request.body = await _body(reader, request)
    return request


async def _answer(reader: asyncio.StreamReader, method: str) -> Message:
    while True:
        answer = await _head(reader)
        status = answer.start.split(" ", 2)[1]
        if not status.startswith("1"):
            break
    if method != "HEAD" and status not in ("204", "304"):
        whole = answer.header("content-length") or answer.header("transfer-encoding")
        answer.body = await _body(reader, answer) if whole else await reader.read()
    return answer


async def _body(reader: asyncio.StreamReader, message: Message) -> bytes:
    """As it travels: chunks stay chunks."""
    if "chunked" not in message.header("transfer-encoding").lower():
        return await reader.readexactly(int(message.header("content-length") or 0))
    found = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        found += line
        if size == 0:
            # Trailers, if any, up to the empty line.
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                found += line
            return found + line
        found += await reader.readexactly(size + 2)


def _refusal(kind: str, method: str) -> bytes:
    status, code = (
        ("503 Slow Down", "SlowDown") if kind == SLOW_DOWN else ("500 Internal Server Error", "InternalError")
    )
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>injected</Message></Error>'.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return head if method == "HEAD" else head + body


async def main(upstream: str, port_file: Path, log: Path, seed: int) -> None:
    host, _, port = upstream.removeprefix("http://").partition(":")
    with log.open("a") as handle:
        proxy = Proxy(host, int(port), handle, random.Random(seed))
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=_LIMIT)
        partial = port_file.with_suffix(".new")
        partial.write_text(str(server.sockets[0].getsockname()[1]))
        partial.rename(port_file)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
