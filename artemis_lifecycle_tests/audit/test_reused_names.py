"""Who wrote what: a path is not a file, and a name is not a table."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle_tests.cold_tier.test_reused_paths import TABLE, Job
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.expiration.aged import make_table
from artemis_lifecycle_tests.policies import AT_ONCE, WITHOUT_COLD


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


@pytest.mark.parametrize("recorded", ["by-its-name", "after-its-name-was-taken", "by-its-name, which was then taken"])
def test_who_read_a_snapshot_is_known_whatever_its_table_is_called(
    make_config: MakeConfig, spark: SparkSession, recorded: str
) -> None:
    """A writer's summary has the name of then, and each recording looks up what has the name now."""
    with open_lifecycle(make_config(defaults=WITHOUT_COLD), spark=spark) as lifecycle:
        live, now = lifecycle.config.catalogs.live.name, "db.source"
        source, reader = make_table(lifecycle, "source", 1), make_table(lifecycle, "reader", 0)
        lifecycle.observe_catalog()
        bad = lifecycle.snapshot_history(source).current_snapshot_id
        writer = spark.sql("SELECT 1 AS id").coalesce(1).writeTo(f"{live}.{reader}")
        writer.option("snapshot-property.input.snapshot_ids", f'{{"{source}": [{bad}]}}').append()
        if recorded != "after-its-name-was-taken":
            lifecycle.record_lineage(reader)
        if recorded != "by-its-name":
            now = "db.source_2025"
            spark.sql(f"ALTER TABLE {live}.{source} RENAME TO {now}")
            make_table(lifecycle, "source", 1)
            lifecycle.observe_catalog()
            lifecycle.record_lineage(reader)
        assert bad is not None
        assert [each.table for each in lifecycle.downstream(now, bad).snapshots] == [reader]
        [edge] = lifecycle.upstream(reader, lifecycle.snapshot_history(reader).current_snapshot_id or 0).edges
        assert (edge.source.table, edge.source.snapshot_id) == (now, bad)
