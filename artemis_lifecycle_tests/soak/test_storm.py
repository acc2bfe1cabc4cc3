"""Writers, walks, kills, restarts of Postgres and a store that fails, all at once; then nothing is lost or left over.

`ARTEMIS_SOAK_MINUTES` (30) and `ARTEMIS_SEED` are the storm's; `ARTEMIS_TEST_S3` another server.
"""

from __future__ import annotations

import os

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle_tests.soak import place, storm
from artemis_lifecycle_tests.soak.weather import weather

_MINUTES = float(os.environ.get("ARTEMIS_SOAK_MINUTES", "30"))
_SEED = int(os.environ["ARTEMIS_SEED"])

pytestmark = pytest.mark.timeout(_MINUTES * 60 * 3 + 7200)


def test_after_a_storm_nothing_is_lost_and_nothing_is_left_over(spark: SparkSession) -> None:
    weather(
        spark,
        _SEED,
        storm.Plan(
            seconds=_MINUTES * 60,
            tables=(place.PLAIN, place.PARTED, place.MERGED, place.NEWEST),
            heartbeats=(place.MERGED,),
            pyiceberg_writers=3,
            spark_writers=1,
            # Two at once: one that is killed, and one that lives on and takes over.
            workers=1,
            threads=1,
            window=30,
            grace=5,
            min_age=75,
            commit_within=40,
            heartbeat=30,
            pause=2.0,
            most_files=30,
            between_kills=12,
            between_restarts=75,
            done_between_restarts=40,
            least_commits=100,
        ),
    )
