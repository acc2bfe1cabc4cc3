"""A full plan on 1, 2 and 4 executors of one core each. `python -m bench.executors WORK HOME` prints one line of JSON:
for each number, the seconds of the clock and of the processors (all processes) of two full plans, the first of which
warms up, and whether the plans of all name the same.

HOME is the folder that has Spark's jars, WORK the bench's own (`--work`). The executors are processes of this machine,
of a standalone cluster: beyond its cores they cannot gain. All stages run on executors, however small.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.spark import runner
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle_tests.spark.standalone import standalone
from bench import metadata
from bench.first import digest
from bench.sampling import processor_seconds
from bench.side import Job, Ours, read_all

_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "1g",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]),
    "spark.python.daemon.module": "artemis_lifecycle.worker_daemon",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("home")
    parser.add_argument("--scale", type=float, default=0.5)
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    table = metadata.generate(metadata.daily(arguments.scale), Path(arguments.work), processes=cores)
    read_all(Path(table.folder))
    home = str(Path(arguments.work, "home"))
    job = Job("ours", arguments.work, home, arguments.home, cores, "", "", (table.folder,), 2, 0, {})
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    runner.force_executors = True
    found: dict[str, Any] = {"cores": cores, "files": table.data_files, "load": os.getloadavg()[0]}
    digests = set()
    for executors in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder, standalone(Path(folder), executors) as master:
            conf = {**_CONF, "spark.sql.shuffle.partitions": str(executors)}
            spark_config = {"master": master, "python": sys.executable, "conf": conf}
            config = LifecycleConfig.model_validate({"home": home, "spark": spark_config})
            spark = open_session(session_conf(config, {}, resolve(Path(arguments.home))))
            while spark.sparkContext.defaultParallelism < executors:
                time.sleep(0.1)
            ours = Ours(spark, job)
            plans = []
            for _ in range(2):
                ours.forget(table)
                planned = ours.planned(table, table.stages[0])
                began, processor = time.monotonic(), processor_seconds()
                plan = planned()
                plans.append([round(time.monotonic() - began, 2), round(processor_seconds() - processor, 2)])
                digests.add(digest(plan.files_location))
            found[str(executors)] = plans
            ours.close()
            spark.stop()
    print(json.dumps({**found, "equal": len(digests) == 1}))


if __name__ == "__main__":
    main()
