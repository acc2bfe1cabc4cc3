"""The proxy as an ASGI application: refuses commits without lineage, and streams everything else through as it is.

A refusal is a 403 of type LineageRejected, which no Iceberg client retries or takes for an unknown commit. If the
catalog cannot be reached, the client gets 503; if its answer to a request is lost, 502 or 504, after which a client
takes the commit's state as unknown (REST spec, `CommitStateUnknownException`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as Endpoint

from artemis_lifecycle.contracts.requirements import rejected
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.gate.bodies import LARGEST, changes
from artemis_lifecycle.gate.routes import (
    Route,
    UnclearError,
    has_dot_segments,
    is_config,
    require_one_meaning,
    route_of,
)
from artemis_lifecycle.gate.rules import Finding, Rules

Record = Callable[[Finding, str], None]
"""Stores a finding, and the client that it is about. It must not raise."""

_READING = frozenset(("GET", "HEAD", "OPTIONS", "DELETE"))
_METHODS = [*_READING, "POST", "PUT", "PATCH"]
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_TIMEOUTS = {"connect": 10.0, "read": 300.0, "write": 300.0, "pool": 10.0}
"""Seconds. A catalog that takes longer over one commit has lost its clients, too."""
_HELD = 16 * 2**20
"""Bytes of the answer to a commit that are held until it is complete."""

Headers = list[tuple[bytes, bytes]]


class TooLargeError(UnclearError):
    """A body that is larger than the gate reads."""


class Gate:
    """Forwards requests to `upstream`, the address of an Iceberg REST catalog, under the same paths. Only those of the
    REST spec (`/v1/`) are served."""

    def __init__(self, upstream: httpx.URL, rules: Rules, record: Record) -> None:
        self._upstream = upstream
        # A catalog's server has other interfaces, which commit too: /api/v2 of Nessie, /management of others.
        self._served = upstream.raw_path.rstrip(b"/") + b"/v1/"
        self._rules = rules
        self._record = record
        # Without the pool of `Client`, which adds headers, keeps cookies and follows redirects.
        self._transport = httpx.AsyncHTTPTransport(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=4.0)
        )

    def app(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with self._transport:
                yield

        return Starlette(routes=[Endpoint("/{path:path}", self._answer, methods=_METHODS)], lifespan=lifespan)

    async def _answer(self, request: Request) -> Response:
        path: bytes = request.scope["raw_path"]
        try:
            if not path.startswith(self._served) or has_dot_segments(path):
                text = (
                    f"The lineage gate serves only {self._served.decode()}, the Iceberg REST API of its catalog; "
                    "if the catalog serves that under another path, give --upstream with it"
                )
                return _error(404, "NotFoundException", text)
            require_one_meaning(path)
            route = None if request.method in _READING else route_of(path)
            body = None if route is None else await _whole(request)
            refused = () if route is None or body is None else await self._refused(request, route, body)
        except TooLargeError as error:
            return _error(413, "BadRequestException", f"The lineage gate refuses the request: {error}")
        except UnclearError as error:
            return _error(400, "BadRequestException", f"The lineage gate cannot read the request: {error}")
        if refused:
            texts = (str(rejected(finding.problems, finding.table)) for finding in refused)
            return _error(403, "LineageRejected", " ".join(texts))
        try:
            answer = await self._transport.handle_async_request(self._forwarded(request, path, body))
            if route is not None:
                return await _held(answer)
            if request.method == "GET" and is_config(path) and answer.status_code == 200:
                return await _own_address(answer)
        except ClientDisconnect:
            return _error(400, "BadRequestException", "The client left before its request was complete")
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            return _error(503, "ServiceUnavailableException", "The catalog behind the lineage gate cannot be reached")
        except httpx.TimeoutException:
            return _error(504, "GatewayTimeoutException", f"The catalog did not answer in time{_unknown(route)}")
        except (httpx.TransportError, httpx.DecodingError):
            return _error(502, "BadGatewayException", f"The catalog's answer was lost{_unknown(route)}")
        return _streamed(answer, _rest(answer))

    async def _refused(self, request: Request, route: Route, body: bytes) -> list[Finding]:
        """Record what is wrong with the request. Return what it is refused for."""
        encoding = request.headers.get("content-encoding", "")
        address = request.client.host if request.client else "unknown"
        who = f"{address} {request.headers.get('user-agent', '')[:200]}".strip()

        def judge() -> list[Finding]:
            found = [each for change in changes(route, body, encoding) for each in self._rules.findings(change)]
            for finding in found:
                self._record(finding, who)
            return [finding for finding in found if finding.refused]

        return await run_in_threadpool(judge)

    def _forwarded(self, request: Request, path: bytes, body: bytes | None) -> httpx.Request:
        own = {b"host", b"expect"}
        headers = [(name, value) for name, value in _end_to_end(request.headers.raw) if name.lower() not in own]
        client = request.client.host if request.client else "unknown"
        before = request.headers.get("x-forwarded-for")
        headers = [each for each in headers if each[0].lower() != b"x-forwarded-for"]
        headers.append((b"x-forwarded-for", f"{before}, {client}".encode() if before else client.encode()))
        # A catalog that returns addresses of its own then returns the gate's.
        for name, value in ((b"x-forwarded-host", request.headers.get("host")), (b"x-forwarded-proto", "http")):
            if value and name.decode() not in request.headers:
                headers.append((name, value.encode("latin-1")))
        has_body = any(name in request.headers for name in ("content-length", "transfer-encoding"))
        query: bytes = request.scope["query_string"]
        return httpx.Request(
            request.method,
            self._upstream,
            headers=[(b"host", self._upstream.netloc), *headers],
            content=body if body is not None else request.stream() if has_body else None,
            # The path as it came: httpx would encode it in its own way.
            extensions={"target": path + (b"?" + query if query else b""), "timeout": _TIMEOUTS},
        )


async def _whole(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            raise TooLargeError(f"its body is more than {LARGEST:,} bytes")
    return bytes(body)


async def _held(answer: httpx.Response) -> Response:
    """Return the answer to a commit only when it is complete, so that a cut one does not pass for success. A very large
    one is streamed from `_HELD` on."""
    chunks, held = _rest(answer), bytearray()
    async for chunk in chunks:
        held += chunk
        if len(held) > _HELD:
            return _streamed(answer, chunks, bytes(held))
    return _complete(answer, bytes(held))


async def _own_address(answer: httpx.Response) -> Response:
    """Return the catalog's settings for clients without `uri`, which would lead them past the gate."""
    content = await answer.aread()
    try:
        settings = json.loads(content)
        sections = [settings[name] for name in ("defaults", "overrides") if isinstance(settings.get(name), dict)]
    except (ValueError, AttributeError):
        return _complete(answer, content, b"content-encoding")
    for section in sections:
        separator = section.get("namespace-separator", "%1F")
        if separator not in ("%1F", "\x1f", "%2E", "."):
            text = f"The catalog separates levels of namespaces by {separator!r}, which the lineage gate does not read"
            return _error(502, "BadGatewayException", text)
    removed = [section.pop("uri", None) for section in sections]
    if any(removed):
        content = json.dumps(settings).encode()
    return _complete(answer, content, b"content-encoding", b"content-length", b"etag")


