"""How fast a store may be asked: a token bucket, one token a request; a bulk delete costs one for each key, as the
store's own limits count it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from artemis_lifecycle.config import TablePolicy


def requests_per_second(policy: TablePolicy) -> float:
    """The pace of a table's policy: its own, or the read share of the object store's request budget."""
    own = policy.deletion.requests_per_second
    return own if own is not None else policy.budgets.read_share * policy.budgets.object_store_iops


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
        """The most tokens that one `take` may ask for: one second's worth, at least one; 1,000 without a rate."""
        return 1000 if self.rate is None else max(1, min(1000, int(self.rate)))

    def take(self, tokens: int) -> float:
        """Wait until `tokens` may be spent, and spend them; returns the seconds waited."""
        if self.rate is None or tokens <= 0:
            return 0.0
        with self._lock:
            self._fill()
            # Debt, rather than waiting first and filling after: a piece above the bucket's size must not wait for ever.
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
