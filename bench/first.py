"""The first plan of a process, with nothing warm. `python -m bench.first WORK HOME` prints one line of JSON: seconds of
the clock and of the processors (all processes) for each part, and a digest of what each plan names.

HOME is the folder that has Spark's jars, WORK the bench's own (`--work`). Parts: the session's start; a full plan, and
the count of its files; the same again, which finds libraries and JVM warm; then nights. With `--without-session`, only
the first full plan, as a command makes it: without a JVM. To compare two versions, run each from its own tree, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle.storage.frames import describe_frame, rows_digest
from artemis_lifecycle.storage.stores import Stores
from bench import metadata
from bench.sampling import processor_seconds
from bench.side import Job, Ours, read_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("home")
    parser.add_argument("--scale", type=float, default=2)
    parser.add_argument("--nights", type=int, default=2)
    parser.add_argument("--without-session", action="store_true")
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    table = metadata.generate(metadata.daily(arguments.scale), Path(arguments.work), processes=cores)
    read_all(Path(table.folder))
    home = str(Path(arguments.work, "home"))
    job = Job("ours", arguments.work, home, arguments.home, cores, "", "", (table.folder,), 2, arguments.nights, {})
    parts: dict[str, Any] = {"load": os.getloadavg()[0]}

    def part(name: str, work: Callable[[], Any]) -> Any:
        began, processor = time.monotonic(), processor_seconds()
        done = work()
        parts[name] = [round(time.monotonic() - began, 2), round(processor_seconds() - processor, 2)]
        return done

    spark = None
    if not arguments.without_session:
        config = LifecycleConfig.model_validate({"home": home, "spark": {"master": f"local[{cores}]"}})
        conf = session_conf(config, {}, resolve(Path(arguments.home)))
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


def digest(folder: str) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sealed = describe_frame(folder, Stores())
    assert sealed is not None
    parts = [pq.read_table(Path(folder.removeprefix("file://"), part.name)) for part in sealed.parts]
    return rows_digest(pa.concat_tables(parts))


if __name__ == "__main__":
    main()
