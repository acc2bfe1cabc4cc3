from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import catalog_conf, pyiceberg_properties
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.config.policies import Budgets, TablePolicy
from artemis_lifecycle.embedded.jars import PACED_CLIENTS
from artemis_lifecycle.operations.database import Operations
from artemis_lifecycle.storage import pace as pace_module
from artemis_lifecycle.storage.instants import elapsed
from artemis_lifecycle.storage.pace import Pace, PaceSettings, TokenBucket, draw, requests_per_second
from artemis_lifecycle.storage.s3 import shared_client
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.end_report import add_lines
from artemis_lifecycle_tests.simulated_time import SimulatedTime
from artemis_lifecycle_tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, Injected, S3Server, refusal, reply

pytestmark = pytest.mark.slow


def test_no_window_gets_more_than_the_rate_and_one_second_saved() -> None:
    time = SimulatedTime()
    bucket = TokenBucket(100.0, time.clock, time.sleep)
    spent: list[tuple[float, int]] = []
    for _ in range(200):
        bucket.take(bucket.piece)
        spent.append((time.now, bucket.piece))
    for start, _ in spent:
        assert sum(tokens for at, tokens in spent if start <= at < start + 10) <= 100 * (10 + 1)


def test_idle_time_saves_one_second_at_most() -> None:
    time = SimulatedTime()
    bucket = TokenBucket(100.0, time.clock, time.sleep)
    bucket.take(100)
    time.now += 3600
    assert bucket.take(100) == 0.0
    assert bucket.take(100) == pytest.approx(1.0)


def test_without_a_rate_nothing_waits() -> None:
    time = SimulatedTime()
    bucket = TokenBucket(None, time.clock, time.sleep)
    assert bucket.take(10**9) == 0.0
    assert bucket.piece == 5000


def test_a_rate_below_one_still_moves() -> None:
    time = SimulatedTime()
    bucket = TokenBucket(0.5, time.clock, time.sleep)
    assert bucket.piece == 1
    assert bucket.take(1) == pytest.approx(2.0)


def test_the_policy_gives_its_own_pace_or_the_share_of_the_writes() -> None:
    assert requests_per_second(TablePolicy()) == pytest.approx(0.5 * 3500)
    own = TablePolicy.model_validate({"deletion": {"requests_per_second": 7}})
    assert requests_per_second(own) == 7


@dataclass(frozen=True)
class _Asked:
    at: float
    size: int
    by: str
    reads: int
    writes: int


