"""What Spark forks Python workers from: the same pyspark, without what makes each task slow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from artemis_lifecycle.worker_daemon import leave_out_archives


def _seen(rows: Iterator[int]) -> Iterator[dict[str, Any]]:
    import gc
    import sys
    import zipimport

    import pyspark

    list(rows)
    finders = [path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimport.zipimporter)]
    yield {
        "archives": [path for path in {*sys.path, *finders} if path.endswith(".jar") or "pyspark" in path],
        "pyspark": pyspark.__file__,
        "version": pyspark.__version__,
        "frozen": gc.get_freeze_count(),
        "loaded": [
            name for name in ("numba", "pyarrow", "artemis_lifecycle.metadata.avro.scan_kernels") if name in sys.modules
        ],
    }


def test_workers_have_what_tasks_load_and_no_archive_to_search(spark: SparkSession) -> None:
    for _ in range(2):
        for seen in spark.sparkContext.parallelize(range(2), 2).mapPartitions(_seen).collect():
            assert seen["archives"] == []
            assert (seen["pyspark"], seen["version"]) == (pyspark.__file__, pyspark.__version__)
            assert seen["frozen"] > 50_000
            assert seen["loaded"]


@pytest.mark.parametrize(
    ("beside", "home", "left_out"),
    [
        (("pyspark", "py4j"), "site/pyspark", True),
        (("pyspark",), "site/pyspark", False),
        (("py4j",), "site/pyspark", False),
        (("pyspark", "py4j"), "another/pyspark", False),
        (("pyspark", "py4j"), None, False),
        ((), "site/pyspark", False),
    ],
)
def test_archives_are_copied_only_next_to_the_same_spark(
    tmp_path: Path, beside: tuple[str, ...], home: str | None, left_out: bool
) -> None:
    for package in beside:
        (tmp_path / "site" / package).mkdir(parents=True)
        (tmp_path / "site" / package / "__init__.py").touch()
    archives = [f"{tmp_path}/lib/pyspark.zip", f"{tmp_path}/lib/py4j-0.10.9.9-src.zip", "/jars/spark-core_2.13-4.1.jar"]
    own = ["", f"{tmp_path}/mine.zip", f"{tmp_path}/site"]
    path = [own[0], *archives, *own[1:]]
    assert leave_out_archives(path, home and f"{tmp_path}/{home}") == (archives if left_out else [])
    assert path == (own if left_out else [own[0], *archives, *own[1:]])
