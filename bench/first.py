"""The first plan of a process, with nothing warm. `python -m bench.first WORK HOME` prints one line of JSON: seconds of
the clock and of the processors (all processes) for each part, and a digest of what each plan names.

HOME is the folder that has Spark's jars, WORK the bench's own (`--work`). Parts: the session's start; a full plan, and
the count of its files; the same again, which finds libraries and JVM warm; then nights. With `--without-session`, only
the first full plan, as a command makes it: without a JVM. To compare two versions, run each from its own tree, in turn.

`--pairs N`: beside the peer, each plan in a process and a session of its own, which does nothing before it: the full
plan and the next day's, each with the count of its files; ours finds the next day what the first process left. The
session's start is not counted. One line for each process, then the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle.storage.frames import describe_frame, rows_digest
from artemis_lifecycle.storage.stores import Stores
from bench import metadata
from bench.metadata import Table
from bench.sampling import processor_seconds
from bench.side import Job, Ours, Peer, Side, read_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("home")
    parser.add_argument("--scale", type=float, default=2)
    parser.add_argument("--nights", type=int, default=2)
    parser.add_argument("--without-session", action="store_true")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--best", default="spark.sql.shuffle.partitions=2,spark.sql.adaptive.enabled=false")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        return alone(arguments)
    if arguments.pairs:
        return beside_the_peer(arguments)
    table, job, conf = prepared(arguments, "ours")
    parts: dict[str, Any] = {"load": os.getloadavg()[0]}

    def part(name: str, work: Callable[[], Any]) -> Any:
        began, processor = time.monotonic(), processor_seconds()
        done = work()
        parts[name] = [round(time.monotonic() - began, 2), round(processor_seconds() - processor, 2)]
        return done

    spark = None
    if not arguments.without_session:
        spark = part("session", lambda: open_session(conf))
    ours = Ours(spark, job)
    try:
        stages = [0] if spark is None else [0, 0, *range(1, arguments.nights + 1)]
        for number, stage in enumerate(stages):
            if stage == 0:
                ours.forget(table)
            name = f"night {stage}" if stage else ("full again" if number else "full")
            plan = part(name, ours.planned(table, table.stages[stage]))
            if spark is not None:
                part(f"{name}, count", lambda plan=plan: plan.files().count())
            parts[f"{name}, digest"] = digest(plan.files_location)
    finally:
        ours.close()
        if spark is not None:
            spark.stop()
    print(json.dumps(parts))


def prepared(arguments: argparse.Namespace, side: str) -> tuple[Table, Job, dict[str, str]]:
    """The table, with all of its files in the system's cache; the job; and the settings of its session."""
    cores = os.cpu_count() or 1
    table = metadata.generate(metadata.daily(arguments.scale), Path(arguments.work), processes=cores)
    read_all(Path(table.folder))
    home = str(Path(arguments.work, "home"))
    job = Job(side, arguments.work, home, arguments.home, cores, "", "", (table.folder,), 2, arguments.nights, {})
    config = LifecycleConfig.model_validate({"home": home, "spark": {"master": f"local[{cores}]"}})
    return table, job, session_conf(config, {}, resolve(Path(arguments.home)))


def beside_the_peer(arguments: argparse.Namespace) -> None:
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _ in range(arguments.pairs):
        state = uuid.uuid4().hex
        files: dict[int, set[tuple[Any, ...]]] = defaultdict(set)
        for side, stage in (("peer", 0), ("ours", 0), ("ours", 1), ("peer", 1)):
            command = [sys.executable, "-m", "bench.first", *sys.argv[1:], "--alone", f"{side} {stage} {state}"]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
            print(printed, flush=True)
            one = json.loads(printed)
            found[side, stage].append(one["seconds"])
            files[stage].add((one["files"], one["hash1"], one["hash2"]))
        assert all(len(each) == 1 for each in files.values()), files
    for stage, name in enumerate(("full plan", "next day")):
        peer, ours = (median(found[side, stage]) for side in ("peer", "ours"))
        print(f"{name}, nothing warm: {peer:.1f} s : {ours:.2f} s = {peer / ours:.1f}")


def alone(arguments: argparse.Namespace) -> None:
    side, stage, state = arguments.alone.split()
    table, job, conf = prepared(arguments, side)
    if side == "peer":
        conf |= dict(pair.split("=", 1) for pair in arguments.best.split(","))
    began = time.monotonic()
    spark = open_session(conf)
    opened = round(time.monotonic() - began, 2)
    one: Side = Peer(spark, job) if side == "peer" else Ours(spark, job, state)
    ready = one.load(table, table.stages[int(stage)])
    began, processor, load = time.monotonic(), processor_seconds(), os.getloadavg()[0]
    done = ready()
    said = {"side": side, "stage": int(stage), "seconds": round(time.monotonic() - began, 2)}
    said |= {"processor": round(processor_seconds() - processor, 2), "session": opened, "load": load}
    found = done()
    one.close()
    spark.stop()
    print(json.dumps(said | {key: found[key] for key in ("files", "hash1", "hash2")}))


def digest(folder: str) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sealed = describe_frame(folder, Stores())
    assert sealed is not None
    parts = [pq.read_table(Path(folder.removeprefix("file://"), part.name)) for part in sealed.parts]
    return rows_digest(pa.concat_tables(parts))


if __name__ == "__main__":
    main()
