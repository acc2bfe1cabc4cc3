"""The short form of the long soak (soak/test_storm.py): the same conductor and the same judgment, a minute of storm.

Lifecycle workers are threads on the run's one Spark session, and the writers are processes that are killed.
"""

from __future__ import annotations

import os
import sys

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle_tests.soak import place, proxy, storm
from artemis_lifecycle_tests.soak.weather import weather

_SEED = int(os.environ["ARTEMIS_SEED"])

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kills process trees as Linux has them"),
]


def test_after_a_short_storm_nothing_is_lost_and_nothing_is_left_over(spark: SparkSession) -> None:
    counted = weather(
        spark,
        _SEED,
        storm.Plan(
            seconds=60,
            tables=(place.PARTED, place.MERGED),
            heartbeats=(place.MERGED,),
            pyiceberg_writers=2,
            spark_writers=0,
            workers=0,
            threads=2,
            window=8,
            grace=1,
            min_age=45,
            commit_within=30,
            heartbeat=15,
            pause=1.5,
            most_files=20,
            between_kills=10,
            between_restarts=25,
            done_between_restarts=10,
            least_commits=12,
            # More of the rare ones than in the long form: each is there within the minute.
            faults={
                **storm.FAULTS,
                proxy.BROKEN: 0.01,
                proxy.TIMEOUT: 0.003,
                proxy.LOST: 0.01,
                proxy.LATE: 0.003,
                proxy.CUT: 0.01,
            },
        ),
    )
    assert counted["pyiceberg writer killed"]
