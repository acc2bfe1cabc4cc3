"""Handing a table's history to the cold tier, beside what a user would do instead. `python -m bench.handoff WORK JARS`
prints JSON.

On a disk: one table of appends, files of about half a megabyte that do not compress. Two nights: the first archives
four days, the next one more day. Measured on the same files, in one run, in one warm session:

- ours: `hand_off` of the night's plan: find, copy, read back and compare each copy, rewrite, publish;
- a plain parallel copy of the same files (eight threads, `shutil.copyfile`), and the same with each copy read back and
  compared, which is what ours promises;
- the peer: `rewrite_table_path` of the night's versions, a plain parallel copy of the files that it lists, and
  `register_table`. It verifies nothing.

With `--store s3 --gateway versitygw --latency 30` (bench/s3.py): 300 files of a megabyte, both tiers in one bucket, at
a pace that never waits. Each of `--repetitions` has a table of its own, on which ours and plain copies alternate: 32
copies by the server at once, through boto3, and the same with both sides read and compared. Of ours, the seconds and
requests of each phase, too, and how long of it no request was under way, one alone, or several. With
`--without-checksums` the server computes none, and each copy is read back.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import catalog_conf, lifecycle_conf, spark_conf
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.embedded.jars import needed, resolve
from artemis_lifecycle.embedded.postgres import CATALOGS, EmbeddedPostgres
from artemis_lifecycle.operations import crash_points
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle.storage.s3 import make_client
from artemis_lifecycle.storage.settings import StoreSettings
from bench.configuration import config_in
from bench.s3 import BUCKET, Request, Server, counts, in_flight, serving
from bench.sampling import Sampler, processor_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS, COMMITS, FILES = 5, 4, 25
"""Days that are archived, commits of a day, files of a commit."""
S3_DAYS = 3

_ROWS, _S3_ROWS = 15_000, 31_000
_THREADS, _S3_THREADS = 8, 32
_PEER = "bench_peer"
_PHASES = ("find and seal", "copy contents", "rewrite manifests", "rewrite lists", "publish")


def main(work: Path, jars: Path) -> dict[str, Any]:
    folder = work / f"handoff-{uuid.uuid4().hex[:8]}"
    uri = EmbeddedPostgres(work / "home").uri(CATALOGS)
    defaults = {"retention": {"rule": "iceberg", "window": "1ms"}}
    config = config_in(folder, uri, work / "home", defaults=defaults)
    peer = catalog_conf(Catalog(name=_PEER, uri=uri, warehouse=f"file:{folder}/peer"))
    spark = open_session({**session_conf(config, spark_conf(config.catalogs), resolve(jars)), **peer})
    try:
        with Lifecycle.open(config, spark=spark) as lifecycle:
            # The warm-up's table is small; both sides have run each step twice before the clock does.
            _nights(lifecycle, folder, "warm", files=4)
            _nights(lifecycle, folder, "warmer", files=4)
            return {"threads": _THREADS, "nights": _nights(lifecycle, folder, "t", files=FILES)}
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _table(lifecycle: Lifecycle, table: str, *, days: int, files: int, rows: int) -> tuple[list[datetime], list[str]]:
    """Make a table of appends, and return the end of each day and its version then."""
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.bench")
    spark.sql(f"CREATE TABLE {live}.{table} (id bigint, a double, b double, c double, d double) USING iceberg")
    ends: list[datetime] = []
    versions: list[str] = []
    for _ in range(days):
        for _ in range(COMMITS):
            columns = [f"rand() AS {column}" for column in "abcd"]
            made = spark.range(files * rows).repartition(files).selectExpr("id", *columns)
            made.writeTo(f"{live}.{table}").append()
        history = lifecycle.snapshot_history(table)
        versions.append(history.metadata_location)
        time.sleep(0.01)
        ends.append(datetime.now(UTC))
    # The last day's own snapshot must not be the current one.
    spark.range(1).selectExpr("id", "0D AS a", "0D AS b", "0D AS c", "0D AS d").writeTo(f"{live}.{table}").append()
    return ends, versions


def _nights(lifecycle: Lifecycle, folder: Path, name: str, *, files: int) -> list[dict[str, Any]]:
    table = f"bench.{name}"
    ends, versions = _table(lifecycle, table, days=DAYS, files=files, rows=_ROWS)
    found = []
    for night, (first, last) in enumerate(((0, DAYS - 2), (DAYS - 1, DAYS - 1))):
        plan = lifecycle.plan_expiration(table, older_than=ends[last])
        measured: dict[str, dict[str, float]] = {}
        done = _timed(measured, "ours", partial(lifecycle.hand_off, plan))
        frame = done.files()
        assert frame is not None
        pairs = [(row["path"], row["destination"]) for row in frame.collect()]
        size = sum(_local(path).stat().st_size for path, _ in pairs)
        for what, check in (("plain copy", False), ("copy and compare", True)):
            target = folder / "plain" / f"{name}-{night}-{check}"
            _timed(measured, what, partial(_copied, _into(pairs, target), check=check))
            shutil.rmtree(target)
        start = versions[first - 1] if first else None
        _timed(measured, "peer", partial(_peer, lifecycle, folder, table, start, versions[last]))
        lifecycle.commit_expiration(plan)
        found.append(
            {
                "night": night + 1,
                "snapshots": len(done.archived),
                "files": done.copied_files,
                "bytes": size,
                "measured": measured,
            }
        )
    return found


# --- S3 ---------------------------------------------------------------------------------------------------------------


def on_s3(work: Path, jars: Path, binary: str, latency: float, repetitions: int, *, checksums: bool) -> dict[str, Any]:
    folder = work / f"handoff-{uuid.uuid4().hex[:8]}"
    uri = EmbeddedPostgres(work / "home").uri(CATALOGS)
    with serving(binary, folder / "buckets", latency, checksums=checksums) as server:
        config = config_in(
            folder,
            uri,
            work / "home",
            defaults={
                "retention": {"rule": "iceberg", "window": "1ms"},
                "budgets": {"object_store_iops": 1_000_000_000, "object_store_writes": 1_000_000_000},
            },
            warehouse=f"s3://{BUCKET}/{{}}",
            properties=server.properties,
        )
        spark = open_session(session_conf(config, lifecycle_conf(config), resolve(jars, needed(config))))
        try:
            with Lifecycle.open(config, spark=spark) as lifecycle:
                copies = folder / "buckets" / BUCKET / "plain"
                run = partial(_on_s3, lifecycle, server, copies)
                for name in ("warm", "warmer"):
                    run(name, files=4)
                runs = []
                for number in range(repetitions):
                    runs.append(run(f"t{number}", files=FILES))
                    print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        finally:
            spark.stop()
            shutil.rmtree(folder, ignore_errors=True)
    return {"latency ms": latency, "checksums": checksums, "at once": _S3_THREADS, "runs": runs}


def _on_s3(lifecycle: Lifecycle, server: Server, copies: Path, name: str, *, files: int) -> dict[str, Any]:
    table = f"bench.{name}"
    ends, _ = _table(lifecycle, table, days=S3_DAYS, files=files, rows=_S3_ROWS)
    plan = lifecycle.plan_expiration(table, older_than=ends[-1])
    measured: dict[str, dict[str, float]] = {}
    points: list[tuple[str, float]] = []

    def ours() -> Any:
        with crash_points.installed(lambda point: points.append((point, time.monotonic()))):
            points.append(("began", time.monotonic()))
            done = lifecycle.hand_off(plan)
            points.append(("ended", time.monotonic()))
        return done

    server.take()
    done = _timed(measured, "ours", ours, 0.2)
    requests, frame = server.take(), done.files()
    assert frame is not None
    data = [row for row in frame.collect() if row["kind"] == "data"]
    keys = [row["path"].removeprefix(f"s3://{BUCKET}/") for row in data]
    client = make_client(StoreSettings.from_catalog(lifecycle.config.catalogs.live))
    for what, check in (("plain copy", False), ("copy and compare", True)):
        _timed(measured, what, partial(_copied_by_server, client, keys, check=check), 0.2)
        measured[what] |= {f"requests, {kind}": number for kind, number in counts(server.take()).items()}
        shutil.rmtree(copies)
    lifecycle.commit_expiration(plan)
    of_data = {f"/{row[end].removeprefix('s3://')}" for row in data for end in ("path", "destination")}
    about = [each for each in requests if unquote(each.path.partition("?")[0]) in of_data]
    return {
        "files": len(data),
        "bytes": sum(row["size_in_bytes"] for row in data),
        "measured": measured,
        "requests of a data file": {kind: round(each / len(data), 2) for kind, each in counts(about).items()},
        "phases": _phases(points, requests),
    }


def _phases(points: Sequence[tuple[str, float]], requests: Sequence[Request]) -> dict[str, Any]:
    times = {name: [at for point, at in points if point == name] for name, _ in points}
    *_, contents, manifests, lists = times["handoff.batch:after"]
    ends = [*times["began"], times["handoff.seal:after"][-1], contents, manifests, lists, *times["ended"]]
    return {
        phase: {
            "seconds": round(ended - began, 3),
            "requests": counts(each for each in requests if began <= each.began < ended),
            "seconds with requests": in_flight(requests, began, ended),
        }
        for phase, began, ended in zip(_PHASES, ends[:-1], ends[1:], strict=True)
    }


def _copied_by_server(client: Any, keys: Sequence[str], *, check: bool) -> None:
    def digest(key: str) -> str:
        return hashlib.sha256(client.get_object(Bucket=BUCKET, Key=key)["Body"].read()).hexdigest()

    def one(each: tuple[int, str]) -> None:
        number, key = each
        client.copy_object(Bucket=BUCKET, Key=f"plain/{number}", CopySource={"Bucket": BUCKET, "Key": key})
        if check and digest(key) != digest(f"plain/{number}"):
            raise AssertionError(key)

    with ThreadPoolExecutor(_S3_THREADS) as pool:
        list(pool.map(one, enumerate(keys)))


# --- sides on a disk --------------------------------------------------------------------------------------------------


def _peer(lifecycle: Lifecycle, folder: Path, table: str, start: str | None, end: str) -> None:
    spark: SparkSession = lifecycle.spark
    live = lifecycle.config.catalogs.live.name
    source = end.rpartition("/metadata/")[0]
    target = f"file:{folder}/peer/{table.replace('.', '/')}"
    options = {
        "table": table,
        "source_prefix": source,
        "target_prefix": target,
        "staging_location": f"file:{folder}/staging/{uuid.uuid4().hex}",
        "end_version": end.rpartition("/")[2],
        **({} if start is None else {"start_version": start.rpartition("/")[2]}),
    }
    arguments = ", ".join(f"{key} => '{value}'" for key, value in options.items())
    row = spark.sql(f"CALL {live}.system.rewrite_table_path({arguments})").collect()[0]
    with _local(row["file_list_location"]).open() as file:
        listed = list(csv.reader(file))
    pairs = [(line[0], line[1]) for line in listed if line]
    _copied([(_local(a), _local(b)) for a, b in pairs], check=False)
    metadata, name = f"{target}/metadata/{row['latest_version']}", f"bench.{uuid.uuid4().hex}"
    spark.sql(f"CALL {_PEER}.system.register_table(table => '{name}', metadata_file => '{metadata}')")


def _into(pairs: Sequence[tuple[str, str]], folder: Path) -> list[tuple[Path, Path]]:
    return [(_local(path), folder / f"{number}") for number, (path, _) in enumerate(pairs)]


def _copied(pairs: Iterable[tuple[Path, Path]], *, check: bool) -> None:
    def one(pair: tuple[Path, Path]) -> None:
        source, target = pair
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        if check and _digest(source) != _digest(target):
            raise AssertionError(target)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(one, pairs))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _timed(measured: dict[str, dict[str, float]], name: str, work: Callable[[], Any], interval: float = 0.04) -> Any:
    """Seconds of the work, of the clock and of the processors; and the peak of this process' memory and of the JVM's
    above what they had before, in bytes."""
    sampler = Sampler(os.getpid(), interval)
    sampler.start()
    time.sleep(interval + 0.2)
    processor, began = processor_seconds(), time.perf_counter()
    done = work()
    took, used = time.perf_counter() - began, processor_seconds() - processor
    samples = sampler.stop()
    before = samples[0]
    measured[name] = {
        "seconds": took,
        "cpu_seconds": used,
        "python_above": max(sample.python for sample in samples) - before.python,
        "jvm_above": max(sample.jvm for sample in samples) - before.jvm,
    }
    return done


def _local(path: str) -> Path:
    return Path("/" + path.removeprefix("file:").lstrip("/"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("jars", type=Path)
    parser.add_argument("--store", choices=("disk", "s3"), default="disk")
    parser.add_argument("--gateway", default="versitygw")
    parser.add_argument("--latency", type=float, default=30, help="milliseconds of each request")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--without-checksums", action="store_true")
    given = parser.parse_args()
    places = given.work.resolve(), given.jars.resolve()
    if given.store == "disk":
        found = main(*places)
    else:
        checksums = not given.without_checksums
        found = on_s3(*places, given.gateway, given.latency, given.repetitions, checksums=checksums)
    print(json.dumps(found, indent=1))
