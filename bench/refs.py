"""A table with many refs and properties, through the public API. `python -m bench.refs WORK JARS` prints JSON;
`--refs 100000` and `--properties 100000` are how many.

Half of the refs are tags on one snapshot, the others are spread over the rest; one in a hundred is a branch. Each step
runs once: its seconds, and the highest memory of Python and of the JVM above what they had before the first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.catalogs.settings import spark_conf
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.embedded.postgres import CATALOGS, EmbeddedPostgres
from artemis_lifecycle.spark.session import open_session, session_conf
from bench.configuration import config_in
from bench.sampling import Sampler

SNAPSHOTS = 50
TABLE = "bench.refs"


def main(work: Path, jars: Path, refs: int, properties: int) -> dict[str, Any]:
    folder = work / f"refs-{uuid.uuid4().hex[:8]}"
    # Of its own, for its tables would be neighbors of the next run's.
    postgres = EmbeddedPostgres(folder / "home")
    uri = postgres.uri(CATALOGS)
    defaults = {"retention": {"rule": "iceberg", "window": "1ms"}, "deletion": {"grace": "0ms"}}
    config = config_in(folder, uri, folder / "home", defaults=defaults)
    spark = open_session(session_conf(config, spark_conf(config.catalogs), resolve(jars)))
    try:
        with Lifecycle.open(config, spark=spark) as lifecycle:
            size = _make(lifecycle, folder, uri, refs, properties)
            return {"refs": refs, "properties": properties, "metadata_bytes": size, "steps": _steps(lifecycle)}
    finally:
        spark.stop()
        postgres.remove()
        shutil.rmtree(folder, ignore_errors=True)


def _make(lifecycle: Lifecycle, folder: Path, uri: str, refs: int, properties: int) -> int:
    """A table of SNAPSHOTS whose metadata file another writer gave so many refs and properties; its size."""
    spark, live = lifecycle.spark, lifecycle.config.catalogs.live.name
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {live}.bench")
    spark.sql(f"CREATE TABLE {live}.{TABLE} (id bigint) USING iceberg")
    for number in range(SNAPSHOTS):
        spark.sql(f"INSERT OVERWRITE {live}.{TABLE} VALUES ({number})")
    history = lifecycle.snapshot_history(TABLE)
    path = Path(history.metadata_location.removeprefix("file:").replace("///", "/"))
    content = json.loads(path.read_text())
    ids = [snapshot.snapshot_id for snapshot in history.snapshots]
    held, others = ids[SNAPSHOTS // 2], ids[SNAPSHOTS // 2 + 1 :]
    for number in range(refs):
        snapshot = held if number % 2 else others[number // 2 % len(others)]
        kind = "branch" if number % 100 == 0 else "tag"
        content["refs"][f"release-{number:06d}"] = {"snapshot-id": snapshot, "type": kind}
    content["properties"] |= {f"owner.of.column.{number:06d}": f"team-{number % 97}" for number in range(properties)}
    made = path.with_name(f"99999-{uuid.uuid4()}.metadata.json")
    made.write_text(json.dumps(content))
    _run(
        uri,
        "UPDATE iceberg_tables SET metadata_location = :made, previous_metadata_location = :before "
        "WHERE catalog_name = :live AND table_name = 'refs'",
        made=f"file:{made}",
        before=history.metadata_location,
        live=live,
    )
    spark.catalog.refreshTable(f"{live}.{TABLE}")
    return made.stat().st_size


def _run(uri: str, statement: str, **values: str) -> None:
    engine = create_engine(uri)
    with engine.begin() as connection:
        connection.execute(text(statement), values)
    engine.dispose()


def _steps(lifecycle: Lifecycle) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    plans: list[Any] = []
    now = datetime.now(UTC)
    path = str(lifecycle.snapshot_history(TABLE).snapshots[SNAPSHOTS // 2].manifest_list)
    resting = _memory(lambda: time.sleep(1))

    def step(name: str, work: Callable[[], Any]) -> None:
        began = time.perf_counter()
        python, jvm = _memory(work)
        seconds = time.perf_counter() - began - 0.1
        found.append(
            {
                "step": name,
                "seconds": round(seconds, 2),
                "python_mb": round((python - resting[0]) / 1e6),
                "jvm_mb": round((jvm - resting[1]) / 1e6),
            }
        )
        print(found[-1], file=sys.stderr, flush=True)

    step("snapshot_history", lambda: lifecycle.snapshot_history(TABLE).to_pandas())
    step("tags", lambda: lifecycle.tags(TABLE))
    step("reachable_set", lambda: lifecycle.reachable_set(TABLE))
    step("plan_expiration", lambda: plans.append(lifecycle.plan_expiration(TABLE, older_than=now)))
    step("explain", lambda: lifecycle.explain(TABLE, path))
    step("retention_curve", lambda: lifecycle.retention_curve(TABLE))
    step("hand_off", lambda: lifecycle.hand_off(plans[0]))
    step("commit_expiration", lambda: lifecycle.commit_expiration(plans[0]))
    step("delete_files", lambda: lifecycle.delete_files(plans[0]))
    step("scan_orphans", lambda: lifecycle.scan_orphans(TABLE))
    return found


def _memory(work: Callable[[], Any]) -> tuple[int, int]:
    """The highest memory (Python, JVM) in bytes while `work` runs."""
    sampler = Sampler(os.getpid())
    sampler.start()
    try:
        work()
        time.sleep(0.1)  # One sample at least.
    finally:
        samples = sampler.stop()
    return max(sample.python for sample in samples), max(sample.jvm for sample in samples)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench.refs")
    parser.add_argument("work", type=Path)
    parser.add_argument("jars", type=Path)
    parser.add_argument("--refs", type=int, default=100_000)
    parser.add_argument("--properties", type=int, default=100_000)
    given = parser.parse_args()
    print(json.dumps(main(given.work.resolve(), given.jars, given.refs, given.properties), indent=1))