async def _rest(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


def _complete(answer: httpx.Response, content: bytes, *without: bytes) -> Response:
    response = Response(content, answer.status_code)
    headers = [each for each in _end_to_end(answer.headers.raw) if each[0].lower() not in without]
    if answer.status_code not in (204, 304) and not any(name.lower() == b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(content)).encode()))
    response.raw_headers = headers
    return response


def _streamed(answer: httpx.Response, chunks: AsyncIterator[bytes], first: bytes = b"") -> Response:
    async def content() -> AsyncIterator[bytes]:
        if first:
            yield first
        async for chunk in chunks:
            yield chunk

    response = StreamingResponse(content(), answer.status_code)
    response.raw_headers = _end_to_end(answer.headers.raw)
    return response


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return headers without those that are for one connection only (RFC 9110, section 7.6.1)."""
    kept = [(name.lower(), value) for name, value in headers]
    named = {each.strip().lower() for name, value in kept if name == b"connection" for each in value.split(b",")}
    return [(name, value) for name, value in kept if name not in _HOP_BY_HOP | named]


def _unknown(route: Route | None) -> str:
    return "" if route is None else "; the state of the commit is unknown"


def _error(status: int, kind: str, message: str) -> Response:
    """Return an error in the form of the REST spec (`IcebergErrorResponse`)."""
    return JSONResponse({"error": {"message": terminal(message), "type": kind, "code": status}}, status)
