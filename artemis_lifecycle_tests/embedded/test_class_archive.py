"""A session maps Spark's classes from the archive that `make setup` makes, and starts without one."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.embedded.class_archive import archive_file, archive_options
from artemis_lifecycle.embedded.java import require_java
from artemis_lifecycle.spark.session import driver_pid


def test_it_is_named_if_it_exists(tmp_path: Path) -> None:
    folder = tmp_path / "jars of ours"
    folder.mkdir()
    java = require_java()
    assert archive_options(java, folder) == ""
    archive_file(java, folder).touch()
    assert shlex.split(archive_options(java, folder))[0] == f"-XX:SharedArchiveFile={archive_file(java, folder)}"


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what a process has mapped")
def test_javas_own_check_accepts_it(spark: SparkSession) -> None:
    folder = Path(str(spark.conf.get("spark.jars")).partition(",")[0]).parent
    archive = archive_file(require_java(), folder)
    if not archive.exists() and os.environ.get("CI") != "true":
        pytest.skip("`make setup` did not make one here")
    # Java says nothing where it refuses an archive, of other jars for example; it does not map it then.
    assert str(archive.resolve()) in Path(f"/proc/{driver_pid()}/maps").read_text()
