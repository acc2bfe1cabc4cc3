"""Finding and deleting orphans, beside Iceberg's own procedure. `python -m bench.orphans WORK HOME` prints JSON;
`--small` is a quick try, `--parts scan,listing,deletion` runs some, `--deleted` is how many files the last one deletes.

Measured in one run, in one warm session, each side twice on the same files, alternating; the better time counts. Both
sides must name the files that were planted, no more and no fewer, or the run fails:

- scan: two million listed files, of which three thousand are orphans. Ours: `scan_orphans` of a sealed listing, of the
  Parquet files that the procedure's view reads, and of the same DataFrame that it is given (both sealed within the
  time), each with the manifest index and without. The peer: `remove_orphan_files(file_list_view, dry_run)` at its best
  (two shuffle partitions, or eight and `stream_results`) and at Spark's defaults (200). It returns the orphans' paths;
  ours seals them;
- listing: 200,000 empty files on the local disk, in 35 partition folders. Ours: `list_objects` and `scan_orphans`. The
  peer: the procedure without a view, which lists by Hadoop's file system (few files: by `prefix_listing`, too);
- deletion: 200,000 orphans on the local disk. Ours: `delete_orphans` with its journal and final checks, at a pace that
  never waits. The peer: the procedure, for real; its dry run of the same is measured beside it, because its deletes
  cannot be timed alone. `HadoopFileIO` deletes in bulk, in four threads a core, so that the procedure ignores
  `max_concurrent_deletes`. The floor: one thread of `os.unlink`.

Tables of the first two parts are the bench's own, without data (`bench/metadata.py`).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import lifecycle_conf
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.embedded.postgres import CATALOGS, EmbeddedPostgres
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.orphans.external_listing import ParquetListing, given_listing
from artemis_lifecycle.orphans.listing import Listing
from artemis_lifecycle.reachability.walk import reachable_files
from artemis_lifecycle.session.contexts import live_index
from artemis_lifecycle.spark.runner import Runner
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle.walk.listings import listed_locations
from bench import metadata
from bench.configuration import config_in
from bench.metadata import Shape, Table
from bench.sampling import Sampler, processor_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORPHANS = 3_000
PREFIX_LISTED = 20_000
"""Files from which on the procedure is not asked with `prefix_listing`, which goes file by file on a local disk: 2,000
took 20 s, where its other way took 12 s, and 200,000 were not done after eight minutes."""
REPETITIONS = 2
HEAP = "4g"
"""Of the one JVM that both sides work in."""

PARTS = ("scan", "listing", "deletion")

_OLD = timedelta(days=20)
_BEFORE = timedelta(days=10)
_SHUFFLE, _ADAPTIVE = "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"
DEFAULTS = {_SHUFFLE: "200", _ADAPTIVE: "true"}
FEW, EIGHT = ({_SHUFFLE: partitions, _ADAPTIVE: "true"} for partitions in ("2", "8"))

Given = Union[Listing, ParquetListing, "DataFrame"]
Measured = dict[str, list[dict[str, float]]]


def shape_with_files(files: int, days: int = 35) -> Shape:
    """A table of about so many files in a partition folder a day, small enough that its files can be made."""
    appended = max(1, files // days // 8)
    compacted = max(1, appended * 8 // 256)
    return Shape("listed", days, 1, 0, appends=8, files=appended, compacted=compacted, merge=False)


class Bench:
    """One session, one catalog, and what is measured in them."""

    def __init__(self, lifecycle: Lifecycle, folder: Path) -> None:
        self.lifecycle = lifecycle
        self.folder = folder
        self.spark: SparkSession = lifecycle.spark
        self.catalog = lifecycle.config.catalogs.live.name
        self.measured: Measured = {}
        self.repetitions = 1
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog}.bench")
        self.now = datetime.now(UTC).replace(microsecond=0)

    @property
    def older_than(self) -> datetime:
        return self.now - _BEFORE

    def register(self, name: str, table: Table) -> str:
        location = table.stages[0].metadata_location
        self.spark.sql(
            f"CALL {self.catalog}.system.register_table(table => 'bench.{name}', metadata_file => '{location}')"
        )
        if len(table.stages) > 1:
            # What the bench of plans commits later stands there already.
            self.lifecycle.settle_metadata(f"bench.{name}", who="bench", why="later stages of a made table")
        for path in (Path(table.folder) / "metadata").iterdir():
            path.read_bytes()  # Neither side is to be the one that brings it into the system's cache.
        return f"bench.{name}"

    def peer(self, table: str, conf: Mapping[str, str] = DEFAULTS, **options: str) -> list[str]:
        """The procedure under these settings of the session; the paths that it names."""
        arguments = {
            "table": f"'{table}'",
            "older_than": f"TIMESTAMP '{self.older_than:%Y-%m-%d %H:%M:%S}'",
            **options,
        }
        listed = ", ".join(f"{key} => {value}" for key, value in arguments.items())
        with self.settings(conf):
            rows = self.spark.sql(f"CALL {self.catalog}.system.remove_orphan_files({listed})").collect()
        return [row["orphan_file_location"] for row in rows]

    @contextmanager
    def settings(self, conf: Mapping[str, str]) -> Iterator[None]:
        """The session with these settings."""
        before = {key: str(self.spark.conf.get(key)) for key in conf}
        for key, value in conf.items():
            self.spark.conf.set(key, value)
        try:
            yield
        finally:
            for key, value in before.items():
                self.spark.conf.set(key, value)

    def ours(self, table: str, listing: Given) -> Any:
        return self.lifecycle.scan_orphans(table, older_than=self.older_than, listing=listing)

    def forget_index(self) -> None:
        shutil.rmtree(_local(f"{self.lifecycle.root}/index"), ignore_errors=True)

    def reached(self, table: str) -> DataFrame:
        """All that the table's snapshots reach, and its metadata file: DataFrame[path, size_in_bytes]."""
        lifecycle = self.lifecycle
        content = read_table_metadata(
            lifecycle.live_stores, lifecycle.resources.live_catalog.entry(table).metadata_location
        )
        ids = [snapshot.snapshot_id for snapshot in content.snapshots]
        reached = reachable_files(Runner(self.spark), live_index(lifecycle.resources, table, content), ids)
        files = reached.frame().select("path", "size_in_bytes")
        own = self.spark.createDataFrame([(content.metadata_location, 1)], files.schema)
        return files.unionByName(own)

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        """Do it after a rest. Seconds, of the clock and of the processors; the peak of this process' memory and of the
        JVM's above the start, in bytes."""
        _rest(self.spark)
        sampler = Sampler(os.getpid(), interval=0.2)
        sampler.start()
        time.sleep(0.5)
        processor, began = processor_seconds(), time.perf_counter()
        done = work()
        took, used = time.perf_counter() - began, processor_seconds() - processor
        samples = sampler.stop()
        before = samples[0]
        found = {
            "seconds": took,
            "cpu_seconds": used,
            "python_above": max(sample.python for sample in samples) - before.python,
            "jvm_above": max(sample.jvm for sample in samples) - before.jvm,
            "jvm_peak": max(sample.jvm for sample in samples),
        }
        self.measured.setdefault(name, []).append(found)
        print(f"{name}: {json.dumps(found)}", file=sys.stderr, flush=True)
        return done

    # --- parts --------------------------------------------------------------------------------------------------------

    def scan(self, name: str, table: Table) -> dict[str, Any]:
        bench = self.register(name, table)
        place, planted = self._listing(bench, table)
        frame, files = self.spark.read.parquet(place), self.lifecycle.parquet_listing(place)
        listed = frame.count()
        view = f"listed_{name}"
        frame.selectExpr("path AS file_path", "last_modified").createOrReplaceTempView(view)
        sealed = self._sealed(bench, frame)

        def ours(what: Given) -> None:
            result = self.ours(bench, what)
            _require_same(_paths(result.files()), planted)

        def peer(conf: Mapping[str, str], stream: str = "false") -> None:
            found = self.peer(bench, conf, dry_run="true", file_list_view=f"'{view}'", stream_results=stream)
            _require_same(found, planted)

        def cold(what: Given) -> Callable[[], None]:
            self.forget_index()
            return partial(ours, what)

        for _ in range(self.repetitions):
            self.timed("ours, sealed listing, cold", cold(sealed))
            self.timed("ours, sealed listing, warm", partial(ours, sealed))
            self.timed("ours, Parquet files, cold", cold(files))
            self.timed("ours, Parquet files, warm", partial(ours, files))
            self.timed(f"peer, {named_conf(FEW)}", partial(peer, FEW))
            self.timed("ours, DataFrame, warm", partial(ours, frame))
            self.timed("peer, defaults", partial(peer, DEFAULTS))
            self.timed("ours, DataFrame, cold", cold(frame))
            self.timed(f"peer, {named_conf(EIGHT)}, stream_results", partial(peer, EIGHT, "true"))
        return self.report({"files": listed, "orphans": len(planted)})

    def listing(self, name: str, table: Table) -> dict[str, Any]:
        bench = self.register(name, table)
        paths = [row["path"] for row in self.reached(bench).collect()]
        data = [path for path in paths if "/data/" in path]
        step = max(1, len(data) // max(1, ORPHANS // 10))
        planted = [_orphan(path) for path in data[::step]]
        _make([_local(path) for path in (*data, *planted)], self.now - _OLD)

        def ours() -> None:
            result = self.ours(bench, self.lifecycle.list_objects(bench))
            assert not self._names_more(result.files(), planted)

        def peer(conf: Mapping[str, str], prefix: str = "false") -> None:
            found = self.peer(bench, conf, dry_run="true", prefix_listing=prefix)
            _require_same(found, planted)

        for _ in range(self.repetitions):
            self.timed("ours", ours)
            self.timed(f"peer, {named_conf(FEW)}", partial(peer, FEW))
            if len(paths) < PREFIX_LISTED:
                self.timed(f"peer, {named_conf(FEW)}, prefix_listing", partial(peer, FEW, "true"))
            self.timed("peer, defaults", partial(peer, DEFAULTS))
        shutil.rmtree(Path(table.folder) / "data")
        return self.report({"files": len(data) + len(planted), "orphans": len(planted)})

    def deletion(self, name: str, files: int) -> dict[str, Any]:
        self.spark.sql(f"CREATE TABLE {self.catalog}.bench.{name} (id bigint) USING iceberg")
        self.spark.range(10).writeTo(f"{self.catalog}.bench.{name}").append()
        table = f"bench.{name}"
        root = _local(self.lifecycle.snapshot_history(table).metadata_location).parent.parent / "data"
        days = [f"day={day:02d}" for day in range(32)]
        paths = [
            root / days[number % len(days)] / f"{number:05d}-{100_000 + number}-{uuid.uuid4()}-0-00001.parquet"
            for number in range(files)
        ]
        conf = FEW

        def gone() -> None:
            left = sum(1 for path in paths if path.exists())
            assert not left, f"{left} orphans are still there"

        def made() -> None:
            _make(paths, self.now - _OLD)

        def ours() -> None:
            scan = self.timed("ours, list and scan", lambda: self.ours(table, self.lifecycle.list_objects(table)))
            report = self.timed("ours, delete_orphans", lambda: self.lifecycle.delete_orphans(scan))
            assert (report.deleted, report.failed, report.pending) == (files, 0, 0), report

        def peer() -> None:
            self.timed("peer, dry run", partial(self.peer, table, conf, dry_run="true"))
            assert len(self.timed("peer, remove_orphan_files", partial(self.peer, table, conf))) == files

        def floor() -> None:
            for path in paths:
                os.unlink(path)

        sides: list[Callable[[], Any]] = [ours, peer] * self.repetitions
        sides.append(partial(self.timed, "floor, os.unlink", floor))
        for side in sides:
            made()
            side()
            gone()
        return self.report({"files": files})

    # --- what they work on --------------------------------------------------------------------------------------------

    def _listing(self, table: str, of: Table) -> tuple[str, list[str]]:
        """Where all that `table` reaches and the planted orphans stand as Parquet, written once; the planted paths."""
        file = Path(of.folder) / "listing" / str(ORPHANS)
        if not (file / "_SUCCESS").exists():
            self._write_listing(table, of, str(file))
        listed = self.spark.read.parquet(f"file://{file}")
        return f"file://{file}", sorted(_paths(listed.where("path LIKE '%-left.parquet'")))

    def _write_listing(self, table: str, of: Table, file: str) -> None:
        reached = self.reached(table).persist()
        data = reached.where("path LIKE '%/data/%'")
        every = max(1, of.data_files // ORPHANS)
        rows = data.where(f"pmod(xxhash64(path), {every}) = 0").select("path").collect()
        planted = sorted(_orphan(row["path"]) for row in rows)
        orphans = self.spark.createDataFrame([(path, 1) for path in planted], "path string, size_in_bytes bigint")
        modified = f"TIMESTAMP '{self.now - _OLD:%Y-%m-%d %H:%M:%S}' AS last_modified"
        rows_of_listing = reached.unionByName(orphans).selectExpr("path", modified, "size_in_bytes")
        rows_of_listing.repartition(8, "path").write.mode("overwrite").parquet(f"file://{file}")
        reached.unpersist()

    def _sealed(self, table: str, frame: DataFrame) -> Listing:
        lifecycle = self.lifecycle
        state = lifecycle.steps.table_state(table)
        listing = given_listing(
            self.spark,
            lifecycle.live_stores,
            frame,
            listed_locations(lifecycle.resources, state, None),
            taken_at=lifecycle.operations.clock.now(),
            root=lifecycle.root,
            clock=lifecycle.operations.clock.now,
            rules=lifecycle.rules(table),
        )
        lifecycle.operations.scans.store_listing(listing.record(state.metadata.table_uuid, state.name))
        return listing

    def _names_more(self, files: DataFrame, planted: Sequence[str]) -> bool:
        found = _paths(files)
        _require_same(found, planted)
        return False

    def report(self, what: Mapping[str, Any]) -> dict[str, Any]:
        measured, self.measured = self.measured, {}
        best = {name: min(runs, key=lambda run: run["seconds"]) for name, runs in measured.items()}
        every = {name: [run["seconds"] for run in runs] for name, runs in measured.items()}
        return {**what, "load after": os.getloadavg(), "best_of": best, "all": every}


def main(
    work: Path, home: Path, *, small: bool, parts: Sequence[str], deleted: int, repetitions: int
) -> dict[str, Any]:
    folder = work / f"orphans-{uuid.uuid4().hex[:8]}"
    uri = EmbeddedPostgres(work / "home").uri(CATALOGS)
    config = config_in(
        folder,
        uri,
        work / "home",
        # Nearly every file of the deletion is an orphan.
        defaults={"deletion": {"requests_per_second": 1e9}, "orphans": {"max_share": 1}},
        memory=HEAP,
        # The synthetic tables stand beside the warehouses.
        roots=[f"file:{work}"],
    )
    spark = open_session(session_conf(config, lifecycle_conf(config), resolve(home)))
    try:
        with Lifecycle.open(config, spark=spark) as lifecycle:
            bench = Bench(lifecycle, folder)
            made = partial(metadata.generate, work=work)
            found: dict[str, Any] = {"heap": HEAP, "load before": os.getloadavg()}
            # All of it on small tables first: both sides have run each step before the clock counts.
            if "scan" in parts:
                bench.scan("warm", made(metadata.warm_up()))
            if "listing" in parts:
                bench.listing("warm_listed", made(shape_with_files(2_000, days=12)))
            if "deletion" in parts:
                bench.deletion("warm_deleted", 3_000)
            bench.repetitions = repetitions
            if "scan" in parts:
                found["scan"] = bench.scan("scanned", made(metadata.daily(0.1 if small else 2, further_days=0)))
            if "listing" in parts:
                found["listing"] = bench.listing("listed", made(shape_with_files(10_000 if small else 200_000)))
            if "deletion" in parts:
                found["deletion"] = bench.deletion("deleted", 5_000 if small else deleted)
            return found
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def named_conf(conf: Mapping[str, str]) -> str:
    return f"{conf[_SHUFFLE]} partitions"


def _orphan(path: str) -> str:
    return path.replace(".parquet", "-left.parquet")


def _paths(files: DataFrame) -> list[str]:
    return [row["path"] for row in files.select("path").collect()]


def _require_same(found: Iterable[str], planted: Iterable[str]) -> None:
    """By what follows the scheme: Hadoop's listing writes `file:/x`."""
    one, other = ({str(_local(path)) for path in paths} for paths in (found, planted))
    assert one == other, f"{len(one)} orphans were named and {len(other)} planted: {sorted(one ^ other)[:3]}"


def _make(paths: Sequence[Path], at: datetime) -> None:
    for folder in {path.parent for path in paths}:
        folder.mkdir(parents=True, exist_ok=True)
    seconds = at.timestamp()
    for path in paths:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        os.utime(path, (seconds, seconds))


def _rest(spark: SparkSession) -> None:
    gc.collect()
    spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]
    time.sleep(0.5)


def _local(path: str) -> Path:
    return Path("/" + path.removeprefix("file:").lstrip("/"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("home", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--deleted", type=int, default=200_000)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    given = parser.parse_args()
    done = main(
        given.work.resolve(),
        given.home.resolve(),
        small=given.small,
        parts=given.parts.split(","),
        deleted=given.deleted,
        repetitions=given.repetitions,
    )
    print(json.dumps(done, indent=1))
