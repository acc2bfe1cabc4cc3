"""The pace of compactions: all of a deployment together move at most a share of the store's bandwidth.

Iceberg's actions move their bytes inside of Spark. So a batch runs at the store's full speed, and then all compactions
wait until its bytes, over the whole time, are the share. The bandwidth is `budgets.object_store_bytes_per_second`, or
else the highest rate of this run's batches. Such a rate is never above what the store can do, so the share is not
exceeded either; it is measured anew in each run, because stores and other load change. One row in Postgres
(`storage.pace.draw`) has the time when the next batch may start, on whichever machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Engine

from artemis_lifecycle.storage.pace import draw

_BUCKET = "compaction/bytes"

SLOWEST = 1 << 20
"""Bytes per second that any store can do: batches too small to measure anything must not wait long."""

_CHECKED_EVERY = 1.0


@dataclass
class Batch:
    """How long a batch took."""

    seconds: float = 0.0


@dataclass
class CompactionPace:
    """`share` of `bandwidth` (bytes per second; None: measured). `check` is called while it waits, and may raise;
    `engine` None: this process alone counts."""

    share: float
    bandwidth: float | None = None
    engine: Engine | None = None
    check: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    measured: float = field(default=0.0, init=False)
    waited: float = field(default=0.0, init=False)
    _ready_at: float = field(default=0.0, init=False)

    def wait(self, stop: Callable[[], str | None] = lambda: None) -> str | None:
        """Wait until a batch may start: return None, or the reason of `stop` as soon as it has one."""
        while (reason := stop()) is None and (left := self._left()) > 0:
            self.check()
            began = self.clock()
            self.sleep(min(left, _CHECKED_EVERY))
            self.waited += self.clock() - began
        self.check()
        return reason

    def moved(self, size_in_bytes: int, seconds: float) -> None:
        """Charge a batch that moved so many bytes in so many seconds."""
        self.measured = max(self.measured, size_in_bytes / max(seconds, 0.001))
        bandwidth = self.bandwidth or max(self.measured, SLOWEST)
        self._charge(size_in_bytes / (self.share * bandwidth) - seconds)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Time a batch, which the caller then charges by `moved`. One that raises is charged here: what it moved is not
        known, so it counts as all that the store can do. A run that loses to other writers must not repeat its work at
        full speed."""
        batch, began, ended = Batch(), self.clock(), False
        try:
            yield batch
            ended = True
        finally:
            batch.seconds = self.clock() - began
            if not ended:
                self._charge(batch.seconds / self.share - batch.seconds)

    def _charge(self, rest: float) -> None:
        if rest <= 0:
            return
        if self.engine is None:
            self._ready_at = max(self._ready_at, self.clock()) + rest
        else:
            draw(self.engine, _BUCKET, rest)

    def _left(self) -> float:
        return self._ready_at - self.clock() if self.engine is None else draw(self.engine, _BUCKET, 0.0)
