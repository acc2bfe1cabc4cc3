from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from artemis_lifecycle.config import Budgets, Catalog, TablePolicy
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.storage.pace import PaceSettings, SharedPace, TokenBucket, requests_per_second
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle_tests.storage.s3_server import ACCESS_KEY, SECRET_KEY


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


def test_two_workers_at_once_keep_to_the_share(postgres_uri: str) -> None:
    """Counted at the server, in any 10 seconds: requests of every kind, pages and parts too, and bytes both ways."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    counted: list[tuple[float, int]] = []
    application = DomainDispatcherApplication(create_backend_app)

    def counting(environ: Any, start: Any) -> Iterable[bytes]:
        began, body = time.monotonic(), b"".join(application(environ, start))
        counted.append((began, int(environ.get("CONTENT_LENGTH") or 0) + len(body)))
        return [body]

    Operations.open(postgres_uri).close()
    server = make_server("127.0.0.1", 0, counting, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        worker = [sys.executable, "-m", "artemis_lifecycle_tests.storage.busy_worker", endpoint, postgres_uri, "13"]
        workers = [subprocess.Popen(worker) for _ in range(2)]
        assert [each.wait(120) for each in workers] == [0, 0]
    finally:
        server.shutdown()
    times = sorted(counted)
    assert times[-1][0] - times[0][0] > 10
    windows = [[size for at, size in times if begin <= at < begin + 10] for begin, _ in times]
    most, carried = max(map(len, windows)), max(map(sum, windows))
    print(f"at most {most} requests and {carried:,} bytes in 10 s, of {RATE * 10:g} and {BYTES * 10:,}")
    assert most <= RATE * 10
    assert carried <= BYTES * 10
    # It is the share that bounds them, and not the machine: most of one or the other was used.
    assert max(most / (RATE * 10), carried / (BYTES * 10)) > 0.6


RATE, BYTES = 12.0, 40_000


def store_settings(endpoint: str, uri: str) -> StoreSettings:
    """What a worker of the test above has: a fifth of 60 requests a second."""
    properties = {"s3.endpoint": endpoint, "s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
    catalog = Catalog.model_validate({"name": "live", "properties": properties})
    budgets = Budgets.model_validate(
        {"read_share": 0.2, "object_store_iops": int(RATE * 5), "object_store_bytes_per_second": BYTES}
    )
    return StoreSettings.from_catalog(catalog, budgets, uri)


def test_without_postgres_each_process_keeps_to_its_own() -> None:
    gone = PaceSettings("postgresql+psycopg2://artemis:hush@127.0.0.1:1/none", 1000.0)
    assert "hush" not in repr(gone)
    pace = SharedPace(gone, alone=20.0)
    began = time.monotonic()
    for _ in range(11):
        pace.request()
    # Half a second for ten after the first; the machine may take longer, and never less.
    assert time.monotonic() - began >= 0.45
