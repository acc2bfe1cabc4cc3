"""Handing a table's history to the cold tier, beside what a user would do instead. `python -m bench.handoff WORK JARS`
prints JSON.

One table of appends, files of about a megabyte that do not compress. Two nights: the first archives four days, the next
one more day. Measured on the same files, in one run, in one warm session:

- ours: `hand_off` of the night's plan: find, copy, read back and compare each copy, rewrite, publish;
- a plain parallel copy of the same files (eight threads, `shutil.copyfile`), and the same with each copy read back and
  compared, which is what ours promises;
- the peer: `rewrite_table_path` of the night's versions, a plain parallel copy of the files that it lists, and
  `register_table`. It verifies nothing.
"""

from __future__ import annotations

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

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import catalog_conf, spark_conf
from artemis_lifecycle.config.deployment import Catalog
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.embedded.postgres import CATALOGS, EmbeddedPostgres
from artemis_lifecycle.spark.session import open_session, session_conf
from bench.configuration import config_in
from bench.sampling import Sampler, processor_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS, COMMITS, FILES = 5, 4, 25
"""Days that are archived, commits of a day, files of a commit."""

_ROWS = 15_000
_THREADS = 8
_PEER = "bench_peer"


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


def _nights(lifecycle: Lifecycle, folder: Path, name: str, *, files: int) -> list[dict[str, Any]]:
    spark, table = lifecycle.spark, f"bench.{name}"
    live = lifecycle.config.catalogs.live.name
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.bench")
    spark.sql(f"CREATE TABLE {live}.{table} (id bigint, a double, b double, c double, d double) USING iceberg")
    ends: list[datetime] = []
    versions: list[str] = []
    for _ in range(DAYS):
        for _ in range(COMMITS):
            columns = [f"rand() AS {column}" for column in "abcd"]
            rows = spark.range(files * _ROWS).repartition(files).selectExpr("id", *columns)
            rows.writeTo(f"{live}.{table}").append()
        history = lifecycle.snapshot_history(table)
        versions.append(history.metadata_location)
        time.sleep(0.01)
        ends.append(datetime.now(UTC))
    # The last day's own snapshot must not be the current one.
    spark.range(1).selectExpr("id", "0D AS a", "0D AS b", "0D AS c", "0D AS d").writeTo(f"{live}.{table}").append()
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


def _timed(measured: dict[str, dict[str, float]], name: str, work: Callable[[], Any]) -> Any:
    """Seconds of the work, of the clock and of the processors; and the peak of this process' memory and of the JVM's
    above what they had before, in bytes."""
    sampler = Sampler(os.getpid())
    sampler.start()
    time.sleep(0.2)
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
    print(json.dumps(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()), indent=1))
