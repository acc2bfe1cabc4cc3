"""What a Python task of Spark costs that does nothing: with Spark's own daemon and with this project's
(`artemis_lifecycle.worker_daemon`). `python -m bench.workers` prints JSON, in a minute.

Each daemon in a session of its own (`local[2]`), in a process of its own, alternating, each twice; the better counts:

- start: a session's first job, two tasks that load nothing: the JVM's own part, the daemon and two workers, in seconds;
- first: the first job whose tasks load what tasks here load, two of them, after that, in seconds;
- sixteen: sixteen tasks on the two cores, after that, the median of ten jobs, in seconds;
- processor: what a worker spends from one of these tasks to its next, the median, in seconds of a processor.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

DAEMONS = {"spark's own": "pyspark.daemon", "ours": "artemis_lifecycle.worker_daemon"}


def loading(rows: Iterator[int]) -> Iterator[tuple[int, float]]:
    """(the worker's number, the processor seconds that it has used so far)."""
    import artemis_lifecycle.metadata.avro.scan_kernels
    import artemis_lifecycle.reachability.index.view  # noqa: F401

    list(rows)
    yield os.getpid(), time.process_time()


def measured(daemon: str) -> dict[str, float]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.python.daemon.module", daemon).getOrCreate()
    context = spark.sparkContext
    context.setLogLevel("ERROR")
    began = time.perf_counter()
    context.parallelize(range(2), 2).map(str).count()
    start = time.perf_counter() - began

    def job(tasks: int) -> tuple[float, list[tuple[int, float]]]:
        began = time.perf_counter()
        found = context.parallelize(range(tasks), tasks).mapPartitions(loading).collect()
        return time.perf_counter() - began, found

    first, _ = job(2)
    job(16)
    jobs = [job(16) for _ in range(10)]
    spent = []
    for _, found in jobs:
        for worker in {pid for pid, _ in found}:
            used = [seconds for pid, seconds in found if pid == worker]
            spent += [after - before for before, after in pairwise(used)]
    spark.stop()
    return {
        "start": start,
        "first": first,
        "sixteen": statistics.median(seconds for seconds, _ in jobs),
        "processor": statistics.median(spent),
    }


def main() -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in DAEMONS}
    for _ in range(2):
        for name, daemon in DAEMONS.items():
            run = subprocess.run([sys.executable, "-m", "bench.workers", daemon], capture_output=True, check=True)
            found[name].append(json.loads(run.stdout.splitlines()[-1]))
    return {
        "load": os.getloadavg(),
        **{name: {key: min(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()},
    }


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1]) if len(sys.argv) > 1 else main()))
