"""`calls`: Paimon's Java in the session's JVM; `warehouse`: an empty one, that Paimon's catalog and ours take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle_tests.paimon.bundle import paimon
from artemis_lifecycle_tests.protection.databases import databases

__all__ = ["databases"]


@pytest.fixture(scope="session")
def calls(spark: SparkSession) -> Any:
    return paimon(spark)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "paimon"