@contextmanager
def _counting_server() -> Iterator[tuple[str, list[_Asked]]]:
    """(endpoint, what was asked of it so far): requests of every kind, bytes of both bodies, and who asked."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    counted: list[_Asked] = []
    application = DomainDispatcherApplication(create_backend_app)

    def counting(environ: Any, start: Any) -> Iterable[bytes]:
        began, body = time.monotonic(), b"".join(application(environ, start))
        size = int(environ.get("CONTENT_LENGTH") or 0) + (0 if environ["REQUEST_METHOD"] == "HEAD" else len(body))
        reads = int(environ["REQUEST_METHOD"] in ("GET", "HEAD"))
        counted.append(_Asked(began, size, environ.get("HTTP_USER_AGENT", ""), reads, 1 - reads))
        return [body]

    server = make_server("127.0.0.1", 0, counting, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", counted
    finally:
        server.shutdown()


def _keeps_to_the_share(counted: list[_Asked]) -> None:
    """In no 10 seconds more than the share; and it is the share that bounds them, not the machine."""
    times = sorted(counted, key=lambda asked: asked.at)
    assert times[-1].at - times[0].at > 10
    windows = [[asked for asked in times if first.at <= asked.at < first.at + 10] for first in times]
    read, written, carried = (
        max(sum(getattr(asked, name) for asked in window) for window in windows) for name in ("reads", "writes", "size")
    )
    most = max(read, written)
    said = f"at most {read} reads, {written} writes and {carried:,} bytes in 10 s, of {RATE * 10:g} and {BYTES * 10:,}"
    add_lines("the pace of several workers at once", [said])
    assert most <= RATE * 10
    assert carried <= BYTES * 10
    assert max(most / (RATE * 10), carried / (BYTES * 10)) > 0.6


def _workers(endpoint: str, uri: str, seconds: int, count: int) -> list[subprocess.Popen[bytes]]:
    worker = [sys.executable, "-m", "artemis_lifecycle_tests.storage.busy_worker", endpoint, uri, str(seconds)]
    return [subprocess.Popen(worker) for _ in range(count)]


@pytest.mark.nightly
def test_two_workers_at_once_keep_to_the_share(postgres_uri: str) -> None:
    """Counted at the server, in any 10 seconds: requests of every kind, pages and parts too, and bytes both ways."""
    Operations.open(postgres_uri).close()
    with _counting_server() as (endpoint, counted):
        assert [each.wait(120) for each in _workers(endpoint, postgres_uri, 13, 2)] == [0, 0]
    _keeps_to_the_share(counted)


@pytest.mark.no_guardian(reason="every request to the store is counted")
@pytest.mark.nightly
def test_a_compaction_and_a_worker_keep_to_the_share(
    make_config: MakeConfig, spark: SparkSession, postgres_uri: str
) -> None:
    """A compaction reads and writes by Iceberg's own S3FileIO, in Spark's JVM, and draws from the same bucket."""
    Operations.open(postgres_uri).close()
    with _counting_server() as (endpoint, counted):
        config = make_config(
            catalogs={"live": {"warehouse": "s3://compacted/live", "properties": properties(endpoint)}},
            defaults={"budgets": BUDGETS},
        )
        shared_client(StoreSettings.from_catalog(config.catalogs.live)).create_bucket(Bucket="compacted")
        catalog = load_catalog(config.catalogs.live.name, **pyiceberg_properties(config.catalogs.live))
        catalog.create_namespace("db")
        table = catalog.create_table("db.small", pa.schema([("id", pa.int64())]))
        for number in range(FILES):
            table.append(pa.table({"id": [number]}))
        with Lifecycle.open(config, spark=spark) as lifecycle:
            counted.clear()
            workers = _workers(endpoint, postgres_uri, 25, 1)
            while not counted:
                time.sleep(0.1)
            done = lifecycle.compact_data_files("db.small")
            assert [each.wait(120) for each in workers] == [0]
        assert done.rewritten_files == FILES and done.added_files == 1
        rows = spark.table(f"{config.catalogs.live.name}.db.small").collect()
    assert sorted(row.id for row in rows) == list(range(FILES))
    by_the_jvm = [asked for asked in counted if "aws-sdk-java" in asked.by]
    said = f"beside a compaction, {len(by_the_jvm)} of {len(counted)} requests were Iceberg's own:"
    add_lines("the pace of several workers at once", [said])
    assert len(by_the_jvm) > 20
    _keeps_to_the_share(counted)


def test_a_catalog_with_clients_of_its_own_keeps_them() -> None:
    pace = PaceSettings("postgresql+psycopg2://u:hush@db/x", 10.0, 7.0, 5.0)
    on_s3 = {"name": "live", "uri": "http://rest", "type": "rest", "warehouse": "s3://bucket/live"}

    def settings_of(**more: str) -> dict[str, str]:
        catalog = Catalog.model_validate({**on_s3, "properties": more})
        return {key.partition("spark.sql.catalog.live.")[2]: v for key, v in catalog_conf(catalog, pace=pace).items()}

    assert settings_of()["s3.client-factory-impl"] == PACED_CLIENTS
    assert settings_of()["artemis.pace.uri"] == "jdbc:postgresql://db:5432/x"
    assert settings_of(**{"s3.client-factory-impl": "org.example.Mine"})["s3.client-factory-impl"] == "org.example.Mine"
    assert "s3.client-factory-impl" not in settings_of(**{"client.factory": "org.example.Mine"})
    assert "s3.client-factory-impl" not in settings_of(**{"s3.analytics-accelerator.enabled": "true"})
    assert "s3.client-factory-impl" not in settings_of(**{"io-impl": "org.example.MyFileIO"})
    socket = PaceSettings("postgresql+psycopg2:///x?host=/run/postgresql", 10.0)
    own = catalog_conf(Catalog.model_validate(on_s3), pace=socket)
    assert "spark.sql.catalog.live.artemis.pace.uri" not in own
    assert own["spark.sql.catalog.live.artemis.pace.reads-per-second"] == "10.0"


ADDRESS: dict[str, Any] = {
    "s3_endpoint": "http://127.0.0.1:1",
    "s3_region": "us-east-1",
    "s3_access_key_id": "a",
    "s3_secret_access_key": "b",
}
RATE, BYTES = 12.0, 40_000
FILES = 20


BUDGETS = {
    "read_share": 0.2,
    "object_store_iops": int(RATE * 5),
    "write_share": 0.2,
    "object_store_writes": int(RATE * 5),
    "object_store_bytes_per_second": BYTES,
}
"""A fifth of 60 reads and of 60 writes a second."""


def properties(endpoint: str) -> dict[str, str]:
    return {
        "s3.endpoint": endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
    }


def store_settings(endpoint: str, uri: str) -> StoreSettings:
    """What a worker of the tests above has."""
    catalog = Catalog.model_validate({"name": "live", "properties": properties(endpoint)})
    return StoreSettings.from_catalog(catalog, Budgets.model_validate(BUDGETS), uri)


class _Limited:
    """A store that counts as S3 does, by a simulated clock: `limit` writes a second, saved for at most one, of which a
    bulk delete is one for each key. Above it, SlowDown."""

    def __init__(self, time: SimulatedTime, limit: float) -> None:
        self.time, self.limit = time, limit
        self.saved, self.at = limit, 0.0
        self.deleted = self.refused = 0
        self.schedule: dict[str, float] = {}

    def answer(self, request: Any) -> Any:
        keys = bytes(request.body).count(b"<Key>")
        self.saved = min(self.limit, self.saved + (self.time.now - self.at) * self.limit)
        self.at = self.time.now
        if keys > self.saved:
            self.refused += 1
            return refusal(503, "SlowDown")
        self.saved -= keys
        self.deleted += keys
        return reply(200, {"content-type": "application/xml"}, b"<DeleteResult/>")

    def draw(self, engine: object, name: str, seconds: float) -> float:
        """`pace.draw` by the same clock."""
        begins = max(self.schedule.get(name, 0.0), self.time.now)
        self.schedule[name] = begins + seconds
        return begins - self.time.now


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("workers", [1, 4])
def test_deletes_keep_to_a_limit_that_counts_keys_and_use_it(
    monkeypatch: pytest.MonkeyPatch, share: float, workers: int
) -> None:
    time, keys = SimulatedTime(), 40_000
    store = _Limited(time, 3500.0)
    monkeypatch.setattr(pace_module, "draw", store.draw)
    monkeypatch.setattr(pace_module, "time", SimpleNamespace(monotonic=time.clock, sleep=time.sleep))
    monkeypatch.setattr(pace_module, "_paces", {})
    jobs = []
    for worker in range(workers):
        shared = PaceSettings("postgresql+psycopg2://none/none", None, share * 3500)
        # Each worker is a process of its own, with a pace of its own.
        settings = StoreSettings(**ADDRESS, pace=shared, attempts=1, s3_connections=16 + worker)
        injected = Injected.around(settings)
        injected.answer("DeleteObjects", store.answer)
        own = Pace(shared, settings.paced_by[1])
        jobs.append((Stores(settings, injected), own, keys // workers))
    while any(left for _, _, left in jobs):
        for number, (stores, own, left) in enumerate(jobs):
            monkeypatch.setitem(pace_module._paces, (stores.settings.pace, os.getpid()), own)
            paths = pa.array(
                [f"s3://b/{number}/{left - at}" for at in range(min(left, stores.deletes_at_once("s3://b/")))]
            )
            stores.reserve_deletes(paths)
            assert not stores.remove(paths).errors
            jobs[number] = (stores, own, left - len(paths))
    assert (store.deleted, store.refused) == (keys, 0)
    assert keys / time.now >= 0.95 * share * 3500


def test_what_a_late_delete_did_not_use_is_kept_for_the_next_try(s3: S3Server, bucket: str) -> None:
    """Else a delete that waits longer for its turn than it may take would wait so each time."""
    stores = s3.stores(writes_per_second=100.0)
    paths = pa.array([f"s3://{bucket}/{number}" for number in range(20)])
    began = time.monotonic()
    late = stores.remove(paths, until=elapsed() + 0.05)
    assert len(late.errors) == 20 and time.monotonic() - began >= 0.15
    assert not stores.remove(paths, until=elapsed() + 0.15).errors


def test_nobody_waits_for_years(postgres_uri: str) -> None:
    """After a clock that was ahead, or a setting of one byte per second that is corrected."""
    day = 86_400.0
    with Operations.open(postgres_uri) as operations:
        draw(operations.engine, "years", 10 * 365 * day)
        first = draw(operations.engine, "years", 5.0)
        assert day - 10 < first <= day
        assert first - 10 < draw(operations.engine, "years", 0.0) <= first + 5


def test_without_postgres_each_process_keeps_to_its_own() -> None:
    gone = PaceSettings("postgresql+psycopg2://artemis:hush@127.0.0.1:1/none", 1000.0)
    assert "hush" not in repr(gone)
    pace = Pace(gone, {"reads": 20.0})
    began = time.monotonic()
    for _ in range(11):
        pace.take("reads", 1)
    # Half a second for ten after the first; the machine may take longer, and never less.
    assert time.monotonic() - began >= 0.45
