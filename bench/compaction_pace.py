"""A compaction's pace, counted at an S3 server with other load beside it: `python -m bench.compaction_pace WORK JARS`
prints JSON.

The server (moto, a process of its own) passes `--bandwidth` bytes per second, all clients together, and writes down
each request. A reader loads it all the time: first alone, then beside the compaction, which measures the bandwidth by
its batches, or knows it with `--configured`. What is compared are the compaction's bytes at the server, over the time
from its first request until the next batch may start, with what the server can do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import lifecycle_conf, pyiceberg_properties
from artemis_lifecycle.embedded.jars import needed, resolve
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle.storage.pace import draw
from artemis_lifecycle.storage.s3 import shared_client
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.stores import Stores
from bench.configuration import config_in

_MB = 1_000_000
_TABLE, _PARTS, _FILES = "bench.paced", 6, 8


def serve(bandwidth: float, log: Path) -> None:
    """Print the port, then serve until killed."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application, lock, turn = DomainDispatcherApplication(create_backend_app), threading.Lock(), [0.0]
    with log.open("w", buffering=1) as written:

        def limited(environ: Any, start: Any) -> Iterable[bytes]:
            body = b"".join(application(environ, start))
            size = int(environ.get("CONTENT_LENGTH") or 0) + (0 if environ["REQUEST_METHOD"] == "HEAD" else len(body))
            with lock:
                turn[0] = max(turn[0], time.monotonic()) + size / bandwidth
                until = turn[0]
            time.sleep(max(0.0, until - time.monotonic()))
            written.write(json.dumps([time.monotonic(), size, environ.get("HTTP_USER_AGENT", "")]) + "\n")
            return [body]

        server = make_server("127.0.0.1", 0, limited, threaded=True)
        print(server.server_port, flush=True)
        server.serve_forever()


class Reader(threading.Thread):
    """Reads one object over and over; `carried` has (when, bytes)."""

    def __init__(self, stores: Stores, path: str) -> None:
        super().__init__(daemon=True)
        self._stores, self._path, self.over = stores, path, threading.Event()
        self.carried: list[tuple[float, int]] = []

    def run(self) -> None:
        while not self.over.is_set():
            self.carried.append((time.monotonic(), len(self._stores.read(self._path))))

    def rate(self, since: float, until: float) -> float:
        return sum(size for at, size in self.carried if since <= at < until) / (until - since)


def measure(
    work: Path, jars: Path, endpoint: str, log: Path, bandwidth: float, *, configured: bool
) -> dict[str, object]:
    properties = {
        "s3.endpoint": endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": "bench",
        "s3.secret-access-key": "benchsecret",
    }
    server = EmbeddedPostgres(work / "home")
    server.start()
    try:
        defaults = {
            "compaction": {"batch_bytes": 8 * _MB},
            "cold_tier": {"enabled": False},
            "budgets": {"object_store_bytes_per_second": int(bandwidth)} if configured else {},
        }
        config = config_in(
            work / f"pace_{os.getpid()}",
            server.uri("postgres"),
            work / "home",
            defaults=defaults,
            warehouse="s3://paced/{}",
            properties=properties,
        )
        stores = Stores(StoreSettings.from_catalog(config.catalogs.live))
        shared_client(stores.settings).create_bucket(Bucket="paced")
        _fill(config)
        stores.write("s3://paced/load/object", b"x" * (_MB // 2))
        spark = open_session(session_conf(config, lifecycle_conf(config), resolve(jars, needed(config))))
        try:
            with Lifecycle.open(config, spark=spark) as lifecycle:
                reader = Reader(stores, "s3://paced/load/object")
                reader.start()
                alone = time.monotonic()
                time.sleep(15)
                alone_rate = reader.rate(alone, time.monotonic())
                began = time.monotonic()
                done = lifecycle.compact_data_files(_TABLE)
                owed = max(0.0, draw(lifecycle.operations.engine, "compaction/bytes", 0.0))
                ended = time.monotonic()
                beside = reader.rate(began, ended)
                time.sleep(owed)
                reader.over.set()
                rows = spark.table(f"{config.catalogs.live.name}.{_TABLE}").count()
        finally:
            spark.stop()
    finally:
        server.stop()
    requests = [json.loads(line) for line in log.read_text().splitlines()]
    ours = [(at, size) for at, size, agent in requests if "aws-sdk-java" in agent and began <= at <= ended]
    carried, seconds = sum(size for _, size in ours), ended + owed - ours[0][0]
    return {
        "store_mb_per_second": bandwidth / _MB,
        "reader_alone_mb_per_second": round(alone_rate / _MB, 2),
        "reader_beside_mb_per_second": round(beside / _MB, 2),
        "compaction_mb_at_the_server": round(carried / _MB, 1),
        "compaction_mb_rewritten": round(done.rewritten_bytes / _MB, 1),
        "compaction_seconds": round(seconds, 1),
        "compaction_mb_per_second": round(carried / seconds / _MB, 2),
        "share_of_the_store": round(carried / seconds / bandwidth, 3),
        "measured_mb_per_second": round(done.bytes_per_second / _MB, 2),
        "seconds_waited": done.waited_seconds,
        "batches": done.batches,
        "files": [done.rewritten_files, done.added_files],
        "rows": rows,
    }


def _fill(config: Any) -> None:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import BinaryType, LongType, NestedField

    catalog = load_catalog(config.catalogs.live.name, **pyiceberg_properties(config.catalogs.live))
    catalog.create_namespace_if_not_exists("bench")
    table = catalog.create_table(
        _TABLE,
        Schema(NestedField(1, "part", LongType()), NestedField(2, "payload", BinaryType())),
        partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part")),
        properties={"write.target-file-size-bytes": str(8 * _MB)},
    )
    dice = np.random.default_rng(1)
    for _ in range(_FILES):
        rows = [(part, dice.bytes(1000)) for part in range(_PARTS) for _ in range(_MB // 1000)]
        parts, payloads = zip(*rows, strict=True)
        table.append(pa.table({"part": pa.array(parts, pa.int64()), "payload": pa.array(payloads, pa.large_binary())}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("jars", type=Path)
    parser.add_argument("--bandwidth", type=float, default=10 * _MB, help="bytes per second that the server passes")
    parser.add_argument("--configured", action="store_true", help="set budgets.object_store_bytes_per_second to it")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.bandwidth, given.serve)
        return
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    log = work / "requests.jsonl"
    command = [sys.executable, "-m", "bench.compaction_pace", str(work), str(given.jars), "--serve", str(log)]
    command += ["--bandwidth", str(given.bandwidth)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
            found = measure(work, given.jars.resolve(), endpoint, log, given.bandwidth, configured=given.configured)
            print(json.dumps(found, indent=2))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
