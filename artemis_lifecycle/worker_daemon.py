"""The process that Spark forks this project's Python workers from: `spark.python.daemon.module`.

Three things about Spark's own daemon cost each task a quarter of a second of a processor, whatever it does, and each
new worker another second, while most tasks here take less than that:

- before each task a worker forgets what it knows of its path (`importlib.invalidate_caches`), and Spark puts its own
  Python on that path as archives, whose directories are then read again, once for each package in them;
- after each task it collects garbage (`gc.collect`) among all objects of all loaded libraries;
- each worker loads those libraries itself.

Here Spark's archives are left out where the same pyspark stands beside them as files, libraries are loaded before the
fork, and a collection does not need to visit them. Everything else is Spark's daemon.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_LOADED = (
    # What tasks load, and `pyspark.worker` with them: its Arrow functions ask for pandas.
    *("numpy", "pyarrow", "pyarrow.compute", "pyarrow.parquet", "numba", "pandas", "xxhash", "isal.isal_zlib"),
    "artemis_lifecycle.metadata.avro.scan_kernels",
    "artemis_lifecycle.reachability.index.view",
)

_ARCHIVES = re.compile(r"pyspark\.zip|py4j-.*-src\.zip|spark-core_.*\.jar")


def main() -> None:
    """Serve workers until Spark closes standard input."""
    for archive in leave_out_archives(sys.path, os.environ.get("SPARK_HOME")):
        sys.path_importer_cache.pop(archive, None)
    from artemis_lifecycle.spark.isolated import load  # not from an archive

    load((*_LOADED, "pyspark.daemon"))
    sys.modules["pyspark.daemon"].manager()


def leave_out_archives(path: list[str], spark_home: str | None) -> list[str]:
    """Take Spark's own archives out of `path`, where its other entries lead to the pyspark that stands in `spark_home`,
    which is the one that the archives are made of, and to a py4j. Returns what was taken out."""
    archives = [entry for entry in path if _ARCHIVES.fullmatch(Path(entry).name)]
    rest = [entry for entry in path if entry not in archives]
    pyspark = next(_packages("pyspark", rest), None)
    if spark_home is None or pyspark is None or pyspark.resolve() != Path(spark_home).resolve():
        return []
    if next(_packages("py4j", rest), None) is None:
        return []
    path[:] = rest
    return archives


def _packages(name: str, path: list[str]) -> Iterator[Path]:
    return (Path(entry, name) for entry in path if Path(entry, name, "__init__.py").is_file())


if __name__ == "__main__":
    main()
