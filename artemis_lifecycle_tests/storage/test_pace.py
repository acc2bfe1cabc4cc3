from __future__ import annotations

import pytest

from artemis_lifecycle.config import TablePolicy
from artemis_lifecycle.storage.pace import TokenBucket, requests_per_second


class _Time:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_no_window_gets_more_than_the_rate_and_one_second_saved() -> None:
    time = _Time()
    bucket = TokenBucket(100.0, time.clock, time.sleep)
    spent: list[tuple[float, int]] = []
    for _ in range(200):
        bucket.take(bucket.piece)
        spent.append((time.now, bucket.piece))
    for start, _ in spent:
        assert sum(tokens for at, tokens in spent if start <= at < start + 10) <= 100 * (10 + 1)


def test_idle_time_saves_one_second_at_most() -> None:
    time = _Time()
    bucket = TokenBucket(100.0, time.clock, time.sleep)
    bucket.take(100)
    time.now += 3600
    assert bucket.take(100) == 0.0
    assert bucket.take(100) == pytest.approx(1.0)


def test_without_a_rate_nothing_waits() -> None:
    time = _Time()
    bucket = TokenBucket(None, time.clock, time.sleep)
    assert bucket.take(10**9) == 0.0
    assert bucket.piece == 1000


def test_a_rate_below_one_still_moves() -> None:
    time = _Time()
    bucket = TokenBucket(0.5, time.clock, time.sleep)
    assert bucket.piece == 1
    assert bucket.take(1) == pytest.approx(2.0)


def test_the_policy_gives_its_own_pace_or_the_read_share_of_the_budget() -> None:
    assert requests_per_second(TablePolicy()) == pytest.approx(0.2 * 5500)
    own = TablePolicy.model_validate({"deletion": {"requests_per_second": 7}})
    assert requests_per_second(own) == 7
