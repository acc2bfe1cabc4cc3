"""The request rate to a store: a token bucket with one token per request. A bulk delete costs one token per key, like
the store's limits. One shared bucket in Postgres covers all workers on all machines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Spark's workers load this module: no configuration, and SQLAlchemy only with a shared bucket.
    from sqlalchemy import Engine

    from artemis_lifecycle.config.policies import Budgets, TablePolicy


def requests_per_second(policy: TablePolicy) -> float:
    """Return the rate of a table's policy: its own, or the read share of the object store's request budget."""
    own = policy.deletion.requests_per_second
    return own if own is not None else read_rate(policy.budgets)


def read_rate(budgets: Budgets) -> float:
    """Return the lifecycle's share of the requests per second that the object store accepts."""
    return budgets.read_share * budgets.object_store_iops


_PIECE = 5_000


@dataclass
class TokenBucket:
    """`rate` tokens per second, saved up for at most one second; None never waits. For the threads of one process.

    In any window of w seconds, at most rate x (w + 1) tokens are taken.
    """

    rate: float | None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _tokens: float = field(default=0.0, init=False)
    _filled_at: float | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def piece(self) -> int:
        """The maximum tokens of one `take`: one second's worth, at least 1, at most 5,000."""
        return _PIECE if self.rate is None else max(1, min(_PIECE, int(self.rate)))

    def take(self, tokens: int) -> float:
        """Wait until `tokens` may be spent, and spend them. Return the seconds waited."""
        if self.rate is None or tokens <= 0:
            return 0.0
        with self._lock:
            self._fill()
            # Go into debt instead of waiting for a full bucket: a piece larger than the bucket must not wait forever.
            self._tokens -= tokens
            wait = max(0.0, -self._tokens / self.rate)
        if wait:
            self.sleep(wait)
        return wait

    def _fill(self) -> None:
        assert self.rate is not None
        now = self.clock()
        if self._filled_at is not None:
            self._tokens = min(max(1.0, self.rate), self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now


@dataclass(frozen=True)
class PaceSettings:
    """The bucket that all workers of a configuration share: at `uri`, under `name`. A limit of None means no limit."""

    uri: str = field(repr=False)
    requests_per_second: float | None
    bytes_per_second: float | None = None
    name: str = "object_store"

    @classmethod
    def of(cls, budgets: Budgets, uri: str) -> PaceSettings:
        """Return the bucket of a configuration's budgets: the read share of the requests, and the bytes."""
        return cls(uri, read_rate(budgets), budgets.object_store_bytes_per_second)


_SLOT = 0.05
"""Seconds' worth of tokens that a process draws at a time. It is small, so that many processes overshoot only
slightly."""

_KEEPS = 0.5
"""Seconds for which drawn tokens are valid. Later they would add to the tokens that others have drawn since."""

_SLACK = {"requests": 0.97, "bytes": 0.9}
"""Share of the rate that is given out: drawn tokens may be spent slightly late, and response bytes are paid for
afterward."""

_RETRY = 10.0
"""Seconds until Postgres is tried again after a failure."""

# Virtual scheduling: a row stores when the next token is free. A worker that draws advances it, and waits for its turn.
# Nobody waits for more than a day: a setting far below what a store does, or a database whose clock was ahead, would
# stop everything for years, also once it is corrected.
_STATEMENT = (
    "INSERT INTO lifecycle.paces AS p (name, ready_at) "
    "VALUES ({name}, clock_timestamp() + {cost} * interval '1 second') ON CONFLICT (name) DO UPDATE "
    "SET ready_at = least(greatest(p.ready_at, clock_timestamp()), clock_timestamp() + interval '1 day') "
    "+ {cost} * interval '1 second' "
    "RETURNING extract(epoch FROM ready_at - clock_timestamp())::float8 - {cost}"
)
_DRAW = _STATEMENT.format(name=":name", cost=":cost")


def draw(engine: Engine, name: str, seconds: float) -> float:
    """Take so many seconds of the bucket `name`, and return how long it is until they begin. 0
    only asks."""
    from sqlalchemy import text

    with engine.begin() as connection:
        return float(connection.execute(text(_DRAW), {"name": name, "cost": seconds}).scalar_one())


def jvm_options(settings: PaceSettings, jdbc: tuple[str, str | None, str | None] | None) -> dict[str, str]:
    """Return the options of a Spark catalog with which the paced clients of its S3FileIO draw from the bucket. `jdbc`
    is the address, user and password for the JVM. If it is None, because JDBC cannot connect, each JVM has a separate
    bucket."""
    url, user, password = jdbc or (None, None, None)
    options: dict[str, object] = {
        "name": settings.name,
        "uri": url,
        "user": user,
        "password": password,
        "draw": _STATEMENT.format(name="?", cost="?"),
        "requests-per-second": settings.requests_per_second,
        "requests-slack": _SLACK["requests"],
        "bytes-per-second": settings.bytes_per_second,
        "bytes-slack": _SLACK["bytes"],
    }
    return {f"artemis.pace.{key}": str(value) for key, value in options.items() if value is not None}


class SharedPace:
    """One process' access to the shared bucket, for all its threads. Source: the generic cell rate algorithm (ITU-T
    I.371), with its state in one row of Postgres.

    If Postgres does not answer, a local limit applies instead (`alone`, requests per second): work must not wait for
    the database forever, and the request rate must stay bounded.
    """

    def __init__(self, settings: PaceSettings, alone: float | None) -> None:
        self._settings = settings
        self._alone = TokenBucket(alone)
        self._locks = {kind: threading.Lock() for kind in _SLACK}
        self._drawn: dict[str, tuple[float, float]] = {}
        self._engine: Engine | None = None
        self._down_until = 0.0

    def request(self, count: int = 1) -> None:
        """Wait until `count` requests may be made."""
        self._take("requests", self._settings.requests_per_second, count)

    def carry(self, size_in_bytes: int) -> None:
        """Wait until this number of bytes may be transferred, or pay for bytes already transferred."""
        self._take("bytes", self._settings.bytes_per_second, size_in_bytes)

    def _take(self, kind: str, rate: float | None, count: float) -> None:
        if rate is None or count <= 0:
            return
        with self._locks[kind]:
            tokens, expires = self._drawn.get(kind, (0.0, 0.0))
            tokens = tokens if time.monotonic() < expires else 0.0
            if tokens < count:
                draw = max(count - tokens, rate * _SLOT)
                wait = self._draw(kind, draw / (rate * _SLACK[kind]))
                if wait is None:
                    if kind == "requests":
                        self._alone.take(int(count))
                    return
                if wait > 0:
                    time.sleep(wait)
                tokens += draw
                expires = time.monotonic() + _KEEPS
            self._drawn[kind] = (tokens - count, expires)

    def _draw(self, kind: str, cost: float) -> float | None:
        """Return the seconds until this process' turn; None if Postgres does not answer."""
        from sqlalchemy.exc import SQLAlchemyError

        from artemis_lifecycle.postgres import engine_for

        if time.monotonic() < self._down_until:
            return None
        try:
            if self._engine is None:
                self._engine = engine_for(
                    self._settings.uri,
                    statement_seconds=5,
                    isolation_level="AUTOCOMMIT",
                    pool_size=len(_SLACK),
                    max_overflow=0,
                    pool_pre_ping=True,
                    connect_args={"connect_timeout": 5},
                )
            return draw(self._engine, f"{self._settings.name}/{kind}", cost)
        except SQLAlchemyError:
            self._down_until = time.monotonic() + _RETRY
            return None


_shared: dict[tuple[PaceSettings, int], SharedPace] = {}
_shared_lock = threading.Lock()


def shared_pace(settings: PaceSettings, alone: float | None) -> SharedPace:
    """Return the shared pace of this process. Its first caller sets the local limit."""
    key = (settings, os.getpid())  # Connections do not survive a fork.
    with _shared_lock:
        if key not in _shared:
            _shared[key] = SharedPace(settings, alone)
        return _shared[key]
