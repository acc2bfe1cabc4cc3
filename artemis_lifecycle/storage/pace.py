"""The request rate to a store, in the store's own units: reads (GET, HEAD, a page of a listing) and writes have budgets
of their own, and a bulk delete is one write for each key. One shared bucket for each in Postgres covers all workers on
all machines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from artemis_lifecycle.storage.instants import is_late

if TYPE_CHECKING:
    # Spark's workers load this module: no configuration, and SQLAlchemy only with a shared bucket.
    from sqlalchemy import Engine

    from artemis_lifecycle.config.policies import Budgets, TablePolicy


def requests_per_second(policy: TablePolicy) -> float:
    """Return the rate of a table's deletions: its own, or the lifecycle's share of the writes. On an object store, the
    shared budget bounds both."""
    own = policy.deletion.requests_per_second
    return own if own is not None else write_rate(policy.budgets)


def read_rate(budgets: Budgets) -> float:
    """Return the lifecycle's share of the reads per second that the object store accepts."""
    return budgets.read_share * budgets.object_store_iops


def write_rate(budgets: Budgets) -> float:
    """Return the lifecycle's share of the writes per second that the object store accepts."""
    return budgets.write_share * budgets.object_store_writes


PIECE = 5_000


@dataclass
class TokenBucket:
    """`rate` tokens per second, saved up for at most one second; None never waits. For the threads of one process.

    In any window of w seconds, at most rate x (w + 1) tokens are taken.
    """

    rate: float | None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _tokens: float = field(default=0.0, init=False)
    _filled_at: float = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        # What is prepared before the first `take` counts as waiting for it.
        self._filled_at = self.clock()

    @property
    def piece(self) -> int:
        """The maximum tokens of one `take`: one second's worth, at least 1, at most 5,000."""
        return PIECE if self.rate is None else max(1, min(PIECE, int(self.rate)))

    def take(self, tokens: float) -> float:
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
        self._tokens = min(max(1.0, self.rate), self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now


@dataclass(frozen=True)
class PaceSettings:
    """The buckets that all workers of a configuration share: at `uri`, under `name`. A limit of None means no limit."""

    uri: str = field(repr=False)
    reads_per_second: float | None
    writes_per_second: float | None = None
    bytes_per_second: float | None = None
    name: str = "object_store"

    @classmethod
    def of(cls, budgets: Budgets, uri: str) -> PaceSettings:
        """Return the buckets of a configuration's budgets."""
        return cls(uri, read_rate(budgets), write_rate(budgets), budgets.object_store_bytes_per_second)


_SLOT = 0.05
"""Seconds' worth of tokens that a process draws at a time. It is small, so that many processes overshoot only
slightly."""

_KEEPS = 0.5
"""Seconds for which drawn tokens are valid. Later they would add to the tokens that others have drawn since."""

_RESERVED = 10.0
"""The same for what was reserved for a delete, which is checked in between."""

_SLACK = {"reads": 0.97, "writes": 0.97, "bytes": 0.9}
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
    }
    for kind, slack in _SLACK.items():
        options |= {f"{kind}-per-second": getattr(settings, f"{kind}_per_second"), f"{kind}-slack": slack}
    return {f"artemis.pace.{key}": str(value) for key, value in options.items() if value is not None}


class TimeIsOver(Exception):  # noqa: N818  (control flow inside a delete)
    """The time limit for requests is over."""


class Pace:
    """One process' access to the shared buckets, for all its threads. Source: the generic cell rate algorithm (ITU-T
    I.371), with its state in one row of Postgres for each kind.

    Without shared buckets, or if Postgres does not answer, local limits apply instead (`alone`, per second): work must
    not wait for the database forever, and the request rate must stay bounded.
    """

    def __init__(self, settings: PaceSettings | None, alone: Mapping[str, float | None]) -> None:
        self._settings = settings
        self._alone = {kind: TokenBucket(alone.get(kind)) for kind in _SLACK}
        self._locks = {kind: threading.Lock() for kind in _SLACK}
        self._drawn: dict[str, tuple[float, float]] = {}
        self._engine: Engine | None = None
        self._down_until = 0.0

    def rate(self, kind: str) -> float | None:
        """Return the limit per second."""
        return getattr(self._settings, f"{kind}_per_second") if self._settings else self._alone[kind].rate

    def take(self, kind: str, count: float) -> None:
        """Wait until so many reads or writes may be made, or bytes be transferred, or pay for bytes already
        transferred."""
        self._ready(kind, count, count, _KEEPS)

    def turn(self, kind: str, count: float, size: float, until: float | None) -> None:
        """Wait until a request that counts as so many and carries `size` bytes may be made. Raises TimeIsOver instead
        once `instants.elapsed` is `until`."""
        self.take(kind, count)
        self.take("bytes", size)
        if is_late(until):
            self.put_back(kind, count)
            raise TimeIsOver

    def reserve(self, kind: str, count: float) -> None:
        """Wait like `take`, for a `take` that follows within ten seconds and then need not wait."""
        self._ready(kind, count, 0.0, _RESERVED)

    def put_back(self, kind: str, count: float) -> None:
        """Return what was taken and not used."""
        self._ready(kind, 0.0, -count, _RESERVED)

    def _ready(self, kind: str, needed: float, spent: float, keeps: float) -> None:
        rate, shared = self.rate(kind), self._settings is not None
        if rate is None:
            return
        with self._locks[kind]:
            tokens, expires = self._drawn.get(kind, (0.0, 0.0))
            now = time.monotonic()
            tokens = tokens if now < expires else 0.0
            if tokens < needed:
                missing = max(needed - tokens, rate * _SLOT if shared else 0.0)
                wait = self._draw(kind, missing / (rate * _SLACK[kind])) if shared else None
                if wait is None:
                    self._alone[kind].take(missing)
                elif wait > 0:
                    time.sleep(wait)
                tokens += missing
                now = time.monotonic()
                expires = max(expires, now + keeps)
            self._drawn[kind] = (tokens - spent, max(expires, now + keeps) if spent <= 0 else expires)

    def _draw(self, kind: str, cost: float) -> float | None:
        """Return the seconds until this process' turn; None if Postgres does not answer."""
        from sqlalchemy.exc import SQLAlchemyError

        from artemis_lifecycle.postgres import engine_for

        assert self._settings is not None
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


_paces: dict[tuple[object, ...], Pace] = {}
_paces_lock = threading.Lock()


def pace_of(settings: PaceSettings | None, alone: Mapping[str, float | None]) -> Pace:
    """Return the pace of this process for these settings and, without shared buckets, for these local limits. Its first
    caller sets the local limits."""
    key = (settings or tuple(alone.items()), os.getpid())  # Connections do not survive a fork.
    with _paces_lock:
        if key not in _paces:
            _paces[key] = Pace(settings, alone)
        return _paces[key]
