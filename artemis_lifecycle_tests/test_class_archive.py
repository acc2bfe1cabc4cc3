"""The tests' sessions map Spark's classes from the archive that `make test` makes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.spark.session import driver_pid
from artemis_lifecycle_tests.class_archive import archive_file


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what a process has mapped")
def test_javas_own_check_accepts_it(spark: SparkSession) -> None:
    archive = archive_file()
    if not archive.exists() and os.environ.get("CI") != "true":
        pytest.skip("`make test` did not make one here")
    # Java says nothing if it refuses an archive, of other jars for example; it does not map it then.
    assert str(archive.resolve()) in Path(f"/proc/{driver_pid()}/maps").read_text()
