"""A name is not a table: what was recorded of a table by its uuid is never done to another one with its name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.errors import Busy
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.expiration.aged import ids_of, make_table, set_ages
from artemis_lifecycle_tests.policies import AT_ONCE

POLICY: dict[str, Any] = {
    **AT_ONCE,
    "cold_tier": {"enabled": False},
    "deletion": {"grace": "0s"},
    "orphans": {"min_age": "0s", "min_age_floor": "0s"},
    "dropped": {"keep": "30d"},
    "lineage": {"mode": "report"},
}


@pytest.fixture
def lifecycle(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    with Lifecycle.open(make_config(defaults=POLICY, tables={"db.*": {}}), spark=spark) as opened:
        yield opened


def test_a_commit_after_a_writer_whose_clock_was_ahead_says_when_to_try_again(lifecycle: Lifecycle) -> None:
    table = make_table(lifecycle, "ahead", 3)
    set_ages(lifecycle, table, [timedelta(days=2), timedelta(days=1), -timedelta(minutes=30)])
    plan = lifecycle.plan_expiration(table)
    rows = lifecycle.spark.createDataFrame([(1,)], "id int")
    for commit in (
        lambda: lifecycle.commit_expiration(plan),
        lambda: lifecycle.tag(table, "kept", ids_of(lifecycle, table)[0]),
        lambda: lifecycle.append(table, rows, {}),
    ):
        with pytest.raises(Busy, match=r"lies (29|30) minutes ahead of this host's clock.*try again at \d{4}-") as said:
            commit()
        assert "contradicts" not in str(said.value) and said.value.table == table
