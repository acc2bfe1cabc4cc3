from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle_tests.conftest import MakeConfig, open_lifecycle
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.databases import databases

__all__ = ["databases"]


@pytest.fixture
def at_once(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    """Everything is due at once, and nothing is archived."""
    with open_lifecycle(make_config(defaults=WITHOUT_COLD), spark=spark) as opened:
        yield opened


@pytest.fixture
def all_of_db(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    """As `at_once`, for every table of namespace db; dropped tables are kept for ten days."""
    policy = {**WITHOUT_COLD, "dropped": {"keep": "10d"}}
    with open_lifecycle(make_config(defaults=policy, tables={"db.*": {}}), spark=spark) as opened:
        yield opened
