"""The one way to a Postgres: every engine of the product, with a limit on how long it waits.

A server that answers ends a long statement by itself (`statement_timeout`). One that hangs (stopped, or behind a broken
network) accepts connections and answers nothing, and libpq waits for ever. So a thread ends the socket of a statement
that is not answered some seconds after its limit, which libpq reports as a lost connection.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg2
from psycopg2.extensions import connection as _PlainConnection
from psycopg2.extensions import cursor as _PlainCursor
from sqlalchemy import URL, Engine, create_engine, event

T = TypeVar("T")

STATEMENT_SECONDS = 300.0
CONNECT_SECONDS = 10
UNDEFINED_TABLE = "42P01"
_GRACE_SECONDS = 5.0
_PING = "SELECT 1"
"""The pool's test of a connection, which no lock can delay."""


class _Watch:
    """Ends the sockets of statements that are not answered in time."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[float, _PlainConnection]] = {}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def __call__(self, connection: _PlainConnection, seconds: float, call: Callable[..., T], *arguments: object) -> T:
        key = threading.get_ident()
        with self._lock:
            outer = self._waiting.get(key)
            self._waiting[key] = outer or (time.monotonic() + seconds, connection)
            if self._thread is None or not self._thread.is_alive():  # A fork leaves it behind.
                self._thread = threading.Thread(target=self._run, name="postgres-deadlines", daemon=True)
                self._thread.start()
            elif len(self._waiting) == 1:
                self._changed.notify()
        try:
            return call(*arguments)
        finally:
            if outer is None:
                with self._lock:
                    self._waiting.pop(key, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                now = time.monotonic()
                for key, (until, connection) in list(self._waiting.items()):
                    if now > until:
                        del self._waiting[key]
                        # Under the lock: the statement has not returned, so the descriptor is still its own.
                        with suppress(psycopg2.Error, OSError), _socket_of(connection) as ended:
                            ended.shutdown(socket.SHUT_RDWR)
            time.sleep(0.25)


def _socket_of(connection: _PlainConnection) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))


_watch = _Watch()
os.register_at_fork(after_in_child=lambda: _watch.__init__())  # type: ignore[misc]


class _Cursor(_PlainCursor):
    def execute(self, query: Any, arguments: Any = None) -> None:
        connection: Any = self.connection
        seconds = _GRACE_SECONDS if query == _PING else connection.seconds
        _watch(connection, seconds, super().execute, query, arguments)

    def executemany(self, query: Any, arguments: Any) -> None:
        connection: Any = self.connection
        _watch(connection, connection.seconds, super().executemany, query, arguments)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        connection: Any = self.connection
        # A cursor of the server asks it for each part.
        return _watch(connection, connection.seconds, super().fetchmany, self.arraysize if size is None else size)


class _Connection(_PlainConnection):
    seconds = STATEMENT_SECONDS

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        options.setdefault("cursor_factory", _Cursor)
        return super().cursor(*arguments, **options)

    def commit(self) -> None:
        _watch(self, self.seconds, super().commit)

    def rollback(self) -> None:
        _watch(self, _GRACE_SECONDS, super().rollback)


def connect(statement_seconds: float = STATEMENT_SECONDS, *dsn: str, **options: Any) -> _Connection:
    """Connect with libpq's `options`. `statement_seconds` limits each statement."""
    waits = {"connect_timeout": CONNECT_SECONDS, **options}
    made: _Connection = psycopg2.connect(*dsn, connection_factory=_Connection, **waits)
    made.seconds = statement_seconds + _GRACE_SECONDS
    try:
        made.autocommit = True
        with made.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, false)", (str(int(statement_seconds * 1000)),))
        made.autocommit = False
    except psycopg2.Error:
        made.close()
        raise
    return made


def engine_for(url: URL | str, *, statement_seconds: float = STATEMENT_SECONDS, **options: Any) -> Engine:
    """Return SQLAlchemy's engine for `url`, with `options` of `create_engine`; it connects as `connect` does, and what
    the address sets goes before `connect_args`."""
    engine = create_engine(url, **options)
    if engine.driver != "psycopg2":
        return engine

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, arguments: list[Any], given: dict[str, Any]) -> _Connection:
        return connect(statement_seconds, *arguments, **given)

    return engine
