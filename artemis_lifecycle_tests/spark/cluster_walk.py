"""The driver of `test_cluster`: the same walk over two equal tables, in process and on executors. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.spark import runner
from artemis_lifecycle.spark.runner import Cost, Runner
from artemis_lifecycle_tests.protection.foreign import files_below, make_history, rows, warehouse

_STRAYS = 40


def _workers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The folders that the tasks run in: a worker's own, with the executor's number."""
    import artemis_lifecycle

    for batch in batches:
        said = f"{os.getcwd()} {Path(artemis_lifecycle.__file__).parent}"
        yield pa.RecordBatch.from_pydict({"said": [said] * batch.num_rows})


def _tasks(lifecycle: Lifecycle) -> dict[str, int]:
    """The number of tasks that each executor has finished, by the session's status store."""
    jvm: Any = lifecycle.spark.sparkContext._jsc
    jvm.sc().listenerBus().waitUntilEmpty(60_000)  # it hears of the tasks after their results
    listed = jvm.sc().statusStore().executorList(False)
    found = [listed.apply(number) for number in range(listed.size())]
    return {str(each.id()): int(each.completedTasks()) for each in found if each.id() != "driver"}


def _by(frame: DataFrame | None, *columns: str) -> list[Any]:
    assert frame is not None
    return sorted([*key, count] for key, count in Counter(frame.select(*columns).collect()).items())


def _walk(lifecycle: Lifecycle, name: str) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """What each step returns for a table, without the names of its files; and the tasks that executors had finished
    after it."""
    table, tasks = f"db.{name}", {"": _tasks(lifecycle)}
    plan = lifecycle.plan_expiration(table)
    tasks["plan"] = _tasks(lifecycle)
    results: dict[str, Any] = {"plan": _by(plan.files(), "kind")}
    tasks["plan's files"] = _tasks(lifecycle)
    done = lifecycle.hand_off(plan)
    results["handoff"] = [
        done.copied_files,
        done.rewritten_files,
        done.verified_files,
        _by(done.files(), "kind", "outcome"),
    ]
    tasks["handoff"] = _tasks(lifecycle)
    lifecycle.commit_expiration(plan)
    report = lifecycle.delete_files(plan)
    results["deletion"] = [report.deleted, report.kept, report.failed, _by(report.files(), "kind", "outcome")]
    tasks["deletion"] = _tasks(lifecycle)
    folder = warehouse(lifecycle, "live") / "db" / name
    for number in range(_STRAYS):
        (folder / "data" / f"stray-{number}.parquet").write_bytes(b"stray")
    scan = lifecycle.scan_orphans(table)
    paths = [row["path"] for row in scan.files().collect()]
    results["orphans"] = sorted(path.rpartition(f"/{name}/")[2] for path in paths)
    tasks["orphans"] = _tasks(lifecycle)
    results["left"] = len(files_below(folder))
    results["rows"] = [rows(lifecycle, table, each) for each in done.archived]
    return results, tasks


def main() -> None:
    with Lifecycle.open(LifecycleConfig.model_validate_json(sys.stdin.read())) as lifecycle:
        make_history(lifecycle, "in_process", snapshots=6)
        in_process, _ = _walk(lifecycle, "in_process")
        # Made now: a deletion reads the metadata of every table of its catalog.
        make_history(lifecycle, "on_executors", snapshots=6)
        runner.force_executors = True
        on_executors, tasks = _walk(lifecycle, "on_executors")
        numbers = pa.table({"number": pa.array(range(64))})
        said = Runner(lifecycle.spark).map(numbers, _workers, pa.schema([("said", pa.string())]), Cost(files=512))
        workers = sorted(set(said.table().column("said").to_pylist()))
    print(json.dumps({"in_process": in_process, "on_executors": on_executors, "tasks": tasks, "workers": workers}))


if __name__ == "__main__":
    main()
