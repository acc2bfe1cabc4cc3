"""Deleting what an expiration leaves, beside `expire_snapshots`' own deletes. `python -m bench.expiry WORK HOME` prints
JSON; `--files 20000` is about how many data files go, `--parts disk,s3` where from.

In one run and one warm session, each side on a fresh copy of the same table and the same files, alternating; the better
time counts. Both sides must leave the same files behind, or the run fails.

- peer: `expire_snapshots`, which commits, finds the files and deletes them, at its best settings (two shuffle
  partitions, or eight and `stream_results`), and at Spark's defaults (200). Its deletes cannot be timed alone: the same
  action without them (`expireFiles`, counted) is measured beside it, on another copy. `HadoopFileIO` and `S3FileIO`
  delete in bulk, so that the procedure ignores `max_concurrent_deletes`;
- ours: `plan_expiration` with the manifest index cold, `commit_expiration`, `delete_files`, each apart, without an
  archive, at a pace that never waits. On S3 with `--latency`, also at the pace of the store's limit (3,500 keys a
  second) and at the shipped one (half of it). The peer never waits.

`s3` needs `--gateway`, a versitygw (bench/s3.py), which keeps objects as files: the bench puts them there by the
thousand without asking it. It is one more process of the same machine. `--latency 30` delays each request by so many
milliseconds, of both sides, and counts them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import lifecycle_conf
from artemis_lifecycle.embedded.jars import needed, resolve
from artemis_lifecycle.embedded.postgres import CATALOGS, EmbeddedPostgres
from artemis_lifecycle.operations.known_tables import known_tables
from artemis_lifecycle.spark.session import open_session, session_conf
from bench import metadata
from bench.configuration import config_in
from bench.metadata import Shape, Table
from bench.orphans import DEFAULTS, EIGHT, FEW, HEAP, Bench, named_conf
from bench.s3 import BUCKET, Server, counts, in_flight, serving

PARTS = ("disk", "s3")
REPETITIONS = 2
DAYS, EXPIRED = 6, 3

UNPACED = "ours"
_PACES: dict[str, dict[str, Any]] = {
    # Iceberg's own clients draw from the same bucket: neither side is to wait for it.
    UNPACED: {
        "deletion": {"grace": "0s", "requests_per_second": 1e9},
        "budgets": {"object_store_iops": 1_000_000_000, "object_store_writes": 1_000_000_000},
    },
    "ours at the store's limit": {"deletion": {"grace": "0s"}, "budgets": {"read_share": 1, "write_share": 1}},
    "ours as shipped": {"deletion": {"grace": "0s"}},
}


def shape_that_loses(files: int) -> Shape:
    """A table that loses about so many data files with its first days, and keeps as many."""
    appended = max(1, files // EXPIRED // 8)
    return Shape("expiry", DAYS, EXPIRED, 0, appends=8, files=appended, compacted=max(1, appended // 32), merge=False)


class Expiry:
    """One table, made anew for each run of a side: `place` is the folder where its files stand on this machine."""

    def __init__(
        self, bench: Bench, table: Table, place: Path, paced: Mapping[str, Lifecycle], server: Server | None
    ) -> None:
        self.bench = bench
        self.table = table
        self.place = place
        self.paced = paced
        self.server = server
        self.stage = table.stages[0]
        self.doomed: dict[str, int] = {}
        self.left: set[str] | None = None

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        if self.server is None or self.server.proxy is None:
            return self.bench.timed(name, work)
        at: list[float] = []

        def marked() -> Any:
            at.append(time.monotonic())
            return work()

        self.server.take()
        done = self.bench.timed(name, marked)
        found, ran = self.server.take(), self.bench.measured[name][-1]
        ran["requests"] = counts(found)  # type: ignore[assignment]
        ran["seconds with requests"] = in_flight(found, at[0], at[0] + ran["seconds"])  # type: ignore[assignment]
        print(f"{name}: {ran['requests']}, {ran['seconds with requests']}", file=sys.stderr, flush=True)
        return done

    def fresh(self) -> str:
        """The table and its doomed files, registered under a name and a uuid of their own."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(Path(self.table.folder) / "metadata", self.place / "metadata")
        (file,) = [path for path in (self.place / "metadata").iterdir() if path.name.endswith(".metadata.json")]
        file.write_text(file.read_text().replace(self.table.table_uuid, str(uuid.uuid4())))
        for folder in {path.rpartition("/")[0] for path in self.doomed}:
            (self.place / folder).mkdir(parents=True, exist_ok=True)
        for path, size in self.doomed.items():
            # As long as metadata says: a file of another size is another file.
            descriptor = os.open(self.place / path, os.O_CREAT | os.O_WRONLY, 0o644)
            os.truncate(descriptor, size)
            os.close(descriptor)
        file.touch()  # Metadata is never older than the files that it names.
        name = f"bench.t{uuid.uuid4().hex[:8]}"
        self.bench.spark.sql(
            f"CALL {self.bench.catalog}.system.register_table(table => '{name}', "
            f"metadata_file => '{self.stage.metadata_location}')"
        )
        return name

    def over(self, name: str) -> None:
        """What a side left must be what the other left; metadata files and receipts apart."""
        files = {str(path.relative_to(self.place)) for path in self.place.rglob("*") if path.is_file()}
        left = {path for path in files if "artemis-receipts" not in path and ".metadata.json" not in path}
        assert not left & self.doomed.keys(), f"{len(left & self.doomed.keys())} doomed files are still there"
        assert self.left in (None, left), sorted((self.left or set()) ^ left)[:3]
        self.left = left
        self.drop(name)

    def drop(self, name: str) -> None:
        """Drop the table, and let nothing know of it: the next one has its metadata file's path, and protection would
        refuse to delete beside a dropped table whose metadata file is another's."""
        self.bench.spark.sql(f"DROP TABLE {self.bench.catalog}.{name}")
        with self.bench.lifecycle.operations.engine.begin() as connection:
            connection.execute(known_tables.delete().where(known_tables.c.table_name == name))

    def learn(self) -> None:
        name = self.fresh()
        plan = self.bench.lifecycle.plan_expiration(name, older_than=self.cutoff, retain_last=1)
        sizes = {
            row["path"].removeprefix(f"{self.table.location}/"): row["size_in_bytes"] for row in plan.files().collect()
        }
        self.doomed = {path: size for path, size in sizes.items() if not path.startswith("metadata/")}
        self.drop(name)

    @property
    def cutoff(self) -> datetime:
        return datetime.fromtimestamp(self.stage.cutoff_ms / 1000, UTC)

    def ours(self, pace: str) -> None:
        name, lifecycle, timed = self.fresh(), self.paced[pace], self.timed
        self.bench.forget_index()
        begun = partial(lifecycle.plan_expiration, name, older_than=self.cutoff, retain_last=1)
        plan = timed(f"{pace}, plan", begun)
        timed(f"{pace}, commit", lambda: lifecycle.commit_expiration(plan))
        report = timed(f"{pace}, delete_files", lambda: lifecycle.delete_files(plan))
        assert (report.deleted + report.already_absent, report.failed) == (plan.summary.files, 0), report
        self.over(name)

    def peer(self, conf: Mapping[str, str], stream: str = "false") -> None:
        spark, label = self.bench.spark, named_conf(conf) + (", stream_results" if stream == "true" else "")
        catalog = self.bench.catalog
        call = (
            f"CALL {catalog}.system.expire_snapshots(table => '%s', retain_last => 1, stream_results => {stream}, "
            f"older_than => TIMESTAMP '{self.cutoff:%Y-%m-%d %H:%M:%S}')"
        )
        name = self.fresh()
        with self.bench.settings(conf):
            self.timed(f"peer, {label}", lambda: spark.sql(call % name).collect())
        self.over(name)

    def peer_without_deletes(self, conf: Mapping[str, str]) -> None:
        name, spark = self.fresh(), self.bench.spark
        jvm: Any = spark._jvm
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, f"{self.bench.catalog}.{name}"
        )
        actions = jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)

        def work() -> None:
            action = actions.expireSnapshots(table).expireOlderThan(self.stage.cutoff_ms).retainLast(1)
            assert action.expireFiles().count() >= len(self.doomed)

        with self.bench.settings(conf):
            self.timed(f"peer without its deletes, {named_conf(conf)}", work)
        self.drop(name)

    def run(self, repetitions: int) -> dict[str, Any]:
        self.learn()
        for _ in range(repetitions):
            for pace in self.paced:
                self.ours(pace)
            self.peer(FEW)
            self.peer_without_deletes(FEW)
            self.peer(EIGHT, "true")
            self.peer(DEFAULTS)
        shutil.rmtree(self.place)
        return self.bench.report({"data files": len(self.doomed)})


