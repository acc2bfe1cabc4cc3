"""The proxy as an ASGI application: refuses commits without lineage, and streams everything else through as it is.

A refusal is a 403 of type LineageRejected, which no Iceberg client retries or takes for an unknown commit. If the
catalog cannot be reached, the client gets 503; if its answer to a request is lost, 502 or 504, after which a client
takes the commit's state as unknown (REST spec, `CommitStateUnknownException`).

Anybody can send requests, and Postgres can hang. So bodies share one budget of memory, two are parsed at a time, and
whatever a request waits for has a deadline. Only threads of their own wait for Postgres.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TypeVar
from weakref import WeakValueDictionary

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as Endpoint
from starlette.types import ASGIApp, Receive, Scope, Send

from artemis_lifecycle import escaping
from artemis_lifecycle.commits.requests import (
    LARGEST,
    Change,
    Finding,
    Route,
    Rules,
    UnclearError,
    changes,
    has_dot_segments,
    is_config,
    require_one_meaning,
    route_of,
)
from artemis_lifecycle.contracts.requirements import rejected
from artemis_lifecycle.escaping import terminal

Record = Callable[[Finding, str], None]
"""Stores a finding, and the client that it is about. It must not raise."""
T = TypeVar("T")

_log = escaping.logger(__name__)

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
_BODIES = 4 * LARGEST
"""Bytes of all bodies that are held."""
_BODY_SECONDS, _JUDGE_SECONDS, _ANSWER_SECONDS, _LONGEST_SECONDS = 60.0, 30.0, 600.0, 3600.0
"""For a commit's body, for its evaluation, for the whole answer to it, and for any request."""
_POSTGRES_SECONDS, _DOWN_SECONDS, _ALIVE_SECONDS = 3.0, 5.0, 1.0
"""How long a request waits for Postgres, and for how long an answer of Postgres, or none, counts."""
_SETTINGS = 2**20
"""Bytes of the catalog's settings."""
_MESSAGE = 16_000
"""Characters of an error."""
_TABLES = 10
"""Findings of one request that are recorded and answered."""
_OVERRIDES = frozenset((b"x-http-method-override", b"x-http-method", b"x-method-override"))
"""By these, some servers take a request for one of another method."""

Headers = list[tuple[bytes, bytes]]


class TooLargeError(UnclearError):
    """A body that is larger than the gate reads."""


class BusyError(Exception):
    """The gate cannot take the request now; the text says why."""


