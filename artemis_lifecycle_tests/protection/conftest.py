from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle_tests.conftest import MakeConfig
from artemis_lifecycle_tests.policies import WITHOUT_COLD
from artemis_lifecycle_tests.protection.databases import databases

__all__ = ["databases"]


@pytest.fixture
def at_once(make_config: MakeConfig, spark: SparkSession) -> Iterator[Lifecycle]:
    """Everything is due at once, and nothing is archived."""
    with Lifecycle.open(make_config(defaults=WITHOUT_COLD), spark=spark) as opened:
        yield opened
