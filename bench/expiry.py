"""Deleting what an expiration leaves, beside `expire_snapshots`' own deletes. `python -m bench.expiry WORK HOME` prints
JSON; `--files 20000` is about how many data files go, `--parts disk,s3` where from.

In one run and one warm session, each side on a fresh copy of the same table and the same files, alternating; the better
time counts. Both sides must leave the same files behind, or the run fails.

- peer: `expire_snapshots`, which commits, finds the files and deletes them, at its best settings (two shuffle
  partitions, or eight and `stream_results`), and at Spark's defaults (200). Its deletes cannot be timed alone: the same
  action without them (`expireFiles`, counted) is measured beside it, on another copy. `HadoopFileIO` and `S3FileIO`
  delete in bulk, so that the procedure ignores `max_concurrent_deletes`;
- ours: `plan_expiration` with the manifest index cold, `commit_expiration`, `delete_files`, each apart, without an
  archive, at a pace that never waits.

`s3` needs `--gateway`, a versitygw, which keeps objects as files: the bench puts them there by the thousand without
asking it. It is one more process of the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

PARTS = ("disk", "s3")
REPETITIONS = 2
DAYS, EXPIRED = 6, 3
_KEYS = {"ROOT_ACCESS_KEY": "benchaccess", "ROOT_SECRET_KEY": "benchsecret"}


def shape_that_loses(files: int) -> Shape:
    """A table that loses about so many data files with its first days, and keeps as many."""
    appended = max(1, files // EXPIRED // 8)
    return Shape("expiry", DAYS, EXPIRED, 0, appends=8, files=appended, compacted=max(1, appended // 32), merge=False)


class Expiry:
    """One table, made anew for each run of a side: `place` is the folder where its files stand on this machine."""

    def __init__(self, bench: Bench, table: Table, place: Path) -> None:
        self.bench = bench
        self.table = table
        self.place = place
        self.stage = table.stages[0]
        self.doomed: dict[str, int] = {}
        self.left: set[str] | None = None

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

    def ours(self) -> None:
        name, lifecycle, timed = self.fresh(), self.bench.lifecycle, self.bench.timed
        self.bench.forget_index()
        begun = partial(lifecycle.plan_expiration, name, older_than=self.cutoff, retain_last=1)
        plan = timed("ours, plan", begun)
        timed("ours, commit", lambda: lifecycle.commit_expiration(plan))
        report = timed("ours, delete_files", lambda: lifecycle.delete_files(plan))
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
            self.bench.timed(f"peer, {label}", lambda: spark.sql(call % name).collect())
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
            self.bench.timed(f"peer without its deletes, {named_conf(conf)}", work)
        self.drop(name)

    def run(self, repetitions: int) -> dict[str, Any]:
        self.learn()
        for _ in range(repetitions):
            self.ours()
            self.peer(FEW)
            self.peer_without_deletes(FEW)
            self.peer(EIGHT, "true")
            self.peer(DEFAULTS)
        shutil.rmtree(self.place)
        return self.bench.report({"data files": len(self.doomed)})


@contextmanager
def gateway(binary: str, root: Path) -> Iterator[str]:
    """A versitygw on loopback that keeps its buckets as folders under `root`; its address."""
    root.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [binary, "--port", address, "posix", str(root)]
    with subprocess.Popen(command, env={**os.environ, **_KEYS}, stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                with socket.socket() as wire:
                    if wire.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0:
                        break
                time.sleep(0.1)
            yield f"http://{address}"
        finally:
            server.terminate()


def measured(work: Path, home: Path, files: int, part: str, binary: str | None, repetitions: int) -> dict[str, Any]:
    folder = work / f"expiry-{uuid.uuid4().hex[:8]}"
    root = folder / "buckets"
    if part == "disk":
        return _measured(folder, work, home, files, folder / "table", f"file://{folder}/table", {}, repetitions)
    assert binary is not None, "s3 needs --gateway"
    with gateway(binary, root) as endpoint:
        (root / "bench").mkdir()
        access = {
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": _KEYS["ROOT_ACCESS_KEY"],
            "s3.secret-access-key": _KEYS["ROOT_SECRET_KEY"],
            "s3.path-style-access": "true",
        }
        return _measured(folder, work, home, files, root / "bench" / "table", "s3://bench/table", access, repetitions)


def _measured(
    folder: Path,
    work: Path,
    home: Path,
    files: int,
    place: Path,
    location: str,
    access: Mapping[str, str],
    repetitions: int,
) -> dict[str, Any]:
    uri = EmbeddedPostgres(work / "home").uri(CATALOGS)
    config = config_in(
        folder,
        uri,
        work / "home",
        defaults={
            "retention": {"rule": "iceberg"},
            "cold_tier": {"enabled": False},
            "deletion": {"grace": "0s", "requests_per_second": 1e9},
            # Iceberg's own clients draw from the same bucket: neither side is to wait for it.
            "budgets": {"object_store_iops": 1_000_000_000, "object_store_writes": 1_000_000_000},
        },
        warehouse=f"{location.rpartition('/')[0]}/{{}}" if access else None,
        memory=HEAP,
        properties=dict(access),
    )
    spark = open_session(session_conf(config, lifecycle_conf(config), resolve(home, needed(config))))
    try:
        with Lifecycle.open(config, spark=spark) as lifecycle:
            bench = Bench(lifecycle, folder)

            def table(files: int) -> Table:
                return metadata.generate(shape_that_loses(files), folder / "tables", location=location)

            Expiry(bench, table(2_000), place).run(1)
            return Expiry(bench, table(files), place).run(repetitions)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main(
    work: Path, home: Path, files: int, parts: Sequence[str], binary: str | None, repetitions: int
) -> dict[str, Any]:
    load = os.getloadavg()
    return {
        "heap": HEAP,
        "load before": load,
        # S3 first: the one JVM has the jars with which it was started.
        **{part: measured(work, home, files, part, binary, repetitions) for part in sorted(parts, reverse=True)},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("home", type=Path)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--gateway")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    given = parser.parse_args()
    done = main(
        given.work.resolve(),
        given.home.resolve(),
        given.files,
        given.parts.split(","),
        given.gateway,
        given.repetitions,
    )
    print(json.dumps(done, indent=1))
