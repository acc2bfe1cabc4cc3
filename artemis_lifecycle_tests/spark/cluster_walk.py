"""The driver of `test_cluster`: the same walk over two equal tables, in process and on executors. Prints JSON.

With a cluster's folder as argument, an executor is killed in each step of the second walk.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.spark import runner
from artemis_lifecycle.spark.runner import Cost, Runner
from artemis_lifecycle_tests import core_tables
from artemis_lifecycle_tests.protection.foreign import files_below, ids, make_history, name_of, rows, warehouse

_STRAYS = 40

During = Callable[[str], AbstractContextManager[None]]
"""What stands around a step."""


def _workers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The folders that the tasks run in: a worker's own, with the executor's number."""
    import artemis_lifecycle

    for batch in batches:
        said = f"{os.getcwd()} {Path(artemis_lifecycle.__file__).parent}"
        yield pa.RecordBatch.from_pydict({"said": [said] * batch.num_rows})


def _executors(lifecycle: Lifecycle, *, alive: bool) -> list[Any]:
    """What the session's status store has of each executor."""
    jvm: Any = lifecycle.spark.sparkContext._jsc
    listed = jvm.sc().statusStore().executorList(alive)
    found = [listed.apply(number) for number in range(listed.size())]
    return [each for each in found if each.id() != "driver"]


def _tasks(lifecycle: Lifecycle) -> dict[str, int]:
    """The number of tasks that each executor has finished, by the session's status store."""
    jvm: Any = lifecycle.spark.sparkContext._jsc
    jvm.sc().listenerBus().waitUntilEmpty(60_000)  # it hears of the tasks after their results
    return {str(each.id()): int(each.completedTasks()) for each in _executors(lifecycle, alive=False)}


@contextmanager
def _counting(lifecycle: Lifecycle, tasks: dict[str, dict[str, int]], step: str) -> Iterator[None]:
    yield
    tasks[step] = _tasks(lifecycle)


@contextmanager
def _killing(lifecycle: Lifecycle, cluster: Path, killed: dict[str, str], step: str) -> Iterator[None]:
    """Kill the first executor that is at work in the block; if none is, one at the block's end."""
    over = Event()

    def kill() -> None:
        while not (at_work := [each for each in _executors(lifecycle, alive=True) if each.activeTasks()]):
            if over.wait(0.01):
                return
        killed[step] = "at work"
        _kill(cluster, at_work[0].id())

    killer = Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()
    if step not in killed:
        killed[step] = "idle"
        _kill(cluster, _executors(lifecycle, alive=True)[0].id())


def _kill(cluster: Path, executor: str) -> None:
    """Kill an executor of the cluster in this folder, which works in a folder named by its number."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            place = Path(os.readlink(process / "cwd"))
            is_in_cluster = place.name == executor and place.is_relative_to(cluster)
            if is_in_cluster and b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def _by(frame: DataFrame | None, *columns: str) -> list[Any]:
    assert frame is not None
    return sorted([*key, count] for key, count in Counter(frame.select(*columns).collect()).items())


def _walk(lifecycle: Lifecycle, name: str, during: During) -> dict[str, Any]:
    """What each step returns for a table, without the names of its files."""
    table, results = f"db.{name}", dict[str, Any]()
    with during("plan"):
        plan = lifecycle.plan_expiration(table)
    with during("plan's files"):
        results["plan"] = _by(plan.files(), "kind")
    with during("handoff"):
        done = lifecycle.hand_off(plan)
    copied = [done.copied_files, done.rewritten_files, done.verified_files]
    results["handoff"] = [*copied, _by(done.files(), "kind", "outcome")]
    with during("commit"):
        results["commit"] = lifecycle.commit_expiration(plan).snapshots_removed
    with during("deletion"):
        report = lifecycle.delete_files(plan)
    results["deletion"] = [report.deleted, report.kept, report.failed, _by(report.files(), "kind", "outcome")]
    folder = warehouse(lifecycle, "live") / "db" / name
    for number in range(_STRAYS):
        (folder / "data" / f"stray-{number}.parquet").write_bytes(b"stray")
    with during("orphans"):
        scan = lifecycle.scan_orphans(table)
        paths = [row["path"] for row in scan.files().collect()]
    results["orphans"] = sorted(path.rpartition(f"/{name}/")[2] for path in paths)
    with during("deletion of orphans"):
        report = lifecycle.delete_orphans(scan)
    results["deletion of orphans"] = [report.deleted, report.kept, report.failed]
    results["left"] = len(files_below(folder))
    results["rows"] = [rows(lifecycle, table, each) for each in done.archived]
    for number in range(8):
        core_tables.append(lifecycle.spark, name_of(lifecycle, table), [(1000 + number, 0)])
    with during("compaction"):
        compacted = lifecycle.compact_data_files(table)
    results["compaction"] = [compacted.rewritten_files, compacted.added_files, ids(lifecycle, table)]
    with during("restore"):
        restored = lifecycle.restore(table, done.archived[0], "back", who="ada")
    results["restore"] = [restored.copied_files, rows(lifecycle, table, restored.snapshot_id)]
    return results


def main(cluster: str | None = None) -> None:
    with Lifecycle.open(LifecycleConfig.model_validate_json(sys.stdin.read())) as lifecycle:
        make_history(lifecycle, "in_process", snapshots=6)
        in_process = _walk(lifecycle, "in_process", partial(_counting, lifecycle, {}))
        # Made now: a deletion reads the metadata of every table of its catalog.
        make_history(lifecycle, "on_executors", snapshots=6)
        runner.force_executors = True
        tasks, killed = {"": _tasks(lifecycle)}, dict[str, str]()
        during: During = partial(_counting, lifecycle, tasks)
        if cluster is not None:
            during = partial(_killing, lifecycle, Path(cluster), killed)
        on_executors = _walk(lifecycle, "on_executors", during)
        numbers = pa.table({"number": pa.array(range(64))})
        said = Runner(lifecycle.spark).map(numbers, _workers, pa.schema([("said", pa.string())]), Cost(files=512))
        workers = sorted(set(said.table().column("said").to_pylist()))
    found = {"in_process": in_process, "on_executors": on_executors, "tasks": tasks, "killed": killed}
    print(json.dumps({**found, "workers": workers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
