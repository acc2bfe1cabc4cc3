"""Serves the gate until SIGTERM or SIGINT, and then lets requests in progress finish."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

import h11
import httpx
import uvicorn
from sqlalchemy.exc import SQLAlchemyError
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from artemis_lifecycle import escaping
from artemis_lifecycle.commits.proxy import Gate
from artemis_lifecycle.commits.requests import Finding, Rules
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.errors import BadInput, ConfigError, LifecycleError
from artemis_lifecycle.operations.database import Operations

_log = escaping.logger(__name__)
_SECONDS_TO_FINISH = 30
_HEAD_SECONDS = 30.0
_LONGEST_HEAD = 256 * 2**10
"""Bytes of a request's line and headers."""


def serve(
    config: LifecycleConfig,
    upstream: str,
    host: str,
    port: int,
    *,
    found: Callable[[Finding, str], None],
    ready: Callable[[str], None],
) -> None:
    """Serve the gate before `upstream` with the rules of `config`. `ready` receives the gate's address (port 0 is any
    free one), `found` each finding and the client it is about, after it is stored.

    Raises BadInput for an address that cannot be used, OperationsUnavailable if Postgres does not answer.
    """
    url = _upstream(upstream)
    if config.operations.uri is None:
        raise ConfigError(
            "operations.uri is not set", hint="set it in lifecycle.yaml; refused commits are stored there"
        )
    with Operations.open(config.operations.uri, purpose="gate") as operations, listening(host, port) as listener:

        def record(finding: Finding, who: str) -> None:
            try:
                operations.gate_attempts.record(
                    finding.table, who, finding.summary, finding.problems, refused=finding.refused
                )
            except (LifecycleError, SQLAlchemyError) as error:
                # Refused all the same: what the gate decides does not depend on the record.
                _log.error("An attempt on %s is not recorded: %s", finding.table, error)
            found(finding, who)

        def alive() -> bool:
            try:
                operations.clock.now()
            except (LifecycleError, SQLAlchemyError):
                return False
            return True

        # The databases of a SQL catalog and of operations are one, or on one server.
        needs_pass = config.catalogs.live.type == "sql"
        server = http_server(Gate(url, Rules(config), record, alive if needs_pass else None))
        bound, own = listener.getsockname()[:2]
        ready(f"http://{f'[{bound}]' if ':' in bound else bound}:{own}{url.raw_path.decode().rstrip('/')}")
        # uvicorn raises the signal again when it is done; that would end the process with it.
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            with suppress(KeyboardInterrupt):
                server.run(sockets=[listener])
        finally:
            signal.signal(signal.SIGTERM, before)


class _Protocol(H11Protocol):
    """Ends connections that do not send the head of a request in time; uvicorn waits for ever."""

    _late: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def _expect_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            if self._late is not None:
                self._late.cancel()
            self._late = None
        elif self._late is None:
            self._late = self.loop.call_later(_HEAD_SECONDS, self._end)

    def _end(self) -> None:
        self._late = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def http_server(gate: Gate) -> uvicorn.Server:
    """Return the server for a gate; `run` takes the sockets."""
    return uvicorn.Server(
        uvicorn.Config(
            gate.app(),
            # One parser on every machine. It keeps paths as they were sent.
            http=_Protocol,
            loop="asyncio",
            ws="none",
            # Its log has queries, and errors that quote headers.
            access_log=False,
            log_config=None,
            log_level="critical",
            # The catalog's own are passed on.
            server_header=False,
            date_header=False,
            # The client is the one that is connected, not the one that a header names.
            proxy_headers=False,
            h11_max_incomplete_event_size=_LONGEST_HEAD,
            timeout_graceful_shutdown=_SECONDS_TO_FINISH,
        )
    )


def _upstream(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise BadInput(f"--upstream is not an address: {error}", hint="use http(s)://HOST:PORT/PATH") from None
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise BadInput(
            f"{url.copy_with(userinfo=b'', query=None)} is not the address of a catalog",
            hint="use http(s)://HOST:PORT/PATH",
        )
    if url.userinfo:
        raise BadInput("--upstream has a login", hint="leave it out; each client sends its own credentials")
    return url


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises BadInput."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise BadInput(
            f"Cannot listen on {host}:{port}: {error.strerror}", hint="choose another --port or --host"
        ) from error
    # Its connections inherit this. Otherwise a body waits until the client has acknowledged the header, 40 ms later.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