def measured(
    work: Path, home: Path, files: int, part: str, binary: str | None, repetitions: int, latency: float
) -> dict[str, Any]:
    folder = work / f"expiry-{uuid.uuid4().hex[:8]}"
    run = partial(_measured, folder, work, home, files, repetitions)
    if part == "disk":
        return run(folder / "table", f"file://{folder}/table", None)
    assert binary is not None, "s3 needs --gateway"
    root = folder / "buckets"
    with serving(binary, root, latency) as server:
        return run(root / BUCKET / folder.name, f"s3://{BUCKET}/{folder.name}", server)


def _measured(
    folder: Path,
    work: Path,
    home: Path,
    files: int,
    repetitions: int,
    place: Path,
    location: str,
    server: Server | None,
) -> dict[str, Any]:
    uri = EmbeddedPostgres(work / "home").uri(CATALOGS)
    paces = _PACES if server is not None and server.proxy is not None else (UNPACED,)
    configs = {
        pace: config_in(
            folder,
            uri,
            work / "home",
            defaults={"retention": {"rule": "iceberg"}, "cold_tier": {"enabled": False}, **_PACES[pace]},
            warehouse=None if server is None else f"s3://{BUCKET}/{{}}",
            memory=HEAP,
            properties={} if server is None else server.properties,
        )
        for pace in paces
    }
    config = configs[UNPACED]
    spark = open_session(session_conf(config, lifecycle_conf(config), resolve(home, needed(config))))
    try:
        with ExitStack() as opened:
            paced = {pace: opened.enter_context(Lifecycle.open(each, spark=spark)) for pace, each in configs.items()}
            bench = Bench(paced[UNPACED], folder)

            def expiry(files: int) -> Expiry:
                made = metadata.generate(shape_that_loses(files), folder / "tables", location=location)
                return Expiry(bench, made, place, paced, server)

            expiry(2_000).run(1)
            return expiry(files).run(repetitions)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main(
    work: Path, home: Path, files: int, parts: Sequence[str], binary: str | None, repetitions: int, latency: float
) -> dict[str, Any]:
    load = os.getloadavg()
    return {
        "heap": HEAP,
        "load before": load,
        # S3 first: the one JVM has the jars with which it was started.
        **{
            part: measured(work, home, files, part, binary, repetitions, latency)
            for part in sorted(parts, reverse=True)
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("home", type=Path)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--gateway")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--latency", type=float, default=0, help="milliseconds of each request to S3")
    given = parser.parse_args()
    done = main(
        given.work.resolve(),
        given.home.resolve(),
        given.files,
        given.parts.split(","),
        given.gateway,
        given.repetitions,
        given.latency,
    )
    print(json.dumps(done, indent=1))
