"""An unfit table, and a week of scheduled upkeep on it: what the sensors ask for at simulated hours, and nothing else.

`python -m bench.upkeep WORK JARS --files 10000` prints, as JSON, what planning and reading the table costs before and
after. Runs are those of the jobs, in this process; the sensors decide by the hour that they are given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import DagsterInstance, Definitions, SkipReason
from pyspark.sql import functions as F

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import lifecycle_conf
from artemis_lifecycle.defs import jobs
from artemis_lifecycle.defs.build import build_definitions
from artemis_lifecycle.defs.sensors import compaction_requests, step_requests
from artemis_lifecycle.defs.tags import PARTITIONS_NAME
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.embedded.postgres import EmbeddedPostgres
from artemis_lifecycle.spark.session import open_session, session_conf
from bench.configuration import config_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_FILE = 20
HOURS = (0, 4, 9, 15)
"""When plans and commits open, and twice by day."""


def make_unfit(
    spark: SparkSession, live: str, table: str, *, files: int, commits: int, parts: int, deletes: int
) -> None:
    """Create a table of `files` small files in `parts` partitions, written by `commits` commits, each with a manifest
    that mixes partitions; and `deletes` merge-on-read deletes, each in one partition."""
    name, each = f"{live}.{table}", files // commits
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.{table.split('.')[0]}")
    spark.sql(
        f"CREATE TABLE {name} (id bigint, part int, payload string) USING iceberg PARTITIONED BY (part) TBLPROPERTIES "
        "('format-version' = '2', 'write.delete.mode' = 'merge-on-read', 'write.distribution-mode' = 'none', "
        "'commit.manifest-merge.enabled' = 'false')"
    )
    for commit in range(commits):
        first = commit * each * ROWS_PER_FILE
        rows = spark.range(first, first + each * ROWS_PER_FILE, 1, each)
        part = (F.floor(F.col("id") / ROWS_PER_FILE) % parts).cast("int")
        rows.select("id", part.alias("part"), F.sha2(F.col("id").cast("string"), 256).alias("payload")).writeTo(
            name
        ).append()
    for number in range(deletes):
        spark.sql(
            f"DELETE FROM {name} WHERE part = {number % parts} AND id % {ROWS_PER_FILE} = {number % ROWS_PER_FILE}"
        )


@dataclass(frozen=True)
class Ran:
    """A run that a sensor asked for, at a simulated hour."""

    at: datetime
    job: str
    succeeded: bool


def week(
    definitions: Definitions, lifecycle: Lifecycle, instance: DagsterInstance, table: str, days: int = 7
) -> list[Ran]:
    """Run what the sensors ask for in the week from tomorrow's midnight on: the walk in the night, the observation of
    new metadata and compactions by day."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    ran: list[Ran] = []

    def run(job: str, at: datetime, config: Any = None) -> None:
        done = definitions.resolve_job_def(job).execute_in_process(
            instance=instance, partition_key=table, raise_on_error=False, run_config=config
        )
        ran.append(Ran(at, job, done.success))

    for day in range(days):
        for hour in HOURS:
            at = midnight + timedelta(days=day, hours=hour)
            if hour == 9:
                run(jobs.observe.name, at)
            for requests in (step_requests, compaction_requests):
                found = requests(lifecycle, instance, at)
                for request in () if isinstance(found, SkipReason) else found:
                    run(str(request.job_name), at, request.run_config)
                    if requests is compaction_requests:
                        # The commit is new metadata, for which the sensor asks.
                        run(jobs.observe.name, at)
    return ran


@dataclass(frozen=True)
class Cost:
    """Medians in seconds: planning the whole table and one partition (ours; Iceberg's), and Spark reading all rows."""

    fitness: str
    manifests_read: int
    files_read: int
    planning_one_partition: float
    icebergs_planning: float
    reading_everything: float


def cost(lifecycle: Lifecycle, spark: SparkSession, table: str) -> tuple[Cost, list[int]]:
    """What planning and reading cost now; and the table's rows as (count, sum of ids, sum of hashes)."""
    from artemis_lifecycle.commits.actions import jvm_table
    from artemis_lifecycle.upkeep.health import Fitness

    live, seconds = lifecycle.config.catalogs.live.name, lifecycle.config.prices
    query = lifecycle.plan_query(table, "part = 3")
    ours, icebergs, reading = [], [], []
    rows: list[int] = []
    for _ in range(3):
        began = time.perf_counter()
        lifecycle.plan_query(table, "part = 3")
        ours.append(time.perf_counter() - began)
        loaded = jvm_table(spark, live, table)
        began = time.perf_counter()
        tasks = loaded.newScan().planFiles()
        spark._jvm.org.apache.iceberg.relocated.com.google.common.collect.Iterables.size(tasks)
        icebergs.append(time.perf_counter() - began)
        began = time.perf_counter()
        whole = spark.table(f"{live}.{table}").agg(
            F.count("*"), F.sum("id"), F.sum(F.xxhash64("payload").cast("decimal(38, 0)"))
        )
        rows = [int(value) for value in whole.collect()[0]]
        reading.append(time.perf_counter() - began)
    fitness = Fitness.of(lifecycle.health(table), lambda files, size: seconds.seconds("STANDARD", files, size))
    median = statistics.median
    found = Cost(
        str(fitness),
        query.manifests_selected,
        query.files_selected,
        round(median(ours), 3),
        round(median(icebergs), 3),
        round(median(reading), 2),
    )
    return found, rows


@contextmanager
def _stage(work: Path, jars: Path) -> Iterator[tuple[Lifecycle, SparkSession, Path]]:
    work.mkdir(parents=True, exist_ok=True)
    server = EmbeddedPostgres(work / "home")
    server.start()
    try:
        config = config_in(
            work / f"upkeep_{int(time.time())}",
            server.uri("postgres"),
            work / "home",
            defaults={
                "budgets": {"compaction_bandwidth_share": 1.0},
                "retention": {"window": "1m"},
                "cold_tier": {"enabled": False},
                "deletion": {"grace": "1s"},
            },
        )
        path = work / "lifecycle.json"
        path.write_text(json.dumps(config.model_dump(mode="json", by_alias=True)))
        spark = open_session(session_conf(config, lifecycle_conf(config), resolve(jars)))
        try:
            with Lifecycle.open(config, spark=spark) as lifecycle:
                yield lifecycle, spark, path
        finally:
            spark.stop()
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("jars", type=Path)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--parts", type=int, default=50)
    parser.add_argument("--deletes", type=int, default=20)
    given = parser.parse_args()
    table = "bench.unfit"
    with _stage(given.work.resolve(), given.jars.resolve()) as (lifecycle, spark, path):
        make_unfit(
            spark,
            lifecycle.config.catalogs.live.name,
            table,
            files=given.files,
            commits=given.commits,
            parts=given.parts,
            deletes=given.deletes,
        )
        before, rows = cost(lifecycle, spark, table)
        with DagsterInstance.ephemeral() as instance:
            instance.add_dynamic_partitions(PARTITIONS_NAME, [table])
            ran = week(build_definitions(path), lifecycle, instance, table)
        after, rows_after = cost(lifecycle, spark, table)
    if rows != rows_after:
        raise SystemExit(f"The rows changed: {rows} before, {rows_after} after")
    jobs = [f"{each.at:%A %H:00} {each.job}{'' if each.succeeded else ' FAILED'}" for each in ran]
    print(json.dumps({"before": vars(before), "after": vars(after), "runs": jobs}, indent=2))


if __name__ == "__main__":
    main()