class Gate:
    """Forwards requests to `upstream`, the address of an Iceberg REST catalog, under the same paths. Only those of the
    REST spec (`/v1/`) are served. `alive`, for a catalog whose commits need a pass of its database, returns whether
    that answers: while it does not, what the rules let pass is not forwarded."""

    def __init__(
        self, upstream: httpx.URL, rules: Rules, record: Record, alive: Callable[[], bool] | None = None
    ) -> None:
        self._upstream = upstream
        # A catalog's server has other interfaces, which commit too: /api/v2 of Nessie, /management of others.
        self._served = upstream.raw_path.rstrip(b"/") + b"/v1/"
        self._rules = rules
        self._record = record
        self._alive = alive
        self._bytes = 0
        self._judges, self._recorders, self._askers = (ThreadPoolExecutor(2) for _ in range(3))
        self._down_until = self._alive_until = 0.0
        self._turns = WeakValueDictionary[str, _Turns]()
        # Without the pool of `Client`, which adds headers, keeps cookies and follows redirects.
        self._transport = httpx.AsyncHTTPTransport(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=4.0)
        )

    def app(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with self._transport:
                yield

        routes = [Endpoint("/{path:path}", self._answer, methods=_METHODS)]
        return Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(_Deadline)])

    async def _answer(self, request: Request) -> Response:
        taken = [0]
        try:
            return await self._judged(request, taken)
        except ClientDisconnect:
            return _error(400, "BadRequestException", "The client left before its request was complete")
        except BusyError as error:
            return _error(503, "ServiceUnavailableException", f"The lineage gate cannot take the request now: {error}")
        finally:
            self._bytes -= taken[0]

    async def _judged(self, request: Request, taken: list[int]) -> Response:
        path: bytes = request.scope["raw_path"]
        try:
            if not path.startswith(self._served) or has_dot_segments(path):
                text = (
                    f"The lineage gate serves only {self._served.decode()}, the Iceberg REST API of its catalog; "
                    "if the catalog serves that under another path, give --upstream with it"
                )
                return _error(404, "NotFoundException", text)
            require_one_meaning(path)
            if "content-length" in request.headers and "transfer-encoding" in request.headers:
                raise UnclearError("it has two lengths")
            route = _route(request.method, path)
            body = None if route is None or route.kind == "unknown" else await self._whole(request, taken)
            refused, wanted = ([], []) if route is None else await self._refused(request, route, body or b"")
        except TooLargeError as error:
            return _error(413, "BadRequestException", f"The lineage gate refuses the request: {error}")
        except UnclearError as error:
            return _error(400, "BadRequestException", f"The lineage gate cannot read the request: {error}")
        if refused:
            texts = (str(rejected(finding.problems, finding.table)) for finding in refused)
            return _error(403, "LineageRejected", " ".join(texts))
        try:
            forwarded = self._forwarded(request, path, body)
            if body is not None:
                async with asyncio.timeout(_ANSWER_SECONDS), self._in_turn(wanted):
                    ref = await self._unseen_ref(request, path, wanted)
                    if ref is not None:
                        said = f"Ref {ref} was made on a snapshot that the commit would remove"
                        return _error(409, "CommitFailedException", said)
                    return await _held(await self._transport.handle_async_request(forwarded))
            answer = await self._transport.handle_async_request(forwarded)
            if request.method == "GET" and is_config(path) and answer.status_code == 200:
                return await _own_address(answer)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            return _error(503, "ServiceUnavailableException", "The catalog behind the lineage gate cannot be reached")
        except (httpx.TimeoutException, TimeoutError):
            return _error(504, "GatewayTimeoutException", f"The catalog did not answer in time{_unknown(route)}")
        except (httpx.TransportError, httpx.DecodingError):
            return _error(502, "BadGatewayException", f"The catalog's answer was lost{_unknown(route)}")
        return _streamed(answer, _rest(answer))

    @asynccontextmanager
    async def _in_turn(self, wanted: Sequence[Change]) -> AsyncIterator[None]:
        """Let an expiration of a table wait for the commits in progress, and later ones for it: none makes a ref
        between the look at the table and the removal of its snapshots. Names that differ in case alone are one."""
        names = {".".join((*each.table.levels, each.table.name)).casefold(): bool(each.expires) for each in wanted}
        async with AsyncExitStack() as stack:
            for name, expires in sorted(names.items()):
                turns = self._turns.get(name) or self._turns.setdefault(name, _Turns())
                await stack.enter_async_context(turns.alone() if expires else turns.beside_others())
            yield

    async def _unseen_ref(self, request: Request, path: bytes, wanted: Sequence[Change]) -> str | None:
        """Return a ref on a snapshot that a commit would remove, and of which its client does not know: no requirement
        of the protocol detects it."""
        expires = frozenset[int]().union(*(each.expires for each in wanted))
        if not expires:
            return None
        known = frozenset[str]().union(*(each.refs for each in wanted))
        own = {b"host", b"expect", b"content-length", b"content-type", b"content-encoding", b"idempotency-key"}
        asked = httpx.Request(
            "GET",
            self._upstream,
            headers=[
                (b"host", self._upstream.netloc),
                *(each for each in _end_to_end(request.headers.raw) if each[0].lower() not in own | _OVERRIDES),
            ],
            extensions={"target": path + b"?snapshots=refs", "timeout": _TIMEOUTS},
        )
        answer, content = await self._transport.handle_async_request(asked), bytearray()
        async for chunk in answer.aiter_bytes():
            content += chunk
            if len(content) > LARGEST:
                break
        await answer.aclose()
        try:
            refs = json.loads(content)["metadata"]["refs"] if answer.status_code == 200 else {}
            return next(
                (name for name, ref in refs.items() if ref["snapshot-id"] in expires and name not in known), None
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # The client proves its commit afterwards.
            return None

    async def _refused(self, request: Request, route: Route, body: bytes) -> tuple[list[Finding], list[Change]]:
        """Record what is wrong with the request. Return what it is refused for, and the changes that it wants."""
        encoding = request.headers.get("content-encoding", "")
        address = request.client.host if request.client else "unknown"
        who = f"{address} {request.headers.get('user-agent', '')[:200]}".strip()

        def judge() -> tuple[list[Finding], bool, list[Change]]:
            found, gated, wanted = list[Finding](), False, list[Change]()
            for change in changes(route, body, encoding):
                wanted.append(replace(change, summaries=()))
                found += self._rules.findings(change)
                gated = gated or self._rules.gates(change)
                if len(found) >= _TABLES:
                    break
            return found[:_TABLES], gated, wanted

        try:
            found, gated, wanted = await _within(_JUDGE_SECONDS, self._judges, judge)
        except TimeoutError:
            raise BusyError("others are evaluated before it") from None
        refused = [finding for finding in found if finding.refused]
        if gated and not refused and self._alive is not None and not await self._is_alive(self._alive):
            raise BusyError("Postgres does not answer, and the commit needs a pass of the catalog's database")
        if found:
            await self._recorded(found, who)
        return refused, wanted

    async def _recorded(self, found: Sequence[Finding], who: str) -> None:
        def record() -> None:
            for finding in found:
                self._record(finding, who)

        if time.monotonic() > self._down_until:
            try:
                return await _within(_POSTGRES_SECONDS, self._recorders, record)
            except TimeoutError:
                self._down_until = time.monotonic() + _DOWN_SECONDS
        # Refused all the same: what the gate decides does not depend on the record.
        _log.error("Attempts on %s are not recorded: Postgres does not answer", ", ".join(each.table for each in found))

    async def _is_alive(self, alive: Callable[[], bool]) -> bool:
        if time.monotonic() < self._alive_until:
            return True
        try:
            found = time.monotonic() > self._down_until and await _within(_POSTGRES_SECONDS, self._askers, alive)
        except TimeoutError:
            found = False
        if found:
            self._alive_until = time.monotonic() + _ALIVE_SECONDS
        return found

    async def _whole(self, request: Request, taken: list[int]) -> bytes:
        """Return the body. `taken` counts its bytes, which the caller gives back."""
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    taken[0] += len(chunk)
                    self._bytes += len(chunk)
                    if len(body) > LARGEST:
                        raise TooLargeError(f"its body is more than {LARGEST:,} bytes")
                    if self._bytes > _BODIES:
                        raise BusyError("it holds the bodies of too many others")
        except TimeoutError:
            raise UnclearError(f"its body did not arrive within {_BODY_SECONDS:g} s") from None
        return bytes(body)

    def _forwarded(self, request: Request, path: bytes, body: bytes | None) -> httpx.Request:
        own = {b"host", b"expect"} | _OVERRIDES
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


class _Turns:
    """The commits of one table: any number beside each other, or one alone."""

    def __init__(self) -> None:
        self._first = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._others = 0

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._first:
            await self._idle.wait()
            yield

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        async with self._first:
            self._others += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._others -= 1
            if not self._others:
                self._idle.set()


class _Deadline:
    """Ends every request that takes too long, and with it the connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.timeout(_LONGEST_SECONDS if scope["type"] == "http" else None):
            await self._app(scope, receive, send)


def _route(method: str, path: bytes) -> Route | None:
    """Return what the request could change. Of deletions, only those of what is unknown below a table: a table itself
    may be dropped."""
    if method != "DELETE":
        return None if method in _READING else route_of(path)
    try:
        found = route_of(path)
    except UnclearError:
        return None
    return found if found is not None and found.kind == "unknown" else None


async def _within(seconds: float, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Raises TimeoutError. The thread then goes on; what has not begun is left out."""
    return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(threads, work), seconds)


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
    content = bytearray()
    async for chunk in answer.aiter_bytes():
        content += chunk
        if len(content) > _SETTINGS:
            await answer.aclose()
            break
    try:
        settings = json.loads(content)
        sections = [{} if (each := settings.get(name)) is None else each for name in ("defaults", "overrides")]
        if not all(isinstance(section, dict) for section in sections):
            raise ValueError
    except (ValueError, AttributeError, RecursionError):
        # Names of tables depend on them.
        return _error(502, "BadGatewayException", "The lineage gate cannot read the catalog's settings")
    for section in sections:
        separator = section.get("namespace-separator", "%1F")
        if separator not in ("%1F", "\x1f", "%2E", "."):
            text = f"The catalog separates levels of namespaces by {separator!r}, which the lineage gate does not read"
            return _error(502, "BadGatewayException", text)
    removed = [section.pop("uri", None) for section in sections]
    whole = json.dumps(settings).encode() if any(removed) else bytes(content)
    return _complete(answer, whole, b"content-encoding", b"content-length", b"etag")


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
    return JSONResponse({"error": {"message": terminal(message)[:_MESSAGE], "type": kind, "code": status}}, status)
