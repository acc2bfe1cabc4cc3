"""Who wrote what: a path is not a file, and a name is not a table."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle_tests.cold_tier.test_reused_paths import TABLE, Job
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import AT_ONCE


@pytest.mark.parametrize("tier", ["live", "cold"])
def test_of_a_path_that_was_written_again_the_newest_ingest_is_named(
    make_config: MakeConfig, spark: SparkSession, tier: str
) -> None:
    policy = AT_ONCE if tier == "cold" else {**AT_ONCE, "retention": {"window": "30d"}}
    with open_lifecycle(make_config(defaults=policy), spark=spark) as lifecycle:
        job = Job(lifecycle)
        path = f"{job.folder}/part-0.parquet"
        ingests = []
        for number, ids in enumerate([(1, 2), (7, 8, 9)]):
            ingests.append(job.add(path, *ids))
            job.overwrite(90 + number)
            if tier == "cold":
                lifecycle.expire(TABLE)
        assert ingests[0] != ingests[1]
        assert lifecycle.ingested(TABLE, path=path).snapshot_id == ingests[1]
