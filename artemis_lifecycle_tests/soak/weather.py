"""A whole storm: prepared, blown, calmed, brought to rest, judged. A failure keeps its folder, and tells the seed."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle_tests.conftest import _forget
from artemis_lifecycle_tests.end_report import add_row
from artemis_lifecycle_tests.soak import judge, storm
from artemis_lifecycle_tests.storage import s3_server

TITLE = "the storm"


def weather(
    spark: SparkSession,
    seed: int,
    plan: storm.Plan,
) -> Counter[str]:
    """Returns what was counted."""
    home = Path(tempfile.mkdtemp(prefix="artemis-storm-"))
    print(f"\nA storm of {plan.seconds:.0f} s, seed {seed}, in {home}", flush=True)
    blown = storm.Storm(home, seed, plan)
    began = time.monotonic()
    try:
        blown.prepare(spark, s3_server._ANOTHER)
        blown.blow(spark)
        faults = blown.faults()
        blown.calm()
        print(f"calm after {time.monotonic() - began:.0f} s: {dict(blown.counts)} {faults}", flush=True)
        with Lifecycle.open(blown.place.rest_path, spark=spark, owner="rest") as lifecycle:
            judge.wake(lifecycle)
            for table in plan.tables:
                judge.come_to_rest(lifecycle, table)
            print(f"at rest after {time.monotonic() - began:.0f} s", flush=True)
            verdict = judge.judge(lifecycle, blown.place, judge.spoken_in(blown.place))
        counted = verdict.counted + blown.counts + Counter({f"injected: {key}": n for key, n in faults.items()})
        counted["seconds"] = round(time.monotonic() - began)
        _print(seed, plan, counted)
        assert not verdict.wrong, f"seed {seed}, in {home}:\n" + "\n".join(verdict.wrong[:50])
    except BaseException:
        print(f"A storm with seed {seed} failed; what it left is in {home}", file=sys.stderr, flush=True)
        raise
    finally:
        blown.end()
        for name in (storm.LIVE, storm.COLD):
            _forget(spark, name)
    blown.server.remove()
    shutil.rmtree(home, ignore_errors=True)
    return counted


def _print(seed: int, plan: storm.Plan, counted: Counter[str]) -> None:
    title = f"{TITLE}: {plan.seconds:.0f} s, seed {seed}"
    for what, number in judge.reported(counted):
        add_row(title, ("what", "how many"), (what, number))
        print(f"{what:60} {number}", flush=True)
