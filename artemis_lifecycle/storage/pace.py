"""How fast a store may be asked: a token bucket, one token a request; a bulk delete costs one for each key, as the
store's own limits count it. And one bucket for all workers there are, on whatever machines, which Postgres keeps.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Spark's workers load this module: no configuration, and SQLAlchemy only where there is a bucket to draw from.
    from sqlalchemy import Engine

    from artemis_lifecycle.config.policies import Budgets, TablePolicy


def requests_per_second(policy: TablePolicy) -> float:
    """The pace of a table's policy: its own, or the read share of the object store's request budget."""
    own = policy.deletion.requests_per_second
    return own if own is not None else read_rate(policy.budgets)


def read_rate(budgets: Budgets) -> float:
    """The lifecycle's share of the requests that the object store takes in a second."""
    return budgets.read_share * budgets.object_store_iops


_PIECE = 5_000


@dataclass
class TokenBucket:
    """`rate` tokens a second, at most one second's worth saved up; None never waits. For the threads of one process.

    What was taken in any window of w seconds is at most rate x (w + 1) tokens.
    """

    rate: float | None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _tokens: float = field(default=0.0, init=False)
    _filled_at: float | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def piece(self) -> int:
        """The most tokens that one `take` may ask for: one second's worth, at least one, at most 5,000."""
        return _PIECE if self.rate is None else max(1, min(_PIECE, int(self.rate)))

    def take(self, tokens: int) -> float:
        """Wait until `tokens` may be spent, and spend them; returns the seconds waited."""
        if self.rate is None or tokens <= 0:
            return 0.0
        with self._lock:
            self._fill()
            # Debt, rather than waiting first and filling after: a piece above the bucket's size must not wait forever.
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
    """The bucket that every worker of a configuration draws from: at `uri`, under `name`. None means no limit."""

    uri: str = field(repr=False)
    requests_per_second: float | None
    bytes_per_second: float | None = None
    name: str = "object_store"

    @classmethod
    def of(cls, budgets: Budgets, uri: str) -> PaceSettings:
        """The bucket of a configuration's budgets: the read share of the requests, and the bytes."""
        return cls(uri, read_rate(budgets), budgets.object_store_bytes_per_second)


_SLOT = 0.05
"""Seconds' worth of tokens that a process draws at a time: little, so that many processes overshoot by little."""

_KEEPS = 0.5
"""Seconds for which drawn tokens may be spent; later they would come on top of what others drew since."""

_SLACK = {"requests": 0.97, "bytes": 0.9}
"""What is given out, of the rate: drawn tokens may be spent a little late, and what comes back is paid for afterwards.
"""

_RETRY = 10.0
"""Seconds until Postgres is asked again after it did not answer."""

# Virtual scheduling: a row says when the next token is free. Whoever draws moves it on, and waits until its own turn.
_STATEMENT = (
    "INSERT INTO lifecycle.paces AS p (name, ready_at) "
    "VALUES ({name}, clock_timestamp() + {cost} * interval '1 second') ON CONFLICT (name) DO UPDATE "
    "SET ready_at = greatest(p.ready_at, clock_timestamp()) + {cost} * interval '1 second' "
    "RETURNING extract(epoch FROM ready_at - clock_timestamp())::float8 - {cost}"
)
_DRAW = _STATEMENT.format(name=":name", cost=":cost")


def jvm_options(settings: PaceSettings, jdbc: tuple[str, str | None, str | None] | None) -> dict[str, str]:
    """Settings of a Spark catalog by which the paced clients of its S3FileIO draw from the bucket. `jdbc` is the
    address, user and password for the JVM; None, for one that JDBC cannot reach, is a bucket of each JVM's own."""
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
    """One process' hand in the shared bucket; for all its threads. Source: the generic cell rate algorithm (ITU-T
    I.371), its state in one row of Postgres.

    Where Postgres does not answer, what one process may do by itself (`alone`, requests a second) holds instead: a
    store must not wait for a database forever, nor be asked without measure.
    """

    def __init__(self, settings: PaceSettings, alone: float | None) -> None:
        self._settings = settings
        self._alone = TokenBucket(alone)
        self._locks = {kind: threading.Lock() for kind in _SLACK}
        self._drawn: dict[str, tuple[float, float]] = {}
        self._engine: Engine | None = None
        self._down_until = 0.0

    def request(self, count: int = 1) -> None:
        """Wait until so many requests may be made."""
        self._take("requests", self._settings.requests_per_second, count)

    def carry(self, size_in_bytes: int) -> None:
        """Wait until so many bytes may be carried, or have been."""
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
        """Seconds until our turn; None where Postgres does not answer."""
        from sqlalchemy import create_engine, text
        from sqlalchemy.exc import SQLAlchemyError

        if time.monotonic() < self._down_until:
            return None
        try:
            if self._engine is None:
                self._engine = create_engine(
                    self._settings.uri,
                    isolation_level="AUTOCOMMIT",
                    pool_size=len(_SLACK),
                    max_overflow=0,
                    pool_pre_ping=True,
                    connect_args={"connect_timeout": 5, "options": "-c statement_timeout=5000"},
                )
            with self._engine.connect() as connection:
                name = f"{self._settings.name}/{kind}"
                drawn = connection.execute(text(_DRAW), {"name": name, "cost": cost})
                return float(drawn.scalar_one())
        except SQLAlchemyError:
            self._down_until = time.monotonic() + _RETRY
            return None


_shared: dict[tuple[PaceSettings, int], SharedPace] = {}
_shared_lock = threading.Lock()


def shared_pace(settings: PaceSettings, alone: float | None) -> SharedPace:
    """The one of this process; what it may do alone is what its first user may."""
    key = (settings, os.getpid())  # Connections do not survive a fork.
    with _shared_lock:
        if key not in _shared:
            _shared[key] = SharedPace(settings, alone)
        return _shared[key]
